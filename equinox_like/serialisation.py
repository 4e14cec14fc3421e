"""Save the leaves of a pytree in a file, and load them into a pytree of the same structure."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.checkpoints import load_file, save_file
from liftcore.errors import LiftArgumentError, SerializationError, name_of

from .filters import combine, filter, is_array_like
from .npy_files import begins_with_npy, load_npy

__all__ = ["tree_deserialise_leaves", "tree_serialise_leaves"]


def tree_serialise_leaves(
    path_or_file: str | os.PathLike[str] | BinaryIO,
    pytree: Any,
    filter_spec: Any = is_array_like,
    is_leaf: Callable[[Any], bool] | None = None,
) -> None:
    """Save the leaves of a pytree that are arrays or numbers.

    The file has the format of `liftcore.checkpoints.save_file`, with a name and a checksum for each array. An existing
    file is replaced when all of the new one is on the disk. Equinox cannot read the file.

    Example:
        >>> import io, jax.numpy as jnp, equinox_like as eqx
        >>> file = io.BytesIO()
        >>> eqx.tree_serialise_leaves(file, {"w": jnp.arange(2.0), "act": jnp.tanh})
        >>> position = file.seek(0)
        >>> eqx.tree_deserialise_leaves(file, {"w": jnp.zeros(2), "act": jnp.tanh})["w"]
        Array([0., 1.], dtype=float32)

    Args:
        path_or_file: a path, to which ".eqx" is added if it has no suffix; or an open binary file, for instance one in
            which you wrote a line of hyperparameters first.
        pytree: the pytree, such as a model, or a tuple of a model and the state of an optimizer.
        filter_spec: which leaves to save: a pytree prefix of bools, or of functions from a leaf to a bool. By default
            all arrays, and all Python and NumPy numbers.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `filter_spec` is not a prefix, or has functions of a file and a leaf, as in Equinox.
        SerializationError: if a leaf cannot be written.
        OSError: if the system cannot write, for instance because the disk is full.
    """
    _check_spec("tree_serialise_leaves", filter_spec)
    save_file(_with_suffix(path_or_file), filter(pytree, filter_spec, is_leaf=is_leaf))


def tree_deserialise_leaves(
    path_or_file: str | os.PathLike[str] | BinaryIO,
    like: Any,
    filter_spec: Any = is_array_like,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Load a pytree with the leaves that `tree_serialise_leaves` saved.

    The names, shapes and dtypes in the file are compared with those of `like`, and one error lists all differences.
    Only data is read from the file, never code. Files of `equinox.tree_serialise_leaves` can be loaded too. They have
    no names and no checksums, so their leaves are compared in order, by shape and dtype.

    Args:
        path_or_file: the path, to which ".eqx" is added if it has no suffix; or an open binary file that can seek. It
            is read from its current position to the end of what was saved there.
        like: a pytree of the same structure. It may hold shapes and dtypes, as from `eqx.filter_eval_shape`. Leaves
            that were not saved come from it.
        filter_spec: which leaves to load; the same as in `tree_serialise_leaves`.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Returns:
        A new pytree. Each array is a JAX or a NumPy array as in `like`, on the same devices.

    Raises:
        SerializationError: if the file is damaged, or if the leaves differ from those of `like`.
        FileNotFoundError: if there is no such file.
        LiftArgumentError: if `filter_spec` is not a prefix, or has functions of a file and a leaf, as in Equinox; if
            the file is in text mode, or cannot seek.
    """
    _check_spec("tree_deserialise_leaves", filter_spec)
    target = filter(like, jax.tree.map(_of_shapes, filter_spec), is_leaf=is_leaf)
    path = _with_suffix(path_or_file)
    with _opened(path) as file:
        if begins_with_npy(file):
            loaded = load_npy(file, target, f'"{path}"' if file is not path else type(file).__name__, file is not path)
        else:
            loaded = _loaded(path, target)
    return combine(loaded, like, is_leaf=is_leaf)


def _loaded(path: Any, target: Any) -> Any:
    try:
        return load_file(path, target)
    except SerializationError as error:
        if "=" not in error.fix:
            raise
        fix = f"For these options, use `liftcore.checkpoints.load_file(path, like, …)` instead. {error.fix}"
        raise SerializationError(error.where, error.what, fix) from error.__cause__


def _of_shapes(answer: Any) -> Any:
    """Return a function from a leaf to a bool that replaces a `jax.ShapeDtypeStruct` by an array."""
    if not callable(answer):
        return answer

    def answered(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return answer(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return answer(jax.random.key(0))
        return answer(np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape))  # needs the memory of one number

    return answered


def _with_suffix(path: Any) -> Any:
    if not isinstance(path, str | os.PathLike):
        return path
    path = Path(path)
    return path if path.suffix else path.with_suffix(".eqx")


def _opened(path: Any) -> Any:
    # Of what is not a regular file, such as a pipe, `load_file` says so.
    return open(path, "rb") if isinstance(path, Path) and path.is_file() else contextlib.nullcontext(path)


def _check_spec(where: str, spec: Any) -> None:
    """Raise an error for functions of a file and a leaf, which Equinox accepts here."""
    for fn in jax.tree.leaves(spec):
        if callable(fn) and not _takes(fn, 1) and _takes(fn, 2):
            raise LiftArgumentError(
                f"filter_spec of {where}",
                f"{name_of(fn)} takes a file and a leaf, but leaves are not written one by one here.",
                "Pass functions from a leaf to a bool (whether to save it), such as `eqx.is_array`.",
            )


def _takes(fn: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with that many arguments."""
    try:
        inspect.signature(fn).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True

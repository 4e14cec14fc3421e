"""Save the leaves of a pytree in a file, and load them: in our format, and in the files that Equinox wrote."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.calls import refused
from liftcore.checkpoints import Stored, load_file, match_state, save_file
from liftcore.errors import LiftArgumentError, SerializationError, name_of
from liftcore.pytrees import is_number
from liftcore.serialization import to_state_dict

from .tree import combine, filter, is_array_like

__all__ = ["begins_with_npy", "load_npy", "tree_deserialise_leaves", "tree_serialise_leaves"]


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
        if error.option is None:
            raise
        fix = f"For these options, use `liftcore.checkpoints.load_file(path, like, …)` instead. {error.fix}"
        error.reword(fix=fix)
        raise


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
        plain = inspect.unwrap(fn)
        if callable(fn) and refused(plain, (0,), {}) and not refused(plain, (0, 1), {}):
            what = f"{name_of(fn)} takes a file and a leaf, but leaves are not written one by one here."
            fix = "Pass functions from a leaf to a bool (whether to save it), such as `eqx.is_array`."
            raise LiftArgumentError(f"filter_spec of {where}", what, fix, option="filter_spec", given=name_of(fn))


_HEADER = re.compile(
    r"\{'descr': '([<>|])(b1|[iu][1248]|f[1248]|c8|c16|V\d)', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,19}, ?){0,64}(?:\d{1,19})?)\), \} *\n"
)
"""What `numpy.save` writes. Nothing else is read: Python's parser, which NumPy calls, has errors of many kinds."""

_SOLE = {"V2": jnp.bfloat16, "f1": jnp.float8_e5m2}
"""The types that NumPy does not know, but writes as it writes no other."""

_NAMELESS = np.dtype("V1")
"""What NumPy writes for a dozen other types that it does not know, such as float8_e4m3fn and int4."""

_LENGTHS = {(1, 0): 2, (2, 0): 4}
"""How many bytes hold the length of the header, by the version of the format."""

_LONGEST = 10_000
"""The bytes of a header; the limit of NumPy."""

_AS_BYTES = (
    'Load it as bytes, with `np.zeros(shape, "V1")` in place of that leaf of `like`; if it was float8_e4m3fn, then '
    "write `leaf.view(jnp.float8_e4m3fn)`."
)
_FIX = "Pass the pytree whose leaves Equinox saved, or a file that is not damaged."


def begins_with_npy(file: Any) -> bool:
    """Return whether a NumPy array begins at the current position of a file, which does not move.

    Args:
        file: an open file. For one that cannot be read like this, the result is False.
    """
    magic = np.lib.format.MAGIC_PREFIX
    try:
        start = file.tell()
        found = file.read(len(magic))
        file.seek(start)
    except (AttributeError, OSError, ValueError):
        return False
    return bool(found == magic)


def load_npy(file: Any, target: Any, where: str, whole: bool) -> Any:
    """Return a pytree like `target` with the next arrays in a file.

    Args:
        file: an open binary file that can seek; afterwards, its position is after the last array.
        target: a pytree of arrays, numbers and `jax.ShapeDtypeStruct`.
        where: the name of the file, for errors.
        whole: whether the file must end after these arrays.

    Raises:
        SerializationError: if there are more or fewer arrays, if one has another shape or dtype, or if the bytes are
            not arrays.
    """
    leaves, structure = jax.tree.flatten(target)
    start = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(start)
    stored = []
    for number, leaf in enumerate(leaves):
        try:
            stored.append(_next(file, size, leaf))
        except _NamelessError as error:
            place = jax.tree_util.keystr(jax.tree.leaves_with_path(target)[number][0])
            what = f"the leaf {place} has a type of one byte that the file does not name, such as float8_e4m3fn."
            raise SerializationError(where, what, _AS_BYTES, variable=place) from error
        except (ValueError, EOFError) as error:
            what = f"expected {len(leaves)} leaves, but number {number + 1} cannot be read ({error})."
            raise SerializationError(where, what, _FIX, expected=f"{len(leaves)} leaves") from error
    end = file.tell()
    if whole and file.read(1):
        raise SerializationError(
            where, f"expected {len(leaves)} leaves, but the file has more.", _FIX, expected=f"{len(leaves)} leaves"
        )
    try:
        made = match_state(target, to_state_dict(jax.tree.unflatten(structure, stored)), where=where)
    except SerializationError as error:  # its fix names options of other functions
        error.reword(where=where, fix=_FIX)
        raise
    file.seek(end)
    return made


def _next(file: Any, size: int, leaf: Any) -> Any:
    """Return the next array, to be read only if it fits the leaf; if the leaf is a number, return a number."""
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(_LENGTHS[version]), "little") if version in _LENGTHS else _LONGEST + 1
    header = _HEADER.fullmatch(file.read(length).decode("latin-1")) if length <= _LONGEST else None
    if header is None:
        raise ValueError("its header is not one that NumPy writes for an array of numbers")
    order, code, is_transposed = header[1], header[2], header[3] == "True"
    shape = tuple(int(length) for length in header[4].replace(",", " ").split())
    dtype = _dtype(order, code, leaf)
    start = file.tell()
    end = start + math.prod(shape) * dtype.itemsize
    if end > size:
        raise ValueError(f"the file ends {end - size} bytes before the end of an array of shape {shape}")
    read = functools.partial(_read, file, start, shape, is_transposed, dtype)
    if shape == () and is_number(leaf):
        return read().item()
    file.seek(end)
    return Stored(shape, dtype, read)


class _NamelessError(Exception):
    """The type of an array is one of several, and the file does not say which."""


def _dtype(order: str, code: str, leaf: Any) -> np.dtype[Any]:
    """Return the dtype that a header names."""
    if code in _SOLE:
        return np.dtype(_SOLE[code])
    if code == "V1" and getattr(leaf, "dtype", None) != _NAMELESS:
        raise _NamelessError  # to believe the leaf would read one type as another, without an error
    if code.startswith("V") and code != "V1":
        raise ValueError(f"it is of a type that NumPy does not know, of {code[1:]} bytes")
    return np.dtype(f"{order}{code}")


def _read(file: Any, start: int, shape: tuple[int, ...], is_transposed: bool, dtype: np.dtype[Any]) -> Any:
    file.seek(start)
    flat = np.frombuffer(bytearray(file.read(math.prod(shape) * dtype.itemsize)), dtype)
    if dtype == np.bool_ and flat.view(np.uint8).max(initial=0) > 1:
        raise SerializationError("npy", f"an array of dtype {dtype} has bytes other than 0 and 1.", _FIX, given=dtype)
    return flat.reshape(shape, order="F" if is_transposed else "C")

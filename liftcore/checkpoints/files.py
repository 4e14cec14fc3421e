"""One checkpoint in one file: written whole or not at all, checked as it is read, compared with what is expected."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..errors import LiftArgumentError, SerializationError
from ..saving.problems import StateError
from ..serialization import to_state_dict
from ..typing import Filter, PyTree
from .disk import replace_file
from .layout import parts_of, state_and_end, state_in
from .matching import match_state
from .placing import Stored
from .streams import Section, name_of_file, write_to

__all__ = ["Transform", "load_file", "save_file"]

Transform: TypeAlias = Callable[[Any], Any]


def save_file(path: str | os.PathLike[str] | BinaryIO, tree: PyTree) -> None:
    """Saves a tree in one file, which is there with all that is in it, or not at all.

    The bytes go to a temporary file in the same folder first, and to the disk; then that gets the name. A file that
    was there is replaced and keeps its permissions, and is as it was if anything goes wrong, or if the machine stops.
    Arrays are written one after the other, each with a checksum, so it takes no memory but that of one array which is
    not contiguous, or not on the host.

    Example:
        >>> import tempfile, numpy as np
        >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
        >>> save_file(path, {"params": {"w": np.ones(3)}, "step": 7})
        >>> load_file(path)
        {'params': {'w': array([1., 1., 1.])}, 'step': 7}

    Args:
        path: the file; its folder is made if it is missing.
            Or a file that is open for binary writing: the bytes are written where it is, and more may precede or
            follow them. If that fails, a part of them has been written.
        tree: anything that `to_state_dict` takes apart: variables, optimiser states, typed random keys, dataclasses.

    Raises:
        SerializationError: if there is something in the tree that cannot be written.
        LiftArgumentError: if an open file is one for text.
        CheckpointInUseError: if the file is being written already.
        OSError: if the disk is full, for instance.
    """
    with _about(path):
        parts = parts_of(to_state_dict(tree))
    if isinstance(path, str | os.PathLike):
        replace_file(Path(path), parts)
    else:
        write_to(path, parts)


def load_file(
    path: str | os.PathLike[str] | BinaryIO,
    target: PyTree = None,
    *,
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
    transform: Transform | None = None,
    checksums: bool = True,
) -> Any:
    """A tree like `target` with the leaves in a file, which must fit in names, shapes and dtypes.

    All that does not fit is told in one error, before an array is read. Then arrays are read one after the other, each
    compared with its checksum and put where the target has it, so it takes the memory of what is restored. Nothing of
    it is tied to the file.

    Example:
        >>> import tempfile, numpy as np
        >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
        >>> save_file(path, {"encoder": np.ones(3), "head": np.ones((3, 10))})
        >>> target = {"encoder": np.zeros(3), "head": np.zeros((3, 2))}
        >>> load_file(path, target, filter="encoder")
        {'encoder': array([1., 1., 1.]), 'head': array([[0., 0.], [0., 0.], [0., 0.]])}

    Args:
        path: a file that `save_file` wrote. Or a file that is open for binary reading: it is read from where it is,
            up to the end of what `save_file` wrote there.
        target: a tree of the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
            `match_state` for what each leaf becomes. `None` gives the state itself, nested dicts of NumPy arrays.
        filter: which leaves to take, by their paths in `to_state_dict(target)`; the others stay as in the target, and
            are not read.
        strict: whether the names must be the same; see `match_state`.
        cast: whether floating-point numbers, and integers, become those of the target's dtype.
        transform: called with the state before it is compared, with arrays of NumPy in it, and returns another one:
            to rename, stack or slice what was saved. See `each_holding`.
        checksums: whether the file must carry checksums. If not, files of `to_bytes` and of flax are read too, in
            which a damaged number is not found.

    Returns:
        A new tree.

    Raises:
        SerializationError: if the file is damaged, which names the array; or if something does not fit.
        FileNotFoundError: if there is no such file.
        LiftArgumentError: if there is no target, and something is asked about one; if an open file is one for text,
            or cannot seek.
    """
    if target is None and not (filter is True and strict and not cast):
        what = "`filter`, `strict` and `cast` are about a target, and none is given."
        raise LiftArgumentError(f"load_file({name_of_file(path)})", what, "Give the tree to restore into.")
    with _about(path), _opened(path) as (file, size):
        if isinstance(file, Section):
            state, end = state_and_end(file, size, checksums)
        else:
            state, end = state_in(file, size, checksums), size
        if target is None or transform is not None:
            state = _read(state)
        if transform is not None:
            state = transform(state)
        if target is not None:
            where = name_of_file(path)
            state = match_state(target, state, where=where, filter=filter, strict=strict, cast=cast)
        file.seek(end)
        return state


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[Any, int]]:
    """A file that begins with a checkpoint, and its size."""
    if isinstance(path, str | os.PathLike):
        with open(path, "rb", buffering=0) as file:
            yield file, os.fstat(file.fileno()).st_size
    else:
        section = Section(path)
        yield section, section.size


def _read(state: Any) -> Any:
    """A state with all of its arrays."""
    if isinstance(state, dict):
        return {name: _read(below) for name, below in state.items()}
    if isinstance(state, list):
        return [_read(below) for below in state]
    return state.read() if isinstance(state, Stored) else state


@contextlib.contextmanager
def _about(path: str | os.PathLike[str] | BinaryIO) -> Iterator[None]:
    """Says of what is wrong in a state which file it is about."""
    try:
        yield
    except StateError as error:
        where = name_of_file(path) + (f", {error.where}" if error.path else "")
        raise SerializationError(where, error.what, error.fix) from error.__cause__

"""One checkpoint in one file: written as a whole or not at all, verified by checksums, compared with a target."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..errors import SerializationError
from ..saving.nested import leaves_of, mapped
from ..saving.problems import StateError, damaged
from ..serialization import to_state_dict
from ..typing import Filter, PyTree
from .disk import open_plain, replace_file
from .layout import parts_of, state_in
from .matching import compare, options_of
from .placing import Stored
from .streams import check_path_or_file, name_of_file, span_of, write_all

__all__ = ["Transform", "about", "is_intact", "load_file", "save_file"]

Transform: TypeAlias = Callable[[Any], Any]


def save_file(path: str | os.PathLike[str] | BinaryIO, tree: PyTree) -> None:
    """Save a tree in one file. The file is complete, or it does not exist.

    The bytes go to a temporary file in the same folder, which is renamed once it is on the disk. An existing file is
    replaced, and the new file keeps its permissions. If anything goes wrong, or the machine stops, the old file is
    unchanged. Arrays are written one after the other, each with a checksum. Saving needs extra memory for at most one
    array, and only if that array is not contiguous or not on the host.

    Example:
        >>> import tempfile, numpy as np
        >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
        >>> save_file(path, {"params": {"w": np.ones(3)}, "step": 7})
        >>> load_file(path)
        {'params': {'w': array([1., 1., 1.])}, 'step': 7}

    Args:
        path: the file; missing folders are created. A new file gets the permissions that the umask allows.
            Or an open binary file: the bytes are written from its current position on, and other data may come
            before and after them. If writing fails, the file may hold a part of them.
        tree: anything that `to_state_dict` accepts: variables, optimizer states, typed random keys, dataclasses. A
            weakly typed scalar is saved as a number, so it is weakly typed again when it is restored.

    Raises:
        SerializationError: if the tree holds something that cannot be written.
        LiftArgumentError: if `path` is neither a path nor an open file, or the file is in text mode.
        CheckpointInUseError: if another writer is writing this file.
        OSError: if the system cannot write, for instance because the disk is full.
    """
    check_path_or_file("save_file(path, tree)", path, "wb")
    with about(path):
        parts = parts_of(to_state_dict(tree))
    if isinstance(path, str | os.PathLike):
        replace_file(Path(os.path.realpath(path)), parts)
    else:
        write_all(path.write, parts)


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
    """Return a tree like `target` with the leaves of a file, which must have the same names, shapes and dtypes.

    One error lists everything that does not fit, before any array is read. Arrays are then read one after the other,
    verified by their checksums, and put on the devices of the target. So loading needs the memory of what it restores.
    The result does not depend on the file: you may delete it.

    Example:
        >>> import tempfile, numpy as np
        >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
        >>> save_file(path, {"encoder": np.ones(3), "head": np.ones((3, 10))})
        >>> target = {"encoder": np.zeros(3), "head": np.zeros((3, 2))}
        >>> load_file(path, target, filter="encoder")
        {'encoder': array([1., 1., 1.]), 'head': array([[0., 0.], [0., 0.], [0., 0.]])}

    Args:
        path: a file that `save_file` wrote. Or an open binary file that can seek: it is read from its current position
            to the end of what `save_file` wrote there.
        target: a tree with the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
            `match_state` for what each leaf becomes. `None` returns the state itself, nested dicts of NumPy arrays.
        filter: which leaves to restore, by their paths in `to_state_dict(target)`; the others keep the value of the
            target, and are not read.
        strict: whether the names must be the same; see `match_state`.
        cast: whether to convert floating-point numbers and integers to the target's dtype; see `match_state`.
        transform: a function that takes the saved state, nested dicts of NumPy arrays, and returns the state to compare
            with the target. Use it to rename, stack or slice what was saved; see `each_holding`.
        checksums: whether the file must have checksums. If false, files from `to_bytes` and from flax are accepted too,
            but damage to their numbers goes unnoticed.

    Returns:
        A new tree.

    Raises:
        SerializationError: if the file is damaged (the error names the array), or if something does not fit.
        FileNotFoundError: if there is no such file.
        LiftArgumentError: if an option needs a target and there is none; if `path` is neither a path nor an open file;
            if the file is in text mode or cannot seek.
    """
    check_path_or_file("load_file(path, target)", path, "rb")
    options = options_of(f"load_file({name_of_file(path)})", target, filter, strict, cast)
    with _opened(path, checksums) as (file, state, end):
        if target is None or transform is not None:
            state = mapped(lambda _, leaf: leaf.read() if isinstance(leaf, Stored) else leaf, state)
        if transform is not None:
            state = to_state_dict(transform(state)) if target is not None else transform(state)
        if target is not None:
            state = compare(target, state, where=name_of_file(path), **options).converted()
        file.seek(end)
        return state


def is_intact(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a checkpoint with the right checksums; its arrays are read one after the other.

    Args:
        path: the file.
    """
    try:
        with _opened(path, checksums=True) as (_, state, _):
            for _, leaf in leaves_of(state):
                if isinstance(leaf, Stored):
                    leaf.read()
    except (SerializationError, OSError):
        return False
    return True


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str] | BinaryIO, checksums: bool) -> Iterator[tuple[Any, Any, int]]:
    """Open a file that begins with a checkpoint; yield it, the state without its arrays, and where that ends."""
    opened = open_plain(path) if isinstance(path, str | os.PathLike) else contextlib.nullcontext(path)
    with about(path), opened as file:
        start, end = span_of(file)
        state, stop = state_in(file, start, end, checksums)
        if file is not path and stop < end:
            raise damaged(f"{end - stop} bytes follow the end of the state.")
        yield file, state, stop


@contextlib.contextmanager
def about(path: str | os.PathLike[str] | BinaryIO) -> Iterator[None]:
    """Add the name of a file to errors about a state.

    Args:
        path: the file.
    """
    try:
        yield
    except StateError as error:
        where = name_of_file(path) + (f", {error.where}" if error.path else "")
        raise SerializationError(where, error.what, error.fix, **error.facts) from error.__cause__

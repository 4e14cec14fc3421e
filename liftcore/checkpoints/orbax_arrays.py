"""Read arrays with orbax onto the devices of a target, in portions that limit the host memory.

What a folder claims is checked before orbax acts on it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from ..errors import LiftArgumentError, LiftError, SerializationError
from ..portions import bytes_per_process, portions, return_memory
from ..saving.problems import printable
from ..typing import Path
from .disk import kind_of
from .matching import Comparison
from .placing import KeyTarget, SavedKey, Stored, converted, naming

__all__ = ["Read", "array_in", "check_regular", "check_size", "guarded", "require_orbax", "restore_args", "restored"]

Read: TypeAlias = Callable[[Mapping[Path, Any]], dict[Path, Any]]
"""A function that reads arrays by their paths. The values of the mapping are the target's leaves."""


def require_orbax() -> Any:
    """Return the module `orbax.checkpoint`.

    Raises:
        ImportError: if it is not installed; the error names the extra to install.
    """
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise ImportError("This needs orbax-checkpoint: pip install 'liftcore[orbax]'") from error


def restore_args(leaf: Any) -> Any:
    """Return the arguments for orbax to read one array: onto the devices of the target's leaf, or as a NumPy array."""
    ocp = require_orbax()
    if _placed_by_orbax(leaf):
        return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
    return ocp.RestoreArgs(restore_type=np.ndarray)


@contextlib.contextmanager
def guarded(where: str, what: str, fix: str) -> Iterator[None]:
    """Translate the errors of orbax about a folder that it cannot read.

    Args:
        where: the folder, for the error.
        what: what orbax cannot do.
        fix: the fix.

    Raises:
        SerializationError: for every error except those that say nothing about the folder.
    """
    try:
        yield
    except (LiftError, MemoryError, PermissionError):
        raise
    except Exception as error:  # for a damaged folder, orbax raises many kinds
        text = str(error).partition(" [tensorstore_spec")[0][:300]
        raise SerializationError(where, f"{what} ({type(error).__name__}: {text}).", fix) from error


def array_in(where: str, path: Path, leaf: Any, read: Callable[[Path], Any]) -> Stored:
    """Return an array of a folder, not yet read.

    Args:
        where: the folder, for errors.
        path: the path of the array.
        leaf: the metadata of orbax.
        read: a function that reads the array at a path.

    Raises:
        SerializationError: if the array cannot be as it is described. TensorStore would end the process.
    """
    shape, dtype = tuple(leaf.shape or ()), np.dtype(leaf.dtype)
    chunk = getattr(leaf.storage, "chunk_shape", None) or ()
    if math.prod(chunk) > max(math.prod(shape), _SMALL):
        what = f'"{"/".join(path)}" has {math.prod(shape)} elements, but is stored in pieces of {math.prod(chunk)}.'
        raise SerializationError(where, what, "It is damaged or incomplete. Copy it again.", variable="/".join(path))
    check_size(where, path, chunk, dtype)
    return Stored(shape, dtype, lambda: read(path))


def check_regular(where: str, folder: str) -> None:
    """Check that a folder holds no pipes and no devices: orbax would wait for a writer, or read without an end.

    Args:
        where: the folder, for the error.
        folder: its path; an address, such as `gs://…`, is not checked.

    Raises:
        SerializationError: if it does, in itself or in a folder in it; links to folders are not followed.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):  # a broken link, or a step that is being removed
                if kind := kind_of(os.stat(path)):
                    what = f'"{printable(os.path.relpath(path, folder))}" is {kind}, not a regular file.'
                    fix = "Remove it, or copy the folder again."
                    raise SerializationError(where, what, fix, given=kind, expected="a regular file")


_SMALL = 2**20
"""The elements of a piece that may be larger than its array."""


def check_size(where: str, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """Check that an array, or a piece of one, fits into memory. If one does not, TensorStore ends the process.

    Args:
        where: the folder, for the error.
        path: the path of the array.
        shape: the shape of the array.
        dtype: its dtype.

    Raises:
        SerializationError: if it does not fit.
    """
    try:
        np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        what = f'"{"/".join(path)}" has {math.prod(shape)} elements, which do not fit into memory.'
        raise SerializationError(
            where, what, "Pass a target with shardings, unless the folder is damaged.", variable="/".join(path)
        ) from error


def restored(where: str, match: Comparison, read: Read) -> Any:
    """Return a tree like the target of a comparison, with its arrays read and put on its devices.

    Args:
        where: the calling method, for errors.
        match: the target and the saved leaves; an array that is not read yet is `Stored`.
        read: the function that reads such arrays.

    Raises:
        LiftArgumentError: if a sharding of the target does not divide a shape.
    """
    wanted = _arrays_of(match.pairs)
    _check_shardings(where, wanted)
    values = _read_in_portions(wanted, read)
    new = {}
    for path, pair in match.pairs.items():
        with naming(where, path):
            new[path] = _placed(path, *pair, values)
    return match.restored(new)


def _arrays_of(pairs: Mapping[Path, tuple[Any, Any]]) -> dict[Path, Any]:
    """Return the paths of the arrays to read for pairs of a target's leaf and a saved one, with the target's leaf."""
    found = {}
    for path, (leaf, saved) in pairs.items():
        at, array = ((*path, "data"), saved.data) if isinstance(saved, SavedKey) else (path, saved)
        if isinstance(array, Stored):
            found[at] = leaf
    return found


def _check_shardings(where: str, wanted: Mapping[Path, Any]) -> None:
    """Check that each sharding divides its shape. Orbax would report only the first, after reading other arrays."""
    problems: dict[str, ValueError] = {}
    for path, leaf in wanted.items():
        try:
            if _placed_by_orbax(leaf):
                leaf.sharding.shard_shape(leaf.shape)
        except ValueError as error:
            problems["/".join(path)] = error
    if problems:
        lines = "".join(f"\n  {path}: {error}" for path, error in problems.items())
        what = f"shardings of the target do not divide the shapes:{lines}\n"
        fix = "Leave those axes unsharded, or use a mesh whose sizes divide them."
        raise LiftArgumentError(where, what, fix, variable=next(iter(problems)))


def _read_in_portions(wanted: Mapping[Path, Any], read: Read) -> dict[Path, Any]:
    """Read arrays in portions that limit the host memory on the way to the devices."""
    paths, values = list(wanted), dict[Path, Any]()
    sizes = [_size(leaf) for leaf in wanted.values()]
    for group in portions(sizes):
        values |= read({paths[number]: wanted[paths[number]] for number in group})
        if sum(sizes) > sum(sizes[number] for number in group):
            return_memory()
    return values


def _size(leaf: Any) -> int:
    """Return the bytes that a process needs for an array like this one."""
    if _placed_by_orbax(leaf):
        return bytes_per_process(leaf.shape, leaf.dtype, leaf.sharding)
    return int(getattr(leaf, "nbytes", 0))


def _placed(path: Path, leaf: Any, saved: Any, values: Mapping[Path, Any]) -> Any:
    """Return the restored value of a leaf."""
    if isinstance(saved, SavedKey):
        return converted(leaf, SavedKey(saved.impl, values.get((*path, "data"), saved.data)))
    if path in values:
        value = values[path]
        return value if _placed_by_orbax(leaf) and isinstance(value, jax.Array) else converted(leaf, value)
    return converted(leaf, saved)


def _placed_by_orbax(leaf: Any) -> bool:
    """Return whether orbax puts an array on devices, in parts, because the target's leaf names the devices."""
    if isinstance(leaf, KeyTarget):
        return False
    if isinstance(leaf, jax.Array):
        return leaf.committed
    return isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None

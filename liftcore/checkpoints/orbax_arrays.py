"""Read arrays with orbax onto the devices of a target, in portions that limit the host memory.

What a folder claims is checked before orbax acts on it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..errors import LiftArgumentError, LiftError, SerializationError
from ..portions import bytes_per_process, portions, return_memory
from ..saving.nested import leaves_of, mapped
from ..saving.problems import printable
from ..serialization import to_state_dict
from ..typing import Path
from .disk import kind_of
from .matching import Comparison
from .placing import KeyTarget, SavedKey, Stored, converted

__all__ = ["SavedTree", "check_regular", "guarded", "require_orbax", "restored", "step_folders", "structure_in"]

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


def _restore_args(leaf: Any) -> Any:
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


class SavedTree:
    """A tree in a folder of orbax: its structure, from which its leaves can be read.

    Args:
        where: the name of the folder, for errors.
        folder: the folder.
        structure: nested dicts and lists with the metadata of the leaves.
        guard: returns a `with` block that translates the errors of orbax.
    """

    def __init__(
        self, where: str, folder: Any, structure: Any, guard: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._where, self._folder, self._structure, self._guard = where, folder, structure, guard
        self._metadata = dict(leaves_of(structure))

    def leaves(self) -> dict[Path, Any]:
        """Return the leaves by their paths: arrays as `Stored`, and numbers, texts and `None` as they are.

        Raises:
            SerializationError: if an array cannot be as it is described. TensorStore would end the process.
        """
        arrays = {path: self._stored(path, leaf) for path, leaf in self._metadata.items() if _is_array(leaf)}
        others = [path for path, leaf in self._metadata.items() if leaf is not None and path not in arrays]
        values = self.read(dict.fromkeys(others), lambda leaf: require_orbax().RestoreArgs())
        return {path: arrays[path] if path in arrays else values.get(path) for path in self._metadata}

    def _stored(self, path: Path, leaf: Any) -> Stored:
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        chunk = getattr(leaf.storage, "chunk_shape", None) or ()
        if math.prod(chunk) > max(math.prod(shape), _SMALL):
            name = "/".join(path)
            what = f'"{name}" has {math.prod(shape)} elements, but is stored in pieces of {math.prod(chunk)}.'
            raise SerializationError(self._where, what, "It is damaged or incomplete. Copy it again.", variable=name)
        _check_size(self._where, path, chunk, dtype)
        return Stored(shape, dtype, lambda: self.read({path: None})[path])

    def whole(self, may_be_keys: bool) -> dict[Path, Any]:
        """Return the leaves by their paths, with all arrays read as NumPy arrays.

        Args:
            may_be_keys: whether arrays of uint32 may be random keys, which are returned as state dicts.
        """
        leaves = self.leaves()
        arrays = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Stored)}
        for path, leaf in arrays.items():
            _check_size(self._where, path, leaf.shape, leaf.dtype)
        keys = [path for path, leaf in arrays.items() if may_be_keys and leaf.dtype == np.uint32]
        leaves |= self.read({path: None for path in arrays if path not in keys})
        for path in keys:
            leaves |= self.key(path, path)
        return {path: leaf for path, leaf in leaves.items() if not isinstance(leaf, Stored)}

    def key(self, at: Path, path: Path) -> dict[Path, Any]:
        """Return the state of a random key with its leaves below `path`; the array itself if it is not a typed key."""
        on_one_device = SingleDeviceSharding(jax.local_devices()[0])
        args = require_orbax().ArrayRestoreArgs(sharding=on_one_device)
        parts = leaves_of(to_state_dict(self.read({at: None}, lambda leaf: args)[at]), path)
        return {name: np.array(leaf) if isinstance(leaf, jax.Array) else leaf for name, leaf in parts}

    def read(self, wanted: Mapping[Path, Any], args_of: Callable[[Any], Any] | None = None) -> dict[Path, Any]:
        """Read some leaves, each on the devices of the target's leaf, or as a NumPy array.

        Args:
            wanted: the leaves of the target, or `None`, by path.
            args_of: returns orbax's arguments for a leaf of the target, in place of these for its devices.
        """
        if not wanted:
            return {}
        ocp, args_of = require_orbax(), args_of or _restore_args
        args = {path: args_of(leaf) for path, leaf in wanted.items()}
        item = mapped(lambda path, leaf: leaf if path in args or leaf is None else ocp.PLACEHOLDER, self._structure)
        every = mapped(lambda path, leaf: None if leaf is None else args.get(path, ocp.RestoreArgs()), self._structure)
        restore = ocp.args.PyTreeRestore(item, restore_args=every)
        with self._guard(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            found = dict(leaves_of(checkpointer.restore(self._folder, args=restore)))
            return {path: found[path] for path in wanted}


def _is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array of known shape. Old versions of orbax put small arrays into one file."""
    scalar = isinstance(leaf, require_orbax().metadata.ScalarMetadata)
    return not scalar and getattr(leaf, "shape", None) is not None and getattr(leaf, "dtype", None) is not None


def structure_in(folder: Any, guard: Callable[[], contextlib.AbstractContextManager[None]]) -> Any:
    """Return the metadata of the tree in a folder, or `None` if it holds no tree.

    Args:
        folder: the folder.
        guard: see `SavedTree`.
    """
    handler = require_orbax().PyTreeCheckpointHandler()
    with guard(), contextlib.suppress(FileNotFoundError):
        return handler.metadata(folder).tree
    return None


def step_folders(folder: Any) -> dict[int, Any]:
    """Return the folders of the steps in a folder, by their numbers.

    Raises:
        OSError: if there is no such folder.
    """
    utils = require_orbax().utils
    return {utils.step_from_checkpoint_name(step.name): step for step in utils.checkpoint_steps_paths(folder)}


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


def _check_size(where: str, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
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
        fix = "Pass a target with shardings, unless the folder is damaged."
        raise SerializationError(where, what, fix, variable="/".join(path)) from error


def restored(where: str, match: Comparison, read: Read) -> Any:
    """Return a tree like the target of a comparison, with its arrays read and put on its devices.

    Args:
        where: the calling method, for errors.
        match: the target and the saved leaves; an array that is not read yet is `Stored`.
        read: the function that reads such arrays.

    Raises:
        LiftArgumentError: if a sharding of the target does not divide a shape.
    """
    wanted: dict[Path, Any] = {}
    for path, (leaf, saved) in match.pairs.items():
        at, array = ((*path, "data"), saved.data) if isinstance(saved, SavedKey) else (path, saved)
        if isinstance(array, Stored):
            wanted[at] = leaf
    _check_shardings(where, wanted)
    values = _read_in_portions(wanted, read)
    return match.converted(functools.partial(_placed, values))


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


def _placed(values: Mapping[Path, Any], path: Path, leaf: Any, saved: Any) -> Any:
    """Return the restored value of a leaf."""
    if isinstance(saved, SavedKey):
        saved = SavedKey(saved.impl, values.get((*path, "data"), saved.data))
    value = values.get(path, saved)
    is_placed = path in values and _placed_by_orbax(leaf) and isinstance(value, jax.Array)
    return value if is_placed else converted(leaf, value)


def _placed_by_orbax(leaf: Any) -> bool:
    """Return whether orbax puts an array on devices, in parts, because the target's leaf names the devices."""
    if isinstance(leaf, KeyTarget):
        return False
    if isinstance(leaf, jax.Array):
        return leaf.committed
    return isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None

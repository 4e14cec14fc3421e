"""Load the folders that orbax wrote without this library, such as those of flax users."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..errors import SerializationError
from ..saving.nested import leaves_of, mapped
from ..saving.problems import several
from ..serialization import to_state_dict
from ..traverse_util import unflatten_dict
from ..typing import Filter, Path, PyTree
from .files import Transform
from .matching import TRANSFORM, check_target, compare
from .orbax_arrays import array_in, check_regular, check_size, guarded, require_orbax, restore_args, restored
from .placing import Stored
from .streams import check_path

__all__ = ["load_orbax"]

_OURS = {"state", "rest", "metrics"}


def load_orbax(
    path: str | os.PathLike[str],
    target: PyTree = None,
    *,
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
    transform: Transform | None = None,
) -> Any:
    """Load a tree that orbax wrote, as nested dicts or in the structure of a target.

    It reads what `StandardCheckpointer`, `PyTreeCheckpointer`, `CheckpointManager` and
    `flax.training.checkpoints.save_checkpoint` wrote. For steps of `OrbaxCheckpoints`, use its `restore`.

    One error lists everything that does not fit, before any array is read. If the target has an array that is committed
    to devices, or a `jax.ShapeDtypeStruct` with a sharding, each device gets its part, and no host holds the whole
    array.

    Orbax does not store the classes of a tree. Lists and tuples are compared by the indices of their items, and named
    tuples and dataclasses by the names of their fields. A saved box, or a variable of `flax.nnx`, also fits a target
    without a box, and the other way round. The boxes of the result are those of the target.

    Example:
        >>> import tempfile, numpy as np, orbax.checkpoint as ocp
        >>> path = f"{tempfile.mkdtemp()}/params"
        >>> with ocp.StandardCheckpointer() as checkpointer:
        ...     checkpointer.save(path, {"dense": {"bias": np.ones(2)}, "layers": [np.zeros(1)]})
        >>> load_orbax(path)
        {'dense': {'bias': array([1., 1.])}, 'layers': {'0': array([0.])}}
        >>> load_orbax(path, {"dense": {"bias": np.zeros(2)}}, filter="dense")
        {'dense': {'bias': array([1., 1.])}}

    Args:
        path: the folder of the tree, a path or an address such as `gs://…`. It can also be a step of a
            `CheckpointManager`, whose item `default`, or only tree, is read; for another item, pass its folder.
        target: a tree with the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
            `match_state` for what each leaf becomes, and for `filter`, `strict` and `cast`. `None` returns nested dicts
            of NumPy arrays, and of the numbers and texts that were saved.
        filter: which leaves to restore; the others keep the value of the target, and are not read.
        strict: whether the names must be the same.
        cast: whether to convert floating-point numbers and integers to the target's dtype.
        transform: a function of the saved state, as in `load_file`. With it, all arrays are read whole.

    Raises:
        SerializationError: if the folder holds no such tree, or several; if something does not fit or cannot be read.
        FileNotFoundError: if there is no such folder.
        LiftArgumentError: if `path` is not a path; if a sharding does not fit a shape; or if an option needs a target
            and there is none.
        ImportError: if orbax is not installed.
    """
    check_path("load_orbax(path, target)", path)
    where = f'"{os.fspath(path)}"'
    check_target(f"load_orbax({where})", target, filter, strict, cast)
    saved = _found(where, path)
    if target is None or transform is not None:
        state = _nested(saved.whole())
        state = state if transform is None else transform(state)
        if target is None:
            return state
        leaves = dict(leaves_of(to_state_dict(state)))
    else:
        leaves = saved.leaves()
    names, state = _fitted(saved, leaves, target)
    options: Any = {"filter": filter, "strict": strict, "cast": cast, "renaming": TRANSFORM}
    match = compare(target, _nested(state), where=where, **options)

    def read(wanted: Mapping[Path, Any]) -> dict[Path, Any]:
        found = saved.read({names[place]: restore_args(leaf) for place, leaf in wanted.items()})
        return {place: _data(found[names[place]]) for place in wanted}

    return restored(where, match, read)


# --- what a target expects --------------------------------------------------------------------------------------------


def _nested(leaves: Mapping[Path, Any]) -> Any:
    return leaves[()] if () in leaves else unflatten_dict(leaves)


def _fitted(saved: _Saved, leaves: Mapping[Path, Any], target: PyTree) -> tuple[dict[Path, Path], dict[Path, Any]]:
    """Return the saved leaves in the form that a target expects, by its paths, and the saved paths by these paths."""
    expected = {path for path, _ in leaves_of(to_state_dict(target))}
    keys = {path[:-1] for path in expected if path[-1:] == ("impl",) and (*path[:-1], "data") in expected}
    names = _names(leaves, keys | expected)
    state = {path: leaves[at] for path, at in names.items()}
    for path in keys & state.keys():
        if isinstance(state[path], Stored):
            del state[path]
            state |= saved.key(names[path], path)
    # Orbax stores `None` for an empty named tuple, which has no leaves in a target.
    return names, {path: leaf for path, leaf in state.items() if leaf is not None or path in expected}


def _names(saved: Mapping[Path, Any], expected: set[Path]) -> dict[Path, Path]:
    """Return the saved paths by the paths of the target, which differ where only one side has a box."""
    names = {path: path for path in saved}
    for path in expected:
        outer, inner = path[:-1] if path[-1:] == ("value",) else None, (*path, "value")
        other = next((one for one in (outer, inner) if one in names and one not in expected), None)
        if path not in names and other is not None:
            names[path] = names.pop(other)
    return names


# --- reading ----------------------------------------------------------------------------------------------------------


class _Saved:
    """A tree in a folder of orbax: its structure, from which its leaves can be read.

    Args:
        where: the name of the folder, for errors.
        folder: the folder.
        structure: nested dicts and lists with the metadata of the leaves.
    """

    def __init__(self, where: str, folder: Any, structure: Any) -> None:
        self._where, self._folder, self._structure = where, folder, structure
        self._metadata = dict(leaves_of(structure))

    def leaves(self) -> dict[Path, Any]:
        """Return the leaves by their paths: arrays as `Stored`, and numbers, texts and `None` as they are."""
        ocp = require_orbax()
        arrays = {path for path, leaf in self._metadata.items() if _is_array(leaf)}
        others = {path: ocp.RestoreArgs() for path, leaf in self._metadata.items() if leaf is not None}
        values = self.read({path: args for path, args in others.items() if path not in arrays})

        def read(path: Path) -> Any:
            return self.read({path: restore_args(None)})[path]

        return {
            path: array_in(self._where, path, leaf, read) if path in arrays else values.get(path)
            for path, leaf in self._metadata.items()
        }

    def whole(self) -> dict[Path, Any]:
        """Return the leaves by their paths, with all arrays read as NumPy arrays, and random keys as state dicts."""
        leaves = self.leaves()
        arrays = [path for path, leaf in leaves.items() if isinstance(leaf, Stored)]
        for path in arrays:
            check_size(self._where, path, leaves[path].shape, leaves[path].dtype)
        keys = [path for path in arrays if leaves[path].dtype == np.uint32]  # they may be keys
        leaves |= self.read({path: restore_args(None) for path in arrays if path not in keys})
        for path in keys:
            leaves |= self.key(path, path)
        return {path: leaf for path, leaf in leaves.items() if not isinstance(leaf, Stored)}

    def key(self, at: Path, path: Path) -> dict[Path, Any]:
        """Return the state of a random key with its leaves below `path`; the array itself if it is not a typed key."""
        args = require_orbax().ArrayRestoreArgs(sharding=SingleDeviceSharding(jax.local_devices()[0]))
        state = to_state_dict(self.read({at: args})[at])
        parts = {(*path, *below): leaf for below, leaf in leaves_of(state)}
        return {name: np.array(leaf) if isinstance(leaf, jax.Array) else leaf for name, leaf in parts.items()}

    def read(self, wanted: Mapping[Path, Any]) -> dict[Path, Any]:
        """Return some leaves, each read with its arguments for orbax."""
        if not wanted:
            return {}
        ocp = require_orbax()
        item = mapped(lambda path, leaf: leaf if path in wanted or leaf is None else ocp.PLACEHOLDER, self._structure)
        args = mapped(lambda path, leaf: None if leaf is None else wanted.get(path, ocp.RestoreArgs()), self._structure)
        restore = ocp.args.PyTreeRestore(item, restore_args=args)
        with _guarded(self._where), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            found = dict(leaves_of(checkpointer.restore(self._folder, args=restore)))
            return {path: found[path] for path in wanted}


def _is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array of known shape. Old versions of orbax put small arrays into one file."""
    scalar = isinstance(leaf, require_orbax().metadata.ScalarMetadata)
    return not scalar and getattr(leaf, "shape", None) is not None and getattr(leaf, "dtype", None) is not None


def _data(array: Any) -> Any:
    """Return the data of a typed random key, for a target that has no key there; any other array itself."""
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array)) if is_key else array


def _guarded(where: str) -> contextlib.AbstractContextManager[None]:
    return guarded(where, "orbax cannot read it", "It is damaged or incomplete. Copy it again.")


# --- which folder -----------------------------------------------------------------------------------------------------


def _found(where: str, path: str | os.PathLike[str]) -> _Saved:
    """Return the tree in a folder, or in the item of a step.

    Raises:
        SerializationError: if there is none, or if there are several; it names them.
    """
    text = os.fspath(path)
    folder = importlib.import_module("etils.epath").Path(text if "://" in text else os.path.abspath(text))
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", text)
    if not folder.is_dir():
        fix = "If `flax.serialization.to_bytes` wrote it, use `load_file(path, target, checksums=False)`."
        raise SerializationError(where, "this is a file, but orbax writes folders.", fix, option="checksums")
    check_regular(where, os.fspath(folder))
    if (structure := _structure(where, folder)) is not None:
        return _Saved(where, folder, structure)
    _check_foreign(where, folder)
    _check_not_steps(where, folder)
    found = {child.name: _structure(where, child) for child in sorted(folder.iterdir()) if child.is_dir()}
    items = {name: structure for name, structure in found.items() if structure is not None}
    item = "default" if "default" in items else next(iter(items), None)
    if item is None:
        names = several(found) or "none"
        what = f"it holds no complete tree of orbax (folders in it: {names})."
        raise SerializationError(
            where, what, "Pass the folder of a checkpoint, which holds a file `_METADATA`.", available=found
        )
    if item != "default" and len(items) > 1:
        what = f"this step holds several trees: {several(items)}."
        raise SerializationError(
            where, what, f'Pass one of them, such as `load_orbax("{folder / item}")`.', available=items
        )
    return _Saved(where, folder / item, items[item])


def _check_not_steps(where: str, folder: Any) -> None:
    utils = require_orbax().utils
    found = {utils.step_from_checkpoint_name(step.name): step for step in utils.checkpoint_steps_paths(folder)}
    steps = [step for _, step in sorted(found.items()) if not step.name.startswith("ocdbt.")]  # the data of a tree
    if steps:
        _check_foreign(where, steps[-1])
        what = f"this folder holds steps: {several(step.name for step in steps)}."
        raise SerializationError(
            where,
            what,
            f'Pass one of them, such as `load_orbax("{folder / steps[-1].name}")`.',
            available=[step.name for step in steps],
        )


def _structure(where: str, folder: Any) -> Any:
    """Return the metadata of the tree in a folder, or `None` if it holds no tree."""
    handler = require_orbax().PyTreeCheckpointHandler()
    with _guarded(where):
        try:
            return handler.metadata(folder).tree
        except FileNotFoundError:
            return None


def _check_foreign(where: str, step: Any) -> None:
    """Check that `OrbaxCheckpoints` did not write a step: its arrays are only one part of the tree that was saved."""
    names = {child.name for child in step.iterdir() if child.is_dir()}
    if "rest" in names <= _OURS:
        what, folder = "this was written by `OrbaxCheckpoints`, which stores a tree in two parts.", str(step.parent)
        fix = f'Use `OrbaxCheckpoints("{folder}").restore(target)`, or pass "{step / "state"}" for the arrays only.'
        raise SerializationError(where, what, fix, given=folder)

"""Load the folders that orbax wrote without this library, such as those of flax users."""

from __future__ import annotations

import errno
import functools
import importlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..errors import SerializationError
from ..saving.dtypes import is_typed_key
from ..saving.nested import leaves_of
from ..saving.problems import several
from ..serialization import to_state_dict
from ..traverse_util import unflatten_dict
from ..typing import Filter, Path, PyTree
from .files import Transform
from .matching import compare, options_of
from .orbax_arrays import SavedTree, check_regular, guarded, restored, step_folders, structure_in
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
    options = options_of(f"load_orbax({where})", target, filter, strict, cast)
    saved = _found(where, path)
    if target is None or transform is not None:
        state = _nested(saved.whole(may_be_keys=True))
        state = state if transform is None else transform(state)
        if target is None:
            return state
        leaves = dict(leaves_of(to_state_dict(state)))
    else:
        leaves = saved.leaves()
    names, state = _fitted(saved, leaves, target)
    match = compare(target, _nested(state), where=where, **options)

    def read(wanted: Mapping[Path, Any]) -> dict[Path, Any]:
        found = saved.read({names[place]: leaf for place, leaf in wanted.items()})
        return {place: _data(found[names[place]]) for place in wanted}

    return restored(where, match, read)


# --- what a target expects --------------------------------------------------------------------------------------------


def _nested(leaves: Mapping[Path, Any]) -> Any:
    return leaves[()] if () in leaves else unflatten_dict(leaves)


def _fitted(saved: SavedTree, leaves: Mapping[Path, Any], target: PyTree) -> tuple[dict[Path, Path], dict[Path, Any]]:
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


def _data(array: Any) -> Any:
    """Return the data of a typed random key, for a target that has no key there; any other array itself."""
    return np.asarray(jax.random.key_data(array)) if is_typed_key(array) else array


# --- which folder -----------------------------------------------------------------------------------------------------


def _found(where: str, path: str | os.PathLike[str]) -> SavedTree:
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
    guard = functools.partial(guarded, where, "orbax cannot read it", "It is damaged or incomplete. Copy it again.")
    if (structure := structure_in(folder, guard)) is not None:
        return SavedTree(where, folder, structure, guard)
    _check_foreign(where, folder)
    _check_not_steps(where, folder)
    found = {child.name: structure_in(child, guard) for child in sorted(folder.iterdir()) if child.is_dir()}
    items = {name: structure for name, structure in found.items() if structure is not None}
    item = "default" if "default" in items else next(iter(items), None)
    if item is None:
        names = several(found) or "none"
        what = f"it holds no complete tree of orbax (folders in it: {names})."
        fix = "Pass the folder of a checkpoint, which holds a file `_METADATA`."
        raise SerializationError(where, what, fix, available=found)
    if item != "default" and len(items) > 1:
        what = f"this step holds several trees: {several(items)}."
        fix = f'Pass one of them, such as `load_orbax("{folder / item}")`.'
        raise SerializationError(where, what, fix, available=items)
    return SavedTree(where, folder / item, items[item], guard)


def _check_not_steps(where: str, folder: Any) -> None:
    found = sorted(step_folders(folder).items())
    steps = [step for _, step in found if not step.name.startswith("ocdbt.")]  # the data of a tree
    if steps:
        _check_foreign(where, steps[-1])
        what = f"this folder holds steps: {several(step.name for step in steps)}."
        fix = f'Pass one of them, such as `load_orbax("{folder / steps[-1].name}")`.'
        raise SerializationError(where, what, fix, available=[step.name for step in steps])


def _check_foreign(where: str, step: Any) -> None:
    """Check that `OrbaxCheckpoints` did not write a step: its arrays are only one part of the tree that was saved."""
    names = {child.name for child in step.iterdir() if child.is_dir()}
    if "rest" in names <= _OURS:
        what, folder = "this was written by `OrbaxCheckpoints`, which stores a tree in two parts.", str(step.parent)
        fix = f'Use `OrbaxCheckpoints("{folder}").restore(target)`, or pass "{step / "state"}" for the arrays only.'
        raise SerializationError(where, what, fix, given=folder)

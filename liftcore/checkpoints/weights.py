"""Weights of another framework, with its names, as variables of a model, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LiftArgumentError, SerializationError
from ..meta import replace_boxed, unbox
from ..serialization import to_state_dict
from ..traverse_util import flatten_dict, unflatten_dict
from ..typing import Filter, PyTree
from .matching import match_state
from .weights_rules import WeightGroup, WeightRule, grouped

__all__ = ["export_weights", "load_weights"]


def load_weights(
    foreign: Mapping[str, Any],
    target: PyTree,
    rules: Iterable[WeightRule],
    *,
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
) -> Any:
    """Variables like `target` with the arrays of another framework, whose names go to paths by rules.

    All that is left over on either side, and all that does not fit, is listed in one error.

    Example:
        >>> foreign = {
        ...     "layers.0.fc.weight": np.ones((3, 2)), "layers.0.fc.bias": np.ones(3),
        ...     "layers.1.fc.weight": np.ones((3, 2)), "layers.1.fc.bias": np.ones(3),
        ... }
        >>> target = {"params": {"layers": {"fc": {"kernel": np.zeros((2, 2, 3)), "bias": np.zeros((2, 3))}}}}
        >>> rules = [
        ...     WeightRule("layers.{i}.{name}.weight", "params/layers/{name}/kernel", "linear"),
        ...     WeightRule("layers.{i}.{name}.bias", "params/layers/{name}/bias"),
        ... ]
        >>> load_weights(foreign, target, rules)["params"]["layers"]["fc"]["kernel"].sum()
        np.float64(12.0)

    Args:
        foreign: arrays by name, as `load_safetensors(path, separator=None)` or PyTorch's `state_dict()` gives them.
        target: variables of the model, or their shapes, as from `jax.eval_shape`.
        rules: each name goes where the first rule that takes it says.
        filter: which leaves of the target to take, by their paths; the others stay.
        strict: whether each name and each path must be used. If false, what is left over is left out, or stays.
        cast: whether floating-point numbers, and integers, become those of the target's dtype.

    Returns:
        A new tree.

    Raises:
        SerializationError: if something is left over or does not fit.
        LiftArgumentError: if two names or two rules go to one path, or one below the other.
    """
    where = "load_weights"
    groups, unused, problems = grouped(foreign, rules)
    _check_paths(where, groups)
    bare = unbox(target)
    shapes = {"/".join(path): np.shape(leaf) for path, leaf in flatten_dict(to_state_dict(bare)).items()}
    problems += [f"{name}: no rule takes it" for name in unused] if strict else []
    state: dict[str, Any] = {}
    for group in groups:
        try:
            state |= {path: _fitted(array, shapes.get(path)) for path, array in _made(group, foreign).items()}
        except (TypeError, ValueError) as error:
            problems.append(f"{', '.join(group.paths)} ({group.rule}): {error}")
    hints = _hints(groups, state, shapes)
    try:
        nested = unflatten_dict(state, sep="/")
        found = match_state(bare, nested, where=where, filter=filter, strict=strict, cast=cast)
    except SerializationError as error:
        fix = "Change the rules. `strict=False` passes over what is left over, `cast=True` converts dtypes."
        raise SerializationError(where, error.what.rstrip() + (_lines([*hints, *problems]) or "\n"), fix) from None
    if problems:
        fix = "Write a rule for each name; one whose path is None leaves it out. Or pass `strict=False`."
        raise SerializationError(where, f"not all names could be used:{_lines(problems)}", fix)
    return replace_boxed(target, found)


def export_weights(variables: PyTree, like: Mapping[str, Any], rules: Iterable[WeightRule]) -> dict[str, Any]:
    """The weights of another framework with the numbers of variables: the inverse of `load_weights`.

    Example:
        >>> like = {"fc.weight": np.zeros((3, 2))}
        >>> rules = [WeightRule("{name}.weight", "params/{name}/kernel", "linear")]
        >>> export_weights({"params": {"fc": {"kernel": np.ones((2, 3))}}}, like, rules)["fc.weight"].shape
        (3, 2)

    Args:
        variables: variables of the model.
        like: arrays by name, of the shapes and dtypes to export; those with which `load_weights` was called.
        rules: the same rules; a `change` must be one that has a name.

    Returns:
        Arrays of NumPy by name, in the order of `like`. What no rule takes, or one that leaves it out, is as in `like`.

    Raises:
        SerializationError: if a path is missing, or an array does not fit.
        LiftArgumentError: if a rule has a function for its `change`, or two rules go to one path.
    """
    where = "export_weights"
    groups, _, problems = grouped(like, rules)
    _check_paths(where, groups)
    flat = {"/".join(path): leaf for path, leaf in flatten_dict(to_state_dict(unbox(variables))).items()}
    new: dict[str, Any] = {}
    for group in filter(lambda group: group.paths, groups):
        if callable(group.rule.change):
            what = "its `change` is a function, which cannot be undone."
            raise LiftArgumentError(
                f"{where}, {group.rule}", what, "Give the name of a change, or export those by hand."
            )
        missing = [path for path in group.paths if path not in flat]
        if missing:
            problems.append(f"{', '.join(missing)}: missing in the variables")
            continue
        try:
            new |= _unmade(group, like, flat)
        except (TypeError, ValueError) as error:
            problems.append(f"{', '.join(group.paths)} ({group.rule}): {error}")
    if problems:
        what = f"the variables are not those of these names:{_lines(problems)}"
        raise SerializationError(where, what, "Give the rules and names that the variables were loaded by.")
    return {name: new.get(name, leaf) for name, leaf in like.items()}


def _lines(problems: Sequence[str]) -> str:
    return "".join(f"\n  {text}" for text in problems) + "\n" if problems else ""


def _check_paths(where: str, groups: Iterable[WeightGroup]) -> None:
    known: dict[str, WeightGroup] = {}
    for group in groups:
        for path in group.paths:
            other = known.setdefault(path, group)
            if other is not group:
                names = f"{other.rows[0][0]} and {group.rows[0][0]}"
                what = f"{names} go there both, by the {other.rule} and the {group.rule}."
                raise LiftArgumentError(f"{where}, {path}", what, "Give one of them another path, or None.")
    for path, group in known.items():
        parts = path.split("/")
        above = next((one for count in range(1, len(parts)) if (one := "/".join(parts[:count])) in known), None)
        if above is not None:
            what = f"{group.rows[0][0]} goes below {above}, where {known[above].rows[0][0]} goes."
            raise LiftArgumentError(f"{where}, {path}", what, "A path has an array or names below it; change a rule.")


# --- arrays -----------------------------------------------------------------------------------------------------------


def _made(group: WeightGroup, foreign: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a group, by path."""
    if not group.paths:
        return {}
    rows = [_row(group.rule, [np.asarray(foreign[name]) for name in names]) for names in group.rows]
    columns = zip(*rows, strict=True)
    if group.rule.stacked:
        return {path: np.stack(column) for path, column in zip(group.paths, columns, strict=True)}
    return {path: column[0] for path, column in zip(group.paths, columns, strict=True)}


def _row(rule: WeightRule, arrays: list[Any]) -> list[Any]:
    """What one layer gives to each path."""
    if len(arrays) > 1:
        if rule.axis is None:
            raise ValueError("several arrays cannot be joined along no axis")
        arrays = [np.concatenate(arrays, rule.axis)]
    if len(rule.path) > 1:
        arrays = arrays * len(rule.path) if rule.axis is None else _divided(rule, arrays[0], rule.axis)
    return [_changed(rule, array) for array in arrays]


def _divided(rule: WeightRule, array: Any, axis: int) -> list[Any]:
    if rule.sizes is None:
        return np.split(array, len(rule.path), axis)
    if sum(rule.sizes) != array.shape[axis]:
        raise ValueError(f"sizes {rule.sizes} do not add up to axis {axis} of shape {array.shape}")
    return np.split(array, np.cumsum(rule.sizes)[:-1].tolist(), axis)


def _changed(rule: WeightRule, array: Any) -> Any:
    if callable(rule.change):
        return np.asarray(rule.change(array))
    order = _order(rule, array.ndim)
    return array if order is None else array.transpose(order)


def _order(rule: WeightRule, ndim: int) -> list[int] | None:
    """The order of axes that a named change makes."""
    if rule.change is None:
        return None
    if rule.change == "linear" and ndim != 2:
        raise ValueError(f'"linear" takes arrays of 2 dimensions, not of {ndim}')
    if ndim < 2:
        raise ValueError(f'"conv" takes arrays of at least 2 dimensions, not of {ndim}')
    return [*range(2, ndim), 1, 0]


def _fitted(array: Any, shape: tuple[int, ...] | None) -> Any:
    """An array whose dimensions are split or joined as the target has them, if they are in the same order."""
    return array if shape is None or not _is_regrouped(array.shape, shape) else array.reshape(shape)


def _is_regrouped(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one shape becomes the other where dimensions are only split, or only joined."""
    products = [{int(np.prod(shape[:count])) for count in range(len(shape) + 1)} for shape in (one, other)]
    return np.prod(one) == np.prod(other) and (products[0] <= products[1] or products[1] <= products[0])


def _hints(groups: Iterable[WeightGroup], state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Of arrays which would fit if they were transposed, the rule that does not do so."""
    hints = []
    for group in groups:
        for path in group.paths:
            found, expected = state.get(path), shapes.get(path)
            if found is None or expected is None or found.shape == expected or group.rule.change is not None:
                continue
            swapped = [*found.shape[:-2], *found.shape[:-3:-1]]
            if found.ndim >= 2 and _is_regrouped(swapped, expected):
                hints.append(f'{path}: it would fit if the {group.rule} had the change "linear"')
    return hints


# --- and back ---------------------------------------------------------------------------------------------------------


def _unmade(group: WeightGroup, like: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a group by name, from those by path."""
    # A number that is broadcast has the shape of an array, and takes the memory of a number.
    shapes = {name: np.broadcast_to(np.zeros(()), np.shape(like[name])) for names in group.rows for name in names}
    rows = []
    for path, model in _made(group, shapes).items():
        array = np.asarray(flat[path])
        if not _is_regrouped(array.shape, model.shape):
            raise ValueError(f"shape {array.shape} does not become {model.shape}")
        array = array.reshape(model.shape)
        rows.append(list(array) if group.rule.stacked else [array])
    new: dict[str, Any] = {}
    for names, arrays in zip(group.rows, zip(*rows, strict=True), strict=True):
        back = [_unchanged(group.rule, array) for array in arrays]
        new |= dict(zip(names, _unrow(group.rule, back, [np.shape(like[name]) for name in names]), strict=True))
    return {name: np.ascontiguousarray(array, np.asarray(like[name]).dtype) for name, array in new.items()}


def _unchanged(rule: WeightRule, array: Any) -> Any:
    order = _order(rule, array.ndim)
    return array if order is None else array.transpose(np.argsort(order))


def _unrow(rule: WeightRule, arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """What the paths give to each name of one layer."""
    if rule.axis is None:
        if not all(np.array_equal(array, arrays[0], equal_nan=array.dtype.kind in "fc") for array in arrays):
            raise ValueError("there is one array for all of them, and their numbers differ")
        return [arrays[0]]
    whole = np.concatenate(arrays, rule.axis) if len(arrays) > 1 else arrays[0]
    if len(shapes) == 1:
        return [whole]
    return np.split(whole, np.cumsum([shape[rule.axis] for shape in shapes])[:-1].tolist(), rule.axis)

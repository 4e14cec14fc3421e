"""Convert the named weights of another framework to the variables of a model, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import Expected, LiftArgumentError, SerializationError
from ..meta import replace_boxed, unbox
from ..saving.problems import several
from ..serialization import to_state_dict
from ..traverse_util import flatten_dict, unflatten_dict
from ..typing import Filter, PyTree
from .matching import about_boxes, match_state
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
    """Return variables like `target` with the arrays of another framework; rules map its names to paths.

    One error lists everything that is left over on either side, and everything that does not fit.

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
        foreign: arrays by name, as `load_safetensors(path, separator=None)` or PyTorch's `state_dict()` returns them.
        target: variables of the model, or their shapes, as from `jax.eval_shape`.
        rules: the rules. The first rule that matches a name decides its path.
        filter: which leaves of the target to replace, by their paths; the others keep their value.
        strict: whether each name and each path must be used. If false, names that are left over are ignored, and paths
            that are left over keep the value of the target.
        cast: whether to convert floating-point numbers and integers to the target's dtype; see `match_state`.

    Returns:
        A new tree.

    Raises:
        SerializationError: if something is left over or does not fit.
        LiftArgumentError: if two names or two rules have the same path, one path is below another, a rule is not a
            `WeightRule`, or the target is a single leaf.
    """
    where = "load_weights"
    groups, unused, problems, passed_over = grouped(where, foreign, rules)
    _check_paths(where, groups)
    bare = unbox(target)
    expected = to_state_dict(bare)
    if not isinstance(expected, Mapping):
        fix = "Write `load_weights(foreign, target, rules)`."
        raise LiftArgumentError(f"{where}, target", Expected("variables", given=target), fix)
    shapes = {path: np.shape(leaf) for path, leaf in flatten_dict(expected, sep="/").items()}
    problems += [f"{name}: no rule matches it" for name in unused] if strict else []
    state: dict[str, Any] = {}
    for group in groups:
        try:
            state |= {path: _fitted(array, shapes.get(path)) for path, array in _made(group, foreign).items()}
        except (IndexError, TypeError, ValueError) as error:
            advice = _sizes(group, foreign, shapes) if isinstance(error, _SizesError) else ""
            problems.append(f"{', '.join(group.paths)} ({group.rule}): {error}{advice}")
    hints = _hints(groups, state, shapes) + [text for path, text in passed_over.items() if path not in state]
    try:
        nested = unflatten_dict(state, sep="/")
        takes = about_boxes(target, filter)
        found = match_state(bare, nested, where=where, filter=takes, strict=strict, cast=cast)
    except SerializationError as error:
        also = "; `cast=True` converts dtypes" if error.option == "cast" else ""
        fix = f"Change the rules. `strict=False` ignores what is left over{also}."
        what = error.what.rstrip() + (_lines(hints) or "\n") + _unusable(problems)
        raise SerializationError(where, what, fix, option="strict") from None
    if problems:
        fix = "Write a rule for each name, `WeightRule(name, None)` to ignore it, or pass `strict=False`."
        raise SerializationError(where, _unusable(problems), fix, option="strict")
    return replace_boxed(target, found)


def export_weights(variables: PyTree, like: Mapping[str, Any], rules: Iterable[WeightRule]) -> dict[str, Any]:
    """Return weights for another framework with the values of variables: the inverse of `load_weights`.

    Example:
        >>> like = {"fc.weight": np.zeros((3, 2))}
        >>> rules = [WeightRule("{name}.weight", "params/{name}/kernel", "linear")]
        >>> export_weights({"params": {"fc": {"kernel": np.ones((2, 3))}}}, like, rules)["fc.weight"].shape
        (3, 2)

    Args:
        variables: variables of the model.
        like: arrays by name, with the names, shapes and dtypes to export, such as those passed to `load_weights`.
        rules: the rules passed to `load_weights`; each `change` must be a named one.

    Returns:
        NumPy arrays by name, in the order of `like`. Names that no rule matches, or that a rule leaves out, keep the
        value in `like`.

    Raises:
        SerializationError: if a path is missing, or an array does not fit.
        LiftArgumentError: if the `change` of a rule is a function, two rules have the same path, or a rule is not a
            `WeightRule`.
    """
    where = "export_weights"
    groups, _, problems, _ = grouped(where, like, rules)
    _check_paths(where, groups)
    flat = flatten_dict(to_state_dict(unbox(variables)), sep="/")
    new: dict[str, Any] = {}
    for group in filter(lambda group: group.paths, groups):
        for change in filter(callable, group.rule.changes):
            wrong = Expected("a change that can be inverted", given=change)
            fix = "Give a named change, or export these arrays by hand."
            raise LiftArgumentError(f"{where}, {group.rule}", wrong, fix, option="change")
        missing = [path for path in group.paths if path not in flat]
        if missing:
            problems.append(f"{', '.join(missing)}: missing in the variables")
            continue
        try:
            new |= _unmade(group, like, flat)
        except (IndexError, TypeError, ValueError) as error:
            problems.append(f"{', '.join(group.paths)} ({group.rule}): {error}")
    if problems:
        what = f"the variables do not match the names:{_lines(problems)}"
        fix = "Give the rules and names with which the variables were loaded."
        raise SerializationError(where, what, fix, option="rules")
    return {name: new.get(name, leaf) for name, leaf in like.items()}


def _unusable(problems: Sequence[str]) -> str:
    return f"not all names could be used:{_lines(problems)}" if problems else ""


def _lines(problems: Sequence[str]) -> str:
    return "\n  " + several(problems, "\n  ") + "\n" if problems else ""


def _check_paths(where: str, groups: Iterable[WeightGroup]) -> None:
    known: dict[str, WeightGroup] = {}
    for group in groups:
        for path in group.paths:
            other = known.setdefault(path, group)
            if other is not group:
                names = f"{other.rows[0][0]} and {group.rows[0][0]}"
                what = f"{names} both go there, by the {other.rule} and the {group.rule}."
                fix = "Give one of them another path, or None."
                raise LiftArgumentError(f"{where}, {path}", what, fix, variable=path)
    for path, group in known.items():
        parts = path.split("/")
        above = next((one for count in range(1, len(parts)) if (one := "/".join(parts[:count])) in known), None)
        if above is not None:
            what = f"{group.rows[0][0]} goes below {above}, where {known[above].rows[0][0]} goes."
            fix = "A path holds an array or other paths; change a rule."
            raise LiftArgumentError(f"{where}, {path}", what, fix, variable=path)


# --- arrays -----------------------------------------------------------------------------------------------------------


def _made(group: WeightGroup, foreign: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays that a group makes, by path."""
    if not group.paths:
        return {}
    rows = [_row(group.rule, [np.asarray(foreign[name]) for name in names]) for names in group.rows]
    columns = zip(*rows, strict=True)
    return {
        path: np.stack(column) if group.rule.stacked else column[0]
        for path, column in zip(group.paths, columns, strict=True)
    }


def _row(rule: WeightRule, arrays: list[Any]) -> list[Any]:
    """Return the arrays of one layer, one for each path."""
    if len(arrays) > 1:
        if rule.axis is None:
            raise ValueError("several arrays cannot be joined, as `axis` is None")
        arrays = [_joined(rule, arrays, rule.axis)]
    if len(rule.path) > 1:
        arrays = arrays * len(rule.path) if rule.axis is None else _divided(rule, arrays[0], rule.axis)
    return [_changed(change, array) for change, array in zip(rule.changes, arrays, strict=True)]


def _joined(rule: WeightRule, arrays: Sequence[Any], axis: int) -> Any:
    """Return arrays joined along an axis: in each group, the share of the first array comes first."""
    parts = [_in_groups(rule, array, axis) for array in arrays]
    axis %= arrays[0].ndim
    try:
        return _merged(np.concatenate(parts, axis + 1), axis)
    except ValueError as error:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(f"arrays of shapes {shapes} cannot be joined along axis {axis} ({error})") from error


class _SizesError(ValueError):
    """The sizes of parts do not fit an array."""


def _divided(rule: WeightRule, array: Any, axis: int) -> list[Any]:
    """Return the parts of an array along an axis; see `_joined`."""
    count, sizes = len(rule.path), rule.sizes
    size = _in_groups(rule, array, axis).shape[axis % array.ndim + 1] * rule.groups
    what = f"axis {axis} of shape {array.shape}"
    if sizes is None and size % (count * rule.groups):
        each = f" in each of {rule.groups} groups" if rule.groups > 1 else ""
        raise _SizesError(f"{what} cannot be split into {count} equal parts{each}; pass their sizes by `sizes=`")
    sizes = (size // count,) * count if sizes is None else sizes
    if sum(sizes) != size:
        raise _SizesError(f"sizes {sizes} do not add up to the size of {what}")
    return _split(rule, array, axis, sizes)


def _split(rule: WeightRule, array: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    """Return parts of some sizes along an axis; each consists of a share of each group."""
    if any(size % rule.groups for size in sizes):
        raise _SizesError(f"sizes {tuple(sizes)} along axis {axis} cannot be divided into `groups={rule.groups}`")
    ends = np.cumsum([size // rule.groups for size in sizes])[:-1].tolist()
    parts = np.split(_in_groups(rule, array, axis), ends, axis % array.ndim + 1)
    return [_merged(part, axis % array.ndim) for part in parts]


def _in_groups(rule: WeightRule, array: Any, axis: int) -> Any:
    """Return an array with an axis split in two: the groups, and what is in each of them."""
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"shape {array.shape} has no axis {axis}; pass another one by `axis=`")
    axis %= array.ndim
    if array.shape[axis] % rule.groups:
        raise ValueError(f"axis {axis} of shape {array.shape} cannot be divided into `groups={rule.groups}`")
    within = array.shape[axis] // rule.groups
    return array.reshape(*array.shape[:axis], rule.groups, within, *array.shape[axis + 1 :])


def _merged(array: Any, axis: int) -> Any:
    """Return an array with an axis and the next one as one axis."""
    return array.reshape(*array.shape[:axis], array.shape[axis] * array.shape[axis + 1], *array.shape[axis + 2 :])


def _changed(change: Any, array: Any) -> Any:
    if callable(change):
        try:
            return np.asarray(change(array))
        except (IndexError, TypeError, ValueError) as error:
            what = f"`change`, called with an array of shape {array.shape}, raised {type(error).__name__}: {error}"
            raise ValueError(f"{what}. It is called after the array is joined or split; see `groups=`") from error
    return array.transpose(_order(change, array))


def _order(change: Any, array: Any) -> list[int]:
    """Return the order of axes that a named change, or None, transposes to."""
    if change is None:
        return [*range(array.ndim)]
    if change == "linear" and array.ndim != 2:
        raise ValueError(f'"linear" takes arrays of 2 dimensions, not one of shape {array.shape}')
    if array.ndim < 2:
        raise ValueError(f'"conv" takes arrays of at least 2 dimensions, not one of shape {array.shape}')
    return [*range(2, array.ndim), 1, 0]


def _fitted(array: Any, shape: tuple[int, ...] | None) -> Any:
    """Reshape an array to the target's shape, if that only splits or joins dimensions."""
    return array if shape is None or not _is_regrouped(array.shape, shape) else array.reshape(shape)


def _is_regrouped(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether one shape becomes the other by only splitting, or only joining, dimensions."""
    products = [{int(np.prod(shape[:count])) for count in range(len(shape) + 1)} for shape in (one, other)]
    return np.prod(one) == np.prod(other) and (products[0] <= products[1] or products[1] <= products[0])


def _hints(groups: Iterable[WeightGroup], state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return a hint for each array that would fit if its rule transposed it, or did not."""
    hints = []
    for group in groups:
        better = [
            _better(change, state.get(path), shapes.get(path))
            for change, path in zip(group.rule.changes, group.paths, strict=False)
        ]
        texts = [f'"{change}"' if isinstance(change, str) else str(change) for change in better]
        text = f"change {texts[0]}" if len(texts) == 1 else f"changes ({', '.join(texts)})"
        hints += [
            f"{path}: it would fit if the {group.rule} had the {text}"
            for path, old, new in zip(group.paths, group.rule.changes, better, strict=False)
            if old != new
        ]
    return hints


def _better(change: Any, found: Any, expected: tuple[int, ...] | None) -> Any:
    """Return the change of a rule for one path, or the other one of None and "linear" if that would fit."""
    if change not in (None, "linear") or found is None or expected is None or found.shape == expected:
        return change
    swapped = [*found.shape[:-2], *found.shape[:-3:-1]]
    fits = found.ndim >= 2 and _is_regrouped(swapped, expected) and not _is_regrouped(found.shape, expected)
    return {None: "linear", "linear": None}[change] if fits else change


def _sizes(group: WeightGroup, foreign: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the sizes that an array has to be split into by the shapes of the target, as advice."""
    rule, first = group.rule, np.shape(foreign[group.rows[0][0]])
    if rule.axis is None or len(group.paths) < 2 or not all(path in shapes for path in group.paths):
        return ""
    counts = [math.prod(shapes[path]) for path in group.paths]
    if not -len(first) <= rule.axis < len(first) or not sum(counts) or (first[rule.axis] * counts[0]) % sum(counts):
        return ""
    sizes = ", ".join(str(first[rule.axis] * count // sum(counts)) for count in counts)
    return f". For the shapes of the target, write `sizes=({sizes})`"


# --- export -----------------------------------------------------------------------------------------------------------


def _unmade(group: WeightGroup, like: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a group by name, from those by path."""
    # To find the shapes, run the rule on numbers that are broadcast: they take no memory.
    shapes = {name: np.broadcast_to(np.zeros(()), np.shape(like[name])) for names in group.rows for name in names}
    rows = []
    for path, model in _made(group, shapes).items():
        array = np.asarray(flat[path])
        if not _is_regrouped(array.shape, model.shape):
            raise ValueError(f"shape {array.shape} cannot be reshaped to {model.shape}")
        array = array.reshape(model.shape)
        rows.append(list(array) if group.rule.stacked else [array])
    new: dict[str, Any] = {}
    for names, arrays in zip(group.rows, zip(*rows, strict=True), strict=True):
        orders = [np.argsort(_order(*pair)) for pair in zip(group.rule.changes, arrays, strict=True)]
        back = [array.transpose(order) for array, order in zip(arrays, orders, strict=True)]
        new |= dict(zip(names, _unrow(group.rule, back, [np.shape(like[name]) for name in names]), strict=True))
    return {name: np.ascontiguousarray(array, np.asarray(like[name]).dtype) for name, array in new.items()}


def _unrow(rule: WeightRule, arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the arrays of one layer, one for each name, from the arrays of its paths."""
    if rule.axis is None:
        if not all(np.array_equal(array, arrays[0], equal_nan=array.dtype.kind in "fc") for array in arrays):
            raise ValueError("these paths share one array, but their values differ")
        return [arrays[0]]
    whole = _joined(rule, arrays, rule.axis) if len(arrays) > 1 else arrays[0]
    return [whole] if len(shapes) == 1 else _split(rule, whole, rule.axis, [shape[rule.axis] for shape in shapes])

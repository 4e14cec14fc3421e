"""Axes: a mapping or a loop runs along one axis of each argument, variable and stream.

Boxed metadata inside does not name the axis, which exists only outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import mapped_aval
from ..errors import AxisSizeError, Expected, LiftArgumentError, LiftError, common_size, words
from ..meta import AxisMetadata, add_axis, is_box, remove_axis
from ..pipeline.body import Body
from ..pipeline.stages import Changes
from ..problems import no_new_axis
from ..pytrees import Others, has_node, is_numpy, split_leaves
from ..scopes.scope import PERTURBATIONS
from ..texts import path_text
from ..typing import Axis, Filter, PyTree, Shape
from .arguments import parameter_names

__all__ = [
    "NO_AXES",
    "Arguments",
    "In",
    "InOut",
    "InPlace",
    "Out",
    "VariableAxes",
    "boxes_inside",
    "boxes_outside",
    "broadcast",
    "check_group_axes",
    "check_out_axes",
    "check_params",
    "checked_axes",
    "flatten_axes",
    "keyword_axes",
    "leaf_name",
    "slice_type",
    "split_arrays",
    "split_keys",
    "split_rules",
    "split_sliced",
    "splits",
    "to_axis",
    "to_front",
]

NO_AXES: Mapping[Any, Any] = MappingProxyType({})
"""The default of `variable_axes` and `split_rngs`: nothing is lifted."""


@dataclasses.dataclass(frozen=True)
class In:
    """Variables that are passed in along an axis, but not out.

    Args:
        axis: the axis; None for one shared value.
    """

    axis: Axis


@dataclasses.dataclass(frozen=True)
class Out:
    """Variables that are passed out along an axis, but not in.

    Args:
        axis: the axis; None for one shared value.
    """

    axis: Axis


@dataclasses.dataclass(frozen=True)
class InOut:
    """Variables that are passed in along one axis and out along another.

    Args:
        in_axis: the axis on the way in; None for one shared value.
        out_axis: the axis on the way out; None for one shared value.
    """

    in_axis: Axis
    out_axis: Axis


@dataclasses.dataclass(frozen=True)
class InPlace:
    """Variables that are passed in and out along one axis, and that a loop updates in place.

    `scan` stacks the new slices in a new array; with `InPlace`, each iteration writes its slice over the old one. So no
    iteration copies the others' slices. Use it for the cache of a model that generates text. The numbers are the same.
    Values that the body creates, or whose shape or dtype it changes, are stacked. Mappings take it as the axis alone.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x, _):
        ...     seen = scope.variable("cache", "seen", jnp.zeros, 3)
        ...     seen.value += x
        ...     return x + 1, None
        >>> layers = liftcore.scan(layer, length=2, variable_axes={"cache": liftcore.InPlace(0)})
        >>> _, variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
        >>> _, updates = liftcore.apply(layers, mutable="cache")(variables, jnp.ones(3), None)
        >>> updates["cache"]["seen"].tolist()
        [[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]

    Args:
        axis: the axis.
    """

    axis: int


Named: TypeAlias = tuple[str, str, PyTree, Sequence[Axis]]
"""A value with its name, for error messages, and one axis for each of its leaves."""


class _Broadcast:
    """The axis of a value that is the same in all elements or iterations."""

    def __repr__(self) -> str:
        return "broadcast"

    def __reduce__(self) -> str:
        return "broadcast"

    def __static_fields__(self) -> dict[str, Any]:
        return {}


broadcast = _Broadcast()
"""For `in_axes` and `out_axes` of `scan`: the value is the same in all iterations."""


class VariableAxes:
    """The argument `variable_axes`, as filters and axes of the input and output groups.

    Perturbations that no filter takes are lifted automatically: each element or iteration has its own. `in_place` has
    the number of the output group for that of each input group that a loop updates in place.
    """

    def __init__(self, variable_axes: Mapping[Any, Any]) -> None:
        if not isinstance(variable_axes, Mapping):
            raise LiftArgumentError(
                "variable_axes",
                Expected("a mapping from filters to axes", given=variable_axes),
                'Write `variable_axes={"params": 0}`; pass the arguments of the function to the lifted function.',
                option="variable_axes",
            )
        pairs = [*((key, *_in_out(key, axis)) for key, axis in variable_axes.items()), (PERTURBATIONS, 0, 0)]
        self.in_filters: list[Filter] = [key for key, into, _ in pairs if into is not _ABSENT]
        self.in_axes: list[Axis] = [into for _, into, _ in pairs if into is not _ABSENT]
        self.out_filters: list[Filter] = [key for key, _, out in pairs if out is not _ABSENT]
        self.out_axes: list[Axis] = [out for _, _, out in pairs if out is not _ABSENT]
        written = [key for key, axis in variable_axes.items() if isinstance(axis, InPlace)]
        self.in_place = {self.in_filters.index(key): self.out_filters.index(key) for key in written}


_ABSENT: Any = object()


def _in_out(key: Any, axis: Any) -> tuple[Any, Any]:
    match axis:
        case In():
            pair = axis.axis, _ABSENT
        case Out():
            pair = _ABSENT, axis.axis
        case InOut():
            pair = axis.in_axis, axis.out_axis
        case InPlace():
            pair = axis.axis, axis.axis
        case _:
            pair = axis, axis
    if not all(one is _ABSENT or one is None or (isinstance(one, int) and not isinstance(one, bool)) for one in pair):
        raise LiftArgumentError(
            f"variable_axes[{key!r}]",
            Expected("an axis (an int, or None for the same value everywhere)", given=axis),
            "Write an int, None, In(axis), Out(axis), InOut(in_axis, out_axis) or InPlace(axis).",
            option="variable_axes",
        )
    return pair


def split_rules(split_rngs: Mapping[Any, bool] | bool) -> tuple[list[Filter], list[Axis]]:
    """Return the filters of `split_rngs`, and for each of them the axis of its keys: 0 if split, else None."""
    if isinstance(split_rngs, bool):
        split_rngs = {...: split_rngs}
    if not isinstance(split_rngs, Mapping) or not all(isinstance(flag, bool) for flag in split_rngs.values()):
        raise LiftArgumentError(
            "split_rngs",
            Expected("one bool, or a mapping from filters to bools", given=split_rngs),
            'Write `split_rngs={"params": True, "dropout": True}`.',
            option="split_rngs",
        )
    return list(split_rngs), [0 if flag else None for flag in split_rngs.values()]


def split_keys(rng_groups: Sequence[PyTree], axes: Sequence[Axis], size: int) -> list[PyTree]:
    """Return the groups of root keys; in split groups, the keys have a leading axis."""
    return [
        group if axis is None else jax.tree.map(lambda key: jax.random.split(key, size), group)
        for group, axis in zip(rng_groups, axes, strict=True)
    ]


def splits(rng_groups: Sequence[PyTree], axes: Sequence[Axis]) -> bool:
    """Whether there is a key that differs between elements or iterations."""
    return any(axis is not None and jax.tree.leaves(group) for group, axis in zip(rng_groups, axes, strict=True))


def checked_axes(where: str, axes: PyTree) -> PyTree:
    """Return the axes of arguments or results, with a tuple in place of a list.

    Args:
        where: the place that the error names.
        axes: the axes: ints, None and `broadcast`.

    Raises:
        LiftArgumentError: if one is something else.
    """
    for axis in () if isinstance(axes, int) else jax.tree.leaves(axes):
        if not (axis is broadcast or hasattr(axis, "__index__")):
            raise LiftArgumentError(where, Expected("an int or None", given=axis), "Write the number of the axis.")
    return tuple(axes) if isinstance(axes, list) else axes


def flatten_axes(where: str, axes: PyTree, tree: PyTree, body: Body | None = None) -> list[Any]:
    """Return one axis for each leaf of a tree, from a pytree prefix; None and `broadcast` mean no axis.

    Args:
        where: the place that the error names; in a body, if one is given.
        axes: the axes.
        tree: the tree.
        body: the body.

    Raises:
        LiftArgumentError: if the axes are not a prefix.
    """
    if isinstance(axes, int):  # one axis for all leaves
        return [axes] * len(jax.tree.leaves(tree))
    if axes is None or axes is broadcast:
        return [None] * len(jax.tree.leaves(tree))
    treedef: Any
    prefix, treedef = jax.tree.flatten(axes, is_leaf=lambda axis: axis is None or axis is broadcast)
    try:
        parts = treedef.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise LiftArgumentError(
            where if body is None else f"{body.where}, {where}",
            f"{axes!r} is not a prefix of the value's structure, {jax.tree.structure(tree)}.",
            "Give one axis for the whole value, or one for each part; the scope (or module) does not count.",
            given=axes,
        ) from error
    flat: list[Any] = []
    for axis, part in zip(prefix, parts, strict=True):
        flat += [None if axis is broadcast else axis] * len(jax.tree.leaves(part))
    return flat


def check_out_axes(
    where: str, axes: PyTree, tree: PyTree, body: Body | None = None, is_stacked: bool = False
) -> list[Any]:
    """Return one axis for each leaf, as `flatten_axes`, and check that it can have its new axis there.

    Args:
        where: the place that the error names; in a body, if one is given.
        axes: the axes, as a pytree prefix.
        tree: the values.
        body: the body.
        is_stacked: whether the values already have the new axis, as their first one.

    Raises:
        LiftArgumentError: if a value has too few axes.
    """
    flat = flatten_axes(where, axes, tree, body)
    for leaf, axis in zip(jax.tree.leaves(tree), flat, strict=True):
        shape = np.shape(leaf)[is_stacked:]
        if axis is not None and not _fits(axis, shape):
            raise no_new_axis(where if body is None else f"{body.where}, {where}", shape, axis)
    return flat


def _fits(axis: int, shape: Shape) -> bool:
    """Whether a value can have a new axis at a position."""
    return -len(shape) - 1 <= axis <= len(shape)


def check_group_axes(body: Body, axes: Sequence[Axis], groups: Sequence[PyTree]) -> None:
    """Check that variables which a body created or wrote can have their new axis; see `check_out_axes`."""
    for axis, group in zip(axes, groups, strict=True):
        if axis:  # there is always a position 0
            for path, leaf in jax.tree.leaves_with_path(group):
                if not _fits(axis, np.shape(leaf)):
                    where = f"{words().variable(path_text(path[2:]))} in {body.where}"
                    raise no_new_axis(where, np.shape(leaf), axis)


class Arguments:
    """The arguments of a lifted mapping or loop: some leaves are sliced along an axis, the others passed unchanged."""

    def __init__(
        self, body: Body, skip: int, args: Sequence[Any], kwargs: Mapping[str, Any], in_axes: PyTree, kw_axes: PyTree
    ) -> None:
        """Take the arguments of a call to a function whose first `skip` parameters are not among them."""
        self._body, self._skip, self._args, self._kwargs = body, skip, tuple(args), dict(kwargs)
        self._arg_axes = flatten_axes("in_axes", in_axes, self._args, body)
        self._kwarg_axes = [] if isinstance(kw_axes, int) and not kwargs else keyword_axes(kw_axes, kwargs)
        self._axes = [*self._arg_axes, *self._kwarg_axes]

    def size(
        self, given: int | None, groups: Sequence[PyTree], axes: Sequence[Axis], option: str, fix: str, aside: str = ""
    ) -> int:
        """Return the size of the axis that the arguments share with groups of variables.

        Args:
            given: the size that the user gave, if any.
            groups: the groups of variables.
            axes: the axis of each group.
            option: the argument that the user lacks if the size is unknown.
            fix: the fix of the error message then.
            aside: a clause after it, about the arguments of the core.

        Raises:
            AxisSizeError: if sizes disagree, a value lacks the axis, or there is no size at all.
        """
        leaves = jax.tree.leaves((self._args, self._kwargs))
        mapped = [*zip(leaves, self._axes, strict=True), *zip(groups, axes, strict=True)]
        found = {given} if given is not None else set()
        with contextlib.suppress(AttributeError, IndexError):  # the error is raised below
            found |= {leaf.shape[axis] for tree, axis in mapped if axis is not None for leaf in jax.tree.leaves(tree)}
            if len(found) == 1:
                return int(found.pop())
        named = itertools.chain(self._named(), _named_groups(groups, axes))
        share, variable = self._sharing(given, groups, axes)
        shapes = (one for part in named for one in _shapes(*part))
        size = common_size(self._body.where, shapes, given, share, variable=variable)
        if size is None:
            what = "nothing is mapped, so the size of the axis is unknown."
            raise AxisSizeError(self._body.where, what, fix + words().aside(aside), option=option)
        return size

    def _sharing(self, given: int | None, groups: Sequence[PyTree], axes: Sequence[Axis]) -> tuple[str, str | None]:
        """Return the fix that shares the variables of another size, or the first one, and a path of a variable."""
        leaves = jax.tree.leaves((self._args, self._kwargs))
        pairs = zip(leaves, self._axes, strict=True)
        sizes = [given, *(_size(leaf, axis) for leaf, axis in pairs if axis is not None)]
        variables = [
            (self._body.path(path), _size(leaf, axis))
            for group, axis in zip(groups, axes, strict=True)
            if axis is not None
            for path, leaf in jax.tree.leaves_with_path(group)
        ]
        known = [size for size in (*sizes, *dict(variables).values()) if size is not None]
        usual = given or (statistics.mode(known) if known else None)
        differing = [path for path, size in variables if size is None or size != usual]
        code = sentence = ""
        alone = self._alone(given, sizes, dict(variables), differing[0][0]) if differing else None
        if alone:
            code, sentence = alone
        elif differing:
            others = [path for path, size in variables if size == usual]
            scopes = [outer.path for outer in self._body.outers]
            others += [path for path in scopes if path != differing[0][1 : 1 + len(path)]]
            code = self._body.layout.lift.advice.sharing(differing[0], others)
            equal = "Share" if dict(variables)[differing[0]] is None else "Make them equal, or share"
            sentence = f"{equal} what is the same for all: {{}}." if code and known else ""
        names = [path_text(path) for path in differing[:1] or dict(variables)]
        return words().sharing(sentence, code, names), names[0] if names and not alone else None

    def _alone(
        self, given: int | None, sizes: Sequence[int | None], variables: Mapping[Any, int | None], collection: str
    ) -> tuple[str, str] | None:
        """Return code that makes all variables fit at once, and a sentence for it; None if some of them fit already.

        In `init`, those that exist are of a scope that the model made outside the lift: only they are to be shared.

        Args:
            given: the size that the user gave, if any.
            sizes: this one, and those of the arguments.
            variables: the size of each variable; None for one that lacks the axis.
            collection: the collection of the first variable that does not fit.
        """
        advice, stacked = self._body.layout.lift.advice, set(variables.values())
        inside = [size for path, size in variables.items() if path[0] == collection]
        known = [size for size in sizes if size is not None]
        if self._body.is_initializing():
            return None
        if len(stacked) == 1 and None not in stacked and stacked.issuperset(sizes[1:]) and given is not None:
            return f"`{advice.size}={stacked.pop()}`", "Write {}, the size of the variables, or create these again."
        if len(inside) > 1 and known and not set(known) & set(inside) and advice.part:
            return advice.whole.format(collection), "Make them equal, or share what is the same for all: {}."
        return None

    def _named(self) -> Iterator[Named]:
        """Yield the arguments with their names in the signature of the function."""
        names = parameter_names(self._body.fn)[self._skip :]
        names += [f"args[{index}]" for index in range(len(names), len(self._args))]
        left = iter(self._arg_axes)
        for name, arg in zip(names, self._args, strict=False):
            yield name, "", arg, list(itertools.islice(left, len(jax.tree.leaves(arg))))
        yield "keyword arguments", "", self._kwargs, self._kwarg_axes

    def belong_to(self, numbers: Container[int]) -> list[bool]:
        """Return, for each sliced leaf, whether it belongs to a positional argument with one of the numbers, from 1."""
        each = [number for number, arg in enumerate(self._args, 1) for _ in jax.tree.leaves(arg)]
        owners = [*each, *[0 for _ in self._kwarg_axes]]
        return [owner in numbers for owner, axis in zip(owners, self._axes, strict=True) if axis is not None]

    def split_with(
        self, groups: Sequence[PyTree], axes: Sequence[Axis], keys: Sequence[PyTree], key_axes: Sequence[Axis]
    ) -> tuple[list[Any], list[int], Others]:
        """Return what is sliced, the axes of it, and the others, of `(groups, keys, args, kwargs)`.

        Args:
            groups: the groups of variables.
            axes: the axis of each group.
            keys: the groups of keys.
            key_axes: the axis of each of these.
        """
        pairs = zip((*groups, *keys), (*axes, *key_axes), strict=True)
        along = [axis for tree, axis in pairs for _ in jax.tree.leaves(tree)]
        return split_sliced((groups, keys, self._args, self._kwargs), [*along, *self._axes])


def _named_groups(groups: Sequence[PyTree], axes: Sequence[Axis]) -> Iterator[Named]:
    """Yield the collections of groups of variables with their axes."""
    for group, axis in zip(groups, axes, strict=True):
        if axis is not None:
            for tree in group:
                for collection, below in tree.items():
                    yield f'variables["{collection}"]', collection, below, [axis] * len(jax.tree.leaves(below))


def _shapes(name: str, collection: str, tree: PyTree, axes: Sequence[Axis]) -> Iterator[tuple[str, Shape, int]]:
    """Yield the name, the shape and the axis of each leaf that has an axis; of a collection of one size, only once."""
    sizes = [
        axis if axis is None else _size(leaf, axis) for leaf, axis in zip(jax.tree.leaves(tree), axes, strict=True)
    ]
    if collection and len(sizes) > 1 and len({*sizes}) == 1 and sizes[0] is not None and _is_plain(collection, tree):
        yield f"all {len(sizes)} of {name}", (sizes[0],), 0
        return
    for (path, leaf), axis in zip(jax.tree.leaves_with_path(tree), axes, strict=True):
        if axis is not None:
            yield leaf_name(f"{name}{jax.tree_util.keystr(path)}", collection, path), np.shape(leaf), axis


def _is_plain(collection: str, tree: PyTree) -> bool:
    """Whether the words of no style name the variables of a collection."""
    return all(words().path(path) == path for path in [f"{collection}/{name}" for name in tree])


def leaf_name(text: str, collection: str, path: Any) -> str:
    """Return the name of an array, from the text for it, the collection, and the path of JAX in the collection."""
    variable = f"{collection}/{path[0].key}" if collection else ""
    named = words().path(variable)
    return text if named == variable else f"{named}{jax.tree_util.keystr(path[1:])}"


def _size(leaf: Any, axis: int) -> int | None:
    """Return the size of an axis; None if there is no such axis."""
    shape = np.shape(leaf)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def split_sliced(tree: PyTree, axes: Sequence[Axis]) -> tuple[list[Any], list[int], Others]:
    """Return the leaves that have an axis, their axes, and the other leaves; `axes` has one axis for each leaf."""
    sliced, others = split_leaves(tree, [axis is not None for axis in axes])
    return sliced, [axis for axis in axes if axis is not None], others


def split_arrays(tree: PyTree) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the arrays of a pytree (or their types), and a function that puts other arrays in their places.

    All other leaves are not traced, so that Python code can use them.
    """
    arrays, others = split_leaves(tree, lambda leaf: isinstance(leaf, jax.Array | jax.ShapeDtypeStruct))
    return arrays, others.join


def slice_type(leaf: Any, axis: int) -> Any:
    """Return the type of one slice along an axis, weak type and sharding included."""
    return mapped_aval(np.shape(leaf)[axis], axis % np.ndim(leaf), jax.typeof(leaf))


def keyword_axes(kw_axes: PyTree, kwargs: Mapping[str, Any]) -> list[Any]:
    """Return one axis for each leaf of the keyword arguments; Python values that are not arrays have none."""
    flat = flatten_axes("kw_axes", kw_axes, dict(kwargs))
    leaves = jax.tree.leaves(dict(kwargs))
    return [
        axis if isinstance(leaf, jax.Array) or is_numpy(leaf) else None for axis, leaf in zip(flat, leaves, strict=True)
    ]


def to_front(tree: PyTree, axis: Axis) -> PyTree:
    """Return arrays with an axis moved to the front."""
    return tree if axis in (0, None) else jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), tree)


def to_axis(tree: PyTree, axis: Axis) -> PyTree:
    """Return arrays with their first axis moved to another position."""
    return tree if axis in (0, None) else jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), tree)


def check_params(name: str, metadata_params: Any) -> None:
    """Check that the parameters for boxed metadata are a mapping."""
    if not isinstance(metadata_params, Mapping):
        raise LiftArgumentError(
            f"metadata_params of {name}",
            Expected("a mapping for boxed metadata", given=metadata_params),
            'Write `metadata_params={PARTITION_NAME: "layers"}`.',
            option="metadata_params",
        )


_has_boxes = functools.partial(has_node, kind=AxisMetadata)


def boxes_inside(
    body: Body,
    groups: Sequence[PyTree],
    axes: Sequence[Axis],
    params: Mapping[Any, Any],
    size_of: Callable[[Sequence[PyTree]], int] | None = None,
) -> list[PyTree]:
    """Return groups of variables as a body sees them.

    A user-defined box may give its value another shape when it loses the axis, so sizes are those of the result.

    Args:
        body: the body, for error messages.
        groups: the input groups.
        axes: for each group, the axis that its boxes lose, or None.
        params: the `metadata_params` of the lift.
        size_of: returns the size of the axis in the groups, or raises if there is none.
    """
    try:
        return [
            _without(body, group, axis, params) if axis is not None and any(group) and _has_boxes(group) else group
            for group, axis in zip(groups, axes, strict=True)
        ]
    except LiftError:
        if size_of is not None:
            size_of(groups)  # raises the better error if the axis is missing
        raise


def _without(body: Body, group: PyTree, axis: int, params: Mapping[Any, Any]) -> PyTree:
    def change(path: Any, leaf: Any) -> Any:
        try:
            return remove_axis(leaf, axis, params)
        except LiftError as error:
            name = path_text(path[1:])
            where = f"{words().variable(name)} in {body.where}"
            raise type(error)(where, error.what, error.fix, **error.facts | {"variable": name}) from error

    return jax.tree.map_with_path(change, group, is_leaf=is_box)


def boxes_outside(groups: Sequence[PyTree], axes: Sequence[Axis], params: Mapping[Any, Any]) -> tuple[PyTree, ...]:
    """Return the output groups of a body in the form of the scopes outside.

    Args:
        groups: the output groups.
        axes: for each of the first groups, the axis that its boxes gain, or None; the other groups stay unchanged.
        params: the `metadata_params` of the lift.
    """
    if not any(tree for group in groups[: len(axes)] for part in group for tree in part):  # no variables
        return tuple(groups)
    changed = [
        Changes(*[add_axis(part, axis, params) for part in group]) if axis is not None and _has_boxes(group) else group
        for group, axis in zip(groups, axes, strict=False)
    ]
    return (*changed, *groups[len(changed) :])

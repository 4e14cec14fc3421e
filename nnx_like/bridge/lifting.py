"""`lift`: applies any lifted transformation of liftcore, or your own, to functions of objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError, name_of, shown
from liftcore.problems import no_functions

from ..crossing.groups import Choose, Groups, Ref, in_call, refs_in
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..errors import StructureError
from ..graph.definition import VariableDef, difference, entries, metadata_definition, metadata_of, static
from ..graph.walk import is_object
from ..transforms.base import check_brings_none, checked, named
from ..variablelib.kinds import RngKey, RngState, collection_of
from ..variablelib.variable import Variable
from .streams import NoKey, with_states
from .variables import to_linen_var, to_nnx_var

__all__ = ["lift"]


class _ByCollection(Choose):
    """A prefix that puts each variable into the collection of its kind.

    Args:
        several: whether the call has several objects; the path of a variable then begins with the place of its object.
    """

    __slots__ = ("several",)

    def __init__(self, several: bool = False) -> None:
        super().__init__((), many=True)
        self.several = several

    def __call__(self, path: tuple[Any, ...], value: Any) -> str:
        return collection_of(value)

    def __eq__(self, other: object) -> bool:
        return type(other) is _ByCollection and self.several == other.several

    def __hash__(self) -> int:
        return hash((_ByCollection, self.several))


def lift(transformation: Callable[..., Any], *fns: Any, **options: Any) -> Callable[..., Any]:
    """Apply a lifted transformation of `liftcore`, or one of your own, to functions of objects.

    Inside, each variable is in the collection of its kind: `Param` in "params", `BatchStat` in "batch_stats", a kind of
    your own under its registered name. Its path is its path in the object. If the arguments hold several objects, the
    place of the object comes first: `"0"` for the first argument, `"model"` for a keyword argument. A variable with
    metadata is boxed. Options of the transformation name these collections and paths. If a function changes a variable,
    the caller's variable changes. The structure of objects cannot change.

    The transformation also sees the RNG streams of the objects, by their tags. If it splits the stream "dropout", all
    streams with this tag draw other keys in each element. If it does not take a stream, a draw is an error. The keys
    and counts are variables in "RngKey" and "RngCount". If no option names them, elements and iterations share them,
    and loops carry the counts.

    Example:
        >>> import liftcore, nnx_like as nnx
        >>> import jax.numpy as jnp
        >>> def step(carry, x):
        ...     model, total = carry
        ...     model.seen += 1
        ...     return (model, total + model.w * x), model.seen.get_value()
        >>> over_time = nnx.lift(liftcore.scan, step, variable_carry="batch_stats", variable_broadcast="params")
        >>> model = nnx.Dict(w=nnx.Param(2.0), seen=nnx.BatchStat(jnp.array(0)))
        >>> (model, total), counts = over_time((model, 0.0), jnp.arange(3.0))
        >>> print(total, counts, model.seen.get_value())
        6.0 [1 2 3] 3

    Args:
        transformation: one of `liftcore`, or your own, made with `liftcore.pack` or `liftcore.transformation`; called
            as `transformation(*fns, **options)`.
        *fns: the functions, called with the arguments, which may contain objects anywhere. Most transformations take
            one function; `liftcore.switch` takes a list. A result may only contain objects that were arguments.
        **options: the options of the transformation.

    Returns:
        The transformed function. Call it as the transformation defines, without the scope.

    Raises:
        LiftArgumentError: if a function cannot be called, or is a method of one object.
        StructureError: when called, if a function makes, deletes or swaps attributes, or returns a new object.
        TraceContextError: when called, if a function changes an object that is not an argument.
        LiftError: if the transformation raises one.
    """
    where = f"lift({name_of(transformation)})"
    liftcore.pipeline.check_lift(where, transformation)
    if not fns:
        raise no_functions(where, "Write `lift(transformation, fn)`.")
    each = jax.tree.leaves(fns, is_leaf=_is_function)
    for fn in each:
        check_brings_none("lift(…, ", checked("lift", fn), fn)
    groups = Groups(where, "collection", "in collection {}".format)
    bodies = jax.tree.map(functools.partial(_body, groups), fns, is_leaf=_is_function)
    lifted = transformation(*bodies, **with_states(transformation, options))

    @functools.wraps(each[0])
    @boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {id(leaf) for leaf in jax.tree.leaves((args, kwargs), is_leaf=is_object) if is_object(leaf)}
        outside = Outside(groups, (args, kwargs), _ByCollection(len(given) > 1), name=in_call)
        variables, rngs = _entering(outside)
        args, kwargs = outside.args
        with liftcore.bind(variables, rngs, mutable=True, creates=False).temporary() as scope:
            result = lifted(scope, *args, **kwargs)
            keyed: Any = _Keyed(scope, refs_in(outside.args))
            keyed.check_streams(where, outside.values)
            return outside.finish(keyed, result)

    return call


def _is_function(part: Any) -> bool:
    """Return whether a part of the arguments is a function, not a list of functions."""
    return not isinstance(part, list | tuple)


def _body(groups: Groups, fn: Callable[..., Any]) -> Callable[..., Any]:
    @named(fn)
    def body(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
        keyed: Any = _Keyed(scope, refs_in((args, kwargs)))
        inside = Inside(keyed, groups)
        keyed.reseed(inside.values)
        inside.builder.read = functools.partial(keyed.read, inside.values)
        args, kwargs = inside.decode((args, kwargs))
        keyed.describe(inside)
        result = _result(groups.where, inside, call_user(groups.where, fn, *args, **kwargs))
        keyed.restore(inside)
        change = inside.encode((), _ByCollection())[2]
        if change.definitions is not None:
            pairs = zip(inside.given, change.definitions, strict=True)
            found = [difference(ref.definition, after) for (ref, _), after in pairs]
            said = next(filter(None, found), "an object in it was replaced")
            what = f"under `lift`, the structure of objects must not change: {said}."
            fix = "Create or delete attributes before or after the call; inside, only change values of variables."
            raise StructureError(groups.where, what, fix, given=said)
        return result

    return body


_Slot = tuple[str, str]
"""The group and the key of a value, as a walk gives them."""


def _entering(outside: Outside) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables of the objects at their paths, and a key for each RNG stream."""
    refs, holders, variables = refs_in(outside.args), outside.walk.holders, dict[str, Any]()
    for (group, key), names in _places(refs).items():
        _set(variables, (group, *names), _boxed(holders[group][key][0], outside.values[group][key]))
    streams = {tag: [outside.values[group][key] for group, key in slots] for tag, slots in _streams(refs).items()}
    return variables, {tag: keys[0] for tag, keys in streams.items() if _are_alike(keys)}


def _boxed(holder: Any, parts: Any) -> Any:
    if not isinstance(holder, Variable) or isinstance(holder, RngState) or not holder._metadata:
        return parts
    return to_linen_var(holder).replace_boxed(parts)


def _places(refs: Sequence[Ref]) -> dict[_Slot, tuple[str, ...]]:
    """Return the path of each value in its collection."""
    places = {}
    for ref in refs:
        base = ref.base.removesuffix(".")
        number, bracket, rest = base.removeprefix("[").partition("]")
        level = f"{number}{rest}" if bracket and base.startswith("[") else base
        taken: dict[str, Any] = {}
        for path, definition in entries(ref.definition):
            group, key = definition.slot
            if group is not None:
                names = (*[level] * ref.prefix.several, *map(str, path)) or ("value",)
                places[group, key] = _set(taken, (group, *names), key)[1:]
    return places


def _set(tree: dict[str, Any], names: Sequence[str], value: Any) -> tuple[str, ...]:
    """Set a value at a path; names that are taken, since `0` and `"0"` may be keys of one dict, are changed."""
    *above, last = names
    path = []
    for name in above:
        while not isinstance(tree.get(name, {}), dict):
            name += "'"
        path.append(name)
        tree = tree.setdefault(name, {})
    while last in tree:
        last += "'"
    tree[last] = value
    return *path, last


def _streams(refs: Sequence[Ref]) -> dict[str, list[_Slot]]:
    """Return the places of the keys of RNG streams, by the tags of the streams."""
    found: dict[str, list[_Slot]] = {}
    for _, definition in [pair for ref in refs for pair in entries(ref.definition)]:
        if type(definition) is VariableDef and issubclass(definition.cls, RngKey) and definition.group is not None:
            found.setdefault(metadata_of(definition.metadata).get("tag", "default"), []).append(definition.slot)
    return found


def _are_alike(keys: Sequence[Any]) -> bool:
    """Return whether keys are single ones of one implementation; others were split for their elements before."""
    types = {(jnp.shape(key), jnp.result_type(key)) for key in keys}
    return [(shape, jnp.issubdtype(dtype, jax.dtypes.prng_key)) for shape, dtype in types] == [((), True)]


_OF_STREAMS = ("RngKey", "RngCount")
"""The collections of RNG streams."""


def _types(tree: Any) -> list[Any]:
    return [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(tree)]


class _Keyed:
    """A scope with the values of objects at their paths, for the two sides of a crossing, which know them by keys.

    Args:
        scope: the scope.
        refs: the objects.
    """

    def __init__(self, scope: liftcore.Scope, refs: Sequence[Ref]) -> None:
        self._scope, self._refs, self._places = scope, refs, _places(refs)
        self._boxes: dict[_Slot, Any] = {}
        self._unlifted: dict[_Slot, Any] = {}

    def collections_below(self) -> dict[str, dict[str, Any]]:
        """Return the values by group and key."""
        tree, values = self._scope.collections_below(), dict[str, dict[str, Any]]()
        for (group, key), names in self._places.items():
            value: Any = functools.reduce(lambda below, name: below.get(name, {}), (group, *names), tree)
            if isinstance(value, liftcore.AxisMetadata):
                box: Any = value
                self._boxes[group, key], value = box, box.value
            if not isinstance(value, Mapping):  # an empty one stands for a value that is not lifted
                values.setdefault(group, {})[key] = value
        return values

    def is_mutable_collection(self, group: str) -> bool:
        """Return whether values of a group may be written."""
        return self._scope.is_mutable_collection(group)

    def put_variable(self, group: str, key: str, value: Any) -> None:
        """Write a value; the metadata of a boxed one stays."""
        *modules, name = self._places[group, key]
        self._scope.below(tuple(modules)).put_unboxed(group, name, value)

    def read(self, values: Mapping[str, Mapping[str, Any]], group: str, key: str) -> Any:
        """Return a value. If it is not lifted, the scope raises an error that says how to lift it."""
        if key not in values.get(group, ()):
            *modules, name = self._places[group, key]
            self._scope.below(tuple(modules)).variable(group, name)
        return values[group][key]

    def describe(self, inside: Inside) -> None:
        """Set the metadata of the variables to what their boxes have inside, where axes may be missing."""
        for made in inside.builder.table.values():
            box = self._boxes.get(inside.builder.slots.get(id(made), ("", "")))
            now = None if box is None else to_nnx_var("params", box)._metadata
            if now is not None and now != made._metadata:
                inside.builder.described[id(made)] = now, metadata_definition(made._metadata, (), static)
                object.__setattr__(made, "_metadata", now)

    def reseed(self, values: dict[str, dict[str, Any]]) -> None:
        """Change the keys of streams as the lift changed the stream of their tag; if it did not, they stay the same.

        A draw from a stream that the lift does not pass in is an error.
        """
        data = jax.random.key_data
        for tag, slots in _streams(self._refs).items():
            slots = [(group, key) for group, key in slots if key in values.get(group, ())]
            keys = [values[group][key] for group, key in slots]
            if tag in self._scope.given_rngs and not self._scope.has_rng(tag):
                for group, key in slots:
                    self._unlifted[group, key] = values[group][key]
                    values[group][key] = NoKey.of(self._scope, tag)
            if not self._scope.has_rng(tag) or not _are_alike(keys):
                continue
            # Jit passes no root keys on, only draws. So compare the next draw with the expected one.
            change = data(liftcore.bind({}, {tag: keys[0]}).make_rng(tag)) ^ data(self._scope.make_rng(tag))
            for (group, key), given in zip(slots, keys, strict=True):
                values[group][key] = jax.random.wrap_key_data(data(given) ^ change, impl=jax.random.key_impl(given))

    def check_streams(self, where: str, before: Mapping[str, Mapping[str, Any]]) -> None:
        """Check that the keys and counts of streams have the types from before the lift.

        Args:
            where: the name of the transformation, for the error.
            before: the values before, by group and key.

        Raises:
            LiftArgumentError: if a lift changed one of them, as one that averages all values that it gets does.
        """
        now = self.collections_below()
        for (group, key), names in self._places.items():
            old, new = before[group][key], now[group][key]
            if new is not old and group in _OF_STREAMS and _types(new) != _types(old):
                raise LiftArgumentError(
                    f'"{"/".join((group, *names))}" in {where}',
                    f"the lift changed it from {shown(old)} to {shown(new)}, but it belongs to an RNG stream.",
                    "Compute only with values of other collections, such as floating ones.",
                    variable="/".join((group, *names)),
                    collection=group,
                )

    def restore(self, inside: Inside) -> None:
        """Set the keys of streams that the lift does not pass in to what they are outside."""
        for made in inside.builder.table.values():
            group, key = slot = inside.builder.slots.get(id(made), ("", ""))
            if slot in self._unlifted and isinstance(made.get_raw_value(), NoKey):
                inside.values[group][key] = self._unlifted[slot]
                made.set_raw_value(self._unlifted[slot])


def _result(where: str, inside: Inside, result: Any) -> Any:
    """Return the result with references in place of objects."""
    refs = {id(made): ref for ref, made in inside.given}

    def one(leaf: Any) -> Any:
        if not is_object(leaf):
            return leaf
        if id(leaf) not in refs:
            raise StructureError(
                where,
                f"the result contains a {type(leaf).__name__} that was not an argument.",
                "Return values, or write into an object that is an argument.",
                given=type(leaf).__name__,
            )
        return refs[id(leaf)]

    return jax.tree.map(one, result, is_leaf=is_object)

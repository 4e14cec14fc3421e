"""Loops over objects: `scan`, `remat_scan`, `while_loop` and `fori_loop`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary, call_user
from liftcore.errors import CarryTypeError, LiftArgumentError, LoopInvarianceError

from ..crossing.groups import (
    Change,
    Choose,
    Group,
    Groups,
    Name,
    Plain,
    axis_of,
    in_axis_words,
    is_ref,
    parts_of,
    refs_in,
)
from ..crossing.inside import AxisNames, Inside
from ..crossing.outside import Outside
from ..errors import StructureError
from ..filterlib import All
from ..graph.definition import difference, renumbered
from ..graph.walk import is_object
from ..variablelib.kinds import RngState
from .base import MISSING, also_decorator, check_axes, checked, named, positional
from .mapping import differing
from .rematerializing import remat
from .uniform import ALL

__all__ = ["Carry", "fori_loop", "remat_scan", "scan", "while_loop"]


# --- the carry: the same objects in each iteration, with other values -------------------------------------------------


def _copied(carry: Any) -> Any:
    """Return a carry with lists and dicts of its own, which stay the same when a body changes those that it got."""
    return jax.tree.map(lambda leaf: leaf, carry, is_leaf=is_object)


def _carried(where: str, given: Any, encoded: Any, value: Any) -> Any:
    """Return the next carry in the form that JAX expects, with the refs that came in.

    Args:
        where: the name of the loop in errors.
        given: a copy of the carry that the body got.
        encoded: the same carry with refs.
        value: the carry that the body returned.

    Raises:
        StructureError: if it holds an object other than the one that came in.
        CarryTypeError: if it has another structure.
    """
    before = jax.tree.leaves(given, is_leaf=is_object)
    shape: Any = jax.tree.structure(given, is_leaf=is_object)
    refs = jax.tree.leaves(encoded, is_leaf=is_ref)
    pairs, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_object)
    if not any(map(is_object, before)) and not any(is_object(leaf) for _, leaf in pairs):
        return value
    if structure != shape:
        expected, returned = _outline(given), _outline(value)
        what = f"the body got the carry {expected}, and returned {returned}."
        fix = "Return a carry with the structure of the carry that the body got."
        raise CarryTypeError(where, what, fix, expected=expected, given=returned)
    leaves = []
    for (path, leaf), old, ref in zip(pairs, before, refs, strict=True):
        if is_object(leaf) or is_object(old):
            if leaf is not old:
                place = jax.tree_util.keystr(path) or "the value"
                expected, given = _shown(old, "the"), _shown(leaf, "another")
                what = f"the carry must hold the objects that came in; expected {expected}, given {given}."
                fix = "Return the object that the function got, and change its variables: `nnx.update(old, …)`."
                raise StructureError(f"{where}, {place}", what, fix, expected=expected, given=given)
            leaf = ref
        leaves.append(leaf)
    return jax.tree.unflatten(structure, leaves)


def _outline(value: Any) -> str:
    """Return the structure of a pytree, with the class of each object."""
    named = jax.tree.map(lambda leaf: Plain(type(leaf).__name__ if is_object(leaf) else "*"), value, is_leaf=is_object)
    return repr(named)


def _shown(value: Any, which: str) -> str:
    return f"{which if is_object(value) else 'a'} {type(value).__name__}"


def _check_same_structure(where: str, inside: Inside, change: Change, carry: Any) -> None:
    """Check that the structure of objects in the carry did not change.

    Args:
        where: the name of the loop in errors.
        inside: the body's side of the call.
        change: the changes that the body made.
        carry: the carry with refs.

    Raises:
        StructureError: if attributes, references or metadata changed.
    """
    if change.definitions is None:
        return
    kept = set(map(id, refs_in(carry)))
    for (ref, _), now in zip(inside.given, change.definitions, strict=False):
        if id(ref) in kept:
            now = renumbered(now, change.was)  # additions elsewhere shifted the numbers
            if now == ref.definition:
                continue
            found = difference(ref.definition, now) or "an object in it was replaced"
            raise StructureError(
                f"{where}, {ref.base.removesuffix('.')}",
                f"the structure of the carry must not change: {found}.",
                "Create or delete attributes before or after the loop; the body may only change values of variables.",
                given=found,
            )


# --- scan -------------------------------------------------------------------------------------------------------------


class _Name(type):
    """The class of `Carry`, which is a single value."""

    def __repr__(cls) -> str:
        return cls.__name__


class Carry(metaclass=_Name):
    """Marks the carry of `scan` in `in_axes` and `out_axes`: the value that is passed from iteration to iteration.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> add = nnx.scan(lambda total, x: total + x, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        >>> float(add(0.0, jnp.arange(4.0)))
        6.0
    """


@also_decorator
def scan(
    f: Callable[..., Any] = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.lax.scan` for functions of objects.

    An object can be the carry: each iteration gets the values that the previous iteration wrote, and afterwards its
    variables hold the last values. Or it can be scanned: each iteration gets its slice of the variables. To do both
    with one object, use `StateAxes`.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> layers = nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs))(nnx.Rngs(0).split(4))
        >>> @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        ... def forward(layer, x):
        ...     return layer(x)
        >>> forward(layers, jnp.ones(3)).shape
        (3,)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        length: the number of iterations; required only if no argument is sliced.
        reverse: whether to start with the last slice.
        unroll: the number of iterations in one step of the compiled loop; True unrolls all of them.
        _split_transpose: whether to split the backward pass into two loops, of which only one depends on the order of
            iterations; experimental in JAX.
        in_axes: the axis to slice, or None to pass the whole argument to each iteration, or `Carry` for the carry; a
            pytree prefix of the arguments. For an object, give one axis for all its variables, or a `StateAxes`, whose
            `InPlace(axis)` is an axis along which slices are updated in place.
        out_axes: the axis along which results are stacked, or None for a value that is the same in all iterations, or
            `Carry` for the carry, if `in_axes` has it; a pytree prefix of the result.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        A function that returns the last carry and the stacked results, in the places that `out_axes` gives.

    Raises:
        LiftArgumentError: if `f` is a bound method, or axes do not fit the arguments.
        StructureError: when called, if the carry does not hold the objects that came in, or its structure changed.
        CarryTypeError: when called, if the type of a carried value changed.
        LoopInvarianceError: when called, if a variable without an axis gets a value that depends on the iteration.
        AliasError: when called, if one variable is given with two axes.
    """
    options: dict[str, Any] = {
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "_split_transpose": _split_transpose,
    }
    where = checked("scan", f)
    taken, given_back = _places_of_carry(where, in_axes, out_axes)
    groups = Groups(where, "axis", in_axis_words)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    in_prefix, streams = _streams_apart(groups, groups.encode(in_axes))
    out_prefix = groups.encode(_without_carry(out_axes, given_back))
    check_axes(where, groups.specs, Carry)
    axes = groups.axes
    names = AxisNames(axes, transform_metadata or {})
    places = _places(out_axes, given_back)

    def stays(known: str, group: str) -> bool:  # also on the same axis, but in place
        return known == streams.name or axes[known] == axes[group]

    @named(f)
    def body(scope: liftcore.Scope, carry: Any, *xs: Any) -> Any:
        inside = Inside(scope, groups, names)
        args = inside.decode(_with_carry(xs, taken, carry))
        given = None if taken is None else _copied(args[taken])
        following, ys = _parted(where, call_user(where, f, *args), out_axes, given_back)
        encoded = () if taken is None else _carried(where, given, carry, following)
        ys, home, change = inside.encode(ys, out_prefix, stays=stays, name=places)
        _check_same_structure(where, inside, change, carry)
        _check_no_new(where, groups, home)
        return encoded, (ys, home, change)

    slices, stacks = _without_carry(in_axes, taken), _without_carry(out_axes, given_back)
    lifted = _lift(groups, _as_core_axes(groups.plain(slices)), _as_core_axes(groups.plain(stacks)), options)(body)

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = positional("scan", f, args, kwargs)
        outside = Outside(groups, args, in_prefix)
        carry = () if taken is None else outside.args[taken]
        xs = [arg for number, arg in enumerate(outside.args) if number != taken]
        with outside.scope([name for name in groups.specs if name != streams.name]) as scope:
            try:
                carry, (ys, home, change) = lifted(scope, carry, *xs)
            except LoopInvarianceError as error:
                if error.option != "out_axes":
                    raise
                parts = parts_of(groups, args, in_prefix, "", "in_axes")[0]
                raise differing(groups, out_axes, parts, "iterations") from error
            ys = outside.leave(scope, ys, home, change)
        carry = outside.given(carry)
        if out_axes is Carry:
            return carry
        return ys if given_back is None else _with_carry(ys, given_back, carry)

    return wrapped


def _streams_apart(groups: Groups, prefix: Any) -> tuple[Any, Group]:
    """Put the RNG streams that all iterations share into a group of their own; return the prefix and the group.

    All iterations draw the same keys from such a stream, so its count advances as in one iteration; each iteration
    reads the count from before the loop. Any other variable that is read and then written has to be carried.
    """
    streams = groups.add(Group("shared streams", None, "on no axis, as RNG streams are"))

    def apart(prefix: Group | Choose) -> Group | Choose:
        if all(group.spec is not None for group in prefix.groups):
            return prefix
        found: list[Group] = []
        for group in prefix.groups:  # streams: before the group of the variable's own filter, but after earlier groups
            if group.spec is None:
                found.append(dataclasses.replace(streams, filter=All(group.filter, RngState)))
            found.append(group)
        return Choose(tuple(found), prefix.many)

    return jax.tree.map(apart, prefix), streams


def _lift(groups: Groups, in_axes: Any, out_axes: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """Return the core's scan, with the groups by treatment: sliced, shared or carried."""
    return functools.partial(
        liftcore.scan,
        in_axes=in_axes,
        out_axes=(out_axes, _as_core_axes(groups.axes), None),  # of the results, `home`, and `change`
        variable_axes={name: axis for name, axis in groups.specs.items() if type(axis_of(axis)) is int},
        variable_broadcast=[name for name, axis in groups.specs.items() if axis is None] or False,
        variable_carry=[name for name, axis in groups.specs.items() if axis is Carry] or False,
        **options,
    )


def _places_of_carry(where: str, in_axes: Any, out_axes: Any) -> tuple[int | None, int | None]:
    """Return the positions of the carry among the arguments and the results."""
    taken, given_back = _place(where, "in_axes", in_axes), _place(where, "out_axes", out_axes)
    if (taken is None) != (given_back is None):
        what = f"`Carry` must be in both in_axes={in_axes} and out_axes={out_axes}, or in neither."
        fix = "Put `Carry` in both, at the positions of the carry."
        raise LiftArgumentError(where, what, fix, option="out_axes" if given_back is None else "in_axes")
    return taken, given_back


def _place(where: str, what: str, axes: Any) -> int | None:
    """Return the index of the carry in a tuple of axes; 0 if the carry is the only value; None without a carry."""
    if axes is Carry:
        return 0
    if not isinstance(axes, (tuple, list)):
        return None
    places = [number for number, axis in enumerate(axes) if axis is Carry]
    if len(places) > 1:
        fix = "Carry one argument; it may be a tuple."
        raise LiftArgumentError(where, f"{what}={axes} has {len(places)} carries.", fix, option=what, given=str(axes))
    return places[0] if places else None


def _places(out_axes: Any, carry: int | None) -> Name:
    """Return the names of the parts of the result, without the carry, for errors."""
    if carry is None or out_axes is Carry:
        return "result"
    return tuple([f"result[{number}]" for number in range(len(out_axes)) if number != carry])


def _without_carry(axes: Any, place: int | None) -> Any:
    """Return the axes without the carry."""
    if axes is Carry:
        return ()
    return axes if place is None else tuple([axis for number, axis in enumerate(axes) if number != place])


def _with_carry(xs: tuple[Any, ...], place: int | None, carry: Any) -> tuple[Any, ...]:
    return xs if place is None else (*xs[:place], carry, *xs[place:])


def _as_core_axes(axes: Any) -> Any:
    """Convert axes for the core's scan: None becomes `broadcast`."""
    return jax.tree.map(
        lambda axis: liftcore.broadcast if axis is None or axis is Carry else axis,
        axes,
        is_leaf=lambda axis: axis is None,
    )


def _parted(where: str, result: Any, out_axes: Any, place: int | None) -> tuple[Any, Any]:
    """Split a result into the next carry and the values to stack."""
    if out_axes is Carry:
        return result, ()
    if place is None:
        return (), result
    if not isinstance(result, (tuple, list)) or len(result) != len(out_axes):
        given = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, (tuple, list)) else "")
        what = f"out_axes={out_axes} is for {len(out_axes)} results; the body returned {given}."
        fix = "Return a tuple with one value for each of `out_axes`."
        raise LiftArgumentError(where, what, fix, option="out_axes", expected=f"{len(out_axes)} results", given=given)
    return result[place], tuple([one for number, one in enumerate(result) if number != place])


def _check_no_new(where: str, groups: Groups, home: Mapping[str, Any]) -> None:
    """Check that nothing new is carried: the first iteration would have no value to begin with."""
    for group, (new, _) in home.items():
        if new and groups.specs.get(group) is Carry:
            raise StructureError(
                where,
                "a variable was created in the loop, but its filter makes it part of the carry.",
                "Create it before the loop, or give variables of its kind an axis.",
                expected="an axis",
            )


# --- nested loops that keep few activations ---------------------------------------------------------------------------


@also_decorator
def remat_scan(
    f: Callable[..., Any] = MISSING,
    *,
    lengths: Sequence[int],
    in_axes: Any = (0, Carry),
    policy: Callable[..., bool] | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Run nested `scan`s, one for each of `lengths`, with a `remat` around each inner one.

    For the backward pass, a plain scan over `a * b` layers keeps what each layer saves. With `lengths=(a, b)`, it keeps
    `a` carries and, at any one time, what `b` layers save.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> make = nnx.vmap(nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs)))
        >>> layers = make(nnx.Rngs(0).split((4, 5)))
        >>> forward = nnx.remat_scan(lambda layer, x: layer(x), lengths=(4, 5))
        >>> forward(layers, jnp.ones(3)).shape
        (3,)

    Args:
        f: called as `f(layer, x)`; returns the next `x`. Without it the result is a decorator.
        lengths: the number of iterations of each loop, the outermost first. Variables have one leading axis for each
            loop.
        in_axes: for each argument, the axis that each loop slices, None to pass it whole, or `Carry`; as in
            `scan`.
        policy: which intermediate values to save: one of `jax.checkpoint_policies`; by default none.
        transform_metadata: the name of each axis in sharding metadata.

    Returns:
        A function that returns the last `x`.

    Raises:
        LiftArgumentError: if `lengths` is empty.
    """
    where = checked("remat_scan", f)
    if not lengths:
        what = "`lengths` is empty."
        raise LiftArgumentError(where, what, "Give the length of each loop: `lengths=(4, 5)`.", option="lengths")
    options = {"in_axes": in_axes, "out_axes": Carry, "transform_metadata": transform_metadata}
    f = scan(f, length=lengths[-1], **options)
    for length in reversed(lengths[:-1]):  # a loop compiles its body separately, so `prevent_cse` is not needed
        f = scan(remat(f, prevent_cse=False, policy=policy), length=length, **options)
    return f


# --- while_loop and fori_loop -----------------------------------------------------------------------------------------


@boundary
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """`jax.lax.while_loop` for a value that holds objects: the loop carries their variables.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> counter = nnx.Dict(count=nnx.Variable(jnp.array(0)))
        >>> def more(counter):
        ...     counter.count += 1
        ...     return counter
        >>> _ = nnx.while_loop(lambda counter: counter.count.get_value() < 5, more, counter)
        >>> print(counter.count.get_value())
        5

    Args:
        cond_fun: called with the value; returns whether to run another iteration. It may not change objects.
        body_fun: called with the value; returns the next value, which holds the same objects.
        init_val: the initial value: a pytree of arrays and objects.

    Returns:
        The last value, which holds the objects of `init_val`.

    Raises:
        StructureError: if the next value does not hold the objects that came in, or their structure changed.
        CarryTypeError: if the type of a value changed.
    """
    groups = Groups(checked("while_loop", body_fun), "group", groups=[ALL])
    where = checked("while_loop", cond_fun)

    @named(cond_fun)
    def cond(scope: liftcore.Scope, value: Any) -> Any:
        inside = Inside(scope, groups)
        result = call_user(groups.where, cond_fun, inside.decode(value))
        _check_same_structure(where, inside, inside.encode((), ALL)[2], value)
        return result

    lifted = liftcore.while_loop(cond, _step(groups, body_fun), variable_carry=True)
    return _run(lifted, groups, init_val)


@boundary
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """`jax.lax.fori_loop` for a value that holds objects: the loop carries their variables.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> total = nnx.Dict(sum=nnx.Variable(jnp.array(0)))
        >>> def add(i, total):
        ...     total.sum += i
        ...     return total
        >>> print(nnx.fori_loop(0, 5, add, total).sum.get_value())
        10

    Args:
        lower: the first number.
        upper: the number after the last one.
        body_fun: called with the iteration number and the value; returns the next value, which holds the same objects.
        init_val: the initial value: a pytree of arrays and objects.
        unroll: the number of iterations in one step of the compiled loop, if the bounds are known; True unrolls all of
            them.

    Returns:
        The last value, which holds the objects of `init_val`.

    Raises:
        StructureError: if the next value does not hold the objects that came in, or their structure changed.
        CarryTypeError: if the type of a value changed.
    """
    groups = Groups(checked("fori_loop", body_fun), "group", groups=[ALL])
    lifted = liftcore.fori_loop(_step(groups, body_fun), unroll=unroll, variable_carry=True)
    return _run(lifted, groups, init_val, lower, upper)


def _step(groups: Groups, body_fun: Callable[..., Any]) -> Callable[..., Any]:
    @named(body_fun)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside, where = Inside(scope, groups), groups.where
        *numbers, encoded = args
        value = inside.decode(encoded)
        given = _copied(value)
        following = _carried(where, given, encoded, call_user(where, body_fun, *numbers, value))
        _check_same_structure(where, inside, inside.encode((), ALL)[2], encoded)
        return following

    return body


def _run(lifted: Callable[..., Any], groups: Groups, init_val: Any, *bounds: Any) -> Any:
    outside = Outside(groups, init_val, ALL, name="value")
    with outside.scope(True) as scope:
        return outside.finish(scope, lifted(scope, *bounds, outside.args))

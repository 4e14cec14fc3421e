"""`lift`: applies any lifted transformation of liftcore, or your own, to functions of objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, check_function, name_of

from ..crossing.groups import Choose, Groups
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..crossing.places import in_call
from ..errors import StructureError
from ..graph.differences import difference
from ..graph.walk import is_object
from ..variablelib.collection import collection_of
from .decorating import checked, named
from .guarding import check_brings_none

__all__ = ["lift"]


class _ByCollection(Choose):
    """A prefix that puts each variable into the collection of its kind."""

    __slots__ = ()

    def __call__(self, path: tuple[Any, ...], value: Any) -> str:
        return collection_of(value)

    def __eq__(self, other: object) -> bool:
        return type(other) is _ByCollection

    def __hash__(self) -> int:
        return hash(_ByCollection)


_PREFIX = _ByCollection((), many=True)


def lift(transformation: Callable[..., Any], *fns: Any, **options: Any) -> Callable[..., Any]:
    """Apply a lifted transformation of `liftcore`, or one of your own, to functions of objects.

    Inside, each variable is in the collection of its kind: `Param` in "params", `BatchStat` in "batch_stats", a kind of
    your own under its registered name. Options of the transformation name these collections. If a function changes a
    variable, the caller's variable changes. The structure of objects cannot change.

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
    check_function(where, transformation)
    each = list(_each(where, fns))
    for fn in each:
        check_brings_none("lift(…, ", checked("lift", fn), fn)
    groups = Groups(where, "collection")
    bodies = [
        [_body(groups, fn) for fn in one] if isinstance(one, (list, tuple)) else _body(groups, one) for one in fns
    ]
    lifted = transformation(*bodies, **options)

    @functools.wraps(each[0])
    def call(*args: Any, **kwargs: Any) -> Any:
        outside = Outside(groups, (args, kwargs), _PREFIX, name=in_call)
        args, kwargs = outside.args
        with liftcore.bind(outside.values, mutable=True, creates=False).temporary() as scope:
            return outside.finish(scope, lifted(scope, *args, **kwargs))

    return call


def _each(where: str, fns: Sequence[Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions, including those in lists."""
    if not fns:
        raise LiftArgumentError(where, "no function was given.", "Write `lift(transformation, fn)`.")
    for one in fns:
        yield from one if isinstance(one, (list, tuple)) else [one]


def _body(groups: Groups, fn: Callable[..., Any]) -> Callable[..., Any]:
    @named(fn)
    def body(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
        inside = Inside(scope, groups)
        inside.builder.read = functools.partial(_read, scope, inside.values)
        args, kwargs = inside.decode((args, kwargs))
        result = _result(groups.where, inside, fn(*args, **kwargs))
        change = inside.encode((), _PREFIX)[2]
        if change.definitions is not None:
            raise _restructured(groups.where, inside, change.definitions)
        return result

    return body


def _read(scope: liftcore.Scope, values: Any, group: str, key: str) -> Any:
    if group not in values or key not in values[group]:
        scope.has_variable(group, key)  # raises an error that says how to lift the collection
    return values[group][key]


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
            )
        return refs[id(leaf)]

    return jax.tree.map(one, result, is_leaf=is_object)


def _restructured(where: str, inside: Inside, now: Sequence[Any]) -> StructureError:
    found = [difference(ref.definition, after) for (ref, _), after in zip(inside.given, now, strict=True)]
    said = next(filter(None, found), "an object in it was replaced")
    return StructureError(
        where,
        f"under `lift`, the structure of objects must not change: {said}.",
        "Create or delete attributes before or after the call; inside, only change values of variables.",
    )

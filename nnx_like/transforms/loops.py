"""`while_loop` and `fori_loop` over objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import liftcore
from liftcore.errors import boundary, call_user

from ..crossing.groups import Groups
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from .carrying import carried, check_same_structure
from .decorating import checked, named

__all__ = ["fori_loop", "while_loop"]


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
    where = checked("while_loop", body_fun)
    checked("while_loop", cond_fun)
    groups = _groups(where)
    return _run(_while_loop(cond_fun, body_fun), Outside(groups, init_val, groups.name(_CARRIED), name="value"))


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
    groups = _groups(checked("fori_loop", body_fun))
    return _run(
        _fori_loop(body_fun, unroll), Outside(groups, init_val, groups.name(_CARRIED), name="value"), lower, upper
    )


_CARRIED = "carried"


def _groups(where: str) -> Groups:
    groups = Groups(where, "loop")
    groups.name(_CARRIED)
    return groups


def _run(lifted: Callable[..., Any], outside: Outside, *bounds: Any) -> Any:
    with outside.scope(True) as scope:
        return outside.finish(scope, lifted(scope, *bounds, outside.args))


def _while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any]) -> Callable[..., Any]:
    where = checked("while_loop", body_fun)
    groups = _groups(where)

    @named(cond_fun)
    def cond(scope: liftcore.Scope, value: Any) -> Any:
        inside = Inside(scope, groups)
        result = call_user(groups.where, cond_fun, inside.decode(value))
        _, _, change = inside.encode((), groups.name(_CARRIED))
        check_same_structure(checked("while_loop", cond_fun), inside, change, value)
        return result

    return liftcore.while_loop(cond, _step(where, groups, body_fun), variable_carry=True)


def _fori_loop(body_fun: Callable[[Any, Any], Any], unroll: int | bool | None) -> Callable[..., Any]:
    where = checked("fori_loop", body_fun)
    return liftcore.fori_loop(_step(where, _groups(where), body_fun), unroll=unroll, variable_carry=True)


def _step(where: str, groups: Groups, body_fun: Callable[..., Any]) -> Callable[..., Any]:
    @named(body_fun)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside = Inside(scope, groups)
        *numbers, encoded = args
        value = inside.decode(encoded)
        following = carried(where, value, encoded, call_user(where, body_fun, *numbers, value))
        _, _, change = inside.encode((), groups.name(_CARRIED))
        check_same_structure(where, inside, change, encoded)
        return following

    return body

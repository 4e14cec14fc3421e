"""Counts the floating-point operations of a traced function with XLA; loops count with all their iterations.

XLA counts the body of a loop once. So an equation that holds a `scan`, however deep, is cut out of the function and
counted separately: the body, times the length. A `while_loop` has no known length before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

__all__ = ["Count", "counted"]


class Count(NamedTuple):
    """Floating-point operations.

    Attributes:
        operations: the number of operations.
        at_least: whether they include a loop of unknown length, which counts as one iteration.
    """

    operations: int
    at_least: bool


def counted(traced: Any) -> Count:
    """Count the operations of the result of `jax.jit(fn).trace(…)`."""
    return Count(_of(traced.jaxpr), any(map(_has_while, traced.jaxpr.jaxpr.eqns)))


def _of(closed: Any) -> int:
    """Count the operations of one run of a jaxpr."""
    jaxpr = closed.jaxpr
    loops = [equation for equation in _needed(jaxpr) if _has_scan(equation)]
    cut = {id(equation) for equation in loops}
    # Without its loops: their inputs become outputs of the rest, and their outputs become its inputs.
    rest = jaxpr.replace(
        invars=[*jaxpr.invars, *(variable for equation in loops for variable in equation.outvars)],
        outvars=[*jaxpr.outvars, *(variable for equation in loops for variable in _variables(equation.invars))],
        eqns=[equation for equation in jaxpr.eqns if id(equation) not in cut],
    )
    types = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in rest.invars]
    lowered = jax.jit(jex.jaxpr_as_fun(jex.ClosedJaxpr(rest, closed.consts))).lower(*types)
    return int((lowered.cost_analysis() or {}).get("flops", 0)) + sum(map(_of_loop, loops))


def _of_loop(equation: Any) -> int:
    """Count the operations of an equation that is a `scan` or holds one."""
    costs = list(map(_of, _inner(equation)))
    if equation.primitive.name == "scan":
        return int(equation.params["length"]) * sum(costs)
    if equation.primitive.name == "cond":  # like XLA, which counts the most expensive branch
        return max(costs)
    return sum(costs)


def _needed(jaxpr: Any) -> list[Any]:
    """Return the equations that the outputs need: JAX leaves the others out when it lowers them."""
    live = set(_variables(jaxpr.outvars))
    kept = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not live.isdisjoint(equation.outvars):
            kept.append(equation)
            live.update(_variables(equation.invars))
    return kept


def _variables(atoms: Any) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _has_scan(equation: Any) -> bool:
    return equation.primitive.name == "scan" or any(map(_has_scan, _inside(equation)))


def _has_while(equation: Any) -> bool:
    return equation.primitive.name == "while" or any(map(_has_while, _inside(equation)))


def _inside(equation: Any) -> Iterator[Any]:
    """Yield the equations that an equation runs."""
    return (one for closed in _inner(equation) for one in closed.jaxpr.eqns)


def _inner(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation runs."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, jex.ClosedJaxpr):
                yield one
            elif isinstance(one, jex.Jaxpr):
                yield jex.ClosedJaxpr(one, ())

"""Narrowing: an equation that contains a jaxpr is divided, so that each of its results reads only what it needs."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex
from jax.extend.core import primitives

from .._compat import eliminated, has_effect, inner_jaxpr, jaxpr_as_fun, scan_sizes, with_equations, zeros
from .equations import Step, cut, steps_of, variables_of

__all__ = ["narrowed"]


def narrowed(like: jex.Jaxpr, steps: Sequence[Step], outvars: Sequence[Any], ruled: bool = True) -> list[Step]:
    """Return equations in which some outputs read only what they need.

    An equation that contains a jaxpr, such as that of `jax.jit`, reads whatever one of its results needs. If an output
    needs some of the results, these are computed by equations of their own, those with equal reads by the same one.

    Args:
        like: the jaxpr of the equations.
        steps: the equations, in order.
        outvars: the outputs.
        ruled: whether results that a custom rule differentiates need all that the rule may read.
    """
    read = set(variables_of(like.outvars)).union(*[step.reads for step in steps])
    live: set[Any] = set(variables_of(outvars))
    kept: list[Step] = []
    for step in reversed(steps):
        results = [var for var in step.eqn.outvars if var in read]
        wanted = [var for var in results if var in live]
        now = _apart(like, step, wanted, results, ruled) if wanted and _contains_jaxpr(step.eqn) else [step]
        live.update(*[one.reads for one in now if not live.isdisjoint(one.eqn.outvars)])
        kept += now[::-1]
    return kept[::-1]


def _apart(like: jex.Jaxpr, step: Step, wanted: Sequence[Any], results: Sequence[Any], ruled: bool) -> list[Step]:
    """Return an equation as several: the wanted results by what they read, and all others."""
    within, by_rule = _narrowed_within(step, ruled), _ruled(step.eqn) if ruled else set()
    without_rule, everything = _without_rule(within), frozenset(step.reads)
    groups: dict[tuple[bool, frozenset[Any]], list[Any]] = {}
    for var in wanted:
        found = _only(like, within if var in by_rule else without_rule, [var])
        reads = frozenset().union(*[one.reads for one in found])
        groups.setdefault((var in by_rule or reads == everything, reads), []).append(var)
    parts = [(within if keeps else without_rule, group) for (keeps, _), group in groups.items()]
    rest = [var for var in results if var not in wanted]
    return [one for source, group in [*parts, (step, rest)] if group for one in _only(like, source, group)]


def _only(like: jex.Jaxpr, step: Step, outvars: list[Any]) -> list[Step]:
    """Return an equation, and what it contains, without what some of its results do not need."""
    step = _without_idle(step, outvars) if step.eqn.primitive is primitives.while_p else step
    invars = list(dict.fromkeys(step.reads))
    found = steps_of(eliminated(cut(like, invars, [step], outvars))[0])
    return [one for part in found for one in _begun(part._replace(eqn=_giving(part.eqn, outvars)))]


def _begun(step: Step) -> list[Step]:
    """Return a `scan` that begins with zeros where its first iteration replaces a carried value without reading it."""
    eqn = step.eqn
    if eqn.primitive is not primitives.scan_p or not eqn.params["length"]:
        return [step]
    body, (first, carried) = eqn.params["jaxpr"].jaxpr, scan_sizes(eqn)
    read = eliminated(body, inputs=False)[1]
    invars, before = list(eqn.invars), []
    for place in range(first, first + carried):
        kind = body.invars[place].aval
        if not read[place] and not jnp.issubdtype(kind.dtype, jax.dtypes.extended):
            begin = jax.make_jaxpr(lambda kind=kind: zeros(kind))().jaxpr
            before += steps_of(begin)
            invars[place] = begin.outvars[0]
    return [*before, Step(eqn.replace(invars=invars), variables_of(invars))] if before else [step]


def _giving(eqn: Any, outvars: Container[Any]) -> Any:
    """Return an equation that gives some of its results; another equation may give the others."""
    return eqn.replace(outvars=[var if var in outvars else jex.Var(var.aval) for var in eqn.outvars])


def _without_idle(step: Step, outvars: Container[Any]) -> Step:
    """Return a `while` loop that carries only what its condition and some of its results need; JAX has no rule for it.

    A carried value that nothing but the next one needs is left out too.
    """
    eqn, params = step.eqn, step.eqn.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    read = eliminated(condition.jaxpr, inputs=False)[1][first:]
    live = [var in outvars or needed for var, needed in zip(eqn.outvars, read, strict=True)]
    before: list[bool] = []
    while live != before:
        before, read = live, eliminated(body.jaxpr, live, inputs=False)[1][second:]
        live = [one or other for one, other in zip(live, read, strict=True)]
    condition_now, of_condition = eliminated(condition.jaxpr, inputs=[*[False] * first, *live])
    body_now, of_body = eliminated(body.jaxpr, live, inputs=[*[False] * second, *live])
    invars = _pick(eqn.invars, [*of_condition[:first], *of_body[:second], *live])
    now = {
        "cond_nconsts": sum(of_condition[:first]),
        "cond_jaxpr": jex.ClosedJaxpr(condition_now, condition.consts),
        "body_nconsts": sum(of_body[:second]),
        "body_jaxpr": jex.ClosedJaxpr(body_now, body.consts),
    }
    changed = eqn.replace(invars=invars, outvars=_pick(eqn.outvars, live), params={**params, **now})
    return Step(changed, variables_of(invars))


def _narrowed_within(step: Step, ruled: bool) -> Step:
    """Return an equation with the equations that it contains narrowed."""
    params = {name: _narrowed_in(value, ruled) for name, value in step.eqn.params.items()}
    return step._replace(eqn=step.eqn.replace(params=params))


def _narrowed_in(value: Any, ruled: bool) -> Any:
    """Return a parameter of an equation with the equations of its jaxprs narrowed."""
    if isinstance(value, jex.ClosedJaxpr | jex.Jaxpr):
        jaxpr = inner_jaxpr(value)
        return with_equations(value, [one.eqn for one in narrowed(jaxpr, steps_of(jaxpr), jaxpr.outvars, ruled)])
    return tuple([_narrowed_in(one, ruled) for one in value]) if type(value) is tuple else value


def _ruled(eqn: Any) -> set[Any]:
    """Return the results of an equation that a rule differentiates.

    What a lifted function writes has no derivative: a `stop_gradient` precedes it.
    """
    called = eqn.params.get("call_jaxpr")
    if not isinstance(called, jex.ClosedJaxpr):
        return set()
    stopped = {var for one in called.eqns if one.primitive.name == "stop_gradient" for var in one.outvars}
    pairs = zip(eqn.outvars, called.jaxpr.outvars, strict=True)
    return {var for var, inner in pairs if inner not in stopped and jnp.issubdtype(inner.aval.dtype, jnp.inexact)}


def _without_rule(step: Step) -> Step:
    """Return the equation of a function with a rule as that of a `jit`, which JAX can divide."""
    called = step.eqn.params.get("call_jaxpr", step.eqn.params.get("call"))
    if called is None:
        return step
    call = jax.make_jaxpr(jax.jit(jaxpr_as_fun(called)))(*called.in_avals).eqns[0]
    return Step(call.replace(invars=step.eqn.invars, outvars=step.eqn.outvars), step.reads)


def _contains_jaxpr(eqn: Any) -> bool:
    """Whether an equation contains others, without effects: an effect would run in each part."""
    inner = jax.tree.leaves(list(eqn.params.values()))
    return not has_effect(eqn) and any(isinstance(one, jex.Jaxpr | jex.ClosedJaxpr) for one in inner)


def _pick(items: Sequence[Any], picks: Sequence[bool]) -> list[Any]:
    """Return the chosen items."""
    return list(itertools.compress(items, picks))

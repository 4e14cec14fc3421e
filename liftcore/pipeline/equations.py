"""Equations of a jaxpr: functions to select those that some outputs need, and to make a jaxpr of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from .._compat import as_array, is_tag, jaxpr_as_fun

__all__ = ["Step", "batches", "cut", "evaluate", "needed", "opened", "pick", "steps_of", "variables_of"]


class Step(NamedTuple):
    """An equation, and the variables that it reads."""

    eqn: Any
    reads: list[Any]


def steps_of(jaxpr: jex.Jaxpr) -> list[Step]:
    """Return the equations of a jaxpr, in order."""
    return [Step(eqn, variables_of(eqn.invars)) for eqn in jaxpr.eqns]


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Return the atoms that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def pick(items: Sequence[Any], picks: Sequence[bool]) -> list[Any]:
    """Return the chosen items."""
    return list(itertools.compress(items, picks))


def needed(
    steps: Sequence[Step], outvars: Sequence[Any], always: Container[int] = (), known: Container[Any] = ()
) -> list[Step]:
    """Return the equations that some outputs need.

    Args:
        steps: the equations, in order.
        outvars: the outputs.
        always: equations, by their `id`, to keep in any case, together with those that they need.
        known: variables with known values; the equations that compute them are not needed.
    """
    live = {var for var in variables_of(outvars) if var not in known}
    kept = []
    for step in reversed(steps):
        if not live.isdisjoint(step.eqn.outvars) or id(step) in always:
            kept.append(step)
            live.update([var for var in step.reads if var not in known])
    return kept[::-1]


def cut(like: jex.Jaxpr, invars: list[Any], steps: Sequence[Step], outvars: Sequence[Any]) -> jex.Jaxpr:
    """Return some equations as a jaxpr, without their tags: these are no longer needed, and remat policies see them."""
    steps, outvars = _stripped(steps, outvars)
    eqns = [step.eqn for step in steps]
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    part: jex.Jaxpr = like.replace(invars=invars, outvars=list(outvars), eqns=eqns, effects=effects)  # type: ignore[no-untyped-call]
    return part


def opened(closed: jex.ClosedJaxpr) -> jex.Jaxpr:
    """Return the jaxpr with its constants as its first inputs, so that keeping it keeps no arrays alive."""
    jaxpr = closed.jaxpr
    bare: jex.Jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return bare


def evaluate(jaxpr: jex.Jaxpr, *inputs: Any) -> list[Any]:
    """Return the outputs of a jaxpr without constants, as arrays."""
    return [as_array(value) for value in jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, []))(*inputs)]


def batches(jaxpr: jex.Jaxpr) -> bool:
    """Whether `jax.vmap` of these equations gives the same values as running them for one element after another.

    It does not keep the order of effects. Of all key types, only threefry keys give each element its own draw.
    """
    kinds = {var.aval.dtype for eqn in jaxpr.eqns for var in (*variables_of(eqn.invars), *eqn.outvars)}
    keys = {kind for kind in kinds if jnp.issubdtype(kind, jax.dtypes.prng_key)}
    return not jaxpr.effects and keys <= {_threefry()}


@functools.cache
def _threefry() -> Any:
    """Return the dtype of JAX's default keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def _stripped(steps: Sequence[Step], outvars: Sequence[Any]) -> tuple[Sequence[Step], Sequence[Any]]:
    renamed: dict[Any, Any] = {}

    def now(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else renamed.get(atom, atom)

    kept = []
    for step in steps:
        if is_tag(step.eqn):
            renamed[step.eqn.outvars[0]] = now(step.eqn.invars[0])
        elif renamed and not renamed.keys().isdisjoint(step.reads):
            invars = [now(atom) for atom in step.eqn.invars]
            kept.append(Step(step.eqn.replace(invars=invars), variables_of(invars)))
        else:
            kept.append(step)
    return (kept, [now(atom) for atom in outvars]) if renamed else (steps, outvars)

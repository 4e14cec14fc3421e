"""Equations of a jaxpr: functions to select those that some outputs need, and to make a jaxpr of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from .._compat import jaxpr_as_fun
from ..values import INITIAL_VALUE, as_array

__all__ = [
    "Step",
    "cut",
    "evaluate",
    "flat_jaxpr_of",
    "needed",
    "opened",
    "steps_of",
    "variables_of",
]


class Step(NamedTuple):
    """An equation, the variables that it reads, and the tag that it gives a value, if it is of `values.tag`."""

    eqn: Any
    reads: list[Any]
    tag: str = ""


def steps_of(jaxpr: jex.Jaxpr) -> list[Step]:
    """Return the equations of a jaxpr, in order."""
    return [
        Step(
            eqn,
            [atom for atom in eqn.invars if not isinstance(atom, jex.Literal)],
            str(eqn.params["name"]) if eqn.primitive.name == "name" else "",
        )
        for eqn in jaxpr.eqns
    ]


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Return the atoms that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


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
    live = {var for var in outvars if not isinstance(var, jex.Literal) and var not in known}
    kept = []
    for step in reversed(steps):
        if not live.isdisjoint(step.eqn.outvars) or id(step) in always:
            kept.append(step)
            live.update([var for var in step.reads if var not in known])
    return kept[::-1]


def cut(
    like: jex.Jaxpr, invars: list[Any], steps: Sequence[Step], outvars: Sequence[Any], tagged: Container[Any] = ()
) -> jex.Jaxpr:
    """Return some equations as a jaxpr, without the tags of initial values, which remat policies would see.

    Args:
        like: the jaxpr of the equations.
        invars: the inputs.
        steps: the equations, in order.
        outvars: the outputs.
        tagged: the initial values that keep their tag.
    """
    eqns: list[Any] = []
    untagged: dict[Any, Any] = {}  # from each tagged value to the same value before it

    def now(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else untagged.get(atom, atom)

    for step in steps:
        if step.tag == INITIAL_VALUE and step.eqn.outvars[0] not in tagged:
            untagged[step.eqn.outvars[0]] = now(step.eqn.invars[0])
        elif untagged and not untagged.keys().isdisjoint(step.reads):
            eqns.append(step.eqn.replace(invars=[now(atom) for atom in step.eqn.invars]))
        else:
            eqns.append(step.eqn)
    outvars = [now(atom) for atom in outvars] if untagged else list(outvars)
    effects = frozenset().union(*[eqn.effects for eqn in eqns])
    part: jex.Jaxpr = like.replace(invars=invars, outvars=outvars, eqns=eqns, effects=effects)  # type: ignore[no-untyped-call]
    return part


def flat_jaxpr_of(fn: Callable[..., Any], *operands: Any, axes: Sequence[tuple[Any, int]] = ()) -> tuple[Any, Any]:
    """Trace a function; JAX sees the leaves of its result, and not its structure.

    JAX keeps structures in its caches, with their static parts. Those of a pullback are as large as a trace, and other
    ones in each call.

    Args:
        fn: a function of pytrees of arrays.
        *operands: its arguments, or their types.
        axes: the names and sizes of the mapped axes that it may use.

    Returns:
        The closed jaxpr, and the structure of the result.
    """
    found: list[Any] = []

    @functools.wraps(fn)
    def flat(*args: Any) -> list[Any]:
        leaves, treedef = jax.tree.flatten(fn(*args))
        found[:] = [treedef]
        return leaves

    closed = jax.make_jaxpr(flat, axis_env=list(axes))(*operands)
    return closed, found[0]


def opened(closed: jex.ClosedJaxpr) -> jex.Jaxpr:
    """Return the jaxpr with its constants as its first inputs, so that keeping it keeps no arrays alive."""
    jaxpr = closed.jaxpr
    bare: jex.Jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return bare


def evaluate(jaxpr: jex.Jaxpr, *inputs: Any) -> list[Any]:
    """Return the outputs of a jaxpr without constants, as arrays."""
    return [as_array(value) for value in jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, []))(*inputs)]

"""Loops and branches that run outside `jit`: equal ones are compiled once.

Outside `jit`, JAX compiles each loop and each branch by itself, and keeps what it compiled for the jaxpr of its body.
But a function that is made anew in each call has a new jaxpr in each call. So a loop is traced here, and of several
traces with equal equations only the first is run. Since each call is traced, a change in a closure or a global is seen.
The kept traces hold no arrays of JAX: those that the functions close over are inputs. Constants of NumPy in a `jit` are
compared by their content, and copied.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex
from jax.extend.core import primitives

from .._compat import (
    NUMPY_ARRAYS,
    context_of,
    has_effect,
    inner_jaxpr,
    is_eager,
    is_staging,
    keeps_rules,
    with_equations,
)
from ..caches import bounded
from ..statics import Undescribed, is_shareable, marked, static_key
from ..values import as_array
from .equations import evaluate, flat_jaxpr_of, opened

__all__ = ["LOOPS", "once", "run_loops"]

_KEPT = 256
"""The number of traces that are kept."""

_CALLABLE_DATA = (type, jax.sharding.Mesh, jax.sharding.AbstractMesh)
"""Types of values that can be called, but do not run with the equations; a mesh is a decorator."""

LOOPS = (primitives.scan_p, primitives.while_p, primitives.cond_p)
"""Primitives that JAX compiles when they run outside `jit`, each by itself."""

_OF_DERIVATIVES = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
"""The primitives of functions with rules for derivatives, each with the parameter that has the function."""

_OF_BATCHES = {"custom_vmap_call": "call"}
"""The same for rules of `vmap`."""


def once(run: Callable[..., Any], *operands: Any) -> Any:
    """Return `run(*operands)`; outside `jit`, equal computations are compiled once.

    Args:
        run: calls a JAX function that traces its bodies, such as `jax.lax.scan`; it is traced as a whole.
        *operands: pytrees of arrays and numbers. `run` may close over further arrays.
    """
    if jax.config.jax_disable_jit or is_staging():  # type: ignore[attr-defined]
        return run(*operands)
    leaves, treedef = jax.tree.flatten(operands)

    def run_flat(*leaves: Any) -> Any:
        return run(*jax.tree.unflatten(treedef, leaves))

    # JAX gets leaves alone: it would compare the static parts of a pytree, which may be arrays, with earlier ones.
    closed, structure = flat_jaxpr_of(run_flat, *leaves)
    inputs = list(map(as_array, [*closed.consts, *leaves]))
    outputs = evaluate(_kept(opened(closed), inputs), *inputs)
    return jax.tree.unflatten(structure, outputs)


def run_loops(jaxpr: jex.Jaxpr, *inputs: Any) -> list[Any]:
    """Return the outputs of a jaxpr that has no constants, but loops; outside `jit`, equal ones are compiled once."""
    if not (jax.config.jax_disable_jit or is_staging()):  # type: ignore[attr-defined]
        jaxpr = _kept(jaxpr, inputs)
    return evaluate(jaxpr, *inputs)


def _kept(jaxpr: jex.Jaxpr, inputs: Sequence[Any]) -> jex.Jaxpr:
    """Return the first jaxpr with equal equations; the given one if it has effects, or values that have no key.

    Custom rules that cannot be used are left out: they would be kept, and no two of them are equal.

    Args:
        jaxpr: a jaxpr without constants.
        inputs: the values for which it will be evaluated.
    """
    if has_effect(jaxpr):
        return jaxpr
    try:
        unused = {} if keeps_rules(*inputs) else _OF_DERIVATIVES | _OF_BATCHES if is_eager() else _OF_DERIVATIVES
        equations = Equations(_within(jaxpr, functools.partial(_without_rule, unused)) if unused else jaxpr)
    except Undescribed:
        return jaxpr
    return _first(equations).jaxpr


class Equations:
    """A jaxpr that is compared by its equations.

    Args:
        jaxpr: the jaxpr.

    Raises:
        Undescribed: if a parameter of an equation has no key, or could keep arrays alive.
    """

    def __init__(self, jaxpr: jex.Jaxpr) -> None:
        self.jaxpr, self._key = jaxpr, _key_of(jaxpr)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equations) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


@bounded(_KEPT)
def _first(equations: Equations) -> Equations:
    equations.jaxpr = _within(equations.jaxpr, _with_copies)
    return equations


def _key_of(value: Any) -> Any:
    """Return the key of a jaxpr, or of a parameter of an equation, which may contain jaxprs."""
    if isinstance(value, jex.ClosedJaxpr | jex.Jaxpr):
        return *_parts(inner_jaxpr(value)), *map(_key_of_constant, getattr(value, "consts", ()))
    if isinstance(value, tuple | list):
        return type(value), *map(_key_of, value)
    if (callable(value) and not isinstance(value, _CALLABLE_DATA)) or hasattr(value, "call_wrapped"):
        return _key_of_function(value)  # the last one is JAX's type of functions
    return static_key(marked(value))  # such as JAX's marker for an unspecified sharding


def _key_of_constant(const: Any) -> Any:
    if not isinstance(const, NUMPY_ARRAYS):
        raise Undescribed(const)
    return jax.typeof(const), static_key(np.asarray(const))


def _key_of_function(fn: Any) -> Any:
    """Return the key of a function that runs with the equations, such as a callback; nothing in it may change."""
    if dataclasses.is_dataclass(fn):
        return type(fn), *[_key_of(getattr(fn, field.name)) for field in dataclasses.fields(fn)]
    if isinstance(fn, types.FunctionType) and is_shareable(fn):
        return fn
    raise Undescribed(fn)


def _parts(jaxpr: jex.Jaxpr) -> Iterator[Any]:
    """Yield the parts of the key of a jaxpr. Variables are numbered in the order in which they are bound."""
    numbers: dict[Any, int] = {}

    def bound(var: Any) -> Any:
        numbers[var] = len(numbers)
        return var.aval

    def used(atom: Any) -> Any:
        return (atom.aval, static_key(atom.val)) if isinstance(atom, jex.Literal) else numbers[atom]

    yield tuple([bound(var) for var in itertools.chain(jaxpr.constvars, jaxpr.invars)])
    for eqn in jaxpr.eqns:
        yield eqn.primitive
        yield tuple([used(atom) for atom in eqn.invars])
        yield tuple([(name, _key_of(value)) for name, value in eqn.params.items()])
        yield tuple([bound(var) for var in eqn.outvars])
        yield context_of(eqn)
    yield tuple([used(atom) for atom in jaxpr.outvars])


def _within(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a jaxpr, or a parameter of an equation, with each closed jaxpr and each equation in it changed."""
    if isinstance(value, jex.ClosedJaxpr | jex.Jaxpr):
        changed = with_equations(value, [_with_parameters(eqn, change) for eqn in value.eqns])
        return change(changed) if isinstance(value, jex.ClosedJaxpr) else changed
    return tuple([_within(one, change) for one in value]) if type(value) is tuple else value


def _with_parameters(eqn: Any, change: Callable[[Any], Any]) -> Any:
    return change(eqn.replace(params={name: _within(value, change) for name, value in eqn.params.items()}))


def _with_copies(part: Any) -> Any:
    """Return a closed jaxpr with copies of its constants, which may change."""
    if isinstance(part, jex.ClosedJaxpr) and part.consts:
        return part.replace(consts=[np.array(const) for const in part.consts])  # type: ignore[no-untyped-call]
    return part


def _without_rule(unused: Mapping[str, str], part: Any) -> Any:
    """Return the equation of a function with a rule that is not used as a plain call."""
    called = None if isinstance(part, jex.ClosedJaxpr) else unused.get(part.primitive.name)
    if called is None:
        return part
    return part.replace(primitive=primitives.closed_call_p, params={"call_jaxpr": part.params[called]})

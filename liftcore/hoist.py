"""Hoisting: one trace of a body, cut into what makes its initial values and what is left.

`trace` runs a function once, to a jaxpr. The initial values that it created are outputs of that jaxpr. `Traced.create`
evaluates the equations that they need, outside of the loop or call that the body belongs to, and `Traced.rest` is the
body without them: it takes the values as inputs. Equations with effects that an initial value needs run in `create`
and nowhere else. `Traced.reads` tells which operands each initial value depends on.
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from ._compat import as_array, is_tag, jaxpr_as_fun
from .typing import PyTree

__all__ = ["Part", "Traced", "evaluate", "opened", "trace"]


class Traced:
    """One run of `fn(*operands) -> (created, rest)`, as a jaxpr.

    Args:
        closed: the jaxpr.
        sizes: how many leaves each operand has.
        outputs: a pytree of the structure of what `fn` returned.

    Attributes:
        created: the types of the initial values, in their pytree.
        outputs: those of the rest.
    """

    def __init__(self, closed: jex.ClosedJaxpr, sizes: Sequence[int], outputs: tuple[PyTree, PyTree]) -> None:
        self._jaxpr, self._consts, self._sizes = opened(closed), list(closed.consts), sizes
        avals = [atom.aval for atom in closed.jaxpr.outvars]
        self.created, self.outputs = jax.tree.unflatten(jax.tree.structure(outputs), avals)
        self._treedef: Any = jax.tree.structure(self.created)
        self._made = len(jax.tree.leaves(self.created))
        self._steps = [Step(eqn, _variables(eqn.invars)) for eqn in self._jaxpr.eqns]
        self._sources = self._read_by(self._jaxpr.outvars[: self._made])

    @property
    def consts(self) -> list[Any]:
        """The arrays that the function closed over."""
        return list(self._consts)

    def closed_over(self, consts: Sequence[Any]) -> Traced:
        """The same function, as if it had closed over other arrays of the same types."""
        other = copy.copy(self)
        other._consts = list(consts)
        return other

    @property
    def depends(self) -> list[frozenset[int]]:
        """For each initial value the (indices of the) operands that it depends on."""
        ends = list(itertools.accumulate(self._sizes))
        return [
            frozenset([bisect.bisect_right(ends, place) for place in places if place >= 0]) for places in self._sources
        ]

    def reads(self) -> PyTree:
        """The same, as a pytree like `created`."""
        return jax.tree.unflatten(self._treedef, self.depends)

    def alike(self, picks: Sequence[bool]) -> Iterator[list[bool]]:
        """The chosen initial values in parts, each of those that depend on the same leaves of the operands."""
        for source in dict.fromkeys(_pick(self._sources, picks)):
            yield [pick and places == source for pick, places in zip(picks, self._sources, strict=True)]

    @property
    def parts(self) -> list[int]:
        """For each initial value the index of the part of `created`, a sequence, that it lies in."""
        return [index for index, part in enumerate(self.created) for _ in jax.tree.leaves(part)]

    def create(self, picks: Sequence[bool] | None, *operands: PyTree) -> PyTree:
        """The initial values.

        Args:
            picks: for each of them, in the order of the leaves of `created`, whether it is chosen; the others are None.
                None stands for all.
            *operands: what the function is called on; None for one that no chosen value depends on.
        """
        picks = self._all(picks)
        if not any(picks):
            return self.tree(picks, ())
        make = self.maker(picks)
        return self.tree(picks, make(*make.of(self._leaves(operands))))

    def tree(self, picks: Sequence[bool] | None, values: Iterable[Any]) -> PyTree:
        """A pytree like `created` with the chosen initial values, and None for the others."""
        now = iter(values)
        return jax.tree.unflatten(self._treedef, [next(now) if pick else None for pick in self._all(picks)])

    def maker(self, picks: Sequence[bool]) -> Part:
        """What makes the chosen initial values, in their order."""
        outvars = _pick(self._jaxpr.outvars, picks)
        return self._cut([], _needed(self._steps, outvars), outvars)

    def remainder(self, picks: Sequence[bool]) -> Part:
        """The body with the chosen initial values given to it, instead of made by it; it makes the others first."""
        kept = [not pick for pick in picks]
        chosen = _pick(self._jaxpr.outvars, picks)
        outvars = _pick(self._jaxpr.outvars[: self._made], kept) + self._jaxpr.outvars[self._made :]
        made = set(chosen)
        steps = [step for step in self._steps if made.isdisjoint(step.eqn.outvars)]
        effects = {id(step) for step in steps if step.eqn.effects}
        if effects:
            effects -= {id(step) for step in _needed(self._steps, chosen)}
        return self._cut(chosen, _needed(steps, outvars, effects), outvars)

    def rest(self, picks: Sequence[bool] | None, created: PyTree, *operands: PyTree) -> tuple[PyTree, PyTree]:
        """Runs the body with the chosen initial values given to it, instead of made by it.

        Returns:
            The pytree of the initial values that were not chosen (None for those that were), and the rest.
        """
        picks = self._all(picks)
        run = self.remainder(picks)
        given = _pick(self._treedef.flatten_up_to(created), picks)
        return self.as_trees(picks, run(*given, *run.of(self._leaves(operands))))

    def as_trees(self, picks: Sequence[bool], values: Iterable[Any]) -> tuple[PyTree, PyTree]:
        """What the remainder returns, as the pytrees that `rest` returns."""
        now = iter(values)
        left = self.tree([not pick for pick in picks], now)
        return left, jax.tree.unflatten(jax.tree.structure(self.outputs), list(now))

    def _all(self, picks: Sequence[bool] | None) -> Sequence[bool]:
        return [True] * self._made if picks is None else picks

    def _leaves(self, operands: Sequence[PyTree]) -> list[Any]:
        """All leaves of the operands; Nones for an operand that is None."""
        leaves: list[Any] = []
        for operand, size in zip(operands, self._sizes, strict=True):
            leaves += [None] * size if operand is None else jax.tree.leaves(operand)
        return leaves

    def _cut(self, given: list[Any], steps: Sequence[Step], outvars: Sequence[Any]) -> Part:
        """Some equations, as a function of given values and of the leaves that they read."""
        steps, outvars = _stripped(steps, outvars)
        used = set(_variables(outvars)).union(*[step.reads for step in steps])
        first = len(self._consts)
        constvars, invars = self._jaxpr.invars[:first], self._jaxpr.invars[first:]
        places = [place for place, var in enumerate(invars) if var in used]
        inputs = [*constvars, *given, *[invars[place] for place in places]]
        return Part(_jaxpr(self._jaxpr, inputs, outvars, [step.eqn for step in steps]), places, self._consts)

    def _read_by(self, outvars: Sequence[Any]) -> list[frozenset[int]]:
        """For each output the places of the leaves that it depends on; those of constants are negative."""
        invars, first = self._jaxpr.invars, len(self._consts)
        masks = {var: 1 << place for place, var in enumerate(invars)}
        for step in self._steps:
            mask = functools.reduce(operator.or_, [masks.get(var, 0) for var in step.reads], 0)
            if mask:
                masks |= dict.fromkeys(step.eqn.outvars, mask)
        found = [0 if isinstance(var, jex.Literal) else masks.get(var, 0) for var in outvars]
        return [frozenset([place - first for place in range(len(invars)) if mask >> place & 1]) for mask in found]


class Step(NamedTuple):
    """An equation, and the variables that it reads."""

    eqn: Any
    reads: list[Any]


class Part:
    """Some equations of a body, as a function of given values and of those leaves of the operands that they read.

    Args:
        jaxpr: the equations; its inputs are the constants, what is given, and these leaves.
        places: see below.
        consts: the constants.

    Attributes:
        places: which leaves of the operands it is called with, as places among all.
    """

    def __init__(self, jaxpr: jex.Jaxpr, places: list[int], consts: Sequence[Any]) -> None:
        self._jaxpr, self.places, self._consts = jaxpr, places, consts

    def of(self, leaves: Sequence[Any]) -> list[Any]:
        """Of all leaves of the operands, those that it is called with."""
        return [leaves[place] for place in self.places]

    def __call__(self, *inputs: Any) -> list[Any]:
        """Its outputs."""
        return evaluate(self._jaxpr, *self._consts, *inputs)

    @property
    def batches(self) -> bool:
        """Whether `jax.vmap` makes of them what is made one by one.

        It does not keep the order of effects, and of all keys only those of threefry give each lane its own draw.
        """
        kinds = {var.aval.dtype for eqn in self._jaxpr.eqns for var in (*_variables(eqn.invars), *eqn.outvars)}
        keys = {kind for kind in kinds if jnp.issubdtype(kind, jax.dtypes.prng_key)}
        return not self._jaxpr.effects and keys <= {_threefry()}


def trace(fn: Callable[..., tuple[PyTree, PyTree]], *operands: PyTree, axes: Sequence[tuple[Any, int]] = ()) -> Traced:
    """Runs `fn(*operands) -> (created, rest)` once, without computing anything.

    Args:
        fn: a pure function.
        *operands: pytrees of arrays, or of what stands for their types.
        axes: the names and sizes of the mapped axes that it may ask for.
    """
    closed, shapes = jax.make_jaxpr(fn, axis_env=list(axes), return_shape=True)(*operands)
    return Traced(closed, [len(jax.tree.leaves(operand)) for operand in operands], shapes)


def opened(closed: jex.ClosedJaxpr) -> jex.Jaxpr:
    """The jaxpr with its constants as its first inputs, so that who keeps it keeps no arrays."""
    jaxpr = closed.jaxpr
    bare: jex.Jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return bare


def evaluate(jaxpr: jex.Jaxpr, *inputs: Any) -> list[Any]:
    """The outputs of a jaxpr without constants, as arrays."""
    return [as_array(value) for value in jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, []))(*inputs)]


@functools.cache
def _threefry() -> Any:
    """The dtype of JAX's default keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _pick(items: Sequence[Any], picks: Sequence[bool]) -> list[Any]:
    return list(itertools.compress(items, picks))


def _needed(steps: Sequence[Step], outvars: Sequence[Any], always: Container[int] = ()) -> list[Step]:
    """What some outputs need, and what runs always (by its id) with what that needs."""
    live = set(_variables(outvars))
    kept = []
    for step in reversed(steps):
        if not live.isdisjoint(step.eqn.outvars) or id(step) in always:
            kept.append(step)
            live.update(step.reads)
    return kept[::-1]


def _stripped(steps: Sequence[Step], outvars: Sequence[Any]) -> tuple[Sequence[Step], Sequence[Any]]:
    """Equations and outputs without tags, which have done their work and which some remat policies would see."""
    renamed: dict[Any, Any] = {}

    def now(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else renamed.get(atom, atom)

    kept = []
    for step in steps:
        if is_tag(step.eqn):
            renamed[step.eqn.outvars[0]] = now(step.eqn.invars[0])
        elif renamed and not renamed.keys().isdisjoint(step.reads):
            invars = [now(atom) for atom in step.eqn.invars]
            kept.append(Step(step.eqn.replace(invars=invars), _variables(invars)))
        else:
            kept.append(step)
    return (kept, [now(atom) for atom in outvars]) if renamed else (steps, outvars)


def _jaxpr(like: jex.Jaxpr, invars: list[Any], outvars: Sequence[Any], eqns: list[Any]) -> jex.Jaxpr:
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    cut: jex.Jaxpr = like.replace(invars=invars, outvars=list(outvars), eqns=eqns, effects=effects)  # type: ignore[no-untyped-call]
    return cut

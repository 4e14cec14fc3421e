"""A loop that ends on a condition: the `Loop` of a body, run by `jax.lax.while_loop`.

Variables are *shared* by all iterations or *carried* from one to the next. Both the condition and the body may create
them, the condition first. Initial values are split off and computed before the loop: shared ones must not depend on the
loop, and carried ones are computed as in iteration 0.

The number of the iteration takes the place of the slices of a scan: no value that all iterations share may depend on
it, and carried values begin as in the first iteration.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import LiftArgumentError, LoopInvarianceError, words
from ..filters.trees import merged, names_of, select
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, Transform, transformation
from ..pipeline.reuse import once
from ..pipeline.splitting import Split, trace
from ..pipeline.stages import without_created
from ..scopes.lifts import Advice, Captured
from ..typing import Filter, PyTree
from .carry import LoopAdvice
from .looping import Iteration, Loop

__all__ = ["LOOP_ADVICE", "Repeat", "lift_of_loop", "loop_keys"]

_GROUPS = ("carry, from one iteration to the next", "broadcast, one value for all iterations")
_ADVICE = Advice(
    '`{variable_carry}="{0}"` or `{variable_broadcast}="{0}"`',
    '`split_rngs={{"{}": True}}`, or False for the same keys in all iterations, as a shared variable needs',
    _GROUPS,
    _GROUPS,
)
LOOP_ADVICE = LoopAdvice(
    "Carry it, {variable_carry}", "Carry it: {variable_carry}", "a key that is split", "while_loop"
)
"""The advice for loops whose variables are carried or shared."""


class Repeat(NamedTuple):
    """A loop with a condition. The output groups of its body are the carried, the shared and the captured variables.

    Attributes:
        body: the body.
        condition: `(body, (carried, shared), number, value) -> (predicate, output groups)`.
        iteration: `(body, (carried, shared), number, value) -> (next value, output groups)`.
    """

    body: Body
    condition: Callable[..., Any]
    iteration: Callable[..., Any]

    def run(self, variables: Sequence[PyTree], value: PyTree, counts: bool) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Run the loop.

        Args:
            variables: the groups of carried and of shared variables.
            value: the value that the loop begins with.
            counts: whether the functions need the number of the iteration; if not, it is an empty tuple.

        Returns:
            The last value, and the output groups.
        """
        carried, shared = variables
        conditions: list[Split] = []  # the last one has the types of the loop

        def iteration(body: Body, _: PyTree, state: tuple[PyTree, PyTree], number: Any) -> Any:
            if not body.writes:
                value, groups = self.iteration(body, variables, number, state[1])
                return value, (), groups
            before = len(body.records)
            conditions[:] = [trace(functools.partial(self._ask, body, shared), state, number, body=self.body)]
            early = conditions[0].prologue(state, number)[:2]
            # The condition has declared these variables, so their draws do not count again.
            body = body.redrawing(declared=[place for record in body.records[before:] for place in record.redrawn])
            known = list(map(merged, (state[0], shared), early))
            value, (*changes, captured) = self._next(body, known, number, state[1])
            made = [one._replace(created=merged(first, one.created)) for first, one in zip(early, changes, strict=True)]
            return value, (), (made[1], made[0], captured)

        def scan(step: Iteration, begin: Any, xs: PyTree) -> tuple[Any, Any]:
            found: list[Any] = []

            def proceed(now: tuple[Any, Any]) -> Any:
                made, state = step.see(now[1])
                if made is None:
                    return self.condition(self.body, variables, now[0], state.carry)[0]
                (condition,) = conditions
                created = [*map(select, (made.carried, made.shared), condition.created), []]
                return condition.remainder(created, state, now[0])[0]

            def follow(now: tuple[Any, Any]) -> tuple[Any, Any]:
                number, state = now
                state, ys = step(state, jax.tree.map(lambda _: number, xs))
                found.append(ys)
                return jax.tree.map(lambda one: one + 1, number), state

            first = (jax.numpy.int32(0) if counts else ()), begin
            _, last = once(functools.partial(jax.lax.while_loop, proceed, follow), first)
            if not found:  # under `jax.disable_jit`, a body that never runs is not traced, but its draws count
                jax.eval_shape(follow, first)
            return last, found[0]  # nothing is stacked, so this has no leaves

        numbers = np.zeros(1, np.int32) if counts else ()
        loop = Loop(1, scan, advice=LOOP_ADVICE)
        value, _, groups = loop.run(self.body, iteration, shared, (carried, value), numbers, 0)
        return value, (groups[1], groups[0], groups[2])

    def _ask(self, body: Body, shared: PyTree, state: tuple[PyTree, PyTree], number: Any) -> Any:
        """Run the condition; return its initial values, and the predicate with the other output groups."""
        created, (pred, values) = without_created(*self.condition(body, (state[0], shared), number, state[1]))
        for group in values[:2]:
            if names := names_of(group):
                raise self._shared(names, "the condition writes it", "Write it in the body.")
        return created, (pred, values)

    def _next(self, body: Body, variables: Sequence[PyTree], number: Any, value: PyTree) -> tuple[PyTree, Any]:
        """Run one iteration; return the next value and the output groups."""
        value, groups = self.iteration(body, variables, number, value)
        for one in itertools.chain.from_iterable(sown for record in self.body.records for sown in record.sown):
            name = "/".join((one.collection, *one.path, one.name))
            raise LiftArgumentError(
                f"{words().variable(name)} in {self.body.where}",
                "it was sown in a loop whose number of iterations is unknown, so that values cannot be stacked.",
                "Use `scan`, carry the values as variables of fixed shape, or do not request the collection.",
                variable=name,
                collection=one.collection,
            )
        if names := names_of(groups[1].values):
            what = f"it is shared by all iterations{LOOP_ADVICE.shared}, but written"
            raise self._shared(names, what, f"{LOOP_ADVICE.of(LOOP_ADVICE.carry, names)}.")
        return value, groups

    def _shared(self, names: list[str], what: str, fix: str) -> LoopInvarianceError:
        where = f"{words().variables(names)} in {self.body.where}"
        return LoopInvarianceError(where, f"{what}.", fix, variable=names[0])


def lift_of_loop(
    transform: Transform, name: str, variables: Sequence[Filter], rngs: Sequence[Filter], axes: Sequence[Any], sown: str
) -> Lifter:
    """Make a lift with two groups of variables: those that are carried, and those that all iterations share.

    Args:
        transform: see `transformation`.
        name: the name of the lift.
        variables: the filters of the two groups.
        rngs: the filters of the RNG streams that are lifted.
        axes: for each of these, None if all iterations have the same keys; see `split_rules`.
        sown: what the loop does with sown values, in words.
    """
    same, folded = "the same keys in all iterations", "folded with the iteration number"
    advice = _ADVICE._replace(rngs=tuple(same if axis is None else folded for axis in axes), captured=sown)
    return transformation(transform, variables, [*variables, Captured(all=True)], rngs, name, advice=advice)


def loop_keys(rng_groups: Any, axes: list[Any], index: Any, offset: int) -> list[Any]:
    """Return the root keys of one iteration, with offset 0 for the body and 1 for the condition."""

    def folded(group: Any, axis: Any) -> Any:
        if not jax.tree.leaves(group) or (axis is None and not offset):
            return group
        number = offset if axis is None else 2 * index + offset
        return jax.tree.map(lambda key: jax.random.fold_in(key, number), group)

    return [folded(group, axis) for group, axis in zip(rng_groups, axes, strict=True)]

"""A loop that ends on a condition. Its bodies are traced once and may create variables.

Variables are *shared* by all iterations or *carried* from one to the next. Both the condition and the body may create
them, the condition first. Initial values are split off and computed before the loop: shared ones must not depend on the
loop, and carried ones are computed as in iteration 0.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import LiftArgumentError, LoopInvarianceError
from ..filters.trees import leaves_of, merged, names_of, overlay
from ..pipeline.body import Body
from ..pipeline.changes import Changes, without_created
from ..pipeline.reuse import once
from ..pipeline.splitting import Prologue, Split, trace
from ..scopes.lifts import Advice
from ..texts import path_text
from ..typing import Path, PyTree
from .carry import LoopState, check_carry, fix_for

__all__ = ["Repeat", "Variables", "loop_advice", "loop_keys", "splits"]

_GROUPS = ("carry, from one iteration to the next", "broadcast, one value for all iterations")
_ADVICE = Advice(
    '`variable_carry="{0}"` or `variable_broadcast="{0}"`',
    '`split_rngs={{"{}": True}}`, or False for the same keys in all iterations, as a shared variable needs',
    _GROUPS,
    _GROUPS,
)


class Variables(NamedTuple):
    """Variables, by how the loop treats them; the output groups come in this order too."""

    carried: PyTree
    shared: PyTree


class Repeat(NamedTuple):
    """A loop with a condition.

    Attributes:
        body: the pure body; its output groups are the carried, the shared and the captured variables.
        condition: `(body, variables, index, value) -> (pred, groups)`.
        iteration: `(body, variables, index, value) -> (value, groups)`.
        counts: whether they need the index; if not, it is an empty tuple.
    """

    body: Body
    condition: Callable[..., Any]
    iteration: Callable[..., Any]
    counts: bool

    def run(self, variables: Variables, value: PyTree) -> tuple[PyTree, tuple[Any, ...]]:
        """Run the loop; return the last value and the output groups."""
        if self.body.writes:
            return self._run_split(variables, value)

        runs: list[None] = []

        def condition(now: Any) -> Any:
            return self.condition(self.body, variables, *now)[0]

        def iteration(now: Any) -> Any:
            runs.append(None)
            return self._next(now[0]), self.iteration(self.body, variables, *now)[0]

        try:
            begin = self._first, value
            _, value = once(functools.partial(jax.lax.while_loop, condition, iteration), begin)
            if not runs:  # under `jax.disable_jit`, a body that never runs is not traced, but its draws count
                jax.eval_shape(iteration, begin)
        except TypeError:
            traced = trace(lambda *now: ((), iteration(now)[1]), self._first, value)
            check_carry(self.body.where, "carry", value, traced.outputs)
            raise
        return value, self.body.unchanged

    @property
    def _first(self) -> Any:
        return jax.numpy.int32(0) if self.counts else ()

    def _next(self, index: Any) -> Any:
        return index + 1 if self.counts else ()

    def _run_split(self, variables: Variables, value: PyTree) -> tuple[PyTree, tuple[Any, ...]]:
        condition, iteration, state = self._trace(LoopState(variables.carried, value), variables.shared)
        condition, iteration = _constant(self.body, condition), _constant(self.body, iteration)

        early = self._made(condition, (self._first, state), None)
        known = state.with_created(early.carried)
        late = self._made(iteration, (self._first, known), early.shared)
        begin = known.with_created(late.carried).begin(self.body, iteration.outputs[0][1])

        def proceed(now: tuple[Any, LoopState]) -> Any:
            given = [overlay(early.carried, now[1].carried), early.shared, []]
            return condition.rest(None, given, (now[0], state.updated(now[1])), None)[1][0]

        def step(now: tuple[Any, LoopState]) -> Any:
            given = [overlay(late.carried, now[1].carried), late.shared, []]
            return iteration.rest(None, given, (now[0], known.updated(now[1])), early.shared)[1][0]

        _, last = once(functools.partial(jax.lax.while_loop, proceed, step), (self._first, begin))
        carried, shared = map(merged, early, late)
        _, unwritten, captured = self.body.unchanged
        return last.carry, (Changes(last.carried, carried), unwritten._replace(created=shared), captured)

    def _made(self, traced: Split, *operands: Any) -> Variables:
        """Compute the initial values of the condition or of the body."""
        prologue = Prologue(traced, traced.leaves(operands))
        prologue.make()
        created = Variables(*prologue.tree()[:2])
        self.body.made(created)
        return created

    def _trace(self, state: LoopState, shared: PyTree) -> tuple[Split, Split, LoopState]:
        """Trace condition and body, and again if a weakly typed carry must be cast, as in `jax.lax.while_loop`."""

        def condition(body: Body, now: tuple[Any, LoopState], _: Any) -> Any:
            variables = Variables(now[1].carried, shared)
            created, (pred, values) = without_created(*self.condition(body, variables, now[0], now[1].carry))
            self._check_captured()
            self._check_unwritten(values[0], "the condition writes it", "Write it in the body.")
            self._check_unwritten(values[1], "the condition writes it", "Write it in the body.")
            return created, (pred, ())

        def iteration(body: Body, now: tuple[Any, LoopState], early: PyTree) -> Any:
            variables = Variables(now[1].carried, merged(shared, early))
            created, (value, values) = without_created(*self.iteration(body, variables, now[0], now[1].carry))
            self._check_captured()
            names = names_of(values[1])
            collection = names[0].split("/")[0] if names else ""
            fix = f'Carry it: `variable_carry="{collection}"`.'
            self._check_unwritten(values[1], "it is shared by all iterations (variable_broadcast), but written", fix)
            return created, ((self._next(now[0]), LoopState(values[0], value)), ())

        casts: dict[Path, tuple[Any, ...]] = {}
        while True:
            body = self.body.marked(casts)
            before = len(body.records)
            first = trace(functools.partial(condition, body), (self._first, state), None, body=body)
            known = self._first, state.with_created(first.created[0])
            declared = [place for record in body.records[before:] for place in record.redrawn]
            follows = functools.partial(iteration, body.redrawing(declared=declared))
            second = trace(follows, known, first.created[1], body=body)
            created = merged(first.created[0], second.created[0])
            cast = state.cast(self.body, created, second.outputs[0][1], casts)
            if cast is None:
                return first, second, state
            state = cast

    def _check_captured(self) -> None:
        for record in self.body.records:
            for one in itertools.chain(*record.sown):
                raise LiftArgumentError(
                    f'"{"/".join((one.collection, *one.path, one.name))}" in {self.body.where}',
                    "it was sown in a loop whose number of iterations is unknown, so that values cannot be stacked.",
                    "Use `scan`, carry the values as variables of fixed shape, or do not request the collection.",
                )

    def _check_unwritten(self, group: PyTree, what: str, fix: str) -> None:
        names = names_of(group)
        if names:
            raise LoopInvarianceError(f"{names} in {self.body.where}", f"{what}.", fix)


def _constant(body: Body, traced: Split) -> Split:
    """Return the split in which no value that all iterations share depends on one of them; raise if there is none."""
    if not _differing(traced):
        return traced
    traced = traced.narrowed(traced.numbers(_SHARED))
    names = _differing(traced)
    if names:
        collection = f'"{names[0].split("/")[0]}"'
        raise LoopInvarianceError(
            body.where,
            f"{names} is shared by all iterations (variable_broadcast), but its initial value depends on the "
            "carry, on carried variables or on a key that is split.",
            fix_for(body, names, f"Carry it: `variable_carry={collection}`, or do not split its RNG stream."),
        )
    return traced


def _differing(traced: Split) -> list[str]:
    """Return the names of the shared variables whose initial values depend on an iteration."""
    return sorted(
        path_text(path) for tree in traced.reads()[_SHARED] for path, read in leaves_of(tree) if _depends(read)
    )


def _depends(read: PyTree) -> bool:
    return any(_STATE in one for one in jax.tree.leaves(read, is_leaf=lambda leaf: isinstance(leaf, frozenset)))


_SHARED = 1
"""The index of the shared variables among the output groups."""

_STATE = 0
"""The index of the state among the operands of a traced body, as in `Split.reads`."""


def loop_advice(axes: Sequence[Any]) -> Advice:
    """Describe in words how a loop treats variables and streams."""
    same, folded = "the same keys in all iterations", "folded with the iteration number"
    return _ADVICE._replace(rngs=tuple(same if axis is None else folded for axis in axes))


def splits(rng_groups: Any, axes: list[Any]) -> bool:
    """Whether there is a key that differs between iterations."""
    return any(axis is not None and jax.tree.leaves(group) for group, axis in zip(rng_groups, axes, strict=True))


def loop_keys(rng_groups: Any, axes: list[Any], index: Any, offset: int) -> list[Any]:
    """Return the root keys of one iteration, with offset 0 for the body and 1 for the condition."""

    def folded(group: Any, axis: Any) -> Any:
        if not jax.tree.leaves(group) or (axis is None and not offset):
            return group
        number = offset if axis is None else 2 * index + offset
        return jax.tree.map(lambda key: jax.random.fold_in(key, number), group)

    return [folded(group, axis) for group, axis in zip(rng_groups, axes, strict=True)]

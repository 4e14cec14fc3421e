"""A loop over a body that may create variables of every kind.

The body is traced once, and again if a weakly typed carry must be cast or a shared variable is written.

Its initial values are split off and computed as follows:

    shared     once, before the loop. They may depend on neither the carry nor slices, but may read the initial value of
               a carried variable. If one is written, its new value is computed before the loop too: it must be the same
               in all iterations, and the old one must not be read. If it is, except for what the rule of a derivative
               may read, the variable is carried
    carried    once, before the loop, as in iteration 0
    stacked    for all iterations at once, unless they depend on the carry. Then they are computed in the loop itself
               or, inside another lift that must separate initial values from later computation, by running the loop
               twice; for that lift, they depend on everything that the loop carries
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import AxisSizeError, Expected, LiftArgumentError, name_of, shown
from ..filters.trees import apart, by_place, merged, overlay
from ..pipeline.body import Body
from ..pipeline.reuse import once
from ..pipeline.splitting import Part, Prologue, Split, trace
from ..pipeline.stages import Changes
from ..typing import Axis, InOutAxes, Path, PyTree
from ..values import overlaid, tag
from .axes import check_group_axes, check_out_axes, slice_type, split_sliced, to_axis, to_front
from .carry import (
    GROUPS,
    SLICES,
    STATE,
    WRITTEN,
    LoopAdvice,
    LoopState,
    check_carry,
    check_unread,
    not_constant,
)
from .in_place import Places, over_slices

__all__ = ["Iteration", "Loop", "lax_scan"]


def lax_scan(size: int, **options: Any) -> Callable[..., tuple[PyTree, PyTree]]:
    """Return `jax.lax.scan` with options. Under `jax.disable_jit`, where JAX refuses length 0, it is still traced.

    Raises:
        LiftArgumentError: if `unroll` is neither a bool nor a number of iterations.
    """
    unroll = options.get("unroll", 1)
    if not hasattr(unroll, "__index__") or unroll < 0:
        raise LiftArgumentError(
            "unroll",
            Expected("the number of iterations in one step of the compiled loop, or a bool", given=unroll),
            "Write an integer, or `unroll=True` for all iterations.",
            option="unroll",
        )

    def scan(step: Callable[..., Any], carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        with contextlib.nullcontext() if size else jax.disable_jit(False):
            carry, ys = once(lambda carry, xs: jax.lax.scan(step, carry, xs, size, **options), carry, xs)
            return carry, ys

    return scan


class Created(NamedTuple):
    """The values that a split separates from a body, by how the loop treats them; most are computed before the loop.

    Attributes:
        shared: the initial values of shared variables.
        carried: the initial values of carried variables.
        stacked: the initial values of stacked variables, by group.
        constant: values that are the same in all iterations: outputs as a list, and new values of shared variables.
    """

    shared: PyTree
    carried: PyTree
    stacked: PyTree
    constant: tuple[list[Any], PyTree]

    def updated(self, carried: PyTree) -> Created:
        """Return the values as an iteration reads them: the carried ones have changed."""
        return self._replace(carried=overlay(self.carried, carried)) if any(self.carried) else self


@dataclasses.dataclass(eq=False)
class Iteration:
    """One iteration, as `Loop.scan` receives it: `step(carry, slices)` returns the next carry and the values to stack.

    Args:
        run: runs it.
        see: returns what the iteration reads besides slices, from the carry: the initial values (`Created`; None if the
            body is not split), and the `LoopState`.
    """

    run: Callable[..., tuple[PyTree, PyTree]]
    see: Callable[..., tuple[Created | None, LoopState]]

    def __call__(self, carry: PyTree, slices: PyTree) -> tuple[PyTree, PyTree]:
        """Run the iteration."""
        return self.run(carry, slices)


class Loop(NamedTuple):
    """A loop of known length over a body that may create variables.

    The output groups are the shared, the carried and the stacked variables, and captured values.

    Attributes:
        size: the number of iterations.
        scan: runs them: called as `scan(step, carry, xs)`, like `jax.lax.scan`; see `lax_scan`.
        group_axes: the axes of the groups of stacked variables.
        reverse: whether the loop begins with the last slices.
        advice: tells users, in error messages, how to make the loop take variables.
        in_place: the stacked variables that are updated in place; see `runners.in_place`.
    """

    size: int
    scan: Callable[..., tuple[PyTree, PyTree]]
    group_axes: Sequence[Axis] = ()
    reverse: bool = False
    advice: LoopAdvice = GROUPS
    in_place: Places | None = None

    def run(
        self,
        body: Body,
        iteration: Callable[..., Any],
        shared: PyTree,
        state: tuple[PyTree, PyTree],
        xs: PyTree,
        out_axes: InOutAxes,
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        """Run the loop.

        Args:
            body: the body.
            iteration: called as `iteration(body, shared, (carried, carry), slices)`, with the shared variables, the
                carried variables, the user's carry, and slices of `xs`; returns the next carry, the values to stack,
                and the output groups.
            shared: the group of shared variables.
            state: the group of carried variables, and the carry.
            xs: a pytree that is sliced along axis 0.
            out_axes: the axes of the stacked values, as a pytree prefix; `broadcast` for a value that never changes.

        Returns:
            The last carry, the stacked values, and the output groups.
        """
        check_loop(body, self.size, len(self.group_axes), state, xs)
        has_shared_output = not isinstance(out_axes, int) and not all(
            isinstance(axis, int) for axis in jax.tree.leaves(out_axes, is_leaf=_is_none)
        )
        if body.writes or has_shared_output:
            return self._run_split(body, iteration, shared, LoopState(*state), xs, out_axes)

        # The usual `apply`: nothing can be written, so nothing is split, and `self.scan` traces the body directly.
        def step(carry: Any, slices: Any) -> Any:
            return run_iteration(iteration, body, shared, (state[0], carry), slices)[:2]

        try:
            carry, ys = self.scan(Iteration(step, lambda carry: (None, LoopState(state[0], carry))), state[1], xs)
        except TypeError:
            slices = jax.tree.map(lambda leaf: slice_type(leaf, 0), xs)
            split = trace(
                lambda carry, slices: ((), iteration(body, shared, (state[0], carry), slices)[0]), state[1], slices
            )
            check_carry(body, "carry", state[1], split.outputs)
            raise
        if out_axes != 0:
            leaves, treedef = jax.tree.flatten(ys)
            axes = check_out_axes("out_axes", out_axes, ys, body, is_stacked=True)
            ys = jax.tree.unflatten(treedef, list(map(to_axis, leaves, axes)))
        return carry, ys, body.unchanged

    def _run_split(
        self,
        body: Body,
        iteration: Callable[..., Any],
        shared: PyTree,
        state: LoopState,
        xs: PyTree,
        out_axes: InOutAxes,
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        """Run the loop of a body that may create or write variables, or that has a shared output.

        The body is traced on types. The dependences of its initial values determine how they are computed (`Kinds`).
        They are computed before the loop (`_create`), and the loop runs the rest of the jaxpr.
        """
        outputs = Outputs(body, out_axes)

        def parted(body: Body, state: Any, slices: Any, shared: Any = shared) -> Any:
            carry, ys, (shared, carried, *stacked, captured) = run_iteration(iteration, body, shared, state, slices)
            stackable, constant = outputs.split(ys)
            if any(self.group_axes):
                check_group_axes(body, self.group_axes, stacked)
            # Shared outputs and new values of shared variables are treated like initial values: they must not depend on
            # the iteration either, and are computed before the loop.
            constants = tag((constant, shared.values))
            created = Created(shared.created, carried.created, [one.created for one in stacked], constants)
            return created, (LoopState(carried.values, carry), ([one.values for one in stacked], captured, stackable))

        slices = jax.tree.map(lambda leaf: slice_type(leaf, 0), xs)
        split, state, is_read = self._trace(body, parted, shared, state, slices)
        split, kinds, differs = _sharing(body, split, self.advice)
        if is_read or differs:
            carrying = Carrying(iteration, split.created.constant[WRITTEN])
            return self._run_split(body, carrying, *carrying.moved(shared, state), xs, out_axes)
        single, made, stacked = self._create(body, split, kinds, state, xs)
        made_before = frozenset(split.numbers) - kinds.late

        def loop(made: Created, made_before: AbstractSet[int]) -> Any:
            rest, (first, leaves) = split.remaining(made_before), map(jax.tree.leaves, (state, xs))
            read = set(rest.places)  # slices that only initial values read are not looped over
            leaves = [leaf if place in read else None for place, leaf in enumerate(leaves, len(first))]

            def see(now: LoopState) -> tuple[Created, LoopState]:
                return made.updated(now.carried), state.updated(now)

            def step(now: LoopState, slices: Any) -> Any:
                """Run the rest of one iteration, from the initial values and the leaves that it reads."""
                (initial, now), (x_leaves, stacked_now) = see(now), slices
                initial, operands = initial._replace(stacked=stacked_now), [*jax.tree.leaves(now), *x_leaves]
                reads = [operands[place] for place in rest.places]
                late, (now, ys) = split.as_trees(made_before, rest(*jax.tree.leaves(initial), *reads))
                return now, (late.stacked, ys)

            begin = state.with_created(made.carried).begin(body, split.outputs[0])
            scan = over_slices(self.scan, self.in_place) if self.in_place and self.size else self.scan
            return scan(Iteration(step, see), begin, (leaves, made.stacked))

        if body.nested and kinds.late:
            run = functools.partial(loop, made_before=made_before)
            made, stacked = self._create_late(body, single, kinds, made, stacked, run)
            made_before = frozenset(split.numbers)
        last, (late, (values, captured, ys)) = loop(made, made_before)
        if len(made_before) < len(split.numbers):
            stacked = _either(stacked, self._moved(to_axis, late))
        groups = (
            # A loop without iterations wrote nothing.
            Changes(made.constant[WRITTEN] if self.size else tuple({} for _ in made.shared), made.shared),
            Changes(last.carried, made.carried),
            *map(Changes, self._moved(to_axis, values), stacked),
            captured,
        )
        return last.carry, outputs.join(ys, made.constant[0]), groups

    def _trace(
        self, body: Body, iteration: Callable[..., Any], shared: PyTree, state: LoopState, slices: Any
    ) -> tuple[Split, LoopState, bool]:
        """Trace a body, and trace it again if a weakly typed carry must be cast, as in `jax.lax.scan`.

        Returns:
            The trace, the state, and whether a rule may read a shared variable before the body writes it.
        """
        casts: dict[Path, tuple[Any, ...]] = {}
        while True:  # it ends, since a leaf that was cast is no longer weakly typed
            tagging = body.tagging(casts)
            split = trace(functools.partial(iteration, tagging), state, slices, body=body)
            cast = state.cast(body, split.created.carried, split.outputs[0], casts)
            if cast is None:
                written, args = split.created.constant[WRITTEN], (state, slices, self.advice)
                return split, state, any(written) and not check_unread(tagging, iteration, shared, written, *args)
            state = cast

    def _create(
        self, body: Body, split: Split, kinds: Kinds, state: PyTree, xs: PyTree
    ) -> tuple[Prologue, Created, Sequence[PyTree]]:
        """Compute the initial values, except those of stacked variables that depend on the carry.

        Returns:
            The prologue of the values that are computed once; the values; and the stacked values as they are outside.
        """
        first = _first(body.where, xs, self.size, self.reverse) if kinds.carried_from_slices else None
        single = Prologue(split, split.leaves((state, first)))
        if kinds.batched:
            stacked = self._create_in_turn(split, kinds, single, xs)
        else:
            stacked = {}
            single.make(kinds.early)
        if kinds.after:  # for the first run of the loop, which computes what these read
            single.evaluate(kinds.after)
        made: Created = split.tree({**single.values, **stacked})
        if body.observer is not None:
            body.observer.created([made.shared, made.carried, *made.stacked])
        return single, made._replace(stacked=self._moved(to_front, made.stacked)), made.stacked

    def _create_in_turn(self, split: Split, kinds: Kinds, single: Prologue, xs: PyTree) -> Mapping[int, Any]:
        """Compute the initial values of stacked variables and single ones, which may read each other.

        Args:
            split: the split.
            kinds: its kinds.
            single: the prologue of the values that are computed once.
            xs: the slices of all iterations.

        Returns:
            The stacked values, by number, with those that they read.
        """
        along = [None if leaf is None else 0 for leaf in split.leaves((None, xs))]
        batched = Prologue(split, split.leaves((None, xs)), along, self._batch)
        axes = [None if kind != "stacked" else self.group_axes[group] for kind, group in kinds.fields]
        early, stacked = set(kinds.early), set(kinds.batched)
        while early or stacked:  # each in turn, as far as it does not read what the other has still to make
            now = {number for number in early if stacked.isdisjoint(split.earlier[number])}
            single.make(now)
            for number in now:
                if kinds.fields[number][0] != "carried":  # values that are computed at once read no carried variable
                    batched.know(number, single.values[number])
            early -= now
            now = {number for number in stacked if early.isdisjoint(split.earlier[number])}
            batched.make(now, axes)
            for number in now:
                self._know_first(single, kinds, number, batched.values[number])
            stacked -= now
        return batched.values

    def _create_late(
        self,
        body: Body,
        single: Prologue,
        kinds: Kinds,
        made: Created,
        stacked: Sequence[PyTree],
        loop: Callable[[Created], Any],
    ) -> tuple[Created, Sequence[PyTree]]:
        """Compute the initial values that depend on the carry, by a run of the loop; the run after it receives them.

        An outer lift must find them as created and tagged. Carried values that read them are computed again, because
        they must read the tagged ones, which are held there.

        Returns:
            All initial values, and the stacked ones as they are outside.
        """
        # A carried variable that reads one of them is not tagged yet, but may already exist.
        previews = body.preview(single.tree(kinds.after).carried)
        _, (late, _) = loop(made._replace(carried=overlaid(made.carried, previews)))
        late = jax.tree.map(body.tag_outside, self._moved(to_axis, late))
        if body.observer is not None:
            body.observer.created([(), (), *late])
        split, stacked = single.split, _either(stacked, late)
        values = jax.tree.leaves(split.created._replace(stacked=stacked))
        for number, (kind, _) in enumerate(kinds.fields):
            if kind == "stacked":
                self._know_first(single, kinds, number, values[number])
        single.make(kinds.after)
        made = single.tree()
        return made._replace(stacked=self._moved(to_front, stacked)), stacked

    def _know_first(self, single: Prologue, kinds: Kinds, number: int, stacked: Any) -> None:
        """Pass the first slice of a stacked value to the prologue of single values, if one of these reads it."""
        if self.size and number in kinds.read_once:
            axis, begin = self.group_axes[kinds.fields[number][1]], self.size - 1 if self.reverse else 0
            single.know(number, jax.lax.index_in_dim(stacked, begin, axis or 0, keepdims=False))

    def _batch(self, part: Part, in_axes: Sequence[Any], out_axes: Sequence[Any]) -> Callable[..., Any]:
        """Run equations for all iterations at once if this gives the same values, otherwise one after the other."""

        def run(*inputs: Any) -> Any:
            if self.size and part.can_be_batched:
                with contextlib.suppress(NotImplementedError):  # no rule for `jax.vmap`, as for some callbacks
                    return jax.vmap(part, tuple(in_axes), list(out_axes), axis_size=self.size)(*inputs)
            xs = [None if axis is None else to_front(one, axis) for one, axis in zip(inputs, in_axes, strict=True)]

            def step(_: Any, slices: Any) -> Any:
                return None, part(*[one if x is None else x for one, x in zip(inputs, slices, strict=True)])

            return list(map(to_axis, self.scan(step, None, xs)[1], out_axes))

        return run

    def _moved(self, move: Callable[[PyTree, Axis], PyTree], groups: Sequence[PyTree]) -> list[PyTree]:
        return [move(group, axis) for group, axis in zip(groups, self.group_axes, strict=True)]


class Kinds(NamedTuple):
    """The ways in which the initial values of a body are computed: sets of their numbers.

    Attributes:
        fields: for each of them, the field of `Created` that contains it, and the number of the group there.
        read_once: those that a carried or shared one reads.
        early: those that are computed once, from the state and the slices of the iteration that runs first.
        after: the same, but they read a late one.
        batched: those that are computed for all iterations, from the slices of each.
        late: those that are computed in the loop.
        differing: those that all iterations share and that depend on an iteration.
        carried_from_slices: whether a carried one reads slices.
    """

    fields: Sequence[tuple[str, int]]
    read_once: AbstractSet[int]
    early: AbstractSet[int]
    after: AbstractSet[int]
    batched: AbstractSet[int]
    late: AbstractSet[int]
    differing: AbstractSet[int]
    carried_from_slices: bool

    @classmethod
    def of(cls, split: Split) -> Kinds:
        """Return the kinds of the initial values of a body."""
        paths = [path for path, _ in jax.tree.leaves_with_path(split.created)]
        fields = [(path[0].name, path[1].idx) for path in paths]
        carried = {number for number, (kind, _) in enumerate(fields) if kind == "carried"}
        stacked = {number for number, (kind, _) in enumerate(fields) if kind == "stacked"}
        constant = {number for number, (kind, _) in enumerate(fields) if kind == "constant"}
        single, reads, earlier = set(split.numbers) - stacked, split.depends, split.earlier
        # A carried variable that the body created has another value in the next iteration, like the carry.
        pairs = enumerate(zip(reads, split.earlier_if_given, strict=True))
        moving = {number for number, (read, previewed) in pairs if STATE in read or carried & previewed}
        late = stacked & moving
        after = {number for number in single if late & earlier[number]}
        return cls(
            fields,
            read_once=frozenset().union(*[earlier[number] for number in single]),
            early=single - after,
            after=after,
            batched=stacked - late,
            late=late,
            # A shared variable is created only once, so it may read what a carried one begins with; outputs may not.
            differing={number for number in single - carried if reads[number]} | (constant & moving),
            carried_from_slices=any(SLICES in reads[number] for number in carried),
        )


def _sharing(body: Body, split: Split, advice: LoopAdvice) -> tuple[Split, Kinds, bool]:
    """Check that the values that all iterations share do not depend on one of them; narrow the split if that helps.

    Returns:
        The split, its kinds, and whether written variables differ between iterations by what a rule may read.

    Raises:
        LoopInvarianceError: if a value that is shared differs.
    """
    kinds = Kinds.of(split)
    if not kinds.differing:
        return split, kinds, False
    chosen = kinds.differing
    split, without_rules = split.narrowed(chosen), split.narrowed(chosen, ruled=False)
    kinds, others = Kinds.of(split), Kinds.of(without_rules).differing
    differing = others or (() if any(split.created.constant[WRITTEN]) else kinds.differing)
    if differing:
        raise not_constant(body, split, sorted(differing), advice)
    return split, kinds, bool(kinds.differing)


class Carrying:
    """An iteration in which the shared variables that it writes are carried.

    A rule may read slices, or a value from before: then its gradients are those of the Python loop.

    Args:
        iteration: see `Loop.run`.
        written: the shared variables that it writes.
    """

    def __init__(self, iteration: Callable[..., Any], written: PyTree) -> None:
        self._iteration, self._places = iteration, set(by_place(written))

    def __call__(self, *args: Any) -> Any:
        """Run one iteration."""
        carry, ys, (shared, carried, *rest) = self._iteration(*args)
        (values, left), (created, others) = (apart(part, self._places) for part in shared)
        carried = Changes(merged(carried.values, values), merged(carried.created, created))
        return carry, ys, (Changes(left, others), carried, *rest)

    def moved(self, shared: PyTree, state: LoopState) -> tuple[PyTree, LoopState]:
        """Return the shared variables without those that are carried, and the state with them."""
        moved, left = apart(shared, self._places)
        return left, state.with_created(moved)


@dataclasses.dataclass(eq=False)
class Outputs:
    """The outputs of a body that are stacked, along the axes in `out_axes`; by default they stay as they are."""

    body: Body
    out_axes: InOutAxes

    def split(self, ys: PyTree) -> tuple[PyTree, list[Any]]:
        """Return what is stacked, and the leaves that are the same in all iterations; it runs in the body."""
        if self.out_axes == 0:
            return ys, []
        axes = check_out_axes("out_axes", self.out_axes, ys, self.body)
        stacked, self._along, constant = split_sliced(ys, axes)
        self._others = constant._replace(leaves=())  # without the values, which belong to the trace
        return stacked, list(constant.leaves)

    def join(self, stacked: PyTree, constant: PyTree) -> PyTree:
        """Return the outputs from what was stacked, and the constant leaves."""
        if self.out_axes == 0:
            return stacked
        return self._others.join(map(to_axis, stacked, self._along), constant)


def _first(where: str, xs: PyTree, size: int, reverse: bool) -> PyTree:
    """Return the slices of the iteration that runs first."""
    if size == 0:
        raise AxisSizeError(
            where,
            "a carried variable is computed from the slices of iteration 0, but there are no iterations.",
            "Create it outside the loop, or loop at least once.",
            given=size,
        )
    return jax.tree.map(lambda leaf: leaf[size - 1 if reverse else 0], xs)


def _either(some: PyTree, others: PyTree) -> PyTree:
    return jax.tree.map(lambda one, other: other if one is None else one, some, others, is_leaf=_is_none)


def _is_none(value: Any) -> bool:
    return value is None


def check_loop(body: Body, size: int, axes: int, state: Any, xs: PyTree) -> None:
    """Check the arguments of `Loop.run`.

    Raises:
        LiftArgumentError: if the output groups or the state do not have the form that a loop needs.
        AxisSizeError: if the number of slices differs from the number of iterations.
    """
    lift = body.layout.lift
    if len(lift.out) != 2 + axes or lift.captures is None:
        given = f"{len(lift.out)}{'' if lift.captures is None else ' and `Captured()`'}"
        raise LiftArgumentError(
            body.where,
            f"a loop needs these output filters: one for shared variables, one for carried ones, {axes} for stacked "
            f"ones (as many as `group_axes`), and `Captured()`; given {given}.",
            "List them in this order; `False` is a filter that takes nothing.",
            given=given,
        )
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise LiftArgumentError(
            body.where,
            Expected("a pair of the group of carried variables and the carry, the state of a loop", given=state),
            "Pass `(variable_groups[1], carry)`; the carry may be None.",
        )
    if True in [np.shape(leaf)[:1] != (size,) for leaf in jax.tree.leaves(xs)]:
        shapes = {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in jax.tree.leaves_with_path(xs)}
        path, shape = next((path, shape) for path, shape in shapes.items() if shape[:1] != (size,))
        raise AxisSizeError(
            body.where,
            f"slices{path} of shape {shape} were given, but the loop has size {size}.",
            f"Pass {size} slices along axis 0.",
            given=shape,
            expected=size,
        )


def run_iteration(iteration: Callable[..., Any], body: Body, *args: Any) -> tuple[Any, Any, Any]:
    """Run an iteration; raise if it returns something else than `Loop.run` takes."""
    found = iteration(body, *args)
    if isinstance(found, tuple) and len(found) == 3:
        return found
    given = f"{len(found)} values" if isinstance(found, tuple) else shown(found)
    raise LiftArgumentError(
        f"{name_of(iteration)} of {body.where}",
        f"it must return the next carry, the values to stack, and the output groups; given {given}.",
        "Write `y, groups = body((shared, state[0]), …)`, and `return carry, y, groups`.",
        given=given,
    )

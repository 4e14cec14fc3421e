"""A loop over a body that is traced once, and may create variables of every kind.

`hoist` cuts out what makes them:

    shared     is made once, before the loop; it may depend on neither carry nor slices. One that is written gets its
               new value there too: that must be the same in all iterations, and the old one may not be read
    carried    is made once, as iteration 0 would make it, and is what the loop begins with
    stacked    is made for all iterations at once, unless it depends on the carry: then it is made in the loop itself,
               or, inside another lift that has to tell what is created from what is computed, by running the loop
               twice; to that lift it depends on all that the loop carries
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax

from .._compat import tag
from ..errors import AxisSizeError, LoopInvarianceError
from ..filters import merge
from ..pipeline.changes import Changes
from ..pipeline.splitting import Part, Prologue, Split, trace
from ..pipeline.use import Body
from ..typing import Axis, InOutAxes, Path, PyTree
from .axes import flatten_axes, slice_type, to_axis, to_front
from .carry import casts_of, check_carry, check_separate, fix_for, overlay, promoted, select

__all__ = ["Loop", "lax_scan"]


def lax_scan(size: int, **options: Any) -> Callable[..., tuple[PyTree, PyTree]]:
    """`jax.lax.scan` with its options; one of no iterations is traced under `jax.disable_jit`, where JAX refuses it."""

    def scan(step: Callable[..., Any], carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        with contextlib.nullcontext() if size else jax.disable_jit(False):
            carry, ys = jax.lax.scan(step, carry, xs, size, **options)
            return carry, ys

    return scan


class Created(NamedTuple):
    """What a body makes before the loop, or as its first iteration would, by how the loop treats it.

    Attributes:
        shared: the initial values of shared variables.
        carried: those of carried ones.
        stacked: those of stacked ones, by group.
        constant: what is the same in all iterations, outputs as a list and new values of shared variables.
    """

    shared: PyTree
    carried: PyTree
    stacked: PyTree
    constant: tuple[list[Any], PyTree]


class Loop(NamedTuple):
    """A loop of known length over a body that may create variables.

    Its output groups are the shared, the carried and the stacked variables, and captured values.

    Attributes:
        size: how many iterations there are.
        scan: what runs them: called as `scan(step, carry, xs)`, like `jax.lax.scan`; see `lax_scan`.
        group_axes: the axes of the groups of stacked variables.
        reverse: whether it begins with the last slices.
        advice: how to take a variable that is not the same in all iterations, for the text of an error.
    """

    size: int
    scan: Callable[..., tuple[PyTree, PyTree]]
    group_axes: Sequence[Axis] = ()
    reverse: bool = False
    advice: str = 'Stack it, `variable_axes={{"{}": 0}}`'

    def run(
        self,
        body: Body,
        iteration: Callable[..., Any],
        shared: PyTree,
        state: tuple[PyTree, PyTree],
        xs: PyTree,
        out_axes: InOutAxes,
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        """Runs the loop.

        Args:
            body: the body.
            iteration: called as `iteration(body, shared, (carried, carry), slices)`, with the shared variables, what
                is carried of variables and otherwise, and slices of `xs`; returns the next carry, what is stacked, and
                the output groups.
            shared: the group of shared variables.
            state: the group of carried variables, and the carry.
            xs: what is sliced along axis 0.
            out_axes: the axes of what is stacked, as a pytree prefix; `broadcast` for what is the same each time.

        Returns:
            The last carry, what was stacked, and the output groups.
        """
        if body.writes or not all(isinstance(axis, int) for axis in jax.tree.leaves(out_axes, is_leaf=_is_none)):
            return self._run_hoisted(body, iteration, shared, state, xs, out_axes)

        def step(carry: Any, slices: Any) -> Any:
            return iteration(body, shared, (state[0], carry), slices)[:2]

        try:
            carry, ys = self.scan(step, state[1], xs)
        except TypeError:
            slices = jax.tree.map(lambda leaf: slice_type(leaf, 0), xs)
            traced = trace(
                lambda carry, slices: ((), iteration(body, shared, (state[0], carry), slices)[0]), state[1], slices
            )
            check_carry(body.where, "carry", state[1], traced.outputs)
            raise
        return carry, Outputs(body.where, out_axes).join(ys, ()), body.unchanged

    def _run_hoisted(
        self,
        body: Body,
        iteration: Callable[..., Any],
        given: PyTree,
        state: tuple[PyTree, PyTree],
        xs: PyTree,
        out_axes: InOutAxes,
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        outputs = Outputs(body.where, out_axes)

        def flat(body: Body, state: Any, slices: Any, given: Any = given) -> Any:
            carry, ys, (shared, carried, *stacked, captured) = iteration(body, given, state, slices)
            stackable, constant = outputs.split(ys)
            constants = tag((constant, shared.values))
            created = Created(shared.created, carried.created, [one.created for one in stacked], constants)
            return created, ((carried.values, carry), ([one.values for one in stacked], captured, stackable))

        traced, (carried, carry) = _trace(body, flat, given, state, jax.tree.map(lambda leaf: slice_type(leaf, 0), xs))
        kinds = Kinds.of(traced)
        once, made, outside = self._create(body, traced, kinds, (carried, carry), xs)
        chosen = kinds.made_before

        def begin(made: Created) -> Any:
            return select(_merged(carried, made.carried), traced.outputs[0][0]), carry

        for what, now, after in zip(("carried variable ", "carry"), begin(made), traced.outputs[0], strict=True):
            check_carry(body.where, what, now, after)
        check_separate(body, begin(made)[0])

        def loop(made: Created, chosen: Sequence[bool]) -> Any:
            rest, (first, leaves) = traced.remaining(chosen), map(jax.tree.leaves, (state, xs))
            read = set(rest.places)
            leaves = [leaf if place in read else None for place, leaf in enumerate(leaves, len(first))]

            def step(now: Any, slices: Any) -> Any:
                (written, carry), (slices, stacked) = now, slices
                given = jax.tree.leaves(Created(made.shared, overlay(made.carried, written), stacked, made.constant))
                operands = [*jax.tree.leaves((overlay(carried, written), carry)), *slices]
                left, (now, ys) = traced.as_trees(chosen, rest(*given, *rest.of(operands)))
                return now, (left.stacked, ys)

            return self.scan(step, begin(made), (leaves, made.stacked))

        if body.nested and not all(chosen):
            _, (left, _) = loop(made, chosen)
            left = jax.tree.map(body.use.bind, self._moved(to_axis, left))
            body.use.made([(), (), *left])
            outside = _either(outside, left)
            made = self._made_late(body, once, kinds, outside)
            chosen = [True for _ in chosen]
        (written, carry), (left, (values, captured, ys)) = loop(made, chosen)
        if not all(chosen):
            outside = _either(outside, self._moved(to_axis, left))
        groups = (
            Changes(made.constant[_WRITTEN] if self.size else tuple({} for _ in made.shared), made.shared),
            Changes(written, made.carried),
            *map(Changes, self._moved(to_axis, values), outside),
            captured,
        )
        return carry, outputs.join(ys, made.constant[0]), groups

    def _create(
        self, body: Body, traced: Split, kinds: Kinds, state: PyTree, xs: PyTree
    ) -> tuple[Prologue, Created, Sequence[PyTree]]:
        """Makes the initial values, but those of stacked variables that depend on the carry.

        Returns:
            What made those that are made once; the values; and the stacked ones as they lie outside, along their axes.
        """
        if kinds.differing:
            raise _no_constant(body, traced, kinds, self.advice)
        first = _first(body.where, xs, self.size, self.reverse) if kinds.carried_from_slices else None
        once = Prologue(traced, traced.leaves((state, first)))
        along = [None if leaf is None else 0 for leaf in traced.leaves((None, xs))]
        many = Prologue(traced, traced.leaves((None, xs)), along, self._batch)
        axes = [None if kind != "stacked" else self.group_axes[group] for kind, group in kinds.places]
        for part in traced.levels(kinds.made_before):
            once.make(both(part, kinds.early))
            once.make_at_once(both(part, kinds.late))  # for the run of the loop that makes what these read
            many.make(both(part, kinds.made_at_once), axes)
            for number in itertools.compress(range(len(part)), part):
                if kinds.made_at_once[number]:
                    self._know_first(once, kinds, number, many.values[number])
                elif kinds.places[number][0] != "carried":  # what is made at once reads no carried variable
                    many.know(number, once.values[number])
        values = [one if one is not None else other for one, other in zip(once.values, many.values, strict=True)]
        made: Created = traced.tree(None, values)
        body.use.made([made.shared, made.carried, *made.stacked])
        return once, made._replace(stacked=self._moved(to_front, made.stacked)), made.stacked

    def _made_late(self, body: Body, once: Prologue, kinds: Kinds, stacked: Sequence[PyTree]) -> Created:
        """All initial values, once the stacked ones are there: a carried one that reads one of these is made again.

        Inside another lift it has to read that as it is there, bound.
        """
        traced = once.split
        values = jax.tree.leaves(traced.created._replace(stacked=stacked))
        for number, (kind, _) in enumerate(kinds.places):
            if kind == "stacked":
                self._know_first(once, kinds, number, values[number])
        once.forget(kinds.late)
        for part in traced.levels(kinds.late):
            once.make(part)
        made: Created = once.tree()
        return made._replace(stacked=self._moved(to_front, stacked))

    def _know_first(self, once: Prologue, kinds: Kinds, number: int, stacked: Any) -> None:
        """Tells what is made once of the first slice of a stacked value, if it reads that."""
        if self.size and number in kinds.read_once:
            axis, begin = self.group_axes[kinds.places[number][1]], self.size - 1 if self.reverse else 0
            once.know(number, jax.lax.index_in_dim(stacked, begin, axis or 0, keepdims=False))

    def _batch(self, part: Part, in_axes: Sequence[Any], out_axes: Sequence[Any]) -> Callable[..., Any]:
        """Equations for all iterations at once where that gives the same, else for one after the other."""

        def run(*inputs: Any) -> Any:
            if self.size and part.can_be_batched:
                with contextlib.suppress(NotImplementedError):  # what has no rule for `jax.vmap`, a callback for one
                    return jax.vmap(part, tuple(in_axes), list(out_axes), axis_size=self.size)(*inputs)
            xs = [None if axis is None else to_front(one, axis) for one, axis in zip(inputs, in_axes, strict=True)]

            def step(_: Any, slices: Any) -> Any:
                return None, part(*[one if x is None else x for one, x in zip(inputs, slices, strict=True)])

            return list(map(to_axis, self.scan(step, None, xs)[1], out_axes))

        return run

    def _moved(self, move: Callable[[PyTree, Axis], PyTree], groups: Sequence[PyTree]) -> list[PyTree]:
        return [move(group, axis) for group, axis in zip(groups, self.group_axes, strict=True)]


_STATE, _SLICES = 0, 1
"""The operands of a traced body, as `Split.reads` numbers them."""

_WRITTEN = 1
"""Where in `Created.constant` the new values of shared variables lie."""


class Kinds(NamedTuple):
    """How the initial values of a body are made; each list has an entry for each of them.

    Attributes:
        places: the field of `Created` that it lies in, and the number of the group there.
        read_once: the numbers of those that a carried or shared one reads.
        made_once: whether it is made from the state, and from the slices of the iteration that runs first.
        made_at_once: whether it is made for all iterations, from the slices of each.
        late: whether it is made once, and reads a stacked one that is made in the loop.
        differing: the numbers of those that all iterations share and that depend on one of them.
        carried_from_slices: whether a carried one reads slices.
    """

    places: Sequence[tuple[str, int]]
    read_once: frozenset[int]
    made_once: Sequence[bool]
    made_at_once: Sequence[bool]
    late: Sequence[bool]
    differing: Sequence[int]
    carried_from_slices: bool

    @classmethod
    def of(cls, traced: Split) -> Kinds:
        """Those of a body."""
        paths = [path for path, _ in jax.tree.leaves_with_path(traced.created)]
        places = [(path[0].name, path[1].idx) for path in paths]
        kinds = [kind for kind, _ in places]
        carried = {number for number, kind in enumerate(kinds) if kind == "carried"}
        reads = traced.depends
        # A carried variable that was made in the body is another one in the next iteration, as the carry is.
        state = [_STATE in read or bool(carried & earlier) for read, earlier in zip(reads, traced.earlier, strict=True)]
        shared = [number for number, kind in enumerate(kinds) if kind in ("shared", "constant")]
        left = {number for number, kind in enumerate(kinds) if kind == "stacked" and state[number]}
        return cls(
            places,
            frozenset().union(*[read for kind, read in zip(kinds, traced.earlier, strict=True) if kind != "stacked"]),
            [kind != "stacked" for kind in kinds],
            [kind == "stacked" and not one for kind, one in zip(kinds, state, strict=True)],
            [kind != "stacked" and bool(left & earlier) for kind, earlier in zip(kinds, traced.earlier, strict=True)],
            [number for number in shared if reads[number] or state[number]],
            any(_SLICES in reads[number] for number in carried),
        )

    @property
    def early(self) -> list[bool]:
        """Whether it is made once, and is not late."""
        return [one and not late for one, late in zip(self.made_once, self.late, strict=True)]

    @property
    def made_before(self) -> list[bool]:
        """Whether it is made before the loop at all."""
        return [one or other for one, other in zip(self.made_once, self.made_at_once, strict=True)]


def both(some: Sequence[bool], others: Sequence[bool]) -> list[bool]:
    """What is chosen twice."""
    return [one and other for one, other in zip(some, others, strict=True)]


class Outputs:
    """What a body gives to be stacked, along the axes that `out_axes` says."""

    def __init__(self, where: str, out_axes: InOutAxes) -> None:
        self._where, self._out_axes = f"{where}, out_axes", out_axes
        self._treedef: Any = None

    def split(self, ys: PyTree) -> tuple[list[Any], list[Any]]:
        """The leaves to stack, and those that are the same in all iterations."""
        axes = flatten_axes(self._where, self._out_axes, ys)
        leaves, self._treedef = jax.tree.flatten(ys)
        pairs = list(zip(leaves, axes, strict=True))
        return [y for y, axis in pairs if axis is not None], [y for y, axis in pairs if axis is None]

    def join(self, stacked: PyTree, constant: PyTree) -> PyTree:
        """The pytree again, from stacked and constant leaves; or from the stacked pytree, if that was never split."""
        treedef = jax.tree.structure(stacked) if self._treedef is None else self._treedef
        axes = flatten_axes(self._where, self._out_axes, jax.tree.unflatten(treedef, [0] * treedef.num_leaves))
        leaves, constants = iter(jax.tree.leaves(stacked)), iter(constant)
        each = [next(constants) if axis is None else to_axis(next(leaves), axis) for axis in axes]
        return jax.tree.unflatten(treedef, each)


def _trace(body: Body, iteration: Callable[..., Any], shared: PyTree, state: Any, slices: Any) -> tuple[Split, Any]:
    """Traces a body, and again where a weakly typed carry must be cast, as `jax.lax.scan` does."""
    casts: dict[Path, tuple[Any, ...]] = {}
    while True:
        traced = trace(functools.partial(iteration, body.marked(casts)), state, slices, use=body.use)
        carried, carry = state
        written, after = traced.outputs[0]
        cast = promoted((select(carried, written), carry), (select(written, carried), after))
        created = casts_of(body, traced.created.carried, written)
        if cast is None and not created:
            written = traced.created.constant[_WRITTEN]
            if any(written):
                _check_unread(
                    body.where, functools.partial(iteration, body.marked(casts)), shared, written, state, slices
                )
            return traced, state
        casts |= created
        state = state if cast is None else (overlay(carried, cast[0]), cast[1])


def _merged(group: PyTree, other: PyTree) -> PyTree:
    return tuple(merge(*trees) for trees in zip(group, other, strict=True))


def _first(where: str, xs: PyTree, size: int, reverse: bool) -> PyTree:
    """The slices of the iteration that runs first."""
    if size == 0:
        raise AxisSizeError(
            where,
            "a carried variable is made from the slices of iteration 0, and there is none.",
            "Create it outside the loop, or loop at least once.",
        )
    return jax.tree.map(lambda leaf: leaf[size - 1 if reverse else 0], xs)


def _check_unread(
    where: str, iteration: Callable[..., Any], shared: PyTree, written: PyTree, state: PyTree, slices: PyTree
) -> None:
    """Checks that a body does not read the shared variables that it writes before that: it would read others next time.

    For that it is traced once more, as a function of them too.
    """
    there, treedef = jax.tree.flatten_with_path(select(shared, written))
    given, names = [leaf for _, leaf in there], [_name(path[1:]) for path, _ in there]

    def run(state: Any, slices: Any, *leaves: Any) -> Any:
        return iteration(state, slices, overlay(shared, jax.tree.unflatten(treedef, leaves)))

    traced = trace(run, state, slices, *given)
    made = [path for path, _ in jax.tree.leaves_with_path(traced.created)]
    again = [number for number, path in enumerate(made) if path[0].name in ("stacked", "constant")]  # others once
    (reads, others), (depends, earlier) = traced.output_reads(), (traced.depends, traced.earlier)
    read = frozenset().union(*jax.tree.leaves(reads), *[depends[number] for number in again])
    found = {name for number, name in enumerate(names, _SLICES + 1) if number in read}
    begun = {str(path) for path, _ in jax.tree.leaves_with_path(written)}
    read = frozenset().union(*jax.tree.leaves(others), *[earlier[number] for number in again])
    found |= {_name(path[2:]) for number, path in enumerate(made) if number in read and _is_shared(path, begun)}
    if found:
        raise _carry_it(where, sorted(found), "the body reads it and then writes it")


def _is_shared(path: Any, among: Collection[str]) -> bool:
    return path[0].name == "shared" and str(path[1:]) in among


def _carry_it(where: str, names: Sequence[str], what: str) -> LoopInvarianceError:
    return LoopInvarianceError(
        where,
        f"{list(names)} is shared by all iterations (variable_broadcast), but {what}.",
        f'Carry it: `variable_carry="{names[0].split("/")[0]}"`.',
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _either(some: PyTree, others: PyTree) -> PyTree:
    return jax.tree.map(lambda one, other: other if one is None else one, some, others, is_leaf=_is_none)


def _no_constant(body: Body, traced: Split, kinds: Kinds, advice: str) -> LoopInvarianceError:
    """What to say where what all iterations share depends on one of them."""
    paths = [path for path, _ in jax.tree.leaves_with_path(traced.created)]
    differing = [(paths[number], _STATE in traced.depends[number]) for number in kinds.differing]
    carried = sorted({_name(path[2:]) for path, state in differing if path[0].name == "shared" and state})
    where, names = body.where, sorted({_name(path[2:]) for path, _ in differing if path[0].name == "shared"})
    if carried:
        error = _carry_it(where, carried, "its initial value depends on the carry, or on a carried variable")
        return LoopInvarianceError(error.where, error.what, fix_for(body, names, error.fix))
    if names:
        return LoopInvarianceError(
            where,
            f"{names} is shared by all iterations (variable_broadcast), but its initial value depends on "
            "a slice or on a key that is split.",
            fix_for(body, names, f"{advice.format(names[0].split('/')[0])}, or do not split the stream it draws from."),
        )
    written = sorted({_name(path[3:]) for path, _ in differing if path[1].idx == _WRITTEN})
    if written:
        return _carry_it(where, written, "the body writes values that differ between them")
    return LoopInvarianceError(
        where,
        "an output with `broadcast` in `out_axes` depends on the carry, on a slice or on a key that is split.",
        "Give it an axis, and take one of the stacked values.",
    )


def _is_none(value: Any) -> bool:
    return value is None

"""A body in two parts: a prologue, which computes its initial values, and a remainder, which receives them.

A transformation that turns its body into one equation, such as `jax.checkpoint`, passes all operands to that equation.
A loop around it could then not see that an initial value depends on a key alone. So a `Split` traces the body once, to
a jaxpr that has the initial values among its outputs. A `Prologue` evaluates the equations that they need outside the
loop or call, and the remainder is the body without them. Equations with effects that an initial value needs run only
in the prologue.

An initial value may read everything that was computed before it in the body, including other initial values. `depends`
has the operands that each of them reads, and `earlier` the other initial values; a prologue follows that order.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex

from .._compat import has_effect
from ..texts import path_text
from ..typing import PyTree
from .changes import with_created
from .checks import check_marked, check_shared
from .equations import Step, batches, cut, flat_jaxpr_of, narrowed, needed, opened, pick, steps_of, variables_of
from .previews import given_previews, previews_in
from .reuse import run_part

if TYPE_CHECKING:
    from .body import Body

__all__ = ["Part", "Prologue", "Split", "closure_convert", "trace"]


class Split:
    """One run of `fn(*operands) -> (created, outputs)`, as a jaxpr that can be cut into parts.

    The initial values are the leaves of `created`. Below, a *number* is the index of an initial value, *picks* has one
    bool for each of them that tells whether it is chosen, and a *place* is the index of a leaf of the operands.

    For a body (`Body.split`), `created` has one pytree for each output group. `outputs` has the result and the last
    values of variables, with one pytree for each output group.

    Args:
        closed: the jaxpr.
        sizes: the number of leaves of each operand.
        structure: the pytree structure of the return value of `fn`.
        body: the body that it is of; the scopes outside will hold the initial values.

    Attributes:
        jaxpr: the jaxpr, with its constants as its first inputs.
        steps: its equations.
        created: the types of the initial values, as a pytree.
        outputs: the types of the other outputs.
        previews: maps the variables of the jaxpr that are previews to the numbers of their initial values.
        earlier: for each initial value, the numbers of those that it reads directly or indirectly.
    """

    def __init__(self, closed: jex.ClosedJaxpr, sizes: Sequence[int], structure: Any, body: Body | None = None) -> None:
        self.jaxpr, self._consts, self._sizes, self.body = opened(closed), list(closed.consts), sizes, body
        avals = [atom.aval for atom in closed.jaxpr.outvars]
        self.created, self.outputs = jax.tree.unflatten(structure, avals)
        self._treedef: Any = jax.tree.structure(self.created)
        self._count = len(jax.tree.leaves(self.created))
        self.steps = steps_of(self.jaxpr)
        places = [] if body is None else [outer.path for outer in body.outers]
        self.previews = previews_in(self.steps, self.created, places)
        self._sources, self.earlier = self._read_by()

    @property
    def consts(self) -> list[Any]:
        """The arrays that the function closed over."""
        return list(self._consts)

    @property
    def outvars(self) -> list[Any]:
        """The variables of the initial values."""
        return self.jaxpr.outvars[: self._count]

    def closed_over(self, consts: Sequence[Any]) -> Split:
        """Return the same function, of no body, with other closed-over arrays of the same types."""
        other = self.within(None)
        other._consts = list(consts)
        return other

    def within(self, body: Body | None) -> Split:
        """Return the same split for another body, or for none: a split that is kept must not keep scopes."""
        other = copy.copy(self)
        other.body = body
        return other

    @property
    def depends(self) -> list[frozenset[int]]:
        """For each initial value, the indices of the operands that it depends on."""
        return self._operands(self._sources)

    @property
    def earlier_if_given(self) -> list[frozenset[int]]:
        """As `earlier`, but with the initial values that are read as previews: a loop that carries them reads them."""
        if not self.previews:
            return self.earlier
        return self._numbers(self._masks(through_previews=True)[1])

    def reads(self) -> PyTree:
        """Return `depends` as a pytree like `created`."""
        return jax.tree.unflatten(self._treedef, self.depends)

    def output_reads(self) -> tuple[PyTree, PyTree]:
        """Return what `reads` and `earlier` are for the other outputs of the body, as two pytrees like `outputs`."""
        outvars, found = self.jaxpr.outvars[self._count :], self._masks()[0]
        masks = [found.get(var, 0) if not isinstance(var, jex.Literal) else 0 for var in outvars]
        treedef = jax.tree.structure(self.outputs)
        reads = jax.tree.unflatten(treedef, self._operands(self._places(masks)))
        return reads, jax.tree.unflatten(treedef, self._numbers(masks))

    def levels(self, picks: Sequence[bool]) -> Iterator[list[bool]]:
        """Yield the chosen initial values in groups; each group follows the ones that it reads."""
        level = [0] * self._count
        # Reads are transitive, so a value that reads fewer others comes first.
        for number in sorted(range(self._count), key=lambda number: len(self.earlier[number])):
            level[number] = 1 + max((level[one] for one in self.earlier[number]), default=-1)
        for now in sorted(set(pick(level, picks))):
            yield [chosen and one == now for one, chosen in zip(level, picks, strict=True)]

    def mixes(self, axes: Sequence[Any] | None) -> bool:
        """Whether an initial value without an axis in a batch reads one that has an axis."""
        along = axes or ()
        return any(
            axis is None and any(along[number] is not None for number in earlier)
            for axis, earlier in zip(along, self.earlier, strict=False)
        )

    def alike(self, picks: Sequence[bool]) -> Iterator[list[bool]]:
        """Yield the chosen initial values in groups that depend on the same leaves of the operands."""
        for source in dict.fromkeys(pick(self._sources, picks)):
            yield [chosen and places == source for chosen, places in zip(picks, self._sources, strict=True)]

    @property
    def parts(self) -> list[int]:
        """For each initial value, the index of its part in the sequence `created`."""
        return [index for index, part in enumerate(self.created) for _ in jax.tree.leaves(part)]

    def numbers(self, *parts: int) -> list[bool]:
        """For each initial value, whether it is in one of the given parts of `created`."""
        return [part in parts for part in self.parts]

    def types(self, picks: Sequence[bool]) -> list[Any]:
        """The types of the chosen initial values."""
        return [var.aval for var in pick(self.outvars, picks)]

    def picks(self, numbers: Container[int]) -> list[bool]:
        """For each initial value, whether its number is in `numbers`."""
        return [number in numbers for number in range(self._count)]

    def read_by(self, picks: Sequence[bool]) -> list[bool]:
        """For each initial value, whether one of the chosen ones reads it."""
        return self.picks(frozenset().union(*pick(self.earlier, picks)))

    @property
    def names(self) -> list[str]:
        """For each initial value, the name of its variable, for error messages; `created` must consist of groups."""
        paths = [path for path, _ in jax.tree.leaves_with_path(self.created)]
        return [path_text(path[2:]) for path in paths]

    def tree(self, picks: Sequence[bool] | None, values: Iterable[Any]) -> PyTree:
        """Return a pytree like `created` with the chosen initial values, and None for the others."""
        now = iter(values)
        return jax.tree.unflatten(self._treedef, [next(now) if chosen else None for chosen in self.all(picks)])

    def remaining(self, picks: Sequence[bool]) -> Part:
        """Return the body as a part that takes the chosen initial values as inputs and computes the others first."""
        kept, chosen = [not one for one in picks], pick(self.jaxpr.outvars, picks)
        outvars = pick(self.outvars, kept) + self.jaxpr.outvars[self._count :]
        made = set(chosen)
        given = {var: self.outvars[number] for var, number in self.previews.items() if picks[number]}
        steps = [step for step in given_previews(self.steps, given) if made.isdisjoint(step.eqn.outvars)]
        effects = {id(step) for step in steps if has_effect(step.eqn)} if self.jaxpr.effects else set()
        if effects:  # effects that a chosen value needed have run with it, and must not run again
            effects -= {id(step) for step in needed(self.steps, chosen)}
        return self._cut(chosen, needed(steps, outvars, effects, made), outvars)

    def narrowed(self, picks: Sequence[bool] | None = None, ruled: bool = True) -> Split:
        """Return the split in which chosen values (None: all outputs) read only what they, or their rules, need."""
        other, chosen = copy.copy(self), self.jaxpr.outvars if picks is None else pick(self.outvars, picks)
        other.steps = narrowed(self.jaxpr, self.steps, chosen, ruled)
        other._sources, other.earlier = other._read_by()
        return other

    @property
    def values(self) -> list[PyTree]:
        """For a body: the types of the last values of variables, as one pytree for each output group."""
        values: list[PyTree] = self.outputs[1]
        return values

    def prologue(self, *operands: PyTree, form: Callable[[int, Any], Any] | None = None) -> list[PyTree]:
        """Compute the initial values of a body, each after those that it reads, in the form that scopes outside hold.

        Args:
            *operands: the arguments of the body; None for an operand that no initial value reads.
            form: maps the number of an initial value and the value to the value that is held outside.

        Returns:
            One pytree for each output group, and the results of effects.
        """
        return self._made(Prologue(self, self.leaves(operands)), None, form)

    def batched_prologue(
        self, batch: Callable[..., Any], operands: Sequence[PyTree], in_axes: Sequence[Any], group_axes: Sequence[Any]
    ) -> list[PyTree]:
        """Compute the initial values of all elements of a batch; see `prologue`.

        Args:
            batch: runs equations for a batch: `batch(part, in_axes, out_axes) -> callable`, such as `jax.vmap`.
            operands: the arguments of the body, for all elements.
            in_axes: a pytree prefix of the operands: the axis along which elements differ, or None.
            group_axes: for each part of `created`, the axis along which its values are stacked, or None.

        Raises:
            LoopInvarianceError: if a group has no axis, but an initial value in it differs between elements.
        """
        parts: list[Any]
        treedef: Any
        parts, treedef = jax.tree.flatten(tuple(in_axes), is_leaf=lambda axis: axis is None)
        pairs = zip(parts, treedef.flatten_up_to(tuple(operands)), strict=True)
        along = [axis for axis, part in pairs for _ in jax.tree.leaves(part)]
        axes = [group_axes[part] for part in self.parts]
        try:
            return self._made(Prologue(self, self.leaves(operands), along, batch), axes, None)
        except ValueError as error:
            if self.body is not None:
                check_shared(self.body, self.names, axes, along, (self._sources, self.earlier), error)
            raise

    def _made(
        self, prologue: Prologue, axes: Sequence[Any] | None, form: Callable[[int, Any], Any] | None
    ) -> list[PyTree]:
        prologue.make(None, axes, form)
        created: list[PyTree] = prologue.tree()
        if self.body is not None:
            self.body.made(created[: len(self.values)])
        return created

    def remainder(self, created: Sequence[PyTree], *operands: PyTree) -> tuple[PyTree, list[PyTree]]:
        """Run the rest of the body on given initial values. It is pure, so it can go under a JAX transformation.

        Args:
            created: the initial values, as `prologue` returned them.
            *operands: the operands of the body.

        Returns:
            The result, and the last values of variables as one pytree for each output group.
        """
        result, values = self.rest(None, created, *operands)[1]
        return result, values

    def join(
        self, created: Sequence[PyTree], result: PyTree, values: Sequence[PyTree]
    ) -> tuple[PyTree, tuple[Any, ...]]:
        """Return the result and the output groups, which a transformation must return.

        Args:
            created: the initial values, as `prologue` returned them.
            result: what the remainder returned.
            values: the last values, as the remainder returned them.
        """
        return with_created(created[: len(values)], result, values)

    def rest(self, picks: Sequence[bool] | None, created: PyTree, *operands: PyTree) -> tuple[PyTree, PyTree]:
        """Run the body with the chosen initial values as inputs, instead of computing them.

        Returns:
            The pytree of the initial values that were not chosen (None for the others), and the other outputs.
        """
        picks = self.all(picks)
        run = self.remaining(picks)
        given = pick(self._treedef.flatten_up_to(created), picks)
        return self.as_trees(picks, run(*given, *run.of(self.leaves(operands))))

    def as_trees(self, picks: Sequence[bool], values: Iterable[Any]) -> tuple[PyTree, PyTree]:
        """Return the outputs of the remainder as the pytrees that `rest` returns."""
        now = iter(values)
        left = self.tree([not chosen for chosen in picks], now)
        return left, jax.tree.unflatten(jax.tree.structure(self.outputs), list(now))

    def all(self, picks: Sequence[bool] | None = None) -> Sequence[bool]:
        """Return the picks, or all True if they are None."""
        return [True] * self._count if picks is None else picks

    def leaves(self, operands: Sequence[PyTree]) -> list[Any]:
        """Return all leaves of the operands, and Nones for an operand that is None."""
        leaves: list[Any] = []
        for operand, size in zip(operands, self._sizes, strict=True):
            leaves += [None] * size if operand is None else jax.tree.leaves(operand)
        return leaves

    def with_effects(self) -> Split:
        """Return the same split with the results of effects that initial values use as one more part of `created`.

        So each of these effects runs once, however many initial values read its result, and whether or not the rest of
        the body reads it too.
        """
        other = copy.copy(self)
        given = self._given_by_effects() if self.jaxpr.effects else []
        if given:
            outvars = [*self.outvars, *given, *self.jaxpr.outvars[self._count :]]
            other.jaxpr = self.jaxpr.replace(outvars=outvars)  # type: ignore[no-untyped-call]
            other._count += len(given)
            other._sources, other.earlier = other._read_by()
        other.created = [*self.created, [var.aval for var in given]]
        other._treedef = jax.tree.structure(other.created)
        return other

    def _given_by_effects(self) -> list[Any]:
        """Return the results of those equations with effects that initial values need."""
        makers = [step for step in needed(self.steps, self.outvars) if has_effect(step.eqn)]
        if not makers:
            return []
        read = set(variables_of(self.jaxpr.outvars)).union(*[step.reads for step in self.steps])
        read.difference_update(variables_of(self.outvars))
        return [var for step in makers for var in step.eqn.outvars if var in read]

    def _cut(self, given: list[Any], steps: list[Any], outvars: Sequence[Any]) -> Part:
        """Return some equations as a function of given values and of the leaves that they read."""
        first = len(self._consts)
        constvars, invars = self.jaxpr.invars[:first], self.jaxpr.invars[first:]
        used = set(variables_of(outvars)).union(*[step.reads for step in steps])
        places = [place for place, var in enumerate(invars) if var in used]
        inputs = [*constvars, *given, *[invars[place] for place in places]]
        return Part(cut(self.jaxpr, inputs, steps, outvars), places, self._consts)

    def _read_by(self) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
        """Return what each initial value reads: the places of leaves (negative for constants), and other numbers."""
        masks = self._masks()[1]
        return self._places(masks), self._numbers(masks)

    def _masks(self, through_previews: bool = False) -> tuple[dict[Any, int], list[int]]:
        """Return the dependences of each variable and of each initial value, as bits.

        Each leaf has a bit. Each initial value has a bit too, from the equation that computes it onwards or, with
        `through_previews`, from the equations that preview it.
        """
        invars, size = self.jaxpr.invars, len(self.jaxpr.invars)
        numbers = {var: number for number, var in enumerate(self.outvars) if not isinstance(var, jex.Literal)}
        # Bits of one int: a body may have thousands of equations, and sets that grow along them are far slower.
        masks = {var: 1 << place for place, var in enumerate(invars)}
        found = [masks.get(var, 0) if not isinstance(var, jex.Literal) else 0 for var in self.outvars]
        for step in self.steps:
            mask = functools.reduce(operator.or_, [masks.get(var, 0) for var in step.reads], 0)
            if mask:
                masks |= dict.fromkeys(step.eqn.outvars, mask)
            for var in step.eqn.outvars:
                if through_previews and var in self.previews:
                    masks[var] = mask | 1 << size + self.previews[var]
                if var in numbers:  # it depends on its inputs, and its readers depend on it
                    found[numbers[var]] = mask
                    masks[var] = mask | 1 << size + numbers[var]
        return masks, found

    def _places(self, masks: Sequence[int]) -> list[frozenset[int]]:
        """Return the places of the leaves in masks."""
        first, size = len(self._consts), len(self.jaxpr.invars)
        return [frozenset([place - first for place in range(size) if mask >> place & 1]) for mask in masks]

    def _numbers(self, masks: Sequence[int]) -> list[frozenset[int]]:
        """Return the numbers of the initial values in masks."""
        size = len(self.jaxpr.invars)
        return [frozenset([number for number in range(self._count) if mask >> size + number & 1]) for mask in masks]

    def _operands(self, places: Sequence[frozenset[int]]) -> list[frozenset[int]]:
        """Return the operands that leaves belong to."""
        ends = list(itertools.accumulate(self._sizes))
        return [frozenset([bisect.bisect_right(ends, place) for place in some if place >= 0]) for some in places]


class Prologue:
    """Computes the initial values of a body, each after those that it reads.

    It evaluates the jaxpr step by step: it stores the values of some of its variables and, to compute more of them,
    runs the equations that are still needed.

    Args:
        split: the body.
        leaves: the leaves of its operands; None for a leaf that no value to be computed here reads.
        axes: for each leaf, the axis along which the elements of a batch differ; None without a batch.
        batch: runs equations for a batch: `batch(part, in_axes, out_axes) -> callable`, such as `jax.vmap`.

    Attributes:
        split: the body.
        values: for each initial value, the value that is held outside, or None if it was not computed.
    """

    def __init__(
        self,
        split: Split,
        leaves: Sequence[Any],
        axes: Sequence[Any] | None = None,
        batch: Callable[..., Callable[..., Any]] | None = None,
    ) -> None:
        self.split, self._batch = split, batch
        invars = split.jaxpr.invars
        axes = [None] * len(leaves) if axes is None else axes
        given = [*((const, None) for const in split.consts), *zip(leaves, axes, strict=True)]
        self._known: dict[Any, tuple[Any, Any]] = dict(zip(invars, given, strict=True))
        self.values: list[Any] = [None] * len(split.outvars)

    def know(self, number: int, value: Any, axis: Any = None) -> None:
        """Set an initial value that was computed elsewhere, for the values that read it."""
        self._known |= dict.fromkeys([self.split.outvars[number], *self._previews(number)], (value, axis))

    def _previews(self, number: int) -> list[Any]:
        """Return the variables of the jaxpr that are previews of an initial value."""
        return [var for var, of in self.split.previews.items() if of == number]

    def forget(self, picks: Sequence[bool]) -> None:
        """Forget the chosen initial values, so that they are computed again."""
        for number in itertools.compress(range(len(self.values)), picks):
            for var in (self.split.outvars[number], *self._previews(number)):
                self._known.pop(var, None)

    def replace(self, number: int, value: Any) -> None:
        """Replace an initial value, both here and outside."""
        self.know(number, value)
        self.values[number] = value

    def see(self, leaves: Sequence[Any]) -> None:
        """Replace the leaves of the operands, for the values that are computed from now on."""
        invars = self.split.jaxpr.invars[len(self.split.consts) :]
        self._known |= {var: (leaf, None) for var, leaf in zip(invars, leaves, strict=True)}

    def make(
        self,
        picks: Sequence[bool] | None = None,
        axes: Sequence[Any] | None = None,
        form: Callable[[int, Any], Any] | None = None,
    ) -> None:
        """Compute initial values in the form that the scopes outside hold, each after those that it reads.

        Args:
            picks: for each of them, whether to compute it; None for all.
            axes: for each of them, the axis along which the values of a batch are stacked; None for a shared value.
            form: maps the number of an initial value and the value to the value that is held outside.
        """
        split, body = self.split, self.split.body
        picks = split.all(picks)
        nested = body is not None and body.nested
        if not nested and not split.mixes(axes):
            self.evaluate(picks, axes, form)
            return

        def bind(number: int, value: Any) -> Any:
            value = value if form is None else form(number, value)
            return value if body is None else body.bind(value)

        # An outer split sees equations. If one equation, such as a `vmap` of a call, computed two initial values, both
        # would seem to depend on all that it reads. So values that depend on different operands are computed
        # separately, and each is bound before another one reads it. In a batch too, a value that all elements share
        # must read a mapped value as it will be in `apply`: batched.
        for level in split.levels(picks):
            for part in split.alike(level):
                self.evaluate(part, axes, bind)

    def evaluate(
        self,
        picks: Sequence[bool],
        axes: Sequence[Any] | None = None,
        bind: Callable[[int, Any], Any] | None = None,
    ) -> None:
        """Compute the chosen initial values at once; if they read each other, they read the unbound values.

        Args:
            picks: for each initial value, whether it is chosen.
            axes: for each of them, the axis along which the values of a batch are stacked; None for a shared value.
            bind: maps the number of an initial value and the value to the value that is held outside. Later values read
                the mapped value. So a value that others read must be computed before them, in a separate call.
        """
        split = self.split
        numbers = [number for number, chosen in enumerate(picks) if chosen]
        if not numbers:
            return
        outvars = pick(split.outvars, picks)
        steps = needed(split.steps, outvars, known=self._known)
        effects = self._given_by_effects(steps, outvars) if split.jaxpr.effects else []
        out_axes = [None if axes is None else axes[number] for number in numbers]
        along = [None if self._batch is None else 0 for _ in effects]
        made = self._run(steps, [*outvars, *effects], [*out_axes, *along])
        for number, var, value, axis in zip(numbers, outvars, made, out_axes, strict=False):
            self.values[number] = value if bind is None else bind(number, value)
            if not isinstance(var, jex.Literal):
                self.know(number, self.values[number], axis)
        self._known |= dict(zip(effects, zip(made[len(numbers) :], along, strict=True), strict=True))

    def _given_by_effects(self, steps: Sequence[Step], outvars: Sequence[Any]) -> list[Any]:
        """Return the results of effects that later values read: an effect must not run again."""
        makers = [step for step in steps if has_effect(step.eqn)]
        if not makers:
            return []
        now = {id(step) for step in steps}
        read = set().union(*[step.reads for step in self.split.steps if id(step) not in now])
        read.difference_update(variables_of(outvars))
        return [var for step in makers for var in step.eqn.outvars if var in read]

    def _run(self, steps: Sequence[Step], outvars: Sequence[Any], out_axes: Sequence[Any]) -> list[Any]:
        """Return the values of some variables, computed by the given equations."""
        # Dicts, not sets: they keep the order of the equations, so equal bodies give equal programs.
        used = dict.fromkeys(var for step in steps for var in step.reads if var in self._known)
        inputs = list(used | dict.fromkeys(var for var in variables_of(outvars) if var in self._known))
        run: Callable[..., list[Any]] = Part(cut(self.split.jaxpr, inputs, steps, outvars), [], [])
        if self._batch is not None:
            run = self._batch(run, [self._known[var][1] for var in inputs], out_axes)
        return run(*[self._known[var][0] for var in inputs])

    def tree(self, picks: Sequence[bool] | None = None) -> PyTree:
        """Return a pytree like `created` with the chosen initial values that were computed, and None for the others."""
        return self.split.tree(picks, pick(self.values, self.split.all(picks)))


class Part:
    """Some equations of a body, as a function of given values and of the leaves of the operands that they read.

    Args:
        jaxpr: the equations; its inputs are the constants, the given values, and these leaves.
        places: see below.
        consts: the constants.

    Attributes:
        places: the indices, among all leaves of the operands, of the leaves that it takes.
    """

    def __init__(self, jaxpr: jex.Jaxpr, places: list[int], consts: Sequence[Any]) -> None:
        self._jaxpr, self.places, self._consts = jaxpr, places, consts

    def of(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the leaves of the operands that it takes."""
        return [leaves[place] for place in self.places]

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the equations and return their outputs."""
        return run_part(self._jaxpr, *self._consts, *inputs)

    @property
    def can_be_batched(self) -> bool:
        """Whether `jax.vmap` of it gives the same values as running it for one element after another."""
        return batches(self._jaxpr)


def trace(
    fn: Callable[..., tuple[PyTree, PyTree]],
    *operands: PyTree,
    axes: Sequence[tuple[Any, int]] = (),
    body: Body | None = None,
    use: Body | None = None,
) -> Split:
    """Trace `fn(*operands) -> (created, outputs)` once, without computing anything.

    Args:
        fn: a pure function.
        *operands: pytrees of arrays or of their types.
        axes: the names and sizes of the mapped axes that `fn` may use.
        body: the body that it is of; the scopes outside will hold the initial values.
        use: deprecated; the former name of `body`.
    """
    if use is not None:
        warnings.warn("`use` is now named `body`, and leaves in 0.4. Write `trace(…, body=…)`.", DeprecationWarning, 2)
        body = use
    with contextlib.nullcontext() if body is None else body.being_split():
        closed, structure = flat_jaxpr_of(fn, *operands, axes=axes)
    if body is not None:
        check_marked(closed.jaxpr, structure.children()[0].num_leaves, body)
    return Split(closed, [len(jax.tree.leaves(operand)) for operand in operands], structure, body)


def closure_convert(
    fn: Callable[..., PyTree], *operands: PyTree, axes: Sequence[tuple[Any, int]] = ()
) -> tuple[Callable[..., PyTree], list[Any], PyTree]:
    """Return a function as one without closed-over arrays, for JAX functions that keep their argument.

    Args:
        fn: a pure function.
        *operands: pytrees of arrays or of their types.
        axes: the names and sizes of the mapped axes that `fn` may use.

    Returns:
        `converted(consts, *operands)`, the arrays that `fn` closed over, and the types of its result.
    """
    split = trace(lambda *operands: ((), fn(*operands)), *operands, axes=axes)
    consts, bare = split.consts, split.closed_over(())

    def converted(consts: Sequence[Any], *operands: PyTree) -> PyTree:
        return bare.closed_over(consts).rest(None, (), *operands)[1]

    return converted, consts, split.outputs

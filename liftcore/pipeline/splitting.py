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

import copy
import dataclasses
import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex

from .._compat import has_effect
from ..texts import path_text
from ..typing import PyTree
from ..values import INITIAL_VALUE, previews_in
from .checks import not_shared, not_tagged
from .equations import Step, cut, evaluate, flat_jaxpr_of, needed, opened, steps_of, variables_of
from .narrowing import narrowed
from .reuse import LOOPS, run_loops
from .stages import with_created

if TYPE_CHECKING:
    from .body import Body

__all__ = ["Part", "Prologue", "Split", "closure_convert", "trace"]


class Split:
    """One run of `fn(*operands) -> (created, outputs)`, as a jaxpr that can be cut into parts.

    The initial values are the leaves of `created`, and the *number* of an initial value is its index. Some of them are
    given by the set of their numbers, their values by a dict from numbers, or by a pytree with None for the others.

    A transformation of your own uses `prologue` or `batched_prologue`, `remainder` and `join`. The lifts of liftcore
    use the other methods and attributes; they may change in any release.

    `Body.split` makes one. A loop makes its own with `trace`, because it may trace again to cast a carry, and `jit`
    makes one of the trace that JAX keeps.

    For a body (`Body.split`), `created` has one pytree for each output group. `outputs` has the result and the last
    values of variables, with one pytree for each output group.

    Args:
        closed: the jaxpr.
        sizes: the number of leaves of each operand.
        structure: the pytree structure of the return value of `fn`.
        body: the body that it is of; the scopes outside will hold the initial values.

    Attributes:
        jaxpr: the jaxpr, with its constants as its first inputs.
        consts: the constants: the arrays that the function closed over.
        steps: its equations.
        created: the types of the initial values, as a pytree.
        outputs: the types of the other outputs.
        numbers: the numbers of all initial values.
        outvars: the variables of the initial values in the jaxpr.
        variables: for each initial value, the variables of the jaxpr that have it: its own, and its previews.
        previews: maps the variables of the jaxpr that are previews to the numbers of their initial values.
        earlier: for each initial value, the numbers of those that it reads directly or indirectly.
    """

    def __init__(self, closed: jex.ClosedJaxpr, sizes: Sequence[int], structure: Any, body: Body | None = None) -> None:
        self.jaxpr, self.consts, self._sizes, self.body = opened(closed), list(closed.consts), sizes, body
        avals = [atom.aval for atom in closed.jaxpr.outvars]
        self.created, self.outputs = jax.tree.unflatten(structure, avals)
        self._treedef: Any = jax.tree.structure(self.created)
        self.steps = steps_of(self.jaxpr)
        tagged = {step.tag: step.eqn.outvars[0] for step in self.steps if step.tag not in ("", INITIAL_VALUE)}
        places = [] if body is None else [outer.path for outer in body.outers]
        self.previews = previews_in(tagged, self.created, places) if tagged else {}
        self._note_reads()

    def numbers_in(self, part: int) -> frozenset[int]:
        """Return the numbers of the initial values in one part of the sequence `created`."""
        return frozenset([number for number, one in enumerate(self.parts) if one == part])

    def closed_over(self, consts: Sequence[Any]) -> Split:
        """Return the same function, of no body, with other closed-over arrays of the same types."""
        other = copy.copy(self)
        other.body, other.consts = None, list(consts)
        return other

    def within(self, body: Body | None) -> Split:
        """Return the same split for another body, or for none: a split that is kept must not keep scopes."""
        other = copy.copy(self)
        other.body = body
        return other

    @property
    def depends(self) -> list[frozenset[int]]:
        """For each initial value, the indices of the operands that it depends on."""
        return list(map(self._operands_in, self._reads))

    @property
    def earlier_if_given(self) -> list[frozenset[int]]:
        """As `earlier`, but with the initial values that are read as previews: a loop that carries them reads them."""
        if not self.previews:
            return self.earlier
        return list(map(self._numbers_in, self._masks(self.outvars, through_previews=True)))

    def reads(self) -> PyTree:
        """Return `depends` as a pytree like `created`."""
        return jax.tree.unflatten(self._treedef, self.depends)

    def output_reads(self) -> tuple[PyTree, PyTree]:
        """Return what `reads` and `earlier` are for the other outputs of the body, as two pytrees like `outputs`."""
        masks = self._masks(self.jaxpr.outvars[len(self.numbers) :])
        like = jax.tree.structure(self.outputs)
        operands, numbers = map(self._operands_in, masks), map(self._numbers_in, masks)
        return jax.tree.unflatten(like, operands), jax.tree.unflatten(like, numbers)

    def in_order(self, numbers: Iterable[int]) -> Iterable[list[int]]:
        """Return the chosen initial values in groups: those that read the same, after those that they read.

        Reads are transitive, so a value that reads fewer others comes first.
        """
        groups: dict[int, list[int]] = {}
        for number in sorted(numbers, key=lambda number: len(self.earlier[number])):
            groups.setdefault(self._reads[number], []).append(number)
        return groups.values()

    @property
    def parts(self) -> list[int]:
        """For each initial value, the index of its part in the sequence `created`."""
        return [index for index, part in enumerate(self.created) for _ in jax.tree.leaves(part)]

    @property
    def names(self) -> list[str]:
        """For each initial value, the name of its variable, for error messages; `created` must consist of groups."""
        paths = [path for path, _ in jax.tree.leaves_with_path(self.created)]
        return [path_text(path[2:]) for path in paths]

    def tree(self, values: Mapping[int, Any]) -> PyTree:
        """Return a pytree like `created` with some initial values, by number, and None for the others."""
        return jax.tree.unflatten(self._treedef, list(map(values.get, self.numbers)))

    def remaining(self, given: Collection[int]) -> Part:
        """Return the body as a part that takes some initial values, in order, and computes the others first."""
        chosen = [var for number, var in enumerate(self.jaxpr.outvars) if number in given]
        outvars = [var for number, var in enumerate(self.jaxpr.outvars) if number not in given]
        steps, known = self._with_previews(given) if self.previews else self.steps, set(chosen)
        effects = {id(step) for step in steps if has_effect(step.eqn)} if self.jaxpr.effects else set()
        if effects:  # effects that a chosen value needed have run with it, and must not run again
            effects -= {id(step) for step in needed(self.steps, chosen)}
        steps = needed(steps, outvars, effects, known)
        used = {var for var in outvars if not isinstance(var, jex.Literal)}.union(*[step.reads for step in steps])
        first = len(self.consts)
        places = [place for place, var in enumerate(self.jaxpr.invars[first:]) if var in used]
        inputs = [*self.jaxpr.invars[:first], *chosen, *[self.jaxpr.invars[first + place] for place in places]]
        return Part(cut(self.jaxpr, inputs, steps, outvars), places, self.consts)

    def _with_previews(self, given: Collection[int]) -> list[Step]:
        """Return the equations with each preview of an initial value that is given replaced by that value."""
        now = {var: self.outvars[number] for var, number in self.previews.items() if number in given}
        return [
            Step(step.eqn.replace(invars=[now[step.eqn.outvars[0]]]), [now[step.eqn.outvars[0]]])
            if step.tag and step.eqn.outvars[0] in now
            else step
            for step in self.steps
        ]

    def narrowed(self, numbers: Iterable[int] | None = None, ruled: bool = True) -> Split:
        """Return the split in which some values (None: all outputs) read only what they, or their rules, need."""
        outvars = self.jaxpr.outvars
        chosen = outvars if numbers is None else [outvars[number] for number in numbers]
        other = copy.copy(self)
        other.steps = narrowed(self.jaxpr, self.steps, chosen, ruled)
        other._note_reads()
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
        return self._computed(Prologue(self, self.leaves(operands)), None, form)

    def batched_prologue(
        self,
        batch: Callable[..., Any],
        operands: Sequence[PyTree],
        in_axes: Sequence[Any],
        group_axes: Sequence[Any],
        form: Callable[[int, Any], Any] | None = None,
    ) -> list[PyTree]:
        """Compute the initial values of all elements of a batch; see `prologue`.

        Args:
            batch: runs equations for a batch: `batch(part, in_axes, out_axes) -> callable`, such as `jax.vmap`.
            operands: the arguments of the body, for all elements.
            in_axes: a pytree prefix of the operands: the axis along which elements differ, or None.
            group_axes: for each part of `created`, the axis along which its values are stacked, or None.
            form: maps the number of an initial value and its value for all elements to the value that is held outside.

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
            return self._computed(Prologue(self, self.leaves(operands), along, batch), axes, form)
        except ValueError as error:
            # The bits of all that differs between elements: leaves of the operands, and initial values.
            differs = _bits([*[None for _ in self.consts], *along, *axes])
            values = zip(self.names, axes, self._reads, strict=True)
            names = {name for name, axis, reads in values if axis is None and reads & differs}
            if names and self.body is not None:
                raise not_shared(self.body, names) from error
            raise

    def _computed(
        self, prologue: Prologue, axes: Sequence[Any] | None, form: Callable[[int, Any], Any] | None
    ) -> list[PyTree]:
        prologue.make(None, axes, form)
        created: list[PyTree] = self.tree(prologue.values)
        if self.body is not None and self.body.observer is not None:
            self.body.observer.created(created[: len(self.outputs[1])])
        return created

    def remainder(self, created: PyTree, *operands: PyTree) -> Any:
        """Run the rest of the body on given initial values. It is pure, so it can go under a JAX transformation.

        Args:
            created: the initial values, as `prologue` returned them; those that are None are computed.
            *operands: the operands of the body; None for one that is not read.

        Returns:
            The outputs: for a body, the result, and the last values of variables as one pytree for each output group.
        """
        values = enumerate(self._treedef.flatten_up_to(created))
        given = {number: value for number, value in values if value is not None}
        run, leaves = self.remaining(given), self.leaves(operands)
        _, outputs = self.as_trees(given, run(*given.values(), *[leaves[place] for place in run.places]))
        return outputs

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

    def as_trees(self, given: Collection[int], outputs: Iterable[Any]) -> tuple[PyTree, PyTree]:
        """Return, as pytrees, the initial values that `remaining(given)` computed, None for the others, and outputs."""
        now = iter(outputs)
        left = self.tree({number: next(now) for number in self.numbers if number not in given})
        return left, jax.tree.unflatten(jax.tree.structure(self.outputs), list(now))

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
        given = self.results_of_effects(needed(self.steps, self.outvars)) if self.jaxpr.effects else []
        other = copy.copy(self)
        other.created = [*self.created, [var.aval for var in given]]
        other._treedef = jax.tree.structure(other.created)
        if given:
            outvars = [*self.outvars, *given, *self.jaxpr.outvars[len(self.numbers) :]]
            other.jaxpr = self.jaxpr.replace(outvars=outvars)  # type: ignore[no-untyped-call]
            other._note_reads()
        return other

    def results_of_effects(self, steps: Iterable[Step]) -> list[Any]:
        """Return the results of those of some equations that have effects, as far as anything reads them."""
        read = set(variables_of(self.jaxpr.outvars)).union(*[step.reads for step in self.steps])
        return [var for step in steps if has_effect(step.eqn) for var in step.eqn.outvars if var in read]

    def _note_reads(self) -> None:
        """Find what the initial values read."""
        self.numbers = range(self._treedef.num_leaves)
        self.outvars: list[Any] = self.jaxpr.outvars[: len(self.numbers)]
        self.variables: list[list[Any]] = [[] if isinstance(var, jex.Literal) else [var] for var in self.outvars]
        for var, number in self.previews.items():
            self.variables[number].append(var)
        first, masks = len(self.jaxpr.invars), self._masks(self.outvars)
        self._reads = [mask & ~(1 << first + number) for number, mask in enumerate(masks)]
        self.earlier = list(map(self._numbers_in, self._reads))

    def _masks(self, atoms: Sequence[Any], through_previews: bool = False) -> list[int]:
        """Return the dependences of initial values or outputs, as bits.

        There is a bit for each constant, then for each leaf of the operands, then for each initial value, which the
        value has and what reads it or, with `through_previews`, a preview of it.
        """
        # Bits of one int: a body may have thousands of equations, and sets that grow along them are far slower.
        masks = {var: 1 << place for place, var in enumerate(self.jaxpr.invars)}
        first = len(masks)
        numbers = {var: number for number, var in enumerate(self.outvars) if not isinstance(var, jex.Literal)}
        if through_previews:
            numbers |= self.previews
        for step in self.steps:
            mask = functools.reduce(operator.or_, [masks.get(var, 0) for var in step.reads], 0)
            for var in step.eqn.outvars:
                masks[var] = mask | 1 << first + numbers[var] if var in numbers else mask
        return [0 if isinstance(atom, jex.Literal) else masks.get(atom, 0) for atom in atoms]

    def _numbers_in(self, mask: int) -> frozenset[int]:
        """Return the numbers of the initial values in a mask."""
        mask >>= len(self.jaxpr.invars)
        return frozenset([number for number in self.numbers if mask >> number & 1] if mask else ())

    def _operands_in(self, mask: int) -> frozenset[int]:
        """Return the operands that have a leaf in a mask."""
        ends = list(itertools.accumulate(self._sizes, initial=len(self.consts)))
        spans = enumerate(itertools.pairwise(ends))
        return frozenset([number for number, (begin, end) in spans if mask >> begin & (1 << end - begin) - 1])


def _bits(items: Iterable[Any]) -> int:
    """Return an int with a bit for each item, which is set unless the item is None."""
    return sum(1 << place for place, item in enumerate(items) if item is not None)


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
        values: maps the number of each initial value that is known to the value that is held outside.
    """

    def __init__(
        self,
        split: Split,
        leaves: Sequence[Any],
        axes: Sequence[Any] | None = None,
        batch: Callable[..., Callable[..., Any]] | None = None,
    ) -> None:
        self.split, self._batch = split, batch
        constants = zip(split.jaxpr.invars, split.consts, strict=False)  # its first inputs
        self._known: dict[Any, tuple[Any, Any]] = {var: (const, None) for var, const in constants}
        self.values: dict[int, Any] = {}
        self.see(leaves, axes)

    def know(self, number: int, value: Any, axis: Any = None) -> None:
        """Set an initial value, for the values that read it and for the scopes outside."""
        self.values[number] = value
        self._known |= dict.fromkeys(self.split.variables[number], (value, axis))

    def see(self, leaves: Sequence[Any], axes: Sequence[Any] | None = None) -> None:
        """Set the leaves of the operands, and their axes, for the values that are computed from now on."""
        invars = self.split.jaxpr.invars[len(self.split.consts) :]
        axes = [None] * len(leaves) if axes is None else axes
        self._known |= zip(invars, zip(leaves, axes, strict=True), strict=True)

    def make(
        self,
        numbers: Iterable[int] | None = None,
        axes: Sequence[Any] | None = None,
        form: Callable[[int, Any], Any] | None = None,
    ) -> None:
        """Compute initial values in the form that the scopes outside hold, each after those that it reads.

        Args:
            numbers: the numbers of those to compute, or to compute again; None for all.
            axes: for each of them, the axis along which the values of a batch are stacked; None for a shared value.
            form: maps the number of an initial value and the value to the value that is held outside.
        """
        split, body = self.split, self.split.body
        numbers = split.numbers if numbers is None else _in_numbers(numbers)
        for number in self.values.keys() & set(numbers):
            for var in split.variables[number]:
                self._known.pop(var, None)
        # A split around this one sees equations, and each value must be tagged there before another one reads it.
        outer = body if body is not None and body.nested else None
        if outer is not None and self._batch is None and form is None:
            self.evaluate(numbers, tagged=True)
            outer.note_tagged([self.values[number] for number in numbers])
            return

        def outer_form(number: int, value: Any) -> Any:
            value = value if form is None else form(number, value)
            return value if outer is None else outer.tag_outside(value)

        # A batch or a form changes values. If one equation, such as a loop over all elements, computed two initial
        # values, both would seem to depend on all that it reads. So those that depend on different operands are
        # computed separately. In a batch that is not nested too, a value that all elements share must read a mapped
        # value as it will be in `apply`: batched.
        pairs = () if axes is None else ((axes[one], axes[read]) for one in numbers for read in split.earlier[one])
        mixes = any(axis is None and read is not None for axis, read in pairs)
        for group in split.in_order(numbers) if outer is not None or mixes else [numbers]:
            self.evaluate(group, axes, form if outer is None else outer_form)

    def evaluate(
        self,
        numbers: Iterable[int],
        axes: Sequence[Any] | None = None,
        form: Callable[[int, Any], Any] | None = None,
        tagged: bool = False,
    ) -> None:
        """Compute the chosen initial values at once; if they read each other, they read the values as computed.

        Args:
            numbers: the numbers of the chosen ones.
            axes: for each initial value, the axis along which the values of a batch are stacked; None for a shared one.
            form: maps the number of an initial value and the value to the value that is held outside. Later values read
                the mapped value. So a value that others read must be computed before them, in a separate call.
            tagged: whether each value keeps its tag, also for those that read it.
        """
        split, numbers = self.split, _in_numbers(numbers)
        if not numbers:
            return
        outvars = [split.outvars[number] for number in numbers]
        steps = needed(split.steps, outvars, known=self._known)
        # An effect must not run again, so later values read its results.
        effects = split.results_of_effects(steps) if split.jaxpr.effects else []
        out_axes = [None if axes is None else axes[number] for number in numbers]
        along = [None if self._batch is None else 0 for _ in effects]
        read = [var for var in outvars if not isinstance(var, jex.Literal)]
        # Dicts, not sets: they keep the order of the equations, so equal bodies give equal programs.
        reads = dict.fromkeys([var for step in steps for var in step.reads] + read)
        inputs = [var for var in reads if var in self._known]
        jaxpr = cut(split.jaxpr, inputs, steps, [*effects, *outvars], set(read) if tagged else ())
        run: Callable[..., list[Any]] = Part(jaxpr)
        if self._batch is not None:
            run = self._batch(run, [self._known[var][1] for var in inputs], [*along, *out_axes])
        made = iter(run(*[self._known[var][0] for var in inputs]))
        self._known |= {var: (next(made), axis) for var, axis in zip(effects, along, strict=True)}
        for number, value, axis in zip(numbers, made, out_axes, strict=True):
            self.know(number, value if form is None else form(number, value), axis)

    def tree(self, numbers: AbstractSet[int] | None = None) -> PyTree:
        """Return a pytree like `created` with the chosen initial values that are known, and None for the others."""
        known = self.values.items()
        return self.split.tree({number: value for number, value in known if numbers is None or number in numbers})


def _in_numbers(chosen: Iterable[int]) -> list[int]:
    """Return chosen numbers in order."""
    numbers = list(chosen)
    if True in [isinstance(number, bool) for number in numbers]:
        text = "Initial values are now chosen by numbers; bools leave in 0.4. Write `{0, 2}` for [True, False, True]."
        warnings.warn(text, DeprecationWarning, 3)
        return [number for number, one in enumerate(numbers) if one]
    return sorted(numbers)


@dataclasses.dataclass(eq=False, repr=False)  # JAX takes the text of a function that has no name
class Part:
    """Some equations of a body, as a function of given values and of the leaves of the operands that they read.

    Attributes:
        jaxpr: the equations; its inputs are the constants, the given values, and the leaves.
        places: the indices, among all leaves of the operands, of the leaves that it takes.
        consts: the constants.
    """

    jaxpr: jex.Jaxpr
    places: Sequence[int] = ()
    consts: Sequence[Any] = ()

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the equations and return their outputs."""
        loops = any(eqn.primitive in LOOPS for eqn in self.jaxpr.eqns)
        return (run_loops if loops else evaluate)(self.jaxpr, *self.consts, *inputs)

    @property
    def can_be_batched(self) -> bool:
        """Whether `jax.vmap` of it gives the same values as running it for one element after another.

        It does not keep the order of effects. Of all key types, only threefry keys give each element its own draw.
        """
        kinds = {var.aval.dtype for step in steps_of(self.jaxpr) for var in (*step.reads, *step.eqn.outvars)}
        keys = {kind for kind in kinds if jax.numpy.issubdtype(kind, jax.dtypes.prng_key)}
        return not self.jaxpr.effects and keys <= {_threefry()}


@functools.cache
def _threefry() -> Any:
    """Return the dtype of JAX's default keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


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
    splitting: list[Any] = [] if body is None else body.splitting
    splitting.append(body)
    try:
        closed, structure = flat_jaxpr_of(fn, *operands, axes=axes)
    finally:
        splitting.pop()
    split = Split(closed, [len(jax.tree.leaves(operand)) for operand in operands], structure, body)
    if body is not None:  # initial values without tags could not be separated from what is computed from them
        tagged = {step.eqn.outvars[0] for step in split.steps if step.tag == INITIAL_VALUE}
        if not all(not isinstance(var, jex.Literal) and var in tagged for var in split.outvars):
            raise not_tagged(body)
    return split


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
        return bare.closed_over(consts).remainder((), *operands)

    return converted, consts, split.outputs

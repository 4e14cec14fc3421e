"""Steps: bodies that read only, as functions of operands alone, of which JAX finds the trace again.

JAX keeps the trace of what a loop or a checkpoint runs with the function itself. So a use of a lift that is equal to an
earlier one, at the same place of the model, runs the same `Step`; and its Python does not run. A step closes over no
tracer, and it knows the use that it is traced for only while that lasts. What the body did that is no array, the names
that it took and the keys that it drew, rides home in the pytree structure of its outputs, where JAX keeps it too.

A use is found again only where everything in it is compared by value, and is equal to nothing that does otherwise.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from ..layout import Layout, Record
from ..packing import Crossing, Pure, name_of
from ..tree import Node, plain_word
from ..typing import Predicate, PyTree
from .sharing import is_exact, is_plain, is_plain_filter, is_plain_structure

__all__ = ["Body", "Steps", "run"]

_KEPT = 256
"""How many steps of different uses are kept."""

_OPERANDS = inspect.signature(lambda *operands: None)
"""A signature that is known: JAX asks for that of each function that it traces, and working it out takes time."""

Form: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes of `traced(tracers, *operands) -> (result, record)` the function that a transformation takes."""


class Whole(NamedTuple):
    """What a body is given beside its operands, less the tracers among it.

    Attributes:
        treedef: its structure.
        others: for each leaf None if it is a tracer, else its type and value.
    """

    treedef: Any
    others: tuple[Any, ...]

    @classmethod
    def of(cls, given: PyTree) -> tuple[list[Any], Whole]:
        """The tracers, and the rest."""
        leaves, treedef = jax.tree.flatten(given)
        others = [None if _is_traced(leaf) else (type(leaf), leaf) for leaf in leaves]
        return [leaf for leaf, other in zip(leaves, others, strict=True) if other is None], cls(treedef, tuple(others))

    def join(self, tracers: Sequence[Any]) -> PyTree:
        """All of it again."""
        now = iter(tracers)
        return jax.tree.unflatten(self.treedef, [next(now) if one is None else one[1] for one in self.others])

    @property
    def is_plain(self) -> bool:
        """Whether what is no tracer can be told from others by comparing."""
        return all(one is None or is_plain(one[1]) for one in self.others)


def _is_traced(leaf: Any) -> bool:
    """Whether a value is a traced array: a reference to one may be closed over, but not carried."""
    return isinstance(leaf, jax.core.Tracer) and isinstance(jax.typeof(leaf), jax.core.ShapedArray)


class Now(threading.local):
    """The use of a lift that a body is traced for, in one thread, while that lasts."""

    crossing: Crossing | None = None


class Body:
    """A body that may be found again: a frozen dataclass, so that it compares by value.

    It is called as `body(pure, *whole, *operands)`, and returns the result and the output groups.
    """

    @property
    def is_plain(self) -> bool:
        """Whether equal ones do the very same."""
        raise NotImplementedError

    def __call__(self, pure: Pure, *given: Any) -> tuple[Any, Any]:
        """Runs while it is traced."""
        raise NotImplementedError


class Use(NamedTuple):
    """A use of a lift, as far as its body can see it. Equal ones run one step.

    Attributes:
        body: as in `Body`; a function that is called so is never found again.
        fn: the function of scopes.
        layout: what is static about the use of the lift.
        whole: what the body is given beside its operands, less the tracers.
        place: where its scopes stand, and how many keys were drawn there.
    """

    body: Callable[..., Any]
    fn: Callable[..., Any]
    layout: Layout
    whole: Whole
    place: Any


class Step:
    """A body that reads only, as what JAX traces.

    Attributes:
        traced: what `form` made, for a transformation to take.
    """

    def __init__(self, form: Form, use: Use) -> None:
        now = self._now = Now()

        def traced(tracers: Sequence[Any], *operands: Any) -> tuple[Any, Record]:
            crossing = now.crossing
            assert crossing is not None, "traced outside of the call that asked for it"
            result, _ = use.body(Pure(use.fn, crossing), *use.whole.join(tracers), *operands)
            return result, crossing.records.pop()

        named: Any = form(traced)
        named.__name__, named.__signature__ = name_of(use.fn), _OPERANDS
        self.traced = named

    def run(self, crossing: Crossing, transformed: Callable[..., tuple[Any, Record]], *operands: Any) -> Any:
        """Calls what a transformation made of `traced`, for one use of the lift."""
        before, self._now.crossing = self._now.crossing, crossing
        try:
            result, record = transformed(*operands)
        finally:
            self._now.crossing = before
        crossing.records.append(record)
        return result


class Steps:
    """The steps of the last uses of lifts, which equal uses get again.

    Args:
        form: see `Form`.
    """

    def __init__(self, form: Form = lambda traced: traced) -> None:
        self.new = functools.partial(Step, form)
        self._known = functools.lru_cache(_KEPT)(self.new)

    def find(self, use: Use, crossing: Crossing, operands: PyTree) -> Step:
        """The step of an equal use; a new one where something in this one cannot be told from the like."""
        return (self._known if _is_told(use, crossing, operands) else self.new)(use)


def run(
    pure: Pure,
    steps: Steps,
    body: Callable[..., Any],
    whole: tuple[PyTree, ...],
    transformation: Callable[[Callable[..., Any]], Callable[..., tuple[Any, Record]]],
    *operands: Any,
) -> Any:
    """Runs a body that reads only under a transformation; returns its result.

    Args:
        pure: the function of scopes.
        steps: where its step is found.
        body: see `Use`.
        whole: what it is given beside the operands.
        transformation: makes `transformed(tracers, *operands) -> (result, record)` of what JAX traces.
        *operands: pytrees of arrays.
    """
    tracers, rest = Whole.of(whole)
    use = Use(body, pure.fn, pure.crossing.layout, rest, _place(pure.crossing))
    step = steps.find(use, pure.crossing, (whole, operands))
    return step.run(pure.crossing, transformation(step.traced), tracers, *operands)


def _is_told(use: Use, crossing: Crossing, operands: PyTree) -> bool:
    """Whether all that decides what a use does can be told from another one by comparing."""
    trees = [outer.tree for outer in crossing.outers]
    return (
        isinstance(use.body, Body)
        and use.body.is_plain
        and use.whole.is_plain
        and is_exact(use.fn)
        and crossing.live
        and crossing.watched is None
        and all(tree.word is plain_word for tree in trees)  # words that are dealt are tracers
        and all(map(is_plain_filter, _filters(crossing)))
        and is_plain_structure(jax.tree.structure(operands))
    )


def _filters(crossing: Crossing) -> Iterator[Predicate]:
    """The filters that a body can see the work of."""
    layout = crossing.layout
    yield from (*layout.in_filters, *layout.out_filters, *layout.rng_filters)
    for outer in crossing.outers:
        yield from (outer.tree.mutable, *(rule for rule, _ in outer.tree.fallbacks))


def _place(crossing: Crossing) -> tuple[Any, ...]:
    """What a body can see of where its scopes stand, and of the keys that it draws."""
    paths = tuple([outer.path for outer in crossing.outers])
    if not any(outer.tree.rngs or outer.tree.fallbacks for outer in crossing.outers):
        return paths
    impl: str = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]  # what raw keys mean
    return paths, impl, tuple([_counts(outer.node) for outer in crossing.outers])


def _counts(node: Node) -> tuple[Any, ...]:
    """How many keys were drawn at a node and below."""
    return *node.counts.items(), *((name, _counts(child)) for name, child in node.children.items())

"""Steps: bodies that read only, as functions of operands alone, of which JAX finds the trace again.

JAX keeps the trace of what a loop or a checkpoint runs with the function itself. So a use of a lift that is equal to an
earlier one, at the same place of the model, runs the same `Step`. It closes over no tracer, and it knows the use that
it is traced for only while that lasts. What the body did that is no array rides home in the pytree structure of its
outputs, where JAX keeps it too.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from ..layout import Layout, Record
from ..packing import Crossing, Pure, name_of
from ..tree import Node, plain_word
from ..typing import PyTree
from .sharing import is_exact, is_plain

__all__ = ["Step", "Steps", "run"]

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


class Here(threading.local):
    """The use of a lift that a body is traced for, in one thread, while that lasts."""

    crossing: Crossing | None = None


class Step:
    """A body that reads only, as what JAX traces.

    Args:
        form: see `Form`.
        body: called as `body(pure, *whole, *operands)`; returns the result and the output groups.
        fn: the function of scopes.
        layout: what is static about the use of the lift.
        whole: what the body is given beside its operands, less the tracers.
        place: what the body can see of where its scopes stand.

    Attributes:
        traced: the function that a transformation takes.
    """

    def __init__(
        self, form: Form, body: Callable[..., Any], fn: Callable[..., Any], layout: Layout, whole: Whole, place: Any
    ) -> None:
        here = self._here = Here()

        def traced(tracers: Sequence[Any], *operands: Any) -> tuple[Any, Record]:
            crossing = here.crossing
            assert crossing is not None, "traced outside of the call that asked for it"
            result, _ = body(Pure(fn, crossing), *whole.join(tracers), *operands)
            return result, crossing.records.pop()

        named: Any = form(traced)
        named.__name__, named.__signature__ = name_of(fn), _OPERANDS
        self.traced = named

    def run(self, crossing: Crossing, transformed: Callable[..., tuple[Any, Record]], *operands: Any) -> Any:
        """Calls what a transformation made of `traced`, for one use of the lift."""
        before, self._here.crossing = self._here.crossing, crossing
        try:
            result, record = transformed(*operands)
        finally:
            self._here.crossing = before
        crossing.records.append(record)
        return result


class Steps:
    """The steps of the last uses of lifts, which equal uses get again.

    Args:
        form: see `Form`.

    Attributes:
        new: makes a step; its arguments are those of `Step` after the form.
        find: gives that of an equal use.
    """

    def __init__(self, form: Form = lambda traced: traced) -> None:
        self._form, self.new = form, functools.partial(Step, form)
        self.find = functools.lru_cache(_KEPT)(self.new)

    def of(self, fn: Callable[..., Any]) -> Steps:
        """These; or a table for one function, for as long as that is lifted, where equal ones may differ."""
        return self if is_exact(fn) else Steps(self._form)


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
        body: see `Step`; where a step is to be found again, it compares by value.
        whole: what it is given beside the operands.
        transformation: makes `transformed(tracers, *operands) -> (result, record)` of what JAX traces.
        *operands: pytrees of arrays.
    """
    tracers, rest = Whole.of(whole)
    place = _place(pure.crossing)
    use = body, pure.fn, pure.crossing.layout, rest, place
    try:
        step = steps.find(*use) if place is not None and rest.is_plain else steps.new(*use)
    except TypeError:  # a function or a filter of the user's cannot be hashed
        step = steps.new(*use)
    return step.run(pure.crossing, transformation(step.traced), tracers, *operands)


def _place(crossing: Crossing) -> Any:
    """What a body can see of where its scopes stand; None where its trace must serve no other use."""
    if crossing.watched is not None or not crossing.live:
        return None
    trees = [outer.tree for outer in crossing.outers]
    paths = tuple(outer.path for outer in crossing.outers)
    if not any(tree.rngs or tree.fallbacks for tree in trees):
        return paths
    if any(tree.word is not plain_word for tree in trees):  # words that are dealt are tracers
        return None
    return paths, *(_counts(outer.node) for outer in crossing.outers)


def _counts(node: Node) -> tuple[Any, ...]:
    """How many keys were drawn at a node and below."""
    return *node.counts.items(), *((name, _counts(child)) for name, child in node.children.items())

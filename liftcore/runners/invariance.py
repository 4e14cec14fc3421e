"""Checks a loop's arguments, and that shared values do not depend on the iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import AxisSizeError, LiftArgumentError, LoopInvarianceError, name_of, shown
from ..filters.trees import by_place, leaves_of, overlay, select
from ..pipeline.body import Body
from ..pipeline.splitting import Split, trace
from ..texts import path_text
from ..typing import Path, PyTree
from .carry import fix_for

__all__ = [
    "GROUPS",
    "SLICES",
    "STATE",
    "WRITTEN",
    "LoopAdvice",
    "check_loop",
    "check_unread",
    "checked_iteration",
    "not_constant",
    "share_the_rest",
]

STATE, SLICES = 0, 1
"""The indices of the operands of a traced body, as in `Split.reads`."""

WRITTEN = 1
"""The index of the new values of shared variables in `Created.constant`."""


class LoopAdvice(NamedTuple):
    """Advice for the user of a loop, for error messages; `{}` is the name of a collection.

    Attributes:
        stack: how to stack variables.
        carry: how to carry variables.
        shared: the name of the option for shared variables, in parentheses; it may be empty.
    """

    stack: str
    carry: str
    shared: str = ""


GROUPS = LoopAdvice(
    'Stack it: put "{}" into one of the last groups of variables, those that have an axis in `group_axes`',
    'Carry it: put "{}" into the second group of variables',
)
"""The advice for the author of a transformation that uses `Loop`."""


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
        )
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise LiftArgumentError(
            body.where,
            f"the state of a loop is a pair of the group of carried variables and the carry; given {shown(state)}.",
            "Pass `(variable_groups[1], carry)`; the carry may be None.",
        )
    if True in [np.shape(leaf)[:1] != (size,) for leaf in jax.tree.leaves(xs)]:
        shapes = {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in jax.tree.leaves_with_path(xs)}
        path, shape = next((path, shape) for path, shape in shapes.items() if shape[:1] != (size,))
        raise AxisSizeError(
            body.where,
            f"slices{path} of shape {shape} were given, but the loop has size {size}.",
            f"Pass {size} slices along axis 0.",
        )


def checked_iteration(body: Body, iteration: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `iteration` that raises if the given one returns something else than `Loop.run` takes."""

    def checked(*args: Any) -> Any:
        found = iteration(*args)
        if isinstance(found, tuple) and len(found) == 3:
            return found
        given = f"{len(found)} values" if isinstance(found, tuple) else shown(found)
        raise LiftArgumentError(
            f"{name_of(iteration)} of {body.where}",
            f"it must return the next carry, the values to stack, and the output groups; given {given}.",
            "Write `y, groups = body((shared, state[0]), …)`, and `return carry, y, groups`.",
        )

    return checked


def check_unread(
    body: Body,
    iteration: Callable[..., Any],
    shared: PyTree,
    written: PyTree,
    state: PyTree,
    slices: PyTree,
    advice: LoopAdvice,
) -> bool:
    """Check that a body does not read shared variables before it writes them: the next iteration would read new values.

    For this check, it is traced once more, as a function of these variables too. If an inner lift does not separate the
    initial value of one of them from later computation, what the body sees of it depends on an operand of its own.

    Returns:
        Whether no rule may read them either.

    Raises:
        LoopInvarianceError: if the body reads one.
    """
    there, treedef = jax.tree.flatten_with_path(select(shared, written))
    given, names = [leaf for _, leaf in there], [path_text(path[1:]) for path, _ in there]
    unsplit, marks = _unsplit(body, written), dict[Path, Any]()

    def sight(path: Path, value: Any) -> Any:
        mark = marks.get(path)
        return value if mark is None else jax.tree.map(lambda leaf: jax.numpy.where(mark, leaf, leaf), value)

    def run(state: Any, slices: Any, *leaves: Any) -> Any:
        marks.update(zip(unsplit, leaves[len(there) :], strict=True))
        again = overlay(shared, jax.tree.unflatten(treedef, leaves[: len(there)]))
        return iteration(body.seeing(sight), state, slices, again)

    try:
        traced = trace(run, state, slices, *given, *[True for _ in unsplit])
    finally:
        marks.clear()  # a compiled function may keep `sight`
    names, begun = [*names, *unsplit.values()], {str(path) for path, _ in jax.tree.leaves_with_path(written)}
    if not _read_first(traced, names, begun):
        return True
    found = _read_first(traced.narrowed(ruled=False), names, begun)
    if found:
        error = _carry_it(body.where, sorted(found), advice, "the body reads it and then writes it")
        also = fix_for(body, found, "")
        raise LoopInvarianceError(error.where, error.what, f"{error.fix} {also}".strip())
    return not _read_first(traced.narrowed(), names, begun)


def _unsplit(body: Body, written: PyTree) -> dict[Path, str]:
    """Return the paths, from the root, and names of written variables whose initial value is not separate."""
    places = sorted(body.record.unsplit & by_place(written).keys())
    return {body.from_root(*place): path_text(place[1]) for place in places}


def _read_first(traced: Split, names: Sequence[str], begun: Collection[str]) -> set[str]:
    """Return the names of the shared variables that a body reads before it writes them."""
    made = [path for path, _ in jax.tree.leaves_with_path(traced.created)]
    again = [number for number, path in enumerate(made) if path[0].name in ("stacked", "constant")]  # the others: once
    (reads, others), (depends, earlier) = traced.output_reads(), (traced.depends, traced.earlier)
    read = frozenset().union(*jax.tree.leaves(reads), *[depends[number] for number in again])
    found = {name for number, name in enumerate(names, SLICES + 1) if number in read}
    read = frozenset().union(*jax.tree.leaves(others), *[earlier[number] for number in again])
    found |= {path_text(path[2:]) for number, path in enumerate(made) if number in read and _is_shared(path, begun)}
    return found


def _is_shared(path: Any, among: Collection[str]) -> bool:
    return path[0].name == "shared" and str(path[1:]) in among


def _carry_it(where: str, names: Sequence[str], advice: LoopAdvice, what: str) -> LoopInvarianceError:
    return LoopInvarianceError(
        where,
        f"{list(names)} is shared by all iterations{advice.shared}, but {what}.",
        f"{advice.carry.format(names[0].split('/')[0])}.",
    )


def share_the_rest(body: Body, differing: Sequence[Path], group: int) -> str:
    """Return the fix for a collection of which only some variables are the same for all; nothing if none of them is.

    Args:
        body: the body of the lift.
        differing: the paths of new variables whose initial values differ.
        group: the number of the output group whose variables are the same for all.
    """
    lift = body.layout.lift
    for outer in body.outers:
        for (collection, *names), value in leaves_of(outer.collections_below()):
            path = (collection, *outer.path, *names)
            taken = next((number for number, takes in enumerate(lift.out) if takes(path, value)), None)
            code = lift.advice.sharing(path, differing) if taken == group and collection == differing[0][0] else ""
            if code:
                return f"Share only what is the same for all, {code}"
    return ""


def not_constant(body: Body, traced: Split, differing: Sequence[int], advice: LoopAdvice) -> LoopInvarianceError:
    """Return the error for a value that all iterations share, but that depends on one of them."""
    paths = [path for path, _ in jax.tree.leaves_with_path(traced.created)]
    pairs = [(paths[number], STATE in traced.depends[number]) for number in differing]
    carried = sorted({path_text(path[2:]) for path, state in pairs if path[0].name == "shared" and state})
    where, names = body.where, sorted({path_text(path[2:]) for path, _ in pairs if path[0].name == "shared"})
    if carried:
        error = _carry_it(where, carried, advice, "its initial value depends on the carry, or on a carried variable")
        return LoopInvarianceError(error.where, error.what, fix_for(body, names, error.fix))
    if names:
        others = [body.path(path[1:]) for path, _ in pairs if path[0].name == "shared"]
        stack = share_the_rest(body, others, 0) or advice.stack.format(others[0][0])
        return LoopInvarianceError(
            where,
            f"{names} is shared by all iterations{advice.shared}, but its initial value depends on "
            "a slice or on a key that is split.",
            fix_for(body, names, f"{stack}, or do not split the stream it draws from."),
        )
    written = sorted({path_text(path[3:]) for path, _ in pairs if path[1].idx == WRITTEN})
    if written:
        return _carry_it(where, written, advice, "the body writes values that differ between iterations")
    return LoopInvarianceError(
        where,
        "an output with `broadcast` in `out_axes` depends on the carry, on a slice or on a key that is split.",
        "Give it an axis, and use one of the stacked values.",
    )

"""What the iterations of a loop share and pass on: shared values must not change, the carry must keep its type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import CarryTypeError, LiftArgumentError, LoopInvarianceError, words
from ..filters.trees import Place, by_place, leaves_of, merged, names_of, overlay, select
from ..pipeline.body import Body
from ..pipeline.splitting import Split, trace
from ..problems import other_structure, other_types
from ..texts import ArrayType, path_text
from ..typing import Path, PyTree
from .axes import leaf_name

__all__ = [
    "GROUPS",
    "SLICES",
    "STATE",
    "WRITTEN",
    "LoopAdvice",
    "LoopState",
    "check_carry",
    "check_separate",
    "check_unread",
    "fix_for",
    "not_constant",
    "not_separate",
    "share_the_rest",
]


class LoopState(NamedTuple):
    """The values that pass from one iteration to the next. Most loops carry no variables, and skip what is for these.

    Attributes:
        carried: the group of carried variables.
        carry: the carry of the user's function.
    """

    carried: PyTree
    carry: PyTree

    def with_created(self, created: PyTree) -> LoopState:
        """Return the state with the variables that a body creates added."""
        return self._replace(carried=merged(self.carried, created)) if any(created) else self

    def updated(self, newer: LoopState) -> LoopState:
        """Return the state with the values of a newer one where it has them."""
        return LoopState(overlay(self.carried, newer.carried) if any(newer.carried) else self.carried, newer.carry)

    def begin(self, body: Body, after: LoopState) -> LoopState:
        """Return the initial state of a loop, checked: the variables that come out of the body, and the carry.

        Args:
            body: the body.
            after: the state that comes out of the body.

        Raises:
            CarryTypeError: if a type changes.
            LiftArgumentError: if a variable was created in a lift that does not separate its initial value.
        """
        carried = after.carried
        if any(carried):
            carried = select(self.carried, carried)
            _check_names(body.where, carried, after.carried)
            check_carry(body, _CARRIED, carried, after.carried)
        check_carry(body, "carry", self.carry, after.carry)
        if any(carried):
            check_separate(body, carried)
        return LoopState(carried, self.carry)

    def cast(
        self, body: Body, created: PyTree, after: LoopState, casts: dict[Path, tuple[Any, ...]]
    ) -> LoopState | None:
        """Cast weakly typed numbers to the types that the body returns; None if there is nothing to cast.

        Args:
            body: the body.
            created: the carried variables that it creates.
            after: the state that comes out of the body.
            casts: receives the casts of created variables; see `Tree.casts`.
        """
        found = _casts_of(body, created, after.carried) if any(created) else {}
        if any(self.carried):
            before = LoopState(select(self.carried, after.carried), self.carry)
            cast = _promoted(before, LoopState(select(after.carried, self.carried), after.carry))
        else:
            cast = _promoted(self, LoopState(self.carried, after.carry))
        if cast is None and not found:
            return None
        casts |= found
        return self if cast is None else self.updated(cast)


def _promoted(before: PyTree, after: PyTree) -> PyTree | None:
    """Return the carry with its weakly typed leaves cast to the types that the body returns, or None if none changes.

    JAX does the same: a Python number that enters a loop as a weakly typed `int32` may come out as a `float32`.
    """
    treedef: Any
    (leaves, treedef), (news, treedef_after) = jax.tree.flatten(before), jax.tree.flatten(after)
    if treedef != treedef_after:
        return None
    cast = []
    for leaf, new in zip(leaves, news, strict=True):
        old = jax.typeof(leaf)
        casts = old.weak_type and old.dtype != new.dtype
        cast.append(jax.lax.convert_element_type(leaf, jnp.result_type(leaf, new)) if casts else leaf)
    if all(new is leaf for new, leaf in zip(cast, leaves, strict=True)):
        return None
    return jax.tree.unflatten(treedef, cast)


def _casts_of(body: Body, created: PyTree, written: PyTree) -> dict[Path, tuple[Any, ...]]:
    """Return the casts of carried variables that a body creates as weakly typed numbers and writes with another type.

    They correspond to `_promoted` for variables that existed before; see `Tree.casts`.
    """
    treedef: Any
    found = {}
    after = by_place(written)
    for place, value in by_place(select(created, written)).items():
        (olds, treedef), (news, treedef_after) = jax.tree.flatten(value), jax.tree.flatten(after[place])
        if treedef == treedef_after:
            dtypes = tuple(_promoted_dtype(*pair) for pair in zip(olds, news, strict=True))
            if any(dtype is not None for dtype in dtypes):
                found[body.from_root(*place)] = dtypes
    return found


def _promoted_dtype(old: Any, new: Any) -> Any:
    if not old.weak_type or old.dtype == new.dtype:
        return None
    number = next(kind for kind in (int, float, complex) if old.dtype == jnp.result_type(kind))  # its Python type
    return jnp.result_type(number, new.dtype)


def _check_names(where: str, before: PyTree, after: PyTree) -> None:
    """Check that a loop creates no variables in the collections that it carries, as a module that sows does."""
    if new := sorted(set(names_of(after)) - set(names_of(before))):
        collection = new[0].split("/")[0]
        raise CarryTypeError(
            where,
            f"the body creates carried variables that did not go in: {', '.join(new)}.",
            "Create them before the loop. To stack a value of each iteration of a scan: "
            f'`variable_axes={{"{collection}": Out(0)}}`.',
            variable=new[0],
            collection=collection,
        )


_CARRIED = "carried variable "


def check_carry(body: Body, what: str, before: PyTree, after: PyTree) -> None:
    """Check that the carry that a loop returns has the type of the one that it receives.

    Raises:
        CarryTypeError: if the structure, a shape, a dtype or a sharding differs.
    """
    treedef: Any
    (olds, treedef), (news, treedef_after) = jax.tree.flatten(before), jax.tree.flatten(after)
    if treedef != treedef_after:
        fix = "Return a carry with the structure that the function received."
        raise other_structure(body.where, what, treedef, treedef_after, fix)
    if list(map(jax.typeof, olds)) == news:
        return
    paths = [path for path, _ in jax.tree.leaves_with_path(before)]
    types = zip(paths, map(ArrayType.of, olds), map(ArrayType.of, news), strict=True)
    changed = [(path, old, new) for path, old, new in types if old != new]
    if changed:
        advice = _advice([(old, new) for _, old, new in changed])
        named = [(_place(what, path), old, new) for path, old, new in changed]
        raise other_types(body.where, "iteration", named, advice)


def _place(what: str, path: Any) -> str:
    """Return the name of a leaf of the carry. The path of a variable begins with the number of its scope."""
    collection, below = (path[1].key, path[2:]) if what == _CARRIED else ("", path)
    return leaf_name(what + jax.tree_util.keystr(path), collection, below)


def _advice(pairs: Sequence[tuple[ArrayType, ArrayType]]) -> str:
    """Return the fix for types that change."""
    if any(old.shape != new.shape for old, new in pairs):
        return "Return a carry with the shape that the function received; to collect values, return them to be stacked."
    if any(old.dtype != new.dtype for old, new in pairs):
        return "Cast one of them, such as `carry.astype(jnp.float32)`."
    spec = ", ".join(map(repr, pairs[0][0].spec))
    return f"Its sharding differs: `jax.sharding.reshard(carry, P({spec}))` restores it."


def check_separate(body: Body, group: PyTree) -> None:
    """Check that the initial value of each variable of a group is separate from later computation."""
    for _, path in not_separate(body, group):
        raise LiftArgumentError(
            f"{words().variable(path_text(path))} in {body.where}",
            "it was created in a custom lift inside the body that does not separate the initial value from "
            "later computation, which is needed here.",
            _hoist(),
            variable=path_text(path),
            collection=path[0],
        )


def not_separate(body: Body, group: PyTree) -> list[Place]:
    """Return the places of the variables of a group whose initial values are not separate from later computation."""
    unsplit = body.records[-1].unsplit
    return sorted(unsplit & by_place(group).keys()) if unsplit else []


def fix_for(body: Body, names: Collection[str], otherwise: str) -> str:
    """Return the fix for a dependent initial value: if a custom lift created the variable, the fix is about that."""
    unsplit = {path_text(path) for record in body.records for _, path in record.unsplit}
    return otherwise if unsplit.isdisjoint(names) else _hoist()


def _hoist() -> str:
    return (
        f"Write the lift that creates it with `{words().function('transformation')}` and `liftcore.outline` (or "
        "`liftcore.Loop`, or `body.split`), which compute initial values outside, or create it before that lift."
    )


STATE, SLICES = 0, 1
"""The indices of the operands of a traced body, as in `Split.reads`."""

WRITTEN = 1
"""The index of the new values of shared variables in `Created.constant`."""


class LoopAdvice(NamedTuple):
    """Advice for the user of a loop, for error messages.

    `{}` is the name of a collection, and `{variable_axes}` and `{variable_carry}` are code that sets these options.

    Attributes:
        stack: how to stack variables.
        carry: how to carry variables.
        varying: what differs between iterations, besides the carry.
        lift: the lift that has the options; empty if there are none.
    """

    stack: str
    carry: str
    varying: str = "a slice or on a key that is split"
    lift: str = ""

    @property
    def shared(self) -> str:
        """The name of the option for shared variables, in parentheses; it may be empty."""
        return words().aside(f" ({words().option(self.lift, 'variable_broadcast')})") if self.lift else ""

    def of(self, advice: str, names: Sequence[str]) -> str:
        """Return one of the advices for variables with the given names."""
        collection = names[0].partition("/")[0]
        axes = words().setting(f'`variable_axes={{"{collection}": 0}}`', "variable_axes", "0", names)
        option = words().option(self.lift, "variable_carry")
        carry = words().setting(f'`{option}="{collection}"`', "variable_carry", "", names)
        return advice.format(collection, variable_axes=axes, variable_carry=carry)


GROUPS = LoopAdvice(
    'Stack it: put "{}" into one of the last groups of variables, those that have an axis in `group_axes`',
    'Carry it: put "{}" into the second group of variables',
)
"""The advice for the author of a transformation that uses `Loop`."""


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
    values, names = [leaf for _, leaf in there], [path_text(path[1:]) for path, _ in there]
    unsplit = {body.from_root(*place): path_text(place[1]) for place in not_separate(body, written)}
    marks: dict[Path, Any] = {}

    def sight(path: Path, value: Any) -> Any:
        mark = marks.get(path)
        return value if mark is None else jax.tree.map(lambda leaf: jax.numpy.where(mark, leaf, leaf), value)

    def run(state: Any, slices: Any, *leaves: Any) -> Any:
        marks.update(zip(unsplit, leaves[len(there) :], strict=True))
        again = overlay(shared, jax.tree.unflatten(treedef, leaves[: len(there)]))
        return iteration(body.seeing(sight), state, slices, again)

    try:
        split = trace(run, state, slices, *values, *[True for _ in unsplit])
    finally:
        marks.clear()  # a compiled function may keep `sight`
    names, begun = [*names, *unsplit.values()], {str(path) for path, _ in jax.tree.leaves_with_path(written)}
    if not _read_first(split, names, begun):
        return True
    found = _read_first(split.narrowed(ruled=False), names, begun)
    if found:
        error = _carry_it(body.where, sorted(found), advice, "the body reads it and then writes it")
        also = fix_for(body, found, "")
        raise LoopInvarianceError(error.where, error.what, f"{error.fix} {also}".strip(), variable=min(found))
    return not _read_first(split.narrowed(), names, begun)


def _read_first(split: Split, names: Sequence[str], begun: Collection[str]) -> set[str]:
    """Return the names of the shared variables that a body reads before it writes them."""
    made = [path for path, _ in jax.tree.leaves_with_path(split.created)]
    again = [number for number, path in enumerate(made) if path[0].name in ("stacked", "constant")]  # the others: once
    (reads, others), (depends, earlier) = split.output_reads(), (split.depends, split.earlier)
    read = frozenset().union(*jax.tree.leaves(reads), *[depends[number] for number in again])
    found = {name for number, name in enumerate(names, SLICES + 1) if number in read}
    read = frozenset().union(*jax.tree.leaves(others), *[earlier[number] for number in again])
    paths = [path for number, path in enumerate(made) if number in read and path[0].name == "shared"]
    return found | {path_text(path[2:]) for path in paths if str(path[1:]) in begun}


def _carry_it(where: str, names: Sequence[str], advice: LoopAdvice, what: str) -> LoopInvarianceError:
    return LoopInvarianceError(
        where,
        f"{words().variables(names)} is shared by all iterations{advice.shared}, but {what}.",
        f"{advice.of(advice.carry, names)}.",
        variable=names[0],
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
                names = sorted(map(path_text, differing))
                return f"Share only what is the same for all, {words().setting(code, 'variable_axes', '0', names)}"
    return ""


def not_constant(body: Body, split: Split, differing: Sequence[int], advice: LoopAdvice) -> LoopInvarianceError:
    """Return the error for a value that all iterations share, but that depends on one of them."""
    paths = [path for path, _ in jax.tree.leaves_with_path(split.created)]
    pairs = [(paths[number], STATE in split.depends[number]) for number in differing]
    carried = sorted({path_text(path[2:]) for path, state in pairs if path[0].name == "shared" and state})
    where, names = body.where, sorted({path_text(path[2:]) for path, _ in pairs if path[0].name == "shared"})
    if carried:
        error = _carry_it(where, carried, advice, "its initial value depends on the carry, or on a carried variable")
        return LoopInvarianceError(error.where, error.what, fix_for(body, names, error.fix), variable=carried[0])
    if names:
        others = [body.path(path[1:]) for path, _ in pairs if path[0].name == "shared"]
        stack = share_the_rest(body, others, 0) or advice.of(advice.stack, names)
        another = words().aside(
            " If other variables need it split, draw from another in the initializer, "
            f'`{words().scope}.make_rng("shared")`, with `split_rngs={{"shared": False}}`.'
        )
        return LoopInvarianceError(
            where,
            f"{words().variables(names)} is shared by all iterations{advice.shared}, but its initial value depends on "
            f"{advice.varying}.",
            fix_for(body, names, f"{stack}, or do not split the stream it draws from.{another}"),
            variable=names[0],
        )
    written = sorted({path_text(path[3:]) for path, _ in pairs if path[1].idx == WRITTEN})
    if written:
        return _carry_it(where, written, advice, "the body writes values that differ between iterations")
    return LoopInvarianceError(
        where,
        f"an output with {words().broadcast} in `out_axes` depends on the carry, on {advice.varying}.",
        "Give it an axis, and use one of the stacked values.",
        option="out_axes",
    )

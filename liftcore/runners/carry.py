"""The carry of a loop: variables, identified by their paths in a tree, and values whose types must not change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import CarryTypeError, LiftArgumentError
from ..filters.trees import by_place, merged, names_of, overlay, select
from ..pipeline.body import Body
from ..texts import ArrayType, path_text
from ..typing import Path, PyTree

__all__ = ["LoopState", "check_carry", "check_separate", "fix_for", "not_separate"]


class LoopState(NamedTuple):
    """The values that pass from one iteration to the next.

    Attributes:
        carried: the group of carried variables.
        carry: the carry of the user's function.
    """

    carried: PyTree
    carry: PyTree

    def with_created(self, created: PyTree) -> LoopState:
        """Return the state with the variables that a body creates added."""
        return self._replace(carried=merged(self.carried, created))

    def updated(self, newer: LoopState) -> LoopState:
        """Return the state with the values of a newer one where it has them."""
        return LoopState(overlay(self.carried, newer.carried), newer.carry)

    def begin(self, body: Body, after: LoopState) -> LoopState:
        """Return the initial state of a loop, checked: the variables that come out of the body, and the carry.

        Args:
            body: the body.
            after: the state that comes out of the body.

        Raises:
            CarryTypeError: if a type changes.
            LiftArgumentError: if a variable was created in a lift that does not separate its initial value.
        """
        carried = select(self.carried, after.carried)
        _check_names(body.where, carried, after.carried)
        check_carry(body.where, "carried variable ", carried, after.carried)
        check_carry(body.where, "carry", self.carry, after.carry)
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
        found = _casts_of(body, created, after.carried)
        before = select(self.carried, after.carried), self.carry
        cast = _promoted(before, (select(after.carried, self.carried), after.carry))
        if cast is None and not found:
            return None
        casts |= found
        return self if cast is None else self.updated(LoopState(*cast))


def _promoted(before: PyTree, after: PyTree) -> PyTree | None:
    """Return the carry with its weakly typed leaves cast to the types that the body returns, or None if none changes.

    JAX does the same: a Python number that enters a loop as a weakly typed `int32` may come out as a `float32`.
    """
    leaves, treedef = _flatten(before)
    if treedef != _flatten(after)[1]:
        return None
    cast = [_promote(leaf, new) for leaf, new in zip(leaves, jax.tree.leaves(after), strict=True)]
    if all(new is leaf for new, leaf in zip(cast, leaves, strict=True)):
        return None
    return jax.tree.unflatten(treedef, cast)


def _flatten(tree: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(tree)


def _promote(leaf: Any, new: Any) -> Any:
    old = jax.typeof(leaf)
    if not old.weak_type or old.dtype == new.dtype:
        return leaf
    return jax.lax.convert_element_type(leaf, jnp.result_type(leaf, new))


def _casts_of(body: Body, created: PyTree, written: PyTree) -> dict[Path, tuple[Any, ...]]:
    """Return the casts of carried variables that a body creates as weakly typed numbers and writes with another type.

    They correspond to `_promoted` for variables that existed before; see `Tree.casts`.
    """
    found = {}
    after = by_place(written)
    for place, value in by_place(select(created, written)).items():
        (olds, treedef), (news, treedef_after) = _flatten(value), _flatten(after[place])
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
    new = sorted(set(names_of(after)) - set(names_of(before)))
    if not new:
        return
    collection = new[0].split("/")[0]
    raise CarryTypeError(
        where,
        f"the body creates carried variables that did not go in: {', '.join(new)}.",
        "Create them before the loop. To stack a value of each iteration of a scan: "
        f'`variable_axes={{"{collection}": Out(0)}}`.',
    )


def check_carry(where: str, what: str, before: PyTree, after: PyTree) -> None:
    """Check that the carry that a loop returns has the type of the one that it receives.

    Raises:
        CarryTypeError: if the structure, a shape, a dtype or a sharding differs.
    """
    (olds, treedef), (news, treedef_after) = _flatten(before), _flatten(after)
    if treedef != treedef_after:
        raise CarryTypeError(
            where,
            f"{what} goes in with structure {treedef} and comes out with {treedef_after}.",
            "Return a carry with the structure that the function received.",
        )
    paths = [path for path, _ in jax.tree.leaves_with_path(before)]
    types = zip(paths, map(ArrayType.of, olds), map(ArrayType.of, news), strict=True)
    changed = [(path, old, new) for path, old, new in types if old != new]
    if not changed:
        return
    told = "; ".join(f"{what}{jax.tree_util.keystr(path)}: {old} in, {new} out" for path, old, new in changed)
    what = f"the type must stay the same from one iteration to the next ({told})."
    raise CarryTypeError(where, what, _advice([(old, new) for _, old, new in changed]))


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
    for path in not_separate(body, group):
        raise LiftArgumentError(
            f'"{path_text(path)}" in {body.where}',
            "it was created in a custom lift inside the body that does not separate the initial value from "
            "later computation, which is needed here.",
            _HOIST,
        )


def not_separate(body: Body, group: PyTree) -> list[Path]:
    """Return the paths of the variables of a group whose initial values are not separate from later computation."""
    unsplit = body.record.unsplit
    return [path for _, path in sorted(unsplit & by_place(group).keys())] if unsplit else []


def fix_for(body: Body, names: Collection[str], otherwise: str) -> str:
    """Return the fix for a dependent initial value: if a custom lift created the variable, the fix is about that."""
    unsplit = {path_text(path) for record in body.records for _, path in record.unsplit}
    return otherwise if unsplit.isdisjoint(names) else _HOIST


_HOIST = (
    "Write the lift that creates it with `liftcore.transformation` and `liftcore.outline` (or `liftcore.Loop`, or "
    "`body.split`), which compute initial values outside, or create it before that lift."
)

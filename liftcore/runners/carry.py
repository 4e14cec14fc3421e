"""What a loop carries: variables that are found by their place in a tree, and types that must not change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import CarryTypeError, LiftArgumentError
from ..filters import leaves_of, merge
from ..pipeline.use import Body
from ..texts import ArrayType, names_of, path_text
from ..typing import Path, PyTree
from ..values import Whole, unwrapped, wrapped

__all__ = ["LoopState", "check_carry", "check_separate", "fix_for", "merged", "overlay", "select"]


class LoopState(NamedTuple):
    """What goes from one iteration to the next.

    Attributes:
        carried: the group of carried variables.
        carry: what the user's function carries.
    """

    carried: PyTree
    carry: PyTree

    def with_created(self, created: PyTree) -> LoopState:
        """The same with more variables, those that a body creates."""
        return self._replace(carried=merged(self.carried, created))

    def updated(self, newer: LoopState) -> LoopState:
        """The same, with what is newer in place of what it has."""
        return LoopState(overlay(self.carried, newer.carried), newer.carry)

    def begin(self, body: Body, after: LoopState) -> LoopState:
        """What a loop begins with, checked: the variables that come out of the body, and the carry.

        Args:
            body: the body.
            after: what comes out of it.

        Raises:
            CarryTypeError: where a type does not stay the same.
            LiftArgumentError: where a variable was created in a lift that does not tell what it begins with.
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
        """The same with its weakly typed numbers as the body writes them; None where nothing is to cast.

        Args:
            body: the body.
            created: the carried variables that it creates.
            after: what comes out of it.
            casts: takes the casts of those, see `Tree.casts`.
        """
        found = _casts_of(body, created, after.carried)
        before = select(self.carried, after.carried), self.carry
        cast = _promoted(before, (select(after.carried, self.carried), after.carry))
        if cast is None and not found:
            return None
        casts |= found
        return self if cast is None else self.updated(LoopState(*cast))


def merged(group: PyTree, other: PyTree) -> PyTree:
    """The variables of two groups as one."""
    return tuple(map(merge, group, other))


def select(group: PyTree, like: PyTree) -> PyTree:
    """The variables of a group that another group has too."""
    return tuple(_select(tree, pattern) for tree, pattern in zip(group, like, strict=True))


def _select(tree: Any, pattern: Any) -> Any:
    if not isinstance(pattern, Mapping):
        return wrapped(tree) if type(pattern) is Whole else tree
    tree = unwrapped(tree)
    if not isinstance(tree, Mapping):
        return tree
    return {name: _select(tree[name], below) for name, below in pattern.items() if name in tree}


def overlay(group: PyTree, newer: PyTree) -> PyTree:
    """The variables of a group, each as it is in another group where that has it."""
    return tuple(_overlay(tree, update) for tree, update in zip(group, newer, strict=True))


def _overlay(tree: Any, update: Any) -> Any:
    tree = unwrapped(tree)
    if not isinstance(tree, Mapping) or not isinstance(update, Mapping):
        return update
    return {name: _overlay(below, update[name]) if name in update else below for name, below in tree.items()}


def _promoted(before: PyTree, after: PyTree) -> PyTree | None:
    """The carry with its weakly typed leaves cast to what the body made of them, or None where nothing is to cast.

    JAX does so too: a Python number that goes into a loop as a weak `int32` may come out as a `float32`.
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
    """The casts of carried variables that a body creates as weakly typed numbers, and writes as something else.

    They are what `_promoted` does to those that were given: see `Tree.casts`.
    """
    found = {}
    before, after = select(created, written), select(written, created)
    for outer, tree, other in zip(body.use.outers, before, after, strict=True):
        values = dict(leaves_of(other))
        for path, value in leaves_of(tree):
            (olds, treedef), (news, treedef_after) = _flatten(value), _flatten(values[path])
            if treedef == treedef_after:
                dtypes = tuple(_promoted_dtype(*pair) for pair in zip(olds, news, strict=True))
                if any(dtype is not None for dtype in dtypes):
                    found[(path[0], *outer.path, *path[1:])] = dtypes
    return found


def _promoted_dtype(old: Any, new: Any) -> Any:
    if not old.weak_type or old.dtype == new.dtype:
        return None
    number = next(kind for kind in (int, float, complex) if old.dtype == jnp.result_type(kind))  # as what it began
    return jnp.result_type(number, new.dtype)


def _check_names(where: str, before: PyTree, after: PyTree) -> None:
    """Checks that a loop makes no new variable of those that it carries, as a module that sows does."""
    new = sorted(set(names_of(after)) - set(names_of(before)))
    if not new:
        return
    collection = new[0].split("/")[0]
    raise CarryTypeError(
        where,
        f"carried variables are made that did not go in: {', '.join(new)}.",
        "Create them before the loop. What a scan makes in each iteration it can stack: "
        f'`variable_axes={{"{collection}": Out(0)}}`.',
    )


def check_carry(where: str, what: str, before: PyTree, after: PyTree) -> None:
    """Checks that a loop gives back what it takes.

    Raises:
        CarryTypeError: where structure, shape, dtype or sharding differ.
    """
    (olds, treedef), (news, treedef_after) = _flatten(before), _flatten(after)
    if treedef != treedef_after:
        raise CarryTypeError(
            where,
            f"{what} goes in with structure {treedef} and comes out with {treedef_after}.",
            "Return a carry of the structure that the function was given.",
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
    """How to make types the same."""
    if any(old.shape != new.shape for old, new in pairs):
        return "Return a carry of the shape that the function was given; what grows is stacked as an output."
    if any(old.dtype != new.dtype for old, new in pairs):
        return "Cast one of them, such as `carry.astype(jnp.float32)`."
    spec = ", ".join(map(repr, pairs[0][0].spec))
    return f"It lies on devices in another way: `jax.sharding.reshard(carry, P({spec}))` brings it back."


def check_separate(body: Body, group: PyTree) -> None:
    """Checks that what each variable of a group begins with can be told from what a body makes of it."""
    for index, path in sorted(body.use.record.unsplit):
        if path in dict(leaves_of(group[index])):
            raise LiftArgumentError(
                f'"{path_text(path)}" in {body.where}',
                "it was created in a lift of your own inside the body, so that what it begins with cannot be told from "
                "what is computed from it, as is needed here.",
                _HOIST,
            )


def fix_for(body: Body, names: Collection[str], otherwise: str) -> str:
    """How to mend that initial values depend on something: where a lift of the user's own made one, that is why."""
    unsplit = {path_text(path) for record in body.use.records for _, path in record.unsplit}
    return otherwise if unsplit.isdisjoint(names) else _HOIST


_HOIST = (
    "Write the lift that creates it with `liftcore.transformation` and `liftcore.outline` (or `liftcore.Loop`, or "
    "`body.split`), which make initial values outside of it, or create it before that lift."
)

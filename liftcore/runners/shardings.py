"""The shardings of the arguments, the result and the variables of a lifted `jit`.

The shardings of the inputs and of the result are arguments of `jax.jit`. Which variables come out is known only after
the body has run, so these are constrained in the body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..errors import Expected, LiftArgumentError
from ..filters import to_predicate
from ..pipeline.body import Body
from ..typing import Path, PyTree
from .arguments import Donated

__all__ = ["Placement", "Shardings"]


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A hashable pytree of shardings; None leaves the choice to JAX."""

    leaves: tuple[Any, ...]
    treedef: Any

    @classmethod
    def of(cls, tree: PyTree) -> Frozen:
        """Return the frozen form of a pytree of shardings."""
        leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_none)
        return cls(tuple(leaves), treedef)

    @property
    def tree(self) -> PyTree:
        """The pytree of shardings."""
        return jax.tree.unflatten(self.treedef, self.leaves)

    def spread(self, where: str, tree: PyTree) -> PyTree:
        """Return one sharding for each leaf of a tree, of whose structure this is a prefix.

        Raises:
            LiftArgumentError: if it is not.
        """
        try:
            parts = self.treedef.flatten_up_to(tree)
        except (ValueError, TypeError) as error:
            raise LiftArgumentError(
                where,
                f"it is not a prefix of the value's structure, {jax.tree.structure(tree)}.",
                "Give one sharding for the whole value, or one for each part; the scope (or module) and static "
                "arguments do not count.",
                expected=str(jax.tree.structure(tree)),
            ) from error
        spread = [jax.tree.map(lambda _, one=leaf: one, part) for leaf, part in zip(self.leaves, parts, strict=True)]
        return jax.tree.unflatten(self.treedef, spread)


@dataclasses.dataclass(frozen=True)
class Shardings:
    """The shardings of one compiled function.

    Attributes:
        gone: the shardings of donated values.
        operands: the shardings of the groups of variables, of the groups of streams, and of the other arguments.
        placement: the shardings given for the lifted function.
    """

    gone: Frozen
    operands: Frozen
    placement: Placement

    def options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of `jax.jit` for the body, and for it without the computation of its initial values."""
        given = self.gone.tree, self.operands.tree
        result = self.placement.out_shardings.tree, None, None
        of_body = {"in_shardings": (None, *given), "out_shardings": (None, result)}
        return of_body, {"in_shardings": (None, None, None, *given), "out_shardings": result}


@dataclasses.dataclass(frozen=True)
class Placement:
    """The shardings given for a lifted function.

    Attributes:
        in_shardings: the argument `in_shardings` of `jit`.
        out_shardings: the argument `out_shardings` of `jit`.
        rules: the argument `variable_shardings` of `jit`, as predicates and shardings.
    """

    in_shardings: Frozen
    out_shardings: Frozen
    rules: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, in_shardings: PyTree, out_shardings: PyTree, variables: Mapping[Any, Any]) -> Placement:
        """Return the placement.

        Raises:
            LiftArgumentError: if `variables` is not a mapping.
        """
        if not isinstance(variables, Mapping):
            raise LiftArgumentError(
                "variable_shardings of jit",
                Expected("a mapping from filters to shardings", given=variables),
                'Write `variable_shardings={"params": sharding}`.',
                option="variable_shardings",
            )
        in_shardings = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
        rules = tuple((to_predicate(one), sharding) for one, sharding in variables.items())
        return cls(Frozen.of(in_shardings), Frozen.of(out_shardings), rules)

    def arrange(self, body: Body, gone: Donated, variable_groups: PyTree, kept: Mapping[str, Any]) -> Shardings:
        """Return the shardings of one call, from its variables and its arguments by the keys of `name_arguments`.

        Raises:
            LiftArgumentError: if `in_shardings` is not a prefix of the arguments, or some are passed by name.
        """
        where, arguments = f"{body.where}, in_shardings", {**gone.arguments, **kept}
        named = sorted(name for name in arguments if not name.isdecimal())
        if named and self.in_shardings.leaves != (None,):
            raise LiftArgumentError(
                where,
                f"it applies to positional arguments, but {named} were passed by name.",
                "Pass them by position.",
                option="in_shardings",
                given=named,
            )
        positional = sorted((name for name in arguments if name.isdecimal()), key=int)
        values = tuple(arguments[name] for name in positional)
        each = dict(zip(positional, self.in_shardings.spread(where, values), strict=True))
        rest = {name: each.get(name) for name in kept}
        lost = Donated(self._of_groups(gone.variables, body), {name: each[name] for name in gone.arguments})
        return Shardings(Frozen.of(lost), Frozen.of((self._of_groups(variable_groups, body), None, rest)), self)

    def constrain(self, groups: Sequence[PyTree], body: Body) -> list[PyTree]:
        """Return output groups with each variable constrained to its sharding; the last group has captured values."""
        if not self.rules:
            return list(groups)
        *groups, captured = groups
        shardings = (self._of_group(group, body) for group in groups)
        placed = (jax.tree.map(_constrained, *pair, is_leaf=_is_none) for pair in zip(shardings, groups, strict=True))
        return [*placed, captured]

    def form(self, created: Sequence[PyTree], body: Body) -> Callable[[int, Any], Any] | None:
        """Return a function that constrains initial values by their numbers, or None if there are no rules.

        Args:
            created: the types of the initial values: output groups, captured values, and results of effects.
            body: the body of the call.
        """
        if not self.rules:
            return None
        *groups, _, _ = created
        groups = [self._of_group(group, body) for group in groups]
        shardings = [one for group in groups for one in jax.tree.leaves(group, is_leaf=_is_none)]
        return lambda number, value: _constrained(shardings[number], value) if number < len(shardings) else value

    def _of_groups(self, groups: Sequence[PyTree], body: Body) -> Any:
        return tuple(self._of_group(group, body) for group in groups) if self.rules else None

    def _of_group(self, group: PyTree, body: Body) -> tuple[PyTree, ...]:
        """Return the shardings of a group of variables, in its structure."""
        return tuple(self._of_tree(tree, outer.path) for tree, outer in zip(group, body.outers, strict=True))

    def _of_tree(self, tree: PyTree, place: Path) -> PyTree:
        def of_variable(keys: Any, value: Any) -> Any:
            collection, *below = (key.key for key in keys)
            path = (collection, *place, *below)
            found = next((sharding for matches, sharding in self.rules if matches(path, value)), None)
            return jax.tree.map(lambda _: found, value)

        return jax.tree.map_with_path(of_variable, tree, is_leaf=_is_variable)


def _constrained(sharding: Any, value: Any) -> Any:
    constrain: Any = jax.lax.with_sharding_constraint
    return value if sharding is None else constrain(value, sharding)


def _is_none(value: Any) -> bool:
    return value is None


def _is_variable(value: Any) -> bool:
    return not isinstance(value, Mapping)

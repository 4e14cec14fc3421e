"""Trees of variables, one for each scope of a lift, as who gave the modules wants to see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore.errors import LiftArgumentError
from liftcore.typing import PyTree

from ..lifecycle.naming import map_instances
from ..lifting import as_in_a_method
from ..rebuilding.on_scopes import OnScopes, lies_below, on_scopes
from ..rebuilding.template import ArgumentAt

__all__ = ["Trees", "run_arranged", "without_modules"]


class Scopes(list[Any]):
    """The scopes of a lift, and in its results what there is for each of them: a list that is told from others."""


jax.tree_util.register_pytree_node(Scopes, lambda scopes: (tuple(scopes), None), lambda _, members: Scopes(members))


class Trees(NamedTuple):
    """How trees are arranged: one tree for a module, a pytree of trees for a pytree of modules.

    Attributes:
        where: the lift, for the text of errors.
        size: how many scopes there are.
        treedef: the structure of the arrangement.
        numbers: the number of the scope of each tree in it.
    """

    where: str
    size: int
    treedef: Any
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, where: str, use: OnScopes, several: bool = False) -> Trees:
        """The arrangement of one use of a lift.

        Args:
            where: the lift.
            use: that.
            several: whether it is a list of the trees of all modules, those that fields lead to first, as in Linen.

        Raises:
            LiftArgumentError: if it would leave out the variables of a module that has been given.
        """
        arranged: PyTree = 0
        if several:
            arranged = [*range(1, use.given), 0]
        elif use.subject is not None:
            arranged = map_instances(use.subject, ArgumentAt, lambda place: use.numbers[place.index])
        numbers = jax.tree.leaves(arranged)
        known = [use.scopes[number] for number in numbers]
        given = use.scopes[: use.given]
        outside = [scope.path_text for scope in given if not lies_below(scope, known)]
        if outside:
            raise LiftArgumentError(
                where,
                f"it takes the variables of the modules at {[scope.path_text for scope in known]}, and those at "
                f"{outside}, which come along, are not among these.",
                "Give a tuple of modules in place of the one; in `nn.vjp`, `multi_scope=True` is another way.",
            )
        return cls(where, len(use.scopes), jax.tree.structure(arranged), tuple(numbers))

    def out(self, result: PyTree) -> PyTree:
        """A result with all `Scopes` in it arranged."""

        def arrange(leaf: Any) -> Any:
            if not isinstance(leaf, Scopes):
                return leaf
            return self.out(jax.tree.unflatten(self.treedef, [leaf[number] for number in self.numbers]))

        return jax.tree.map(arrange, result, is_leaf=lambda leaf: isinstance(leaf, Scopes))

    def into(self, given: PyTree) -> Scopes:
        """The inverse; None stands for no tree, and of what is given for one module twice the first counts."""
        found = Scopes([None] * self.size)
        if given is None:
            return found
        try:
            trees: Sequence[Any] = self.treedef.flatten_up_to(given)
        except ValueError as error:
            raise LiftArgumentError(
                self.where,
                f"expected trees of variables in the structure of the modules, {self.treedef}, given "
                f"{jax.tree.structure(given)}.",
                'Give `{"params": {…}}` for each module, or None for zeros.',
            ) from error
        for number, tree in zip(self.numbers, trees, strict=True):
            if found[number] is None:
                found[number] = tree
        return found


def run_arranged(
    where: str,
    lift: Callable[..., Callable[..., Any]],
    functions: Sequence[Callable[..., Any]],
    mdl: Any,
    args: tuple[Any, ...],
    several: bool = False,
) -> Any:
    """What functions of a module return under a lift that gives, or takes, something for the variables of each scope.

    `lift_functions` does not serve: derivatives, and rules for them, speak of the variables of the module that was
    given, where the lift has scopes. Which of those are meant is known when the module has been taken to its scopes.

    Args:
        where: the lift, for the text of errors.
        lift: called as `lift(trees, *functions of scopes)`; what it returns is called with `Scopes` and the arguments.
        functions: the functions of the module.
        mdl: the module, or a pytree of modules.
        args: the arguments after it.
        several: that of `Trees.of`.
    """
    with as_in_a_method():
        use = on_scopes(where, mdl, functions, args)
        trees = Trees.of(where, use, several)
        return lift(trees, *use.calls)(Scopes(use.scopes), *use.args)


def without_modules(result: PyTree) -> PyTree:
    """A result with None for what stands for a module."""
    return map_instances(result, ArgumentAt, lambda place: None)

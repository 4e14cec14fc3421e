"""Trees of variables, one for each scope of a lift, arranged like the modules that the user passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore.errors import Expected, LiftArgumentError
from liftcore.typing import PyTree

from ..lifecycle.context import as_in_a_method
from ..lifecycle.fields import map_instances
from ..rebuilding.on_scopes import OnScopes, functions_of_a_module, lies_below, on_scopes
from ..rebuilding.splitting import ArgumentAt

__all__ = ["Trees", "run_arranged", "without_modules"]


class Scopes(list[Any]):
    """The scopes of a lift, or the values in its results for each of them: a type of their own, to recognize them."""


jax.tree_util.register_pytree_node(Scopes, lambda scopes: (tuple(scopes), None), lambda _, members: Scopes(members))


class Trees(NamedTuple):
    """The arrangement of trees: one tree for a module, a pytree of trees for a pytree of modules.

    Attributes:
        where: the lift, for errors.
        size: the number of scopes.
        treedef: the structure of the arrangement.
        numbers: the number of the scope of each tree in it.
    """

    where: str
    size: int
    treedef: Any
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, where: str, inputs: OnScopes, several: bool = False) -> Trees:
        """Return the arrangement for one call of a lift.

        Args:
            where: the lift, for errors.
            inputs: the inputs of the call.
            several: whether it is a list of the trees of all modules, starting with those that fields lead to, as in
                Linen.

        Raises:
            LiftArgumentError: if it would leave out the variables of a given module.
        """
        arranged: PyTree = 0
        if several:
            arranged = [*range(1, inputs.given), 0]
        elif inputs.subject is not None:
            arranged = map_instances(inputs.subject, ArgumentAt, lambda place: inputs.numbers[place.index])
        numbers = jax.tree.leaves(arranged)
        known = [inputs.scopes[number] for number in numbers]
        given = inputs.scopes[: inputs.given]
        outside = [scope.path_text for scope in given if not lies_below(scope, known)]
        if outside:
            what = (
                f"it takes the variables of the modules at {[scope.path_text for scope in known]}, but not of those "
                f"at {outside}, which the call also uses."
            )
            fix = "Pass a tuple of modules instead of one; in `nn.vjp`, you can also pass `multi_scope=True`."
            raise LiftArgumentError(where, what, fix, option="multi_scope")
        return cls(where, len(inputs.scopes), jax.tree.structure(arranged), tuple(numbers))

    def out(self, result: PyTree) -> PyTree:
        """Arrange all `Scopes` in a result."""

        def arrange(leaf: Any) -> Any:
            if not isinstance(leaf, Scopes):
                return leaf
            return self.out(jax.tree.unflatten(self.treedef, [leaf[number] for number in self.numbers]))

        return jax.tree.map(arrange, result, is_leaf=lambda leaf: isinstance(leaf, Scopes))

    def into(self, given: PyTree) -> Scopes:
        """Do the inverse. None means no tree; if a module was given twice, its first tree counts."""
        found = Scopes([None] * self.size)
        if given is None:
            return found
        try:
            trees: Sequence[Any] = self.treedef.flatten_up_to(given)
        except ValueError as error:
            what = Expected(
                f"trees of variables in the structure of the modules, {self.treedef}",
                str(jax.tree.structure(given)),
                words=str(jax.tree.structure(given)),
            )
            fix = 'Pass `{"params": {…}}` for each module, or None for zeros.'
            raise LiftArgumentError(self.where, what, fix) from error
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
    """Run functions of a module under a lift that returns, or takes, something for the variables of each scope.

    `lift_functions` is not enough: derivatives, and rules for them, refer to the variables of the given module, but the
    lift has scopes. Which scopes are meant is known only after the module has been taken apart.

    Args:
        where: the lift, for errors.
        lift: called as `lift(trees, *functions of scopes)`; its result is called with `Scopes` and the arguments.
        functions: the functions of the module.
        mdl: the module, or a pytree of modules.
        args: the arguments after the module.
        several: see `Trees.of`.
    """
    functions = functions_of_a_module(where, functions)
    with as_in_a_method():
        inputs = on_scopes(where, mdl, functions, args)
        trees = Trees.of(where, inputs, several)
        return lift(trees, *inputs.calls)(Scopes(inputs.scopes), *inputs.args)


def without_modules(result: PyTree) -> PyTree:
    """Return a result with None in place of modules."""
    return map_instances(result, ArgumentAt, lambda place: None)

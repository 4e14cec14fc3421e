"""What scopes offer to styles: places, draws, threads, trees and views of variables, and names of adopted values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

from .. import meta
from .._compat import trace_state
from ..typing import Path
from ..values import shapes, unwrapped, wrapped
from . import problems
from .declaring import Declaring, check_variables
from .tree import ANYBODY

if TYPE_CHECKING:
    from .scope import Scope
    from .tree import Node

__all__ = ["Sharing"]

_FIXED = ("params", "constants")
"""The collections whose variables keep the shape that they are created with."""

_NOTHING: Any = object()


def _found(scope: Scope, place: Path, values: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of each variable in a tree of values for a scope, which is at a place."""
    collection, held = place[0], scope.dicts(place[0])
    if scope._adopted:
        scope._unpack()
    for name, value in values.items():
        declared = collection in scope._reserved.get(name, ())
        if _is_scope(name, value) and isinstance(held.get(name, value), Mapping) and not declared:
            yield from _found(scope.below((name,)), (*place, name), value)
        else:
            yield (*place, name), value


def _is_scope(name: Any, value: Any) -> bool:
    """Whether a value may be the variables of a scope of that name; else it is a variable, which may be a dict."""
    return isinstance(value, Mapping) and "/" not in str(name) and all(isinstance(one, str) and one for one in value)


class Sharing(Declaring):
    """Answers what styles need to know about the tree of a scope, and takes names for an owner."""

    __slots__ = ()

    node: Node

    # -- places --------------------------------------------------------------------------------------------------------

    @property
    def entry(self) -> Scope:
        """The scope at the entry of the innermost lift, or at the root."""
        scope = cast("Scope", self)
        while scope.parent is not None:
            scope = scope.parent
        return scope

    @property
    def collections(self) -> tuple[str, ...]:
        """The names of the collections in the tree."""
        return tuple(self.tree.variables)

    @property
    def is_live(self) -> bool:
        """Whether no transformation is between the scope and the caller, so that the scope may change."""
        return self.tree.running_lift is None and trace_state() == self.tree.trace

    def here(self) -> Scope:
        """Return the scope at the same place inside the innermost lift that is running over it, or the scope itself."""
        scope = cast("Scope", self)
        while (root := scope.tree.entered(scope.path)) is not None:
            scope = root.below(scope.path[len(root.path) :])
        return scope

    def beside(self) -> Scope:
        """Return a scope at the same place for another owner: taken names stay taken, and `number` begins from 0."""
        scope = self.rewound()
        self._unpack()
        scope._reserved, scope._outside = self._reserved, self._outside
        self._shared = scope._shared = True
        return scope

    def value_at(self, path: Path) -> Any:
        """Return the value at `(collection, *modules below this scope, name)`."""
        value: Any = cast("Scope", self).dicts(path[0])
        for name in path[1:]:
            value = unwrapped(value)[name]
        return value

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> dict[str, int]:
        """How many keys of each stream were drawn at this place, without those below."""
        return dict(self.counter.counts)

    @property
    def given_rngs(self) -> tuple[str, ...]:
        """The names of the streams that `init` or `apply` was given; lifts may pass in fewer."""
        return self.tree.given

    def can_draw(self, name: str) -> bool:
        """Whether `make_rng(name)` finds a stream here: one of that name, or `params` in its place.

        Args:
            name: the name of the stream.
        """
        return self.tree.stream(name) is not None

    # -- threads -------------------------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Give the tree to this thread, until `release` is called. Return False if a thread already owns it."""
        return self.tree.claim()

    def release(self) -> None:
        """Let any thread use the tree from now on, one at a time."""
        self.tree.thread = ANYBODY

    def reader(self) -> Scope:
        """Return a scope at `entry` in a tree with the same variables, which this thread may read but not change."""
        return type(cast("Scope", self)).at(self.tree.reader())

    @contextlib.contextmanager
    def outside_lift(self) -> Iterator[None]:
        """A context in which this thread may change scopes of the tree while a lift over them runs.

        It is for functions that a lift calls outside its body, such as `map_out` of `map_variables`.
        """
        here, tree = get_ident(), self.tree
        lifts = tree.lifts.pop(here, None)
        try:
            yield
        finally:
            if lifts is not None:
                tree.lifts[here] = lifts

    # -- variables -----------------------------------------------------------------------------------------------------

    def put_variables(self, variables: Mapping[str, Any]) -> None:
        """Write variables here and below, such as those that `variables()` returned, or some of them.

        Example:
            >>> import jax, jax.numpy as jnp, liftcore
            >>> def descend(scope, x):
            ...     grads = liftcore.grad(lambda scope, x: scope.child(liftcore.nn.dense, "net")(x, 1).sum())(scope, x)
            ...     scope.put_variables(jax.tree.map(jnp.subtract, {"params": scope.variables()["params"]}, grads))
            >>> variables = {"params": {"net": {"kernel": jnp.ones((2, 1)), "bias": jnp.ones(1)}}}
            >>> _, after = liftcore.apply(descend, mutable="params")(variables, jnp.ones((1, 2)))
            >>> after["params"]["net"]["bias"]
            Array([0.], dtype=float32)

        Args:
            variables: `{collection: {module: {name: value}}}`. A dict in the place of a variable is its value, if the
                scope has declared or written the variable, or if its keys are no names; otherwise it holds variables of
                a module.

        Raises:
            LiftError: as `put_variable` does, for the first variable that cannot be written. Then none is written.
        """
        check_variables(variables)
        scope = cast("Scope", self)
        scope.check_valid()
        self.put_all([one for collection, values in variables.items() for one in _found(scope, (collection,), values)])

    def put_all(self, values: Sequence[tuple[Path, Any]]) -> None:
        """Write variables, all of them or none.

        Args:
            values: a path, `(collection, *modules below this scope, name)`, and the new value of each variable.

        Raises:
            LiftError: as `put_variable` does, for the first variable that cannot be written.
        """
        found = [(cast("Scope", self).below(path[1:-1]), path[0], path[-1], value) for path, value in values]
        for scope, *variable in found:
            scope.check_write(*variable)
        for scope, collection, name, value in found:
            scope.put_checked(collection, {name: wrapped(value)})

    @property
    def has_view(self) -> bool:
        """Whether code in this tree sees other values of new variables than are stored; see `view`."""
        return self.tree.sight is not None

    def view(self, view: Callable[[Path, Any], Any]) -> None:
        """Let the code in this tree see other values of the variables that it creates from now on.

        Args:
            view: called with the path of the new variable, `(collection, *modules, name)`, and the value that a view
                before it gave, or the value that will be stored; returns the value that the code sees.
        """
        before = self.tree.sight
        self.tree.sight = view if before is None else lambda path, value: view(path, before(path, value))

    def put_unboxed(self, collection: str, name: str, value: Any) -> None:
        """Write a variable and keep its metadata, if its value is boxed (see `liftcore.meta`)."""
        cast("Scope", self).put_variable(collection, name, self.reboxed(collection, name, value))

    def reboxed(self, collection: str, name: str, value: Any) -> Any:
        """Return a value in the box of the one that it replaces, if that has one."""
        return meta.replace_boxed(unwrapped(cast("Scope", self).dicts(collection).get(name)), value)

    # -- owners --------------------------------------------------------------------------------------------------------

    def own(self, owner: Any, values: Mapping[Path, Any]) -> None:
        """Take the names of variables for one owner, such as an adopted module, and compare shapes as `param` does.

        Args:
            owner: compared by equality: an equal owner may use the same variables.
            values: for each `(collection, *modules below this scope, name)` the value or the type that the owner makes.

        Raises:
            NameInUseError: if something else in this scope uses one of the names.
            ScopeParamShapeError: if a variable in "params" or "constants" exists with another shape.
        """
        for (collection, *names, name), value in values.items():
            self.own_name(names[0] if names else name, None if names else collection, owner)
            below = cast("Scope", self).below(tuple(names))
            if collection in _FIXED and below.has_variable(collection, name):
                stored = meta.unbox(below.get_variable(collection, name))
                if shapes(stored) != shapes(value):
                    raise problems.wrong_shape(below, name, stored, value)

    def own_name(self, name: str, collection: str | None, owner: Any) -> None:
        """Take a name for an owner, who may take it again; see `Scope.own`.

        Args:
            name: the name.
            collection: the collection of the variable; None for a scope.
            owner: compared by equality.

        Raises:
            NameInUseError: if the name is taken, or has another owner.
        """
        self.check_owner(name, collection, owner)
        self.tree.owners.setdefault(self.path, {})[name, collection] = owner

    def check_owner(self, name: str, collection: str | None, owner: Any) -> None:
        """Check that a name is free, or is of that owner; see `own_name`."""
        held = self.tree.owners.get(self.path, {})
        if held.get((name, collection), _NOTHING) != owner:
            self.check_unowned(name, collection)
            self.check_free(name, collection)

    def check_unowned(self, name: str, collection: str | None) -> None:
        """Check that no adopted value uses a name; see `reserve`."""
        owned = [one for each, one in self.tree.owners.get(self.path, ()) if each == name]
        if owned and (collection is None or None in owned or collection in owned):
            self.check_valid()
            held = [one for one in owned if one is not None]
            raise problems.name_taken(cast("Scope", self), name, collection, held, False)

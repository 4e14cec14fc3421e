"""What a scope offers to code that adopts values of other styles: names with an owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .. import meta
from ..typing import Path
from ..values import shapes
from . import problems

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["Adopting"]

_FIXED = ("params", "constants")
"""The collections whose variables keep the shape that they are created with."""

_NOTHING: Any = object()


class Adopting:
    """Takes names for an owner."""

    __slots__ = ()

    @property
    def _scope(self) -> Scope:
        return cast("Scope", self)

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
            below = self._scope.below(tuple(names))
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
        self._scope.tree.owners.setdefault(self._scope.path, {})[name, collection] = owner

    def check_owner(self, name: str, collection: str | None, owner: Any) -> None:
        """Check that a name is free, or is of that owner; see `own_name`."""
        held = self._scope.tree.owners.get(self._scope.path, {})
        if held.get((name, collection), _NOTHING) != owner:
            self.check_unowned(name, collection)
            self._scope.check_free(name, collection)

    def check_unowned(self, name: str, collection: str | None) -> None:
        """Check that no adopted value uses a name; see `reserve`."""
        owned = [one for each, one in self._scope.tree.owners.get(self._scope.path, ()) if each == name]
        if owned and (collection is None or None in owned or collection in owned):
            self._scope.check_valid()
            held = [one for one in owned if one is not None]
            raise problems.name_taken(self._scope, name, collection, held, False)

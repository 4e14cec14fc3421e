"""Templates: bound modules without their places, so that they can be made again on other scopes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import Scope, split_scoped

from ..lifecycle.binding import constructor, constructor_arguments
from ..lifecycle.fields import Base
from ..lifecycle.naming import map_instances
from .closures import BOUND

__all__ = ["ArgumentAt", "Parts", "StandIn", "Template", "TemplateBuilder", "instantiate", "scopes_of"]


class StandIn:
    """A stand-in for a module or a variable while its scope goes through a lift.

    Attributes:
        index: a number; see the subclasses.
    """

    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class Template(StandIn):
    """The class and fields of a module. Modules in the fields are templates too, or `ModuleAt`.

    Attributes:
        index: counts the templates of one call; two fields with the same module hold the same template.
        cls: the class of the module.
        make: its constructor: the class, or an alias of it with type arguments.
        arguments: the arguments of its constructor.
    """

    index: int
    cls: Any
    make: Any
    arguments: Mapping[str, Any]

    def __static_fields__(self) -> dict[str, Any]:
        """See `liftcore.static_key`; an error about a value without a key names its field."""
        return {"the number": self.index, "the class": self.make, **self.arguments}


@dataclasses.dataclass(frozen=True)
class ModuleAt(StandIn):
    """A stand-in for a module that is bound elsewhere, by its number among those; number 0 is the lifted module."""

    index: int


@dataclasses.dataclass(frozen=True)
class ScopedAt(StandIn):
    """A stand-in for a value other than a module that holds scopes, by the numbers of these among those of the modules.

    Attributes:
        indices: the numbers.
        make: makes the value on other scopes; see `liftcore.Scoped`.
    """

    indices: tuple[int, ...]
    make: Any


class _Held(NamedTuple):
    """A scope without a module, in the place of a module."""

    scope: Scope


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ArgumentAt(StandIn):
    """A stand-in for a module or variable among the arguments of a call, by its number.

    To JAX it is a pytree without leaves.
    """

    index: int


class Parts(NamedTuple):
    """The parts to make modules from, without their places.

    Attributes:
        templates: the templates of the lifted module, and of modules bound elsewhere that its fields, or what comes
            along, lead to. The number of a scope of variables, or of a module that is made with its owner, has None.
        along: the stand-in for each module and variable that comes along.
        numbers: the number of the scope of each of these, or None for a module that has none.
        alone: whether there is only one module, of a class that defines nothing when an instance is made or set up.
    """

    templates: tuple[Template | None, ...]
    along: tuple[StandIn, ...]
    numbers: tuple[int | None, ...]
    alone: bool


def scopes_of(value: Any) -> list[Scope]:
    """Return the scopes of a module or another value; for an unbound module, those that its fields lead to."""
    if not isinstance(value, Base):
        return list(split_scoped(value)[0])
    if value.scope is not None:
        return [value.scope]
    found: list[Scope] = []
    map_instances(list(constructor_arguments(value).values()), BOUND, lambda inner: found.extend(scopes_of(inner)))
    return found


class TemplateBuilder:
    """Takes apart a bound module, and others that the call uses, each of them once.

    Attributes:
        owners: the module, then the modules bound elsewhere and other owners of scopes that it, and what comes along,
            lead to. A module comes after those that its fields lead to.
    """

    def __init__(self, module: Base) -> None:
        self.owners: list[Any] = [module]
        self._numbers_along: dict[int, tuple[int, Any]] = {}
        self._templates: list[Template | None] = [None]
        self._along: list[StandIn] = []
        self._places: list[int | None] = []
        self._numbers = {module.scope.place: 0}
        self._count, self._defines = 0, type(module)._has_setup or type(module)._has_constructor
        self._known: dict[int, StandIn] = {id(module): ModuleAt(0)}
        owned: dict[int, Template | None] = {}
        self._templates[0] = self.template(module, owned)
        self._known |= {key: found for key, found in owned.items() if found is not None and key != id(module)}

    @property
    def parts(self) -> Parts:
        """The parts of all of them."""
        alone = self._count == 1 and not self._defines
        return Parts(tuple(self._templates), tuple(self._along), tuple(self._places), alone)

    @property
    def scopes(self) -> list[Scope]:
        """The scopes of the owners."""
        return [owner.scope for owner in self.owners]

    def put(self, tree: Any) -> Any:
        """Take apart the modules, bound or not, and variables in a pytree, and put an `ArgumentAt` in their places."""
        if True in [isinstance(leaf, BOUND) for leaf in jax.tree.leaves(tree)]:
            return map_instances(tree, BOUND, lambda value: ArgumentAt(self.along(value)))
        return tree

    def along(self, value: Any) -> int:
        """Take apart a module, bound or not, or another value that holds scopes, and return its number."""
        number, _ = self._numbers_along.setdefault(id(value), (len(self._along), value))
        if number == len(self._along):
            self._along.append(self.find(value, {}))
            self._places.append(self.number(value))
        return number

    def find(self, value: Any, owned: dict[int, Template | None]) -> StandIn:
        """Return the stand-in for a module or variable that a field of an owned module, or no field, leads to."""
        found = self._known.get(id(value)) or owned.get(id(value))
        if found is not None:
            return found
        if not isinstance(value, Base):
            scopes, make = split_scoped(value)
            found = ScopedAt(tuple(map(self._index, scopes)), make)
        elif value.scope is None:
            found = self.template(value, owned)
        elif id(value.parent) in owned:
            return self.template(value, owned)  # adopted: made with its owner, and bound there
        else:
            found = ModuleAt(self._add(value, self.template(value, {})))
        self._known[id(value)] = found
        return found

    def template(self, module: Base, owned: dict[int, Template | None]) -> Template:
        """Make a template of a module, and record the module as owned."""
        index, self._count = self._count, self._count + 1
        owned[id(module)] = None
        values = {
            name: map_instances(getattr(module, name), BOUND, lambda inner: self.find(inner, owned))
            for name in type(module)._field_names
        }
        placed = module.scope is not None and not _keeps_name(module, owned)
        values["name"] = None if placed else module.name  # a placed one is named like its scope
        made = owned[id(module)] = Template(index, type(module), constructor(module), values)
        return made

    def number(self, value: Any) -> int | None:
        """Return the number of the first scope of a module or another value; None for an unbound module."""
        scopes = [value.scope] if isinstance(value, Base) else split_scoped(value)[0]
        return next((self._index(scope) for scope in scopes if scope is not None), None)

    def _index(self, scope: Scope) -> int:
        number = self._numbers.get(scope.place)
        return self._add(_Held(scope), None) if number is None else number

    def _add(self, other: Any, template: Template | None) -> int:
        """Add a scope; return its number."""
        number = len(self.owners)
        self.owners.append(other)
        self._templates.append(template)
        self._numbers.setdefault(other.scope.place, number)
        return number


def _keeps_name(module: Base, owned: Mapping[int, Any]) -> bool:
    """Return whether a bound module is made again with its owner, in a field that keeps the given name."""
    return id(module.parent) in owned and type(module.parent).preserve_adopted_names


def instantiate(parts: Parts, scopes: Sequence[Scope]) -> tuple[list[Any], list[Any]]:
    """Make the modules that parts were taken from, on other scopes.

    Returns:
        The module of each scope, or None if there is only a variable; and what comes along.
    """
    made: dict[Any, Any] = {}

    def build(template: Template, parent: Scope | None) -> Any:
        values = {name: map_instances(value, StandIn, below) for name, value in template.arguments.items()}
        if parent is not None:
            values["name"] = parent.name
        return template.make(parent=parent, **values)

    def below(inner: StandIn) -> Any:
        if isinstance(inner, ScopedAt):
            return inner.make([scopes[index] for index in inner.indices])
        key = inner.index, type(inner)
        if key not in made:
            bound = isinstance(inner, ModuleAt)
            template: Any = parts.templates[inner.index] if bound else inner
            made[key] = build(template, scopes[inner.index] if bound else None)
        return made[key]

    numbers = range(len(parts.templates))
    modules = [None if parts.templates[number] is None else below(ModuleAt(number)) for number in numbers]
    return modules, [below(one) for one in parts.along]

"""Templates: what a bound module is, apart from where it stands, so that it can be made again on other scopes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .binding import constructor_arguments
from .fields import Base
from .naming import map_modules

__all__ = ["Parts", "Place", "Template", "detach", "instantiate"]


@dataclasses.dataclass(frozen=True, eq=False)
class Template(Base):
    """The class and fields of a module. Modules in the fields are templates too, or `Shared`.

    Attributes:
        index: counts the templates of one call; two fields with the same module hold the same template.
        cls: the class of the module.
        arguments: the arguments of its constructor.
    """

    _field_names = ("index", "cls", "arguments")

    index: int
    cls: Any
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Shared(Base):
    """Stands for a module that is bound elsewhere, by its number among those; number 0 is the lifted module itself."""

    _field_names = ("index",)

    index: int


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Place(Base):
    """Stands among the arguments of a call for a module, by its number; to JAX it is a pytree without leaves."""

    index: int


class Parts(NamedTuple):
    """What a module is made of, apart from where it stands.

    Attributes:
        templates: that of the module, and those of modules bound elsewhere that its fields, or the arguments of a
            call, lead to.
        arguments: for each module among the arguments its template, or `Shared` where it is bound elsewhere.
    """

    templates: tuple[Template, ...]
    arguments: tuple[Base, ...]


def detach(module: Any, arguments: Sequence[Any]) -> tuple[Parts, list[Any]]:
    """Takes a bound module apart.

    Args:
        module: a bound module.
        arguments: other modules, bound or not, that come along.

    Returns:
        Its parts; and the modules bound elsewhere that its fields and the arguments lead to.
    """
    known: dict[int, Base] = {}
    owners = {id(module)}
    others: list[Any] = []

    def below(inner: Any) -> Base:
        if id(inner) in known:
            return known[id(inner)]
        if inner.scope is None or id(inner.parent) in owners:
            owners.add(id(inner))
            found: Base = template(inner)
        else:
            others.append(inner)
            found = Shared(len(others))
        known[id(inner)] = found
        return found

    def template(module: Any) -> Template:
        index = len(known) + len(others)
        values = {name: map_modules(value, below) for name, value in constructor_arguments(module).items()}
        if module.scope is not None:  # what it is called is told by where it is put
            values["name"] = None
        return Template(index, type(module), values)

    templates = [template(module)]
    owners.clear()  # a module of its own among the arguments is one that lies elsewhere
    given = tuple(Shared(0) if one is module else below(one) for one in arguments)
    for other in others:  # grows while it is walked
        owners.add(id(other))
        templates.append(template(other))
    return Parts(tuple(templates), given), others


def instantiate(parts: Parts, scopes: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The module that parts were taken from, and the modules among the arguments, on other scopes."""
    made: dict[Any, Any] = {}

    def build(template: Template, parent: Any) -> Any:
        values = {name: map_modules(value, below) for name, value in template.arguments.items()}
        if parent is not None:
            values["name"] = parent.name
        return template.cls(parent=parent, **values)

    def below(inner: Any) -> Any:
        key = inner.index, type(inner)
        if key not in made:
            shared = isinstance(inner, Shared)
            made[key] = build(parts.templates[inner.index], scopes[inner.index]) if shared else build(inner, None)
        return made[key]

    module = made[0, Shared] = build(parts.templates[0], scopes[0])
    return module, [below(one) for one in parts.arguments]

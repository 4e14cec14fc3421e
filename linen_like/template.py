"""Templates: what a bound module is, apart from where it stands, so that it can be made again on other scopes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .binding import constructor_arguments
from .fields import Base
from .naming import map_modules

__all__ = ["Template", "detach", "instantiate"]


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
    """Stands in a field for a module that is bound elsewhere, by its number among those."""

    _field_names = ("index",)

    index: int


def detach(module: Any, cls: type) -> tuple[tuple[Template, ...], list[Any]]:
    """The templates of a bound module and of the modules bound elsewhere that its fields lead to.

    Args:
        module: a bound module.
        cls: the class that it is made again with.

    Returns:
        The templates, that of the module first; and the other modules.
    """
    known: dict[int, Base] = {}
    owners = {id(module)}
    others: list[Any] = []

    def below(inner: Any) -> Base:
        if id(inner) in known:
            return known[id(inner)]
        if inner.scope is None or id(inner.parent) in owners:
            owners.add(id(inner))
            found: Base = template(inner, type(inner))
        else:
            others.append(inner)
            found = Shared(len(others))
        known[id(inner)] = found
        return found

    def template(module: Any, cls: type) -> Template:
        index = len(known) + len(others)
        arguments = {name: map_modules(value, below) for name, value in constructor_arguments(module).items()}
        if module.scope is not None:  # what it is called is told by where it is put
            arguments["name"] = None
        return Template(index, cls, arguments)

    templates = [template(module, cls)]
    for other in others:  # grows while it is walked
        owners.add(id(other))
        templates.append(template(other, type(other)))
    return tuple(templates), others


def instantiate(templates: Sequence[Template], scopes: Sequence[Any]) -> Any:
    """The module that templates were made of, on other scopes."""
    made: dict[Any, Any] = {}

    def build(template: Template, parent: Any) -> Any:
        arguments = {name: map_modules(value, below) for name, value in template.arguments.items()}
        if parent is not None:
            arguments["name"] = parent.name
        return template.cls(parent=parent, **arguments)

    def below(inner: Any) -> Any:
        key = inner.index, type(inner)
        if key not in made:
            shared = isinstance(inner, Shared)
            made[key] = build(templates[inner.index], scopes[inner.index]) if shared else build(inner, None)
        return made[key]

    return build(templates[0], scopes[0])

"""Splits modules from their scopes: finds the modules that a call uses, and makes them again on other scopes.

A function uses the modules and variables in its closure, its defaults, a `functools.partial` or the object of a bound
method, and those that functions among these close over in turn. A bound module without its place is a `Template`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from liftcore import Scope, split_scoped
from liftcore.statics import is_shareable

from ..lifecycle.binding import constructor, constructor_arguments
from ..lifecycle.fields import Base, map_instances

__all__ = [
    "BOUND",
    "ArgumentAt",
    "Parts",
    "StandIn",
    "Template",
    "TemplateBuilder",
    "closed_over",
    "instantiate",
    "may_keep_arrays",
    "scopes_of",
    "with_closed_over",
]


class _Scoped(abc.ABC):  # noqa: B024 - the hook finds its subclasses; nothing inherits from it
    """The types of values that hold scopes, as in `liftcore.is_scoped`: variables, adopted parts, scopes."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return hasattr(kind, "__scopes__")


BOUND = (Base, _Scoped)
"""The types of values to find."""


# --- templates --------------------------------------------------------------------------------------------------------


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
        owners: the module, then the modules bound elsewhere that it, and what comes along, lead to, or None for the
            scope of a variable. A module comes after those that its fields lead to.
        scopes: the scopes of the owners.
    """

    def __init__(self, module: Base) -> None:
        self.owners: list[Any] = [module]
        self.scopes: list[Scope] = [module.scope]
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
            found = ModuleAt(self._add(value, value.scope, self.template(value, {})))
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
        # A module with a place is named like its scope; one that is made with its owner may keep the given name.
        keeps_name = module.scope is None or (id(module.parent) in owned and type(module.parent).preserve_adopted_names)
        values["name"] = module.name if keeps_name else None
        made = owned[id(module)] = Template(index, type(module), constructor(module), values)
        return made

    def number(self, value: Any) -> int | None:
        """Return the number of the first scope of a module or another value; None for an unbound module."""
        scopes = [value.scope] if isinstance(value, Base) else split_scoped(value)[0]
        return next((self._index(scope) for scope in scopes if scope is not None), None)

    def _index(self, scope: Scope) -> int:
        number = self._numbers.get(scope.place)
        return self._add(None, scope, None) if number is None else number

    def _add(self, owner: Base | None, scope: Scope, template: Template | None) -> int:
        """Add a scope; return its number."""
        number = len(self.scopes)
        self.owners.append(owner)
        self.scopes.append(scope)
        self._templates.append(template)
        self._numbers.setdefault(scope.place, number)
        return number


def instantiate(parts: Parts, scopes: Sequence[Scope]) -> tuple[list[Any], list[Any]]:
    """Make the modules that parts were taken from, on other scopes.

    Returns:
        The module of each scope, or None if there is only a variable; and what comes along.
    """
    made: dict[Any, Any] = {}

    def build(part: StandIn) -> Any:
        if isinstance(part, ScopedAt):
            return part.make([scopes[index] for index in part.indices])
        key = part.index, type(part)
        if key not in made:
            is_bound = isinstance(part, ModuleAt)
            template: Any = parts.templates[part.index] if is_bound else part
            values = {name: map_instances(value, StandIn, build) for name, value in template.arguments.items()}
            parent = scopes[part.index] if is_bound else None
            if parent is not None:
                values["name"] = parent.name
            made[key] = template.make(parent=parent, **values)
        return made[key]

    modules = [template and build(ModuleAt(number)) for number, template in enumerate(parts.templates)]
    return modules, [build(part) for part in parts.along]


# --- closures ---------------------------------------------------------------------------------------------------------


_HOLDERS = (types.FunctionType, types.MethodType, functools.partial)
_KINDS = (*BOUND, *_HOLDERS)


def closed_over(fn: Any) -> list[Any]:
    """Return the modules and variables that a function closes over, each once."""
    if type(fn) is types.FunctionType and getattr(fn, "is_module_method", False):  # most often, and it has no parts
        return []
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(value: Any) -> Any:
        if isinstance(value, BOUND):
            found.setdefault(id(value), value)
        elif id(value) not in seen:
            seen.add(id(value))
            map_instances(_parts(value), _KINDS, visit)
        return value

    map_instances(fn, _KINDS, visit)
    return list(found.values())


def with_closed_over(fn: Any, replace: Callable[[Any], Any]) -> Any:
    """Return the same function, closed over other modules and variables.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     by: float
        >>> def times(scale):
        ...     return lambda x: scale.by * x
        >>> doubled = times(Scale(2.0))
        >>> with_closed_over(doubled, lambda module: module.clone(by=3.0))(1.0), doubled(1.0)
        (3.0, 2.0)

    Args:
        fn: a function, or any nesting of containers with functions.
        replace: called with each module and variable; returns the value to put in its place.
    """
    made: dict[int, Any] = {}

    def rebuilt(value: Any) -> Any:
        return map_instances(value, _KINDS, one)

    def one(value: Any) -> Any:
        if isinstance(value, BOUND):
            return replace(value)
        if id(value) not in made:
            made[id(value)] = value  # unchanged, if it closes over none
            if closed_over(value):
                _rebuild(value, rebuilt, made)
        return made[id(value)]

    return rebuilt(fn)


def may_keep_arrays(fn: Any) -> bool:
    """Return whether a function may keep arrays alive: it has a closure or an object, or is a partial with arrays."""
    if isinstance(fn, functools.partial):
        arrays: list[Any] = []
        map_instances([fn.args, fn.keywords], (jax.Array, np.ndarray), arrays.append)
        return bool(arrays) or may_keep_arrays(fn.func)
    if not getattr(fn, "is_module_method", False) and not isinstance(fn, types.FunctionType | type):
        return not is_shareable(fn)  # a method of an object, or an object that can be called
    cells = getattr(fn, "__closure__", None) or ()
    return not getattr(fn, "is_module_method", False) and not all(isinstance(_content(cell), type) for cell in cells)


def _parts(value: Any) -> tuple[Any, ...]:
    """Return the parts of a function, a method or a partial."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if getattr(value, "is_module_method", False):  # a class closes over the same for all instances
        return ()
    return (*map(_content, value.__closure__ or ()), value.__defaults__, value.__kwdefaults__)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


def _rebuild(value: Any, rebuilt: Callable[[Any], Any], made: dict[int, Any]) -> None:
    """Add to `made` the same function with its parts rebuilt."""
    if isinstance(value, functools.partial):
        args, keywords = rebuilt(value.args), rebuilt(value.keywords)
        made[id(value)] = type(value)(rebuilt(value.func), *args, **keywords)
    elif isinstance(value, types.MethodType):
        made[id(value)] = types.MethodType(rebuilt(value.__func__), rebuilt(value.__self__))
    else:
        old = value.__closure__ or ()
        # A cell without any of them is kept: `nonlocal` writes to it.
        cells = tuple(types.CellType() if closed_over(_content(cell)) else cell for cell in old)
        new = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells)
        made[id(value)] = new  # before its cells are filled: one of them may hold the function itself
        functools.update_wrapper(new, value).__dict__.pop("__wrapped__")
        new.__dict__.update(value.__dict__)
        new.__defaults__, new.__kwdefaults__ = rebuilt(value.__defaults__), rebuilt(value.__kwdefaults__)
        for cell, new_cell in zip(old, cells, strict=True):
            if new_cell is not cell:
                new_cell.cell_contents = rebuilt(_content(cell))

"""Modules as pytrees: the kinds of their attributes, their children, and their static part."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax

from liftcore import Rest, trace_state
from liftcore.caches import bounded
from liftcore.cycles import check_finite
from liftcore.leaves import is_array_or_struct, is_number, is_numpy
from liftcore.owners import Style, is_owner
from liftcore.problems import reserved_name
from liftcore.statics import Undescribed, is_unchanging

from . import problems
from .errors import KindError
from .kinds import PaxKind

__all__ = [
    "Definition",
    "Structure",
    "Structured",
    "check_changeable",
    "check_kind",
    "check_one_module",
    "check_shared",
    "check_value",
    "children_of",
    "flatten",
    "hold",
    "holds_arrays",
    "is_module",
    "leaves_and_modules",
    "modules_in",
    "unflatten",
]


@dataclasses.dataclass(frozen=True)
class Structure:
    """The kinds of a module's attributes.

    Attributes:
        kinds: the name and the kind of each registered attribute, in the order of registration.
        is_frozen: whether the parameters of the module are frozen.
    """

    kinds: tuple[tuple[str, PaxKind], ...] = ()
    is_frozen: bool = False

    @functools.cached_property
    def children(self) -> tuple[str, ...]:
        """The names of the children."""
        return tuple([name for name, kind in self.kinds if kind is not PaxKind.OTHERS])

    def kind(self, name: str) -> PaxKind | None:
        """Return the kind of an attribute, or None if it has none."""
        return next((kind for other, kind in self.kinds if other == name), None)

    def shown(self, kind: PaxKind) -> PaxKind:
        """Return a kind as users see it: a frozen parameter is a state."""
        return PaxKind.STATE if self.is_frozen and kind is PaxKind.PARAMETER else kind

    def registered(self, name: str, kind: PaxKind) -> Structure:
        """Return a structure with an attribute added, if it is new."""
        return self if self.kind(name) else dataclasses.replace(self, kinds=(*self.kinds, (name, kind)))

    def without(self, name: str) -> Structure:
        """Return a structure without an attribute."""
        return dataclasses.replace(self, kinds=tuple([each for each in self.kinds if each[0] != name]))


class Structured:
    """The base class of modules, which hold the kinds of their attributes and the trace in which they may change."""

    __style__ = Style("a module with kinds", "pax.adopt", "key", is_changed=True)

    __slots__ = ("__dict__", "__weakref__", "_kept", "_structure", "_trace")

    _structure: Structure
    _trace: Any
    _kept: Kept | None
    """The definition, if its values cannot change in place."""


Definition: TypeAlias = Rest
"""The static part of a module: its structure, and the attributes that are not children."""

Kept: TypeAlias = tuple[Structure, dict[str, Any], Definition]
"""A structure, the attributes that are not children, and the definition of both."""


def is_module(value: Any) -> bool:
    """Return whether a value is a module."""
    return isinstance(value, Structured)


def hold(module: Structured, structure: Structure, attributes: Mapping[str, Any]) -> None:
    """Set the structure of a module, and some attributes."""
    # Not through `Module.__setattr__`, which sets and checks a single attribute, and calls this function.
    object.__setattr__(module, "_structure", structure)
    module.__dict__.update(attributes)


def flatten(module: Structured) -> tuple[list[Any], Definition]:
    """Return the children of a module, and its definition."""
    structure, values = module._structure, module.__dict__
    names = structure.children
    check_shared(module)
    children = children_of(module)
    others = {name: value for name, value in values.items() if name not in names}
    return children, _kept(module, structure, others) or _definition(module, structure, others)


def _kept(module: Structured, structure: Structure, others: Mapping[str, Any]) -> Definition | None:
    """Return the kept definition if all values are the same objects: comparing them is faster than making it again."""
    if module._kept is None:
        return None
    before, values, definition = module._kept
    same = before is structure and len(values) == len(others)
    return definition if same and all(values.get(name, _MISSING) is one for name, one in others.items()) else None


_MISSING = object()


def _definition(module: Structured, structure: Structure, others: dict[str, Any]) -> Definition:
    try:
        _check_others(module, others)
        definition = Rest((structure, others))
    except Undescribed as error:
        raise problems.no_key(module, others, error) from error
    is_fixed = all(map(is_unchanging, others.values()))
    object.__setattr__(module, "_kept", (structure, others, definition) if is_fixed else None)
    return definition


@bounded(1024)
def _parts(definition: Definition) -> tuple[Structure, dict[str, Any], bool]:
    """Return the structure and the attributes of a definition, and whether these cannot change in place."""
    structure, others = definition.value
    return structure, others, all(map(is_unchanging, others.values()))


def unflatten(module: Structured, definition: Definition, children: Iterable[Any]) -> None:
    """Set the attributes of a new module, which may then be changed in the current trace."""
    structure, others, is_fixed = _parts(definition)
    if not is_fixed:  # each module gets its own copies of the values
        structure, others = definition.value
    object.__setattr__(module, "_trace", trace_state())
    object.__setattr__(module, "_kept", (structure, others, definition) if is_fixed else None)
    hold(module, structure, {**others, **dict(zip(structure.children, children, strict=True))})


def holds_arrays(value: Any) -> bool:
    """Return whether a value is a module, of this style or of another one that knows the kinds of its arrays."""
    return is_module(value) or (is_owner(value) and any(map(is_array_or_struct, jax.tree.leaves(value))))


def leaves_and_modules(tree: Any, is_leaf: Callable[[Any], bool] = is_module) -> list[Any]:
    """Return the leaves of a pytree, with modules as leaves; with `is_owner`, modules of all styles."""
    if is_leaf(tree):
        return [tree]
    check_finite(tree)
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def children_of(module: Structured) -> list[Any]:
    """Return the children of a module."""
    return [module.__dict__[name] for name in module._structure.children]


def modules_in(tree: Any) -> Iterator[Any]:
    """Yield the modules in a pytree, outer ones first. A module in two places is yielded twice."""
    check_finite(tree, within=True)
    yield from _modules_in(tree)


def _modules_in(tree: Any) -> Iterator[Any]:
    for one in leaves_and_modules(tree):
        if is_module(one):
            yield one
            for child in children_of(one):
                yield from _modules_in(child)


def check_shared(tree: Any) -> None:
    """Check that no module is in two places of a pytree: after a transformation, they would be two modules."""
    seen: set[int] = set()
    for one in modules_in(tree):
        if id(one) in seen:
            raise problems.shared(tree, one)
        seen.add(id(one))


def _check_others(module: Structured, others: Mapping[str, Any]) -> None:
    """Check that attributes that are not children hold no arrays and no modules."""
    for name, value in others.items():
        for one in leaves_and_modules(value, is_owner):
            if holds_arrays(one) or isinstance(one, jax.Array) or is_numpy(one):
                raise problems.no_kind(module, name, one)


# --- checks of attributes ---------------------------------------------------------------------------------------------


def check_changeable(module: Structured, name: str) -> None:
    """Check that a module may be changed in the current trace."""
    if not module._trace == trace_state():
        raise problems.changed_elsewhere(module, name)


def check_kind(module: Structured, name: str, kind: PaxKind) -> None:
    """Check that an attribute may get a kind: it has none yet, or has the same one."""
    if not isinstance(kind, PaxKind):
        raise problems.no_kind_given(module, name, kind)
    before = module._structure.kind(name)
    if before not in (None, kind):
        raise problems.other_kind(module, name, before, kind)
    if before is None and (name == "is_training" or _is_ours(type(module), name)):
        raise reserved_name(type(module).__name__, name, KindError)


def check_one_module(module: Structured, name: str, value: Any) -> None:
    """Check that a value is a module."""
    if not is_owner(value):
        raise problems.unfit(module, name, PaxKind.MODULE, value)


def check_value(module: Structured, name: str, value: Any, kind: PaxKind) -> None:
    """Check that an attribute of a kind may hold a value."""
    for one in leaves_and_modules(value, is_owner):
        if not _fits(one, kind):
            raise problems.unfit(module, name, kind, one)


def _fits(leaf: Any, kind: PaxKind) -> bool:
    if kind is PaxKind.MODULE:
        return is_owner(leaf)
    is_data = is_owner(leaf) or is_array_or_struct(leaf)
    return not is_data if kind is PaxKind.OTHERS else is_data or is_number(leaf)


def _is_ours(kind: Any, name: str) -> bool:
    """Return whether every module has an attribute of this name."""
    base = next(one for one in reversed(kind.__mro__) if one.__bases__ == (Structured,))
    return name in vars(base)

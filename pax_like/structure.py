"""Modules as pytrees: the kinds of their attributes, their children, and their static part."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax

from liftcore import Rest, trace_state
from liftcore.caches import bounded
from liftcore.errors import Expected, JaxTransformError, LiftArgumentError, shown
from liftcore.owners import Style, is_owner
from liftcore.problems import reserved_name
from liftcore.pytrees import check_acyclic, is_array_or_struct, is_number, is_numpy
from liftcore.statics import Undescribed, is_unchanging, static_key

from .errors import KindError, SharedModuleError

__all__ = [
    "COLLECTIONS",
    "Definition",
    "PaxKind",
    "Structure",
    "Structured",
    "changed_definition",
    "check_changeable",
    "check_kind",
    "check_shared",
    "check_value",
    "children_of",
    "flatten",
    "hold",
    "holds_arrays",
    "is_module",
    "leaves_and_modules",
    "modules_in",
    "unfit",
    "unflatten",
]


class PaxKind(enum.Enum):
    """The kind of an attribute of a module.

    Attributes:
        STATE: arrays that calls change: statistics, caches, counters, keys.
        PARAMETER: arrays to differentiate with respect to.
        MODULE: a module, or a pytree of modules; each of them has kinds for its own attributes.
        OTHERS: a value without arrays, which is a part of the tree definition.
    """

    STATE = 1
    PARAMETER = 2
    MODULE = 3
    OTHERS = -1


COLLECTIONS = {PaxKind.STATE: "state", PaxKind.PARAMETER: "params"}
"""The collections of variables in which lifts keep the arrays of each kind."""


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
        name = next((name for name, value in others.items() if _key(value) is None), "an attribute")
        given = shown(error.value)
        what = f"it is a part of the tree definition, but {given} may change in place and cannot be compared."
        raise LiftArgumentError(_place(module, name), what, error.fix, given=given) from error
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
    check_acyclic(tree)
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def children_of(module: Structured) -> list[Any]:
    """Return the children of a module."""
    return [module.__dict__[name] for name in module._structure.children]


def modules_in(tree: Any) -> Iterator[Any]:
    """Yield the modules in a pytree, outer ones first. A module in two places is yielded twice."""
    check_acyclic(tree, within=True)
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
            first, second = [place for place, other in _places(tree) if other is one][:2]
            raise SharedModuleError(
                f"{second} of {type(tree).__name__ if is_module(tree) else 'the arguments'}",
                f"it is the same {type(one).__name__} as {first}; in a pytree, they would become two independent "
                "modules.",
                "Keep it in one place and pass it to where it is used, or give each place a copy, `module.copy()`.",
                given=first,
            )
        seen.add(id(one))


def _check_others(module: Structured, others: Mapping[str, Any]) -> None:
    """Check that attributes that are not children hold no arrays and no modules."""
    for name, value in others.items():
        for one in leaves_and_modules(value, is_owner):
            if holds_arrays(one) or isinstance(one, jax.Array) or is_numpy(one):
                raise _no_kind(module, name, one)


# --- checks of attributes ---------------------------------------------------------------------------------------------


def check_changeable(module: Structured, name: str) -> None:
    """Check that a module may be changed in the current trace."""
    if not module._trace == trace_state():
        raise JaxTransformError(
            _place(module, name),
            "it is changed inside a JAX transformation, but the module was created outside.",
            "Pass the module as an argument and return it: `module, y = jax.jit(pax.module_and_value(fn))(module, x)`.",
            given=name,
        )


def check_kind(module: Structured, name: str, kind: PaxKind) -> None:
    """Check that an attribute may get a kind: it has none yet, or has the same one."""
    if not isinstance(kind, PaxKind):
        kinds = tuple(map(str, PaxKind))
        raise KindError(_place(module, name), Expected("a kind", kind), f"Write one of {list(kinds)}.", available=kinds)
    before = module._structure.kind(name)
    if before not in (None, kind):
        what = f"it was registered as {before.name}, and cannot become {kind.name}: a kind never changes."
        fix = "Use another name; to exclude parameters from gradients, write `module = module.freeze()`."
        raise KindError(_place(module, name), what, fix, expected=before.name, given=kind.name)
    if before is None and (name == "is_training" or _is_ours(type(module), name)):
        raise reserved_name(type(module).__name__, name, KindError)


def check_value(module: Structured, name: str, value: Any, kind: PaxKind) -> None:
    """Check that an attribute of a kind may hold a value."""
    for one in leaves_and_modules(value, is_owner):
        if not _fits(one, kind):
            raise unfit(module, name, kind, one)


def _fits(leaf: Any, kind: PaxKind) -> bool:
    if kind is PaxKind.MODULE:
        return is_owner(leaf)
    is_data = is_owner(leaf) or is_array_or_struct(leaf)
    return not is_data if kind is PaxKind.OTHERS else is_data or is_number(leaf)


def _is_ours(kind: Any, name: str) -> bool:
    """Return whether every module has an attribute of this name."""
    base = next(one for one in reversed(kind.__mro__) if one.__bases__ == (Structured,))
    return name in vars(base)


# --- errors -----------------------------------------------------------------------------------------------------------


def _no_kind(module: Any, name: str, value: Any) -> KindError:
    """Return the error for an attribute that has no kind, but holds an array or a module."""
    if not is_owner(value):
        what = f"it holds {shown(value)}, but has no kind."
        fix = f'Write `self.register_parameter("{name}", …)`, or `register_state`.'
        return KindError(_place(module, name), what, fix, given=shown(value))
    return KindError(
        _place(module, name),
        f"it holds a module, {type(value).__name__}, that was added after the assignment.",
        f'Write `self.register_modules("{name}", …)` before you fill it, or fill it before you assign it.',
        given=type(value).__name__,
    )


def unfit(module: Any, name: str, kind: PaxKind, value: Any) -> KindError:
    """Return the error for an attribute that would hold a value that does not fit its kind."""
    expected = {PaxKind.MODULE: "modules", PaxKind.OTHERS: "no arrays"}.get(kind, "arrays")
    fixes = {
        PaxKind.MODULE: "Put arrays and functions into attributes of their own.",
        PaxKind.OTHERS: f'Write `self.register_parameter("{name}", …)`, or `register_state`.',
    }
    what = Expected(f"{expected} in an attribute of kind {kind.name}", given=value)
    fix = fixes.get(kind, "Put other values into an attribute of their own, without a kind.")
    return KindError(_place(module, name), what, fix)


def changed_definition(where: str, before: Any, after: Any) -> LiftArgumentError:
    """Return the error for a module whose static part changed inside a transformation."""
    there = next(_differences(before, after), "its children")
    return LiftArgumentError(
        where,
        f"{there} of {type(after).__name__} changed inside, but it is a part of the tree definition, which is static.",
        "Change it before or after. To change a value inside, make it an array with a kind, such as a state.",
        given=there,
    )


def _differences(before: Any, after: Any) -> Iterator[str]:
    """Yield the places of the static values that differ."""
    for (place, old), (_, new) in zip(_places([before]), _places([after]), strict=False):
        above = place.removeprefix("[0]").lstrip(".")
        others = [{k: v for k, v in vars(one).items() if k not in one.pytree_attributes} for one in (old, new)]
        for name in dict.fromkeys([*old.name_to_kind, *others[0], *new.name_to_kind, *others[1]]):
            kinds = [one.name_to_kind.get(name) for one in (old, new)]
            values = [_key(each.get(name)) for each in others]
            if kinds[0] is not kinds[1] or values[0] != values[1]:
                yield f"{above}.{name}".lstrip(".")


def _key(value: Any) -> Any:
    """Return what decides whether a static value is equal to another one; None if it cannot be compared."""
    try:
        return static_key(value)
    except Undescribed:
        return None


def _places(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules in a pytree with their places, such as `layers[0].norm`."""
    found = jax.tree.leaves_with_path(tree, is_leaf=is_module)
    for path, one in found:
        place = above + jax.tree_util.keystr(path)
        if is_module(one):
            if place:
                yield place.lstrip("."), one
            for name in one.pytree_attributes:
                yield from _places(getattr(one, name), f"{place}.{name}")


def _place(module: Any, name: str) -> str:
    return f"{name} of {type(module).__name__}"

"""The errors about modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from liftcore.errors import Expected, JaxTransformError, LiftArgumentError, shown
from liftcore.owners import is_owner
from liftcore.statics import Undescribed, static_key

from .errors import KindError, SharedModuleError
from .kinds import PaxKind

__all__ = [
    "changed_definition",
    "changed_elsewhere",
    "no_key",
    "no_kind",
    "no_kind_given",
    "other_kind",
    "places",
    "shared",
    "unfit",
]

_REGISTERS = {
    PaxKind.PARAMETER: "register_parameter",
    PaxKind.STATE: "register_state",
    PaxKind.MODULE: "register_modules",
}


def changed_elsewhere(module: Any, name: str) -> JaxTransformError:
    """Return the error for a module that is changed inside a transformation in which it was not created."""
    return JaxTransformError(
        _place(module, name),
        "it is changed inside a JAX transformation, but the module was created outside.",
        "Pass the module as an argument and return it: `module, y = jax.jit(pax.module_and_value(fn))(module, x)`.",
        given=name,
    )


def no_kind(module: Any, name: str, value: Any) -> KindError:
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


def other_kind(module: Any, name: str, kind: PaxKind, given: PaxKind) -> KindError:
    """Return the error for an attribute that would change its kind."""
    what = f"it was registered as {kind.name}, and cannot become {given.name}: a kind never changes."
    fix = "Use another name; to exclude parameters from gradients, write `module = module.freeze()`."
    return KindError(_place(module, name), what, fix, expected=kind.name, given=given.name)


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


def no_kind_given(module: Any, name: str, given: Any) -> KindError:
    """Return the error for a kind that is not a `PaxKind`."""
    where = _place(module, name)
    fix = f"Write one of {[str(one) for one in PaxKind]}."
    return KindError(where, Expected("a kind", given), fix, available=tuple(str(one) for one in PaxKind))


def no_key(module: Any, others: Mapping[str, Any], error: Undescribed) -> LiftArgumentError:
    """Return the error for an attribute in the tree definition that cannot be compared by value."""
    name = next((name for name, value in others.items() if not _has_key(value)), "an attribute")
    what = f"it is a part of the tree definition, but {shown(error.value)} may change in place and cannot be compared."
    return LiftArgumentError(_place(module, name), what, error.fix, given=shown(error.value))


def shared(tree: Any, one: Any) -> SharedModuleError:
    """Return the error for a module in two places of a pytree."""
    first, second = [place for place, other in places(tree) if other is one][:2]
    return SharedModuleError(
        f"{second} of {type(tree).__name__ if hasattr(tree, 'name_to_kind') else 'the arguments'}",
        f"it is the same {type(one).__name__} as {first}; in a pytree, they would become two independent modules.",
        "Keep it in one place and pass it to where it is used, or give each place a copy, `module.copy()`.",
        given=first,
    )


def changed_definition(where: str, before: Any, after: Any) -> LiftArgumentError:
    """Return the error for a module whose static part changed inside a transformation."""
    there = next((place for place in _differences(before, after)), "its children")
    return LiftArgumentError(
        where,
        f"{there} of {type(after).__name__} changed inside, but it is a part of the tree definition, which is static.",
        "Change it before or after. To change a value inside, make it an array with a kind, such as a state.",
        given=there,
    )


def _differences(before: Any, after: Any) -> Iterator[str]:
    """Yield the places of the static values that differ."""
    for (place, old), (_, new) in zip(places([before]), places([after]), strict=False):
        above = place.removeprefix("[0]").lstrip(".")
        others = [{k: v for k, v in vars(one).items() if k not in one.pytree_attributes} for one in (old, new)]
        for name in dict.fromkeys([*old.name_to_kind, *others[0], *new.name_to_kind, *others[1]]):
            kinds = [one.name_to_kind.get(name) for one in (old, new)]
            values = [_key(each.get(name)) for each in others]
            if kinds[0] is not kinds[1] or values[0] != values[1]:
                yield f"{above}.{name}".lstrip(".")


def _key(value: Any) -> Any:
    try:
        return static_key(value)
    except Undescribed:
        return id(value)


def places(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules in a pytree with their places, such as `layers[0].norm`."""
    found = jax.tree.leaves_with_path(tree, is_leaf=lambda one: hasattr(one, "name_to_kind"))
    for path, one in found:
        place = above + jax.tree_util.keystr(path)
        if hasattr(one, "name_to_kind"):
            if place:
                yield place.lstrip("."), one
            for name in one.pytree_attributes:
                yield from places(getattr(one, name), f"{place}.{name}")


def _has_key(value: Any) -> bool:
    try:
        return static_key(value) is not None
    except Undescribed:
        return False


def _place(module: Any, name: str) -> str:
    return f"{name} of {type(module).__name__}"

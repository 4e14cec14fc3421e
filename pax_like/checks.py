"""Checks of the values that are assigned to attributes of a module."""

from __future__ import annotations

from typing import Any

from liftcore import trace_state
from liftcore.leaves import is_array_or_struct, is_number
from liftcore.owners import is_owner

from . import problems
from .kinds import PaxKind
from .structure import Structured, leaves_and_modules

__all__ = ["check_changeable", "check_kind", "check_one_module", "check_value"]


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
        raise problems.reserved(module, name)


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

"""Finds out which attributes a Linen-style module has, without computing anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
import linen_like as nn
from liftcore.errors import LiftArgumentError

__all__ = ["is_linen", "kind_of", "part_of"]


def is_linen(value: Any) -> bool:
    """Return whether a value is a Linen-style module."""
    return isinstance(value, nn.Module)


def kind_of(module: nn.Module, name: str) -> str | None:
    """Return the kind of attribute that a module has under a name.

    Args:
        module: the module, unbound.
        name: the name of an attribute.

    Returns:
        `"method"` for a method, a submodule, or a list or dict of these; `"field"` for a field; `"value"` for anything
        else that `setup` makes; None if there is no such attribute, or if all modules have it, such as `apply`.
    """
    if hasattr(nn.Module, name):
        return None
    defined = inspect.getattr_static(type(module), name, None)
    if inspect.isfunction(defined) or isinstance(defined, (staticmethod, classmethod)):
        return "method"
    if name in type(module).__dataclass_fields__:
        return "method" if _holds_module(getattr(module, name)) else "field"
    missing = object()
    found: Any = _during_setup(module, lambda bound: _kind(getattr(bound, name, missing), missing))
    return found


def _kind(value: Any, missing: Any) -> str | None:
    if value is missing:
        return None
    return "method" if _holds_module(value) or callable(value) else "value"


def _holds_module(value: Any) -> bool:
    return any(is_linen(leaf) for leaf in jax.tree.leaves(value, is_leaf=is_linen))


def part_of(module: Any, path: Sequence[str]) -> Any:
    """Return the unbound submodule at a path: one that `setup` makes or that is in a field.

    Args:
        module: the module, unbound.
        path: names of submodules.

    Raises:
        LiftArgumentError: if there is no such submodule.
    """
    return _during_setup(module, lambda bound: _submodule(bound, path).unbind()[0]) if path else module


def _submodule(bound: nn.Module, path: Sequence[str]) -> nn.Module:
    for name in path:
        dir(bound)  # runs `setup`
        held = [value for key, value in vars(bound).items() if key[:1] != "_" and key != "scope"]
        found = [leaf for leaf in jax.tree.leaves(held, is_leaf=is_linen) if is_linen(leaf) and leaf.name == name]
        if not found:
            raise LiftArgumentError(
                f"{type(bound).__name__}.{name}",
                "it cannot be called on its own: `setup` makes no submodule of this name, only a method does.",
                "Make it in `setup`, or call a method of the module that uses it.",
            )
        bound = found[0]
    return bound


def _during_setup(module: nn.Module, ask: Callable[[nn.Module], Any]) -> Any:
    """Return the result of a function that inspects a module bound to abstract variables (shapes only)."""
    answers = []

    def bound(key: Any) -> None:
        scope = liftcore.bind({}, {"params": key}, mutable=True, initializing=True)
        answers.append(ask(module.clone(parent=scope, _deep_clone=True)))

    jax.eval_shape(bound, jax.eval_shape(jax.random.key, 0))
    return answers[0]

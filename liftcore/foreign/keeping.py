"""What all bridges share: the variables of a foreign model in a scope, and what errors say of a wrong model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Expected, LiftArgumentError, WrongStyleError, name_of
from ..filters.trees import flat
from ..meta import unbox
from ..owners import style_of
from ..scopes.declaring import create_missing
from ..scopes.scope import Scope
from ..typing import Path

__all__ = [
    "INTERMEDIATES",
    "begins",
    "called",
    "check_model",
    "create",
    "fits_maker",
    "method_name",
    "named",
    "stored",
    "write",
]

INTERMEDIATES = "intermediates"
"""The collection of values that a model sows."""


def begins(scope: Scope) -> bool:
    """Whether the variables of a model have to be made: the scope has none, and may create them."""
    return (scope.is_initializing() or scope.is_mutable_collection("params")) and not scope.variables()


def stored(scope: Scope) -> dict[Path, Any]:
    """Return the variables here and below, without boxes, by path."""
    return flat(unbox(scope.variables()))


def create(scope: Scope, values: Mapping[Path, Any], make: Callable[[], Mapping[Path, Any]], owner: Any) -> None:
    """Create those variables that a scope lacks.

    Args:
        scope: the scope.
        values: the variables of the model by path, or their types.
        make: returns the variables with their values; called only if one is missing.
        owner: who uses the names; an equal owner may use them again.
    """
    scope.own(owner, values)
    create_missing(scope, values, make)


def write(scope: Scope, old: Mapping[Path, Any], new: Mapping[Path, Any]) -> None:
    """Write the variables that a call changed. In `init`, a model has the variables that its library makes.

    Args:
        scope: the scope.
        old: the variables before the call, by path.
        new: the variables after it.
    """
    if scope.is_initializing():
        return
    changed = [(path, value) for path, value in new.items() if value is not old.get(path)]
    scope.put_all([(path, scope.below(path[1:-1]).reboxed(path[0], path[-1], value)) for path, value in changed])


def called(model: Any, method: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what a call of a model calls: the model, one of its methods, or a function that takes the model first."""
    if method is None:
        return model  # type: ignore[no-any-return]
    if isinstance(method, str):
        return getattr(model, method)  # type: ignore[no-any-return]
    return lambda *args, **kwargs: method(model, *args, **kwargs)


def method_name(method: str | Callable[..., Any] | None) -> str:
    """Return the name of what `called` returns."""
    return "__call__" if method is None else method if isinstance(method, str) else name_of(method)


def named(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function with another name, which lifts use in paths."""
    fn.__name__ = fn.__qualname__ = name
    return fn


def fits_maker(model: Any, cls: type) -> bool:
    """Whether a value is a model of a class, or a function that makes one; the class itself is neither."""
    return isinstance(model, cls) or (callable(model) and not (isinstance(model, type) and issubclass(model, cls)))


def check_model(where: str, model: Any, fits: bool, expected: str, line: str) -> None:
    """Check the argument of a bridge.

    Args:
        where: the name of the bridge.
        model: the argument.
        fits: whether it is what the bridge takes.
        expected: what the bridge takes, for the error.
        line: the code that passes it.

    Raises:
        WrongStyleError: if it is a module of one of our styles.
        LiftArgumentError: if it is something else.
    """
    style = style_of(model)
    if style is not None:
        raise WrongStyleError(
            where,
            Expected(expected, style.noun, words=f"{style.noun}, which needs no bridge"),
            f"Write `{style.in_scope}`.",
        )
    if not fits:
        raise LiftArgumentError(where, Expected(expected, given=model), f"Write `{line}`.")

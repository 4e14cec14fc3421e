"""Places other than a module's own: name scopes of methods, and scopes that modules share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from liftcore.errors import LiftArgumentError, shown

from ..errors import CallShareScopeOnUnboundModuleError
from .binding import place
from .fields import Base

__all__ = ["name_scope", "share_scope"]


@contextlib.contextmanager
def name_scope(module: Base, name: str) -> Iterator[None]:
    """Place submodules below a name, while a method with its own name scope is running."""
    state, scope = module._state, module.scope
    if scope.number(f"{name}()") == 0:  # counted like automatic names, which pass through lifts
        scope.reserve(name)
    before, state.home = state.home, scope.below((name,))
    try:
        yield
    finally:
        state.home = before


def share_scope(module: Base, other: Any, /) -> None:
    """Put two bound modules in one place: the variables and submodules of both are side by side, under one name.

    If one is a submodule of the other, it moves up to the module that holds it; otherwise the first moves to the
    second. Submodules that it already holds move with it. Call this in `setup`, before either of them is used:
    variables that already exist stay where they are.

    Example:
        >>> import jax, linen_like as nn
        >>> class WithScale(nn.Module):
        ...     base: nn.Module
        ...     def setup(self):
        ...         nn.share_scope(self, self.base)
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return self.base(x) * self.param("scale", jax.nn.initializers.ones, ())
        >>> variables = WithScale(nn.Dense(2)).init(jax.random.key(0), jax.numpy.ones(3))
        >>> sorted(variables["params"])
        ['bias', 'kernel', 'scale']

    Args:
        module: a module.
        other: another one.

    Raises:
        CallShareScopeOnUnboundModuleError: if one of them is unbound.
        NameInUseError: later, if both use one name.
    """
    for one in (module, other):
        if not isinstance(one, Base):
            raise LiftArgumentError(
                "nn.share_scope",
                f"expected two modules, given {shown(one)}.",
                "Pass `self` and a module that it holds: `nn.share_scope(self, self.base)`.",
            )
        if one.scope is None:
            raise CallShareScopeOnUnboundModuleError(
                f"share_scope of {place(module)} and {place(other)}",
                f"{type(one).__name__} is a description without variables.",
                "Call it in `setup`, with `self` and a module that it holds: `nn.share_scope(self, self.base)`.",
            )
    above, below = module.scope, other.scope
    moved, scope = (other, above) if above.holds(below) else (module, below)
    left = moved.scope
    if left.parent is not None and left.name is not None:
        left.parent.free(left.name)
    _move(moved, scope.beside())


def _move(module: Base, scope: Any) -> None:
    """Move a module to another scope, and the submodules that it already holds below that scope."""
    left = module.scope
    module.__dict__["scope"] = scope
    for child in (module._state.children or {}).values():
        if child.scope is not None and child.scope.parent is left:
            _move(child, scope.push(child.name))

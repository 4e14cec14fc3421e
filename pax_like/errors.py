"""The errors about modules, beside those of `liftcore.errors`."""

from __future__ import annotations

from liftcore.errors import LiftArgumentError

__all__ = ["KindError", "SharedModuleError"]


class KindError(LiftArgumentError):
    """An attribute has no kind, would change it, or holds what its kind cannot hold."""


class SharedModuleError(LiftArgumentError):
    """A module stands in two places of a pytree, where it would become two that go apart."""

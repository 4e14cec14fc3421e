"""Errors about modules, in addition to those of `liftcore.errors`."""

from __future__ import annotations

from liftcore.errors import LiftArgumentError

__all__ = ["KindError", "SharedModuleError"]


class KindError(LiftArgumentError):
    """An attribute holds arrays and has no kind, holds a value that does not fit its kind, or would change its kind."""


class SharedModuleError(LiftArgumentError):
    """A module is in two places of a pytree, where JAX would make two independent modules of it."""

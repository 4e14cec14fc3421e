"""The errors about modules and rules, beside those of `liftcore.errors`."""

from __future__ import annotations

import dataclasses

from liftcore.errors import LiftArgumentError

__all__ = ["FrozenModuleError", "RuleStructureError", "UnsetFieldError"]


class FrozenModuleError(LiftArgumentError, dataclasses.FrozenInstanceError):
    """A module was changed after it had been made, or given a field that its class does not declare."""


class RuleStructureError(LiftArgumentError, TypeError):
    """A rule of differentiation returned another structure than it has to."""


class UnsetFieldError(LiftArgumentError, TypeError):
    """The initializer of a module did not set one of its fields."""

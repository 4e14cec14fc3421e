"""Errors about modules and derivative rules, in addition to those of `liftcore.errors`."""

from __future__ import annotations

import dataclasses

from liftcore.errors import LiftArgumentError

__all__ = ["FrozenModuleError", "RuleStructureError", "UnsetFieldError"]


class FrozenModuleError(LiftArgumentError, dataclasses.FrozenInstanceError):
    """A module was changed after its creation, or a field was set that its class does not declare."""


class RuleStructureError(LiftArgumentError, TypeError):
    """A derivative rule returned a value of the wrong structure."""


class UnsetFieldError(LiftArgumentError, TypeError):
    """`__init__` of a module did not set one of its fields."""

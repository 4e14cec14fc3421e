"""The errors about objects and variables, beside those of `liftcore.errors`."""

from __future__ import annotations

from liftcore.errors import LiftArgumentError

__all__ = ["AliasError", "StructureError", "TraceContextError"]


class TraceContextError(LiftArgumentError):
    """An object or a variable was changed, or returned, under another JAX trace than the one that it was made in."""


class AliasError(LiftArgumentError):
    """One object was given in two ways: under two axes, in two groups, or as two arguments treated differently."""


class StructureError(LiftArgumentError):
    """The structure of an object is not what it must be here, such as in the carry of a loop or over two branches."""

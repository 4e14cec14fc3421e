"""The errors about objects and variables, beside those of `liftcore.errors`."""

from __future__ import annotations

from liftcore.errors import LiftArgumentError

__all__ = [
    "AliasError",
    "MetricArgumentError",
    "OptimizerArgumentError",
    "StructureError",
    "TraceContextError",
    "UnknownStreamError",
]


class TraceContextError(LiftArgumentError):
    """An object or a variable was changed, or returned, under another JAX trace than the one that it was made in."""


class AliasError(LiftArgumentError):
    """One object was given in two ways: under two axes, in two groups, or as two arguments treated differently."""


class StructureError(LiftArgumentError):
    """The structure of an object is not what it must be here, such as in the carry of a loop or over two branches."""


class UnknownStreamError(LiftArgumentError, AttributeError, KeyError):
    """A key was asked of a stream that is not there, and there is no stream `default`."""

    __str__ = LiftArgumentError.__str__  # in place of that of `KeyError`, which quotes the text


class OptimizerArgumentError(LiftArgumentError, TypeError):
    """An optimizer was made or used without an argument that it needs."""


class MetricArgumentError(LiftArgumentError, TypeError):
    """A metric was made or updated with an argument of another kind than it takes, or without one that it needs."""

"""The errors about objects and variables, in addition to those of `liftcore.errors`."""

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
    """An object or a variable was changed or returned under a JAX trace other than the one it was created in."""


class AliasError(LiftArgumentError):
    """One object was passed in two places that treat it differently, such as under two axes."""


class StructureError(LiftArgumentError):
    """An object has the wrong structure, for example in the carry of a loop, or because two branches differ."""


class UnknownStreamError(LiftArgumentError, AttributeError, KeyError):
    """A key was drawn from a stream that does not exist, and there is no stream `default`."""

    __str__ = LiftArgumentError.__str__  # `KeyError.__str__` would quote the text


class OptimizerArgumentError(LiftArgumentError, TypeError):
    """An optimizer was created or used without a required argument."""


class MetricArgumentError(LiftArgumentError, TypeError):
    """A metric was created or updated with a wrong argument, or without a required one."""

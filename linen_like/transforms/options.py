"""Options that several transformations treat alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftcore.errors import LiftArgumentError

__all__ = ["refuse", "with_perturbations"]


def refuse(name: str, **options: Any) -> None:
    """Raises where an option of Linen is used that has no meaning here."""
    for option, value in options.items():
        if value:
            raise LiftArgumentError(
                f"nn.{name}", f"{option}={value!r} is not supported; see the arguments of `nn.{name}`.", "Leave it out."
            )


def with_perturbations(variable_axes: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Axes with one for the variables of `Module.perturb`: they pass as sown values do, without being listed."""
    known = not isinstance(variable_axes, Mapping) or "perturbations" in variable_axes
    return variable_axes if known else {**variable_axes, "perturbations": 0}

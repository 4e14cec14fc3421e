"""Options of transformations that have the same names here and in liftcore: they are passed on together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..lifting import flags, lift_with

__all__ = ["lift_by_options"]


def lift_by_options(
    lift: Callable[..., Any], given: Mapping[str, Any], ignored: Collection[str] = (), prefix: str = ""
) -> Any:
    """Lift a target with the arguments of a transformation here, `locals()` at its start.

    Args:
        lift: the transformation of liftcore.
        given: the arguments by name: `target`, `methods`, and the options of `lift`.
        ignored: the names of arguments that `lift` does not have.
        prefix: see `lift_with`.
    """
    options = {name: value for name, value in given.items() if name not in ("target", "methods", *ignored)}
    if "split_rngs" in options:
        options["split_rngs"] = flags(options["split_rngs"])
    lifted = functools.partial(lift, **options)
    return lift_with(lifted, given["target"], methods=given["methods"], name=f"nn.{lift.__name__}", prefix=prefix)

"""The options of JAX that filtered transformations replace, and what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from liftcore.errors import LiftArgumentError

__all__ = ["check_options"]

_DONATE = 'Write `donate="all"`, or `donate="all-except-first"` to keep the first argument.'
_STATIC = "Leave it out: all leaves that are not arrays are static."
_SHARDINGS = "Leave it out: arrays keep their shardings. To set one, write `eqx.filter_shard(tree, sharding)`."
_FIRST = "Leave it out, and pass a tuple of all that you differentiate as the first argument."

INSTEAD = {
    "donate_argnums": _DONATE,
    "donate_argnames": _DONATE,
    "static_argnums": _STATIC,
    "static_argnames": _STATIC,
    "in_shardings": _SHARDINGS,
    "out_shardings": _SHARDINGS,
    "argnums": _FIRST,
}
"""JAX counts arguments; a filtered transformation passes lists of arrays to it, where the numbers would be wrong."""


def check_options(where: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Check the options that are passed on to a transformation of JAX.

    Args:
        where: the name of the filtered transformation.
        options: the options, by name.
        known: the names that it has.

    Raises:
        LiftArgumentError: if an option is not among them.
    """
    for name in options:
        if name not in known:
            fix = INSTEAD.get(name, f"Its options are {', '.join(known)}.")
            raise LiftArgumentError(where, f"`{name}` is not an option.", fix)

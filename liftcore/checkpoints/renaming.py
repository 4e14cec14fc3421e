"""Transforms of a saved state: apply one function to modules, wherever they are in the state.

An optimizer's state holds trees with the names of the parameters, one for each moment. A change to the parameters, such
as stacking separate layers, must also be made to each of these trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import LiftArgumentError, check_function

__all__ = ["each_holding"]


def each_holding(name: str, fn: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """Return a `transform` that replaces each dict with an entry of a certain name by the result of a function.

    Example:
        >>> state = {"params": {"Dense_0": 1}, "opt_state": {"mu": {"Dense_0": 2}, "count": 3}}
        >>> each_holding("Dense_0", lambda modules: {"dense": modules["Dense_0"]})(state)
        {'params': {'dense': 1}, 'opt_state': {'mu': {'dense': 2}, 'count': 3}}

    Args:
        name: a name that all these dicts have, such as the name of the first layer.
        fn: the function, called with each of the dicts. Dicts inside of one that matches are not searched.

    Returns:
        A function from a state to a new state. It raises `LiftArgumentError` if no dict has the name.

    Raises:
        LiftArgumentError: if `fn` is not a function.
    """
    check_function(f'each_holding("{name}")', fn)

    def transform(state: Any) -> Any:
        changed, count = _changed(state, name, fn)
        if not count:
            top = sorted(map(str, state)) if isinstance(state, Mapping) else None
            what = f"no dict in the state has this name (at the top: {'no dict' if top is None else top})."
            raise LiftArgumentError(f'each_holding("{name}")', what, "Give a name that was saved.", available=top)
        return changed

    return transform


def _changed(state: Any, name: str, fn: Callable[[dict[str, Any]], Any]) -> tuple[Any, int]:
    if not isinstance(state, Mapping):
        return state, 0
    if name in state:
        return fn(dict(state)), 1
    parts = {key: _changed(below, name, fn) for key, below in state.items()}
    return {key: part for key, (part, _) in parts.items()}, sum(count for _, count in parts.values())

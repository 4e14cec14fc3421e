"""Transforms of a state before it is restored: one function of modules, wherever modules are in the state.

An optimiser's state holds trees with the names of the parameters, one for each moment. What is done to the parameters,
such as stacking separate layers, has to be done to each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import LiftArgumentError

__all__ = ["each_holding"]


def each_holding(name: str, fn: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """A `transform` that calls a function with each dict in a state which holds a name, and puts its result there.

    Example:
        >>> state = {"params": {"Dense_0": 1}, "opt_state": {"mu": {"Dense_0": 2}, "count": 3}}
        >>> each_holding("Dense_0", lambda modules: {"dense": modules["Dense_0"]})(state)
        {'params': {'dense': 1}, 'opt_state': {'mu': {'dense': 2}, 'count': 3}}

    Args:
        name: a name that all those dicts have, such as that of the first layer.
        fn: called with each of them; nothing below is looked at again.

    Returns:
        A function from a state to another one, which raises `LiftArgumentError` where the name is nowhere.
    """

    def transform(state: Any) -> Any:
        changed, count = _changed(state, name, fn)
        if not count:
            top = sorted(map(str, state)) if isinstance(state, Mapping) else "no dict"
            what = f"nothing in the state holds this name (at its top: {top})."
            raise LiftArgumentError(f'each_holding("{name}")', what, "Give a name as it was saved.")
        return changed

    return transform


def _changed(state: Any, name: str, fn: Callable[[dict[str, Any]], Any]) -> tuple[Any, int]:
    if not isinstance(state, Mapping):
        return state, 0
    if name in state:
        return fn(dict(state)), 1
    parts = {key: _changed(below, name, fn) for key, below in state.items()}
    return {key: part for key, (part, _) in parts.items()}, sum(count for _, count in parts.values())

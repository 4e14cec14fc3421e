"""Pytrees that contain themselves: found before JAX recurses into them, since JAX would never come to an end.

After a recursion that was too deep, CPython counts the calls inside JAX as open for good, so nothing runs any more.
"""

from __future__ import annotations

import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from .errors import LiftArgumentError

__all__ = ["check_finite", "checks_itself", "entering"]

_LEAVES = frozenset({bool, int, float, str, type(None), types.FunctionType, np.ndarray})
_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, defaultdict})


class _Pass(threading.local):
    """The pytrees that JAX is about to flatten, by identity, since a check found them below another one."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.checks = False


_pass = _Pass()


_checking: set[type] = set()
"""The classes that call `entering` where they are flattened."""


def checks_itself(cls: type) -> None:
    """Note that nodes of a class call `entering`, so that other checks need not look below them.

    Args:
        cls: the class.
    """
    _checking.add(cls)


def entering(node: Any, fix: str) -> None:
    """Check a node that JAX flattens, unless it was found below a node that was checked.

    A class of pytrees that can change calls this in its function that flattens. A node that contains itself is met
    more often than it was found, and then checked.

    Args:
        node: the node.
        fix: what the error says to do.

    Raises:
        LiftArgumentError: if the node contains itself.
    """
    if _pass.checks:
        return
    if id(node) in _pass.known:
        _pass.known.discard(id(node))
        return
    _pass.checks = True
    try:
        _pass.known |= _Search(jax.tree_util.default_registry.flatten_one_level, fix).below(node)
    finally:
        _pass.checks = False


def check_finite(tree: Any, fix: str = "Leave out the reference, or keep it where it is static.") -> None:
    """Check that lists, tuples, dicts and other pytrees do not contain themselves.

    Example:
        >>> items = [1]
        >>> items.append(items)
        >>> check_finite((items,))
        Traceback (most recent call last):
        ...
        liftcore.errors.LiftArgumentError: list: it contains itself, list > list, so as a pytree it has no end. Leave...

    Args:
        tree: a pytree.
        fix: what the error says to do.

    Raises:
        LiftArgumentError: if one contains itself, or they are nested too deep.
    """
    kind = type(tree)
    if kind not in _checking and not issubclass(kind, jax.Array):
        _Search(_flattened, fix).visit(tree)


def _flattened(node: Any) -> Any:
    return None if type(node) in _checking else jax.tree_util.default_registry.flatten_one_level(node)


class _Search:
    """A walk through pytrees, as JAX flattens them.

    Args:
        flatten: returns the children of a node that is no container of Python's, first in a tuple; or None.
        fix: what the error says to do.
    """

    def __init__(self, flatten: Callable[[Any], Any], fix: str) -> None:
        self.flatten, self.fix = flatten, fix
        self.above: list[Any] = []
        self.open: set[int] = set()
        self.done: dict[int, Any] = {}  # holds the nodes, since another one could get the identity of one that is gone

    def below(self, node: Any) -> set[int]:
        """Return the identities of the nodes below a node."""
        self.visit(node)
        return self.done.keys() - {id(node)}

    def visit(self, node: Any) -> None:
        """Check a node and all below it."""
        if type(node) in _LEAVES or isinstance(node, jax.Array) or id(node) in self.done:
            return
        children = self._children(node)
        if not children:
            return
        if id(node) in self.open:
            raise self._endless(node)
        self.open.add(id(node))
        self.above.append(node)
        try:
            for child in children:
                if type(child) not in _LEAVES and not isinstance(child, jax.Array):  # here, since most are leaves
                    self.visit(child)
        except RecursionError:
            raise self._too_deep(node) from None
        self.above.pop()
        self.open.discard(id(node))
        self.done[id(node)] = node

    def _children(self, node: Any) -> Iterable[Any]:
        if type(node) in _CONTAINERS:
            return node.values() if isinstance(node, dict) else node
        found = self.flatten(node)
        return () if found is None else list(found[0])

    def _endless(self, node: Any) -> LiftArgumentError:
        first = next(number for number, one in enumerate(self.above) if one is node)
        kinds = " > ".join([type(one).__name__ for one in [*self.above[first:], node]])
        return LiftArgumentError(
            type(node).__name__, f"it contains itself, {kinds}, so as a pytree it has no end.", self.fix
        )

    def _too_deep(self, node: Any) -> LiftArgumentError:
        return LiftArgumentError(
            type(node).__name__,
            "it is nested deeper than Python's recursion limit allows.",
            "Store the parts in a list instead of a chain, or raise the limit with `sys.setrecursionlimit`.",
        )

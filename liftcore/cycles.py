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

from .errors import LiftArgumentError, LiftError

__all__ = ["check_finite", "checks_itself", "endless", "entering", "too_deep"]

_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, defaultdict})
_LEAVES: set[type] = {bool, int, float, str, type(None), types.FunctionType, np.ndarray}
"""Types of leaves. Those of JAX's arrays are added when first seen."""

_children_of: dict[type, Callable[[Any], Iterable[Any]]] = {}
"""The classes that call `entering` where they are flattened, each with a function that returns children of a node."""


class _Pass(threading.local):
    """The nodes that JAX is about to flatten, by identity, since a search found them below another one."""

    def __init__(self) -> None:
        self.known: set[int] = set()


_pass = _Pass()


def checks_itself(cls: type, children: Callable[[Any], Iterable[Any]]) -> None:
    """Note that nodes of a class call `entering`, so that `check_finite` need not look below them.

    Args:
        cls: the class.
        children: returns the children of a node. Other values among them do no harm.
    """
    _children_of[cls] = children


def entering(node: Any, fix: str) -> None:
    """Check a node that JAX flattens, unless it was found below a node that was checked.

    A class of pytrees that can change calls this in its function that flattens. A node that contains itself is met
    more often than it was found, and is then checked.

    Args:
        node: the node, of a class that `checks_itself` has noted.
        fix: what the error says to do.

    Raises:
        LiftArgumentError: if the node contains itself.
    """
    known = _pass.known
    if id(node) in known:
        known.discard(id(node))
        return
    search = _Search(fix, enters=True)
    search.visit(node)
    known.update([key for key, one in search.done.items() if type(one) in _children_of and one is not node])


def check_finite(tree: Any, fix: str = "Leave out the reference.", *, within: bool = False) -> None:
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
        within: whether to look below nodes that check themselves too, for code that goes through them without JAX.

    Raises:
        LiftArgumentError: if one contains itself, or they are nested too deep.
    """
    kind = type(tree)
    if kind is tuple and _LEAVES.issuperset(map(type, tree)):  # most calls: their arguments are arrays and numbers
        return
    if kind not in _LEAVES and (within or kind not in _children_of):
        _Search(fix, enters=within).visit(tree)


class _Search:
    """A walk through pytrees, as JAX flattens them.

    Args:
        fix: what the error says to do.
        enters: whether to look below nodes that check themselves.
    """

    def __init__(self, fix: str, enters: bool) -> None:
        self.fix, self.enters = fix, enters
        self.open: dict[int, Any] = {}
        self.done: dict[int, Any] = {}  # holds the nodes, since another one could get the identity of one that is gone

    def visit(self, node: Any) -> None:
        """Check a node and all below it."""
        if id(node) in self.done:
            return
        kind: Any = type(node)
        children: Iterable[Any] = ()
        if kind in _CONTAINERS:
            # In one step: another thread may change it in the meantime.
            children = tuple(node.values() if isinstance(node, dict) else node)
        elif kind in _children_of:
            children = _children_of[kind](node) if self.enters else ()
        elif isinstance(node, jax.Array):
            _LEAVES.add(kind)
        elif (found := jax.tree_util.default_registry.flatten_one_level(node)) is not None:
            children = found[0]
        below = [child for child in children if type(child) not in _LEAVES]
        if below:
            if id(node) in self.open:
                raise self._endless(node)
            self.open[id(node)] = node
            try:
                for child in below:
                    self.visit(child)
            except RecursionError:
                raise too_deep(type(node).__name__) from None
            del self.open[id(node)]
        self.done[id(node)] = node

    def _endless(self, node: Any) -> LiftError:
        nodes = list(self.open.values())
        first = next(number for number, one in enumerate(nodes) if one is node)
        kinds = " > ".join([type(one).__name__ for one in [*nodes[first:], node]])
        return endless(type(node).__name__, f"it contains itself, {kinds}", self.fix)


def endless(where: str, what: str, fix: str, kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for a pytree that contains itself.

    Example:
        >>> print(endless("args[0]", "a list contains itself", "Leave out the reference."))
        args[0]: a list contains itself, so as a pytree it has no end. Leave out the reference.

    Args:
        where: the place that the error names.
        what: what contains itself.
        fix: the fix.
        kind: the class of the error.
    """
    return kind(where, f"{what}, so as a pytree it has no end.", fix)


def too_deep(where: str, what: str = "it is", kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for values that are nested so deeply that Python cannot visit them.

    Example:
        >>> print(too_deep("args[0]").what)
        it is nested deeper than Python's recursion limit allows.

    Args:
        where: the place that the error names.
        what: what is nested, with a verb.
        kind: the class of the error.
    """
    fix = "Store the parts in a flat list instead of a chain; or raise the limit with `sys.setrecursionlimit`."
    return kind(where, f"{what} nested deeper than Python's recursion limit allows.", fix)

"""Plain Python objects, and what has to be done with graphs of them: copies, comparisons, a way back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from tests.fuzz.objects.bodies import is_array, is_key, ordered

__all__ = [
    "NAMES",
    "Expected",
    "Module",
    "Variable",
    "copied",
    "each_leaf",
    "fill",
    "in_value",
    "is_container",
    "is_node",
    "items_of",
    "nodes_of",
    "ordered_items",
    "plain_of",
    "restoring",
    "settled",
    "shape_of",
]


class Expected(Exception):
    """What a transformation refuses."""


class Variable:
    def __init__(self, value: Any, **metadata: Any) -> None:
        self._value, self._metadata = value, metadata

    def get_value(self) -> Any:
        return self._value

    def set_value(self, value: Any) -> None:
        self._value = value

    def get_metadata(self) -> dict[str, Any]:
        return dict(self._metadata)

    def set_metadata(self, **metadata: Any) -> None:
        self._metadata = {**self._metadata, **metadata}


class Module:
    pass


class List(Module):
    def append(self, value: Any) -> None:
        setattr(self, str(sum(name.isdigit() for name in vars(self))), value)


_KINDS = ("Param", "BatchStat", "Custom", "Tree", "RngKey", "RngCount")
NAMES: dict[str, Any] = {name: type(name, (Variable,), {}) for name in _KINDS}
NAMES |= {name: type(name, (Module,), {}) for name in ("Node", "Rngs", "RngStream")} | {"List": List}


def plain_of(value: Any, memo: dict[int, Any]) -> Any:
    """A graph of `nnx_like` as plain objects; `memo` has the object for each."""
    if id(value) in memo:
        return memo[id(value)]
    name = type(value).__name__
    if name in NAMES:
        made = memo[id(value)] = object.__new__(NAMES[name])
        if isinstance(made, Variable):
            made.__init__(plain_of(value.get_value(), memo), **value.get_metadata())
        else:
            vars(made).update({key: plain_of(one, memo) for key, one in vars(value).items()})
        return made
    if isinstance(value, (list, dict)):
        made = memo[id(value)] = type(value)()
        fill(made, {key: plain_of(one, memo) for key, one in items_of(value).items()})
        return made
    return mapped(value, lambda one: plain_of(one, memo)) if type(value) is tuple else settled(value)


def is_container(value: Any) -> bool:
    return type(value) in (list, tuple, dict)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if type(value) is dict:
        return {name: function(one) for name, one in value.items()}
    return type(value)([function(one) for one in value])


def settled(value: Any) -> Any:
    """An array of numpy, where it is known and no key."""
    known = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not is_key(value)
    return np.asarray(value) if known else value


# --- going over graphs


def each_leaf(value: Any, function: Callable[[Any, str], Any], seen: set[int]) -> Any:
    """Replaces each array below a value, in place: `function(array, kind of the variable)`."""
    if is_array(value):
        return function(value, "")
    if type(value) is tuple:
        return tuple([each_leaf(one, function, seen) for one in value])
    if is_node(value) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, Variable):
            value._value = in_value(value._value, lambda array: function(array, type(value).__name__))
        else:
            fill(value, {name: each_leaf(one, function, seen) for name, one in ordered_items(value)})
    return value


def in_value(value: Any, function: Callable[[Any], Any]) -> Any:
    """What a variable holds, with other arrays."""
    if is_container(value):
        return mapped(value, lambda one: in_value(one, function))
    return function(value) if is_array(value) else value


def is_node(value: Any) -> bool:
    """Whether a value is known by what it is: an object, a variable, a list or a dict."""
    return isinstance(value, (Variable, Module, list, dict))


def items_of(node: Any) -> dict[Any, Any]:
    """What a node but a variable holds."""
    if isinstance(node, list):
        return dict(enumerate(node))
    return node if isinstance(node, dict) else vars(node)


def ordered_items(node: Any) -> list[tuple[Any, Any]]:
    held = items_of(node)
    return [(name, held[name]) for name in ordered(held)]


def fill(node: Any, items: dict[Any, Any]) -> None:
    """Makes a node but a variable hold these."""
    if isinstance(node, list):
        node[:] = items.values()
    else:
        held = items_of(node)
        order = dict(items)
        held.clear()
        held.update(order)


def nodes_of(*values: Any) -> list[Any]:
    """The nodes that can be reached, each once."""
    found: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if type(value) is tuple:
            for one in value:
                visit(one)
        elif is_node(value) and id(value) not in found:
            found[id(value)] = value
            if not isinstance(value, Variable):
                for _, one in ordered_items(value):
                    visit(one)

    for value in values:
        visit(value)
    return list(found.values())


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of a graph; arrays are shared."""
    if type(value) is tuple:
        return tuple([copied(one, memo) for one in value])
    if not is_node(value):
        return value
    if id(value) not in memo:
        made = memo[id(value)] = object.__new__(type(value)) if isinstance(value, (Variable, Module)) else type(value)()
        if isinstance(value, Variable):
            made._value, made._metadata = value._value, value._metadata
        else:
            fill(made, {name: copied(one, memo) for name, one in items_of(value).items()})
    return memo[id(value)]


def shape_of(value: Any) -> Any:
    """All but the values, nodes by identity."""
    found: list[Any] = []

    def visit(one: Any) -> Any:
        if is_array(one):
            return "array", str(one.dtype), one.shape
        if type(one) is tuple:
            return tuple, tuple(map(visit, one))
        if not is_node(one):
            return type(one), one
        if any(one is known for known in found):
            return id(one)
        found.append(one)
        if isinstance(one, Variable):
            held = in_value(one._value, visit)
            return id(one), repr(held), tuple([(k, type(v), v) for k, v in sorted(one._metadata.items())])
        return id(one), tuple([(name, visit(part)) for name, part in ordered_items(one)])

    return visit(value)


@contextlib.contextmanager
def restoring(*values: Any) -> Iterator[None]:
    """Puts all back where the body raises."""
    found = nodes_of(*values)
    before = [(one._value, one._metadata) if isinstance(one, Variable) else dict(items_of(one)) for one in found]
    try:
        yield
    except BaseException:
        for one, held in zip(found, before, strict=True):
            if isinstance(one, Variable):
                one._value, one._metadata = held
            else:
                fill(one, held)
        raise

"""Facts: what a function, its arguments and its surroundings are, as flat texts that can be compared and kept.

A text holds no array, so facts may be kept for as long as one likes. They are made only where somebody asks.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from ..filters import short_form
from ..runners.arguments import parameter_names
from ..scopes.scope import Scope
from ..texts import aval_of, path_text, type_text

__all__ = [
    "WITHOUT_KEY",
    "Facts",
    "differing",
    "of_call",
    "of_function",
    "of_named",
    "of_tree",
    "of_value",
]

Facts: TypeAlias = dict[str, str]
"""From what is told, such as `argument x`, to its text."""

WITHOUT_KEY = "without a key"
"""The fact that tells for what there is no key, so that nothing that is compiled is kept: see `liftcore.statics`."""

_DEPTH = 8
"""How far down into a value one looks; what lies deeper is told by its `repr`."""

Told: TypeAlias = Iterator[tuple[str, str]]


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is told differently, or on one side only."""
    return [what for what in {**now, **before} if before.get(what) != now.get(what)]


def _type(leaf: Any) -> str:
    """The type of a leaf; a weak one is another one to JAX."""
    text = type_text(leaf)
    return f"{text} (weak)" if text != type(leaf).__name__ and aval_of(leaf).weak_type else text


def of_tree(what: str, tree: Any) -> Told:
    """The types of the leaves of a pytree, and what is static in it."""
    for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=_tells):
        place = f"{what}{jax.tree_util.keystr(path)}"
        if _tells(leaf):
            for below, value in leaf.trace_facts().items():
                yield from of_value(f"{place}{below}", value)
        else:
            yield place, _type(leaf)


def _tells(leaf: Any) -> bool:
    """Whether a node tells what is static in it, by a method `trace_facts`: a `Rest`, or one of another package."""
    return hasattr(type(leaf), "trace_facts")


def of_named(what: str, tree: Any) -> Told:
    """The same for variables, or keys, which are shown by their path: `variable params/w`."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        yield f"{what} {path_text(path)}", _type(leaf)


def of_function(fn: Any) -> Told:
    """What a function is: where it is written, and the values that it holds.

    One that has a method `trace_facts() -> {name: value}` tells that itself.
    """
    if callable(tell := getattr(fn, "trace_facts", None)):
        for name, value in tell().items():
            yield from of_value(name, value)
    elif isinstance(fn, functools.partial):
        yield from of_function(fn.func)
        yield from of_value("partial args", fn.args)
        yield from of_value("partial keywords", fn.keywords)
    elif isinstance(fn, types.MethodType):
        yield from of_function(fn.__func__)
        yield from of_value("self", fn.__self__)
    elif isinstance(fn, types.FunctionType):
        yield "function", f"{fn.__module__}.{fn.__qualname__}"
        yield "line", str(fn.__code__.co_firstlineno)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield from of_value(f"closure {name}", _content(cell))
    else:
        yield "function", type(fn).__qualname__
        yield from of_value(type(fn).__qualname__, fn)


def of_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], skip: int = 0) -> Told:
    """The arguments of a call, each under its name; scopes by what a body can see of them.

    Args:
        fn: the function; the positional arguments come after its first `skip` parameters.
        args: the positional arguments.
        kwargs: those by name.
        skip: see `fn`.
    """
    names = parameter_names(fn)[skip:]
    names += [str(number) for number in range(len(names), len(args))]
    for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
        for path, leaf in jax.tree.leaves_with_path(value, is_leaf=lambda leaf: isinstance(leaf, Scope)):
            what = f"argument {name}{jax.tree_util.keystr(path)}"
            yield from _of_scope(what, leaf) if isinstance(leaf, Scope) else of_value(what, leaf)


def _of_scope(what: str, scope: Scope) -> Told:
    tree = scope.tree
    yield f"{what}, path", scope.path_text
    yield f"{what}, mutable", short_form(tree.mutable)
    yield f"{what}, initializing", str(tree.initializing)
    yield f"{what}, streams", str(sorted(tree.rngs))
    yield from of_named(f"{what}, variable", scope.collections_below())


def of_value(what: str, value: Any, depth: int = _DEPTH) -> Told:
    """A value in parts: those of containers and dataclasses; arrays by their types, functions by their names."""
    members = None if depth == 0 else _members(value)
    if members is not None:
        yield what, type(value).__qualname__
        for name, below in members:
            yield from of_value(f"{what}{name}", below, depth - 1)
    elif isinstance(value, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        yield what, _type(value)
    elif callable(value) and hasattr(value, "__qualname__"):
        yield what, value.__qualname__
    else:
        yield what, repr(value)


def _members(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", below) for key, below in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", below) for name, below in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", below) for index, below in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return [(f".{name}", getattr(value, name, None)) for name in shown]
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None

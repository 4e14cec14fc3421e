"""What all transformations share: they decorate functions and methods, with and without options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from liftcore.errors import LiftArgumentError, check_function

from ..objects.pytree import Pytree

__all__ = ["MISSING", "Plain", "check_axes", "checked", "named", "numbered", "positional", "title"]


class _Missing:
    """The default of a function argument that is not given yet."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The default of the function: a transformation that is called without one is a decorator."""


class Plain(str):
    """A string that is shown without quotes in place of a leaf of a pytree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def title(name: str, f: Any) -> str:
    """What errors call a transformation of a function, such as `vmap(block)`."""
    while isinstance(f, functools.partial):
        f = f.func
    return f"{name}({getattr(f, '__name__', type(f).__name__)})"


def checked(name: str, f: Any) -> str:
    """Checks a function to transform; returns its title.

    Raises:
        LiftArgumentError: if it is not a function, or is a bound method.
    """
    check_function(name, f)
    owner = f if isinstance(f, Pytree) else getattr(f, "__self__", None)
    if isinstance(owner, Pytree):
        kind = type(owner).__name__
        method = "__call__" if f is owner else f.__name__
        raise LiftArgumentError(
            title(name, f),
            f"it is a method of one {kind}, and holds that object by closure.",
            f"Give the object as an argument: `{name}({kind}.{method})(instance, …)`, or decorate the method.",
        )
    return title(name, f)


def named(f: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of the body that runs a function: liftcore and profiles call it by the name of that."""

    def rename(body: Callable[..., Any]) -> Callable[..., Any]:
        body.__name__ = body.__qualname__ = title("", f)[1:-1]
        return body

    return rename


def positional(name: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments by position: keyword arguments at their place in the signature, defaults before them filled in.

    Args:
        name: what errors call the transformation.
        f: whose arguments they are.
        args: those that are given by position.
        kwargs: those that are given by name.

    Raises:
        LiftArgumentError: if one has no position.
    """
    if not kwargs:
        return args
    bound = inspect.signature(f).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        names = ", ".join(bound.kwargs)
        raise LiftArgumentError(
            title(name, f), f"{names} can only be given by name.", "Bind it before: `functools.partial`."
        )
    last = max([number for number, name in enumerate(bound.arguments) if name in kwargs], default=0)
    return bound.args[: max(len(args), last + 1)]


def numbered(where: str, f: Callable[..., Any], numbers: Any, names: Any) -> tuple[set[int], set[str]]:
    """Arguments that are named by number and by name: each of them in both ways.

    Args:
        where: what errors call the option, such as `jit(f), static_argnums`.
        f: whose arguments they are.
        numbers: one or more numbers, negative ones from the end.
        names: one or more names.

    Raises:
        LiftArgumentError: if there is no such argument.
    """
    wanted = {numbers} if isinstance(numbers, int) else set(numbers or ())
    named = {names} if isinstance(names, str) else set(names or ())
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return wanted, named
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = [one.name for one in parameters if one.kind in single]
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        _check_there(where, [number for number in wanted if not -len(order) <= number < len(order)], order)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        _check_there(where, named - {one.name for one in parameters}, [one.name for one in parameters])
    wanted = {number + len(order) if number < 0 else number for number in wanted}
    both = wanted | {order.index(name) for name in named if name in order}
    return both, named | {order[number] for number in wanted if number < len(order)}


def _check_there(where: str, missing: Collection[Any], names: Sequence[str]) -> None:
    if missing:
        unknown = ", ".join(map(repr, sorted(missing)))
        raise LiftArgumentError(
            where,
            f"there is no argument {unknown}; the function takes ({', '.join(names)}).",
            "Count from 0, or give a name of these.",
        )


def check_axes(where: str, specs: Mapping[str, Any], also: Any = None) -> None:
    """Checks that what should be axes are.

    Args:
        where: what errors call the transformation.
        specs: the axes, by group.
        also: what else is accepted in place of an axis.

    Raises:
        LiftArgumentError: if one is something else.
    """
    for axis in specs.values():
        if type(axis) is not int and axis is not None and (also is None or axis is not also):
            raise LiftArgumentError(
                where,
                f"{axis!r} is where an axis belongs, in `in_axes` or `out_axes`.",
                "Give an int, or None for the same value in all elements.",
            )

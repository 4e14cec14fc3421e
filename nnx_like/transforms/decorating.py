"""The base of all transformations: they decorate functions and methods, with and without options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from liftcore.errors import LiftArgumentError, bind_user, check_function

from .guarding import method_of

__all__ = ["MISSING", "Plain", "check_axes", "checked", "named", "numbered", "positional", "title"]


class _Missing:
    """The default of a function argument that is not given yet."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The default for the function: a transformation without a function is a decorator."""


class Plain(str):
    """A string that is shown without quotes in place of a leaf of a pytree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def title(name: str, f: Any) -> str:
    """Return the name of a transformation of a function in errors, such as `vmap(block)`."""
    while isinstance(f, functools.partial):
        f = f.func
    return f"{name}({getattr(f, '__name__', type(f).__name__)})"


def checked(name: str, f: Any) -> str:
    """Check that a function can be transformed; return its name in errors.

    Raises:
        LiftArgumentError: if it is not a function, or is a bound method, also inside a partial or another wrapper.
    """
    check_function(name, f)
    if (found := method_of(f)) is not None:
        kind, method = type(found[0]).__name__, found[1]
        raise LiftArgumentError(
            title(name, f),
            f"it is a method bound to one {kind}, so it uses that object by closure.",
            f"Give the object as an argument: `{name}({kind}.{method})(instance, …)`, or decorate the method.",
        )
    return title(name, f)


def named(f: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that names a body after the user's function, for liftcore and profiles."""

    def rename(body: Callable[..., Any]) -> Callable[..., Any]:
        body.__name__ = body.__qualname__ = title("", f)[1:-1]
        return body

    return rename


def positional(name: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all arguments by position: moves keyword arguments to their position, and fills in defaults before them.

    Args:
        name: the name of the transformation in errors.
        f: the function that gets the arguments.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        LiftArgumentError: if an argument has no position.
    """
    if not kwargs:
        return args
    bound = bind_user(title(name, f), f, *args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        names = ", ".join(bound.kwargs)
        raise LiftArgumentError(
            title(name, f), f"{names} can only be passed by name.", "Bind it first: `functools.partial`."
        )
    last = max([number for number, name in enumerate(bound.arguments) if name in kwargs], default=0)
    return bound.args[: max(len(args), last + 1)]


def numbered(where: str, f: Callable[..., Any], numbers: Any, names: Any) -> tuple[set[int], set[str]]:
    """Complete arguments that are named by number and by name: each of them in both ways.

    Args:
        where: the name of the option in errors, such as `jit(f), static_argnums`.
        f: the function that gets the arguments.
        numbers: one or more numbers; negative numbers count from the end.
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
            "Count from 0, or use one of these names.",
        )


def check_axes(where: str, specs: Mapping[str, Any], also: Any = None) -> None:
    """Check that values are axes.

    Args:
        where: the name of the transformation in errors.
        specs: the axes, by group.
        also: other values that are accepted in place of an axis.

    Raises:
        LiftArgumentError: if a value is not an axis.
    """
    for axis in specs.values():
        if type(axis) is not int and axis is not None and (also is None or axis is not also):
            raise LiftArgumentError(
                where,
                f"{axis!r} in `in_axes` or `out_axes` is not an axis.",
                "Give an int, or None for the same value in all elements.",
            )

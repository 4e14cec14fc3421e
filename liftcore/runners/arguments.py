"""Arguments of a call, told apart by number and by name: the static ones, the donated ones."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, TypeVar

import jax

from ..errors import LiftArgumentError, shown
from ..pipeline.use import Body

__all__ = [
    "advised",
    "choose",
    "join_arguments",
    "name_arguments",
    "named_like",
    "parameter_names",
    "split_arguments",
]

Called = TypeVar("Called", bound=Callable[..., Any])

_ADJECTIVES = {"static": "static", "donate": "donated"}
_NO_ARRAY = re.compile("not a valid JAX type|as an abstract array")
_DECLARE = (
    'One that Python has to see, a flag or a text, must be declared: `static_argnames="…"`, or `static_argnums`, where '
    "the scope (or module) is number 0."
)


def choose(fn: Callable[..., Any], what: str, argnums: int | Iterable[int], argnames: str | Iterable[str]) -> set[str]:
    """The names of the arguments that `static_argnums` and `static_argnames` (or those of `donate`) choose.

    An argument may be given by position or by name, whichever way it was chosen; so the set holds both, a position as
    the text of its number. Numbers count in the function's own signature, where the scopes are number 0.

    Raises:
        LiftArgumentError: where number 0 is chosen, or an argument that the function has not.
    """
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    if not nums and not names:
        return set()
    parameters = parameter_names(fn)
    nums = tuple(num % len(parameters) if num < 0 and parameters else num for num in nums)
    if 0 in nums or (parameters and parameters[0] in names):
        raise LiftArgumentError(
            f"{what}_argnums={nums}, {what}_argnames={names}",
            f"number 0 is the scope (or the module) itself, which is lifted and cannot be {_ADJECTIVES[what]}.",
            "Count from 1: the first argument after it.",
        )
    _check_there(fn, what, nums, names)
    by_name = {*names, *(parameters[num] for num in nums if num < len(parameters))}
    by_number = {*nums, *(parameters.index(name) for name in names if name in parameters)}
    return by_name | {str(num) for num in by_number}


def _check_there(fn: Callable[..., Any], what: str, nums: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Checks that a function has the arguments that were chosen, as far as its signature says."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = {one.kind for one in parameters}
    positional = parameter_names(fn)
    wrong_nums = [num for num in nums if num >= len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds]
    wrong_names = [name for name in names if name not in {one.name for one in parameters}]
    if wrong_nums or (wrong_names and inspect.Parameter.VAR_KEYWORD not in kinds):
        numbered = ", ".join(f"{num} {name}" for num, name in enumerate(positional) if num)
        raise LiftArgumentError(
            f"{what}_argnums={nums}, {what}_argnames={names}",
            f"{shown(fn)} has no argument {[*wrong_nums, *wrong_names]} (by number there are: {numbered or 'none'}).",
            "Give the name, or the number, of one that it has.",
        )


def name_arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments in one dict, the positional ones under the text of their numbers, from 1.

    Raises:
        LiftArgumentError: where one given by name is named like a number.
    """
    if any(map(str.isdecimal, kwargs)):
        raise LiftArgumentError(
            "the arguments of a lifted function",
            f"expected names that Python knows for arguments, given {[*filter(str.isdecimal, kwargs)]}.",
            "Call that argument by a name that begins with a letter.",
        )
    return {**dict(zip(map(str, itertools.count(1)), args, strict=False)), **kwargs}


def join_arguments(arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inverse of `name_arguments`."""
    positional = sorted(filter(str.isdecimal, arguments), key=int)
    kwargs = dict(arguments)
    return tuple(map(kwargs.pop, positional)), kwargs


def split_arguments(
    where: str, static: Iterable[str], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The static arguments and the others, under the names that `name_arguments` gives.

    Raises:
        LiftArgumentError: where a static one is not hashable.
    """
    arguments = name_arguments(args, kwargs)
    fixed = {name: arguments[name] for name in sorted(static) if name in arguments}
    for name, value in fixed.items():
        try:
            hash(value)
        except TypeError as error:
            raise LiftArgumentError(
                where,
                f"static argument {name!r} must be hashable, given {type(value).__name__}.",
                "Pass a tuple for a list, or do not declare an array static.",
            ) from error
    return fixed, {name: value for name, value in arguments.items() if name not in fixed}


@contextlib.contextmanager
def advised(body: Body, dynamic: Mapping[str, Any]) -> Iterator[None]:
    """Adds to an error of JAX about an argument that Python has to see how to declare it static.

    Args:
        body: what is run.
        dynamic: the arguments that are traced, as `name_arguments` calls them.
    """
    try:
        yield
    except TypeError as error:
        _advise(error, body.where, body.fn, dynamic)
        raise


def _advise(error: TypeError, where: str, fn: Callable[..., Any], dynamic: Mapping[str, Any]) -> None:
    traced = isinstance(error, jax.errors.ConcretizationTypeError) or _NO_ARRAY.search(str(error))
    if traced and not any(_DECLARE in note for note in getattr(error, "__notes__", ())):
        names = dict(enumerate(parameter_names(fn)))
        flags = [
            names.get(int(name), name) if name.isdecimal() else name
            for name, value in dynamic.items()
            if isinstance(value, bool | str)
        ]
        error.add_note(f"{where} traces its arguments (flags and texts among them: {flags}). {_DECLARE}")


def named_like(fn: Callable[..., Any]) -> Callable[[Called], Called]:
    """Decorates a lifted function with the name and the text of a function whose arguments are others."""

    def decorate(lifted: Called) -> Called:
        if hasattr(fn, "__name__"):
            functools.update_wrapper(lifted, fn, updated=())
            del lifted.__wrapped__  # type: ignore[attr-defined]
        return lifted

    return decorate


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of the parameters that may be given by position."""
    if type(fn) is FunctionType and not {"__wrapped__", "__signature__"} & fn.__dict__.keys():
        return list(fn.__code__.co_varnames[: fn.__code__.co_argcount])  # the usual case, and `signature` is slow
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]

"""The older options of transformations, and one answer of theirs for each leaf of a call.

The older options are `default` for all arguments, `args` and `kwargs` for some of them, `fn` for the function, and
`out` for the result. Each is a pytree prefix of answers: an axis, or whether to trace a leaf.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from liftcore.errors import LiftArgumentError, shown

from .prefixes import leafwise

__all__ = ["OLDER", "UNSET", "answered_call", "given_options"]


class Unset:
    """A marker for an option that is not given."""

    def __repr__(self) -> str:
        return "left out"


UNSET: Any = Unset()


OLDER = ("default", "fn", "args", "kwargs", "out")


def given_options(where: str, newer: Mapping[str, Any], **older: Any) -> dict[str, Any]:
    """Return the options that are given: either newer or older ones.

    Args:
        where: the name of the transformation, for errors.
        newer: the newer options with the same meaning, or `UNSET` for each.
        **older: `default`, `fn`, `args`, `kwargs` and `out`, or `UNSET` for each.

    Raises:
        LiftArgumentError: if newer and older options are given, `args` is not a tuple, or `kwargs` is not a dict.
    """
    given = {name: value for name, value in older.items() if value is not UNSET}
    other = {name: value for name, value in newer.items() if value is not UNSET}
    if given and other:
        one, two = next(iter(other)), next(iter(given))
        raise LiftArgumentError(where, f"{one} and {two} are two forms of the same option.", f"Leave out {two}.")
    for name, kind in (("args", tuple), ("kwargs", dict)):
        if not isinstance(given.get(name, kind()), kind):
            raise LiftArgumentError(
                f"{where}, {name}", f"expected a {kind.__name__}, given {shown(given[name])}.", _EXAMPLES[name]
            )
    return given or other


_EXAMPLES = {"args": "Write `args=(first,)`.", "kwargs": 'Write `kwargs={"name": …}`.'}


class AnsweredCall(NamedTuple):
    """A call with default values, and one answer for each of its leaves.

    Attributes:
        args: the positional arguments: all that have a place, also if they were passed by name or are default values.
        kwargs: the other arguments.
        answers: the answer for each leaf of `(fun, args, kwargs)`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answers: list[Any]


def answered_call(
    where: str,
    older: Mapping[str, Any],
    usual: Callable[[Any], Any],
    fun: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    of_function: Any = UNSET,
) -> AnsweredCall:
    """Return a call with an answer for each leaf of the function and of its arguments.

    `args` and `kwargs` of the options are bound to the parameters of the function, as the arguments of the call are: an
    option for a parameter holds for its argument, however it is passed, and for its default value.

    Args:
        where: the name of the transformation, for errors.
        older: the older options.
        usual: the answer for a leaf that the options do not mention.
        fun: the function.
        args: its positional arguments.
        kwargs: the keyword arguments.
        of_function: the default answer for the function, if it differs from `usual`.

    Raises:
        LiftArgumentError: if an option is not a prefix, or is for a parameter that the function does not have.
    """
    default, by_place, by_name = older.get("default", usual), older.get("args", ()), older.get("kwargs", {})
    try:
        signature = inspect.signature(fun)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        pass  # it has no signature, or does not take the arguments: then the call raises an error
    else:
        specs = _bound_options(where, signature, default, by_place, by_name)
        bound.apply_defaults()
        args, kwargs, by_place, by_name = bound.args, bound.kwargs, specs.args, specs.kwargs
    answers = leafwise(f"fn of {where}", older.get("fn", usual if of_function is UNSET else of_function), fun)
    for index, arg in enumerate(args):
        spec = by_place[index] if index < len(by_place) else default
        answers += leafwise(f"args[{index}] of {where}", spec, arg)
    for name in sorted(kwargs):  # the order of leaves in a dict
        answers += leafwise(f"kwargs[{name!r}] of {where}", by_name.get(name, default), kwargs[name])
    return AnsweredCall(args, kwargs, answers)


def _bound_options(
    where: str, signature: inspect.Signature, default: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return the option for each parameter: `default`, unless `args` or `kwargs` has another one for it."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [one if one.kind in several else one.replace(default=default) for one in signature.parameters.values()]
    try:
        bound = signature.replace(parameters=parameters).bind_partial(*args, **kwargs)
    except TypeError as error:
        raise LiftArgumentError(
            f"args and kwargs of {where}",
            f"they do not fit the parameters {signature}: {error}.",
            "Write each option once, for a parameter that the function has.",
        ) from error
    bound.apply_defaults()
    return bound

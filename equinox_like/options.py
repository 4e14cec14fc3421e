"""The options of transformations: those of JAX that are replaced, and the older ones of Equinox.

The older options are `default` for all arguments, `args` and `kwargs` for some of them, `fn` for the function, and
`out` for the result. Each is a pytree prefix of answers: an axis, or whether to trace a leaf. Errors name the leaves of
a call as the user wrote them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from liftcore.errors import Expected, LiftArgumentError, name_of

from .split import leafwise

__all__ = ["OLDER", "UNSET", "answered_call", "check_options", "given_options", "leaf_name"]

# --- options that are replaced ----------------------------------------------------------------------------------------

_DONATE = 'Write `donate="all"`, or `donate="all-except-first"` to keep the first argument.'
_STATIC = "Leave it out: all leaves that are not arrays are static."
_SHARDINGS = "Leave it out: arrays keep their shardings. To set one, write `eqx.filter_shard(tree, sharding)`."
_FIRST = "Leave it out, and pass a tuple of all that you differentiate as the first argument."

INSTEAD = {
    "donate_argnums": _DONATE,
    "donate_argnames": _DONATE,
    "static_argnums": _STATIC,
    "static_argnames": _STATIC,
    "in_shardings": _SHARDINGS,
    "out_shardings": _SHARDINGS,
    "argnums": _FIRST,
}
"""JAX counts arguments; a filtered transformation passes lists of arrays to it, where the numbers would be wrong."""


def check_options(where: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Check the options that are passed on to a transformation of JAX.

    Args:
        where: the name of the filtered transformation.
        options: the options, by name.
        known: the names that it has.

    Raises:
        LiftArgumentError: if an option is not among them.
    """
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"Write `{near[0]}=…`." if near else f"Its options are {', '.join(known)}."
            raise LiftArgumentError(
                where,
                f"`{name}` is not an option.",
                INSTEAD.get(name, fix),
                option=name,
                available=None if name in INSTEAD or near else tuple(known),
            )


# --- older options ----------------------------------------------------------------------------------------------------


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
        what = f"{one} and {two} are two forms of the same option."
        raise LiftArgumentError(where, what, f"Leave out {two}.", option=two)
    for name, kind in (("args", tuple), ("kwargs", dict)):
        if not isinstance(given.get(name, kind()), kind):
            raise LiftArgumentError(
                f"{where}, {name}", Expected(f"a {kind.__name__}", given[name]), _EXAMPLES[name], option=name
            )
    return given or other


_EXAMPLES = {"args": "Write `args=(first,)`.", "kwargs": 'Write `kwargs={"name": …}`.'}


def answered_call(
    where: str,
    older: Mapping[str, Any],
    usual: Callable[[Any], Any],
    fun: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    of_function: Any = UNSET,
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
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

    Returns:
        The positional arguments: all that have a place, also if they were passed by name or are default values. The
        other arguments. The answer for each leaf of `(fun, args, kwargs)`.

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
    return args, kwargs, answers


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
            expected=str(signature),
        ) from error
    bound.apply_defaults()
    return bound


# --- names of leaves --------------------------------------------------------------------------------------------------


def leaf_name(fun: Callable[..., Any], keys: Any) -> str:
    """Return the name of a leaf of a call, such as `model.layers[0].weight`.

    Example:
        >>> keys, _ = jax.tree.leaves_with_path((abs, ({"w": 1},), {}))[1]
        >>> leaf_name(lambda model: 0, keys)
        "model['w']"

    Args:
        fun: the function.
        keys: the path of the leaf in `(fun, args, kwargs)`; empty if it is unknown.
    """
    if not keys:
        return "of an argument"
    part, *below = keys
    if part.idx == 0:
        return name_of(fun) + jax.tree_util.keystr(tuple(below))
    first, *below = below
    name = str(first.key) if part.idx == 2 else _parameter(fun, first.idx)
    return name + jax.tree_util.keystr(tuple(below))


def _parameter(fun: Callable[..., Any], index: int) -> str:
    """Return the name of a positional parameter."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())[: index + 1]
    except (TypeError, ValueError):
        parameters = []
    by_position = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return by_position[index] if index < len(by_position) else f"args[{index}]"

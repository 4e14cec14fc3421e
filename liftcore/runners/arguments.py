"""Arguments of a call, by number and by name: which are static and which are donated, as variables may be."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import jax

from .. import filters
from .._compat import is_eager, needs_python
from ..calls import boundary
from ..errors import Expected, LiftArgumentError, shown
from ..filters.trees import by_place, merged
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, Transform, transformation
from ..scopes.lifts import Advice, Captured
from ..typing import Filter, Predicate, PyTree

__all__ = [
    "AS_IT_IS",
    "DONATED",
    "NOTHING",
    "Donated",
    "advise",
    "choose",
    "donate",
    "join_arguments",
    "name_arguments",
    "named_like",
    "parameter_names",
    "passing_all",
    "split_arguments",
]

Called = TypeVar("Called", bound=Callable[..., Any])

AS_IT_IS = Advice(
    '"{}" to `variables`', '"{}" to `rngs`', ("passed through",), ("passed through",), ("passed through",)
)
"""The advice for a lift with the options `variables` and `rngs` whose body sees everything unchanged."""


def passing_all(
    transform: Transform,
    name: str,
    variables: Filter = True,
    rngs: Filter = True,
    advice: Advice = AS_IT_IS,
    prepare: Callable[[Callable[..., Any]], Any] | None = None,
) -> Lifter:
    """Make a lift with one group of variables and one of RNG streams, and all sown values; see `transformation`."""
    out = (variables, Captured(all=True))
    return transformation(transform, [variables], out, [rngs], name, advice=advice, prepare=prepare)


_ADJECTIVES = {"static": "static", "donate": "donated"}
_DECLARE = "An argument that Python code needs, such as a flag or a string, must be static: "
_BY_NUMBER = "or `static_argnums`, where the scope (or module) is number 0."


def choose(fn: Callable[..., Any], what: str, argnums: int | Iterable[int], argnames: str | Iterable[str]) -> set[str]:
    """Return the names of the arguments that `static_argnums` and `static_argnames` (or `donate_…`) choose.

    A call may pass an argument by position or by name, whichever way it was chosen. So the set contains both its name
    and its number, as a string. Numbers count in the signature of the function, where the scopes are number 0.

    Raises:
        LiftArgumentError: if number 0 is chosen, or an argument that the function does not have.
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
            f"number 0 is the scope (or module) itself, which is lifted and cannot be {_ADJECTIVES[what]}.",
            "Count from 1: the first argument after it.",
            option=f"{what}_argnums" if 0 in nums else f"{what}_argnames",
        )
    _check_there(fn, what, nums, names)
    by_name = {*names, *(parameters[num] for num in nums if num < len(parameters))}
    by_number = {*nums, *(parameters.index(name) for name in names if name in parameters)}
    return by_name | {str(num) for num in by_number}


def _check_there(fn: Callable[..., Any], what: str, nums: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Check that a function has the chosen arguments, as far as its signature tells."""
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
            "Use the name or the number of an argument that it has.",
            option=f"{what}_argnums" if wrong_nums else f"{what}_argnames",
        )


def name_arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments in one dict; positional ones have their number, from 1, as a string key.

    Raises:
        LiftArgumentError: if the name of a keyword argument is a number.
    """
    if any(map(str.isdecimal, kwargs)):
        raise LiftArgumentError(
            "the arguments of a lifted function",
            Expected("valid Python names for arguments", given=[*filter(str.isdecimal, kwargs)]),
            "Give that argument a name that begins with a letter.",
        )
    return {**dict(zip(map(str, itertools.count(1)), args, strict=False)), **kwargs}


def join_arguments(arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inverse of `name_arguments`."""
    positional = sorted(filter(str.isdecimal, arguments), key=int)
    kwargs = dict(arguments)
    return tuple(map(kwargs.pop, positional)), kwargs


def split_arguments(
    body: Body, static: Iterable[str], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the static arguments and the others, under the keys of `name_arguments`.

    Raises:
        LiftArgumentError: if a static argument is not hashable.
    """
    arguments = name_arguments(args, kwargs)
    fixed = {name: arguments[name] for name in sorted(static) if name in arguments}
    for name, value in fixed.items():
        try:
            hash(value)
        except TypeError as error:
            raise LiftArgumentError(
                body.where,
                Expected(f"a hashable value as the static argument {name!r}", given=value),
                "Pass a tuple instead of a list, and do not declare an array static.",
            ) from error
    return fixed, {name: value for name, value in arguments.items() if name not in fixed}


def advise(error: TypeError, body: Body, dynamic: Mapping[str, Any]) -> None:
    """Add to JAX's error about a value needed in Python how to declare the argument static.

    Args:
        error: any error of the body.
        body: the body that ran.
        dynamic: the traced arguments, under the keys of `name_arguments`.
    """
    if needs_python(error) and not any(_DECLARE in note for note in getattr(error, "__notes__", ())):
        names = dict(enumerate(parameter_names(body.fn)))
        flags = [
            names.get(int(name), name) if name.isdecimal() else name
            for name, value in dynamic.items()
            if isinstance(value, bool | str)
        ]
        option = f"`static_argnames={flags[0] if len(flags) == 1 else flags or '…'!r}`".replace("'", '"')
        told = f"{body.where} traces its arguments (flags and strings among them: {flags})."
        error.add_note(f"{told} {_DECLARE}{option}, {_BY_NUMBER}")


def named_like(fn: Callable[..., Any]) -> Callable[[Called], Called]:
    """Return a decorator for a function that users call: it gets the name and docstring of `fn`, not its signature."""

    def decorate(lifted: Called) -> Called:
        lifted = boundary(lifted)
        if hasattr(fn, "__name__"):
            functools.update_wrapper(lifted, fn, updated=())
            del lifted.__wrapped__  # type: ignore[attr-defined]
        return lifted

    return decorate


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that may be passed by position."""
    if type(fn) is FunctionType and not {"__wrapped__", "__signature__"} & fn.__dict__.keys():
        return list(fn.__code__.co_varnames[: fn.__code__.co_argcount])  # the usual case; `signature` is slow
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]


DONATED = "gone"
"""The name of the argument of all compiled functions that contains the donated values."""


class Donated(NamedTuple):
    """The donated values; both fields are empty if there are none.

    Attributes:
        variables: parts of the groups of variables.
        arguments: arguments by name.
    """

    variables: tuple[PyTree, ...]
    arguments: dict[str, Any]

    def joined(self, variable_groups: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Return the groups of variables together with the donated ones."""
        if not self.variables:
            return variable_groups
        return tuple(map(merged, variable_groups, self.variables))

    def write(self, body: Body, scopes: PyTree) -> None:
        """Write each donated variable with its own value, so that it comes back even if the body does not write it."""
        routes = zip(body.layout.routes, jax.tree.leaves(scopes), strict=True)
        outermost = {index: scope for (index, route), scope in routes if not route}
        for group in self.variables:
            for (index, path), value in by_place(group).items():
                outermost[index].below(path[1:-1]).put_variable(path[0], path[-1], value)


NOTHING = Donated((), {})
"""The value for a call that donates nothing, which is the most common one."""


def donate(
    matches: Predicate, variable_groups: tuple[PyTree, ...], body: Body
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    """Separate the donated variables from the groups of variables.

    Only mutable variables are donated, because a new value must replace the deleted one. Under a transformation,
    nothing is donated, because the buffers belong to the enclosing compiled call.

    Returns:
        The groups of donated variables (no groups if there are none), and the groups of the others.
    """
    if matches == filters.Nothing() or not body.writes or not is_eager():
        return (), variable_groups
    which = [filters.intersect(matches, outer.tree.mutable) for outer in body.outers]
    gone, kept = [], []
    for group in variable_groups:
        parts = [
            filters.partition(tree, [one], outer.path, empty=True)
            for tree, one, outer in zip(group, which, body.outers, strict=True)
        ]
        gone.append(tuple(taken for (taken,), _ in parts))
        kept.append(tuple(rest for _, rest in parts))
    return (tuple(gone), tuple(kept)) if jax.tree.leaves(gone) else ((), variable_groups)

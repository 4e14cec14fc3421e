"""Answers for the leaves of a call: by position, by name, and for the function itself.

The older way to say how leaves are treated: `default` for all arguments, `args` and `kwargs` for some of them, `fn` for
the function, `out` for the result. Each is a pytree prefix of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from liftcore.errors import LiftArgumentError, shown

from .prefixes import leafwise

__all__ = ["OLDER", "UNSET", "call_answers", "given_options"]


class Unset:
    """Stands for an option that is not given."""

    def __repr__(self) -> str:
        return "left out"


UNSET: Any = Unset()


OLDER = ("default", "fn", "args", "kwargs", "out")


def given_options(where: str, newer: Mapping[str, Any], **older: Any) -> dict[str, Any]:
    """The options that are given: all newer or all older ones.

    Args:
        where: the transformation, for the text of errors.
        newer: the options that say the same in the newer way, each maybe `UNSET`.
        **older: `default`, `fn`, `args`, `kwargs` and `out`, each maybe `UNSET`.

    Raises:
        LiftArgumentError: where both ways are used, `args` is no tuple or `kwargs` is no dict.
    """
    given = {name: value for name, value in older.items() if value is not UNSET}
    other = {name: value for name, value in newer.items() if value is not UNSET}
    if given and other:
        one, two = next(iter(other)), next(iter(given))
        raise LiftArgumentError(where, f"{one} and {two} are two ways to say the same.", f"Leave out {two}.")
    for name, kind in (("args", tuple), ("kwargs", dict)):
        if not isinstance(given.get(name, kind()), kind):
            raise LiftArgumentError(
                f"{where}, {name}", f"expected a {kind.__name__}, given {shown(given[name])}.", _EXAMPLES[name]
            )
    return given or other


_EXAMPLES = {"args": "Write `args=(first,)`.", "kwargs": 'Write `kwargs={"name": …}`.'}


def call_answers(
    where: str,
    older: Mapping[str, Any],
    usual: Callable[[Any], Any],
    fun: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    of_function: Any = UNSET,
) -> list[Any]:
    """One answer for each leaf of `(fun, args, kwargs)`.

    Args:
        where: the transformation, for the text of errors.
        older: older options.
        usual: the answer for a leaf of which they say nothing.
        fun: the function.
        args: its arguments.
        kwargs: those by name.
        of_function: the answer for the function, where it is another one.

    Raises:
        LiftArgumentError: where an option is no prefix, or `args` has more entries than there are arguments.
    """
    default, by_place, by_name = older.get("default", usual), older.get("args", ()), older.get("kwargs", {})
    if len(by_place) > len(args):
        raise LiftArgumentError(
            f"args of {where}",
            f"it has {len(by_place)} entries, and {len(args)} arguments are given by position.",
            "Name the others in `kwargs`.",
        )
    answers = leafwise(f"fn of {where}", older.get("fn", usual if of_function is UNSET else of_function), fun)
    for index, arg in enumerate(args):
        spec = by_place[index] if index < len(by_place) else default
        answers += leafwise(f"args[{index}] of {where}", spec, arg)
    for name in sorted(kwargs):  # the order of leaves in a dict
        answers += leafwise(f"kwargs[{name!r}] of {where}", by_name.get(name, default), kwargs[name])
    return answers

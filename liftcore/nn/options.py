"""Checks of plain options of layers: flags, sizes and small numbers that are given where another one belongs.

`Dense(4, 8)` gives 8 to the flag `use_bias`, and `LayerNorm(48)` gives 48 to `epsilon`. Python accepts both, and the
layer would silently compute something else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..calls import hide_frames
from ..errors import Expected, LiftArgumentError

__all__ = ["OptionKind", "check_option", "checks_options", "option_kind"]

Function = TypeVar("Function", bound=Callable[..., Any])

_ARRAYS = (np.generic, np.ndarray, jax.Array)


class OptionKind(NamedTuple):
    """The values that an option may have.

    Attributes:
        words: a description of them, for errors.
        allows: called with a value other than None; returns whether it is one.
        example: a value of the kind, as text.
    """

    words: str
    allows: Callable[[Any], bool]
    example: str


def _scalar(value: Any) -> Any:
    """Return a number, or None if its value is not known before the layer runs.

    Raises:
        TypeError: if it is not a number.
    """
    if isinstance(value, int | float):
        return value
    is_array = isinstance(value, _ARRAYS)
    if not (is_array or hasattr(value, "__jax_array__")) or value.shape or not _is_real(value.dtype):
        raise TypeError
    return np.asarray(value).item() if is_array and not isinstance(value, jax.core.Tracer) else None


def _one_that(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function that tells whether a value is a number for which a condition holds, as far as it is known."""

    def allows(value: Any) -> bool:
        try:
            number = _scalar(value)
        except TypeError:
            return False
        return number is None or holds(number)

    return allows


def _is_size(value: Any) -> bool:
    return type(value) is int or (_is_plain(value) and not isinstance(value, float))


def _is_count(value: Any) -> bool:
    return _is_size(value) and not (type(value) is int and value < 0)


def _is_flag(value: Any) -> bool:
    return type(value) is bool or _is_zero_or_one(value)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str | bytes) and not _has_axes(value)


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (np.bool_, np.integer, np.floating))


def _has_axes(value: Any) -> bool:
    """Return whether a value is an array with axes; other objects may have anything as the attribute `shape`."""
    return isinstance(shape := getattr(value, "shape", ()), tuple) and shape != ()


_is_zero_or_one = _one_that(lambda value: type(value) in (bool, int) and value in (0, 1))

_NUMBER = OptionKind("a number", _one_that(lambda value: True), "0.5")
_KINDS = {
    "bool": OptionKind("a bool", _is_flag, "True"),
    "int": OptionKind("an int", _is_size, "1"),
    "int | Sequence[int]": OptionKind("an int, or several", _is_plain, "1"),
    "float": OptionKind("a number", lambda value: not isinstance(value, str | bytes), "1.0"),
}
_COUNT = OptionKind("an int of at least 0", _is_count, "8")
_COUNTS = dict.fromkeys(("features", "out_features", "num_embeddings", "num_heads"), _COUNT)
_NAMED = {
    "epsilon": OptionKind("a number of at least 0 and less than 1", _one_that(lambda value: 0 <= value < 1), "1e-6"),
    "momentum": OptionKind("a number from 0 to 1", _one_that(lambda value: 0 <= value <= 1), "0.9"),
    "rate": _NUMBER,
    "dropout_rate": _NUMBER,
}


def option_kind(name: str, annotation: Any) -> OptionKind | None:
    """Return the kind of an option.

    Args:
        name: the name of the option.
        annotation: the text of its type; other annotations have no kind.

    Returns:
        The kind; None if it is not plain, so that it is not checked.
    """
    text = annotation.removesuffix(" | None") if isinstance(annotation, str) else ""
    kind = _KINDS.get(text)
    return {"float": _NAMED, "int": _COUNTS}.get(text, {}).get(name, kind)


def check_option(where: str, name: str, kind: OptionKind, value: Any, call: str) -> None:
    """Check the value of an option. None is allowed: it stands for a default.

    Args:
        where: the layer, for the error.
        name: the name of the option.
        kind: its kind.
        value: the given value.
        call: the name of the class or function that is called, for the fix.

    Raises:
        LiftArgumentError: if the value is not of the kind.
    """
    if value is None or kind.allows(value):
        return
    example = f"`{call}(…, {name}={kind.example})`"
    if _has_axes(value) and call[0].isupper():
        fix = f"Pass options to the constructor, and arrays to the call: `{call}(…)(x)`."
    elif isinstance(value, str | float) or kind.words.startswith("an int"):
        fix = f"For example, {example}."
    elif isinstance(value, int):
        fix = f"Pass it by name, {example}; the sizes of inputs are no options."
    else:
        fix = f"Pass it by name, {example}."
    raise LiftArgumentError(
        f"{name} of {where}",
        Expected(kind.words, given=value),
        fix,
        option=name,
    )


def checks_options(fn: Function) -> Function:
    """Decorate a layer, or the constructor of one, so that its plain options are checked; see `option_kind`.

    Args:
        fn: a function or method with annotations as text. If its first argument is a scope, errors show its path.
    """
    parameters = list(inspect.signature(fn).parameters)
    kinds = {name: option_kind(name, text) for name, text in fn.__annotations__.items()}
    checked: Mapping[str, OptionKind] = {name: kind for name, kind in kinds.items() if kind is not None}
    positions = [(number, name) for number, name in enumerate(parameters) if name in checked]

    @functools.wraps(fn)
    def checking(*args: Any, **kwargs: Any) -> Any:
        for number, name in positions:
            given = args[number] if number < len(args) else kwargs.get(name)
            if given is not None and not checked[name].allows(given):
                fail(name, given, args)
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def fail(name: str, given: Any, args: tuple[Any, ...]) -> None:
        owner = args[0] if args else None
        call = fn.__name__ if parameters[0] != "self" else type(owner).__name__
        path = getattr(owner, "path_text", "") if parameters[0] == "scope" else ""
        check_option(f"{call} at {path}" if path else call, name, checked[name], given, call)

    vars(checking)["same_parameters"] = fn  # for `calls.check_keywords`
    return checking  # type: ignore[return-value]

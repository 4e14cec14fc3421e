"""Checks of what the author of a transformation passes to the pipeline, and the errors that other files raise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._compat import needs_python
from ..calls import note_call
from ..errors import LiftArgumentError, LoopInvarianceError, check_function, name_of, shown, words

if TYPE_CHECKING:
    from .body import Body

__all__ = [
    "check_call",
    "check_lift",
    "no_groups",
    "not_shared",
    "not_tagged",
]


def check_lift(where: str, lift: Any) -> None:
    """Check that a value may be a lift: that it is callable, and no transformation of JAX, which knows no scopes.

    Example:
        >>> import jax, liftcore
        >>> check_lift("my_function", liftcore.vmap)
        >>> check_lift("my_function", jax.vmap)
        Traceback (most recent call last):
        liftcore.errors.LiftArgumentError: my_function: jax.vmap transforms pure functions, ...

    Args:
        where: the place that the error names.
        lift: the value, or a `functools.partial` of it.

    Raises:
        LiftArgumentError: if it is not callable, or a transformation of JAX.
    """
    check_function(where, lift)
    inner = lift
    while isinstance(inner, functools.partial):
        inner = inner.func
    home = getattr(inner, "__globals__", {}).get("__name__")  # unlike `__module__`, `wraps` keeps it
    if str(home or getattr(inner, "__module__", "")).partition(".")[0] == "jax":
        name = name_of(inner)
        raise LiftArgumentError(
            where,
            f"jax.{name} transforms pure functions, but a lift transforms functions of scopes.",
            f"Pass `liftcore.{name}`, or make a lift with `liftcore.transformation`.",
            given=inner,
        )


def check_call(
    error: TypeError,
    body: Body,
    transform: Callable[..., Any],
    given: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Add a note to an error of a transformation, if it did not take its arguments or JAX did not take theirs.

    Args:
        error: the error.
        body: the body that the transformation was given.
        transform: the transformation.
        given: the arguments before those of the lifted function.
        args: the positional arguments of the lifted function.
        kwargs: its keyword arguments.
    """
    note_call(error, body.where, transform, (*given, *args), kwargs)
    if not needs_python(error) or (transform.__module__ or "").partition(".")[0] == __name__.partition(".")[0]:
        return
    # JAX refused a Python value that it was to trace, in a lift that a user wrote.
    flags = [name for name, value in [*enumerate(args, 1), *kwargs.items()] if isinstance(value, bool | str)]
    if flags and not any("`liftcore.filtered" in note for note in getattr(error, "__notes__", ())):
        error.add_note(
            f"{body.where} was called with Python values as the arguments {flags}, and JAX traces all arguments. To "
            "keep Python values as they are, lift the function with `liftcore.filtered(lift, fn)`."
        )


def not_tagged(body: Body) -> LiftArgumentError:
    """Return the error for initial values without tags: they come from another body than the one to be split."""
    return LiftArgumentError(
        body.where,
        "a transformation ran a body other than the one that it received, so initial values are not marked.",
        "In `iteration(body, …)` and `via(body, …)`, call that `body`.",
    )


def not_shared(body: Body, names: Collection[str]) -> LoopInvarianceError:
    """Return the error for variables that all elements of a batch share, but whose initial values differ."""
    return LoopInvarianceError(
        body.where,
        f"{words().variables(sorted(names))} is shared by all elements (axis None), but its initial value differs "
        "between them.",
        "Give its group an axis, in `group_axes`, or do not split the stream that its initializer draws from.",
        variable=min(names),
    )


def no_groups(body: Body, kind: str, groups: Any) -> LiftArgumentError:
    """Return the error for a body that was called with something else than groups, described briefly."""
    given = f"a {type(groups).__name__} of {len(groups)}" if isinstance(groups, tuple | list) else shown(groups)
    return LiftArgumentError(
        body.where,
        f"the body was called with {kind}, given {given}.",
        "Write `body(variable_groups, rng_groups, …)`, with groups that have the structure of the given ones.",
        given=given,
    )

"""Errors that several styles raise, each in one wording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .errors import (
    CarryTypeError,
    Expected,
    InvalidFilterError,
    LiftArgumentError,
    LiftError,
    UnmatchedFilterError,
    shown,
)

__all__ = [
    "checked_aux",
    "lost_setting",
    "no_filter",
    "no_functions",
    "no_matrix",
    "no_new_axis",
    "no_rule",
    "other_structure",
    "other_types",
    "reserved_name",
    "unmatched",
]


def checked_aux(where: Callable[[], str], result: Any) -> Any:
    """Return the result of a function, which must be a pair, as `has_aux=True` demands.

    Example:
        >>> checked_aux(lambda: "grad(loss)", (0.5, {}))
        (0.5, {})

    Args:
        where: returns the place that the error names.
        result: the result of the user's function.

    Raises:
        LiftArgumentError: if it is something else.
    """
    if isinstance(result, tuple | list) and len(result) == 2:
        return result
    words = f"{len(result)} values" if isinstance(result, tuple | list) else ""
    what = Expected("the function to return a pair, as `has_aux` demands", given=result, words=words)
    raise LiftArgumentError(where(), what, "Return `(loss, aux)`, or leave out `has_aux`.", option="has_aux")


def lost_setting(where: str, now: Any, kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for an attribute of an object that a call changed, although each call makes the object anew.

    Example:
        >>> print(lost_setting("from_nnx, dropout.deterministic", True).what)
        the call set it to True, which is lost after the call.

    Args:
        where: the attribute.
        now: the new value.
        kind: the class of the error.
    """
    return kind(
        where,
        f"the call set it to {shown(now)}, which is lost after the call.",
        "Set it in the function that makes the object, `model.eval(); return model`. What calls are to change must be "
        "an `nnx.Variable`.",
        given=now,
    )


def no_filter(given: Any, accepted: str) -> InvalidFilterError:
    """Return the error for a value that was passed as a filter.

    Example:
        >>> print(no_filter(3, "a name or a type"))
        filter: 3 of type int is not a filter. Use a name or a type.

    Args:
        given: the value.
        accepted: what filters are.
    """
    what = f"{given!r} of type {type(given).__name__} is not a filter."
    return InvalidFilterError("filter", what, f"Use {accepted}.", given=repr(given))


def no_functions(where: str, fix: str, given: Any = ()) -> LiftArgumentError:
    """Return the error for a lift that was given no function.

    Example:
        >>> print(no_functions("switch", "Give a list: `switch([f, g])`.", []))
        switch: expected at least one function, given []. Give a list: `switch([f, g])`.

    Args:
        where: the place that the error names.
        fix: the code that passes one.
        given: what was given instead.
    """
    return LiftArgumentError(where, Expected("at least one function", given), fix)


def no_matrix(where: str, shape: Sequence[int], **facts: Any) -> LiftArgumentError:
    """Return the error for a parameter with more than two axes, which spectral normalization is told to refuse.

    Example:
        >>> print(no_matrix("kernel", (2, 3, 4)).what)
        expected a matrix, as `error_on_non_matrix` demands, given (2, 3, 4).

    Args:
        where: the parameter.
        shape: its shape.
        **facts: more facts about it.
    """
    what = Expected("a matrix, as `error_on_non_matrix` demands", given=tuple(shape))
    fix = "Pass `error_on_non_matrix=False` to merge all dimensions but the last."
    return LiftArgumentError(where, what, fix, option="error_on_non_matrix", **facts)


def no_new_axis(where: str, shape: Sequence[int], axis: int) -> LiftArgumentError:
    """Return the error for a value that has too few axes for a new one at a position.

    Example:
        >>> print(no_new_axis("vmap(fn)", (3,), 4))
        vmap(fn): a value of shape (3,) cannot have its new axis at position 4. Give it an axis from -2 to 1, such as 0.

    Args:
        where: the place that the error names.
        shape: the shape without the axis.
        axis: the position.
    """
    what = f"a value of shape {tuple(shape)} cannot have its new axis at position {axis}."
    fix = f"Give it an axis from {-len(shape) - 1} to {len(shape)}, such as 0."
    return LiftArgumentError(where, what, fix, given=axis)


def no_rule(where: str, *code: str) -> LiftArgumentError:
    """Return the error for a function with a rule of its own that is called before it has the rule.

    Example:
        >>> print(no_rule("custom_jvp(fn)", "fn.defjvp(rule)"))
        custom_jvp(fn): it has no rule yet. Define one first: `fn.defjvp(rule)`.

    Args:
        where: the place that the error names.
        *code: the code that defines the rule, in one part or more.
    """
    parts = " and ".join([f"`{part}`" for part in code])
    return LiftArgumentError(where, "it has no rule yet.", f"Define one first: {parts}.", expected="rule")


def other_structure(where: str, what: str, before: Any, after: Any, fix: str) -> CarryTypeError:
    """Return the error for a value that a loop or a layer returns with another structure.

    Example:
        >>> print(other_structure("scan(fn)", "the carry", "*", "(*, *)", "Return one array.").what)
        the carry goes in with structure * and comes out with (*, *).

    Args:
        where: the place that the error names.
        what: the value.
        before: its structure when it goes in.
        after: its structure when it comes out.
        fix: the fix.
    """
    what = f"{what} goes in with structure {before} and comes out with {after}."
    return CarryTypeError(where, what, fix, expected=str(before), given=str(after))


def other_types(where: str, each: str, changed: Sequence[tuple[str, Any, Any]], fix: str) -> CarryTypeError:
    """Return the error for values that a loop or a layer returns with another shape or dtype.

    Example:
        >>> print(other_types("scan(fn)", "iteration", [("carry", "int32[]", "float32[]")], "Cast it.").what)
        the type must stay the same from one iteration to the next (carry: int32[] in, float32[] out).

    Args:
        where: the place that the error names.
        each: what is repeated.
        changed: for each value its name, its type when it goes in, and its type when it comes out.
        fix: the fix.
    """
    listed = "; ".join(f"{name}: {before} in, {after} out" for name, before, after in changed)
    what = f"the type must stay the same from one {each} to the next ({listed})."
    return CarryTypeError(where, what, fix, expected=str(changed[0][1]), given=str(changed[0][2]))


def reserved_name(owner: str, name: str, kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for an attribute of a module that has a name which the style itself uses.

    Example:
        >>> print(reserved_name("class Block", "apply"))
        "apply" of class Block: every module uses this name itself. Choose another name, such as `apply_`.

    Args:
        owner: the module, or its class.
        name: the name.
        kind: the class of the error.
    """
    what = "every module uses this name itself."
    return kind(f'"{name}" of {owner}', what, f"Choose another name, such as `{name}_`.", given=name)


def unmatched(where: str, missed: Sequence[str], filters: Sequence[str], variable: str) -> UnmatchedFilterError:
    """Return the error for variables that match none of several filters.

    Example:
        >>> print(unmatched("split", ["/params/w"], ['"state"'], "params/w").what)
        no filter matches /params/w (filters given: "state").

    Args:
        where: the place that the error names.
        missed: the variables.
        filters: the filters, in their short forms.
        variable: the path of the first variable.
    """
    listed = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
    what = f"no filter matches {listed} (filters given: {', '.join(filters) or 'none'})."
    fix = "Add a filter that does, or `...` as the last filter to take the rest."
    return UnmatchedFilterError(where, what, fix, given=list(filters), variable=variable)

"""Advice for users of modules: in errors of the core, and in common errors of Python and JAX."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from liftcore.errors import (
    LiftArgumentError,
    LiftError,
    ScopeParamShapeError,
    UnliftedCollectionError,
    rewords,
    shown,
)

from .context import context

__all__ = ["add_to_fix", "check_arrays", "note_mistake"]

_AT_ONCE = (
    "associative_scan", "cond", "eval_shape", "fori_loop", "grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "switch", "value_and_grad", "vjp", "while_loop",
)  # fmt: skip

_ADVICE = {
    r"'tuple' object has no attribute '(append|extend|insert|remove|pop|clear|sort|reverse)'"
    r"|'tuple' object does not support item"
    r"|'FrozenDict' object (does not support item|has no attribute '(update|setdefault|popitem|clear)')": (
        "A list or dict that is assigned to a module becomes immutable. Build it first, then assign it: "
        "`layers = [nn.Dense(3) for _ in range(2)]; self.layers = layers`."
    ),
    r"'Variable'": "Read and write a variable with its `.value`.",
    r"passed to custom_jvp_call": "Was the call of a module left out? Write `nn.relu(nn.Dense(3)(x))`.",
    rf"^({'|'.join(_AT_ONCE)})\(\) missing .* positional argument": (
        "This transformation runs at once, and takes the module to lift: `nn.grad(fn, module, x)`, "
        "`nn.while_loop(cond_fn, body_fn, module, init)`."
    ),
    r"ShapeDtypeStruct": "`init` computes values: pass arrays, or call `lazy_init`, which takes shapes.",
}


def check_arrays(
    error: Exception, where: str, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise a clearer error if a layer of this package failed, and was given a value that is not an array.

    Raises:
        LiftArgumentError: if a string, a dict, a set or None was given in place of an array.
    """
    if (fun.__module__ or "").partition(".")[0] != __name__.partition(".")[0] or "given None" in str(error):
        return
    parameters = list(inspect.signature(fun).parameters.values())[1:]
    annotations = {one.name: one.annotation for one in parameters}
    for name, value in (*zip(annotations, args, strict=False), *kwargs.items()):
        if annotations.get(name) in _ARRAYS and (value is None or isinstance(value, str | bytes | Mapping | Set)):
            key = next(iter(value), "x") if isinstance(value, Mapping) else None
            raise LiftArgumentError(
                where,
                f"expected an array as `{name}`, given {shown(value)}.",
                f"Pass the array in it: `{name}[{key!r}]`." if key is not None else "Pass an array of numbers.",
            ) from error


_ARRAYS = ("Array", "ArrayLike")


def note_mistake(error: Exception) -> None:
    """Add advice to an error, once."""
    text = str(error)
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, text) and advice not in getattr(error, "__notes__", ()):
            error.add_note(advice)


# --- errors of the core in the terms of modules -----------------------------------------------------------------------


def _called(**names: str) -> dict[str, str]:
    """Return patterns for options of the core, with their names in `nn`."""
    return {rf"(?<=[`(]){core}(?=[=`)])": name for core, name in names.items()}


_LOOP = _called(variable_carry="carry_variables", variable_broadcast="broadcast_variables")
_OPTIONS = {
    "while_loop": _LOOP,
    "fori_loop": _LOOP,
    "map_variables": _called(mapped="mapped_collections", map_in="trans_in_fn", map_out="trans_out_fn"),
    "jvp": {r"Choose the variables with `wrt`.*": "Pass tangents of existing variables only."},
    "custom_vjp": _called(wrt="grad_vars"),
    "custom_jvp": _called(wrt="grad_vars"),
}
"""For each lift that an error names, replacements for options and advice that differ in `nn`."""

_LINES = {
    r"`liftcore\.bind\(": "`module.bind(",
    r"`liftcore\.apply\(fn\)\(": "`module.apply(",
    r"`liftcore\.(?!(?:outline|Loop)\b)(?=\w+`)": "`nn.",  # `nn` has all names but those two
    r"`(?=with_partitioning\()": "`nn.",
    r"\bscope\.(?=(param|variable|get_variable|make_rng)\()": "self.",
    r"`lifted\(scope(?=[,)])": "`lifted(module",
}
"""Replacements for advice about scopes, to make it advice about modules."""

_LIFT = re.compile(r"(?:group of|outside|but|in) (\w+)\(|^(\w+)\(")


def add_to_fix(error: LiftError, advice: str) -> None:
    """Add a sentence to the fix of an error, once.

    Args:
        error: the error.
        advice: the sentence, which begins with a space; it may be empty.
    """
    if advice not in error.fix:
        error.fix += advice
        error.args = (error.where, error.what, error.fix)


@rewords
def _of_modules(error: LiftError) -> None:
    """Rewrite the fix of an error for users of modules, if a method or a lift of one is running."""
    if not context.is_used:
        return
    lift = _LIFT.search(error.what if isinstance(error, UnliftedCollectionError) else error.where)
    options = _OPTIONS.get(lift[lift.lastindex or 0] if lift else "", {})
    error.what = _replaced(error.what, options)
    error.fix = _replaced(error.fix, {**_LINES, **options})
    if isinstance(error, ScopeParamShapeError):
        for module in context.modules:
            if module is not None and not module._state.lifts:  # of a lifted class, but outside its lift
                add_to_fix(error, module._methods_advice)


def _replaced(text: str, patterns: Mapping[str, str]) -> str:
    for pattern, words in patterns.items():
        text = re.sub(pattern, words, text)
    return text

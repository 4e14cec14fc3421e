"""Advice for users of modules: in errors of the core, and in common errors of Python and JAX."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from liftcore.errors import Expected, LiftArgumentError, LiftError, Words, wording

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
    r"Can't call compact methods on unbound modules|remember these fields are only accessible": (
        "Is it a layer of flax? Call it by a bridge, after `from liftcore import foreign`: "
        '`foreign.from_linen(layer)(self.scope.push("layer"), x)`.'
    ),
    r"ShapeDtypeStruct": "`init` and `apply` compute values: pass arrays, or call `lazy_init`, which takes shapes.",
}


def check_arrays(
    error: Exception, where: str, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise a clearer error if a layer of this package failed, and was given a value that is not an array.

    Raises:
        LiftArgumentError: if a string, a dict, a set or None was given in place of an array.
    """
    is_told = isinstance(error, LiftError) and error.given == "None" and not str(error.expected).startswith("inputs")
    if is_told or (fun.__module__ or "").partition(".")[0] != __name__.partition(".")[0]:
        return
    parameters = list(inspect.signature(fun).parameters.values())[1:]
    annotations = {one.name: one.annotation for one in parameters}
    for name, value in (*zip(annotations, args, strict=False), *kwargs.items()):
        if annotations.get(name) in _ARRAYS and (value is None or isinstance(value, str | bytes | Mapping | Set)):
            key = next(iter(value), "x") if isinstance(value, Mapping) else None
            fix = f"Pass the array in it: `{name}[{key!r}]`." if key is not None else "Pass an array of numbers."
            raise LiftArgumentError(where, Expected("an array", given=value), fix, option=name) from error


_ARRAYS = ("Array", "ArrayLike")


def note_mistake(error: Exception) -> None:
    """Add advice to an error, once."""
    text = str(error)
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, text) and advice not in getattr(error, "__notes__", ()):
            error.add_note(advice)


# --- errors of the core in the terms of modules -----------------------------------------------------------------------

_LOOP = {"variable_carry": "carry_variables", "variable_broadcast": "broadcast_variables"}
_OPTIONS = {
    "while_loop": _LOOP,
    "fori_loop": _LOOP,
    "map_variables": {"mapped": "mapped_collections", "map_in": "trans_in_fn", "map_out": "trans_out_fn"},
    "jvp": {"wrt": ""},
    "custom_vjp": {"wrt": "grad_vars"},
    "custom_jvp": {"wrt": "grad_vars"},
}
"""The options that have another name in `nn`, or none, for each lift."""

_FUNCTIONS = {"bind": "module.bind", "apply": "module.apply"}


@wording
def _of_modules(words: Words) -> Words:
    """Return the words for users of modules, if a method or a lift of one is running."""
    if not context.is_used:
        return words
    return words._replace(scope="self", first="module, ", function=_function, option=_option)


def _function(name: str) -> str:
    return _FUNCTIONS.get(name, f"nn.{name}")


def _option(lift: str, name: str) -> str:
    return _OPTIONS.get(lift.partition("(")[0], {}).get(name, name)  # the lift of a rule names the function too


def add_to_fix(error: LiftError, advice: str) -> None:
    """Add a sentence to the fix of an error, once.

    Args:
        error: the error.
        advice: the sentence, which begins with a space; it may be empty.
    """
    if advice not in error.fix:
        error.reword(fix=error.fix + advice)

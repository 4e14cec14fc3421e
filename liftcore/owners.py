"""Owners: values that know the collection of each of their arrays; and the styles of models that they belong to.

A parameter is a parameter in a model of any style. A style defines the method `__collections__` on its modules, and the
attribute `__style__`; the other styles ask these, and need to know nothing else about the style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from .calls import refused
from .errors import Expected, WrongStyleError, check_function, name_of, shown
from .pytrees import is_array_or_struct, is_number

__all__ = [
    "Owner",
    "Style",
    "by_dtype",
    "call_maker",
    "check_function_of_scope",
    "check_made",
    "check_maker",
    "collections_of",
    "is_changed",
    "is_owner",
    "style_of",
]


class Style(NamedTuple):
    """How the modules of a style are used in the models of other styles. Each class of modules has it as `__style__`.

    Attributes:
        noun: what errors call a module of the style.
        adopt: the function that stores the variables of a module in a scope; empty if a module takes a scope itself.
        given: the argument of the function that makes the module to adopt.
        is_changed: whether calls change the arrays of a module in place.
        used: the expression that uses `module` in `scope`, if it takes a scope itself.
    """

    noun: str
    adopt: str = ""
    given: str = ""
    is_changed: bool = False
    used: str = "module.clone(parent=scope)(x)"

    @property
    def in_scope(self) -> str:
        """The expression that uses `module` in `scope`."""
        made = f"{self.adopt}(scope, lambda {self.given}: module)"
        return f"{made}(x)" if self.adopt else self.used


class Owner(Protocol):
    """The protocol of a node of pytrees that knows the collections of its arrays."""

    def __collections__(self) -> Sequence[str | None]:
        """Return the collection of each leaf of the value, in JAX's order; None for a leaf that is no variable."""


def is_owner(value: Any) -> bool:
    """Whether a value knows the collections of its arrays.

    Example:
        >>> import jax, pax_like as pax
        >>> is_owner(pax.Linear(3, 2, key=jax.random.key(0))), is_owner({})
        (True, False)

    Args:
        value: any value.
    """
    return hasattr(type(value), "__collections__")


def style_of(value: Any) -> Style | None:
    """Return the style of a module, or of a class of modules; None for any other value.

    Example:
        >>> import linen_like as nn
        >>> style_of(nn.Dense(3)).noun, style_of(nn.Dense).noun, style_of(len)
        ('a Linen-style module', 'a Linen-style module', None)

    Args:
        value: any value.
    """
    return getattr(value if isinstance(value, type) else type(value), "__style__", None)


def by_dtype(leaf: Any) -> str | None:
    """Return the collection of a leaf that no owner knows: "params" if it can be differentiated, else "constants".

    Example:
        >>> by_dtype(jnp.ones(2)), by_dtype(jnp.arange(2)), by_dtype(jnp.tanh)
        ('params', 'constants', None)

    Args:
        leaf: any value. The result is None for one that is neither an array nor a number.
    """
    if is_array_or_struct(leaf):
        return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "constants"
    return "constants" if is_number(leaf) else None


def collections_of(tree: Any, default: Callable[[Any], str | None]) -> list[str | None]:
    """Return the collection of each leaf of a pytree: its owner decides.

    Example:
        >>> import pax_like as pax
        >>> collections_of([jnp.ones(2), pax.BatchNorm(3)], by_dtype)
        ['params', 'state', 'state', 'params', 'params']

    Args:
        tree: the pytree.
        default: returns the collection of a leaf without an owner.
    """
    found: list[str | None] = []
    for node in jax.tree.leaves(tree, is_leaf=is_owner):
        found.extend(node.__collections__() if is_owner(node) else [default(node)])
    return found


def is_changed(value: Any) -> bool:
    """Whether calls may change the arrays of a value in place: it is an object, or a module with kinds.

    Example:
        >>> import pax_like as pax
        >>> is_changed(pax.BatchNorm(3)), is_changed({})
        (True, False)

    Args:
        value: any value.
    """
    style = style_of(value)
    return style is not None and style.is_changed


def check_maker(where: str, make: Any, given: str, line: str = "") -> None:
    """Check that a value is a function that makes a value to adopt, and not a module.

    Args:
        where: the name of the bridge that it was passed to.
        make: the value.
        given: what the function is called with: "key" or "rngs".
        line: the expression that serves a module whose maker takes the same; by default, the one of its style.

    Raises:
        LiftArgumentError: if it cannot be called.
        WrongStyleError: if it is a module, or is a class whose constructor takes something else.
    """
    check_function(where, make)
    style = style_of(make)
    if style is None or (isinstance(make, type) and style.given == given):
        return
    line = line if line and style.given == given else style.in_scope
    raise _wrong(where, f"a function of `{given}`", make, style, _fix(make, f"`{line}`"))


def call_maker(where: str, make: Any, given: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function that makes a value to adopt. If it cannot take its arguments, a note says who calls it.

    Args:
        where: the name of the bridge that it was passed to.
        make: the function.
        given: what the bridge passes, as the note says it.
        *args: the positional arguments.
        **kwargs: the keyword arguments.
    """
    try:
        return make(*args, **kwargs)
    except TypeError as error:
        if refused(make, args, kwargs):
            name = name_of(make)
            error.add_note(
                f"{where} passes {given} to {name}, which makes the module. For other arguments, write a `lambda`. "
                f"A function of a scope needs no {where}: call `{name}(scope, x)`."
            )
        raise


def check_made(where: str, made: Any, expected: str) -> None:
    """Check that what a function made can be adopted by a bridge.

    Args:
        where: the name of the bridge.
        made: the result of the function.
        expected: the noun of the style that the bridge adopts, or "" if it adopts any pytree.

    Raises:
        WrongStyleError: if it is a module of another style, or no module and `expected` is given.
    """
    style = style_of(made)
    if style is None and not expected:
        return
    if isinstance(made, type) or style is None or (style.noun != expected if expected else not style.adopt):
        raise WrongStyleError(
            where,
            f"expected {expected or 'a pytree'}, but the function made {_described(made, style)}.",
            _fix(made, f"`{style.in_scope}`") if style else "Return a module from the function.",
            expected=expected or "a pytree",
        )


def check_function_of_scope(where: str, fn: Any, makes: str = "") -> None:
    """Check that a value is a function of a scope, or a module that serves as one.

    Args:
        where: the name of the bridge that it was passed to.
        fn: the value.
        makes: the noun of the style that the bridge makes: a module of this style needs no bridge.

    Raises:
        LiftArgumentError: if it cannot be called.
        WrongStyleError: if it is a module of another style, or is a class.
    """
    check_function(where, fn)
    style = style_of(fn)
    if style is None or not (style.adopt or isinstance(fn, type)):
        return
    line = f"`{where}({f'lambda scope, x: {style.in_scope}' if style.adopt else 'module'}, …)`"
    fix = _fix(fn, line)
    if style.noun == makes and not isinstance(fn, type):
        fix = f"It is {makes} already: use it without `{where}`. To keep its variables in a scope, write {line}."
    raise _wrong(where, "a function of a scope or a Linen-style module", fn, style, fix)


def _wrong(where: str, expected: str, value: Any, style: Style | None, fix: str) -> WrongStyleError:
    given = _described(value, style)
    return WrongStyleError(where, Expected(expected, given, words=given), fix)


def _fix(value: Any, line: str) -> str:
    return (
        f"Make a module, `module = {value.__name__}(…)`, and write {line}."
        if isinstance(value, type)
        else f"Write {line}."
    )


def _described(value: Any, style: Style | None) -> str:
    if style is None or isinstance(value, type):
        return shown(value)
    return f"{style.noun}, {type(value).__name__}"

"""`custom_jvp` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore.errors import LiftArgumentError, call_user, check_function

from ..crossing.inside import Inside, stay
from ..crossing.ref import Ref, is_ref
from .decorating import MISSING, named
from .differentiation import DIFFERENTIATED, REST, DiffState
from .rules import RuledFunction, checked_pair, zero
from .tangents import tangents_in, with_states

__all__ = ["CustomJvp", "custom_jvp"]


def custom_jvp(fun: Callable[..., Any] = MISSING, nondiff_argnums: Iterable[int | DiffState] = ()) -> Any:
    """`jax.custom_jvp` for functions of objects: a function with a custom derivative.

    If the function changes an object, the caller's object changes; the rule must make the same changes. Values that the
    function writes have no tangent.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> @nnx.custom_jvp
        ... def rounded(model, x):
        ...     return jnp.round(x * model.w)
        >>> @rounded.defjvp
        ... def rule(primals, tangents):
        ...     (model, x), (model_tangent, dx) = primals, tangents
        ...     return rounded(model, x), model.w * dx + x * model_tangent.w
        >>> model = nnx.Dict(w=nnx.Param(3.0))
        >>> float(nnx.grad(rounded)(model, 0.5).w[...])
        0.5

    Args:
        fun: the function; without it the result is a decorator. Methods may be decorated.
        nondiff_argnums: the numbers of arguments that are not differentiated. Python values in them stay Python values.
            A `DiffState` here selects the variables of an argument that have tangents; by default, all floating
            variables have.

    Returns:
        A `CustomJvp`, to be called as `fun` after `defjvp`.

    Raises:
        LiftArgumentError: if `fun` is a bound method; when called, if no rule is defined.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
    """
    if fun is MISSING:
        return functools.partial(custom_jvp, nondiff_argnums=nondiff_argnums)
    return CustomJvp(fun, nondiff_argnums)


class CustomJvp(RuledFunction):
    """A function of objects with a custom derivative.

    Args:
        fun: the function.
        nondiff_argnums: see `custom_jvp`.
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Iterable[int | DiffState] = ()) -> None:
        lift = functools.partial(liftcore.custom_jvp, wrt=DIFFERENTIATED)
        super().__init__("custom_jvp", fun, nondiff_argnums, lift, "f.defjvp(rule)")

    def defjvp(self, jvp: Callable[..., tuple[Any, Any]], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Define the rule.

        Args:
            jvp: called as `jvp(*nondiff_args, primals, tangents)`; returns the result and its tangent. A tangent of an
                object is a `State` of its floating variables. A returned `State` may omit zero tangents, or be None.
                The rule may call the function itself; inside the rule, that call does not use the rule.
            symbolic_zeros: not supported; it must be False.

        Returns:
            The rule.
        """
        check_function(f"defjvp of {self.where}", jvp)
        if symbolic_zeros:
            raise LiftArgumentError(f"defjvp of {self.where}", "`symbolic_zeros=True` is not supported.", "Remove it.")

        @named(jvp)
        def rule(scope: liftcore.Scope, primals: Any, tangents: Any, moving: Any) -> Any:
            inside, expected = Inside(scope, self._groups), self.expected()
            given = inside.decode(primals)
            tangents = with_states(tangents, lambda group, key: moving[group][key])
            numbers = self.held_numbers(len(given))
            seen = [[one for number, one in enumerate(each) if number not in numbers] for each in (given, tangents)]
            both = call_user(
                f"the rule of {self.where}", jvp, *[given[number] for number in numbers], *map(tuple, seen)
            )
            result, tangent = checked_pair(self.where, jvp, both, "result, tangent")
            home = inside.encode(result, REST, stays=stay)
            self.check_alike(jvp, expected, home)
            return home, _tangents(self.where, *home, tangent)

        self._lifted.defjvp(rule)
        self._defined = True
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Define the rule as a sum over the arguments.

        Args:
            jvps: for each argument a function, `jvp(tangent, result, *args)`, that returns its part of the tangent of
                the result, or None where that is zero.
        """
        if self._held:
            raise LiftArgumentError(
                f"defjvps of {self.where}", "`nondiff_argnums` names arguments.", "Use `defjvp` instead."
            )

        def rule(primals: Any, tangents: Any) -> Any:
            result = self(*primals)
            parts = [jvp(one, result, *primals) for jvp, one in zip(jvps, tangents, strict=True) if jvp is not None]
            return result, jax.tree.map(lambda *some: sum(some), *parts) if parts else None

        self.defjvp(rule)


def _tangents(where: str, result: Any, home: Any, change: Any, given: Any) -> Any:
    """Return the tangent of the whole result of a body, from the tangent of the user's result."""
    if given is None:
        given = jax.tree.map(lambda _: None, result, is_leaf=is_ref)
    values, moved = tangents_in(where, result, given, "tangents")
    new = values.get(REST, {})

    def tangent(leaf: Any, one: Any) -> Any:
        if type(leaf) is Ref:
            return leaf
        moves = one is not None and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return one if moves else zero(jax.typeof(leaf))

    def zeros(value: Any) -> Any:
        return jax.tree.map(lambda part: zero(jax.typeof(part)), value)

    moved = jax.tree.map(tangent, result, moved, is_leaf=lambda leaf: leaf is None or is_ref(leaf))
    at_home = {
        group: ([new.get(number, zeros(value)) for number, value in enumerate(fresh)], zeros(written))
        for group, (fresh, written) in home.items()
    }
    return moved, at_home, change

"""The base of `custom_vjp`, `custom_jvp` and `custom_vmap`: functions of objects with a custom rule."""

from __future__ import annotations

import contextvars
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore.errors import LiftArgumentError, boundary, call_user, name_of
from liftcore.leaves import is_array, is_array_like

from ..crossing.groups import Groups
from ..crossing.inside import Inside, encode, stay
from ..crossing.outside import Outside
from ..crossing.ref import Ref, Still, is_ref
from ..graph.build import Builder
from ..graph.definition import static, static_value
from ..graph.walk import Walk, is_object
from .decorating import named
from .differentiation import EVERYTHING, REST, DiffState, check_diff_states, group_by_filter, in_two_groups, veiled

__all__ = ["RuledFunction", "by_value", "checked_pair", "from_values", "held", "zero"]


class RuledFunction:
    """A function of objects with a custom rule. Call it like the function, also as a method.

    Args:
        name: what errors call the transformation.
        fun: the function.
        nondiff_argnums: numbers of arguments that are not differentiated; a `DiffState` says which variables are.
        lift: makes the lifted function for a body.
        missing: the line that defines the rule, for the error if there is none.
    """

    _defined = False

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        nondiff_argnums: Iterable[int | DiffState],
        lift: Callable[..., Any],
        missing: str,
    ) -> None:
        self._missing = missing
        self._groups = in_two_groups(name, fun)
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        given = (nondiff_argnums,) if isinstance(nondiff_argnums, int | DiffState) else tuple(nondiff_argnums)
        self._held = [operator.index(one) for one in given if not isinstance(one, DiffState)]
        self._by_filter = [one for one in given if isinstance(one, DiffState)]
        self._chosen = {one.argnum: group_by_filter(one.filter) for one in self._by_filter}
        groups = self._groups

        @named(fun)
        def body(scope: liftcore.Scope, *args: Any) -> Any:
            inside = Inside(scope, groups)
            home = inside.encode(call_user(groups.where, fun, *inside.decode(args)), REST, stays=stay)
            _called.get()[-1].append(home)  # the body is traced during the call
            return home

        self._lifted = lift(body)

    @property
    def where(self) -> str:
        """The name of the function in errors."""
        return self._groups.where

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind the function to an object, like a method."""
        return self if instance is None else types.MethodType(self, instance)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if not self._defined:
            raise LiftArgumentError(self.where, "it has no rule yet.", f"Define one first: `{self._missing}`.")
        args = _positional(self.where, self._fun, args, kwargs, self._held)
        numbers = self.held_numbers(len(args))
        args = tuple([held(arg) if number in numbers else arg for number, arg in enumerate(args)])
        prefix: list[Any] = [EVERYTHING] * len(args)
        for number in numbers:
            prefix[number] = REST
        for number in self._numbers(self._chosen, len(args)):
            prefix[number] = self._chosen[number if number in self._chosen else number - len(args)]
        check_diff_states(self.where, self._by_filter, args)
        outside = Outside(self._groups, args, tuple(prefix), "nondiff_argnums", cached=False)
        before = _called.set((*_called.get(), []))
        try:
            return outside.call(self._lifted, *outside.args)
        finally:
            _called.reset(before)

    def expected(self) -> Any:
        """Return the result of the function's body. A rule passes it to `check_alike`."""
        return _called.get()[-1][0]

    def check_alike(self, rule: Callable[..., Any], expected: Any, given: Any) -> None:
        """Check that a rule changes objects like the function, and returns the same structure.

        Args:
            rule: the rule.
            expected: what the function's body returned.
            given: what the rule's body returned.
        """
        structures: list[Any] = [jax.tree.structure(each) for each in (given, expected)]
        if structures[0] == structures[1]:
            return
        does, did = [sorted(_at_home(each[1])) for each in (given, expected)]
        what = f"it writes {does}, but the function writes {did}."
        if does == did:
            what = "it returns another structure than the function, or changes objects differently."
        raise LiftArgumentError(
            f"{name_of(rule)}, the rule of {self.where}", what, "Call the function in the rule, or do the same there."
        )

    def held_numbers(self, count: int) -> tuple[int, ...]:
        """Return the numbers of arguments that are not differentiated, in order.

        Args:
            count: the number of arguments.
        """
        return self._numbers(self._held, count)

    def _numbers(self, given: Iterable[int], count: int) -> tuple[int, ...]:
        wrong = [number for number in given if not -count <= number < count]
        if wrong:
            raise LiftArgumentError(
                f"{self.where}, nondiff_argnums", f"no argument {wrong[0]}; it takes {count}.", "Count from 0."
            )
        return tuple(sorted({number % count for number in given}))


_called: contextvars.ContextVar[tuple[list[Any], ...]] = contextvars.ContextVar("calls", default=())
"""For each running call of a function with a rule, the innermost last: what its body returned."""


def _at_home(home: Any) -> list[str]:
    """Return the values that a body wrote, and the number of new values."""
    written = [key for _, some in home.values() for key in some]
    new = sum(len(fresh) for fresh, _ in home.values())
    return [*written, f"{new} new values"] if new else written


def held(arg: Any) -> Any:
    """Prepare an argument that is not differentiated: arrays and objects are kept, other values become static."""

    def still(leaf: Any) -> Any:
        return leaf if is_object(leaf) or is_array(leaf) else Still(static(leaf, ()))

    return jax.tree.map(still, arg, is_leaf=is_object)


def _positional(
    where: str, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], held: Sequence[int]
) -> tuple[Any, ...]:
    """Return all arguments by position, with defaults, for a rule; defaults that JAX cannot trace are left out."""
    try:
        found = inspect.signature(fun).bind(*args, **kwargs)
    except (TypeError, ValueError):
        if kwargs:
            raise
        return tuple(args)
    given = len(found.args) + (len(found.arguments) if found.kwargs else 0)
    only = [name for name in found.kwargs if _is_by_name(fun, name)]
    if only:
        raise LiftArgumentError(
            where,
            f"{', '.join(only)} is keyword-only, but a rule gets all arguments by position.",
            "Make it positional in the signature of the function.",
        )
    found.apply_defaults()
    full = found.args
    for place in range(min(given, len(full)), len(full)):
        if place not in held and not all(map(is_array_like, jax.tree.leaves(full[place]))):
            return full[:place]
    return full


def _is_by_name(fun: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(fun).parameters.get(name)
    return parameter is None or parameter.kind is inspect.Parameter.KEYWORD_ONLY


def checked_pair(where: str, rule: Callable[..., Any], given: Any, expected: str) -> tuple[Any, Any]:
    """Return the result of a rule, after checking that it is a pair.

    Args:
        where: the transformation.
        rule: the rule.
        given: the result.
        expected: what the rule has to return, as in a `return` statement.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise LiftArgumentError(
            f"{name_of(rule)}, the rule of {where}",
            f"expected a pair, given {type(given).__name__}.",
            f"Write `return {expected}`.",
        )
    return given[0], given[1]


def by_value(groups: Groups, tree: Any) -> tuple[Any, Any]:
    """Replace the objects in a pytree by their arrays and static parts, to rebuild them later.

    Args:
        groups: says where in errors.
        tree: the pytree.

    Returns:
        The pytree with refs, and the values of the objects.
    """
    walk = Walk()
    return encode(walk, groups, veiled(tree), REST, "residuals", "residuals"), walk.values


def from_values(tree: Any, values: Any) -> Any:
    """Return the inverse of `by_value`."""
    builder = Builder(lambda group, key: values[group][key])

    def decoded(leaf: Any) -> Any:
        if type(leaf) is Ref:
            return builder.build(leaf.definition)
        return static_value(leaf.definition) if type(leaf) is Still else leaf

    return jax.tree.map(decoded, tree, is_leaf=is_ref)


def zero(kind: Any) -> Any:
    """Return the zero tangent of a value.

    Args:
        kind: the type of the value, as `jax.typeof` gives it.
    """
    if not jnp.issubdtype(kind.dtype, jnp.inexact):
        return np.zeros(kind.shape, jax.dtypes.float0)
    return jnp.zeros(kind.shape, kind.dtype)

"""Functions of objects with a custom derivative: `custom_jvp` and `custom_vjp`."""

from __future__ import annotations

import contextvars
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore.calls import boundary, call_user
from liftcore.errors import Expected, LiftArgumentError, check_function, name_of
from liftcore.problems import no_rule
from liftcore.pytrees import is_array, is_array_like

from ..crossing.groups import Change, Ref, Still, is_ref, refs_in
from ..crossing.inside import Inside, encode
from ..crossing.outside import Outside, decoded
from ..graph.walk import Builder, Walk
from .base import MISSING, also_decorator, named
from .differentiation import (
    DIFFERENTIATED,
    EVERYTHING,
    REST,
    DiffState,
    check_diff_states,
    group_by_filter,
    in_two_groups,
    outline,
    tangents_in,
    veiled,
    with_states,
)

__all__ = ["CustomJvp", "CustomVjp", "RuledFunction", "custom_jvp", "custom_vjp"]


_Home = tuple[Any, Any, Change]
"""What a body returns to the caller; see `Inside.encode`."""


class RuledFunction:
    """A function of objects with a custom rule. Call it like the function, also as a method.

    Args:
        lift: the transformation of the core.
        fun: the function.
        nondiff_argnums: numbers of arguments that are not differentiated; a `DiffState` says which variables are.
        **options: the options of the transformation.
    """

    _missing: str | None
    """The line that defines the rule, for the error if there is none; None when there is one."""

    def __init__(self, lift: Callable[..., Any], fun: Callable[..., Any], nondiff_argnums: Any, **options: Any) -> None:
        self._groups = in_two_groups(lift.__name__, fun)
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
            home = inside.encode(call_user(groups.where, fun, *inside.decode(args)), REST, stays=True)
            _called.get().append(home)  # the body is traced during the call
            return home

        self._lifted = lift(body, **options)

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
        if self._missing is not None:
            raise no_rule(self.where, self._missing)
        args = _positional(self.where, self._fun, args, kwargs, self._held)
        numbers = self.held_numbers(len(args))
        args = tuple([veiled(arg, is_array) if number in numbers else arg for number, arg in enumerate(args)])
        prefix: list[Any] = [EVERYTHING] * len(args)
        for number in numbers:
            prefix[number] = REST
        for number in self._numbers(self._chosen, len(args)):
            prefix[number] = self._chosen[number if number in self._chosen else number - len(args)]
        check_diff_states(self.where, self._by_filter, args)
        outside = Outside(self._groups, args, tuple(prefix), "nondiff_argnums", cached=False)
        before = _called.set([])
        try:
            return outside.call(self._lifted, *outside.args)
        finally:
            _called.reset(before)

    def called(self, inside: Inside, rule: Callable[..., Any], expected: str, *args: Any) -> tuple[_Home, Any]:
        """Call a rule that returns a pair. Return the first part as the caller gets it, and the second part.

        Args:
            inside: the crossing into the rule.
            rule: the rule.
            expected: what the rule has to return, as in a `return` statement.
            *args: the arguments of the rule.
        """
        given = call_user(f"the rule of {self.where}", rule, *args)
        if not isinstance(given, tuple | list) or len(given) != 2:
            where = f"{name_of(rule)}, the rule of {self.where}"
            raise LiftArgumentError(where, Expected("a pair", given), f"Write `return {expected}`.")
        return inside.encode(given[0], REST, stays=True), given[1]

    def check_alike(self, rule: Callable[..., Any], given: Any) -> None:
        """Check that a rule changes objects like the function, and returns the same structure.

        Args:
            rule: the rule.
            given: what the rule's body returned.
        """
        expected = _called.get()[0]
        structures: list[Any] = [jax.tree.structure(each) for each in (given, expected)]
        if structures[0] == structures[1]:
            return
        does, did = [sorted(_at_home(each[1])) for each in (given, expected)]
        what = f"it writes {does}, but the function writes {did}."
        if does == did:
            what = "it returns a different structure from the function's, or changes objects differently."
        facts = {} if does == did else {"expected": str(did), "given": str(does)}
        fix = "Call the function in the rule, or do the same there."
        raise LiftArgumentError(f"{name_of(rule)}, the rule of {self.where}", what, fix, **facts)

    def held_numbers(self, count: int) -> tuple[int, ...]:
        """Return the numbers of arguments that are not differentiated, in order.

        Args:
            count: the number of arguments.
        """
        return self._numbers(self._held, count)

    def _numbers(self, given: Iterable[int], count: int) -> tuple[int, ...]:
        wrong = [number for number in given if not -count <= number < count]
        if wrong:
            where = f"{self.where}, nondiff_argnums"
            what = f"there is no argument {wrong[0]}; the function takes {count}."
            raise LiftArgumentError(where, what, "Count from 0.", option="nondiff_argnums", given=wrong[0])
        return tuple(sorted({number % count for number in given}))


_called: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("called")
"""What the body of the innermost running call of a function with a rule returned."""


def _at_home(home: Any) -> list[str]:
    """Return the values that a body wrote, and the number of new values."""
    written = [key for _, some in home.values() for key in some]
    new = sum(len(fresh) for fresh, _ in home.values())
    return [*written, f"{new} new values"] if new else written


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
    by_name = [one.name for one in found.signature.parameters.values() if one.kind is one.KEYWORD_ONLY]
    only = [name for name in found.kwargs if name in by_name or name not in found.signature.parameters]
    if only:
        what = f"{', '.join(only)} is keyword-only, but a rule gets all arguments by position."
        raise LiftArgumentError(where, what, "Make it positional in the signature of the function.", option=only[0])
    found.apply_defaults()
    full = found.args
    for place in range(min(given, len(full)), len(full)):
        if place not in held and not all(map(is_array_like, jax.tree.leaves(full[place]))):
            return full[:place]
    return full


def _check_no_symbolic_zeros(where: str, symbolic_zeros: bool) -> None:
    if symbolic_zeros:
        what = "`symbolic_zeros=True` is not supported."
        raise LiftArgumentError(where, what, "Remove it.", option="symbolic_zeros")


def _zero(kind: Any) -> Any:
    """Return the zero tangent of a value.

    Args:
        kind: the type of the value, as `jax.typeof` gives it.
    """
    if not jnp.issubdtype(kind.dtype, jnp.inexact):
        return np.zeros(kind.shape, jax.dtypes.float0)
    return jnp.zeros(kind.shape, kind.dtype)


# --- custom_jvp -------------------------------------------------------------------------------------------------------


@also_decorator
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
            variables do.

    Returns:
        A `CustomJvp`. Call it like `fun`, after `defjvp`.

    Raises:
        LiftArgumentError: if `fun` is a bound method; when called, if no rule is defined.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
    """
    return CustomJvp(fun, nondiff_argnums)


class CustomJvp(RuledFunction):
    """A function of objects with a custom derivative.

    Args:
        fun: the function.
        nondiff_argnums: see `custom_jvp`.
    """

    _missing: str | None = "f.defjvp(rule)"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Iterable[int | DiffState] = ()) -> None:
        super().__init__(liftcore.custom_jvp, fun, nondiff_argnums, wrt=DIFFERENTIATED.name)

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
        _check_no_symbolic_zeros(f"defjvp of {self.where}", symbolic_zeros)

        @named(jvp)
        def rule(scope: liftcore.Scope, primals: Any, tangents: Any, moving: Any) -> Any:
            inside = Inside(scope, self._groups)
            given = inside.decode(primals)
            tangents = with_states(tangents, lambda group, key: moving[group][key])
            numbers = self.held_numbers(len(given))
            seen = [tuple([one for i, one in enumerate(each) if i not in numbers]) for each in (given, tangents)]
            held = [given[number] for number in numbers]
            home, tangent = self.called(inside, jvp, "result, tangent", *held, *seen)
            self.check_alike(jvp, home)
            return home, _tangents(self.where, *home, tangent)

        self._lifted.defjvp(rule)
        self._missing = None
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Define the rule as a sum over the arguments.

        Args:
            jvps: for each argument a function, `jvp(tangent, result, *args)`, that returns its part of the tangent of
                the result, or None where that is zero.
        """
        if self._held:
            what = "`nondiff_argnums` names arguments."
            raise LiftArgumentError(f"defjvps of {self.where}", what, "Use `defjvp` instead.", option="nondiff_argnums")

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
    new = values.get(REST.name, {})

    def tangent(leaf: Any, one: Any) -> Any:
        if type(leaf) is Ref:
            return leaf
        moves = one is not None and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return one if moves else _zero(jax.typeof(leaf))

    def zeros(value: Any) -> Any:
        return jax.tree.map(lambda part: _zero(jax.typeof(part)), value)

    moved = jax.tree.map(tangent, result, moved, is_leaf=lambda leaf: leaf is None or is_ref(leaf))
    at_home = {
        group: ([new.get(number, zeros(value)) for number, value in enumerate(fresh)], zeros(written))
        for group, (fresh, written) in home.items()
    }
    return moved, at_home, change


# --- custom_vjp -------------------------------------------------------------------------------------------------------


@also_decorator
def custom_vjp(fun: Callable[..., Any] = MISSING, *, nondiff_argnums: Iterable[int | DiffState] = ()) -> Any:
    """`jax.custom_vjp` for functions of objects: a function with a custom pullback.

    If the function changes an object, the caller's object changes; the rule must make the same changes. Values that the
    function writes are results too: the pullback also gets their cotangents.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> @nnx.custom_vjp
        ... def f(model):
        ...     return jnp.sin(model.x) * model.y
        >>> def forward(model):
        ...     return f(model), (jnp.cos(model.x), model)  # here `f` is the function without the rule
        >>> def backward(residuals, cotangents):
        ...     cos_x, model = residuals
        ...     (model_updates,), y = cotangents
        ...     return (nnx.State({"x": 10 * cos_x * y * model.y, "y": 10 * jnp.sin(model.x) * y}),)
        >>> f.defvjp(forward, backward)
        >>> model = nnx.Dict(x=nnx.Param(0.0), y=nnx.Param(2.0))
        >>> float(nnx.grad(f)(model).x[...])
        20.0

    Args:
        fun: the function; without it the result is a decorator. Methods may be decorated.
        nondiff_argnums: the numbers of arguments that are not differentiated. Python values in them stay Python values.
            Despite the name, a `DiffState` here selects the variables of an argument that are differentiated; by
            default, all floating variables are. No gradient flows through the other variables.

    Returns:
        A `CustomVjp`. Call it like `fun`, after `defvjp`.

    Raises:
        LiftArgumentError: if `fun` is a bound method; when called, if no rule is defined.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
    """
    return CustomVjp(fun, nondiff_argnums)


class _Residuals(NamedTuple):
    """The residuals that are kept for the pullback.

    Attributes:
        given: the arguments that are not differentiated, and the rule's residuals, with refs.
        values: the values of the objects in `given`.
        args: the outlines of the arguments.
        kinds: the types of the values that came in.
    """

    given: Any
    values: Any
    args: Any
    kinds: Still


class CustomVjp(RuledFunction):
    """A function of objects with a custom pullback.

    Args:
        fun: the function.
        nondiff_argnums: see `custom_vjp`.
    """

    _missing: str | None = "f.defvjp(fwd, bwd)"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Iterable[int | DiffState] = ()) -> None:
        super().__init__(liftcore.custom_vjp, fun, nondiff_argnums, wrt=DIFFERENTIATED.name)

    def defvjp(
        self,
        fwd: Callable[..., tuple[Any, Any]],
        bwd: Callable[..., tuple[Any, ...]],
        symbolic_zeros: bool = False,
    ) -> None:
        """Define the rule.

        Args:
            fwd: called as `fwd(*args)`; returns the result and residuals, a pytree that may hold objects, by value. It
                may call the function itself; inside the rule, that call does not use the rule.
            bwd: called as `bwd(*nondiff_args, residuals, (updates, cotangent))`; returns a tuple with a cotangent for
                each differentiated argument: for an object a `State`, in which a missing cotangent is zero, or None for
                zero. `cotangent` is the cotangent of the result, with a `State` for each new object in it. `updates`
                has the cotangents of the values that the objects hold after the call: a `State` for each argument, None
                for arrays. The cotangent of a value that the function did not write is zero.
            symbolic_zeros: not supported; it must be False.
        """
        for rule in (fwd, bwd):
            check_function(f"defvjp of {self.where}", rule)
        _check_no_symbolic_zeros(f"defvjp of {self.where}", symbolic_zeros)

        @named(fwd)
        def forward(scope: liftcore.Scope, *args: Any) -> Any:
            inside = Inside(scope, self._groups)
            given = inside.decode(args)
            home, residuals = self.called(inside, fwd, "result, residuals", *given)
            self.check_alike(fwd, home)
            kept = tuple([veiled(given[number], is_array) for number in self.held_numbers(len(args))]), residuals
            walk = Walk()
            crossed = encode(walk, self._groups, veiled(kept), REST, "residuals", "residuals")
            return home, _Residuals(crossed, walk.values, outline(args), _kinds(inside.values))

        @named(bwd)
        def backward(residuals: _Residuals, cotangents: Any) -> Any:
            values = residuals.values
            nondiff, kept = decoded(Builder(lambda group, key: values[group][key]), residuals.given)
            numbers = self.held_numbers(len(residuals.args))
            updates, cotangent = _cotangents(residuals, *cotangents)
            updates = tuple([one for number, one in enumerate(updates) if number not in numbers])
            given = call_user(f"the rule of {self.where}", bwd, *nondiff, kept, (updates, cotangent))
            variables, found = self._given(bwd, residuals, numbers, given)
            return variables, *found

        self._lifted.defvjp(forward, backward)
        self._missing = None

    def _given(
        self, bwd: Callable[..., Any], residuals: _Residuals, numbers: Sequence[int], given: Any
    ) -> tuple[Any, list[Any]]:
        """Convert the result of a pullback: values for variables, and a cotangent for each argument."""
        where, count = f"{name_of(bwd)}, the rule of {self.where}", len(residuals.args) - len(numbers)
        if not isinstance(given, tuple | list) or len(given) != count:
            found = str(len(given) if isinstance(given, tuple | list) else type(given).__name__)
            what = Expected(f"a tuple of {count}, one for each differentiated argument", found, words=found)
            raise LiftArgumentError(where, what, "Write `return (model_cotangent, …)`; None means zero.")
        rest = iter(given)
        full = [None if number in numbers else next(rest) for number in range(len(residuals.args))]
        variables: dict[Any, Any] = {}
        for number, one in enumerate(full):
            if one is not None:
                values, full[number] = tangents_in(where, residuals.args[number], one, "cotangents")
                variables.update(values.get(DIFFERENTIATED.name, {}))
                others = ", ".join(values.get(REST.name, {}))
                if others:
                    text = f"there are cotangents for {others}, which no `DiffState` in `nondiff_argnums` selects."
                    fix = "Leave them out: `del model_cotangent['name']`."
                    raise LiftArgumentError(where, text, fix, option="nondiff_argnums")
        _check_shapes(where, variables, dict(residuals.kinds.definition))
        return {DIFFERENTIATED.name: variables} if variables else None, full


def _check_shapes(where: str, variables: Mapping[Any, Any], kinds: Mapping[Any, Any]) -> None:
    for key, value in variables.items():
        expected = jax.tree.map(lambda kind: kind.shape, kinds[DIFFERENTIATED.name, key])
        shape = jax.tree.map(jnp.shape, value)
        if shape != expected:
            what = f"the cotangent for {key} has shape {shape}, not {expected}."
            fix = "Give it the variable's shape."
            raise LiftArgumentError(where, what, fix, variable=key, expected=str(expected), given=shape)


def _kinds(values: Mapping[str, Mapping[Any, Any]]) -> Still:
    """Return the types of values by group and key, as a pytree without leaves."""
    pairs = [((group, key), value) for group, some in values.items() for key, value in some.items()]
    return Still(tuple([(place, jax.tree.map(jax.typeof, value)) for place, value in pairs]))


def _cotangents(residuals: _Residuals, result: Any, home: Any, change: Any) -> tuple[Any, Any]:
    """Return the cotangents of the values that objects hold after the call, for each argument, and of the result."""
    kinds = dict(residuals.kinds.definition)

    def read(group: str, key: Any) -> Any:
        if type(key) is not str:
            return home[group][0][key]
        written = home[group][1]
        return written[key] if key in written else jax.tree.map(_zero, kinds[group, key])

    now = iter(change.definitions or [ref.definition for ref in refs_in(residuals.args)])

    def update(leaf: Any) -> Any:
        return Ref(next(now), leaf.prefix, leaf.base) if type(leaf) is Ref else None

    updates = jax.tree.map(update, residuals.args, is_leaf=is_ref)
    return with_states(updates, read, only=None), with_states(result, read, only=None)

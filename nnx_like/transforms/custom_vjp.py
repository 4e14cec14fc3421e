"""`custom_vjp` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import liftcore
from liftcore.errors import LiftArgumentError, call_user, check_function, name_of

from ..crossing.inside import Inside, stay
from ..crossing.ref import Ref, Still, is_ref
from .decorating import MISSING, named
from .differentiation import DIFFERENTIATED, REST, DiffState
from .rules import RuledFunction, by_value, checked_pair, from_values, held, zero
from .tangents import outline, tangents_in, with_states

__all__ = ["CustomVjp", "custom_vjp"]


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
        A `CustomVjp`, to be called as `fun` after `defvjp`.

    Raises:
        LiftArgumentError: if `fun` is a bound method; when called, if no rule is defined.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
    """
    if fun is MISSING:
        return functools.partial(custom_vjp, nondiff_argnums=nondiff_argnums)
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

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Iterable[int | DiffState] = ()) -> None:
        lift = functools.partial(liftcore.custom_vjp, wrt=DIFFERENTIATED)
        super().__init__("custom_vjp", fun, nondiff_argnums, lift, "f.defvjp(fwd, bwd)")

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
        if symbolic_zeros:
            raise LiftArgumentError(f"defvjp of {self.where}", "`symbolic_zeros=True` is not supported.", "Remove it.")

        @named(fwd)
        def forward(scope: liftcore.Scope, *args: Any) -> Any:
            inside, expected = Inside(scope, self._groups), self.expected()
            given = inside.decode(args)
            result, residuals = checked_pair(
                self.where, fwd, call_user(f"the rule of {self.where}", fwd, *given), "result, residuals"
            )
            home = inside.encode(result, REST, stays=stay)
            self.check_alike(fwd, expected, home)
            kept = tuple([held(given[number]) for number in self.held_numbers(len(args))]), residuals
            return home, _Residuals(*by_value(self._groups, kept), outline(args), _kinds(inside.values))

        @named(bwd)
        def backward(residuals: _Residuals, cotangents: Any) -> Any:
            nondiff, kept = from_values(residuals.given, residuals.values)
            numbers = self.held_numbers(len(residuals.args))
            updates, cotangent = _cotangents(residuals, *cotangents)
            updates = tuple([one for number, one in enumerate(updates) if number not in numbers])
            given = call_user(f"the rule of {self.where}", bwd, *nondiff, kept, (updates, cotangent))
            variables, found = self._given(bwd, residuals, numbers, given)
            return variables, *found

        self._lifted.defvjp(forward, backward)
        self._defined = True

    def _given(
        self, bwd: Callable[..., Any], residuals: _Residuals, numbers: Sequence[int], given: Any
    ) -> tuple[Any, list[Any]]:
        """Convert the result of a pullback: values for variables, and a cotangent for each argument."""
        where, count = f"{name_of(bwd)}, the rule of {self.where}", len(residuals.args) - len(numbers)
        if not isinstance(given, tuple | list) or len(given) != count:
            what = len(given) if isinstance(given, tuple | list) else type(given).__name__
            raise LiftArgumentError(
                where,
                f"expected a tuple of {count}, one for each differentiated argument, given {what}.",
                "Write `return (model_cotangent, …)`; None means zero.",
            )
        rest = iter(given)
        full = [None if number in numbers else next(rest) for number in range(len(residuals.args))]
        variables: dict[Any, Any] = {}
        for number, one in enumerate(full):
            if one is not None:
                values, full[number] = tangents_in(where, residuals.args[number], one, "cotangents")
                variables.update(values.get(DIFFERENTIATED, {}))
                self._check_chosen(where, values.get(REST, {}))
        _check_shapes(where, variables, dict(residuals.kinds.definition))
        return {DIFFERENTIATED: variables} if variables else None, full

    def _check_chosen(self, where: str, others: Mapping[Any, Any]) -> None:
        if others:
            raise LiftArgumentError(
                where,
                f"there are cotangents for {', '.join(others)}, which no `DiffState` in `nondiff_argnums` selects.",
                "Leave them out: `del model_cotangent['name']`.",
            )


def _check_shapes(where: str, variables: Mapping[Any, Any], kinds: Mapping[Any, Any]) -> None:
    for key, value in variables.items():
        expected = jax.tree.map(lambda kind: kind.shape, kinds[DIFFERENTIATED, key])
        shape = jax.tree.map(jnp.shape, value)
        if shape != expected:
            raise LiftArgumentError(
                where, f"the cotangent for {key} has shape {shape}, not {expected}.", "Give it the variable's shape."
            )


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
        return written[key] if key in written else jax.tree.map(zero, kinds[group, key])

    refs = [leaf for leaf in jax.tree.leaves(residuals.args, is_leaf=is_ref) if type(leaf) is Ref]
    now = iter(change.definitions or [ref.definition for ref in refs])

    def update(leaf: Any) -> Any:
        return Ref(next(now), leaf.prefix, leaf.base) if type(leaf) is Ref else None

    updates = jax.tree.map(update, residuals.args, is_leaf=is_ref)
    return with_states(updates, read, only=None), with_states(result, read, only=None)

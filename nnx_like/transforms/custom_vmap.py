"""`custom_vmap` over objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore.errors import LiftArgumentError, check_function, shown

from ..crossing.groups import Ref, is_ref
from ..crossing.inside import Inside
from ..graph.definition import entries
from ..statelib.state import State
from .base import MISSING, also_decorator, named
from .differentiation import with_states
from .rules import RuledFunction

__all__ = ["CustomVmap", "custom_vmap"]


@also_decorator
def custom_vmap(fun: Callable[..., Any] = MISSING) -> Any:
    """`jax.custom_batching.custom_vmap` for functions of objects: a function with a custom rule for `vmap`.

    If the function changes an object, the caller's object changes; the rule must make the same changes.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> @nnx.custom_vmap
        ... def apply(model, x):
        ...     return x @ model.w
        >>> @apply.def_vmap
        ... def rule(axis_size, in_batched, model, x):
        ...     print(axis_size, in_batched, x.shape)
        ...     return x @ model.w, True
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones((3, 2))))
        >>> y = nnx.vmap(apply, in_axes=(None, 0))(model, jnp.ones((5, 3)))
        5 (State({
          'w': False
        }), True) (5, 3)

    Args:
        fun: the function; without it the result is a decorator. Methods may be decorated.

    Returns:
        A `CustomVmap`. Call it like `fun`, after `def_vmap`.

    Raises:
        LiftArgumentError: if `fun` is a bound method; when called, if no rule is defined.
    """
    return CustomVmap(fun)


class CustomVmap(RuledFunction):
    """A function of objects with a rule for `vmap`.

    Args:
        fun: the function.
    """

    _missing: str | None = "@f.def_vmap"

    def __init__(self, fun: Callable[..., Any]) -> None:
        super().__init__(liftcore.custom_vmap, fun, ())

    def def_vmap(self, rule: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        """Define the rule for `vmap`.

        Args:
            rule: called as `rule(axis_size, in_batched, *args)`; returns the result, and a pytree of bools with the
                same structure: True for values with a new axis 0. `in_batched` has a pytree of bools for each argument.
                Batched variables of objects hold all elements, along axis 0. In both pytrees, an object is represented
                by a `State` of bools; in the returned one, a single bool is allowed too. A variable that the rule
                writes is batched if its value has one axis more than the value of one element.

        Returns:
            The rule.
        """
        check_function(f"def_vmap of {self.where}", rule)

        @named(rule)
        def batched(axis_size: int, in_batched: Sequence[Any], scope: liftcore.Scope, *args: Any) -> Any:
            inside = Inside(scope, self._groups)
            flags, *others = in_batched
            seen = with_states(tuple(others), lambda group, key: flags[group][key], make=_flag, only=None)
            args = inside.decode(args)
            home, is_batched = self.called(inside, rule, "result, is_batched", axis_size, seen, *args)
            return home, _batched(self.where, *home, is_batched, inside.values, flags)

        self._lifted.def_vmap(batched)
        self._missing = None
        return rule


def _flag(definition: Any, value: Any) -> Any:
    return value


def _batched(
    where: str,
    result: Any,
    home: Any,
    change: Any,
    given: Any,
    values: Mapping[str, Mapping[Any, Any]],
    flags: Mapping[str, Mapping[Any, Any]],
) -> Any:
    """Return which values of a body's whole result are batched, from the bools that the user returned.

    Args:
        where: the transformation.
        result: the user's result, with refs.
        home: the other values that the body returned.
        change: the change of the structure.
        given: the bools from the user.
        values: the values that came in.
        flags: which of these are batched.
    """
    new: dict[Any, Any] = {}

    def seen(leaf: Any, one: Any) -> Any:
        if type(leaf) is not Ref:
            if not isinstance(one, bool | np.bool_):
                raise ValueError(f"{shown(one)} is not a bool, as {shown(leaf)} needs")
            return one
        new.update(_flags_of(leaf, one))
        return leaf

    try:
        is_batched = jax.tree.map(seen, result, given, is_leaf=is_ref)
    except ValueError as error:
        what = f"the pytree of bools, {shown(given)}, does not have the structure of the result: {error}."
        fix = "Give one bool for each part of the result."
        raise LiftArgumentError(f"the rule of {where}", what, fix, given=given) from None

    def all_alike(value: Any, flag: Any) -> Any:
        return jax.tree.map(lambda _: flag, value)

    at_home = {
        group: (
            [all_alike(value, new.get((group, number), True)) for number, value in enumerate(fresh)],
            {key: jax.tree.map(_is_batched, one, values[group][key], flags[group][key]) for key, one in some.items()},
        )
        for group, (fresh, some) in home.items()
    }
    return is_batched, at_home, change


def _flags_of(ref: Ref, given: Any) -> dict[Any, Any]:
    """Return which values of a new object are batched, by group and key."""
    found = entries(ref.definition)
    if not isinstance(given, State):
        return {definition.slot: bool(given) for _, definition in found}
    known = dict(given.flat_state())
    return {definition.slot: bool(known.get(path)) for path, definition in found}


def _is_batched(now: Any, before: Any, flag: Any) -> bool:
    """Return whether a written value is batched: it has one axis more than the value of one element."""
    return bool(jnp.ndim(now) > jnp.ndim(before) - bool(flag))

"""Costs: how many floating-point operations a call takes, by XLA's own count of what it is lowered to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from liftcore.typing import Filter, PyTree, RNGs

from ..lifecycle.fields import Base
from .loops import Count, counted

__all__ = ["Alone", "chosen", "flops", "is_type", "joined", "vjp_flops"]


def chosen(tree: PyTree, choose: Callable[[Any], bool]) -> PyTree:
    """A pytree with None in the place of each leaf that is not chosen."""
    return jax.tree.map(lambda leaf: leaf if choose(leaf) else None, tree)


def joined(tree: PyTree, part: PyTree) -> PyTree:
    """A pytree in which what was `chosen` of it, or is now in the place of that, takes the place of its own leaves."""
    return jax.tree.map(lambda leaf, other: leaf if other is None else other, tree, part)


def is_type(leaf: Any) -> bool:
    """Whether a leaf is the type of an array, and no array."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


class Alone(NamedTuple):
    """A call of a method of an unbound module, to be run without the model around it.

    Attributes:
        module: the module.
        method: what is called.
        mutable: which variables may be written.
        args: the arguments, arrays as types.
        kwargs: the keyword arguments.
    """

    module: Base
    method: Callable[..., Any] | str
    mutable: Filter
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def flops(alone: Alone | None, rngs: RNGs) -> Count | None:
    """How many floating-point operations a call takes; None where it cannot be run alone."""
    return _count(alone, rngs, _apply)


def vjp_flops(alone: Alone | None, rngs: RNGs) -> Count | None:
    """How many operations its pullback takes, the call itself included; 0 where nothing can be differentiated."""
    return _count(alone, rngs, _pullback)


def _count(alone: Alone | None, rngs: RNGs, run: Callable[..., Any]) -> Count | None:
    if alone is None:
        return None
    types = chosen((alone.args, alone.kwargs), is_type)

    def init(rngs: RNGs, arrays: PyTree) -> Any:
        args, kwargs = joined((alone.args, alone.kwargs), arrays)
        return alone.module.init(rngs, *args, method=alone.method, mutable=alone.mutable, **kwargs)

    try:
        variables = jax.eval_shape(init, rngs, types)
        return counted(jax.jit(functools.partial(run, alone)).trace(variables, rngs, types))
    except Exception:  # whatever it needs from around it, such as the name of an axis
        return None


def _apply(alone: Alone, variables: Any, rngs: RNGs, arrays: PyTree) -> Any:
    args, kwargs = joined((alone.args, alone.kwargs), arrays)
    return alone.module.apply(variables, *args, rngs=rngs, method=alone.method, mutable=alone.mutable, **kwargs)


def _pullback(alone: Alone, variables: Any, rngs: RNGs, arrays: PyTree) -> Any:
    given = variables, arrays

    def outputs(numbers: PyTree) -> Any:
        variables, arrays = joined(given, numbers)
        return chosen(_apply(alone, variables, rngs, arrays), _is_inexact)

    y, pull = jax.vjp(outputs, chosen(given, _is_inexact))
    return pull(y)


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))

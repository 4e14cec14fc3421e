"""Costs: the number of floating-point operations of a call without the model around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from liftcore import OperationCount, count_operations
from liftcore.typing import Filter, PyTree, RNGs

from ..lifecycle.fields import Base

__all__ = ["Alone", "chosen", "flops", "is_type", "joined", "vjp_flops"]


def chosen(tree: PyTree, choose: Callable[[Any], bool]) -> PyTree:
    """Return a pytree with None in place of each leaf that is not chosen."""
    return jax.tree.map(lambda leaf: leaf if choose(leaf) else None, tree)


def joined(tree: PyTree, part: PyTree) -> PyTree:
    """Replace the leaves of a pytree with those of `part` that are not None: the inverse of `chosen`."""
    return jax.tree.map(lambda leaf, other: leaf if other is None else other, tree, part)


def is_type(leaf: Any) -> bool:
    """Return whether a leaf is the type of an array, not an array."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


class Alone(NamedTuple):
    """A call of a method of an unbound module, to run without the model around it.

    Attributes:
        module: the module.
        method: the method to call.
        mutable: a filter of the variables that may be written.
        args: the arguments, with types in place of arrays.
        kwargs: the keyword arguments.
    """

    module: Base
    method: Callable[..., Any] | str
    mutable: Filter
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def flops(alone: Alone | None, rngs: RNGs) -> OperationCount | None:
    """Return the number of floating-point operations of a call; None if it cannot be run alone."""
    return _count(alone, rngs, _apply)


def vjp_flops(alone: Alone | None, rngs: RNGs) -> OperationCount | None:
    """Return the number of operations of its pullback, including the call; 0 if nothing can be differentiated."""
    return _count(alone, rngs, _pullback)


def _count(alone: Alone | None, rngs: RNGs, run: Callable[..., Any]) -> OperationCount | None:
    if alone is None:
        return None
    types = chosen((alone.args, alone.kwargs), is_type)

    def init(rngs: RNGs, arrays: PyTree) -> Any:
        args, kwargs = joined((alone.args, alone.kwargs), arrays)
        return alone.module.init(rngs, *args, method=alone.method, mutable=alone.mutable, **kwargs)

    try:
        variables = jax.eval_shape(init, rngs, types)
        return count_operations(functools.partial(run, alone))(variables, rngs, types)
    except Exception:  # it may need something from around it, such as the name of an axis
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

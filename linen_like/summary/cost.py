"""Costs: how many floating-point operations a call takes, by XLA's own count of what it is lowered to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from liftcore.typing import Filter, RNGs

from .loops import Count, counted

__all__ = ["Alone", "Arguments", "flops", "vjp_flops"]


class Arguments:
    """Arguments of which some are types only.

    Attributes:
        types: the leaves that are `jax.ShapeDtypeStruct`, by their numbers.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._leaves, self._treedef = jax.tree.flatten((args, kwargs))
        self.types = {n: leaf for n, leaf in enumerate(self._leaves) if isinstance(leaf, jax.ShapeDtypeStruct)}

    def joined(self, arrays: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, with arrays in place of the types."""
        leaves = [arrays.get(number, leaf) for number, leaf in enumerate(self._leaves)]
        args, kwargs = jax.tree.unflatten(self._treedef, leaves)
        return args, kwargs


class Alone(NamedTuple):
    """A call of a method of an unbound module, to be run without the model around it.

    Attributes:
        module: the module.
        method: what is called.
        mutable: which variables may be written.
        args: the arguments, arrays as types.
        kwargs: the keyword arguments.
    """

    module: Any
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
    arguments = Arguments(alone.args, alone.kwargs)

    def init(rngs: RNGs, arrays: dict[int, Any]) -> Any:
        args, kwargs = arguments.joined(arrays)
        return alone.module.init(rngs, *args, method=alone.method, mutable=alone.mutable, **kwargs)

    try:
        variables = jax.eval_shape(init, rngs, arguments.types)
        return counted(jax.jit(functools.partial(run, alone, arguments)).trace(variables, rngs, arguments.types))
    except Exception:  # whatever it needs from around it, such as the name of an axis
        return None


def _apply(alone: Alone, arguments: Arguments, variables: Any, rngs: RNGs, arrays: dict[int, Any]) -> Any:
    args, kwargs = arguments.joined(arrays)
    return alone.module.apply(variables, *args, rngs=rngs, method=alone.method, mutable=alone.mutable, **kwargs)


def _pullback(alone: Alone, arguments: Arguments, variables: Any, rngs: RNGs, arrays: dict[int, Any]) -> Any:
    leaves, treedef = jax.tree.flatten((variables, arrays))
    numbers = {number: leaf for number, leaf in enumerate(leaves) if _is_inexact(leaf)}

    def outputs(numbers: dict[int, Any]) -> Any:
        values = [numbers.get(number, leaf) for number, leaf in enumerate(leaves)]
        variables, arrays = jax.tree.unflatten(treedef, values)
        y = _apply(alone, arguments, variables, rngs, arrays)
        return [leaf for leaf in jax.tree.leaves(y) if _is_inexact(leaf)]

    y, pull = jax.vjp(outputs, numbers)
    return pull(y)


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))

"""`filter_checkpoint`: what a call computes is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import liftcore
from liftcore.errors import name_of

from .functions import MISSING, filtered
from .parts import SplitResult, SplitTree

__all__ = ["filter_checkpoint"]


def filter_checkpoint(
    fun: Any = MISSING, *, prevent_cse: bool = True, policy: Callable[..., bool] | None = None
) -> Any:
    """`jax.checkpoint` of a function of any Python objects.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_checkpoint(lambda x, name: (jnp.sin(x), name))(jnp.float32(0), "net")
        (Array(0., dtype=float32), 'net')

    Args:
        fun: the function: any pytree that can be called. Left out, `filter_checkpoint(policy=…)` is a decorator.
        prevent_cse: whether the compiler is kept from merging what is computed again with what was computed first; not
            needed inside a scan.
        policy: which intermediate values are kept all the same: one of `jax.checkpoint_policies`; by default none.

    Returns:
        A function with the arguments of `fun`. Scopes among them are lifted as by `liftcore.remat`.

    Raises:
        LiftArgumentError: where `fun` returns a scope.
    """
    return filtered(filter_checkpoint, _call, fun, {"prevent_cse": prevent_cse, "policy": policy})


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, result = SplitTree((fun, args, kwargs)), SplitResult(f"filter_checkpoint({name_of(fun)})")

    def body(scopes: Any, arrays: list[Any]) -> list[Any]:
        function, args, kwargs = given.join(arrays, scopes)
        return result.arrays(function(*args, **kwargs))

    return result.join(liftcore.remat(body, **options)(given.scopes, given.arrays))

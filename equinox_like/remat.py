"""`filter_checkpoint`: recompute the intermediate values of a call in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import liftcore
from liftcore.calls import call_user
from liftcore.errors import name_of

from .methods import MISSING, filtered
from .split import SplitResult, SplitTree

__all__ = ["filter_checkpoint"]


def filter_checkpoint(
    fun: Any = MISSING, *, prevent_cse: bool = True, policy: Callable[..., bool] | None = None
) -> Any:
    """Apply `jax.checkpoint` to a function of any Python objects.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_checkpoint(lambda x, name: (jnp.sin(x), name))(jnp.float32(0), "net")
        (Array(0., dtype=float32), 'net')

    Args:
        fun: the function, or any callable pytree. If it is left out, `filter_checkpoint(policy=…)` is a decorator.
        prevent_cse: whether to keep the compiler from merging the recomputation with the first computation; not needed
            inside a scan.
        policy: the intermediate values that are kept: one of `jax.checkpoint_policies`; by default none.

    Returns:
        A function with the arguments of `fun`. Scopes among them are lifted as in `liftcore.remat`.

    Raises:
        LiftArgumentError: if `fun` returns a scope.
    """
    return filtered(filter_checkpoint, _call, fun, {"prevent_cse": prevent_cse, "policy": policy})


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, result = SplitTree((fun, args, kwargs)), SplitResult(f"filter_checkpoint({name_of(fun)})")

    def body(scopes: Any, arrays: list[Any]) -> list[Any]:
        function, args, kwargs = given.join(arrays, scopes)
        return result.arrays(call_user(result.where, function, *args, **kwargs))

    return result.join(liftcore.remat(body, **options)(given.scopes, given.arrays))

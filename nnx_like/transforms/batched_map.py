"""`batched_map`: `jax.lax.map` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import liftcore

from .decorating import MISSING
from .vmap import mapped

__all__ = ["batched_map"]


def batched_map(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    batch_size: int | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.lax.map` for functions of objects: a `vmap` that runs one element, or one batch, at a time to save memory.

    Unlike `jax.lax.map`, it takes only the function, and returns a function of the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.batched_map(lambda model, x: model(x), in_axes=(None, 0), batch_size=2)(model, jnp.ones((5, 2))).shape
        (5, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        in_axes: the axis of the variables of each object, or None for values that all elements share, or a `StateAxes`.
            Arrays are mapped over their first axis.
        batch_size: the number of elements computed at once; by default one.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The function, mapped. The errors are those of `vmap`.
    """
    if f is MISSING:
        return functools.partial(
            batched_map, in_axes=in_axes, batch_size=batch_size, transform_metadata=transform_metadata
        )
    options = {"batch_size": batch_size}
    return mapped("batched_map", _lift, f, in_axes, 0, transform_metadata, options)


def _lift(body: Callable[..., Any], in_axes: Any, out_axes: Any, **options: Any) -> Callable[..., Any]:
    @functools.wraps(body)
    def of_one(scope: liftcore.Scope, args: tuple[Any, ...]) -> Any:
        return body(scope, *args)

    lifted = liftcore.map(of_one, **options)
    return lambda scope, *args: lifted(scope, args)

"""The arithmetic of a training step: updates added to parameters, and averages that follow values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..typing import Array, ArrayLike, PyTree

__all__ = ["apply_updates", "update_average"]


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Parameters with updates added to them, in the dtypes of the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> apply_updates({"w": jnp.bfloat16(1), "b": jnp.bfloat16(0)}, {"w": jnp.float32(0.5), "b": None})
        {'b': Array(0, dtype=bfloat16), 'w': Array(1.5, dtype=bfloat16)}

    Args:
        params: a pytree of arrays.
        updates: a pytree of the same structure, such as `update` of an optax transformation returns. None in the place
            of an array is no update.
    """

    def add(update: Any, param: Any) -> Any:
        return param if update is None else jnp.asarray(param + update).astype(jnp.asarray(param).dtype)

    with jax.numpy_dtype_promotion("standard"):  # the sum is rounded once, where a user allows no promotion too
        return jax.tree.map(add, updates, params, is_leaf=lambda leaf: leaf is None)


def update_average(average: Array, value: ArrayLike, decay: ArrayLike) -> Array:
    """`decay * average + (1 - decay) * value`, in the dtype of the average.

    Example:
        >>> import jax.numpy as jnp
        >>> update_average(jnp.float32(1), jnp.bfloat16(2), decay=0.75)
        Array(1.25, dtype=float32)

    Args:
        average: the average so far.
        value: the value that it is moved to, of any dtype.
        decay: the weight of the old average, between 0 and 1.
    """
    with jax.numpy_dtype_promotion("standard"):
        value = jnp.asarray(value, jnp.result_type(average, value))  # first: a product is rounded to its own dtype
        return jnp.asarray(decay * average + (1 - decay) * value).astype(average.dtype)

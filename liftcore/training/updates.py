"""The arithmetic of a training step: updates added to parameters, and averages that follow values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..nn.masks import broadcasts
from ..texts import path_text
from ..typing import Array, ArrayLike, PyTree, Shape

__all__ = ["apply_updates", "check_decay", "update_average"]


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Add updates to parameters, in the dtypes of the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> apply_updates({"w": jnp.bfloat16(1), "b": jnp.bfloat16(0)}, {"w": jnp.float32(0.5), "b": None})
        {'b': Array(0, dtype=bfloat16), 'w': Array(1.5, dtype=bfloat16)}

    Args:
        params: a pytree of arrays.
        updates: a pytree of the same structure, as `update` of an optax transformation returns it. `None` in place of
            an array leaves the parameter unchanged.

    Raises:
        LiftArgumentError: if the shape of an update cannot be broadcast to the shape of its parameter.
    """

    def add(path: Any, update: Any, param: Any) -> Any:
        if update is None:
            return param
        _check_shape(f"apply_updates, {path_text(path)}", "an update", update, param)
        return jnp.asarray(param + update).astype(jnp.asarray(param).dtype)

    with jax.numpy_dtype_promotion("standard"):  # round the sum only once, even if the user forbids promotion
        return jax.tree.map_with_path(add, updates, params, is_leaf=lambda leaf: leaf is None)


def update_average(average: Array, value: ArrayLike, decay: ArrayLike) -> Array:
    """Return `decay * average + (1 - decay) * value`, in the dtype of the average.

    Example:
        >>> import jax.numpy as jnp
        >>> update_average(jnp.float32(1), jnp.bfloat16(2), decay=0.75)
        Array(1.25, dtype=float32)

    Args:
        average: the average so far.
        value: the new value, of any dtype.
        decay: the weight of the old average, between 0 and 1.

    Raises:
        LiftArgumentError: if the shape of the value cannot be broadcast to the shape of the average, or `decay` is not
            a number from 0 to 1. The value of a JAX array is not checked.
    """
    _check_shape("update_average", "a value", value, average)
    check_decay("update_average, decay", decay, np.shape(average))
    average = jnp.asarray(average)
    with jax.numpy_dtype_promotion("standard"):
        value = jnp.asarray(value, jnp.result_type(average, value))  # first, or the product is rounded to value's dtype
        return jnp.asarray(decay * average + (1 - decay) * value).astype(average.dtype)


def check_decay(where: str, decay: Any, shape: Shape = ()) -> None:
    """Check that a weight is a number from 0 to 1, or an array of them that can be broadcast to a shape.

    Args:
        where: the place that the error names.
        decay: the weight. The value of a JAX array is not checked: it may be traced, or may not be computed yet.
        shape: the shape.

    Raises:
        LiftArgumentError: if it is something else.
    """
    try:
        known = np.asarray(0.0 if isinstance(decay, jax.Array) else decay)
        fits = broadcasts(np.shape(decay), shape) and bool(((known >= 0) & (known <= 1)).all())
    except (TypeError, ValueError):  # such as a text
        fits = False
    if not fits:
        raise LiftArgumentError(
            where, Expected("a number from 0 to 1", given=decay), "For example, `decay=0.999`.", option="decay"
        )


def _check_shape(where: str, name: str, added: Any, kept: Any) -> None:
    """Check that a sum of two arrays has the shape of the second."""
    shape, expected = np.shape(added), np.shape(kept)
    if not broadcasts(shape, expected):
        what = f"{name} of shape {shape} cannot be added to an array of shape {expected}."
        raise LiftArgumentError(
            where,
            what,
            "Reduce it to that shape, such as to the mean over the examples.",
            given=shape,
            expected=expected,
        )

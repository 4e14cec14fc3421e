"""`error_if`: an error that depends on the values of arrays, raised when the computation runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import is_array
from liftcore.errors import Expected, LiftArgumentError

from .split import SplitTree

__all__ = ["branched_error_if", "error_if"]


def error_if(x: Any, pred: Any, msg: str) -> Any:
    """Raise an error if a condition holds, also under `jit`, where the error is raised when the program runs.

    Under `jit`, the check is a callback to Python, which not every accelerator supports. `liftcore.checkify` returns
    errors as values instead.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> @jax.jit
        ... def root(x):
        ...     x = eqx.error_if(x, x < 0, "x must not be negative")
        ...     return jnp.sqrt(x)
        >>> root(jnp.float32(4))
        Array(2., dtype=float32)

    Args:
        x: a pytree with at least one array. Use the result in place of it: if it is not used, nothing is checked.
        pred: a bool or an array of bools; there is an error if one of them is true, for any batch element under `vmap`.
        msg: the text of the error.

    Returns:
        The same pytree.

    Raises:
        RuntimeError: if the condition holds; under `jit`, JAX raises an error of its own, with the text.
        LiftArgumentError: if `x` has no arrays.
    """
    return branched_error_if(x, pred, 0, [msg])


def branched_error_if(x: Any, pred: Any, index: Any, msgs: Sequence[str]) -> Any:
    """Raise one of several errors if a condition holds; see `error_if`.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.branched_error_if(jnp.float32(4), False, 0, ["too small", "too large"])
        Array(4., dtype=float32)

    Args:
        x: a pytree with at least one array. Use the result in place of it: if it is not used, nothing is checked.
        pred: a bool or an array of bools; there is an error if one of them is true, for any batch element under `vmap`.
        index: the index of the text of the error; of several, under `vmap`, the largest one counts.
        msgs: the texts.

    Returns:
        The same pytree.

    Raises:
        RuntimeError: if the condition holds; under `jit`, JAX raises an error of its own, with the text.
        LiftArgumentError: if `x` has no arrays.
    """
    parts = SplitTree(x, _is_numeric)
    if not parts.arrays:
        fix = "Pass an array that you use later."
        raise LiftArgumentError("error_if, x", Expected("a pytree with an array of numbers", x), fix, option="x")

    def raised(arrays: Any, pred: Any, index: Any) -> Any:
        if np.any(pred):
            raise RuntimeError(msgs[int(np.max(index))])
        return arrays

    if not any(isinstance(one, jax.core.Tracer) for one in (pred, index)):
        raised((), pred, index)
        return x

    # The rule keeps the callback, which has no derivative, out of the derivative.
    @jax.custom_jvp
    def checked(arrays: list[Any], pred: Any, index: Any) -> Any:
        def callback(arrays: list[Any]) -> Any:
            types = jax.eval_shape(lambda: arrays)
            return jax.pure_callback(raised, types, arrays, pred, index, vmap_method="broadcast_all")

        return jax.lax.cond(pred, callback, lambda arrays: arrays, arrays)

    @checked.defjvp
    def along(primals: Any, tangents: Any) -> Any:
        return checked(*primals), tangents[0]

    return parts.join(checked(list(map(jnp.asarray, parts.arrays)), jnp.any(pred), jnp.max(jnp.asarray(index))))


def _is_numeric(leaf: Any) -> bool:
    """Return whether a leaf is an array that a callback can take: not one of keys."""
    return is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

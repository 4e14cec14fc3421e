"""`BatchApply`: calls a function of one batch dimension with several."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError, shown

__all__ = ["BatchApply"]


class BatchApply:
    """Calls a function with the leading dimensions of its arguments merged, and splits them again in the results.

    For example, `(time, batch, ...)` becomes `(time * batch, ...)` and back. Arrays with fewer than `num_dims`
    dimensions are passed unchanged. It is not a module itself: a module that it calls is named where that module is
    made.

    Example:
        >>> import jax, linen_like as nn
        >>> class Frames(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, video):  # (batch, time, height, width, channels)
        ...         return nn.BatchApply(nn.Conv(4, (3, 3)))(video)
        >>> y, variables = Frames().init_with_output(jax.random.key(0), jnp.ones((2, 5, 8, 8, 3)))
        >>> y.shape, list(variables["params"])
        ((2, 5, 8, 8, 4), ['Conv_0'])

    Attributes:
        f: a module or a function; all arrays that it returns must have the merged dimension first.
        num_dims: the number of dimensions to merge, at least 1.

    Raises:
        LiftArgumentError: if `num_dims` is not a positive number. When called: if no argument has that many dimensions,
            if arguments that have them differ in them, or if a result does not begin with the merged dimension.
    """

    def __init__(self, f: Callable[..., Any], num_dims: int = 2) -> None:
        if not callable(f) or num_dims < 1:
            given = f"{shown(f)} and {num_dims}"
            what = Expected("a function, and a `num_dims` of 1 or more", given, words=given)
            raise LiftArgumentError("BatchApply", what, "Write `BatchApply(function, num_dims=2)`.", option="num_dims")
        self.f, self.num_dims = f, num_dims

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        leading = self._leading((args, kwargs))
        n, size = self.num_dims, math.prod(leading)

        def merge(leaf: Any) -> Any:
            return leaf if n == 1 or jnp.ndim(leaf) < n else nn.reshape(leaf, (size, *leaf.shape[n:]))

        def split(leaf: Any) -> Any:
            if jnp.shape(leaf)[:1] != (size,):
                what = f"expected results of shape ({size}, ...), since {leading} was merged; found {jnp.shape(leaf)}."
                fix = "Return results with the same first dimension, or use `nn.vmap`."
                raise LiftArgumentError("BatchApply", what, fix, expected=f"shape ({size}, ...)", given=jnp.shape(leaf))
            return nn.reshape(leaf, (*leading, *leaf.shape[1:]))

        args, kwargs = jax.tree.map(merge, (args, kwargs))
        return jax.tree.map(split, self.f(*args, **kwargs))

    def _leading(self, arguments: Any) -> tuple[int, ...]:
        """Return the dimensions to merge; all arguments with at least that many dimensions must share them."""
        n = self.num_dims
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(arguments)]
        fitting = [shape for shape in shapes if len(shape) >= n]
        if not fitting:
            what = Expected(f"an array of {n} (`num_dims`) or more dimensions", shapes, words=f"shapes {shapes}")
            fix = f"Pass `num_dims={max(map(len, shapes), default=1)}`, or add leading dimensions to the array."
            raise LiftArgumentError("BatchApply", what, fix, option="num_dims")
        # With `num_dims=1` nothing is merged, so arrays cannot be paired wrongly.
        if n > 1 and len({shape[:n] for shape in fitting}) > 1:
            raise LiftArgumentError(
                "BatchApply",
                Expected(
                    f"arrays of {n} or more dimensions that agree in the first {n}", fitting, words=f"shapes {fitting}"
                ),
                "Close over arrays that must not be merged: `BatchApply(lambda x: f(x, other))(x)`.",
            )
        return fitting[0][:n]

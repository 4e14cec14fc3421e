"""Promotes the arrays of a layer, given as a tuple, to the dtype that it computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from liftcore import nn
from liftcore.nn import canonicalize_dtype
from liftcore.typing import ArrayLike, Dtype

__all__ = ["PromoteDtypeFn", "canonicalize_dtype", "promote_dtype", "unpacked"]


PromoteDtypeFn: TypeAlias = Callable[..., Any]
"""The type of functions that convert inputs and parameters to one dtype: `fn(arrays, dtype=dtype) -> arrays`."""


def promote_dtype(
    args: tuple[ArrayLike | None, ...], /, *, dtype: Dtype | None = None, inexact: bool = True
) -> tuple[Any, ...]:
    """Convert all arrays of a tuple to one dtype; None stays None.

    Example:
        >>> import jax.numpy as jnp
        >>> promote_dtype((jnp.arange(2), None, 1.5))
        (Array([0., 1.], dtype=float32), None, Array(1.5, dtype=float32))

    Args:
        args: the arrays; None is ignored.
        dtype: the dtype to convert to; by default, the dtype that the arrays promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.

    Raises:
        LiftArgumentError: if `dtype` is neither floating nor complex, and `inexact` is True.
    """
    return tuple(nn.promote_dtype(*args, dtype=dtype, inexact=inexact))


def unpacked(promote_dtype: PromoteDtypeFn) -> nn.PromoteDtypeFn:
    """Wrap the function to take arrays as separate arguments, as the functions of `liftcore.nn` call it."""

    def promote(*args: ArrayLike | None, **options: Any) -> Any:
        return promote_dtype(args, **options)

    return promote

"""`EarlyStopping`: stop a run when a metric no longer improves."""

from __future__ import annotations

import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError, shown
from ..struct import PyTreeNode

__all__ = ["EarlyStopping"]


class EarlyStopping(PyTreeNode):
    """A rule to stop after more than `patience` updates in a row without an improvement. The object is immutable.

    Example:
        >>> stopping = EarlyStopping(min_delta=0.01, patience=1)
        >>> for epoch, loss in enumerate([4.0, 3.0, 3.0, 3.0, 2.0]):
        ...     stopping = stopping.update(loss)
        ...     if stopping.should_stop:
        ...         break
        >>> epoch, stopping.best_metric
        (3, 3.0)

    Attributes:
        min_delta: a metric is an improvement if it is less than the best one by more than this.
        patience: the number of updates in a row without an improvement that are accepted.
        best_metric: the metric of the last improvement.
        patience_count: the number of updates since the last improvement.
        should_stop: whether to stop; once true, it stays true.
        has_improved: whether the last update was an improvement.
    """

    min_delta: float = 0
    patience: int = 0
    best_metric: Any = math.inf
    patience_count: int = 0
    should_stop: bool = False
    has_improved: bool = False

    def reset(self) -> Self:
        """Return the state before the first update."""
        return type(self)(min_delta=self.min_delta, patience=self.patience)

    def update(self, metric: Any) -> Self:
        """Return the state after one more metric.

        Args:
            metric: a number (not a tracer); less is better. NaN is never an improvement.

        Raises:
            LiftArgumentError: if the metric is not one number, or is traced.
        """
        is_nan = math.isnan(_number(metric))
        with jax.numpy_dtype_promotion("standard"):  # metrics of different dtypes may follow each other
            is_close = self.best_metric - metric <= self.min_delta
        if not (is_nan or is_close):
            # A float even for integers, as initially, so that a fresh object can restore it.
            floating = jnp.issubdtype(jnp.result_type(metric), jnp.floating)
            return self.replace(best_metric=metric if floating else float(metric), patience_count=0, has_improved=True)
        stop = self.should_stop or self.patience_count >= self.patience
        return self.replace(patience_count=self.patience_count + 1, should_stop=stop, has_improved=False)


def _number(metric: Any) -> float:
    try:
        return math.fsum([metric])  # `float` would accept a text too
    except (TypeError, ValueError):
        what = f"expected one number, given {shown(metric)}."
        fix = "Pass one, such as the mean over the batches, outside of `jax.jit`."
        raise LiftArgumentError("EarlyStopping.update, metric", what, fix) from None

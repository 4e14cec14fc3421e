"""`EarlyStopping`: stop a run when a metric no longer improves, and keep the values of the best update."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from ..errors import Expected, LiftArgumentError
from ..struct import PyTreeNode, field, optional
from ..typing import PyTree

__all__ = ["EarlyStopping"]

_WORST = float("inf")  # the default of `best_metric`: equal to `math.inf`, but another object


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

    To continue with the values of the best update, pass the first ones as `best`, and the new ones to each `update`:

        >>> import jax.numpy as jnp
        >>> stopping = EarlyStopping(best={"w": jnp.zeros(1)})
        >>> for loss in (4.0, 3.0, 3.5):
        ...     stopping = stopping.update(loss, {"w": jnp.array([loss])})
        >>> stopping.best
        {'w': Array([3.], dtype=float32)}

    A metric such as an accuracy, of which more is better, needs `mode="max"`:

        >>> stopping = EarlyStopping(mode="max").update(0.8).update(0.7)
        >>> stopping.best_metric, stopping.should_stop
        (0.8, True)

    For values that do not fit into memory twice, use `liftcore.checkpoints.Checkpoints(folder, best=1)` instead.

    Attributes:
        min_delta: a metric is an improvement if it is better than the best one by more than this.
        patience: the number of updates in a row without an improvement that are accepted.
        best_metric: the metric of the last improvement; at first, infinite: the worst value.
        patience_count: the number of updates since the last improvement.
        should_stop: whether to stop; once true, it stays true.
        has_improved: whether the last update was an improvement.
        best: the values of the last improvement; None if none are kept. `update` copies them, so a step may donate its
            state; the first ones are not copied.
        mode: `"min"` if less is better, `"max"` if more is (static).

    Raises:
        LiftArgumentError: if `mode` is something else.
    """

    min_delta: float = 0
    patience: int = 0
    best_metric: Any = _WORST
    patience_count: int = 0
    should_stop: bool = False
    has_improved: bool = False
    best: Any = optional()
    mode: str = field(pytree_node=False, default="min", kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise LiftArgumentError(
                "EarlyStopping",
                Expected('"min" or "max"', given=self.mode),
                'Give "min" or "max".',
                option="mode",
                available=("min", "max"),
            )
        if self.mode == "max" and self.best_metric is _WORST:  # the default; JAX may put anything else in its place
            object.__setattr__(self, "best_metric", -math.inf)

    def reset(self) -> Self:
        """Return the state before the first update; the best values stay."""
        return type(self)(min_delta=self.min_delta, patience=self.patience, best=self.best, mode=self.mode)

    def update(self, metric: Any, values: PyTree = None) -> Self:
        """Return the state after one more metric.

        Args:
            metric: a number (not a tracer); less is better, unless `mode` is `"max"`. NaN is never an improvement.
            values: a pytree with this metric, such as a `TrainState`: it becomes `best` if the metric is an
                improvement.

        Raises:
            LiftArgumentError: if the metric is not one number, or is traced; if there are values but `best` is None, or
                the reverse.
        """
        if (values is None) != (self.best is None):
            what = (
                "values were passed, but none are kept." if self.best is None else "the values of `best` are missing."
            )
            fix = "Pass them to both: `EarlyStopping(…, best=state)` and `stopping.update(metric, state)`."
            raise LiftArgumentError("EarlyStopping.update", what, fix, option="best")
        is_nan = math.isnan(_number(metric))
        with jax.numpy_dtype_promotion("standard"):  # metrics of different dtypes may follow each other
            gain = self.best_metric - metric if self.mode == "min" else metric - self.best_metric
            is_close = gain <= self.min_delta
        if not (is_nan or is_close):
            # A float even for integers, as initially, so that a fresh object can restore it.
            floating = jnp.issubdtype(jnp.result_type(metric), jnp.floating)
            best = jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else copy.copy(leaf), values)
            metric = metric if floating else float(metric)
            return self.replace(best_metric=metric, patience_count=0, has_improved=True, best=best)
        stop = self.should_stop or self.patience_count >= self.patience
        return self.replace(patience_count=self.patience_count + 1, should_stop=stop, has_improved=False)


def _number(metric: Any) -> float:
    try:
        return math.fsum([metric])  # `float` would accept a text too
    except (TypeError, ValueError):
        fix = "Pass one, such as the mean over the batches, outside of `jax.jit`."
        raise LiftArgumentError("EarlyStopping.update, metric", Expected("one number", given=metric), fix) from None

"""Metrics that accumulate over batches in variables, and a metric that combines several."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.errors import Expected, LiftArgumentError
from liftcore.nn import to_reduction_dtype
from liftcore.pytrees import is_array

from ..errors import MetricArgumentError
from ..filterlib import Filter
from ..graph.functions import split
from ..objects.pytree import Pytree
from ..variablelib.variable import Variable

__all__ = [
    "Accuracy",
    "Average",
    "Metric",
    "MetricState",
    "MultiMetric",
    "Statistics",
    "Welford",
]

A = TypeVar("A")


class MetricState(Variable[A]):
    """The accumulated state of a metric, such as a total.

    Example:
        >>> import nnx_like as nnx
        >>> type(nnx.metrics.Average("loss").total).__name__
        'MetricState'

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class Metric(Pytree):
    """The base class of metrics. A subclass defines `reset`, `update` and `compute`, and keeps its state in variables.

    Example:
        >>> import nnx_like as nnx
        >>> class Largest(nnx.Metric):
        ...     def __init__(self):
        ...         self.value = nnx.metrics.MetricState(0.0)
        ...
        ...     def reset(self):
        ...         self.value.set_value(0.0)
        ...
        ...     def update(self, *, loss, **kwargs):
        ...         self.value.set_value(max(self.value.get_value(), loss))
        ...
        ...     def compute(self):
        ...         return self.value.get_value()
        >>> largest = Largest()
        >>> largest.update(loss=3.0)
        >>> largest.update(loss=2.0)
        >>> largest.compute()
        3.0
    """

    def __init__(self) -> None:
        raise NotImplementedError("Must override `__init__()` method.")

    def reset(self) -> None:
        """Reset the metric, in place."""
        raise NotImplementedError("Must override `reset()` method.")

    def update(self, **kwargs: Any) -> None:
        """Add a batch, in place.

        Args:
            **kwargs: the data of the batch by name. A metric ignores names that it does not need.
        """
        raise NotImplementedError("Must override `update()` method.")

    def compute(self) -> Any:
        """Return the value of the metric over all updates since the last reset."""
        raise NotImplementedError("Must override `compute()` method.")

    def split(self, *filters: Filter) -> Any:
        """Split the metric into a graph definition and states: `nnx.split(metric, *filters)`.

        Args:
            *filters: one filter for each state.
        """
        return split(self, *filters)

    def _value(self, kwargs: dict[str, Any], name: str) -> Any:
        if name not in kwargs:
            where = f"{type(self).__name__}.update"
            given = ", ".join(kwargs) or "none"
            what = Expected(f"the keyword argument `{name}`", given, words=given)
            fix = f"Write `metric.update({name}=...)`, or set another argument name: `{type(self).__name__}('loss')`."
            raise MetricArgumentError(where, what, fix, option=name)
        return kwargs[name]


class Average(Metric):
    """The mean of all values.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> loss = nnx.metrics.Average()
        >>> loss.update(values=jnp.array([1, 2, 3, 4]))
        >>> loss.update(values=jnp.array([3, 2, 1, 0]), mask=jnp.array([1, 1, 0, 0]))
        >>> loss.compute()
        Array(2.5, dtype=float32)

    Args:
        argname: the name of the keyword argument of `update` that holds the values.

    Attributes:
        total: the sum of the values, a `MetricState` of dtype `float32`.
        count: the number of values, of dtype `int32`.
    """

    argname: str
    total: MetricState[jax.Array]
    count: MetricState[jax.Array]

    def __init__(self, argname: str = "values") -> None:
        self.argname = argname
        self.total = MetricState(jnp.zeros((), jnp.float32))
        self.count = MetricState(jnp.zeros((), jnp.int32))

    def reset(self) -> None:
        """Reset the metric, in place."""
        self.total.set_value(jnp.zeros((), jnp.float32))
        self.count.set_value(jnp.zeros((), jnp.int32))

    def update(self, mask: jax.Array | None = None, **kwargs: Any) -> None:
        """Add values, in place.

        Args:
            mask: True or 1 for a value that counts, False or 0 for one that is excluded. Its shape broadcasts to the
                shape of the values.
            **kwargs: the values, passed by the name `argname`: an array of any shape, or a number.

        Raises:
            MetricArgumentError: if the values are missing.
            LiftArgumentError: if there is a mask, and the values are a number.
        """
        values = self._value(kwargs, self.argname)
        if mask is None:
            values = to_reduction_dtype(values)
            self._add(values.sum(), values.size)
            return
        if not is_array(values):
            where = f"{type(self).__name__}.update"
            what = Expected("an array of values, as there is a `mask`", given=values)
            raise LiftArgumentError(where, what, "Pass `jnp.asarray(values)`, or no mask.", option="mask")
        # Half precision cannot count beyond a few hundred, so the mask is converted as well.
        weights = jnp.broadcast_to(to_reduction_dtype(mask), values.shape)  # so that their sum counts each value
        self._add((to_reduction_dtype(values) * weights).sum(), weights.sum())

    def _add(self, total: Any, count: Any) -> None:
        for variable, more in ((self.total, total), (self.count, count)):
            old = variable.get_value()
            variable.set_value(old + jnp.asarray(more).astype(old.dtype))

    def compute(self) -> jax.Array:
        """Return the mean.

        Returns:
            An array of shape `()` and dtype `float32`; NaN if there are no values.
        """
        return self.total.get_value() / jnp.asarray(self.count.get_value(), jnp.float32)


class Accuracy(Average):
    """The fraction of correct predictions.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> accuracy = nnx.metrics.Accuracy()
        >>> accuracy.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
        >>> accuracy.compute()
        Array(0.5, dtype=float32)

    Args:
        threshold: for two classes, the smallest score that counts as positive; None for more classes.
        *args: passed to `Average`.
        **kwargs: passed to `Average`.

    Raises:
        MetricArgumentError: if the threshold is not a float.
    """

    threshold: float | None

    def __init__(self, threshold: float | None = None, *args: Any, **kwargs: Any) -> None:
        if not isinstance(threshold, float | None):
            fix = "Write `Accuracy(threshold=0.5)` for two classes, `Accuracy()` for several."
            raise MetricArgumentError("Accuracy", Expected("a float", given=threshold), fix, option="threshold")
        self.threshold = threshold
        super().__init__(*args, **kwargs)

    def update(self, *, logits: jax.Array, labels: jax.Array, mask: jax.Array | None = None, **_: Any) -> None:  # type: ignore[override]  # it names its arguments
        """Add predictions, in place.

        Args:
            logits: one score for each class, of shape `(..., classes)`; with a threshold, of the shape of the labels.
            labels: the correct classes, of dtype `int32` (`int64` too, in 64-bit mode or from NumPy).
            mask: True or 1 for a prediction that counts, False or 0 for one that is excluded. Its shape broadcasts to
                the shape of the labels.

        Raises:
            LiftArgumentError: if the labels are not integers, or the shapes do not match.
        """
        threshold = self.threshold
        several = threshold is None
        if logits.ndim != labels.ndim + several:
            expected = f"`logits` with {labels.ndim + several} axes for labels of shape {labels.shape}"
            what = Expected(expected, given=logits.shape)
            fix = "Give one score for each class, or a threshold: `Accuracy(threshold=0.5)`."
            raise LiftArgumentError("Accuracy.update", what, fix, option="logits")
        if labels.dtype not in (jnp.int32, np.int32, np.int64):
            what = Expected("integers, which are indices of classes", given=labels.dtype)
            raise LiftArgumentError("Accuracy.update", what, "Pass `labels.astype(jnp.int32)`.", option="labels")
        guessed = logits.argmax(axis=-1) if threshold is None else logits >= threshold
        super().update(mask=mask, **{self.argname: guessed == labels})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """The result of `Welford`.

    Attributes:
        mean: the mean.
        standard_error_of_mean: the standard deviation divided by the square root of the number of values.
        standard_deviation: the population standard deviation.
    """

    mean: jax.Array
    standard_error_of_mean: jax.Array
    standard_deviation: jax.Array


class Welford(Metric):
    """The mean and standard deviation of all values, in one pass.

    The algorithm is from B. P. Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products"
    (1962), in the form for batches of Chan et al. (1979).

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> loss = nnx.metrics.Welford()
        >>> loss.update(values=jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> float(loss.compute().mean), float(loss.compute().standard_deviation)
        (2.5, 1.1180340051651)

    Args:
        argname: the name of the keyword argument of `update` that holds the values.

    Attributes:
        count: the number of values, a `MetricState` of dtype `int32`.
        mean: their mean, of dtype `float32`.
        m2: the sum of their squared distances from the mean, of dtype `float32`.
    """

    argname: str
    count: MetricState[jax.Array]
    mean: MetricState[jax.Array]
    m2: MetricState[jax.Array]

    def __init__(self, argname: str = "values") -> None:
        self.argname = argname
        self.count = MetricState(jnp.zeros((), jnp.int32))
        self.mean = MetricState(jnp.zeros((), jnp.float32))
        self.m2 = MetricState(jnp.zeros((), jnp.float32))

    def reset(self) -> None:
        """Reset the metric, in place."""
        self.count.set_value(jnp.zeros((), jnp.int32))
        self.mean.set_value(jnp.zeros((), jnp.float32))
        self.m2.set_value(jnp.zeros((), jnp.float32))

    def update(self, **kwargs: Any) -> None:
        """Add values, in place.

        Args:
            **kwargs: the values, passed by the name `argname`: an array of any shape, or a number.

        Raises:
            MetricArgumentError: if the values are missing.
        """
        values = to_reduction_dtype(self._value(kwargs, self.argname))
        before, old_mean = self.count.get_value(), self.mean.get_value()
        after = before + values.size
        with jax.numpy_dtype_promotion("standard"):  # counts are integers, and values may have any dtype
            distance = values.mean() - old_mean
            spread = values.var() * values.size
            mean = old_mean + distance * values.size / after
            m2 = self.m2.get_value() + spread + distance * distance * before * values.size / after
        self.count.set_value(after)
        self.mean.set_value(mean)
        self.m2.set_value(m2)

    def compute(self) -> Statistics:
        """Return the mean and the deviations.

        Returns:
            `Statistics` of arrays of shape `()`; the deviations are NaN if there are no values.
        """
        count = jnp.asarray(self.count.get_value(), jnp.float32)
        deviation = jnp.sqrt(self.m2.get_value() / count)
        return Statistics(self.mean.get_value(), deviation / jnp.sqrt(count), deviation)


class MultiMetric(Metric):
    """Several metrics, updated in one call.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> both = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average())
        >>> both.update(logits=jnp.eye(2), labels=jnp.array([0, 0]), values=jnp.array([1.0, 2.0]))
        >>> {name: float(value) for name, value in both.compute().items()}
        {'accuracy': 0.5, 'loss': 1.5}

    Args:
        **metrics: the metrics; each becomes an attribute.

    Raises:
        LiftArgumentError: if a metric has the name of a method.
    """

    _metric_names: tuple[str, ...]

    def __init__(self, **metrics: Any) -> None:
        taken = [name for name in metrics if hasattr(type(self), name)]
        if taken:
            what = f"{taken[0]!r} is the name of a method."
            raise LiftArgumentError("MultiMetric", what, "Give the metric another name.", option=taken[0])
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def _metrics(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._metric_names}

    def reset(self) -> None:
        """Reset all metrics, in place."""
        for metric in self._metrics().values():
            metric.reset()

    def update(self, **updates: Any) -> None:
        """Update all metrics, in place.

        Args:
            **updates: the arguments for each metric. `mask` may be one mask for all metrics, or a dict of masks by
                metric name; metrics that the dict does not name get no mask.
        """
        given = "mask" in updates
        mask = updates.pop("mask", None)
        for name, metric in self._metrics().items():
            mine = mask.get(name) if isinstance(mask, dict) else mask
            metric.update(**updates, **({"mask": mine} if given and mine is not None else {}))

    def compute(self) -> dict[str, Any]:
        """Return the values of all metrics, by name."""
        return {name: metric.compute() for name, metric in self._metrics().items()}

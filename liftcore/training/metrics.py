"""Metrics: sums over the examples of many batches, and the values that they give in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ..caches import bounded
from ..calls import call_user, refused
from ..errors import Expected, LiftArgumentError, common_size
from ..nn.layer import accumulation_dtype
from ..statics import kept_with
from ..struct import PyTreeNode, field
from ..texts import path_text
from ..typing import Array, ArrayLike, PyTree

__all__ = ["Accuracy", "Average", "Metric", "MultiMetric", "evaluate"]


def _zero() -> Array:
    return jnp.zeros((), jnp.float32)


_PLAIN = (FunctionType, type(jax.jit(_zero)))
"""The types of functions that hold nothing except closures and defaults, which JAX takes for constant too."""


class Metric(PyTreeNode):
    """The base class of metrics. A metric is immutable: a pytree of sums over the examples so far.

    A subclass declares its sums as fields, which begin with zeros, and defines `update` and `compute`. Because the sums
    of two parts of the data can be added, a metric can be carried through `jax.lax.scan`, merged with that of another
    batch, and reduced over devices. A sum keeps the dtype of its field; in float32, counts are exact up to 16 million.

    Example:
        >>> import jax.numpy as jnp
        >>> class Precision(Metric):
        ...     right: Any = 0.0
        ...     guessed: Any = 0.0
        ...
        ...     def update(self, *, labels, guesses, mask=True, **_):
        ...         guesses = guesses & mask
        ...         return self.merge(Precision((guesses & labels).sum(), guesses.sum()))
        ...
        ...     def compute(self):
        ...         return self.right / self.guessed
        >>> labels, guesses = jnp.array([True, True, False]), jnp.array([True, False, True])
        >>> float(Precision().update(labels=labels, guesses=guesses).compute())
        0.5
    """

    def update(self, **values: Any) -> Self:
        """Return the metric with the examples of one more batch.

        Args:
            **values: the values of a batch by name; a metric ignores those that it does not need. `mask` is True, 1 or
                a weight for each example that counts, and False or 0 for one that does not.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update")

    def compute(self) -> Any:
        """Return the value over all examples so far."""
        raise NotImplementedError(f"{type(self).__name__} must define compute")

    def merge(self, other: Self) -> Self:
        """Return the metric over the examples of both.

        Args:
            other: a metric with the same structure, of other examples.

        Raises:
            LiftArgumentError: if it has another structure.
        """
        treedef: Any = jax.tree.structure(self)
        if treedef != jax.tree.structure(other):
            raise LiftArgumentError(
                f"{type(self).__name__}.merge",
                Expected(f"a metric like this {type(self).__name__}", given=other),
                "Create both in the same way.",
            )
        merged: Self = jax.tree.map(_added, self, other)
        return merged

    def reduce(self, axis_name: Any) -> Self:
        """Return the metric over the examples of all devices, or of all elements of a mapped axis.

        It is needed where a function sees only a part of a batch: in `shard_map`, `pmap` and `vmap`. In `jax.jit`, the
        sums over sharded arrays include all devices anyway.

        Args:
            axis_name: the name of the axis, or several, as for `jax.lax.psum`.
        """
        return jax.lax.psum(self, axis_name)  # type: ignore[no-any-return, no-untyped-call]

    def reset(self) -> Self:
        """Return the metric of no examples."""
        empty: Self = jax.tree.map(jnp.zeros_like, self)
        return empty


class Average(Metric):
    """The mean of all values, or their mean weighted by a mask.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = Average("loss").update(loss=jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> loss = loss.update(loss=jnp.array([[3.0, 2.0], [1.0, 0.0]]), mask=jnp.array([True, False]))
        >>> float(loss.compute())
        2.5

    Attributes:
        name: the name of the values in `update` (static).
        total: the sum of the values, or of their products with the mask.
        weight: the number of values, or the sum of the mask.
    """

    name: str = field(pytree_node=False, default="values")
    total: Any = field(default_factory=_zero)
    weight: Any = field(default_factory=_zero)

    def update(self, *, mask: ArrayLike | None = None, **values: Any) -> Self:
        """Return the average with more values.

        Args:
            mask: True, 1 or a weight for values that count, False or 0 for those that do not: of the shape of the
                values, or of its first axes.
            **values: an array of any shape by the name of this metric. Other names are ignored.

        Raises:
            LiftArgumentError: if there are no values of this name, or the mask has other axes; or if the values are
                complex and the sum is not.
        """
        where = f"{type(self).__name__}.update"
        if self.name not in values:
            wrong = Expected(f"values by the name `{self.name}`", tuple(values), words=", ".join(values) or "none")
            first = next(iter(values), "loss")
            fix = f'Write `update({self.name}=…)`, or name the metric after the values: `Average("{first}")`.'
            raise LiftArgumentError(where, wrong, fix, option=self.name)
        found = _wide(values[self.name])
        if jnp.iscomplexobj(found) and not jnp.iscomplexobj(self.total):
            what = f'"{self.name}" is complex, but the sum is {jnp.result_type(self.total)}, and would lose a part.'
            fix = f'Begin with a complex sum: `Average("{self.name}", total=jnp.zeros((), jnp.complex64))`.'
            raise LiftArgumentError(where, what, fix, option="total", given=found.dtype)
        weights = jnp.broadcast_to(_mask_like(f"{where}, mask", mask, found), found.shape)
        kept = jnp.where(weights == 0, 0, found)  # a masked NaN does not count either
        return self.merge(self.replace(total=(kept * weights).sum(), weight=weights.sum()))

    def compute(self) -> Array:
        """Return the mean, of shape `()`; NaN if there are no values."""
        return jnp.asarray(self.total) / jnp.asarray(self.weight)


class Accuracy(Average):
    """The fraction of correct predictions.

    Example:
        >>> import jax.numpy as jnp
        >>> accuracy = Accuracy().update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
        >>> float(accuracy.compute())
        0.5

    Attributes:
        threshold: for two classes, the smallest score that counts as positive; None for one score for each class
            (static).
    """

    threshold: float | None = field(pytree_node=False, default=None, kw_only=True)

    def update(self, *, mask: ArrayLike | None = None, **values: Any) -> Self:
        """Return the accuracy with more predictions.

        Args:
            mask: which predictions count, as for `Average`.
            **values: `logits`, one score for each class, of shape `(..., classes)`, or, with a threshold, of the shape
                of the labels; and `labels`, integers. Other names are ignored.

        Raises:
            LiftArgumentError: if one of the two is missing, or the shapes do not fit.
        """
        absent = [name for name in ("logits", "labels") if name not in values]
        if absent:
            what = Expected("`logits` and `labels`", tuple(values), words=", ".join(values) or "none")
            raise LiftArgumentError("Accuracy.update", what, f"Pass `{absent[0]}=…` too.", option=absent[0])
        logits, labels = jnp.asarray(values["logits"]), jnp.asarray(values["labels"])
        guessed = logits.argmax(-1) if self.threshold is None else logits >= self.threshold
        if guessed.shape != labels.shape:
            expected = labels.shape if self.threshold is not None else f"{(*labels.shape, 'classes')}".replace("'", "")
            fix = "If labels are vectors, pass `labels.argmax(-1)`. With two classes, `Accuracy(threshold=0.5)`."
            raise LiftArgumentError(
                "Accuracy.update",
                Expected(f"logits of shape {expected} for labels of shape {labels.shape}", given=logits.shape),
                fix,
            )
        return super().update(mask=mask, **{self.name: guessed == labels})


class MultiMetric(Metric):
    """Several metrics, updated in one call.

    Example:
        >>> import jax.numpy as jnp
        >>> both = MultiMetric({"accuracy": Accuracy(), "loss": Average("loss")})
        >>> both = both.update(logits=jnp.eye(2), labels=jnp.array([0, 0]), loss=jnp.array([1.0, 2.0]))
        >>> {name: float(value) for name, value in both.compute().items()}
        {'accuracy': 0.5, 'loss': 1.5}

    Attributes:
        metrics: the metrics by name.
    """

    metrics: dict[str, Any]

    def update(self, **values: Any) -> Self:
        """Return all metrics with one more batch.

        Args:
            **values: the values for all metrics by name, and a `mask` for all of them.
        """
        return self.replace(metrics={name: metric.update(**values) for name, metric in self.metrics.items()})

    def compute(self) -> dict[str, Any]:
        """Return the values of all metrics by name."""
        return {name: metric.compute() for name, metric in self.metrics.items()}


def evaluate(
    fn: Callable[..., Any],
    state: PyTree,
    batches: Iterable[Any],
    metrics: Metric | None = None,
    *,
    jit: Callable[..., Any] = jax.jit,
) -> Any:
    """Return the metrics of a model over all examples of a data set, whose last batch may be short.

    A batch that is shorter than the first one is filled up with its last example, and the filling is masked. So one
    compiled program serves all batches, and every example counts once. The result is exact if `fn` treats each example
    by itself, as a model does that is not training.

    Example:
        >>> import jax.numpy as jnp
        >>> def measure(weight, x, y):
        ...     return {"error": (weight * x - y) ** 2}
        >>> x = jnp.arange(5.0)
        >>> found = evaluate(measure, 2.0, [(x[i : i + 2], x[i : i + 2]) for i in (0, 2, 4)])
        >>> float(found["error"]) == float(jnp.mean(x**2))
        True

    Args:
        fn: called as `fn(state, *batch)` if a batch is a tuple, else as `fn(state, batch)`. It returns a dict of values
            for the `update` of the metrics, each with the examples on its first axis; and perhaps a `mask` of parts of
            examples, such as tokens. Define it once, outside of loops: a plain function is compiled once, but a method,
            a partial or another callable in each call of `evaluate`, because what it holds may change.
        state: anything that `jit` takes: a `TrainState`, variables, or a model.
        batches: the batches: pytrees of arrays with the examples on their first axis.
        metrics: the metrics. By default, the `Average` of each value that `fn` returns.
        jit: the transformation that compiles: `nnx_like.jit` for objects, `equinox_like.filter_jit` for modules with
            functions among their leaves.

    Returns:
        What `compute` of the metrics returns: by default, and for a `MultiMetric`, a dict of arrays of shape `()`.

    Raises:
        LiftArgumentError: if there is no batch, if `metrics` is no metric, or if `fn` does not return a dict of values
            for each example.
        AxisSizeError: if the arrays of a batch have different numbers of examples.
    """
    if metrics is not None and not hasattr(metrics, "reset"):
        fix = "Pass the data as one list of batches: `[(x, y)]`."
        raise LiftArgumentError("evaluate", Expected("a metric", given=metrics), fix, option="metrics")
    compiled, size, total = _program(fn, jit), 0, metrics
    empty = None if metrics is None else metrics.reset()
    for batch in batches:
        if not (count := _examples(batch)):
            continue
        size = max(size, count)
        found = compiled(state, empty, _filled(batch, count, size), count)
        total = found if total is None else total.merge(found)
    if total is None or not size:
        raise LiftArgumentError(
            "evaluate, batches", "there is no example.", "Pass at least one batch.", option="batches"
        )
    return total.compute()


def _program(fn: Callable[..., Any], jit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function: it is kept with a plain function, but what else is called may change in between."""
    if not isinstance(fn, _PLAIN):
        if callable(fn):
            jit(fn)  # raises the error of `jit` for what the function holds
        return _compiled(fn, jit)
    equals: Any = type(jit).__eq__
    if equals is not object.__eq__:  # equal ones, such as the methods of one object, may differ later
        return _compiled(fn, jit)
    plain: Any = fn  # a jitted function has attributes too
    program: Callable[..., Any] = kept_with(plain, _programs)(fn, jit)
    return program


def _programs() -> Callable[..., Any]:
    return bounded(8)(_compiled)


def _compiled(fn: Callable[..., Any], jit: Callable[..., Any]) -> Callable[..., Any]:
    def measured(state: PyTree, empty: Metric | None, batch: Any, count: Array) -> Metric:
        size = _examples(batch)
        args = batch if type(batch) is tuple else (batch,)
        try:
            values = call_user("evaluate", fn, state, *args)
        except TypeError as error:
            if args is not batch and refused(fn, (state, batch), {}):
                error.add_note("Only a tuple is passed as several arguments. Pass a list of tuples: `[(x, y)]`.")
            raise
        _check_values(values, size)
        values = {**values, "mask": _valid(values.get("mask"), jnp.arange(size) < count)}
        names = [name for name in values if name != "mask"]
        metrics = MultiMetric({name: Average(name) for name in names}) if empty is None else empty
        return metrics.update(**values)

    return jit(measured)  # type: ignore[no-any-return]


def _valid(mask: ArrayLike | None, valid: Array) -> Array:
    """Return the mask of a batch without the examples that fill it up."""
    if mask is None:
        return valid
    mask = jnp.asarray(mask)
    return mask * _mask_like("evaluate, mask", valid, mask).astype(mask.dtype)


def _check_values(values: Any, size: int) -> None:
    """Check that there is a value for each example, and not, for instance, their mean."""
    if not isinstance(values, Mapping):
        raise LiftArgumentError(
            "evaluate",
            Expected("the function to return a dict of values for each example", given=values),
            'For example, `return {"loss": losses}`.',
        )
    for name, value in values.items():
        if np.shape(value)[:1] != (size,):
            raise LiftArgumentError(
                "evaluate",
                Expected(f'a value of "{name}" for each of {size} examples', given=value),
                "Leave out `.mean()`: the mean is taken over all examples.",
            )


def _examples(batch: Any) -> int:
    """Return the number of examples in a batch."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(sizes) == 1 and (size := next(iter(sizes))):  # names of leaves are for errors only
        return int(size[0])
    leaves = jax.tree.leaves_with_path(batch)
    shapes = [(path_text(path) or ".", np.shape(leaf), 0) for path, leaf in leaves]
    return common_size("evaluate, a batch", shapes, fix="Give arrays with the examples on their first axis.") or 0


def _filled(batch: Any, count: int, size: int) -> Any:
    """Return a batch with a number of examples: its last one fills it up."""
    if count == size:
        return batch
    rows = np.minimum(np.arange(size), count - 1)
    return jax.tree.map(lambda leaf: leaf[rows], batch)


def _added(one: Any, other: Any) -> Any:
    with jax.numpy_dtype_promotion("standard"):  # a sum that begins with a float may be one of integers
        return jnp.asarray(one + other).astype(jnp.result_type(one))


def _wide(values: Any) -> Array:
    """Return values as floating-point numbers of float32 at least."""
    found: Array = jnp.asarray(values)
    return found.astype(accumulation_dtype(found.dtype))


def _mask_like(where: str, mask: ArrayLike | None, values: Array) -> Array:
    """Return a mask with as many axes as some values: it has the first of their axes."""
    if mask is None:
        return jnp.ones(values.shape, values.real.dtype)
    found = jnp.asarray(mask)
    if found.shape != values.shape[: found.ndim]:
        raise LiftArgumentError(
            where,
            Expected(f"a mask of the first axes of {values.shape}", given=found.shape),
            "Pass one number for each value, or for each example.",
            option="mask",
        )
    return _wide(found).reshape(*found.shape, *(1,) * (values.ndim - found.ndim))

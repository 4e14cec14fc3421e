"""The arithmetic of a training step: updates added to parameters, and averages that follow values."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError, shown
from ..filters import Parameters, to_predicate
from ..nn.layer import accumulation_dtype
from ..nn.masks import broadcasts
from ..struct import PyTreeNode, field
from ..texts import path_text
from ..typing import Array, ArrayLike, Filter, PyTree, Shape
from .parts import check_like, inserted, taken

__all__ = ["ExponentialMovingAverage", "apply_updates", "update_average"]


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


# --- averages of variables --------------------------------------------------------------------------------------------


class ExponentialMovingAverage(PyTreeNode):
    """Averages of variables: each update computes `decay * average + (1 - decay) * value`. The object is immutable.

    B. T. Polyak and A. B. Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992), with exponentially
    decaying weights. The correction for averages that begin at zero is from D. Kingma and J. Ba, "Adam" (2015).

    Example:
        >>> import jax.numpy as jnp
        >>> variables = {"params": {"w": jnp.array([0.0, 8.0])}, "batch_stats": {"mean": jnp.array(3.0)}}
        >>> ema = ExponentialMovingAverage.create(variables, decay=0.75)
        >>> moved = {"params": {"w": jnp.array([4.0, 0.0])}, "batch_stats": {"mean": jnp.array(5.0)}}
        >>> ema = ema.update(moved)
        >>> ema.apply_to(moved)["params"], float(ema.apply_to(moved)["batch_stats"]["mean"])
        ({'w': Array([1., 6.], dtype=float32)}, 5.0)

    Attributes:
        averages: the averages, as a tree without the other variables. They have at least the precision of float32: a
            smaller dtype would lose steps of size `1 - decay`.
        weight: with `debias`, the sum of the weights of all values so far; else None.
        decay: the weight of the old average (static).
        filter: the filter of the averaged variables (static).
    """

    averages: Any
    weight: Any
    decay: float = field(pytree_node=False)
    filter: Filter = field(pytree_node=False)

    @classmethod
    def create(cls, variables: PyTree, decay: float, only: Filter = "params", debias: bool = False) -> Self:
        """Return the averages before the first update.

        Args:
            variables: `{collection: {module: {name: value}}}`, or another pytree of parameters.
            decay: the weight of the old average, at least 0 and less than 1.
            only: a filter of the variables to average.
            debias: whether the averages begin at zero and are divided by the sum of their weights, so that the values
                of the untrained model have no weight. If false, the averages begin with these values.

        Raises:
            LiftArgumentError: if `decay` is no number in this range, or the filter matches nothing or a variable that
                is not floating-point.
        """
        where = "ExponentialMovingAverage.create"
        if not _is_decay(decay):
            what = Expected("a number that is at least 0 and below 1", given=decay)
            raise LiftArgumentError(where, what, "For example, `decay=0.999`.", option="decay")
        filter = to_predicate(only)  # a predicate is hashable, as static fields must be
        part = taken(f"{where}, only", variables, filter)
        found = Parameters.of_variables(part)
        for path, value in zip(found.paths, found.values, strict=True):
            _check_floating(f"{where}, {path_text(path)}", value)
        weight = 0 if debias else 1
        wide = jax.tree.map(
            lambda value: jnp.asarray(value, accumulation_dtype(jnp.asarray(value).dtype)) * weight, part
        )
        return cls(wide, jnp.zeros(()) if debias else None, float(decay), filter)

    def update(self, variables: PyTree, decay: Any = None) -> Self:
        """Return the averages after one more step.

        Args:
            variables: all variables, or at least the averaged ones.
            decay: another weight of the old average for this step, such as
                `jnp.minimum(0.999, (1 + step) / (10 + step))` to follow the first steps quickly. With 1, the averages
                stay the same.

        Raises:
            LiftArgumentError: if the filter matches other variables than the averaged ones, if a shape differs, or if
                `decay` is not a number from 0 to 1.
        """
        kept = self.decay if decay is None else decay
        check_decay("ExponentialMovingAverage.update, decay", kept)
        part = taken("ExponentialMovingAverage.update", variables, self.filter)
        check_like("ExponentialMovingAverage.update", part, self.averages, "Give variables like those at `create`.")

        def moved(average: Any, value: Any) -> Any:
            return update_average(average, value, kept)

        weight = None if self.weight is None else moved(self.weight, 1.0)
        return self.replace(averages=jax.tree.map(moved, self.averages, part), weight=weight)

    def apply_to(self, variables: PyTree) -> PyTree:
        """Return the variables with the averages in place of the averaged ones, in the dtypes of the variables.

        Args:
            variables: all variables. With `debias`, they are returned unchanged before the first update.
        """
        part = taken("ExponentialMovingAverage.apply_to", variables, self.filter)
        check_like("ExponentialMovingAverage.apply_to", part, self.averages, "Give variables like those at `create`.")

        def average(value: Any, average: Any) -> Any:
            if self.weight is not None:
                wide = jnp.asarray(value, average.dtype)
                average = jnp.where(self.weight > 0, average / jnp.where(self.weight > 0, self.weight, 1), wide)
            return average.astype(jnp.asarray(value).dtype)

        return inserted(variables, jax.tree.map(average, part, self.averages))


def _is_decay(value: Any) -> bool:
    try:
        return bool(0 <= value < 1)
    except (TypeError, ValueError):  # a text, or an array of several numbers
        return False


def _check_floating(where: str, value: PyTree) -> None:
    for leaf in jax.tree.leaves(value):
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact):
            what = f"{shown(leaf)} is not floating-point, and cannot be averaged."
            raise LiftArgumentError(
                where, what, 'Exclude it, for example with `only="params"`.', option="only", given=leaf
            )

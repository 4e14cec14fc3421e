"""Gradients of a large batch, computed on one part of it after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import AxisSizeError, CarryTypeError, LiftArgumentError, check_function, shown
from ..filters import Any as AnyOf
from ..filters import DenyList, to_predicate
from ..lift.eval_shape import eval_shape
from ..lift.grad import value_and_grad
from ..lift.scan import scan
from ..nn.dtypes import accumulation_dtype
from ..runners.axes import Out, broadcast, flatten_axes
from ..typing import Filter, InOutAxes, PyTree

__all__ = ["accumulate_gradients"]

_WHERE = "accumulate_gradients"


def accumulate_gradients(
    fn: Callable[..., Any],
    steps: int,
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    in_axes: InOutAxes = 0,
    stacked: Filter = "intermediates",
) -> Callable[..., Any]:
    """`liftcore.value_and_grad` over a batch in parts: the mean of the values and of the gradients of its microbatches.

    It is a `liftcore.scan` of `liftcore.value_and_grad`, so that the activations of only one microbatch are in memory.
    What the function writes, batch statistics, say, goes on from one microbatch to the next; each microbatch draws
    keys of its own, except from the stream `params`. Where there are neither, the result is that of the whole batch
    for a function that is a mean over it.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> def loss(scope, x):
        ...     return jnp.mean(liftcore.nn.dense(scope, x, 2) ** 2)
        >>> x = jax.random.normal(jax.random.key(1), (6, 3))
        >>> model = accumulate_gradients(loss, steps=3)
        >>> (value, grads), variables = liftcore.init(model)(jax.random.key(0), x)
        >>> whole = jax.grad(liftcore.apply(loss))(variables, x)
        >>> bool(jnp.allclose(grads["params"]["kernel"], whole["params"]["kernel"], atol=1e-5))
        True

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with a microbatch; returns a number, or with `has_aux` that and
            something else.
        steps: the number of microbatches. It must divide the number of batch elements.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated; what the second is for each
            microbatch comes out stacked on a new first axis.
        wrt: a filter of the variables that are differentiated with respect to, such as the `trainable` of a
            `TrainState`.
        in_axes: for each argument after the scopes its batch axis, or None for an argument that all microbatches
            share; a pytree prefix. Microbatch `i` has the batch elements `i`, `i + steps`, `i + 2 * steps`, …: of a
            batch that is spread over devices each one keeps a part of every microbatch. Keyword arguments are shared.
        stacked: a filter of variables that each microbatch makes anew, such as those that a module sows. They come out
            stacked on a new first axis.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the value and the gradients, `{collection: {module: {name:
        …}}}`. They are summed up in float32 at least, and come out in the dtypes of the variables.

    Raises:
        AxisSizeError: when called, where `steps` does not divide the size of a batch axis.
    """
    check_function(_WHERE, fn)
    if not isinstance(steps, int) or steps < 1:
        what = f"expected a number of microbatches, 1 or more, given {shown(steps)}."
        raise LiftArgumentError(f"{_WHERE}, steps", what, "Write `steps=4`, say.")
    differentiated = value_and_grad(fn, has_aux=has_aux, wrt=wrt)

    def part(scopes: Any, batch: _Batch, sliced: Any, whole: Any, kwargs: Any) -> tuple[PyTree, Any]:
        value, grads = differentiated(scopes, *batch.joined(sliced, whole), **kwargs)
        value, aux = value if has_aux else (value, None)
        return (value, grads), aux

    def add(scopes: Any, sums: PyTree, sliced: Any, batch: _Batch, whole: Any, kwargs: Any) -> tuple[PyTree, Any]:
        now, aux = part(scopes, batch, sliced, whole, kwargs)
        return jax.tree.map(lambda total, one: total + one.astype(total.dtype), sums, now), aux

    over_all = scan(
        add,
        length=steps,
        in_axes=(0, broadcast, broadcast, broadcast),
        variable_broadcast=AnyOf("params", wrt),
        variable_carry=DenyList(stacked),
        variable_axes={to_predicate(stacked): Out(0)},
        split_rngs={"params": False, ...: True},
    )

    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _Batch.of(args, in_axes)
        sliced, whole = batch.parted(args, steps)
        types, _ = eval_shape(part)(scopes, batch, [leaf[0] for leaf in sliced], whole, kwargs)
        zero = jax.tree.map(_zero, types)
        try:
            sums, aux = over_all(scopes, zero, sliced, batch, whole, kwargs)
        except CarryTypeError as error:
            error.add_note("What microbatches make anew comes out of `accumulate_gradients(…, stacked=collection)`.")
            raise
        value, grads = jax.tree.map(lambda total, kind: (total / steps).astype(kind.dtype), sums, types)
        return ((value, aux) if has_aux else value), grads

    return lifted


class _Batch(NamedTuple):
    """The arguments of a call without their values, as no array that goes through lifts: what is sliced, and how.

    Attributes:
        treedef: their structure.
        axes: the batch axis of each leaf; None for one that is shared.
    """

    treedef: Any
    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, args: Sequence[Any], in_axes: InOutAxes) -> _Batch:
        axes = flatten_axes(f"{_WHERE}, in_axes", in_axes, tuple(args))
        return cls(jax.tree.structure(tuple(args)), tuple(axes))

    def parted(self, args: Sequence[Any], steps: int) -> tuple[list[Any], list[Any]]:
        """The leaves with a batch axis, each with the microbatches on a new first axis, and the other leaves."""
        pairs = list(zip(jax.tree.leaves_with_path(tuple(args)), self.axes, strict=True))
        sliced = [_parted(path, leaf, axis, steps) for (path, leaf), axis in pairs if axis is not None]
        return sliced, [leaf for (_, leaf), axis in pairs if axis is None]

    def joined(self, sliced: Sequence[Any], whole: Sequence[Any]) -> Any:
        """The arguments of one microbatch."""
        ones, others = iter(sliced), iter(whole)
        return self.treedef.unflatten([next(others) if axis is None else next(ones) for axis in self.axes])


def _zero(kind: Any) -> Any:
    """What the sum of gradients of a type begins with: it lies on devices as they do."""
    return jnp.zeros_like(kind, dtype=accumulation_dtype(kind.dtype))


def _parted(path: Any, leaf: Any, axis: int, steps: int) -> Any:
    where = f"{_WHERE}, args{jax.tree_util.keystr(path)}"
    shape = np.shape(leaf)
    if not -len(shape) <= axis < len(shape):
        fix = "Give the batch axis of each argument by `in_axes`: None for one that all microbatches share."
        raise AxisSizeError(where, f"{shown(leaf)} has no batch axis {axis}.", fix)
    axis %= len(shape)
    if shape[axis] % steps:
        what = f"{shape[axis]} batch elements do not make {steps} microbatches of equal size."
        raise AxisSizeError(where, what, "Choose `steps` such that it divides the size of the batch.")
    split = jnp.reshape(leaf, (*shape[:axis], shape[axis] // steps, steps, *shape[axis + 1 :]))
    return jnp.moveaxis(split, axis + 1, 0)

"""Gradients of each example of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import meta
from ..errors import check_function
from ..lift.grad import value_and_grad
from ..lift.vmap import vmap
from ..pipeline.packing import transformation
from ..pipeline.use import Body
from ..scopes.lifts import Captured
from ..typing import Filter, InOutAxes, PyTree

__all__ = ["per_example_gradients"]

_AXIS = "liftcore.training.examples"


def per_example_gradients(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    in_axes: InOutAxes = 0,
    axis_name: Any = _AXIS,
) -> Callable[..., Any]:
    """`liftcore.value_and_grad` for each example of a batch: values and gradients have a first axis for the examples.

    It is a `liftcore.vmap` of `liftcore.value_and_grad`. Each example draws keys of its own, except from the stream
    `params`. All examples read the same variables; of what they write, batch statistics, say, the mean is kept, and of
    numbers that are not of floating point the largest.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> def loss(scope, x):
        ...     return jnp.sum(liftcore.nn.dense(scope, x, 1))
        >>> model = per_example_gradients(loss)
        >>> (values, grads), variables = liftcore.init(model)(jax.random.key(0), jnp.ones((6, 3)))
        >>> values.shape, grads["params"]["kernel"].shape, variables["params"]["kernel"].shape
        ((6,), (6, 3, 1), (3, 1))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with one example, without its batch axis; returns a number, or with
            `has_aux` that and something else. For a layer that wants a batch axis write `x[None]` in it.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated; the second comes out stacked.
        wrt: a filter of the variables that are differentiated with respect to, such as the `trainable` of a
            `TrainState`.
        in_axes: for each argument after the scopes its batch axis, or None for an argument that all examples share; a
            pytree prefix. Keyword arguments that are arrays have it as their first axis.
        axis_name: a name for the axis of the examples, for collectives such as `jax.lax.pmean` in `fn`.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the values and the gradients. A gradient in a box has a name
        more: None, for the axis of the examples.

    Raises:
        AxisSizeError: when called, where sizes disagree or there is no batch axis.
    """
    check_function("per_example_gradients", fn)
    over_batch = vmap(
        _averaging(value_and_grad(fn, has_aux=has_aux, wrt=wrt), axis_name),
        in_axes,
        axis_name=axis_name,
        variable_axes={True: None},
        split_rngs={"params": False, ...: True},
    )

    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        values, grads = over_batch(scopes, *args, **kwargs)
        return values, meta.add_axis(grads, 0, {})

    return lifted


def _averaging(fn: Callable[..., Any], axis_name: Any) -> Callable[..., Any]:
    """A function of scopes that writes what all elements of a mapped axis together write."""

    def transform(body: Body, variable_groups: Sequence[PyTree], rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        result, groups = body(variable_groups, rng_groups, *args, **kwargs)
        written = jax.tree.map(lambda leaf: _together(leaf, axis_name), groups[0].values)
        return result, (groups[0]._replace(values=written), *groups[1:])

    return transformation(transform, [True], [True, Captured()], [True], "per_example")(fn)


def _together(leaf: Any, axis_name: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jax.lax.pmean(leaf, axis_name)  # type: ignore[no-untyped-call]
    return jax.lax.pmax(leaf, axis_name)  # type: ignore[no-untyped-call]

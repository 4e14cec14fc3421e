"""Gradients for each example of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import meta
from ..calls import boundary
from ..errors import check_function
from ..lift.grad import value_and_grad
from ..lift.vmap import vmap
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..scopes.lifts import Captured
from ..typing import Filter, InOutAxes, PyTree
from .dynamic_scale import DynamicScale, paired, scaled, unscaled

__all__ = ["per_example_gradients"]

_WHERE, _AXIS = "per_example_gradients", "liftcore.training.examples"


def per_example_gradients(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    in_axes: InOutAxes = 0,
    kw_axes: InOutAxes = 0,
    axis_name: Any = _AXIS,
    scale: DynamicScale | None = None,
) -> Callable[..., Any]:
    """Lift `value_and_grad` for each example of a batch: values and gradients have a first axis for the examples.

    This is a `liftcore.vmap` of `liftcore.value_and_grad`. Each example draws keys of its own, except from the RNG
    stream `params`. All examples read the same variables. If they write variables, such as batch statistics, the mean
    over the examples is kept; for variables that are not floating-point, the maximum. This is also true of sown
    values: to get those of each example, return them with `has_aux`. (`accumulate_gradients` stacks sown values.)

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> def loss(scope, x):
        ...     return jnp.sum(liftcore.nn.dense(scope, x, 1))
        >>> model = per_example_gradients(loss)
        >>> (values, grads), variables = liftcore.init(model)(jax.random.key(0), jnp.ones((6, 3)))
        >>> values.shape, grads["params"]["kernel"].shape, variables["params"]["kernel"].shape
        ((6,), (6, 3, 1), (3, 1))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with one example, without its batch axis; returns a number or, with
            `has_aux`, a pair of a number and anything else. For layers that need a batch axis, write `x[None]` in it.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated; the second is returned stacked
            over the examples.
        wrt: a filter of the variables to differentiate with respect to, such as the `trainable` of a `TrainState`.
        in_axes: the batch axis of each argument after the scopes, or None for an argument that all examples share; a
            pytree prefix.
        kw_axes: the same for keyword arguments, as a pytree prefix of their dict. Values that are not arrays are
            shared.
        axis_name: a name for the axis of the examples, for collectives such as `jax.lax.pmean` in `fn`.
        scale: a `DynamicScale` that scales the value of each example before it is differentiated.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the values and the gradients. The names of a boxed gradient
        begin with None, for the axis of the examples. With `scale`, it returns a `DynamicScaleResult`, as for one step:
        the scale changes once, and `finite` says whether the gradients of all examples are finite.

    Raises:
        AxisSizeError: when called, if sizes disagree or there is no batch axis.
    """
    check_function(_WHERE, fn)
    loss = fn if scale is None else scaled(scale, paired(_WHERE, fn) if has_aux else fn, has_aux)
    over_batch = vmap(
        _averaging(value_and_grad(loss, has_aux=has_aux, wrt=wrt), axis_name),
        in_axes,
        kw_axes=kw_axes,
        axis_name=axis_name,
        variable_axes={True: None},
        split_rngs={"params": False, ...: True},
    )

    @boundary
    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        out, grads = over_batch(scopes, *args, **kwargs)
        grads = meta.add_axis(grads, 0, {})
        return (out, grads) if scale is None else unscaled(scale, out, grads, has_aux)

    return lifted


def _averaging(fn: Callable[..., Any], axis_name: Any) -> Callable[..., Any]:
    """Return a function of scopes in which the values written along a mapped axis are reduced to one."""

    def transform(body: Body, variable_groups: Sequence[PyTree], rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        result, groups = body(variable_groups, rng_groups, *args, **kwargs)
        written = jax.tree.map(lambda leaf: _together(leaf, axis_name), groups[0].values)
        return result, (groups[0]._replace(values=written), *groups[1:])

    return transformation(transform, [True], [True, Captured()], [True], "per_example")(fn)


def _together(leaf: Any, axis_name: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jax.lax.pmean(leaf, axis_name)  # type: ignore[no-untyped-call]
    return jax.lax.pmax(leaf, axis_name)  # type: ignore[no-untyped-call]

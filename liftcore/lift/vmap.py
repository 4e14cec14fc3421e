"""Lifted `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..runners.axes import NO_AXES
from ..runners.mapping import Mapper, advice_for, over_elements
from ..typing import InOutAxes

__all__ = ["vmap"]

_ADVICE = advice_for("in all elements", ", as a shared variable needs")


def vmap(
    fn: Callable[..., Any],
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    *,
    kw_axes: InOutAxes = 0,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """`jax.vmap` for a function of scopes: each element has its own variables and keys, or shares them.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))
        >>> ensemble = liftcore.vmap(layer, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(ensemble)(jax.random.key(0), jnp.ones((5, 3)))
        >>> y.shape, variables["params"]["w"].shape
        ((5, 2), (5, 3, 2))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        in_axes: the axis to map over for each argument after the scopes, or None to pass the same value to all
            elements; a pytree prefix.
        out_axes: the axis of each result, or None for a result that is the same in all elements; a pytree prefix.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        axis_size: the number of elements; needed only if nothing is mapped.
        spmd_axis_name: the mesh axes over which the mapped axis is sharded, for `with_sharding_constraint` inside.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        AxisSizeError: when called, if sizes disagree or no size is known.
        LoopInvarianceError: when called, if a shared variable gets a value that differs between elements.
    """
    mapper = Mapper("vmap", _ADVICE, axis_name, spmd_axis_name)
    return over_elements(mapper, in_axes, out_axes, axis_size, kw_axes, variable_axes, split_rngs, metadata_params)(fn)

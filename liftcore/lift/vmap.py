"""Lifted `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..runners.axes import NO_AXES
from ..runners.elements import Mapper, over_elements
from ..scopes.lifts import Advice
from ..typing import InOutAxes

__all__ = ["vmap"]

_ADVICE = Advice(
    '`variable_axes={{"{}": 0}}`, or None for one value in all elements',
    '`split_rngs={{"{}": True}}`, or False for the same keys in all elements, as a shared variable needs',
)


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
    """`jax.vmap` for a function of scopes: each element has variables and keys of its own, or shares them.

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
        in_axes: for each argument after the scopes the axis to map over, or None for the same value in all elements; a
            pytree prefix.
        out_axes: the axis of each result, or None for one that is the same in all elements; a pytree prefix.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        axis_size: how many elements there are; needed only where nothing is mapped.
        spmd_axis_name: the axes of a mesh that the mapped axis lies on, for `with_sharding_constraint` inside.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are no arrays are passed
            on unchanged.
        variable_axes: for each filter of variables an axis, None (shared by the elements), or `In`, `Out`, `InOut`.
        split_rngs: for each filter of RNG streams whether elements draw different keys; or one bool for all.
        metadata_params: what boxes of variables (see `liftcore.meta`) are told of the axis that they gain, such as its
            name, `{PARTITION_NAME: "layers"}`; without one it is unnamed.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        AxisSizeError: when called, where sizes disagree or there is none.
        LoopInvarianceError: when called, where a shared variable gets a value that differs between elements.
    """
    mapper = Mapper("vmap", _ADVICE, axis_name, spmd_axis_name)
    return over_elements(mapper, in_axes, out_axes, axis_size, kw_axes, variable_axes, split_rngs, metadata_params)(fn)

"""`filter_pmap`: arrays are mapped over devices, and all other leaves are static."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

import liftcore
from liftcore import is_traceable
from liftcore.errors import check_function, name_of

from .calls import UNSET, given_options
from .functions import MISSING, FilteredFunction, filtered
from .jit import filter_jit
from .vmap import mapped

__all__ = ["filter_pmap"]


def filter_pmap(
    fun: Any = MISSING,
    *,
    in_axes: Any = UNSET,
    out_axes: Any = UNSET,
    axis_name: Any = None,
    axis_size: int | None = None,
    donate: str = "none",
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    variable_axes: Mapping[Any, Any] = MappingProxyType({}),
    split_rngs: Mapping[Any, bool] | bool = MappingProxyType({}),
    default: Any = UNSET,
    fn: Any = UNSET,
    args: Any = UNSET,
    kwargs: Any = UNSET,
    out: Any = UNSET,
) -> Any:
    """Apply `jax.pmap` to a function of any Python objects, under `filter_jit`, which caches the compiled program.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_pmap(lambda x, name: (2 * x, name))(jnp.ones((1, 3)), "device")
        (Array([[2., 2., 2.]], dtype=float32), 'device')

    Args:
        fun: the function, or any callable pytree. If it is left out, `filter_pmap(in_axes=…)` is a decorator.
        in_axes: a pytree prefix of the tuple of arguments, of axes, as in `filter_vmap`.
        out_axes: the same for the result.
        axis_name: the name of the axis, for collectives.
        axis_size: the size of the axis; needed only if no argument has the axis.
        donate: which buffers the results may reuse, as in `filter_jit`.
        devices: the devices to map over; by default all.
        backend: the platform to run on, such as `"cpu"`.
        variable_axes: for scopes: from filters of variables to the axis along which they are stacked, or None for
            variables that all devices share; see `liftcore.pmap`.
        split_rngs: for scopes: from filters of RNG streams to whether devices draw different keys.
        default: the older form of `in_axes`: a pytree prefix of axes for each argument. True means traced and the same
            on all devices, False means static.
        fn: the same for the arrays that the function holds; by default they are the same on all devices.
        args: the same for the first parameters, as a tuple with one prefix for each; it overrides `default`.
        kwargs: the same for parameters by name, as a dict; it holds whether they are passed by name or by position.
        out: the older name of `out_axes`.

    Returns:
        A function with the positional arguments of `fun`. It accepts keyword arguments only if one of `default`, `fn`,
        `args`, `kwargs` and `out` is given.

    Raises:
        LiftArgumentError: if axes are not a prefix, or an argument is passed by name and `in_axes` does not cover it.
    """
    axes = given_options(
        "filter_pmap",
        {"in_axes": in_axes, "out_axes": out_axes},
        default=default,
        fn=fn,
        args=args,
        kwargs=kwargs,
        out=out,
    )
    options = {
        **axes,
        "axis_name": axis_name,
        "axis_size": axis_size,
        "devices": None if devices is None else tuple(devices),
        "backend": backend,
        "variable_axes": dict(variable_axes),
        "split_rngs": dict(split_rngs) if isinstance(split_rngs, Mapping) else split_rngs,
    }
    if fun is MISSING:
        return filtered(filter_pmap, _call, fun, {**options, "donate": donate})
    check_function("filter_pmap", fun)
    traced = {name: _traced(spec) for name, spec in axes.items() if name in ("default", "args", "kwargs")}
    if "fn" in axes:
        traced["fn"] = FilteredFunction(_call, _traced(axes["fn"]), dict.fromkeys(options, is_traceable))
    return filter_jit(FilteredFunction(_call, fun, options), donate=donate, **traced)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function that returns whether a leaf with a given axis is traced.

    Attributes:
        axis: the axis, a bool, or a function from a leaf to one of these.
    """

    axis: Any

    def __call__(self, leaf: Any) -> bool:
        """Return whether a leaf is traced."""
        axis = self.axis(leaf) if callable(self.axis) else self.axis
        return is_traceable(leaf) if axis is None else axis is not False


def _traced(axes: Any) -> Any:
    """Return the options of `filter_jit` that correspond to the axes of `filter_pmap`."""
    return jax.tree.map(Traced, axes, is_leaf=lambda one: one is None)


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mapped(liftcore.pmap, f"filter_pmap({name_of(fun)})", fun, options, args, kwargs)

"""`pmap` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

import liftcore

from .decorating import MISSING, checked, numbered, title
from .guarding import check_brings_none
from .vmap import mapped

__all__ = ["pmap"]


def pmap(
    f: Callable[..., Any] = MISSING,
    *,
    axis_name: Hashable | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.pmap` for functions of objects: `vmap`, with one element per device.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))(nnx.Rngs(0).split(1))
        >>> nnx.pmap(lambda model, x: model(x), in_axes=(0, None))(model, jnp.ones(2)).shape
        (1, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        in_axes: the axis to map over, or None for a value that all devices share; a pytree prefix of the arguments. For
            an object, give one axis for all its variables, or a `StateAxes`.
        out_axes: the axis that results gain; a pytree prefix of the result.
        static_broadcasted_argnums: the numbers of arguments that are compile-time constants.
        devices: the devices to run on; by default all.
        backend: the platform to run on, such as `"cpu"`.
        axis_size: the number of elements; required only if no argument is mapped.
        donate_argnums: the numbers of arguments whose memory the results may reuse; it applies to arrays, not to
            objects.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The function, mapped. The errors are those of `vmap`.
    """
    options: dict[str, Any] = {"axis_name": axis_name, "devices": devices, "backend": backend, "axis_size": axis_size}
    if f is MISSING:
        return functools.partial(
            pmap,
            in_axes=in_axes,
            out_axes=out_axes,
            static_broadcasted_argnums=static_broadcasted_argnums,
            donate_argnums=donate_argnums,
            transform_metadata=transform_metadata,
            **options,
        )
    check_brings_none("pmap(", checked("pmap", f), f)
    static, _ = numbered(title("pmap", f), f, static_broadcasted_argnums, ())
    donated, _ = numbered(title("pmap", f), f, donate_argnums, ())
    lift = functools.partial(liftcore.pmap, donate_argnums=tuple(number + 1 for number in sorted(donated)))
    return mapped("pmap", lift, f, in_axes, out_axes, transform_metadata, options, static)

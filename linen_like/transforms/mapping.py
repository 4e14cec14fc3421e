"""`vmap` and other mappings: run a method of a module for each slice of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import liftcore
from liftcore.typing import InOutAxes

from ..lifting import Methods
from .options import lift_by_options

__all__ = ["map", "pmap", "shard_map", "vmap"]

Target = TypeVar("Target", bound=Callable[..., Any])


def vmap(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
    methods: Methods = None,
    *,
    kw_axes: InOutAxes = 0,
) -> Target:
    """`liftcore.vmap` for a module class, a method or a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> Ensemble = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> variables = Ensemble(features=2).init(jax.random.key(0), jax.numpy.ones((5, 3)))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'bias': (5, 2), 'kernel': (5, 3, 2)}}

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        in_axes: the axis to map over for each argument after the module, or None to pass the same value to all
            elements; a pytree prefix.
        out_axes: the axis of each result, or None for a result that is the same in all elements; a pytree prefix.
        axis_size: the number of elements; needed only if nothing is mapped.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        spmd_axis_name: the mesh axes over which the mapped axis is sharded, for `with_sharding_constraint` inside.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.vmap, locals(), prefix="Vmap")


def map(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    batch_size: int | None = None,
    methods: Methods = None,
) -> Target:
    """`liftcore.map` for a module class, a method or a function of a module of one argument.

    Example:
        >>> import jax, linen_like as nn
        >>> experts = nn.map(nn.Dense, {"params": 0}, {"params": True}, batch_size=2)(features=2)
        >>> variables = experts.init(jax.random.key(0), jax.numpy.ones((5, 3)))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'bias': (5, 2), 'kernel': (5, 3, 2)}}

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        batch_size: the number of elements that run at once, with `vmap`; by default 1.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.map, locals(), prefix="Map")


def pmap(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    donate_argnums: int | Iterable[int] = (),
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
    methods: Methods = None,
    *,
    kw_axes: InOutAxes = 0,
) -> Target:
    """`liftcore.pmap` for a module class, a method or a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> Replicated = nn.pmap(nn.Dense, {"params": None}, {"params": False}, axis_name="batch")
        >>> variables = Replicated(features=2).init(jax.random.key(0), jax.numpy.ones((1, 5, 3)))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'bias': (2,), 'kernel': (3, 2)}}

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        in_axes: the axis to map over for each argument after the module, or None to pass the same value to all devices;
            a pytree prefix. An argument with the axis None may be any Python value and is passed on unchanged, like
            `static_broadcasted_argnums` of `jax.pmap`.
        out_axes: the axis of each result; a pytree prefix.
        axis_size: the number of elements, one for each device; needed only if nothing is mapped.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        devices: the devices to run on; by default all of the backend.
        backend: the platform to run on, such as `"cpu"`.
        donate_argnums: the positions of arguments whose buffers the results may reuse. The call deletes their arrays.
            Positions count in the signature of `target`, where the module is 0. Arguments with the axis None, and
            variables, are not donated.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.pmap, locals(), prefix="Pmap")


def shard_map(
    target: Target,
    variable_specs: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, Any] | bool | str | tuple[str, ...] = liftcore.NO_AXES,
    *,
    mesh: Any = None,
    in_specs: Any,
    out_specs: Any,
    axis_names: AbstractSet[Any] = frozenset(),
    check_vma: bool = True,
    methods: Methods = None,
) -> Target:
    """`liftcore.shard_map` for a module class, a method or a function of a module.

    JAX adds up the gradients of a value that all shards share, such as a shared variable. To get the gradient of the
    mean over the shards, differentiate `jax.lax.pmean(loss, axis_name)`. A `pmean` of the gradients changes nothing,
    except with `check_vma=False`: then each shard has the gradient of its own loss.

    Example:
        >>> import jax, linen_like as nn
        >>> from jax.sharding import PartitionSpec as P
        >>> class RowParallel(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return jax.lax.psum(nn.Dense(2, use_bias=False)(x), "model")
        >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> Parallel = nn.shard_map(
        ...     RowParallel, {"params": P("model")}, True, mesh=mesh, in_specs=P(None, "model"), out_specs=P())
        >>> variables = Parallel().init(jax.random.key(0), jax.numpy.ones((4, 8)))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'Dense_0': {'kernel': (8, 2)}}}

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_specs: maps filters of variables to their partitioning, on the way in and on the way out.
        split_rngs: maps filters of RNG streams to the mesh axes along which shards draw different keys: True for all
            axes, False for none, or a name, or a tuple of names.
        mesh: the mesh of devices; by default the mesh of the context.
        in_specs: how the arguments after the module are partitioned: a pytree prefix of `PartitionSpec`s. Keyword
            arguments are the same on all shards.
        out_specs: how the results of the shards are joined: a pytree prefix of `PartitionSpec`s.
        axis_names: the axes of the mesh that the function runs along; by default all of them.
        check_vma: whether to check that results and variables which `out_specs` declares equal on all shards are
            equal.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.shard_map, locals(), prefix="Shard_map")

"""`vmap`, `batched_map`, `pmap` and `shard_map` over objects, and `StateAxes`, which gives each variable an axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError, LoopInvarianceError

from ..crossing.groups import ByFilter, Groups, holds_objects, in_axis_words, is_spec, parts_of
from ..crossing.inside import AxisNames
from ..crossing.outside import Outside, still
from .base import MISSING, also_decorator, check_axes, check_brings_none, checked, numbered, positional, title
from .uniform import body_of

__all__ = ["StateAxes", "batched_map", "differing", "mapped", "pmap", "shard_map", "vmap"]


class StateAxes(ByFilter):
    """The axes of an object's variables, chosen by filter. Use it in place of a single axis.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.StateAxes({nnx.Param: 0, ...: None}).axes
        (0, None)

    Args:
        filter_axes: a mapping from filters to axes, or pairs of a filter and an axis. The first filter that matches a
            variable applies. An axis is an int, or None for a value that all elements share. `scan` also takes `Carry`,
            and `InPlace(axis)` for variables whose slices it updates in place, such as the cache of a decoder; other
            transformations take it as the axis alone.
    """

    def __init__(self, filter_axes: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        super().__init__(filter_axes)

    @property
    def axes(self) -> tuple[Any, ...]:
        """The axis for each filter, in order."""
        return self.specs


@also_decorator
def vmap(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.vmap` for functions of objects: each element sees its slice of the variables of objects.

    If the function changes an object, the caller's object changes: its variables hold stacked values, new variables
    gain the mapped axis, and attributes and references change as they did inside.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> make = nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
        >>> ensemble = make(nnx.Rngs(0).split(5))
        >>> ensemble.kernel.shape
        (5, 2, 3)
        >>> forward = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))
        >>> forward(ensemble, jnp.ones(2)).shape
        (5, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        in_axes: the axis to map over, or None for a value that all elements share; a pytree prefix of the arguments.
            For an object, give one axis for all its variables, or a `StateAxes`.
        out_axes: the axis that results gain; a pytree prefix of the result.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        axis_size: the number of elements; required only if no argument is mapped.
        spmd_axis_name: the mesh axes over which the mapped axis is sharded.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The mapped function. It also takes keyword arguments, mapped as if they were positional.

    Raises:
        LiftArgumentError: if `f` is a bound method, or axes do not fit the arguments.
        AliasError: when called, if one variable is given with two axes.
        AxisSizeError: when called, if sizes disagree, or no argument gives a size.
        LoopInvarianceError: when called, if a variable without an axis gets a value that differs between elements.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    options = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}
    return mapped("vmap", liftcore.vmap, f, in_axes, out_axes, transform_metadata, options)


def mapped(
    name: str,
    lift: Callable[..., Any],
    f: Callable[..., Any],
    in_axes: Any,
    out_axes: Any,
    transform_metadata: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    static: Collection[int] = (),
) -> Callable[..., Any]:
    """Return a function of objects under a lift that maps over axes of variables.

    Args:
        name: what errors call the transformation.
        lift: `liftcore.vmap`, or a lift with the same options.
        f: the function.
        in_axes: see `vmap`.
        out_axes: see `vmap`.
        transform_metadata: see `vmap`.
        options: passed to the lift.
        static: the numbers of arguments that are static.
    """
    groups = Groups(checked(name, f), "axis", in_axis_words)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    in_prefix, out_prefix = groups.encode(in_axes), groups.encode(out_axes)
    check_axes(groups.where, groups.specs)
    axes = groups.axes

    lifted = lift(
        body_of(f, groups, out_prefix, names=AxisNames(axes, transform_metadata or {})),
        in_axes=groups.plain(in_axes),
        out_axes=(groups.plain(out_axes), axes, None),
        variable_axes=axes,
        **options,
    )

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = positional(name, f, args, kwargs)
        args = tuple([still(arg, groups.where) if number in static else arg for number, arg in enumerate(args)])
        outside = Outside(groups, args, in_prefix, cached=False)
        try:
            return outside.call(lifted, *outside.args, mutable=True)
        except ValueError as error:
            if "axis spec None but output was batched" not in str(error):
                raise
            raise differing(groups, out_axes, parts_of(groups, args, in_prefix, "", "in_axes")[0]) from error

    return wrapped


def differing(
    groups: Groups, out_axes: Any, parts: Iterable[tuple[str, Any, Any]], among: str = "elements"
) -> LoopInvarianceError:
    """Return the error for a new value without an axis that differs between elements.

    Args:
        groups: the groups of the lift.
        out_axes: the option of the lift.
        parts: the arguments, from `parts_of`.
        among: the name of the mapped elements in errors.
    """
    specs = [each for spec in jax.tree.leaves(out_axes, is_leaf=is_spec) for each in _each(spec)]
    objects = [
        name or "the arguments"
        for name, group, part in parts
        if any(one.spec is None for one in group.groups) and holds_objects(part)
    ]
    found = ["a result with None in `out_axes`"] if None in specs else []
    if objects:
        found.append(f"a new variable of {', '.join(objects)}, with None in `in_axes`,")
    what = f"{' or '.join(found)} differs between {among}."
    fix = "Give it an axis, such as 0."
    return LoopInvarianceError(groups.where, what, fix, option="out_axes" if None in specs else "in_axes")


def _each(spec: Any) -> tuple[Any, ...]:
    return spec.specs if isinstance(spec, ByFilter) else (spec,)


# --- one batch at a time ----------------------------------------------------------------------------------------------


@also_decorator
def batched_map(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    batch_size: int | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.lax.map` for functions of objects: a `vmap` that runs one element, or one batch, at a time to save memory.

    Unlike `jax.lax.map`, it takes only the function, and returns a function of the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.batched_map(lambda model, x: model(x), in_axes=(None, 0), batch_size=2)(model, jnp.ones((5, 2))).shape
        (5, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        in_axes: the axis of the variables of each object, or None for values that all elements share, or a `StateAxes`.
            Arrays are mapped over their first axis.
        batch_size: the number of elements computed at once; by default one.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The function, mapped. The errors are those of `vmap`.
    """
    return mapped("batched_map", _lift, f, in_axes, 0, transform_metadata, {"batch_size": batch_size})


def _lift(body: Callable[..., Any], in_axes: Any, out_axes: Any, **options: Any) -> Callable[..., Any]:
    @functools.wraps(body)
    def of_one(scope: liftcore.Scope, args: tuple[Any, ...]) -> Any:
        return body(scope, *args)

    lifted = liftcore.map(of_one, **options)
    return lambda scope, *args: lifted(scope, args)


# --- one element per device -------------------------------------------------------------------------------------------


@also_decorator
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
    check_brings_none("pmap(", checked("pmap", f), f)
    static, _ = numbered(title("pmap", f), f, static_broadcasted_argnums, ())
    donated, _ = numbered(title("pmap", f), f, donate_argnums, ())
    lift = functools.partial(liftcore.pmap, donate_argnums=tuple(number + 1 for number in sorted(donated)))
    return mapped("pmap", lift, f, in_axes, out_axes, transform_metadata, options, static)


# --- one shard per device ---------------------------------------------------------------------------------------------

_EVERYWHERE = jax.sharding.PartitionSpec()


@also_decorator
def shard_map(
    f: Callable[..., Any] = MISSING,
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    axis_names: AbstractSet[Any] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """`jax.shard_map` for functions of objects: each device sees its shard of the variables of objects.

    JAX adds up the gradients of a value that all shards share, such as a shared variable. To get the gradient of the
    mean over the shards, differentiate `jax.lax.pmean(loss, axis_name)`. A `pmean` of the gradients changes nothing,
    except with `check_vma=False`: then each shard has the gradient of its own loss.

    Example:
        >>> import jax, numpy as np
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
        >>> forward = nnx.shard_map(lambda model, x: model(x), mesh=mesh, **specs)
        >>> forward(model, jnp.ones((4, 2))).shape
        (4, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        mesh: the mesh of devices.
        in_specs: the `PartitionSpec` of each argument; a pytree prefix of the arguments. For an object, give one spec
            for all its variables, or a `StateSharding`. None means `P()`.
        out_specs: the same for the result.
        axis_names: the mesh axes that are manual inside the function; by default all.
        check_vma: whether JAX checks which values are equal on all devices.

    Returns:
        The function.

    Raises:
        LiftArgumentError: if `f` is a bound method, or specs do not fit the arguments.
        LoopInvarianceError: when called, if a variable with `P()` gets a value that differs between devices.
        AliasError: when called, if one variable is given with two specs.
    """
    options = {"mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}
    groups = Groups(checked("shard_map", f), "spec", "sharded as {}".format)
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        where = groups.where
        fix = "Make one: `jax.make_mesh((2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))`."
        raise LiftArgumentError(where, Expected("a `jax.sharding.Mesh`", mesh), fix, option="mesh")
    in_specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    _check_specs(groups.where, "in_specs", in_specs)
    _check_specs(groups.where, "out_specs", out_specs)
    in_prefix, out_prefix = groups.encode(_everywhere(in_specs)), groups.encode(_everywhere(out_specs))
    placed = {name: jax.sharding.NamedSharding(mesh, spec) for name, spec in groups.specs.items()}

    lifted = liftcore.shard_map(
        body_of(f, groups, out_prefix, "out_specs"),
        in_specs=groups.plain(in_specs, _EVERYWHERE),
        out_specs=(groups.plain(out_specs, _EVERYWHERE), dict(groups.specs), _EVERYWHERE),
        variable_specs=dict(groups.specs),
        **options,
    )

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        outside = Outside(groups, positional("shard_map", f, args, kwargs), in_prefix, "in_specs")
        outside.place(placed)
        return outside.call(lifted, *outside.args, mutable=True)

    return wrapped


def _everywhere(specs: Any) -> Any:
    """Replace None by `P()` in specs, as JAX does for a single array."""
    if isinstance(specs, ByFilter):
        return type(specs)([(one, _EVERYWHERE if spec is None else spec) for one, spec in specs.items()])
    if specs is None:
        return _EVERYWHERE
    return specs if is_spec(specs) else jax.tree.map(_everywhere, specs, is_leaf=is_spec)


def _check_specs(where: str, what: str, specs: Any) -> None:
    for spec in jax.tree.leaves(specs, is_leaf=is_spec):
        for one in _each(spec):
            if one is not None and not isinstance(one, jax.sharding.PartitionSpec):  # None is `P()`
                raise LiftArgumentError(
                    where,
                    Expected(f"a `PartitionSpec` for each part of `{what}`", given=one),
                    "Write `P()` for the same value on all devices, or `P('data')` to split the first axis.",
                    option=what,
                )

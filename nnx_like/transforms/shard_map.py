"""`shard_map` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, boundary, call_user, shown

from ..crossing.groups import ByFilter, Groups, is_spec
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from .decorating import MISSING, checked, named, positional

__all__ = ["shard_map"]

_EVERYWHERE = jax.sharding.PartitionSpec()


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
    if f is MISSING:
        return functools.partial(shard_map, in_specs=in_specs, out_specs=out_specs, **options)
    groups = Groups(checked("shard_map", f), "spec")
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise LiftArgumentError(
            groups.where,
            f"expected a `jax.sharding.Mesh` for `mesh`, given {shown(mesh)}.",
            "Make one: `jax.make_mesh((2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))`.",
        )
    in_specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    _check_specs(groups.where, "in_specs", in_specs)
    _check_specs(groups.where, "out_specs", out_specs)
    in_prefix, out_prefix = groups.encode(_everywhere(in_specs)), groups.encode(_everywhere(out_specs))
    placed = {name: jax.sharding.NamedSharding(mesh, spec) for name, spec in groups.specs.items()}

    @named(f)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside = Inside(scope, groups)
        return inside.encode(call_user(groups.where, f, *inside.decode(args)), out_prefix, "out_specs")

    lifted = liftcore.shard_map(
        body,
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
        for one in spec.specs if isinstance(spec, ByFilter) else (spec,):
            if one is not None and not isinstance(one, jax.sharding.PartitionSpec):  # None is `P()`
                raise LiftArgumentError(
                    where,
                    f"expected a `PartitionSpec` for each part of `{what}`, given {shown(one)}.",
                    "Write `P()` for the same value on all devices, or `P('data')` to split the first axis.",
                )

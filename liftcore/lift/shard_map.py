"""Lifted `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from jax.sharding import PartitionSpec

from ..errors import Expected, LiftArgumentError, check_function
from ..filters import to_predicate
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..runners.axes import NO_AXES, flatten_axes, keyword_axes, split_sliced
from ..runners.shard_mapping import REPLICATED, Shards, SplitOver, typed
from ..scopes.lifts import Advice, Captured
from ..typing import PyTree

__all__ = ["shard_map"]

_ADVICE = Advice(
    '`variable_specs={{"{}": P()}}`, or a spec with the axes of the mesh that partition it',
    '`split_rngs={{"{}": True}}`, or False for the same keys on all shards',
)


def shard_map(
    fn: Callable[..., Any],
    *,
    mesh: Any = None,
    in_specs: PyTree,
    out_specs: PyTree,
    axis_names: AbstractSet[Any] = frozenset(),
    check_vma: bool = True,
    variable_specs: Mapping[Any, PartitionSpec] = NO_AXES,
    split_rngs: Mapping[Any, SplitOver] | SplitOver = NO_AXES,
) -> Callable[..., Any]:
    """`jax.shard_map` for a function of scopes: each shard gets its part of the variables.

    A variable that the body creates is computed on each shard. If its spec is `P()`, it must be the same on all
    shards. Otherwise, its parts are joined along the axes that the spec partitions. Sown values get a new axis 0, with
    one entry for each shard.

    JAX adds up the gradients of a value that all shards share, such as a shared variable. To get the gradient of the
    mean over the shards, differentiate `jax.lax.pmean(loss, axis_name)`. A `pmean` of the gradients changes nothing,
    except with `check_vma=False`: then each shard has the gradient of its own loss.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> P = PartitionSpec
        >>> def layer(scope, x):
        ...     w = scope.param("w", jax.random.normal, (x.shape[-1], 2))
        ...     return jax.lax.psum(x @ w, "model")
        >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> parallel = shard_map(
        ...     layer, mesh=mesh, in_specs=P(None, "model"), out_specs=P(),
        ...     variable_specs={"params": P("model")}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(parallel)(jax.random.key(0), jnp.ones((4, 8)))
        >>> y.shape, variables["params"]["w"].shape
        ((4, 2), (8, 2))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with the parts of one shard.
        mesh: the mesh of devices; by default the mesh of the context.
        in_specs: how the arguments after the scopes are partitioned: a pytree prefix of `PartitionSpec`s. Keyword
            arguments are the same on all shards.
        out_specs: how the results of the shards are joined: a pytree prefix of `PartitionSpec`s.
        axis_names: the axes of the mesh that the function runs along; by default all of them.
        check_vma: whether to check that results and variables which `out_specs` declares equal on all shards are
            equal.
        variable_specs: maps filters of variables to their partitioning, on the way in and on the way out.
        split_rngs: maps filters of RNG streams to the mesh axes along which shards draw different keys: True for all
            axes, False for none, or a name, or a tuple of names.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if a spec or an axis is not valid, or does not fit.
        LoopInvarianceError: when called, if a variable gets values that differ along an axis that its spec does not
            name.
    """
    check_function("shard_map", fn)
    specs = _check_specs(variable_specs)
    splits = _splits(split_rngs)
    rules = tuple(zip(map(to_predicate, variable_specs), specs, strict=True)) if check_vma else ()
    in_specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        each = [*flatten_axes("in_specs", in_specs, args, body), *keyword_axes(REPLICATED, kwargs)]
        sliced, slice_specs, others = split_sliced((args, kwargs), each)
        shards = Shards.of(body.where, mesh, axis_names, check_vma)
        along = [shards.chosen(split) for split in splits.values()]

        def shard(body: Body, variables: Any, rngs: Any, slices: Any) -> tuple[Any, Any]:
            keys = [shards.split_keys(group, axes) for group, axes in zip(rngs, along, strict=True)]
            args, kwargs = others.join(slices)
            return body(variables, keys, *args, **kwargs)

        operands = list(variable_groups), list(rng_groups), sliced
        return shards.run(body, shard, operands, (specs, REPLICATED, slice_specs), out_specs)

    into = tuple(f"partitioned by {spec}" if any(spec) else "one value for all shards" for spec in specs)
    keys = tuple(f"split over {split}" if split else "the same keys on all shards" for split in splits.values())
    advice = _ADVICE._replace(into=into, out=into, rngs=keys, captured="stacked on a new axis 0")
    filters, out = list(variable_specs), [*variable_specs, Captured()]
    return transformation(transform, filters, out, list(splits), "shard_map", advice=advice)(typed(fn, rules))


def _check_specs(variable_specs: Mapping[Any, PartitionSpec]) -> list[PartitionSpec]:
    if not isinstance(variable_specs, Mapping):
        raise LiftArgumentError(
            "variable_specs",
            Expected("a mapping from filters to specs", given=variable_specs),
            'Write `variable_specs={"params": P()}`.',
            option="variable_specs",
        )
    for key, spec in variable_specs.items():
        if not isinstance(spec, PartitionSpec):
            raise LiftArgumentError(
                f"variable_specs[{key!r}]",
                Expected("a `jax.sharding.PartitionSpec`", given=spec),
                "Write `P()` for the same value on all shards, `P('x')` to partition the first axis over `x`.",
                option="variable_specs",
            )
    return list(variable_specs.values())


def _splits(split_rngs: Mapping[Any, SplitOver] | SplitOver) -> dict[Any, SplitOver]:
    """Return the argument `split_rngs` as a dict by filters."""
    splits = split_rngs if isinstance(split_rngs, Mapping) else {...: split_rngs}
    for split in splits.values():
        if not isinstance(split, bool | str) and not (isinstance(split, tuple) and split):
            raise LiftArgumentError(
                "split_rngs",
                Expected("True, False, or the name of one or several axes of the mesh", given=split),
                'Write `split_rngs={"params": "model", "dropout": True}`.',
                option="split_rngs",
            )
    return dict(splits)

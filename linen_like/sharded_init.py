"""`init_sharded` for modules: makes their variables on a mesh, with each device computing only its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

import liftcore
from liftcore import ShardedInit
from liftcore.errors import LiftArgumentError, shown

from .module import Module
from .spmd import LogicalRules, get_logical_axis_rules, logical_axis_rules

__all__ = ["init_sharded"]


def init_sharded(target: Module | Callable[..., Any], mesh: Mesh, rules: LogicalRules | None = None) -> ShardedInit:
    """Return a function that makes the variables of a module on a mesh, sharded by the logical names of their axes.

    No device and no process ever holds more of an array than its shards: the shapes are computed first, metadata and
    rules give a sharding for each array, and these are the `out_shardings` of the compiled `init`. Arrays without names
    are replicated.

    Example:
        >>> import jax, linen_like as nn
        >>> init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        >>> model = nn.Dense(8, kernel_init=init)
        >>> mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
        >>> make = nn.init_sharded(model, mesh, [("embed", None), ("mlp", "model")])
        >>> variables = make(jax.random.key(0), jax.numpy.ones((2, 4)))
        >>> variables["params"]["kernel"].value.sharding.spec == jax.sharding.PartitionSpec(None, "model")
        True

        The same works for the whole state of a training run; the optimizer's state is sharded like the parameters:

        >>> import optax
        >>> from liftcore.training import TrainState
        >>> def create(key, x):
        ...     params = model.init(key, x)["params"]
        ...     return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
        >>> make = nn.init_sharded(create, mesh, [("embed", None), ("mlp", "model")])
        >>> state = make(jax.random.key(0), jax.ShapeDtypeStruct((2, 4), "float32"))
        >>> state.opt_state[0].mu["kernel"].value.sharding.spec == jax.sharding.PartitionSpec(None, "model")
        True

    Args:
        target: a module, whose `init` is called; or any function that makes a pytree with boxed arrays.
        mesh: the mesh; its axes may be Auto or Explicit.
        rules: pairs of a logical name and a mesh axis, a tuple of mesh axes, or None for an axis that is not sharded;
            by default those of the `with` block. They also apply while the module runs. A logical name without a rule
            must be an axis of the mesh.

    Returns:
        A function with the arguments of `init`. Arrays among them are passed to `jax.jit`; a `jax.ShapeDtypeStruct`
        means zeros, which are never allocated; anything else is static. Its method `eval_shape` returns the same pytree
        with shapes and shardings, for the `restore` of a checkpoint.

    Raises:
        LiftArgumentError: if `mesh` is not a mesh; when called, if names and mesh do not match. The error lists all
            problems: logical names without a rule, rules with an axis that the mesh does not have, a mesh axis that
            shards two dimensions of an array, or does not divide one.
    """
    init_fn = target.init if isinstance(target, Module) else target
    if not callable(init_fn):
        what = f"expected a module or a function, given {shown(target)}."
        raise LiftArgumentError(
            "nn.init_sharded", what, "Pass the module itself: `nn.init_sharded(model, mesh, rules)`."
        )
    followed = get_logical_axis_rules() if rules is None else rules

    def under_rules(*args: Any, **kwargs: Any) -> Any:
        with logical_axis_rules(followed):
            return init_fn(*args, **kwargs)

    return liftcore.init_sharded(under_rules, mesh, followed or None)

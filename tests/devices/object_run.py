"""One layer of nnx_like on a mesh: its result, its next state and its gradients, compared with those of one device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_like as nnx
from tests.devices.mesh_cases import KINDS
from tests.devices.mesh_run import assert_close, mesh_of_sizes, moved, total
from tests.devices.object_cases import OBJECTS, Object

__all__ = ["check_object"]


def program(graphdef: Any, one: Object, params: Any, rest: Any, *args: Any) -> Any:
    """Result, next state and gradients."""

    def loss(params: Any, *args: Any) -> Any:
        layer = nnx.merge(graphdef, params, rest, copy=True)
        y = layer(*args, **one.call)
        return total(y), (y, nnx.state(layer))

    wrt = [0, *(number + 1 for number, arg in enumerate(args) if jax.tree.leaves(arg)[0].dtype.kind == "f")]
    return jax.value_and_grad(loss, wrt, has_aux=True)(params, *args)


@functools.cache
def on_one_device(name: str) -> Any:
    """The parts of a layer, and what it gives."""
    one = OBJECTS[name]
    graphdef, params, rest = nnx.split(one.make(nnx.Rngs(0)), (nnx.Param, nnx.LoRAParam), ...)
    params = moved(jax.tree.map(np.asarray, params))
    args = one.inputs if isinstance(one.inputs, tuple) else (one.inputs,)
    return graphdef, params, rest, args, jax.jit(functools.partial(program, graphdef, one))(params, rest, *args)


def check_object(name: str, kind_name: str, axis_type: Any = AxisType.Explicit) -> None:
    """Raises where the layer fails on a mesh, or gives something else than on one device."""
    kind, (graphdef, params, rest, args, expected) = KINDS[kind_name], on_one_device(name)
    mesh = mesh_of_sizes(kind.mesh, axis_type)

    def on_mesh(specs: Any, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, specs(leaf))), tree)

    with jax.set_mesh(mesh):
        given = on_mesh(kind.params, params), on_mesh(lambda leaf: P(), rest), *on_mesh(kind.inputs, args)
        found = jax.jit(functools.partial(program, graphdef, OBJECTS[name]))(*given)
        assert_close(found, expected, "call and gradients")

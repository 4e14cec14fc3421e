"""One layer on a mesh: its first variables, its result and its gradients, compared with those of one device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices.mesh_cases import CASES, KINDS
from tests.layers.layered import Layered, trained_of
from tests.layers.row import sequences
from tests.machine import make_mesh

__all__ = ["assert_close", "check", "mesh_of_sizes", "moved", "total"]


def mesh_of_sizes(sizes: dict[str, int], kind: Any = AxisType.Explicit) -> Any:
    """A mesh of some of the eight devices."""
    return make_mesh(tuple(sizes.values()), *sizes, kind=kind)


@functools.cache
def one_device(name: str) -> Any:
    """What the layer gives on one device: variables with other numbers than zeros and ones, and `program` of them."""
    row = CASES[name]
    layer = Layered(row)
    args, rngs = jax.tree.map(jax.numpy.asarray, row.args), sequences()
    first, variables = jax.jit(layer.init)(rngs, *args)
    variables = {**variables, **moved(trained_of(variables))}
    found = jax.jit(functools.partial(program, layer))(variables, rngs, *args)
    return jax.tree.map(np.asarray, ((first, layer.init(rngs, *args)[1]), variables, found))


def moved(tree: Any) -> Any:
    """The same tree with other numbers: biases begin as zeros, which would hide mistakes."""
    leaves, treedef = jax.tree.flatten(tree)
    waves = [0.1 * np.sin(np.arange(leaf.size) + number).reshape(leaf.shape) for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(
        treedef, [leaf + wave.astype(leaf.dtype) for leaf, wave in zip(leaves, waves, strict=True)]
    )


def program(layer: Layered, variables: Any, rngs: Any, *args: Any) -> Any:
    """Result, mutated state and gradients."""
    wrt = [number for number, arg in enumerate(args) if all(leaf.dtype.kind == "f" for leaf in jax.tree.leaves(arg))]

    def loss(trained: Any, wanted: Any) -> Any:
        given = [wanted[wrt.index(number)] if number in wrt else arg for number, arg in enumerate(args)]
        outcome = layer.apply({**variables, **trained}, rngs, *given)
        return total(outcome[0]), outcome

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(trained_of(variables), [args[number] for number in wrt])


def total(y: Any) -> Any:
    """A number of the result in which each element counts differently, and none has to move between devices."""

    def weighted(leaf: Any) -> Any:
        places = [jax.lax.broadcasted_iota(np.float32, leaf.shape, axis) for axis in range(leaf.ndim)]
        return (leaf * jax.numpy.cos(sum((3 * axis + 1) * place for axis, place in enumerate(places)))).sum()

    return sum(weighted(leaf) for leaf in jax.tree.leaves(y))


def check(name: str, kind_name: str, axis_type: Any = AxisType.Explicit) -> None:
    """Raises where the layer fails on a mesh, or gives something else than on one device."""
    row, kind = CASES[name], KINDS[kind_name]
    (first, new), variables, found = one_device(name)
    mesh, layer, rngs = mesh_of_sizes(kind.mesh, axis_type), Layered(row), sequences()

    def on_mesh(specs: Any, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, specs(leaf))), tree)

    with jax.set_mesh(mesh):
        args = on_mesh(kind.inputs, row.args)
        made = jax.jit(layer.init)(rngs, *args)
        assert_close(made, (first, new), "init")
        given = {
            name: on_mesh(kind.params if name in ("params", "lora") else lambda x: P(), tree)
            for name, tree in variables.items()
        }
        ours = jax.jit(functools.partial(program, layer))(given, rngs, *args)
        assert_close(ours, found, "apply and gradients")


def assert_close(ours: Any, expected: Any, what: str) -> None:
    """Checks that two results have one structure, and the same numbers up to rounding.

    Sums over many elements are rounded in proportion to their terms, so the bound grows with the largest number of an
    array.
    """
    assert jax.tree.structure(ours) == jax.tree.structure(expected), what
    for (path, one), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(expected), strict=True):
        found, wanted = map(np.asarray, map(_plain, (one, other)))
        bound = 1e-5 * max(1.0, np.abs(wanted.astype(np.float64)).max(initial=0))
        message = f"{what}: {jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=bound, err_msg=message)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

"""`init_sharded`: makes variables, or any other state, with each device computing only its part of every array."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .errors import LiftArgumentError, check_function, shown
from .mesh_specs import LogicalRules
from .meta import get_sharding
from .pipeline.equations import cut, evaluate, needed, opened, steps_of
from .portions import bytes_per_process, portions, return_memory
from .typing import PyTree

__all__ = ["ShardedInit", "init_sharded"]


def init_sharded(init_fn: Callable[..., Any], mesh: Mesh, rules: LogicalRules | None = None) -> ShardedInit:
    """A function that makes a state on a mesh, sharded by the names in its boxes.

    It computes the shapes, gets a sharding for each array from its box and the rules, and then compiles `init_fn` with
    these as `out_shardings`. So no device and no process ever has more of an array than its shards. The exceptions are
    arrays without a box, which are replicated, and initializers whose computation XLA cannot split, such as that of
    `orthogonal`.

    The boxes need not be those of variables only: the state of an optimiser has those of its parameters, and is sharded
    like them.

    Example:
        >>> import liftcore
        >>> from liftcore.meta import with_partitioning
        >>> def model(scope, x):
        ...     init = with_partitioning(jax.nn.initializers.lecun_normal(), ("data", "model"))
        ...     return x @ scope.param("kernel", init, (x.shape[-1], 8))
        >>> mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
        >>> def init_fn(key, x):
        ...     return liftcore.init(model)(key, x)[1]
        >>> variables = init_sharded(init_fn, mesh)(jax.random.key(0), jnp.ones((2, 4)))
        >>> variables["params"]["kernel"].value.sharding.spec == jax.sharding.PartitionSpec("data", "model")
        True

    Args:
        init_fn: any function that returns a pytree with arrays, such as `model.init`, or one that creates a
            `TrainState`. It is traced once.
        mesh: the mesh; its axes may be Auto or Explicit. While `init_fn` runs, they are Auto, so that XLA can split the
            computation.
        rules: pairs of a logical name and a mesh axis, several as a tuple, or None for an axis that is not sharded. A
            name without a rule must be an axis of the mesh.

    Returns:
        A function with the arguments of `init_fn`. Arrays among them are those of `jax.jit`; a `jax.ShapeDtypeStruct`
        stands for zeros, which nobody allocates; anything else is static. Its method `eval_shape` computes nothing.

    Raises:
        LiftArgumentError: if the mesh is none; when called, if names and mesh do not fit, see `get_sharding`.
    """
    check_function("init_sharded", init_fn)
    if not isinstance(mesh, Mesh):
        fix = 'Pass the mesh second: `init_sharded(model, jax.make_mesh((8,), ("data",)), rules)`.'
        raise LiftArgumentError("init_sharded", f"expected a jax.sharding.Mesh, given {shown(mesh)}.", fix)
    return ShardedInit(init_fn, mesh, rules)


@dataclasses.dataclass(frozen=True)
class ShardedInit:
    """What `init_sharded` returns.

    Attributes:
        init_fn: makes the state.
        mesh: the mesh.
        rules: from logical names to axes of the mesh.
    """

    init_fn: Callable[..., Any]
    mesh: Mesh
    rules: LogicalRules | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """The state, sharded.

        Args:
            *args: those of `init_fn`.
            **kwargs: those of `init_fn`.
        """
        flat = _Flat(self.init_fn, self.mesh, args, kwargs)
        with jax.set_mesh(flat.mesh):
            plan = self._planned(flat)
            leaves = [leaf for part in plan.parts() for leaf in plan.run(part, flat.arrays)]
        return jax.tree.unflatten(plan.treedef, leaves)

    def eval_shape(self, *args: Any, **kwargs: Any) -> PyTree:
        """The same pytree, with a `jax.ShapeDtypeStruct` that has a sharding for each array: a target to restore to.

        Args:
            *args: those of `init_fn`.
            **kwargs: those of `init_fn`.
        """
        flat = _Flat(self.init_fn, self.mesh, args, kwargs)
        with jax.set_mesh(flat.mesh):
            plan = self._planned(flat)
        placed = [
            jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
                aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type
            )
            for aval, sharding in zip(plan.jaxpr.out_avals, plan.shardings, strict=True)
        ]
        return jax.tree.unflatten(plan.treedef, placed)

    def _planned(self, flat: _Flat) -> _Plan:
        try:
            jaxpr, shapes = jax.make_jaxpr(flat.call, return_shape=True)(flat.arrays)
        except LiftArgumentError:
            self._check_all(flat)
            raise
        except ValueError as error:
            if AxisType.Explicit in self.mesh.axis_types and "of type Auto" in str(error):
                raise _no_out_sharding(error) from None
            raise
        by_box = get_sharding(shapes, self.mesh, self.rules)
        by_leaf = jax.tree.map(lambda sharding, part: jax.tree.map(lambda _: sharding, part), by_box, shapes)
        return _Plan(jaxpr, jax.tree.structure(shapes), jax.tree.leaves(by_leaf))

    def _check_all(self, flat: _Flat) -> None:
        """Raises one error for all names that do not fit, where the first of them stopped the trace on the mesh."""
        try:
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                shapes = jax.eval_shape(flat.call, flat.arrays)
        except Exception:  # the first error is told instead, whatever cannot run without a mesh
            return
        get_sharding(shapes, self.mesh, self.rules)


class _Flat:
    """A function of some of its arguments, the arrays; the others are fixed."""

    def __init__(self, fn: Callable[..., Any], mesh: Mesh, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.fn, self.mesh = fn, _on_auto_axes(mesh)
        self.given, self.treedef = jax.tree.flatten((args, kwargs))
        self.places = [place for place, leaf in enumerate(self.given) if isinstance(leaf, jax.Array | np.ndarray)]
        self.arrays = [self._moved(self.given[place]) for place in self.places]

    def _moved(self, array: Any) -> Any:
        """An array whose sharding names an Explicit mesh, on the same devices of the Auto one; nothing is copied."""
        sharding = getattr(array, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names == self.mesh.axis_names:
            spec = PartitionSpec(*sharding.spec[: array.ndim])  # type: ignore[no-untyped-call]  # keys have one more
            return jax.device_put(array, NamedSharding(self.mesh, spec))
        return array

    def call(self, arrays: Sequence[Any]) -> PyTree:
        leaves = [_zeros(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in self.given]
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        args, kwargs = jax.tree.unflatten(self.treedef, leaves)
        return self.fn(*args, **kwargs)


class _Plan(NamedTuple):
    """What was traced, and how each leaf of the state is sharded.

    A large state is not made by one program: with what XLA needs between key and numbers, which for some backends is
    as much as the numbers, and lives as long as the program runs, a process would need twice the memory.
    """

    jaxpr: Any
    treedef: Any
    shardings: list[NamedSharding]

    def parts(self) -> list[list[int]]:
        """The numbers of the leaves, in order, divided among programs."""
        if self.jaxpr.effects:  # they happen once
            return [list(range(len(self.shardings)))]
        pairs = zip(self.jaxpr.out_avals, self.shardings, strict=True)
        return portions([bytes_per_process(aval.shape, aval.dtype, sharding) for aval, sharding in pairs])

    def run(self, part: list[int], arrays: Sequence[Any]) -> list[Any]:
        """Some of the leaves, by the equations that these need."""
        whole = opened(self.jaxpr)
        outvars = [whole.outvars[number] for number in part]
        steps = steps_of(whole)
        effects = {id(step) for step in steps if step.eqn.effects}
        jaxpr = cut(whole, whole.invars, needed(steps, outvars, effects), outvars)

        def make(arrays: Sequence[Any]) -> list[Any]:
            return evaluate(jaxpr, *self.jaxpr.consts, *arrays)

        made = jax.jit(make, out_shardings=[self.shardings[number] for number in part])(arrays)
        if len(part) < len(self.shardings):
            jax.block_until_ready(made)  # type: ignore[no-untyped-call]
            return_memory()
        leaves: list[Any] = made
        return leaves


def _no_out_sharding(error: ValueError) -> LiftArgumentError:
    what = f"`init_fn` runs on Auto axes, and it uses `out_sharding=`, for which JAX wants Explicit ones: {error}"
    fix = "In a module, write `out_sharding=None if self.is_initializing() else …`."
    return LiftArgumentError("init_sharded", what, fix)


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        fix = "Pass a key, `jax.random.key(0)`: it is small."
        raise LiftArgumentError("init_sharded", "the shape of a key stands for no key.", fix)
    return jnp.zeros(shape.shape, shape.dtype)


def _on_auto_axes(mesh: Mesh) -> Mesh:
    """The same mesh with Auto axes. On Explicit ones XLA would make what is replicated by its type whole first."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))

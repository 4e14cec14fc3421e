"""`init_sharded`: creates variables, or another state, so that each device computes only its part of every array."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .calls import boundary
from .errors import Expected, LiftArgumentError, check_function, shown
from .mesh_specs import LogicalRules, check_rules
from .meta import get_sharding
from .pipeline.equations import cut, evaluate, needed, opened, steps_of
from .portions import bytes_per_process, portions, return_memory
from .pytrees import is_numpy, split_leaves
from .tracing import jaxpr_of
from .typing import PyTree

__all__ = ["ShardedInit", "init_sharded"]


def init_sharded(init_fn: Callable[..., Any], mesh: Mesh, rules: LogicalRules | None = None) -> ShardedInit:
    """Return a function that creates a state on a mesh, sharded by the names in its boxes.

    It computes the shapes, derives a sharding for each array from its box and the rules, and compiles `init_fn` with
    these as `out_shardings`. So no device or process ever has more of an array than its shards. There are two
    exceptions: arrays without a box are replicated, and XLA cannot split the computation of some initializers, such as
    `orthogonal`.

    Boxes may also be in other parts of the state: an optimizer state has the boxes of its parameters, and is sharded
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
        init_fn: any function that returns a pytree with arrays, such as `model.init`, or a function that creates a
            `TrainState`. It is traced once.
        mesh: the mesh; its axes may be Auto or Explicit. While `init_fn` runs, they are Auto, so that XLA can split the
            computation.
        rules: pairs of a logical name and a mesh axis, several as a tuple, or None for an axis that is not sharded. A
            name without a rule must be an axis of the mesh.

    Returns:
        A function with the arguments of `init_fn`. Arrays are passed as to `jax.jit`, a `jax.ShapeDtypeStruct` means
        zeros that are never allocated, and other values are static. Its method `eval_shape` computes nothing.

    Raises:
        LiftArgumentError: if `mesh` is not a mesh, or `rules` are not pairs; when called, if an argument is traced, or
            if names and mesh do not match, see `get_sharding`.
    """
    check_function("init_sharded", init_fn)
    if not isinstance(mesh, Mesh):
        fix = 'Pass the mesh second: `init_sharded(model, jax.make_mesh((8,), ("data",)), rules)`.'
        raise LiftArgumentError("init_sharded", Expected("a jax.sharding.Mesh", given=mesh), fix)
    if rules is not None:
        check_rules(rules, mesh)
    return ShardedInit(init_fn, mesh, rules)


@dataclasses.dataclass(frozen=True)
class ShardedInit:
    """The function that `init_sharded` returns.

    Attributes:
        init_fn: the function that creates the state.
        mesh: the mesh.
        rules: the rules from logical names to mesh axes.
    """

    init_fn: Callable[..., Any]
    mesh: Mesh
    rules: LogicalRules | None = None

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Create the state, sharded.

        Args:
            *args: arguments of `init_fn`.
            **kwargs: keyword arguments of `init_fn`.
        """
        flat = _Flat(self.init_fn, self.mesh, args, kwargs)
        with jax.set_mesh(flat.mesh):
            plan = self._planned(flat)
            leaves = [leaf for part in plan.parts() for leaf in plan.run(part, flat.arrays)]
        return jax.tree.unflatten(plan.treedef, leaves)

    @boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the pytree with a `jax.ShapeDtypeStruct`, with sharding, for each array, as a target for restoring.

        Args:
            *args: arguments of `init_fn`.
            **kwargs: keyword arguments of `init_fn`.
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
            jaxpr, shapes = jaxpr_of(flat.call, flat.arrays)
        except LiftArgumentError:
            self._check_all(flat)
            raise
        except ValueError as error:
            if AxisType.Explicit in self.mesh.axis_types and "of type Auto" in str(error):
                what = "`init_fn` runs on Auto axes, but it uses `out_sharding=`, for which JAX requires Explicit axes"
                fix = "In a module, write `out_sharding=None if self.is_initializing() else …`."
                raise LiftArgumentError("init_sharded", f"{what}: {error}", fix, option="out_sharding") from None
            raise
        by_box = get_sharding(shapes, self.mesh, self.rules)
        by_leaf = jax.tree.map(lambda sharding, part: jax.tree.map(lambda _: sharding, part), by_box, shapes)
        return _Plan(jaxpr, jax.tree.structure(shapes), jax.tree.leaves(by_leaf))

    def _check_all(self, flat: _Flat) -> None:
        """Raise one error for all wrong names; the trace on the mesh stopped at the first of them."""
        try:
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                shapes = jax.eval_shape(flat.call, flat.arrays)
        except Exception:  # it cannot run without a mesh, for whatever reason: the first error is raised instead
            return
        get_sharding(shapes, self.mesh, self.rules)


class _Flat:
    """A function as one of its array arguments only; the other arguments are fixed."""

    def __init__(self, fn: Callable[..., Any], mesh: Mesh, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.fn = fn  # on Explicit axes, XLA would first compute arrays of replicated type as wholes
        self.mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
        for leaf in jax.tree.leaves((args, kwargs)):
            if isinstance(leaf, jax.core.Tracer):
                what = f"an argument, {shown(leaf)}, is traced, but this function compiles its programs itself."
                raise LiftArgumentError("init_sharded", what, "Call it outside of `jax.jit`.", given=leaf)
        arrays, self.others = split_leaves((args, kwargs), lambda leaf: isinstance(leaf, jax.Array) or is_numpy(leaf))
        self.arrays = [self._moved(array) for array in arrays]

    def _moved(self, array: Any) -> Any:
        """Return an array with an Explicit mesh on the same devices of the Auto mesh, without a copy."""
        sharding = getattr(array, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names == self.mesh.axis_names:
            spec = PartitionSpec(*sharding.spec[: array.ndim])  # type: ignore[no-untyped-call]  # keys have one more
            return jax.device_put(array, NamedSharding(self.mesh, spec))
        return array

    def call(self, arrays: Sequence[Any]) -> PyTree:
        others = [_zeros(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in self.others.leaves]
        args, kwargs = self.others.join(arrays, others)
        return self.fn(*args, **kwargs)


class _Plan(NamedTuple):
    """The trace of a function, and the sharding of each leaf of the state.

    A large state is not created by one program. XLA needs temporary memory between key and values, for some backends as
    much as the values, until the program ends. So one program would need twice the memory.
    """

    jaxpr: Any
    treedef: Any
    shardings: list[NamedSharding]

    def parts(self) -> list[list[int]]:
        """Return the indices of the leaves, in order, divided among programs."""
        if self.jaxpr.effects:  # effects must happen only once
            return [list(range(len(self.shardings)))]
        pairs = zip(self.jaxpr.out_avals, self.shardings, strict=True)
        return portions([bytes_per_process(aval.shape, aval.dtype, sharding) for aval, sharding in pairs])

    def run(self, part: list[int], arrays: Sequence[Any]) -> list[Any]:
        """Compute some of the leaves with the equations that they need."""
        whole = opened(self.jaxpr)
        outvars = [whole.outvars[number] for number in part]
        steps = steps_of(whole)
        effects = {id(step) for step in steps if step.eqn.effects}
        jaxpr = cut(whole, whole.invars, needed(steps, outvars, effects), outvars)

        def make(arrays: Sequence[Any]) -> list[Any]:
            return evaluate(jaxpr, *self.jaxpr.consts, *arrays)

        made: list[Any] = jax.jit(make, out_shardings=[self.shardings[number] for number in part])(arrays)
        if len(part) < len(self.shardings):
            jax.block_until_ready(made)  # type: ignore[no-untyped-call]
            return_memory()
        return made


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        fix = "Pass a key, `jax.random.key(0)`: it is small."
        raise LiftArgumentError("init_sharded", f"{shown(shape)} cannot be replaced by its shape.", fix, given=shape)
    return jnp.zeros(shape.shape, shape.dtype)

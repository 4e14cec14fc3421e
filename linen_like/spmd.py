"""Names of axes: of the mesh, or logical ones of the model, with rules that map logical names to the mesh.

Boxed metadata comes from `liftcore.meta`. This file adds *logical* names such as `embed` or `heads`: a model names its
axes, and the training code maps each name to an axis of the mesh by rules. `jax.jit` knows the rules of a `with` block:
under other rules a function is traced again. `init_sharded` makes each variable on the devices that its names give it.

`set_logical_axis_rules` is left out, since it would set rules for all code that runs later.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import Mesh, PartitionSpec

import liftcore
from liftcore import NO_AXES, ShardedInit
from liftcore.errors import Expected, LiftArgumentError
from liftcore.lazy import unknown
from liftcore.mesh_specs import (
    LogicalRules,
    follow_rules,
    get_logical_axis_rules,
    hashable_rules,
    logical_axis_rules,
    meant,
)
from liftcore.meta import (
    PARTITION_NAME,
    Partitioned,
    constrain,
    get_partition_spec,
    get_sharding,
    unbox,
    with_partitioning,
)
from liftcore.struct import field
from liftcore.typing import PyTree

from .lifecycle.binding import place
from .lifecycle.context import context
from .lifting import Methods
from .module import Module
from .transforms.options import lift_by_options

__all__ = [
    "PARTITION_NAME",
    "LogicalRules",
    "LogicallyPartitioned",
    "Partitioned",
    "RulesFallback",
    "add_metadata_axis",
    "get_logical_axis_rules",
    "get_partition_spec",
    "get_sharding",
    "init_sharded",
    "logical_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "unbox",
    "with_logical_constraint",
    "with_logical_partitioning",
    "with_partitioning",
]

Target = TypeVar("Target", bound=Callable[..., Any])

Names: TypeAlias = Any
"""Type: a name for each axis of an array: a tuple or a `PartitionSpec` of strings and None; or None alone."""


def logical_to_mesh_axes(array_dim_names: Names, rules: LogicalRules | None = None) -> PartitionSpec | None:
    """Return the axes of the mesh that the axes of an array are split over.

    Rules are followed in their order. A rule is skipped if its axis of the mesh is taken by another axis of the array,
    or if the logical name already has an axis. A name without a rule gets None.

    Example:
        >>> rules = (("batch", "X"), ("features", "X"), ("heads", "Y"), ("batch", "Z"))
        >>> logical_to_mesh_axes(("batch", "length", "heads", "features"), rules) == PartitionSpec("X", None, "Y", None)
        True

    Args:
        array_dim_names: the logical names; an item that is not a string is returned unchanged. None gives None.
        rules: the rules; by default those of the `with` block.

    Raises:
        LiftArgumentError: if a name occurs twice.
    """
    if array_dim_names is None:
        return None
    return _assigned(array_dim_names, rules)[0]


def _assigned(names: Names, rules: LogicalRules | None) -> tuple[PartitionSpec, list[Any]]:
    """Return the axes of the mesh for names, and the names for which no rule could be followed."""
    names = list(names)
    texts = [name for name in names if isinstance(name, str)]
    twice = sorted({name for name in texts if texts.count(name) > 1})
    if twice:
        what = f"{twice} occurs twice, but an axis of the mesh can split only one axis of an array."
        fix = "Give the axes different names; use None for axes that are not split."
        raise LiftArgumentError(_where(names), what, fix, given=twice[0])
    found = follow_rules(names, get_logical_axis_rules() if rules is None else rules)
    lost = [name for number, name in enumerate(names) if number not in found]
    return PartitionSpec(*map(found.get, range(len(names)))), lost


def logical_to_mesh(tree: PyTree, rules: LogicalRules | None = None) -> PyTree:
    """Map the logical names in a pytree of `PartitionSpec`, such as `get_partition_spec` returns, to axes of the mesh.

    Args:
        tree: the pytree.
        rules: the rules; by default those of the `with` block.
    """
    return jax.tree.map(lambda spec: logical_to_mesh_axes(spec, rules), tree, is_leaf=_is_spec)


def logical_to_mesh_sharding(tree: PyTree, mesh: Mesh, rules: LogicalRules | None = None) -> PyTree:
    """Return shardings on a mesh, for a pytree of `PartitionSpec` with logical names; see `logical_to_mesh`.

    A logical name without a rule is not sharded. To get an error instead, write `nn.get_sharding(tree, mesh, rules)`,
    which takes variables or their shapes.

    Args:
        tree: the pytree.
        mesh: the mesh.
        rules: the rules; by default those of the `with` block.

    Raises:
        LiftArgumentError: if the mesh does not have an axis that a rule names; one error lists all arrays.
    """
    specs = logical_to_mesh(tree, rules)
    return get_sharding(jax.tree.map(lambda spec: Partitioned(None, spec), specs, is_leaf=_is_spec), mesh)


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)


class RulesFallback(enum.Enum):
    """The action for a constraint if no rule applies to one of its names."""

    AXIS_IS_UNSHARDED = "axis_is_unsharded"
    RAISE_ERROR = "raise_error"
    NO_CONSTRAINT = "no_constraint"


def with_logical_constraint(
    x: PyTree,
    logical_axis_resources: PyTree,
    rules: LogicalRules | None = None,
    mesh: Mesh | None = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
) -> PyTree:
    """Constrain the sharding of arrays by their logical names; does nothing without rules or a mesh.

    Args:
        x: a pytree of arrays.
        logical_axis_resources: the names of their axes, as a pytree prefix; None for arrays without names.
        rules: the rules; by default those of the `with` block.
        mesh: the mesh; None means that of `jax.set_mesh`.
        fallback: the treatment of a name without a rule. By default its axis is not split, so that a model may name
            more axes than are split; `RulesFallback.RAISE_ERROR` finds misspelled names.

    Raises:
        LiftArgumentError: if a name occurs twice, if a name has no rule and `fallback` is `RAISE_ERROR`, or if the mesh
            lacks an axis that a rule names.
    """
    rules = get_logical_axis_rules() if rules is None else rules
    if not rules or logical_axis_resources is None:
        return x

    def lie(names: Names, part: PyTree) -> PyTree:
        if names is None:
            return part
        spec, lost = _assigned(names, rules)
        if lost and fallback is RulesFallback.RAISE_ERROR:
            known = [name for name, _ in rules]
            asked = "" if lost[0] in known else meant(lost[0], known)
            what = f"no rule could be followed for {lost} (rules: {list(rules)}).{asked}"
            fix = f'Add one, such as `("{lost[0]}", None)` for an axis that is not split.'
            raise LiftArgumentError(_where(names), what, fix, given=lost[0], available=tuple(dict.fromkeys(known)))
        if lost and fallback is RulesFallback.NO_CONSTRAINT:
            return part
        try:
            return constrain(part, spec, mesh)
        except LiftArgumentError as error:
            error.reword(where=_where(names))
            raise

    return jax.tree.map(lie, logical_axis_resources, x, is_leaf=_is_names)


def _where(names: Names) -> str:
    """Return logical names, and the running module, for the text of an error."""
    running = context.modules[-1]
    return f"logical names {tuple(names)}{'' if running is None else f' in {place(running)}'}"


def _is_names(value: Any) -> bool:
    if value is None or _is_spec(value):
        return True
    return isinstance(value, tuple) and all(
        one in (None, PartitionSpec.UNCONSTRAINED) or isinstance(one, str) for one in value
    )


class LogicallyPartitioned(Partitioned):
    """Boxed metadata: an array with logical names for its axes.

    Example:
        >>> box = LogicallyPartitioned(jax.numpy.ones((3, 4)), ("embed", "mlp"), rules=(("mlp", "model"),))
        >>> logical_to_mesh_axes(box.names, box.rules) == PartitionSpec(None, "model")
        True

    Attributes:
        rules: the rules for this array; None means those of the `with` block.
    """

    rules: LogicalRules | None = field(default=None, pytree_node=False)

    def __post_init__(self) -> None:
        """Make names and rules hashable."""
        super().__post_init__()
        if self.rules is not None:
            object.__setattr__(self, "rules", hashable_rules(self.rules))

    def unbox(self, apply_constraint: bool = True) -> Any:
        """Return the array, constrained as the rules say if there is a mesh.

        Args:
            apply_constraint: whether to constrain it.
        """
        if not apply_constraint or (self.mesh is None and jax.sharding.get_abstract_mesh().empty):
            return self.value
        return with_logical_constraint(self.value, self.names, self.rules, self.mesh)


@dataclasses.dataclass(frozen=True)
class _WithLogicalPartitioning:
    """An initializer that boxes. It is compared by its arguments, so that modules with equal ones share traces."""

    fn: Callable[..., Any]
    names: tuple[Any, ...]
    mesh: Mesh | None
    rules: LogicalRules | None

    def __call__(self, *args: Any, **kwargs: Any) -> LogicallyPartitioned:
        return LogicallyPartitioned(self.fn(*args, **kwargs), self.names, self.mesh, self.rules)


def with_logical_partitioning(
    fn: Callable[..., Any],
    names: Sequence[Any],
    mesh: Mesh | None = None,
    rules: LogicalRules | None = None,
) -> Callable[..., LogicallyPartitioned]:
    """Return an initializer whose value has logical names for its axes.

    Example:
        >>> import linen_like as nn
        >>> init = with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        >>> nn.Dense(2, kernel_init=init).init(jax.random.key(0), jax.numpy.ones(3))["params"]["kernel"].names
        ('embed', 'mlp')

    Args:
        fn: an initializer, or any function that returns an array.
        names: the logical names of its first axes, in order; further axes have none.
        mesh: the mesh; None means that of `jax.set_mesh`.
        rules: the rules; by default those of the `with` block.

    A variable made with it must have at least as many axes as names; otherwise, `LiftArgumentError` is raised.
    """
    return _WithLogicalPartitioning(fn, tuple(names), mesh, None if rules is None else hashable_rules(rules))


def add_metadata_axis(
    target: Target,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
    methods: Methods = None,
) -> Target:
    """Apply `liftcore.add_metadata_axis` to a module class, a method or a function of a module.

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of variables to the position of the axis in their arrays, or to `In`, `Out`,
            `InOut`. Other variables are lifted unchanged.
        metadata_params: passed to boxed metadata that gains the axis, such as the name of the axis, `{PARTITION_NAME:
            "layers"}`.
        methods: the methods of a class to lift; see `nn.vmap`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    # As in Linen, automatic names are those of `map_variables`.
    return lift_by_options(liftcore.add_metadata_axis, locals(), prefix="Map_variables" * len(variable_axes))


def __getattr__(name: str) -> Any:
    raise unknown(__name__, name, "linen_like.elsewhere")


# --- initial values that are sharded ----------------------------------------------------------------------------------


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
        fix = "Pass the module itself: `nn.init_sharded(model, mesh, rules)`."
        raise LiftArgumentError("nn.init_sharded", Expected("a module or a function", target), fix)
    followed = get_logical_axis_rules() if rules is None else rules

    def under_rules(*args: Any, **kwargs: Any) -> Any:
        with logical_axis_rules(followed):
            return init_fn(*args, **kwargs)

    return liftcore.init_sharded(under_rules, mesh, followed or None)

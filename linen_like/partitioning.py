"""Names of axes in separate collections: the older of Linen's two ways to say how variables are sharded on a mesh.

`param_with_axes("kernel", …, axes=("embed", "mlp"))` makes the parameter and, beside it, the entry `kernel_axes` in the
collection `params_axes`. The newer way puts variables themselves in boxed metadata, see `spmd`, with the same names and
rules. Functions that are the same in both ways are available here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec

import liftcore
from liftcore import FrozenDict, Variable
from liftcore.errors import Expected, LiftArgumentError
from liftcore.filters import leaves_of
from liftcore.lazy import unknown
from liftcore.meta import PARTITION_NAME
from liftcore.struct import PyTreeNode, field
from liftcore.traverse_util import unflatten_dict
from liftcore.typing import Filter, InOutAxes, PyTree

from .lifecycle.binding import bound_scope, place
from .lifecycle.context import context
from .lifting import Methods
from .module import Module
from .spmd import (
    LogicalRules,
    RulesFallback,
    add_metadata_axis,
    get_logical_axis_rules,
    logical_axis_rules,
    logical_to_mesh,
    logical_to_mesh_axes,
    with_logical_constraint,
)
from .transforms import compilation
from .transforms.control_flow import scan
from .transforms.mapping import vmap

__all__ = [
    "AxisMetadata",
    "LogicalRules",
    "PartitionedVariable",
    "RulesFallback",
    "axis_rules",
    "get_axis_names",
    "get_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "param_with_axes",
    "remat",
    "scan_with_axes",
    "variable_with_axes",
    "vmap_with_axes",
    "with_sharding_constraint",
]

Target = TypeVar("Target", bound=Callable[..., Any])

axis_rules = logical_axis_rules
get_axis_rules = get_logical_axis_rules
with_sharding_constraint = with_logical_constraint

_SUFFIX = "_axes"


class AxisMetadata(PyTreeNode, liftcore.meta.AxisMetadata):
    """The names of the axes of one variable, as an entry of a collection such as `params_axes`.

    Attributes:
        names: a name or None for each axis; for a pytree of arrays, a pytree of such names.
    """

    names: Any = field(pytree_node=False)
    _counts_from_end = True

    def unbox(self) -> Any:
        """Return the names."""
        return self.names

    def replace_boxed(self, value: Any) -> AxisMetadata:
        """Return metadata with other names."""
        return AxisMetadata(value)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> AxisMetadata:
        """Add the name of a new axis."""
        new = params.get(PARTITION_NAME)

        def more(names: tuple[str | None, ...]) -> tuple[str | None, ...]:
            place = index if index >= 0 else len(names) + 1 + index
            return (*names[:place], new, *names[place:])

        return AxisMetadata(_map_names(more, self.names))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> AxisMetadata:
        """Remove the name of an axis."""

        def fewer(names: tuple[str | None, ...]) -> tuple[str | None, ...]:
            place = index if index >= 0 else len(names) + index
            return (*names[:place], *names[place + 1 :])

        return AxisMetadata(_map_names(fewer, self.names))


class PartitionedVariable(Variable):
    """A variable whose value is constrained by the names of its axes, both when it is read and when it is set.

    Args:
        variable: the variable.
        axes: the logical names of its axes.
        fallback: the treatment of a name without a rule.
    """

    def __init__(self, variable: Variable, axes: Sequence[str | None], fallback: RulesFallback) -> None:
        super().__init__(variable.scope, variable.collection, variable.name)
        self._axes, self._fallback = _as_names(axes), fallback

    @property
    def value(self) -> Any:
        """The value, constrained."""
        return self._constrained(super().value)

    @value.setter
    def value(self, value: Any) -> None:
        Variable.value.fset(self, self._constrained(value))  # type: ignore[attr-defined]

    def _constrained(self, value: Any) -> Any:
        return with_logical_constraint(value, self._axes, fallback=self._fallback)


def param_with_axes(
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: Any = None,
    module: Module | None = None,
    **init_kwargs: Any,
) -> Any:
    """Return a parameter, constrained by the names of its axes; these are kept in the collection `params_axes`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Product(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x @ param_with_axes("kernel", nn.initializers.ones, (3, 2), axes=("embed", "mlp"))
        >>> variables = Product().init(jax.random.key(0), jax.numpy.ones(3))
        >>> get_axis_names(variables["params_axes"])["kernel"] == PartitionSpec("embed", "mlp")
        True

    Args:
        name: the name of the parameter.
        init_fn: the initializer.
        *init_args: further arguments of the initializer; the first is usually the shape.
        axes: a name or None for each of the first axes; for a pytree, a pytree of such names. Without it, this is
            `Module.param`.
        module: the module that the parameter belongs to; by default the one whose method is running.
        **init_kwargs: further keyword arguments of the initializer.

    Raises:
        LiftArgumentError: if no method of a module is running, or there are more names than axes.
    """
    owner = _owner("param_with_axes", name, module)
    value = owner.param(name, init_fn, *init_args, **init_kwargs)
    if axes is None:
        return value
    _keep_names(owner, "params", name, axes, value)
    return with_logical_constraint(value, _as_names(axes))


def variable_with_axes(
    collection: str,
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: Any = None,
    module: Module | None = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
    **init_kwargs: Any,
) -> Variable:
    """Return a variable that is always constrained by the names of its axes; these are kept in `{collection}_axes`.

    Args:
        collection: the name of the collection.
        name: the name of the variable.
        init_fn: makes the initial value; without it the variable must exist.
        *init_args: the arguments of `init_fn`.
        axes: a name or None for each of the first axes; for a pytree, a pytree of such names. Without it, this is
            `Module.variable`.
        module: the module that the variable belongs to; by default the one whose method is running.
        fallback: the treatment of a name without a rule.
        **init_kwargs: the keyword arguments of `init_fn`.

    Raises:
        LiftArgumentError: if no method of a module is running, or there are more names than axes.
    """
    owner = _owner("variable_with_axes", name, module)
    variable = owner.variable(collection, name, init_fn, *init_args, **init_kwargs)
    if axes is None:
        return variable
    _keep_names(owner, collection, name, axes, variable.value)
    return PartitionedVariable(variable, axes, fallback)


def get_axis_names(axes_metadata: Mapping[str, Any]) -> FrozenDict[str, Any]:
    """Return a `PartitionSpec` of names for each variable, under the names of the variables themselves.

    Args:
        axes_metadata: a collection such as `params_axes`.

    Raises:
        LiftArgumentError: if it holds anything but `AxisMetadata`.
    """
    named = {}
    for path, value in leaves_of(axes_metadata):
        if not isinstance(value, AxisMetadata):
            where = f'"{"/".join(path)}" in get_axis_names'
            fix = 'Pass a collection of names, `variables["params_axes"]`.'
            raise LiftArgumentError(where, Expected("AxisMetadata", value), fix, variable="/".join(path))
        spec = None if value.names is None else _map_names(lambda names: PartitionSpec(*names), value.names)
        named[(*path[:-1], path[-1].removesuffix(_SUFFIX))] = spec
    return FrozenDict(unflatten_dict(named))


def remat(
    target: Target,
    variables: Filter = True,
    rngs: Filter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., Any] | None = None,
    methods: Methods = None,
) -> Target:
    """Like `nn.remat`, but `static_argnums` does not count the module: number 0 is the first argument after it.

    Args:
        target: a Module class, or a function whose first argument is a module.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        concrete: must be False; JAX has removed this option.
        prevent_cse: whether to keep the compiler from undoing the rematerialization by merging equal operations.
            Inside a `scan`, False is enough and faster.
        static_argnums: the positions of arguments that Python code needs as values, such as flags. The first argument
            after the module is 0; negative positions count from the end.
        policy: the intermediate values to store anyway: one of `jax.checkpoint_policies`; by default none.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
    counted = tuple(number if number < 0 else number + 1 for number in numbers)
    return compilation.remat(target, variables, rngs, concrete, prevent_cse, counted, policy, methods)


def scan_with_axes(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    axis_name: str = "layers",
    axes_collections: Sequence[str] = ("params",),
    data_transform: Callable[..., Any] | None = None,
    methods: Methods = None,
) -> Target:
    """Like `nn.scan`, and adds the name of the axis of iterations to the names that `param_with_axes` keeps.

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        in_axes: the axis to slice for each argument after the carry, or `broadcast` to pass the whole argument to each
            iteration; a pytree prefix.
        out_axes: the new axis of each stacked result, or `broadcast` for a value that is the same in all iterations.
        length: the number of iterations; needed only if nothing is sliced.
        reverse: whether to run from the last slice to the first.
        unroll: the number of iterations in one step of the compiled loop; True for all of them.
        axis_name: the name of the axis of iterations. It is added to the names of the variables; collectives
            cannot use it.
        axes_collections: the collections whose variables have names; each must be a key of `variable_axes`.
        data_transform: must be None: it would be called with the groups of flax's core, which differ from those here.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    of_scan = dict(locals())
    del of_scan["axis_name"], of_scan["axes_collections"]
    names = dict.fromkeys(axes_collections, axis_name)
    _check_collections("axes_collections of scan_with_axes", names, variable_axes)
    of_scan["variable_broadcast"] = liftcore.filters.union(variable_broadcast, _collections(names))
    return _with_names(scan(**of_scan), variable_axes, names, methods)


def vmap_with_axes(
    target: Target,
    variable_axes: Mapping[Any, Any],
    split_rngs: Mapping[Any, bool] = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    partitioning_axis_names: Mapping[str, str] = liftcore.NO_AXES,
    spmd_axis_name: Any = None,
    methods: Methods = None,
) -> Target:
    """Like `nn.vmap`, and adds the name of the new axis to the names that `param_with_axes` keeps.

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
        partitioning_axis_names: maps each collection whose variables have names to the name of the new axis. Each
            collection must be a key of `variable_axes`.
        spmd_axis_name: the mesh axes over which the mapped axis is sharded, for `with_sharding_constraint` inside.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    names = partitioning_axis_names
    _check_collections("partitioning_axis_names of vmap_with_axes", names, variable_axes)
    shared = dict.fromkeys(_collections(names))
    axes = {**variable_axes, **shared}
    mapped = vmap(target, axes, split_rngs, in_axes, out_axes, axis_size, axis_name, spmd_axis_name, methods=methods)
    return _with_names(mapped, variable_axes, names, methods)


def _with_names(target: Target, axes: Mapping[Any, Any], names: Mapping[str, str], methods: Methods) -> Target:
    """Lift a target; outside the lift, the kept names include the name of the new axis."""
    for collection, name in names.items():
        place_of_axis = {f"{collection}{_SUFFIX}": axes[collection]}
        target = add_metadata_axis(target, place_of_axis, {PARTITION_NAME: name}, methods)
    return target


def _collections(names: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the collections that hold the names of axes."""
    return tuple(f"{collection}{_SUFFIX}" for collection in names)


def _check_collections(where: str, names: Mapping[str, Any], variable_axes: Mapping[Any, Any]) -> None:
    missing = [collection for collection in names if collection not in variable_axes]
    if missing:
        what = f"{missing} is not in `variable_axes`, so its variables get no new axis (given: {list(variable_axes)})."
        fix = f'Give it an axis there, `variable_axes={{"{missing[0]}": 0}}`, or leave it out here.'
        raise LiftArgumentError(
            where, what, fix, collection=missing[0], option="variable_axes", given=list(variable_axes)
        )


def _owner(what: str, name: str, module: Module | None) -> Module:
    owner: Module | None = context.modules[-1] if module is None else module
    if owner is None:
        raise LiftArgumentError(
            f'{what}("{name}")',
            "no method of a module is running, so it belongs to no module.",
            "Call it in `setup` or in a compact method.",
            given=name,
        )
    bound_scope(owner, f'{what}("{name}")')
    return owner


def _as_names(axes: Any) -> Any:
    """Return names as a tuple, and a pytree of names unchanged."""
    return tuple(axes) if isinstance(axes, list) and _is_names(tuple(axes)) else axes


def _is_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(name is None or isinstance(name, str) for name in value)


def _map_names(fn: Callable[[tuple[str | None, ...]], Any], names: Any) -> Any:
    """Apply a function to the names of one array, or of each array of a pytree."""
    return jax.tree.map(fn, _as_names(names), is_leaf=_is_names)


def _keep_names(owner: Module, collection: str, name: str, axes: Any, value: PyTree) -> None:
    """Store the names of all axes of a variable; those beyond the last given name are None.

    A lift that adds an axis then knows where its name belongs.
    """

    def filled(names: Any, part: PyTree) -> tuple[str | None, ...]:
        ranks = sorted({jax.numpy.ndim(leaf) for leaf in jax.tree.leaves(part)})
        if not _is_names(names) or len(ranks) > 1 or any(rank < len(names) for rank in ranks):
            where = f'axes of "{name}" in {place(owner)}'
            what = Expected(f"at most {ranks} names or None, one for each axis", given=names)
            raise LiftArgumentError(where, what, 'Name each of them: `axes=("embed", None)`.', option="axes")
        return (*names, *[None] * (max(ranks, default=0) - len(names)))

    axes = jax.tree.map(filled, _as_names(axes), value, is_leaf=_is_names)
    kept = f"{collection}{_SUFFIX}"
    if owner.is_mutable_collection(kept):
        owner.variable(kept, f"{name}{_SUFFIX}", lambda: AxisMetadata(axes))


def __getattr__(name: str) -> Any:
    raise unknown(__name__, name, "linen_like.elsewhere")

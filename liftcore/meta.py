"""Boxed metadata: variables with names for their axes, to place their arrays on a mesh of devices.

A box is a pytree node around the arrays of a variable. An initializer may return one. `init` then keeps it in the
variables, and code that reads the variable receives its content. Lifts that stack variables along an axis add the axis
to each box on the way out, and remove it on the way in. All functions here leave values without a box unchanged.

    AxisMetadata                    the interface of a box, for custom boxes
    unbox, replace_boxed            take the values out of a tree, or replace the values in its boxes
    add_axis, remove_axis           add or remove an axis in all boxes of a tree
    Partitioned, with_partitioning  the box with one name per axis, and initializers that return it
    get_partition_spec, get_sharding, constrain  convert these names to JAX's types
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from . import struct
from .caches import bounded
from .errors import Expected, LiftArgumentError
from .pytrees import has_node
from .texts import path_text
from .typing import PyTree

if TYPE_CHECKING:
    from .mesh_specs import LogicalRules

__all__ = [
    "PARTITION_NAME",
    "AxisMetadata",
    "AxisName",
    "Partitioned",
    "add_axis",
    "constrain",
    "get_partition_spec",
    "get_sharding",
    "has_boxes",
    "is_box",
    "remove_axis",
    "replace_boxed",
    "unbox",
    "with_partitioning",
]

PARTITION_NAME = "partition_name"
"""The key in `metadata_params` for the name of the axis that a lift adds."""

AxisName: TypeAlias = Any
"""The name of one axis: a string, a tuple of strings, or None for an unnamed axis."""


class AxisMetadata(abc.ABC):
    """The base class of boxes: a box contains the arrays of one variable, and has metadata for each of their axes.

    A subclass must be a pytree node, such as a `liftcore.struct.PyTreeNode`, with the content as children and the
    metadata as static fields. When `add_axis` is called, the arrays in the box have the axis already; when
    `remove_axis` is called, they still have it. Both keep the arrays: where a lift creates a variable, it must find
    them again in the box.
    """

    __one_variable__ = True
    """For filters over pytrees: what is in the box is not a variable of its own."""

    _counts_from_end = False
    """Whether `add_axis` and `remove_axis` take a negative index too: a box of names alone has no arrays to count."""

    @abc.abstractmethod
    def unbox(self) -> Any:
        """Return the content of the box."""

    @abc.abstractmethod
    def replace_boxed(self, value: Any) -> Self:
        """Return the same box around another value.

        Args:
            value: the new value.
        """

    @abc.abstractmethod
    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Return the box with one axis more.

        Args:
            index: the position of the axis in the arrays, counted from the front.
            params: the `metadata_params` of the lift that adds it.
        """

    @abc.abstractmethod
    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Return the box with one axis less: the inverse of `add_axis`.

        Args:
            index: the position of the axis.
            params: the `metadata_params`, as for `add_axis`.
        """


def is_box(value: Any) -> bool:
    """Whether a value is a box.

    Args:
        value: any value.
    """
    return isinstance(value, AxisMetadata)


def has_boxes(tree: PyTree) -> bool:
    """Whether a pytree contains a box.

    Args:
        tree: any pytree.
    """
    return has_node(tree, AxisMetadata)


@bounded(256)
def is_array_type(kind: type) -> bool:
    """Whether the values of a type are arrays, as most variables are, and not boxes.

    Args:
        kind: the type.
    """
    return issubclass(kind, (jax.Array, jax.core.Tracer, np.ndarray))


def unbox(tree: PyTree) -> PyTree:
    """Return a pytree without its boxes.

    Example:
        >>> unbox({"kernel": Partitioned(1.0, ("in", "out")), "bias": 2.0})
        {'bias': 2.0, 'kernel': 1.0}

    Args:
        tree: any pytree.
    """
    if is_array_type(type(tree)):
        return tree
    if isinstance(tree, AxisMetadata):
        return unbox(tree.unbox())
    return _map_boxes(lambda box: unbox(box.unbox()), tree)


def replace_boxed(tree: PyTree, values: PyTree) -> PyTree:
    """Return a pytree with other values in its boxes: the inverse of `unbox`.

    Example:
        >>> replace_boxed({"kernel": Partitioned(1.0, ("in", "out"))}, {"kernel": 2.0})
        {'kernel': Partitioned(value=2.0, names=('in', 'out'), mesh=None)}

    Args:
        tree: a pytree with boxes.
        values: values with the structure of the unboxed tree. A box among them replaces the old one. If the structure
            differs, the boxes cannot be assigned, and the values are returned unchanged.
    """
    if isinstance(tree, AxisMetadata):
        return values if is_box(values) else tree.replace_boxed(values)
    if tree is None or hasattr(tree, "shape") or not has_boxes(tree):
        return values
    try:
        return jax.tree.map(replace_boxed, tree, values, is_leaf=is_box)
    except (TypeError, ValueError):
        return values


def add_axis(tree: PyTree, index: int, params: Mapping[Any, Any]) -> PyTree:
    """Return a pytree with one axis more in its boxes.

    Example:
        >>> import jax.numpy as jnp
        >>> stacked = Partitioned(jnp.ones((3, 4, 5)), ("in", "out"))
        >>> add_axis(stacked, -1, {PARTITION_NAME: "layers"}).names
        ('in', 'out', 'layers')

    Args:
        tree: a pytree; the arrays in its boxes have the axis already.
        index: the position of the axis in these arrays; a negative one counts from the end.
        params: the `metadata_params` of the lift.
    """
    return _map_boxes(lambda box: box.add_axis(_from_front(box, index), params), tree)


def remove_axis(tree: PyTree, index: int, params: Mapping[Any, Any]) -> PyTree:
    """Return a pytree with one axis removed from its boxes: the inverse of `add_axis`.

    Args:
        tree: a pytree; the arrays in its boxes still have the axis.
        index: the position of the axis in these arrays; a negative one counts from the end.
        params: the `metadata_params` of the lift.

    Raises:
        LiftArgumentError: if a box has another name for the axis.
    """
    return _map_boxes(lambda box: box.remove_axis(_from_front(box, index), params), tree)


def _map_boxes(fn: Callable[[Any], Any], tree: PyTree) -> PyTree:
    if not has_boxes(tree):
        return tree
    return jax.tree.map(lambda leaf: fn(leaf) if is_box(leaf) else leaf, tree, is_leaf=is_box)


def _from_front(box: AxisMetadata, index: int) -> int:
    if index >= 0 or box._counts_from_end:
        return index
    ranks = {np.ndim(leaf) for leaf in jax.tree.leaves(box)}
    if len(ranks) != 1 or index < -max(ranks):
        raise LiftArgumentError(
            type(box).__name__,
            f"axis {index} counts from the end, but the arrays in the box have {sorted(ranks)} dimensions.",
            "Count the axis from the front.",
            given=index,
        )
    return index + ranks.pop()


# --- names ------------------------------------------------------------------------------------------------------------


class Partitioned(struct.PyTreeNode, AxisMetadata):
    """A box that names each axis of an array after an axis of a mesh, to describe how the array is sharded.

    If a mesh is known, from the box or from `jax.set_mesh`, an array that is read from the box is constrained to this
    sharding.

    Example:
        >>> box = Partitioned(jax.numpy.ones((3, 4)), ("data", None))
        >>> box.add_axis(0, {PARTITION_NAME: "layers"}).get_partition_spec() == PartitionSpec("layers", "data", None)
        True

    Attributes:
        value: an array.
        names: for each axis, the name of a mesh axis, a tuple of several names, or None. Axes beyond the last name are
            unnamed, too.
        mesh: the mesh, or None for the mesh of `jax.set_mesh`.
    """

    value: Any
    names: tuple[AxisName, ...] = struct.field(pytree_node=False)
    mesh: Mesh | None = struct.field(default=None, pytree_node=False)

    def __post_init__(self) -> None:
        """Convert a list of names, or a `PartitionSpec`, to a tuple, because names are compared and hashed."""
        if type(self.names) is not tuple:
            object.__setattr__(self, "names", tuple(self.names))

    def unbox(self, apply_constraint: bool = True) -> Any:
        """Return the array, constrained to the sharding that the names describe, if there is a mesh.

        Args:
            apply_constraint: whether to constrain it.
        """
        if not apply_constraint:
            return self.value
        return constrain(self.value, self.get_partition_spec(), self.mesh)

    def replace_boxed(self, value: Any) -> Self:
        """Return the same names for another array."""
        return self.replace(value=value)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Return the box with one name more: `params[PARTITION_NAME]`, or None if that is missing."""
        before = [*self.names, *[None] * (index - len(self.names))]
        return self.replace(names=(*before[:index], params.get(PARTITION_NAME), *before[index:]))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Return the box with one name less.

        Raises:
            LiftArgumentError: if that name is not `params[PARTITION_NAME]` (None, if that is missing).
        """
        found, name = next(iter(self.names[index:]), None), params.get(PARTITION_NAME)
        if found != name:
            raise LiftArgumentError(
                type(self).__name__,
                f"the box (names: {self.names}) calls axis {index} {found!r}, but the lift calls it {name!r}.",
                f"Give the lift `metadata_params={{PARTITION_NAME: {found!r}}}`, or variables that its `init` created.",
                option="metadata_params",
                given=name,
                expected=found,
            )
        return self.replace(names=(*self.names[:index], *self.names[index + 1 :]))

    def get_partition_spec(self) -> PartitionSpec:
        """Return the names as a `PartitionSpec`."""
        return PartitionSpec(*self.names)  # type: ignore[no-untyped-call]

    def get_sharding(self, mesh: Mesh) -> Sharding:
        """Return the sharding of the array on a mesh.

        Args:
            mesh: the mesh to shard over.

        Raises:
            LiftArgumentError: if a name is not an axis of the mesh.
        """
        from .mesh_specs import check_axes  # imported here: most models have no mesh

        spec = self.get_partition_spec()
        check_axes(f"{type(self).__name__} with names {self.names}", spec, mesh)
        return NamedSharding(mesh, spec)


@dataclasses.dataclass(frozen=True)
class _WithPartitioning:
    """An initializer that boxes its value. It compares by value, so a module with one as a field is not retraced."""

    fn: Callable[..., Any]
    names: tuple[AxisName, ...]
    mesh: Mesh | None

    def __call__(self, *args: Any, **kwargs: Any) -> Partitioned:
        return Partitioned(self.fn(*args, **kwargs), self.names, self.mesh)


def with_partitioning(
    fn: Callable[..., Any], names: Sequence[AxisName], mesh: Mesh | None = None
) -> Callable[..., Partitioned]:
    """Return an initializer that names the axes of its value.

    Example:
        >>> init = with_partitioning(jax.nn.initializers.lecun_normal(), ("data", "model"))
        >>> init(jax.random.key(0), (3, 2)).names
        ('data', 'model')

    Args:
        fn: an initializer, or any function that returns an array.
        names: the names of the first axes, in order; see `Partitioned`.
        mesh: the mesh, or None for the mesh of `jax.set_mesh`.

    A variable that is created with it must have at least as many axes as names; otherwise, `LiftArgumentError` is
    raised.
    """
    return _WithPartitioning(fn, tuple(names), mesh)


def get_partition_spec(tree: PyTree) -> PyTree:
    """Return the `PartitionSpec` of each box, an empty one for each other array, and None for all other leaves.

    Example:
        >>> tree = {"kernel": Partitioned(jax.numpy.ones((3, 4)), (None, "model")), "bias": jax.numpy.ones(4)}
        >>> get_partition_spec(tree) == {"kernel": PartitionSpec(None, "model"), "bias": PartitionSpec()}
        True

    Args:
        tree: variables, or the result of `jax.eval_shape` for them.
    """
    return jax.tree.map(_spec, tree, is_leaf=_knows_spec)


def get_sharding(tree: PyTree, mesh: Mesh, rules: LogicalRules | None = None) -> PyTree:
    """Return the shardings of a pytree on a mesh, as `jax.jit` takes them in `out_shardings`.

    Example:
        >>> tree = {"kernel": Partitioned(jax.numpy.ones((3, 4)), ("embed", "mlp")), "bias": jax.numpy.ones(4)}
        >>> mesh = jax.make_mesh((1,), ("model",), devices=jax.devices()[:1])
        >>> shardings = get_sharding(tree, mesh, [("embed", None), ("mlp", "model")])
        >>> shardings["kernel"].spec == PartitionSpec(None, "model")
        True

    Args:
        tree: variables, or what `jax.eval_shape` returns for them.
        mesh: the mesh.
        rules: pairs of a logical name and a mesh axis, several as a tuple, or None for an axis that is not sharded. A
            box with its own rules follows those. Without rules, the names are names of mesh axes.

    Raises:
        LiftArgumentError: if `mesh` is not a mesh, or `rules` are not pairs; if a name is neither in the rules nor an
            axis of the mesh, a mesh axis shards two dimensions of an array, or its size does not divide that of a
            dimension. One error lists all variables.
    """
    from .mesh_specs import check_rules, raise_misfits, spec_on_mesh  # imported here: most models have no mesh

    if not isinstance(mesh, Mesh | AbstractMesh):
        fix = 'Pass the mesh second: `get_sharding(variables, jax.make_mesh((8,), ("data",)), rules)`.'
        raise LiftArgumentError("get_sharding", Expected("a jax.sharding.Mesh", given=mesh), fix)
    rules, found = (None, []) if rules is None else check_rules(rules, mesh)

    def sharding(path: Any, leaf: Any) -> Sharding | None:
        spec = _spec(leaf)
        if spec is None:
            return None
        own = rules if getattr(leaf, "rules", None) is None else leaf.rules
        where = f'"{path_text(path)}"' if path else "get_sharding"
        fitting, misfits = spec_on_mesh(where, tuple(spec), _shape_in(leaf), mesh, own)
        found.extend(misfits)
        return NamedSharding(mesh, PartitionSpec() if misfits else fitting)  # type: ignore[no-untyped-call]

    shardings = jax.tree_util.tree_map_with_path(sharding, tree, is_leaf=_knows_spec)
    raise_misfits(f"shardings on a mesh of {dict(mesh.shape)}", found)
    return shardings


def _shape_in(leaf: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, or of the only array in a box."""
    shapes = {tuple(np.shape(one)) for one in jax.tree.leaves(leaf)}
    return shapes.pop() if len(shapes) == 1 else None


def _knows_spec(value: Any) -> bool:
    return is_box(value) and hasattr(value, "get_partition_spec")


def _spec(leaf: Any) -> PartitionSpec | None:
    if _knows_spec(leaf):
        spec: PartitionSpec = leaf.get_partition_spec()
        return spec
    return PartitionSpec() if hasattr(leaf, "shape") else None  # type: ignore[no-untyped-call]


def constrain(value: PyTree, spec: PartitionSpec, mesh: Mesh | None = None) -> PyTree:
    """Constrain arrays to the sharding that a `PartitionSpec` describes; without a mesh, return them unchanged.

    On a mesh of explicit axes, the arrays are resharded; on one of automatic axes, the constraint goes to the compiler.
    Names of axes that are manual here, inside `shard_map`, are ignored: the array is one device's part along them.

    Example:
        >>> constrain(1.0, PartitionSpec("data"))  # there is no mesh
        1.0

    Args:
        value: a pytree of arrays; one that contains other values, such as shapes, is returned unchanged.
        spec: names of mesh axes.
        mesh: the mesh, or None for the mesh of `jax.set_mesh`.

    Raises:
        LiftArgumentError: if a name is not an axis of the mesh, or the size of the axis does not divide a dimension.
    """
    around: Any = jax.sharding.get_abstract_mesh()
    manual = {name for name, kind in zip(around.axis_names, around.axis_types, strict=True) if kind == AxisType.Manual}
    known: Any = around if mesh is None or manual else mesh
    arrays = jax.tree.leaves(value)
    if known.empty or len(manual) == len(known.axis_names) or not all(is_array_type(type(leaf)) for leaf in arrays):
        return value
    left = PartitionSpec(*(_without(manual, name) for name in spec))  # type: ignore[no-untyped-call]
    from .mesh_specs import check_axes  # imported here: most models have no mesh

    explicit = AxisType.Explicit in known.axis_types
    for shape in dict.fromkeys(map(np.shape, arrays)):
        # The compiler pads parts of unequal sizes, but types of explicit axes require equal sizes.
        check_axes(f"an array of shape {shape}", left, known, shape if explicit else None)
    place: Any = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    return place(value, left if known is around else NamedSharding(known, left))


def _without(manual: set[Any], name: AxisName) -> AxisName:
    """Return an entry of a `PartitionSpec` without the manual axes of the mesh."""
    if isinstance(name, tuple):
        return tuple(one for one in name if one not in manual) or None
    return None if name in manual else name

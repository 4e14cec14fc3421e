"""Variables of objects as values of collections: their places, and their metadata as boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from liftcore import AxisMetadata, is_array, unbox
from liftcore.errors import LiftArgumentError
from liftcore.filters import leaves_of
from liftcore.meta import constrain
from liftcore.traverse_util import unflatten_dict

from ..crossing.inside import AxisNames
from ..graph.definition import Definition, path_text
from ..graph.walk import Place, Walk
from ..objects.pytree import Pytree
from ..spmd import get_partition_spec
from ..variablelib.kinds import RngCount, RngState, collection_of, variable_type_from_name
from ..variablelib.metadata import StaticMetadata
from ..variablelib.variable import Variable

__all__ = [
    "NNXMeta",
    "Names",
    "Placed",
    "Random",
    "hold",
    "kept_value",
    "linen_vars_to_nnx_attrs",
    "nnx_attrs_to_linen_vars",
    "to_linen_var",
    "to_nnx_var",
]

# --- places in a tree of variables ------------------------------------------------------------------------------------


Names = tuple[str, ...]
"""A place in a tree of variables: `(collection, *names)`."""


class Random(NamedTuple):
    """The state of an RNG stream.

    Attributes:
        tag: the name of the stream.
        shape: the shape of its keys.
        is_count: True for the count of the stream, False for its key.
    """

    tag: str
    shape: tuple[int, ...]
    is_count: bool


class Placed(Walk):
    """A walk that records variables, and arrays that are attributes, by their places.

    Attributes:
        definition: the definition; its keys are places without their collections.
        found: the variables and arrays by place.
        random: the state of RNG streams by place. No collection holds it: keys come from the streams of the scope.
    """

    __slots__ = ("definition", "found", "random")

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.found: dict[Names, Any] = {}
        self.random: dict[Names, Random] = {}
        self.definition: Definition = self.define(node, (), lambda path, value: collection_of(value))

    def _variable_parts(self, value: Variable[Any], path: tuple[Any, ...]) -> tuple[Any, Any]:
        parts, form = super()._variable_parts(value, path)
        is_static = form is not None and not parts and not isinstance(value, RngState)
        return (parts, form) if is_static else (value.get_raw_value(), None)  # a pytree is one value of a collection

    def _slot(self, value: Variable[Any], path: tuple[Any, ...], group: str, parts: Any, form: Any) -> tuple[str, Any]:
        names = tuple(map(str, path))
        if isinstance(value, RngState):
            shape = tuple(parts.shape) if is_array(parts) else ()
            self.random[group, *names] = Random(
                value.get_metadata("tag", "default"), shape, isinstance(value, RngCount)
            )
            return group, names
        return self._place(value, path, group)

    def _array_slot(self, value: Any, path: tuple[Any, ...], group: str, place: Place | None) -> tuple[str, Any]:
        return self._place(value, path, group)

    def _place(self, value: Any, path: tuple[Any, ...], group: str) -> tuple[str, Names]:
        names = tuple(map(str, path)) or ("value",)
        if (group, *names) in self.found:
            what = f'two variables of "{group}" have this path once its keys are converted to strings.'
            fix = "Use dict keys that differ as strings."
            raise LiftArgumentError(path_text(path), what, fix, variable=path_text(path), collection=group)
        self.found[group, *names] = value
        return group, names


# --- variables below an object ----------------------------------------------------------------------------------------


def hold(node: Any, names: Iterable[str], variable: Variable[Any]) -> None:
    """Set a variable at a path: update the variable that is there, or make a new attribute.

    If an object on the way lacks the attribute, a dict is made there. A class can make something else: define a method
    `to_nnx__part`. If the path leads into a static value, nothing is done.

    Args:
        node: an object, or a dict, list or tuple of objects.
        names: the names that lead to the variable.
        variable: the variable.

    Raises:
        LiftArgumentError: if a variable of another kind is there.
    """
    *above, name = map(str, names)
    for each in above:
        node = _below(node, each)
    held = _get(node, name)
    if isinstance(held, Variable):
        if type(held) is not type(variable):
            what = (
                f"a {type(held).__name__} and a {type(variable).__name__} have this path; an object can hold only one."
            )
            fix = "Rename one of them, or put it into a scope of its own."
            raise LiftArgumentError(".".join([*above, name]), what, fix, variable=".".join([*above, name]))
        held.set_raw_value(variable.get_raw_value())
    elif isinstance(node, Pytree):
        setattr(node, name, variable)
    elif isinstance(node, dict):
        node[name] = variable


def _below(node: Any, name: str) -> Any:
    held = _get(node, name)
    if held is not None or not isinstance(node, (Pytree, dict)):
        return held
    part = getattr(type(node), "to_nnx__part", None)
    made = {} if part is None else part(node, name)
    if isinstance(node, dict):
        node[name] = made
        return made
    setattr(node, name, made)
    return vars(node)[name]


def _get(node: Any, name: str) -> Any:
    if isinstance(node, Pytree):
        return vars(node).get(name)
    if isinstance(node, Mapping):
        return node.get(name)
    if isinstance(node, (list, tuple)) and name.isdigit() and int(name) < len(node):
        return node[int(name)]
    return None


# --- values and boxes -------------------------------------------------------------------------------------------------


_BOX = "linen_box"
"""The metadata name under which a variable keeps the box that it came in, without its value."""


@jax.tree_util.register_pytree_with_keys_class
class NNXMeta(AxisMetadata):
    """A value boxed with the metadata of its variable.

    Attributes:
        var_type: the kind of the variable.
        value: the value.
        metadata: the metadata by name.
    """

    def __init__(self, var_type: type[Variable[Any]], value: Any, metadata: Mapping[str, Any]) -> None:
        self.var_type, self.value, self.metadata = var_type, value, dict(metadata)

    def unbox(self) -> Any:
        """Return the value, with a sharding constraint from the metadata if there is a mesh."""
        spec = self.get_partition_spec()
        return self.value if spec is None else constrain(self.value, spec, self.metadata.get("mesh"))

    def replace_boxed(self, value: Any) -> NNXMeta:
        """Return a box of the same kind and metadata around another value.

        Args:
            value: the other value.
        """
        return NNXMeta(self.var_type, value, self.metadata)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """Return a box whose metadata has one more axis name.

        Args:
            index: the new axis of the value.
            params: the metadata of the lift; it has the name of the axis under `PARTITION_NAME`.
        """
        metadata = _names(index, params).changed(self.var_type, self.metadata, "", self.value, gains=True)
        return NNXMeta(self.var_type, self.value, metadata)

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """Return a box whose metadata has one axis name fewer.

        Args:
            index: the axis of the value that is removed.
            params: the metadata of the lift; it has the name of the axis under `PARTITION_NAME`.
        """
        metadata = _names(index, params).changed(self.var_type, self.metadata, "", self.value, gains=False)
        return NNXMeta(self.var_type, self.value, metadata)

    def get_partition_spec(self) -> PartitionSpec | None:
        """Return the `PartitionSpec` of the value, or None if the metadata names no axes."""
        if not self.metadata.get("out_sharding"):
            return None
        spec: PartitionSpec = get_partition_spec(self.to_nnx_variable()).get_raw_value()
        return spec

    def to_nnx_variable(self) -> Variable[Any]:
        """Return the variable that the box was made from."""
        return self.var_type.from_metadata(self.value, self.metadata)

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], Any]:
        """Return the value as the only child; kind and metadata are static."""
        return ((jax.tree_util.GetAttrKey("value"), self.value),), (self.var_type, StaticMetadata(self.metadata))

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> NNXMeta:
        """Rebuild the box from its static part and its value.

        Args:
            static: the kind and the metadata.
            children: the value, in a tuple.
        """
        return cls(static[0], next(iter(children)), static[1].metadata)

    def __eq__(self, other: object) -> bool:
        return type(other) is NNXMeta and self._parts() == other._parts()

    __hash__ = None  # type: ignore[assignment]

    def _parts(self) -> Any:
        return self.var_type, StaticMetadata(self.metadata), self.value

    def __repr__(self) -> str:
        return f"NNXMeta({self.var_type.__name__}, {self.value!r}, {self.metadata!r})"


def _names(index: int, params: Mapping[Any, Any]) -> AxisNames:
    return AxisNames({"": index}, params)


def to_linen_var(variable: Variable[Any]) -> Any:
    """Return the value of a variable as a collection stores it: boxed if there is metadata.

    Example:
        >>> import nnx_like as nnx
        >>> to_linen_var(nnx.Param(1.0)), to_linen_var(nnx.Param(1.0, tag="x"))
        (1.0, NNXMeta(Param, 1.0, {'tag': 'x'}))

    Args:
        variable: the variable. If `to_nnx_var` made it, its value is boxed as it was before.
    """
    value, metadata = variable.get_raw_value(), variable.get_metadata()
    box = metadata.get(_BOX)
    if box is None:
        return NNXMeta(type(variable), value, metadata) if metadata else value
    names = metadata.get("out_sharding")
    if names is not None and names != getattr(box, "names", names):  # a lift of objects added or removed an axis
        box = dataclasses.replace(box, names=names)
    return box.replace_boxed(value)


def to_nnx_var(collection: str, value: Any) -> Variable[Any]:
    """Return a variable for a value of a collection, of the kind that is registered for the collection.

    Example:
        >>> import liftcore
        >>> to_nnx_var("params", liftcore.meta.Partitioned(1.0, ("model",))).out_sharding
        ('model',)

    Args:
        collection: the name of the collection. For an unknown name, a new kind is made and registered.
        value: the value, which may be boxed.
    """
    if isinstance(value, NNXMeta):
        return value.to_nnx_variable()
    kind = variable_type_from_name(collection, allow_register=True)
    if not isinstance(value, AxisMetadata):
        return kind.from_metadata(value, {})
    metadata: dict[str, Any] = {_BOX: value.replace_boxed(None)}
    for name, given in (("names", "out_sharding"), ("mesh", "mesh"), ("rules", "sharding_rules")):
        if getattr(value, name, None) is not None:
            metadata[given] = getattr(value, name)
    return kind.from_metadata(unbox(value), metadata)


def nnx_attrs_to_linen_vars(
    nnx_attrs: Any, metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var
) -> dict[str, Any]:
    """Return the variables of an object as plain dicts, `{collection: {name: … value}}`, as `init` returns them.

    A collection has the name of its variables' kind. The state of RNG streams is omitted.

    Example:
        >>> import nnx_like as nnx
        >>> nnx_attrs_to_linen_vars(nnx.Dict(w=nnx.Param(1.0), layers=[nnx.Dict(mean=nnx.BatchStat(0.0))]))
        {'batch_stats': {'layers': {'0': {'mean': 0.0}}}, 'params': {'w': 1.0}}

    Args:
        nnx_attrs: an object, or nested dicts of variables.
        metadata_fn: turns a variable into the value in the dicts; with None, values are not boxed.
    """
    found = Placed(nnx_attrs).found
    return unflatten_dict({place: kept_value(holder, metadata_fn) for place, holder in found.items()})


def kept_value(holder: Any, metadata_fn: Callable[[Variable[Any]], Any] | None) -> Any:
    """Return the value that a collection stores for a variable, or for an array that is an attribute."""
    if not isinstance(holder, Variable):
        return holder
    return holder.get_raw_value() if metadata_fn is None else metadata_fn(holder)


def linen_vars_to_nnx_attrs(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain dicts of variables as nested dicts of `Variable`, which `nnx.update` accepts for an object.

    Names are strings. If the object has lists, call `nnx.restore_int_paths` to turn decimal strings into integers.

    Example:
        >>> linen_vars_to_nnx_attrs({"params": {"dense": {"kernel": 1.0}}})["dense"]["kernel"]
        Param(
          value=1.0
        )

    Args:
        variables: `{collection: {name: … value}}`.

    Raises:
        LiftArgumentError: if two variables of different collections have the same path.
    """
    attributes: dict[str, Any] = {}
    for (collection, *names), value in leaves_of(variables):
        if names:
            hold(attributes, names, to_nnx_var(collection, value))
    return attributes

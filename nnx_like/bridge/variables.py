"""Converts variables of objects to values of collections, and back. Metadata becomes boxed metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from liftcore import AxisMetadata, unbox
from liftcore.meta import constrain

from ..crossing.inside import AxisNames
from ..spmd import get_partition_spec
from ..variablelib.kinds import variable_type_from_name
from ..variablelib.metadata import StaticMetadata
from ..variablelib.variable import Variable
from .holding import hold, leaves_of
from .placing import Placed

__all__ = [
    "NNXMeta",
    "kept_value",
    "linen_vars_to_nnx_attrs",
    "nnx_attrs_to_linen_vars",
    "to_linen_var",
    "to_nnx_var",
]

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
        metadata = _names(index, params).outside(self.var_type, self.metadata, "", self.value)
        return NNXMeta(self.var_type, self.value, metadata)

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """Return a box whose metadata has one axis name fewer.

        Args:
            index: the axis of the value that is removed.
            params: the metadata of the lift; it has the name of the axis under `PARTITION_NAME`.
        """
        metadata = _names(index, params).inside(self.var_type, self.metadata, "", self.value)
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
    found: dict[str, Any] = {}
    for place, holder in Placed(nnx_attrs).found.items():
        below = found
        for name in place[:-1]:
            below = below.setdefault(name, {})
        below[place[-1]] = kept_value(holder, metadata_fn)
    return found


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

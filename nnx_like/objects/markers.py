"""Which attributes of an object are data, and the marks `data` and `static`.

Variables, objects and arrays are data, and so are lists, tuples, dicts and other pytrees that hold them. Everything
else is static. So marks are rarely needed: `data` makes a Python number data, and `static` checks that a value holds no
data.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, dataclass_transform, overload

import jax

from liftcore import is_array

from ..errors import StructureError
from ..variablelib.variable import Variable
from .natives import children_with_path, is_native, items_of

__all__ = [
    "MARK",
    "Data",
    "Static",
    "annotation_mark",
    "data",
    "dataclass",
    "has_data",
    "is_data",
    "is_marked",
    "register_data_type",
    "static",
    "unmarked",
]

Kind = TypeVar("Kind", bound=type)

MARK = "nnx_static"
"""The key in the metadata of a dataclass field for whether the field is static."""

Attribute = TypeVar("Attribute")
_ANNOTATIONS = {"Data": False, "Static": True}

Data: TypeAlias = Annotated[Attribute, "nnx_like.Data"]
"""`name: Data[T]` in the body of a class is the same as `name: T = data()`."""

Static: TypeAlias = Annotated[Attribute, "nnx_like.Static"]
"""`name: Static[T]` in the body of a class is the same as `name: T = static()`."""

_VALUE = "nnx_value"
_NONE = object()
_data_types: tuple[type, ...] = (Variable, jax.ShapeDtypeStruct)
_STATIC_TYPES = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType}
)


def register_data_type(kind: Kind, /) -> Kind:
    """Register a class whose instances are data when they are attributes.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.register_data_type
        ... class Handle:
        ...     pass
        >>> nnx.is_data(Handle())
        True

    Args:
        kind: the class. The function can be used as a decorator.

    Returns:
        The class.
    """
    global _data_types
    if kind not in _data_types:
        _data_types = (*_data_types, kind)
    return kind


def is_data(value: Any, /) -> bool:
    """Return whether a value itself is data: a variable, an object, an array, or of a registered type.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> nnx.is_data(jnp.ones(2)), nnx.is_data(nnx.Param(1)), nnx.is_data(1), nnx.is_data([nnx.Param(1)])
        (True, True, False, False)

    Args:
        value: any value. For a container, use `has_data`.
    """
    if type(value) in _STATIC_TYPES:
        return False
    return isinstance(value, _data_types) or is_array(value) or _is_ref(value)


def _is_ref(value: Any) -> bool:
    """Return whether a value is a JAX array reference, which changes in place."""
    kind = type(value)
    return kind.__name__ == "Ref" and kind.__module__.partition(".")[0] in ("jax", "jaxlib")


def has_data(value: Any, /) -> list[Any]:
    """Return all data in a pytree.

    Example:
        >>> import nnx_like as nnx
        >>> [one.get_value() for one in nnx.has_data({"a": [nnx.Param(1), "text"], "b": nnx.Param(2)})]
        [1, 2]
        >>> nnx.has_data(["text"])
        []

    Args:
        value: any pytree.

    Returns:
        The data in it, in the order of its leaves. An attribute is data if this is not empty.
    """
    return _data(value, ())


def _data(value: Any, above: tuple[Any, ...]) -> list[Any]:
    kind = type(value)
    if kind in _STATIC_TYPES or any(value is one for one in above):  # a list may contain itself
        return []
    if kind is tuple or is_native(value):
        return [one for _, part in items_of(value) for one in _data(part, (*above, value))]
    if is_data(value):
        return [value]
    if jax.tree_util.all_leaves((value,)):
        return []
    return [one for _, part in children_with_path(value)[0] for one in _data(part, (*above, value))]


def data(value: Any = _NONE, /, **options: Any) -> Any:
    """Mark an attribute as data, whatever its value.

    Values that hold arrays, variables or objects are data without a mark. A Python number or a string is static by
    default; if you mark it as data, it is a leaf of the object as a pytree.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> class Counter(nnx.Pytree):
        ...     def __init__(self):
        ...         self.count = nnx.data(0)
        ...         self.limit = 10
        >>> jax.tree.leaves(Counter())
        [0]
        >>> @nnx.dataclass
        ... class Point(nnx.Pytree):
        ...     x: float = nnx.data()
        ...     name: str = "origin"
        >>> jax.tree.leaves(Point(1.5))
        [1.5]

    Args:
        value: the value of the attribute; omit it to mark a field of a class.
        **options: options of `dataclasses.field`, if a field is marked.

    Returns:
        A mark, which the assignment removes.
    """
    return _mark(value, False, options)


def static(value: Any = _NONE, /, **options: Any) -> Any:
    """Mark an attribute as static, that is, as a part of the structure, and check that it holds no data.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.dataclass
        ... class Layer(nnx.Module):
        ...     size: int = nnx.static(default=3)
        >>> Layer().size
        3

    Args:
        value: the value of the attribute; omit it to mark a field of a class.
        **options: options of `dataclasses.field`, if a field is marked.

    Returns:
        A mark, which the assignment removes.
    """
    return _mark(value, True, options)


def _mark(value: Any, is_static: bool, options: Mapping[str, Any]) -> Any:
    given = {} if value is _NONE else {_VALUE: value}
    metadata = {**(options.get("metadata") or {}), **given, MARK: is_static}
    return dataclasses.field(**{**options, "metadata": metadata})


def annotation_mark(annotation: Any) -> bool | None:
    """Return True for the annotation `Static`, False for `Data`, and None for any other annotation.

    Args:
        annotation: the annotation, or a string with it.
    """
    if isinstance(annotation, str):
        found = re.match(r"(?:\w+\.)*(Data|Static)\[", annotation)
        return _ANNOTATIONS[found[1]] if found else None
    for one in getattr(annotation, "__metadata__", ()):
        if isinstance(one, str) and one.startswith("nnx_like."):
            return _ANNOTATIONS.get(one.removeprefix("nnx_like."))
    return None


def is_marked(value: Any) -> bool:
    """Return whether a value is the result of `data` or `static`."""
    return type(value) is dataclasses.Field and MARK in value.metadata


def unmarked(owner: str, name: str, mark: Any) -> tuple[Any, bool]:
    """Remove a mark from a value.

    Args:
        owner: the class of the object, for errors.
        name: the attribute that is assigned.
        mark: the result of `data` or `static`.

    Returns:
        The value, and whether it is static.

    Raises:
        StructureError: if it marks a field of a class and not a value.
    """
    if _VALUE not in mark.metadata:
        kind = "static" if mark.metadata[MARK] else "data"
        raise StructureError(
            f"{owner}.{name}",
            f"it was assigned a mark without a value, `{kind}()`.",
            f"Write `{kind}(value)`; without a value it marks a field in the body of a class.",
        )
    return mark.metadata[_VALUE], mark.metadata[MARK]


@overload
def dataclass(cls: Kind, /) -> Kind: ...
@overload
def dataclass(cls: None = None, /, **options: Any) -> Callable[[Kind], Kind]: ...
@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Make a dataclass from an object's class: `data` and `static` mark its fields.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.dataclass
        ... class Scale(nnx.Module):
        ...     factor: nnx.Param
        ...     name: str = "scale"
        >>> Scale(nnx.Param(2.0)).name
        'scale'

    Args:
        cls: the class, a subclass of `Pytree`.
        **options: options of `dataclasses.dataclass`.

    Returns:
        The class; without `cls`, a decorator.

    Raises:
        StructureError: if the class is not a subclass of `Pytree`.
    """

    def make(cls: Any) -> Any:
        if not issubclass(cls, _data_types):
            raise StructureError(
                f"dataclass({cls.__name__})",
                "it is not a subclass of `Pytree`.",
                "Derive it from `Pytree` or `Module`, or write `dataclasses.dataclass`.",
            )
        return dataclasses.dataclass(**options)(cls)

    return make if cls is None else make(cls)

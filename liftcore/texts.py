"""Texts of paths and types, for errors and reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from .typing import PyTree

__all__ = ["ArrayType", "aval_of", "path_text", "type_text", "types_text"]


def path_text(path: Iterable[Any]) -> str:
    """Return a path of names, or of JAX's keys, as text. The keys of a variable that is a dict may be any values.

    Example:
        >>> path_text(("params", "w")), path_text(jax.tree.leaves_with_path({"params": {"w": [1]}})[0][0])
        ('params/w', 'params/w/0')
    """
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def aval_of(value: Any) -> Any:
    """Return the abstract value of an array; an abstract value is returned unchanged."""
    return value if isinstance(value, jax.core.ShapedArray | jax.ShapeDtypeStruct) else jax.typeof(value)


class ArrayType(NamedTuple):
    """The type of an array, apart from its weak type.

    Attributes:
        dtype: its dtype.
        shape: its shape.
        spec: the partitioning of each dimension over explicit mesh axes.
    """

    dtype: Any
    shape: tuple[int, ...]
    spec: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> ArrayType:
        """Return the type of an array or of an abstract value."""
        aval = aval_of(value)
        spec = tuple(getattr(getattr(aval, "sharding", None), "spec", ()))
        return cls(aval.dtype, aval.shape, (*spec, *[None] * (len(aval.shape) - len(spec))))

    def __str__(self) -> str:
        pairs = zip(self.shape, self.spec, strict=True)
        return f"{self.dtype}[{','.join(str(size) if axes is None else f'{size}@{axes}' for size, axes in pairs)}]"


def type_text(value: Any) -> str:
    """Return the type of an array as text, such as `float32[2,3]`; for other values, the name of their class.

    Example:
        >>> type_text(jax.numpy.ones((2, 3))), type_text("text")
        ('float32[2,3]', 'str')
    """
    try:
        return str(ArrayType.of(value))
    except TypeError:
        return type(value).__name__


def types_text(value: PyTree) -> str:
    """Return the types of a pytree as text.

    Example:
        >>> types_text({"w": jax.numpy.ones(3)})
        "{'w': 'float32[3]'}"
    """
    return str(jax.tree.map(type_text, value))

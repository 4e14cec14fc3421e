"""Texts of paths and types, for errors and reports, and what an error keeps of a value."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from .typing import PyTree

__all__ = ["ArrayType", "aval_of", "closest", "detached", "path_text", "type_text", "types_text"]


def path_text(path: Iterable[Any]) -> str:
    """Return a path of names, or of JAX's keys, as text. The keys of a variable that is a dict may be any values.

    Example:
        >>> path_text(("params", "w")), path_text(jax.tree.leaves_with_path({"params": {"w": [1]}})[0][0])
        ('params/w', 'params/w/0')
    """
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelled one is likely to stand for; None if there is none, or it is known.

    Names that differ only in a number at the end are not taken for misspelled.

    Example:
        >>> closest("param", ["cache", "params"]), closest("state", ["params"])
        ('params', None)
    """
    names, plain = list(known), name.rstrip("0123456789")
    others = [one for one in names if one.rstrip("0123456789") != plain]
    near = [] if name in names else difflib.get_close_matches(name, others, 1, 0.8)
    return near[0] if near else None


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
        dtype = "float0" if self.dtype == jax.dtypes.float0 else self.dtype
        return f"{dtype}[{','.join(str(size) if axes is None else f'{size}@{axes}' for size, axes in pairs)}]"


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


_DATA = (str, int, float, complex, bytes, type(None), np.dtype, jax.ShapeDtypeStruct, jax.sharding.PartitionSpec)


def detached(value: Any, words: Callable[[Any], str]) -> Any:
    """Return what an error may keep of a value: data, the abstract value of an array, any other value in words.

    Example:
        >>> detached((2, "w"), repr), detached(jax.numpy.ones(3), repr), detached([print], str)
        ((2, 'w'), ShapeDtypeStruct(shape=(3,), dtype=float32), '[<built-in function print>]')

    Args:
        value: the value. Tuples, lists and dicts of data are data.
        words: returns the words for a value.
    """
    if value is not None and _is_data(value):  # a fact that is None does not apply
        return copy.deepcopy(value)  # the error is not to change with it
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
    return words(value)


def _is_data(value: Any, depth: int = 3) -> bool:
    """Whether a value is data of a size that an error may keep."""
    if type(value) is dict:
        return _is_data([*value, *value.values()], depth)
    if type(value) in (tuple, list):
        return depth > 0 and len(value) <= _MOST and all(_is_data(one, depth - 1) for one in value)
    return isinstance(value, _DATA)


_MOST = 100
"""The most entries of a list that an error keeps."""

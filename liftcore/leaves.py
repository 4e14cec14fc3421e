"""Leaves of pytrees: what each of them is, and how to take some of them out of a pytree and put them back.

All styles ask here whether a leaf is an array, a number, the type of an array or a static value. What counts is what it
is an instance of, never its exact type: `jax.checkpoint` returns numbers and NumPy arrays of private subclasses, the
`float64` of NumPy is a `float`, and a member of an `IntEnum` is an `int`. JAX traces all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ._compat import NUMPY_ARRAYS

__all__ = [
    "Others",
    "Size",
    "has_type",
    "holds_arrays",
    "is_array",
    "is_array_like",
    "is_array_or_struct",
    "is_number",
    "is_numpy",
    "is_traceable",
    "number_type",
    "split_leaves",
]

_NUMBERS = (bool, int, float, complex)  # each is tested before the types that it is a subclass of

_ARRAYS: set[type] = set()
"""The types of JAX's arrays: this lookup takes a third of the time of `isinstance`."""


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of JAX or NumPy, or a NumPy scalar, that JAX can trace.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> [is_array(leaf) for leaf in (jax.numpy.ones(2), np.ones(2), np.float32(1), 1.0, "text", np.array("text"))]
        [True, True, True, False, False, False]

    Args:
        leaf: any value.
    """
    if type(leaf) in _ARRAYS:
        return True
    if isinstance(leaf, jax.Array):
        if not isinstance(leaf, jax.core.Tracer):  # for tracers, `isinstance` depends on the value, not on the type
            _ARRAYS.add(type(leaf))
        return True
    return isinstance(leaf, NUMPY_ARRAYS) and leaf.dtype.kind not in "OSTUMm" and leaf.dtype.fields is None


def is_traceable(leaf: Any) -> bool:
    """Whether a leaf is an array, or a mutable array of `jax.new_ref`: what lifts of any values trace by default.

    Example:
        >>> is_traceable(jax.numpy.ones(2)), is_traceable(jax.new_ref(jax.numpy.ones(2))), is_traceable(1.0)
        (True, True, False)

    Args:
        leaf: any value.
    """
    if type(leaf) in _ARRAYS or is_array(leaf) or type(leaf) is jax.Ref:
        return True
    return isinstance(leaf, jax.core.Tracer) and isinstance(leaf, jax.Ref)  # the second test alone is ten times slower


def is_numpy(leaf: Any) -> bool:
    """Whether a leaf is an array of NumPy of any dtype, or one of those that `jax.checkpoint` returns; not a scalar.

    Example:
        >>> [is_numpy(leaf) for leaf in (np.ones(2), np.array("text"), np.float32(1), jax.numpy.ones(2))]
        [True, True, False, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, NUMPY_ARRAYS) and not isinstance(leaf, np.generic)


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number: a bool, int, float or complex, or of a subclass that is not NumPy's.

    Example:
        >>> [is_number(leaf) for leaf in (1, True, 2.5, 1j, np.float64(1), "1")]
        [True, True, True, True, False, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic)


def number_type(leaf: Any) -> type[Any] | None:
    """Return which of Python's types a number has: bool, int, float or complex; None if it is no Python number.

    Example:
        >>> class Celsius(float):
        ...     pass
        >>> number_type(Celsius(20.5)), number_type(True), number_type("1")
        (<class 'float'>, <class 'bool'>, None)

    Args:
        leaf: any value.
    """
    return next((kind for kind in _NUMBERS if isinstance(leaf, kind)), None) if is_number(leaf) else None


def is_array_like(leaf: Any) -> bool:
    """Whether a leaf is an array or a number, which JAX can trace.

    Example:
        >>> [is_array_like(leaf) for leaf in (jax.numpy.ones(2), np.float32(1), 1.0, True, "text")]
        [True, True, True, True, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, _NUMBERS) or is_array(leaf)


def is_array_or_struct(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands for one: a `jax.ShapeDtypeStruct`, as `jax.eval_shape` returns.

    Example:
        >>> [is_array_or_struct(leaf) for leaf in (jax.numpy.ones(2), jax.ShapeDtypeStruct((2,), "float32"), 1.0)]
        [True, True, False]

    Args:
        leaf: any value.
    """
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def holds_arrays(value: Any, is_object: Callable[[Any], bool]) -> bool:
    """Whether a value holds arrays, or objects, which may hold them; or a dict that JAX cannot flatten.

    Example:
        >>> import jax
        >>> [holds_arrays(value, callable) for value in ((1, jax.numpy.ones(2)), [len], None, {"size": 3})]
        [True, True, False, False]

    Args:
        value: any value, such as the result of a call.
        is_object: whether a part of it is an object.
    """
    try:
        leaves = jax.tree.leaves(value, is_leaf=is_object)
    except (TypeError, ValueError):  # such as keys that cannot be sorted
        return True
    return any(is_array(leaf) or is_object(leaf) for leaf in leaves)


def has_type(value: Any) -> bool:
    """Whether a value has a shape and a dtype, as arrays, their types and what wraps them have.

    Example:
        >>> has_type(jax.ShapeDtypeStruct((2,), "float32")), has_type(1.0)
        (True, False)

    Args:
        value: any value.
    """
    return isinstance(getattr(value, "shape", None), tuple) and getattr(value, "dtype", None) is not None


@dataclasses.dataclass(frozen=True)
class Size:
    """The number of elements of some arrays, and the number of bytes that they take.

    Example:
        >>> print(Size(10_000, 40_000))
        10,000 (40.0 KB)

    Attributes:
        count: the number of elements.
        bytes: the number of bytes.
    """

    count: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, tree: Any) -> Size:
        """Return the size of all arrays in a pytree.

        Args:
            tree: any pytree; a `jax.ShapeDtypeStruct` counts as an array of its type.
        """
        arrays = [leaf for leaf in jax.tree.leaves(tree) if has_type(leaf)]
        return cls.sum(cls(math.prod(one.shape), math.prod(one.shape) * _item_bytes(one.dtype)) for one in arrays)

    @classmethod
    def sum(cls, sizes: Iterable[Size]) -> Size:
        """Return the size of everything together.

        Args:
            sizes: the sizes of the parts.
        """
        each = list(sizes)
        return cls(sum(size.count for size in each), sum(size.bytes for size in each))

    def __str__(self) -> str:
        if not self.count:
            return ""
        if self.bytes < 1000:
            return f"{self.count:,} ({self.bytes} B)"
        power = min(int(math.log(self.bytes, 1000)), 5)
        return f"{self.count:,} ({self.bytes / 1000**power:.1f} {' KMGTP'[power]}B)"


def _item_bytes(dtype: Any) -> int:
    return int((dtype if hasattr(dtype, "itemsize") else np.dtype(dtype)).itemsize)


class Others(NamedTuple):
    """A pytree without the leaves that `split_leaves` chose. It has a hash if the other leaves have one.

    Attributes:
        treedef: the structure of the pytree.
        chosen: for each leaf, whether it was chosen.
        leaves: the leaves that were not, in order.
    """

    treedef: Any
    chosen: Sequence[bool]
    leaves: Sequence[Any]

    def join(self, chosen: Iterable[Any], others: Iterable[Any] | None = None) -> Any:
        """Return the whole pytree again, with the given values in the places of the chosen leaves.

        Args:
            chosen: the values, in order; each may be a pytree.
            others: the same for the other leaves; by default, these themselves.
        """
        now, others = iter(chosen), iter(self.leaves if others is None else others)
        return self.treedef.unflatten([next(now if one else others) for one in self.chosen])


def split_leaves(
    tree: Any, choose: Callable[[Any], bool] | Iterable[bool], is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Others]:
    """Divide the leaves of a pytree into those that are chosen, and the others.

    Example:
        >>> chosen, others = split_leaves({"x": np.float32(2), "mode": "train"}, is_array)
        >>> chosen, others.leaves
        ([np.float32(2.0)], ('train',))
        >>> others.join([2 * chosen[0]])
        {'mode': 'train', 'x': np.float32(4.0)}

    Args:
        tree: any pytree.
        choose: returns whether a leaf is chosen; or one bool for each leaf, in order.
        is_leaf: see `jax.tree.flatten`.

    Returns:
        The chosen leaves, and an `Others` that joins them, or other values in their places, with the others.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf)
    chosen = tuple(map(choose, leaves) if callable(choose) else choose)
    others = tuple([leaf for leaf, one in zip(leaves, chosen, strict=True) if not one])
    return list(itertools.compress(leaves, chosen)), Others(treedef, chosen, others)

"""`Apart`: a call of a function on objects, split into types of arrays and everything else, to trace it separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from liftcore.leaves import is_array, is_array_like, is_array_or_struct, split_leaves

from ..graph.functions import merge, split
from ..graph.walk import is_object

__all__ = ["Apart", "types_of"]


def types_of(tree: Any) -> Any:
    """Return a pytree with types in place of its arrays; objects and other values do not change.

    Args:
        tree: any pytree.
    """
    return jax.tree.map(lambda leaf: _type(leaf) if is_array(leaf) else leaf, tree, is_leaf=is_object)


def _type(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)


def _is_traced(leaf: Any) -> bool:
    """Return whether a transformation would trace a leaf; numbers in variables count too."""
    return is_array_like(leaf) or is_array_or_struct(leaf)


class Apart:
    """A call without its arrays.

    Attributes:
        types: the types of all arrays in a list: those of the objects, and those among the arguments.
    """

    def __init__(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        objects, self._others = split_leaves((tuple(args), dict(kwargs)), is_object, is_leaf=is_object)
        arrays, self._static = split_leaves(self._others.leaves, is_array_or_struct)
        self._graphdef, state = split([node, *objects])
        traced, self._whole = split_leaves((state, arrays), _is_traced)
        self.types = list(map(_type, traced))

    def run(self, values: Any, fn: Callable[..., Any]) -> Any:
        """Call a function with new objects.

        Args:
            values: a list of arrays, or of tracers, one for each of `types`.
            fn: called with the object and the arguments.
        """
        state, arrays = self._whole.join(values)
        node, *objects = merge(self._graphdef, state)
        args, kwargs = self._others.join(objects, self._static.join(arrays))
        return fn(node, *args, **kwargs)

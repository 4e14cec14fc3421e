"""`Apart`: a call of a function on objects, split into types of arrays and everything else, to trace it separately."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from liftcore.leaves import is_array, is_array_like, is_array_or_struct

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

    _structure: Any
    _whole: Any

    def __init__(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        leaves, self._structure = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=is_object)
        self._is_object = list(map(is_object, leaves))
        self._is_array = [is_array_or_struct(leaf) for leaf in leaves]
        self._graphdef, state = split([node, *itertools.compress(leaves, self._is_object)])
        moves = map(operator.or_, self._is_object, self._is_array)
        self._others = [None if moved else leaf for leaf, moved in zip(leaves, moves, strict=True)]
        self._all, self._whole = jax.tree.flatten((state, list(itertools.compress(leaves, self._is_array))))
        self._is_traced = list(map(_is_traced, self._all))
        self.types = [_type(leaf) for leaf in itertools.compress(self._all, self._is_traced)]

    def run(self, values: Any, fn: Callable[..., Any]) -> Any:
        """Call a function with new objects.

        Args:
            values: a list of arrays, or of tracers, one for each of `types`.
            fn: called with the object and the arguments.
        """
        now = iter(values)
        traced = [next(now) if one else leaf for leaf, one in zip(self._all, self._is_traced, strict=True)]
        state, arrays = self._whole.unflatten(traced)
        node, *objects = merge(self._graphdef, state)
        given, made = iter(arrays), iter(objects)
        leaves = [
            next(given) if array else next(made) if is_one else other
            for array, is_one, other in zip(self._is_array, self._is_object, self._others, strict=True)
        ]
        args, kwargs = self._structure.unflatten(leaves)
        return fn(node, *args, **kwargs)

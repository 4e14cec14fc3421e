"""More ways to split and merge a graph: flat, and as one mapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..filterlib import Filter
from ..statelib.functions import GraphState
from ..statelib.state import FlatState
from .functions import GraphDef, listed, merge, split

__all__ = ["flatten", "unflatten", "unpack"]

Node = TypeVar("Node")


def flatten(node: Any, /, *, with_paths: bool = True) -> tuple[GraphDef[Any], Any]:
    """Return the definition of a graph, and its variables and arrays by path.

    Example:
        >>> import nnx_like as nnx
        >>> definition, flat = nnx.flatten(nnx.Dict(w=nnx.Param(2.0)))
        >>> [(path, leaf.get_value()) for path, leaf in flat]
        [(('w',), 2.0)]

    Args:
        node: an object, or a pytree that holds objects.
        with_paths: whether to return paths; if False, the variables and arrays are returned in a list.
    """
    definition, pairs = listed(node)
    return GraphDef(definition), FlatState(pairs) if with_paths else [leaf for _, leaf in pairs]


def unflatten(graphdef: GraphDef[Node], state: Any, /) -> Node:
    """Make a graph from its definition and its values: the inverse of `flatten`.

    Example:
        >>> import nnx_like as nnx
        >>> graphdef, flat = nnx.graph.flatten(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.graph.unflatten(graphdef, flat).w.value
        2.0

    Args:
        graphdef: the static part of the graph, as `flatten` returns it.
        state: a `FlatState`, a `State`, or the values in a list, in the order of `flatten`.

    Returns:
        New objects, as the definition describes them.

    Raises:
        LiftArgumentError: if a value is missing, or the graph has no such path.
    """
    if isinstance(state, Sequence) and not isinstance(state, FlatState):
        return merge(graphdef, FlatState(list(zip(graphdef.paths, state, strict=True))))
    return merge(graphdef, state)


def unpack(node: Any, *filters: Filter) -> Any:
    """Split a graph like `split`, but returns each state together with the definition in one pytree, a `GraphState`.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> packed = nnx.unpack(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.merge(jax.tree.map(lambda leaf: 10 * leaf, packed)).w.get_value()
        20.0

    Args:
        node: an object, or a pytree that holds objects.
        filters: one filter for each `GraphState`; a variable goes to the first one that matches it. Without filters,
            there is one `GraphState`.

    Returns:
        A `GraphState`; for several filters a tuple of them.
    """
    graphdef, *states = split(node, *filters)
    packed = [GraphState(graphdef, state) for state in states]
    return packed[0] if len(packed) == 1 else tuple(packed)

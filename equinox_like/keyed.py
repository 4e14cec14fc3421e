"""Split calls for a cache of traces, into scopes, arrays, and the static rest, which is the key of the cache.

Arrays are passed as a list, in the order of the leaves. A `ScopedAt`, which has no leaves, replaces each scope and each
object that holds scopes.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import Rest, Scope, flatten_static, is_scoped, split_scoped
from liftcore.errors import LiftArgumentError, shown
from liftcore.statics import Undescribed, static_key

from .functions import partial_function
from .methods import BoundMethod
from .parts import check_no_scopes, is_dynamic
from .prefixes import leafwise

__all__ = ["KeyedTree", "ScopedAt", "join", "split_keyed", "split_result"]


class KeyedTree(NamedTuple):
    """A pytree of any objects, split into its parts.

    Attributes:
        scopes: the scopes in the pytree.
        arrays: the traced leaves, and a `ScopedAt` for each scope and each object that holds scopes.
        rest: the static part.
        unshared: the path and the error of each static leaf that cannot be compared by value.
    """

    scopes: list[Scope]
    arrays: list[Any]
    rest: Rest
    unshared: Sequence[tuple[Any, Undescribed]] = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ScopedAt:
    """A placeholder among arrays for a value that holds scopes.

    Attributes:
        first: the index of the first of its scopes in the list of all scopes.
        count: the number of its scopes.
        make: a static value that holds a function from these scopes to the value.
    """

    first: int
    count: int
    make: Rest

    def on(self, scopes: Sequence[Scope]) -> Any:
        """Return the value with the scopes inside of the transformation."""
        make = self.make.value
        return (make.value if isinstance(make, Opaque) else make)(list(scopes[self.first : self.first + self.count]))


class Opaque:
    """A static leaf that cannot be compared by value: it may change in place, so no other call can use the trace.

    Attributes:
        value: the leaf.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __static_fields__(self) -> dict[str, Any]:
        """Return its key for comparisons: its `id`, which is unique as long as a cache keeps the object alive."""
        return {"id": id(self)}


def split_keyed(tree: Any, traced: Sequence[bool] | None = None) -> KeyedTree:
    """Split a pytree into its parts.

    Args:
        tree: any pytree.
        traced: for each leaf, whether the transformation traces it; by default arrays and scopes.
    """
    unshared: list[tuple[Any, Undescribed]] = []
    try:
        arrays, rest = flatten_static(tree, _in_order(traced))
    except Undescribed:
        tree = _opened(tree) if traced is None else tree
        leaves, structure = jax.tree.flatten_with_path(tree)
        is_traced = _in_order(traced)
        answers = [is_traced(leaf) for _, leaf in leaves]
        described = [
            leaf if answer else _described(leaf, unshared, keys)
            for (keys, leaf), answer in zip(leaves, answers, strict=True)
        ]
        arrays, rest = flatten_static(jax.tree.unflatten(structure, described), _in_order(answers))
    scopes: list[Scope] = []
    others = {kind for kind in set(map(type, arrays)) if not issubclass(kind, jax.Array)}  # few types, many arrays
    for place, array in enumerate(arrays) if others else ():
        if is_scoped(array):
            found, make = split_scoped(array)
            arrays[place] = ScopedAt(len(scopes), len(found), Rest(_described(make, unshared, ())))
            scopes += found
    return KeyedTree(scopes, arrays, rest, unshared)


def _opened(tree: Any) -> Any:
    """Return a pytree in which partial functions and methods of pytrees are pytrees too: their arrays are traced."""

    def opened(leaf: Any) -> Any:
        if type(leaf) is types.MethodType and not jax.tree_util.all_leaves([leaf.__self__]):
            return BoundMethod(leaf.__func__, jax.tree.map(opened, leaf.__self__))
        if type(leaf) is not functools.partial:
            return leaf
        return partial_function(*jax.tree.map(opened, (leaf.func, leaf.args, leaf.keywords)))

    return jax.tree.map(opened, tree)


def _in_order(traced: Sequence[bool] | None) -> Callable[[Any], bool]:
    """Return a function that returns whether a leaf is traced; call it for each leaf, in order."""
    if traced is None:
        return is_dynamic
    answers = iter(traced)
    return lambda leaf: bool(next(answers)) or is_scoped(leaf)


def _described(leaf: Any, unshared: list[tuple[Any, Undescribed]], keys: Any) -> Any:
    try:
        static_key(leaf)
    except Undescribed as error:
        unshared.append((keys, error))
        return Opaque(leaf)
    return leaf


def join(rest: Rest, arrays: Iterable[Any], scopes: Sequence[Scope] = ()) -> Any:
    """Rebuild a pytree with other arrays and scopes."""
    arrays = list(arrays)
    if ScopedAt in set(map(type, arrays)):
        arrays = [array.on(scopes) if type(array) is ScopedAt else array for array in arrays]
    tree = rest.unflatten(arrays)
    if rest.holds(Opaque):
        return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Opaque) else leaf, tree)
    return tree


def split_result(where: str, result: Any, out: Any = None) -> tuple[list[Any], Rest]:
    """Split the result of a function into arrays and the static rest.

    Args:
        where: the name of the transformation, for errors.
        result: the result of the function.
        out: a pytree prefix: the leaves that are traced; None for arrays.

    Raises:
        LiftArgumentError: if the result has a scope, or a leaf that `out` marks as static depends on arrays.
    """
    parts = split_keyed(result, None if out is None else leafwise(f"out of {where}", out, result))
    check_no_scopes(where, parts.scopes)
    for keys, error in parts.unshared:
        if isinstance(error.value, jax.core.Tracer):
            raise LiftArgumentError(
                f"out of {where}",
                f"result{jax.tree_util.keystr(keys)}{error.place} is marked as static, but depends on traced values: "
                f"{shown(error.value)}.",
                "Write True for it.",
            )
    return parts.arrays, parts.rest

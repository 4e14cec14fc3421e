"""Calls taken apart for what keeps a trace of them: scopes, arrays, and the rest, which tells whether that serves.

Arrays go in as a list, in the order of the leaves. In the place of a scope, and of what stands on scopes, there is a
`ScopedAt`, which has no leaves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import Rest, Scope, flatten_static, is_scoped, split_scoped
from liftcore.errors import LiftArgumentError, shown
from liftcore.statics import Undescribed, static_key

from .functions import FilteredFunction
from .parts import check_no_scopes, is_dynamic
from .prefixes import leafwise

__all__ = ["KeyedTree", "ScopedAt", "join", "split_keyed", "split_result"]


class KeyedTree(NamedTuple):
    """A pytree of any objects, taken apart.

    Attributes:
        scopes: the scopes in it.
        arrays: what is traced, and a `ScopedAt` for each scope and for what stands on scopes.
        rest: what is static.
        unshared: for each static leaf that no key stands for what says so.
    """

    scopes: list[Scope]
    arrays: list[Any]
    rest: Rest
    unshared: Sequence[Undescribed] = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ScopedAt:
    """Stands among arrays for a value that is made of scopes.

    Attributes:
        first: the number of the first of these among all.
        count: how many there are.
        make: makes the value of them, as a static value.
    """

    first: int
    count: int
    make: Rest

    def on(self, scopes: Sequence[Scope]) -> Any:
        """The value on the scopes inside."""
        make = self.make.value
        return (make.value if isinstance(make, Opaque) else make)(list(scopes[self.first : self.first + self.count]))


class Opaque:
    """A static leaf that no key stands for: it may change unseen, so a trace that saw it serves no other call.

    Attributes:
        value: the leaf.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __static_fields__(self) -> dict[str, Any]:
        """What stands for it: nothing else has its `id` as long as something is kept for it."""
        return {"id": id(self)}


def split_keyed(tree: Any, traced: Sequence[bool] | None = None) -> KeyedTree:
    """Takes a pytree apart.

    Args:
        tree: any pytree.
        traced: for each leaf whether the transformation traces it; by default arrays and scopes.
    """
    unshared: list[Undescribed] = []
    try:
        arrays, rest = flatten_static(tree, _in_order(traced))
    except Undescribed:
        tree = _opened(tree) if traced is None else tree
        leaves, structure = jax.tree.flatten(tree)
        answers = list(map(_in_order(traced), leaves))
        described = [
            leaf if answer else _described(leaf, unshared) for leaf, answer in zip(leaves, answers, strict=True)
        ]
        arrays, rest = flatten_static(jax.tree.unflatten(structure, described), _in_order(answers))
    scopes: list[Scope] = []
    others = {kind for kind in set(map(type, arrays)) if not issubclass(kind, jax.Array)}  # few types, many arrays
    for place, array in enumerate(arrays) if others else ():
        if is_scoped(array):
            found, make = split_scoped(array)
            arrays[place] = ScopedAt(len(scopes), len(found), Rest(_described(make, unshared)))
            scopes += found
    return KeyedTree(scopes, arrays, rest, unshared)


def _opened(tree: Any) -> Any:
    """The same pytree, where a `functools.partial` is a pytree too, so that arrays that it holds are traced."""

    def opened(leaf: Any) -> Any:
        if type(leaf) is not functools.partial:
            return leaf
        fun, args, keywords = jax.tree.map(opened, (leaf.func, leaf.args, leaf.keywords))
        return FilteredFunction(_call_partial, fun, {"args": args, "keywords": keywords})

    return jax.tree.map(opened, tree)


def _call_partial(fun: Any, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fun(*options["args"], *args, **{**options["keywords"], **kwargs})


def _in_order(traced: Sequence[bool] | None) -> Callable[[Any], bool]:
    """Whether a leaf is traced, asked of each in order; what stands on scopes always is."""
    if traced is None:
        return is_dynamic
    answers = iter(traced)
    return lambda leaf: bool(next(answers)) or is_scoped(leaf)


def _described(leaf: Any, unshared: list[Undescribed]) -> Any:
    try:
        static_key(leaf)
    except Undescribed as error:
        unshared.append(error)
        return Opaque(leaf)
    return leaf


def join(rest: Rest, arrays: Iterable[Any], scopes: Sequence[Scope] = ()) -> Any:
    """The pytree again, with other arrays and scopes."""
    arrays = list(arrays)
    if ScopedAt in set(map(type, arrays)):
        arrays = [array.on(scopes) if type(array) is ScopedAt else array for array in arrays]
    tree = rest.unflatten(arrays)
    if rest.holds(Opaque):
        return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Opaque) else leaf, tree)
    return tree


def split_result(where: str, result: Any, out: Any = None) -> tuple[list[Any], Rest]:
    """The arrays and the rest of what a function returned.

    Args:
        where: the transformation, for the text of errors.
        result: what the function returned.
        out: a pytree prefix: what is traced of it; None for arrays.

    Raises:
        LiftArgumentError: where it returned a scope, or what `out` says to be static depends on arrays.
    """
    parts = split_keyed(result, None if out is None else leafwise(f"out of {where}", out, result))
    check_no_scopes(where, parts.scopes)
    for error in parts.unshared:
        if isinstance(error.value, jax.core.Tracer):
            raise LiftArgumentError(
                f"out of {where}",
                f"a leaf is to be static and depends on what is traced: {shown(error.value)}{error.place}.",
                "Say True for it.",
            )
    return parts.arrays, parts.rest

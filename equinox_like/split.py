"""Split values into scopes, arrays, and the static rest.

Every filtered transformation works the same way. It splits the function and its arguments. It passes the arrays to the
lift of the same name in `liftcore`, over the scopes that it found (often none). Inside, it rebuilds the function and
the arguments, calls the function, and splits the result in turn.

`SplitTree` serves transformations that trace each call. `split_keyed` serves those with a cache of traces, whose key is
the static rest: a `ScopedAt`, which has no leaves, replaces each scope and each object that holds scopes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import Rest, Scope, flatten_static, is_scoped, is_traceable, split_scoped
from liftcore.errors import Expected, LiftArgumentError, shown
from liftcore.pytrees import check_acyclic, split_leaves
from liftcore.statics import Undescribed, static_key

from .methods import BoundMethod, partial_function

__all__ = [
    "KeyedTree",
    "ScopedAt",
    "SplitResult",
    "SplitTree",
    "check_no_scopes",
    "is_dynamic",
    "join",
    "leafwise",
    "map_prefix",
    "opened",
    "split_keyed",
    "split_result",
]

# --- prefixes ---------------------------------------------------------------------------------------------------------


def map_prefix(
    where: str,
    below: Callable[[Any, Any], Any],
    spec: Any,
    tree: Any,
    fix: str,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Map `below(answer, subtree)` over a prefix of a pytree, and the part of the pytree below each of its leaves.

    Args:
        where: the name of the prefix, for errors.
        below: the function. An answer is a function of each leaf below, or else the same for all of them.
        spec: the pytree prefix.
        tree: the pytree.
        fix: what to write instead of a `spec` that is not a prefix.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `spec` is not a prefix.
    """
    if is_leaf is None:
        check_acyclic(tree)
    try:
        return jax.tree.map(below, spec, tree, is_leaf=lambda node: node is None)
    except (ValueError, TypeError) as error:
        if isinstance(error, LiftArgumentError) or _is_prefix(spec, tree):
            raise
        expected, given = (str(jax.tree.structure(one)) for one in (tree, spec))
        what = Expected(f"a pytree prefix of {expected}", given, words=given)
        raise LiftArgumentError(where, what, fix) from error


def _is_prefix(spec: Any, tree: Any) -> bool:
    try:
        jax.tree.map(lambda *_: None, spec, tree, is_leaf=lambda node: node is None)
    except (ValueError, TypeError):
        return False
    return True


def leafwise(where: str, spec: Any, tree: Any) -> list[Any]:
    """Return one answer for each leaf of a pytree; see `map_prefix`. It does not call the constructors of nodes."""
    answers: list[Any] = []

    def below(answer: Any, subtree: Any) -> None:
        leaves = jax.tree.leaves(subtree)
        answers.extend(map(answer, leaves) if callable(answer) else [answer] * len(leaves))

    map_prefix(where, below, spec, tree, "Pass one value for all, or a tuple with one for each argument.")
    return answers


# --- a call that is traced each time ----------------------------------------------------------------------------------


def is_dynamic(leaf: Any) -> bool:
    """Return whether a leaf is an array or holds scopes; transformations treat all other leaves as static."""
    return is_traceable(leaf) or is_scoped(leaf)


class SplitTree:
    """A pytree of any objects, split into its parts.

    Args:
        tree: the pytree.
        is_traced: whether the transformation traces a leaf: a function of the leaf, or a bool for each leaf.

    Attributes:
        scopes: the scopes in the pytree, including those of bound modules and variables.
        arrays: the traced leaves.
        structure: the structure of the pytree.
    """

    def __init__(self, tree: Any, is_traced: Callable[[Any], bool] | Iterable[bool] = is_traceable) -> None:
        check_acyclic(tree)
        self.arrays, self._others = split_leaves(tree, is_traced)
        self.structure = self._others.treedef
        scoped, self._static = split_leaves(self._others.leaves, is_scoped)
        found = [split_scoped(leaf) for leaf in scoped]
        self.scopes: list[Scope] = [scope for scopes, _ in found for scope in scopes]
        self._makers = [(len(scopes), make) for scopes, make in found]

    def join(self, arrays: Iterable[Any], scopes: Sequence[Scope] = ()) -> Any:
        """Rebuild the pytree with other arrays and scopes."""
        now = iter(scopes)
        scoped = [make(list(itertools.islice(now, count))) for count, make in self._makers]
        return self._others.join(arrays, self._static.join(scoped))

    def array_paths(self) -> list[Any]:
        """Return the paths of the traced leaves."""
        numbers = self.structure.unflatten(range(self.structure.num_leaves))
        paths = [keys for keys, _ in jax.tree.leaves_with_path(numbers)]
        return list(itertools.compress(paths, self._others.chosen))

    def is_like(self, other: SplitTree) -> bool:
        """Return whether another pytree has the same structure, arrays in the same places, and equal static leaves."""
        if (self.structure, self._others.chosen) != (other.structure, other._others.chosen):
            return False
        return self._static.chosen == other._static.chosen and all(
            one is two or (type(one) is type(two) and one == two)
            for one, two in zip(self._static.leaves, other._static.leaves, strict=True)
        )

    def fill(self, values: Iterable[Any], others: Any = None) -> Any:
        """Return a pytree of the same structure with a value for each array, and `others` for every other leaf."""
        return self._others.join(values, itertools.repeat(others))

    def forget_arrays(self) -> None:
        """Keep only the structure: a result is split while it is traced, and this object outlives the trace."""
        self.arrays = []
        static = [None if is_traceable(leaf) else leaf for leaf in self._static.leaves]
        self._static, self._others = self._static._replace(leaves=static), self._others._replace(leaves=[])

    def take(self, tree: Any) -> list[Any]:
        """Return the values that a pytree of the same structure has in the places of the arrays."""
        return list(itertools.compress(self.structure.flatten_up_to(tree), self._others.chosen))


class SplitResult:
    """The static part of the result of a function that a transformation traces, to rebuild the result outside.

    Args:
        where: the name of the transformation, for errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.parts: SplitTree

    def arrays(self, result: Any, is_traced: Callable[[Any], bool] | Iterable[bool] = is_traceable) -> list[Any]:
        """Split a result, keep its static part, and return its traced leaves.

        Raises:
            LiftArgumentError: if the result has a scope.
        """
        self.parts = SplitTree(result, is_traced)
        check_no_scopes(self.where, self.parts.scopes)
        arrays = self.parts.arrays
        self.parts.forget_arrays()
        return arrays

    def join(self, arrays: Iterable[Any]) -> Any:
        """Rebuild the result outside the transformation."""
        return self.parts.join(arrays)


def check_no_scopes(where: str, scopes: Sequence[Scope]) -> None:
    """Check that a result has no scopes."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"it returned the scope {scopes[0].path_text}, which ends with the transformation.",
            "Return the value of a variable instead.",
            given=scopes[0].path_text,
        )


# --- a call for a cache of traces -------------------------------------------------------------------------------------


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
        """Return the value with the scopes inside the transformation."""
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
        tree = opened(tree) if traced is None else tree
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


def opened(tree: Any) -> Any:
    """Return a pytree in which partial functions and methods of pytrees are pytrees too: their arrays are traced."""

    def of_leaf(leaf: Any) -> Any:
        if type(leaf) is types.MethodType and not jax.tree_util.all_leaves([leaf.__self__]):
            return BoundMethod(leaf.__func__, jax.tree.map(of_leaf, leaf.__self__))
        if type(leaf) is not functools.partial:
            return leaf
        return partial_function(*jax.tree.map(of_leaf, (leaf.func, leaf.args, leaf.keywords)))

    return jax.tree.map(of_leaf, tree)


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
            what = (
                f"result{jax.tree_util.keystr(keys)}{error.place} is marked as static, but depends on traced values: "
                f"{shown(error.value)}."
            )
            fix = "Write True for it."
            raise LiftArgumentError(f"out of {where}", what, fix, option="out", given=shown(error.value))
    return parts.arrays, parts.rest

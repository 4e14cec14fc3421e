"""`swap_collection`: a function sees two collections under each other's name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import check_function
from ..filters import SubtreePredicate, decide, matches_collection, names_collections, subtract, union
from ..pipeline.body import call_inside
from ..scopes.scoped import scopes_in
from ..typing import Filter, Path, Predicate
from .map_variables import map_variables

__all__ = ["swap_collection"]


def swap_collection(
    fn: Callable[..., Any], col_a: str, col_b: str, *, variables: Filter = True, rngs: Filter = True
) -> Callable[..., Any]:
    """A function of scopes that sees two collections exchanged.

    When the body reads, creates or writes a variable of one collection, it uses the other one. So the other one must
    be mutable to be written.

    Example:
        >>> import liftcore
        >>> def layer(scope, x):
        ...     return x * scope.param("w", lambda key: 2.0)
        >>> averaged = swap_collection(layer, "params", "ema")
        >>> liftcore.apply(averaged)({"params": {"w": 2.0}, "ema": {"w": 3.0}}, 10.0)
        30.0

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        col_a: one collection.
        col_b: the other.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if `fn` is not callable.
    """
    check_function("swap_collection", fn)
    other = {col_a: col_b, col_b: col_a}

    def swap(variables: Mapping[str, Any]) -> dict[str, Any]:
        return {other.get(name, name): below for name, below in variables.items()}

    def swapped(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        trees = {id(scope.tree): scope.tree for scope in scopes_in(scopes)}
        for tree in trees.values():
            tree.mutable = _renamed(tree.mutable, other)
        return call_inside(fn, scopes, *args, **kwargs)

    named = functools.wraps(fn)(swapped) if hasattr(fn, "__name__") else swapped
    return map_variables(named, (col_a, col_b), swap, swap, init=True, mutable=True, variables=variables, rngs=rngs)


def _renamed(filter: Predicate, names: Mapping[str, str]) -> Predicate:
    """Return a filter that matches under the other names of the collections what the given filter matches."""
    if not names_collections(filter):
        return Renamed(filter, tuple(names.items()))
    taken = tuple(names[name] for name in names if matches_collection(filter, name))
    return union(subtract(filter, tuple(names)), taken)


@dataclasses.dataclass(frozen=True)
class Renamed(SubtreePredicate):
    """Matches what a filter matches after the collection is renamed."""

    filter: Predicate
    names: tuple[tuple[str, str], ...]

    def __call__(self, path: Path, value: Any) -> bool:
        """Return whether the value at `path` matches."""
        return self.filter(self._renamed(path), value)

    def decide(self, prefix: Path) -> bool | None:
        """Return the answer for all values under `prefix`; see `SubtreePredicate.decide`."""
        return decide(self.filter, self._renamed(prefix))

    def _renamed(self, path: Path) -> Path:
        return (dict(self.names).get(path[0], path[0]), *path[1:])

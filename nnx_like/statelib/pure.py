"""Values without the variables that hold them: takes them out of states and pytrees, and puts them into states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from liftcore.cycles import check_finite
from liftcore.errors import LiftArgumentError

from ..filterlib import PathParts
from ..variablelib.variable import Variable
from .nested import nest, pairs_of

__all__ = ["as_pure", "pure", "pure_dict_of", "put_pure_values"]

T = TypeVar("T")


def as_pure(tree: T) -> T:
    """Return a pytree with values in place of variables, for export or a checkpoint.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.as_pure({"kernel": nnx.Param(1.0), "steps": 3})
        {'kernel': 1.0, 'steps': 3}

    Args:
        tree: a state, an object, or any other pytree.

    Returns:
        A new pytree; `tree` does not change.
    """
    check_finite(tree)

    def value(leaf: Any) -> Any:
        return as_pure(leaf.get_value()) if isinstance(leaf, Variable) else leaf  # a value may contain variables too

    result: T = jax.tree.map(value, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))
    return result


pure = as_pure
"""Another name of `as_pure`."""


def _value_of(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def _with_value(leaf: Any, value: Any) -> Any:
    return leaf.replace(value) if isinstance(leaf, Variable) else value


def pure_dict_of(mapping: Mapping[Any, Any], extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Return nested dicts of the results of `extract_fn` for each leaf; by default, values instead of variables.

    Example:
        >>> pure_dict_of({"b": 1, "a": {"c": 2}}, lambda leaf: -leaf)
        {'a': {'c': -2}, 'b': -1}
    """
    extract = _value_of if extract_fn is None else extract_fn
    return nest((path, extract(leaf)) for path, leaf in pairs_of(mapping))


def put_pure_values(
    mapping: Any, values: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Put values into nested dicts: replaces each leaf by `replace_fn(leaf, value)`.

    Example:
        >>> nested = {"layers": {0: 1, 1: 2}}
        >>> put_pure_values(nested, {"layers": {"1": 5}})
        >>> nested
        {'layers': {0: 1, 1: 5}}

    Raises:
        LiftArgumentError: if a path of `values` is not the path of a leaf; then nothing changes.
    """
    replace = _with_value if replace_fn is None else replace_fn
    for node, key, value in list(_places(mapping, values, ())):  # find all of them before changing one
        node[key] = replace(node[key], value)


def _places(mapping: Any, values: Mapping[Any, Any], path: PathParts) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the dict, the key and the new value of each leaf for which `values` has one."""
    for given, value in values.items():
        key = given if given in mapping else _as_int(given)
        here = (*path, given)
        if key not in mapping:
            raise _no_leaf(here, f"the state has no such key; the keys there are {list(mapping)}")
        below = mapping[key]
        if isinstance(below, Mapping):
            if not isinstance(value, Mapping):
                raise _no_leaf(here, "it is not a leaf")
            yield from _places(below, value, here)
        elif isinstance(value, Mapping) and not isinstance(below, Variable):  # the value of a variable may be a dict
            raise _no_leaf(here, "it is a leaf, but the values continue below it")
        else:
            yield mapping, key, value


def _no_leaf(path: PathParts, why: str) -> LiftArgumentError:
    what = f"the state has no leaf for the value at {path!r}; {why}."
    return LiftArgumentError("replace_by_pure_dict", what, "Use the paths of leaves that the state has.")


def _as_int(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key

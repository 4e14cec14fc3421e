"""Values of variables: arrays, pytrees of arrays, and dicts of these; and the tags by which a split finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from .texts import path_text
from .typing import Path, PyTree

__all__ = [
    "INITIAL_VALUE",
    "Whole",
    "as_array",
    "cast",
    "copied",
    "only",
    "overlaid",
    "previews_in",
    "shapes",
    "tag",
    "tag_previews",
    "unwrapped",
    "wrapped",
]


class Whole:
    """A mapping that is the value of one variable.

    In a tree of variables, a mapping is a module. So a scope stores a mapping that is a value in a `Whole`: a pytree
    node like the mapping itself, but filters and lifts do not look for variables in it.

    Attributes:
        value: the mapping.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _children(whole: Whole) -> tuple[list[tuple[Any, Any]], Any]:
    value = whole.value
    pairs, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)
    return [(path[0], child) for path, child in pairs], treedef


jax.tree_util.register_pytree_with_keys(Whole, _children, lambda treedef, children: Whole(treedef.unflatten(children)))


def wrapped(value: Any) -> Any:
    """Return a value in the form that a scope stores."""
    return Whole(value) if isinstance(value, Mapping) else value


def unwrapped(value: Any) -> Any:
    """Return a value in the form that a user sees."""
    return value.value if type(value) is Whole else value


def as_array(value: Any) -> Any:
    """Return a result of a jaxpr as an array: constants come out of it as values of NumPy or Python."""
    return value if isinstance(value, jax.Array | jax.Ref) else jax.numpy.asarray(value)


def only(tree: Any, kinds: Any) -> Any:
    """Return a pytree with None in place of each leaf that has none of the given types."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, kinds) else None, tree)


def overlaid(tree: Any, part: Any) -> Any:
    """Return a pytree with its leaves replaced by those of another one, where that does not have None."""
    return jax.tree.map(lambda leaf, other: leaf if other is None else other, tree, part)


def shapes(tree: Any) -> list[Any]:
    """Return the shapes of the leaves of a value, preceded by whether the value is a single leaf."""
    return [jax.tree_util.all_leaves([tree]), *map(np.shape, jax.tree.leaves(tree))]


def cast(value: Any, dtypes: Sequence[Any]) -> Any:
    """Return a value with each leaf cast to a dtype, or unchanged if that is None; without dtypes, the value itself."""
    if not dtypes:
        return value
    leaves, treedef = jax.tree.flatten(value)
    pairs = zip(leaves, dtypes, strict=True)
    return jax.tree.unflatten(
        treedef, [leaf if dtype is None else jax.lax.convert_element_type(leaf, dtype) for leaf, dtype in pairs]
    )


def copied(value: Any, empty: bool = False) -> Any:
    """Return nested mappings as new plain dicts, with values as a user sees them, and empty ones only if `empty`."""
    if not isinstance(value, Mapping):
        return unwrapped(value)
    kept = {name: below for name, below in value.items() if empty or not isinstance(below, Mapping) or below}
    return {name: copied(below, empty) for name, below in kept.items()}


# --- tags -------------------------------------------------------------------------------------------------------------

INITIAL_VALUE = "liftcore: initial value"
"""The tag of an initial value: where a body creates a variable, a split can cut."""

_PREVIEW = "liftcore: preview of "
"""The beginning of the tag of a preview; the name of a variable follows.

Two variables that an inner loop creates may read each other. For example, the carried `total` begins as the first slice
of the stacked `log`, and each later slice of `log` is computed from `total`. Which of them an outer loop has to compute
again in each iteration depends on which one it carries: if it carries `total`, it computes `log` from it, and if it
carries `log`, it computes `total` from it. So for the outer loop, each must read the other.

If an initial value is read only when it already exists, it is read as a *preview*: a value that is tagged with the name
of the variable, and computed as the variable would begin. If an outer `Split` is given the value of the variable, it
uses that value in place of the preview.
"""


def tag(value: Any, name: str = INITIAL_VALUE) -> Any:
    """Return the pytree with its leaves tagged: each is the result of an equation that does nothing.

    So each leaf has a variable of its own in the jaxpr. `equations.cut` removes the tags of initial values. A Python
    number stays weakly typed.
    """
    return jax.tree.map(lambda leaf: checkpoint_name(as_array(leaf), name), value)  # type: ignore[no-untyped-call]


def tag_previews(tree: PyTree, at: Path) -> PyTree:
    """Tag the initial values of the variables below a path as previews."""
    return jax.tree.map_with_path(lambda path, leaf: tag(leaf, _preview_name(at, path)), tree)


def previews_in(tagged: Mapping[Any, Any], created: PyTree, places: Sequence[Path]) -> dict[Any, int]:
    """Find previews among tagged values; map them to the indices of the initial values.

    Args:
        tagged: values by their tags.
        created: sequences that contain one tree of variables for each outermost scope.
        places: the paths of these scopes.
    """
    if not any(name.startswith(_PREVIEW) for name in tagged):
        return {}
    names = [_name_below(path, places) for path, _ in jax.tree.leaves_with_path(created)]
    return {tagged[name]: number for number, name in enumerate(names) if name in tagged}


def _preview_name(at: Path, path: Sequence[Any]) -> str:
    """Return the tag of a preview from the path of a leaf in a tree of the variables below a place."""
    return _PREVIEW + path_text([path[0], *map(jax.tree_util.DictKey, at), *path[1:]])


def _name_below(path: Sequence[Any], places: Sequence[Path]) -> str | None:
    """Return the tag from a path in sequences of such trees; the last index before the names belongs to a scope."""
    first = next((place for place, key in enumerate(path) if isinstance(key, jax.tree_util.DictKey)), 0)
    if not places or first == 0 or not isinstance(path[first - 1], jax.tree_util.SequenceKey):
        return None
    return _preview_name(places[path[first - 1].idx], path[first:])

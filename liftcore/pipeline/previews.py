"""Previews: variables that are read by what is made before them.

Two variables that an inner loop makes may read each other. Say the carried `total` begins as the first slice of the
stacked `log`, and each later slice of `log` is made from `total`. What an outer loop has to make anew in each of its
iterations depends on which of the two it carries: of a carried `total` the new `log` is made, of a carried `log` the
new `total`. So to the outer loop each must read the other.

An initial value that is read only where it is there already is read as a *preview*: a value under the name of the
variable, computed as that begins. A `Split` outside takes what the variable holds in its place, where that is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from .._compat import tag, tag_name
from ..texts import path_text
from ..typing import Path, PyTree
from .equations import Step, variables_of

__all__ = ["given_previews", "previews_in", "tag_previews"]

_PREFIX = "liftcore: preview of "


def tag_previews(tree: PyTree, at: Sequence[str]) -> PyTree:
    """Initial values of the variables below a place as previews."""
    return jax.tree.map_with_path(lambda path, leaf: tag(leaf, _name(at, path)), tree)


def previews_in(steps: Sequence[Step], created: PyTree, places: Sequence[Path]) -> dict[Any, int]:
    """The previews among equations: the variable of the jaxpr, and the number of the initial value in `created`.

    Args:
        steps: the equations.
        created: holds, in sequences, one tree of variables for each outermost scope.
        places: the paths of these scopes.
    """
    named = {tag_name(step.eqn): step.eqn.outvars[0] for step in steps if tag_name(step.eqn).startswith(_PREFIX)}
    if not named:
        return {}
    names = [_name_below(path, places) for path, _ in jax.tree.leaves_with_path(created)]
    return {named[name]: number for number, name in enumerate(names) if name in named}


def given_previews(steps: Sequence[Step], given: Mapping[Any, Any]) -> list[Step]:
    """Equations in which previews read the variables of the jaxpr that stand for them."""

    def now(step: Step) -> Step:
        var = given.get(step.eqn.outvars[0]) if step.eqn.outvars else None
        return step if var is None else Step(step.eqn.replace(invars=[var]), variables_of([var]))

    return [now(step) for step in steps] if given else list(steps)


def _name(at: Sequence[str], path: Sequence[Any]) -> str:
    """The name of a leaf, by its path in a tree of the variables below a place."""
    return _PREFIX + path_text([path[0], *map(jax.tree_util.DictKey, at), *path[1:]])


def _name_below(path: Sequence[Any], places: Sequence[Path]) -> str | None:
    """The same, by a path in what holds such trees in sequences: the last index before the names is that of a scope."""
    first = next((place for place, key in enumerate(path) if isinstance(key, jax.tree_util.DictKey)), 0)
    if not places or first == 0 or not isinstance(path[first - 1], jax.tree_util.SequenceKey):
        return None
    return _name(places[path[first - 1].idx], path[first:])

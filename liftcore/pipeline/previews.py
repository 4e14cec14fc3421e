"""Previews: placeholders for variables that are read before they are created.

Two variables that an inner loop creates may read each other. For example, the carried `total` begins as the first slice
of the stacked `log`, and each later slice of `log` is computed from `total`. Which of them an outer loop has to compute
again in each iteration depends on which one it carries: if it carries `total`, it computes `log` from it, and if it
carries `log`, it computes `total` from it. So for the outer loop, each must read the other.

If an initial value is read only when it already exists, it is read as a *preview*: a value that is tagged with the name
of the variable, and computed as the variable would begin. If an outer `Split` is given the value of the variable, it
uses that value in place of the preview.
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
    """Tag the initial values of the variables below a path as previews."""
    return jax.tree.map_with_path(lambda path, leaf: tag(leaf, _name(at, path)), tree)


def previews_in(steps: Sequence[Step], created: PyTree, places: Sequence[Path]) -> dict[Any, int]:
    """Find the previews among equations; map their variables in the jaxpr to the indices of the initial values.

    Args:
        steps: the equations.
        created: sequences that contain one tree of variables for each outermost scope.
        places: the paths of these scopes.
    """
    named = {tag_name(step.eqn): step.eqn.outvars[0] for step in steps if tag_name(step.eqn).startswith(_PREFIX)}
    if not named:
        return {}
    names = [_name_below(path, places) for path, _ in jax.tree.leaves_with_path(created)]
    return {named[name]: number for number, name in enumerate(names) if name in named}


def given_previews(steps: Sequence[Step], given: Mapping[Any, Any]) -> list[Step]:
    """Return the equations with each preview replaced by the variable of the jaxpr that is given for it."""

    def now(step: Step) -> Step:
        var = given.get(step.eqn.outvars[0]) if step.eqn.outvars else None
        return step if var is None else Step(step.eqn.replace(invars=[var]), variables_of([var]))

    return [now(step) for step in steps] if given else list(steps)


def _name(at: Sequence[str], path: Sequence[Any]) -> str:
    """Return the name of a leaf from its path in a tree of the variables below a place."""
    return _PREFIX + path_text([path[0], *map(jax.tree_util.DictKey, at), *path[1:]])


def _name_below(path: Sequence[Any], places: Sequence[Path]) -> str | None:
    """Return the name from a path in sequences of such trees; the last index before the names belongs to a scope."""
    first = next((place for place, key in enumerate(path) if isinstance(key, jax.tree_util.DictKey)), 0)
    if not places or first == 0 or not isinstance(path[first - 1], jax.tree_util.SequenceKey):
        return None
    return _name(places[path[first - 1].idx], path[first:])

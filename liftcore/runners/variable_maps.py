"""What lies between variables as they are stored and as a function sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..filters import leaves_of, partition
from ..pipeline.use import Body
from ..texts import path_text, type_text
from ..typing import Filter, PyTree, Variables
from ..values import Whole, rewrapped, unwrapped
from .carry import select

__all__ = ["VariableMaps"]


class VariableMaps(NamedTuple):
    """Two functions of variables, in one use of a lift.

    Attributes:
        body: the function of scopes.
        mapped: a filter of the variables that are mapped.
        map_in: from what is stored to what the body sees.
        map_out: from what the body made or wrote to what is stored.
    """

    body: Body
    mapped: Filter
    map_in: Callable[[Any], Variables]
    map_out: Callable[[Any], Variables]

    def view(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """What the body sees."""
        return tuple(self._mapped("map_in", self.map_in, tree) for tree in stored)

    def stored(self, changed: Sequence[Any]) -> tuple[Any, ...]:
        """What is stored of variables that the body made or wrote."""
        trees = tuple(self._mapped("map_out", self.map_out, tree) for tree in changed)
        for tree, outer in zip(trees, self.body.use.outers, strict=True):
            astray = partition(tree, [self.mapped], outer.path)[1]
            if astray:
                names = [path_text(path) for path, _ in leaves_of(astray)]
                raise LiftArgumentError(
                    self.body.where,
                    f"`map_out` returned {names}, which `mapped` does not take, so `map_in` would never see it.",
                    "Let `mapped` take what is stored too.",
                )
        return trees

    def fitting(self, view: Sequence[Any], like: PyTree) -> PyTree:
        """Of what a body sees now, the variables that it was traced with; they must have kept their types."""
        chosen = tuple(map(rewrapped, select(view, like), like))
        for tree, pattern in zip(chosen, like, strict=True):
            found = dict(leaves_of(tree))
            for path, aval in leaves_of(pattern):
                before, now = (jax.tree.map(type_text, unwrapped(value)) for value in (aval, found.get(path)))
                if before != now:
                    raise LiftArgumentError(
                        f'"{path_text(path)}" in {self.body.where}',
                        f"the body has it as {before}, and of what is stored with `map_out`, `map_in` makes {now}.",
                        "Let `map_in` undo what `map_out` does to names, shapes and dtypes.",
                    )
        return jax.tree.map(_as_traced, chosen, like)

    def _mapped(self, name: str, fn: Callable[[Any], Any], tree: Any) -> Any:
        if not tree:
            return tree
        found = fn(_copied(tree))  # a user looks into values as into modules
        if not isinstance(found, Mapping) or not all(isinstance(below, Mapping) for below in found.values()):
            raise LiftArgumentError(
                f"`{name}` of {self.body.where}",
                f"expected a dict of collections, as it was given, returned {jax.tree.structure(found)}.",
                "Return `{collection: {…}}`; `jax.tree.map` over what is given does.",
            )
        return rewrapped(found, tree)


def _as_traced(leaf: Any, like: Any) -> Any:
    """A leaf that is weakly typed only where that which the body was traced with, a value or a type, is."""
    aval = like if isinstance(like, jax.core.ShapedArray) else jax.typeof(like)
    weak = jax.typeof(leaf).weak_type and not aval.weak_type
    return jax.lax.convert_element_type(jnp.asarray(leaf), aval.dtype) if weak else leaf


def _copied(tree: Any) -> Any:
    """Nested dicts as new ones, which a function may change as it likes."""
    if type(tree) is Whole:
        return jax.tree.map(lambda leaf: leaf, tree.value)
    return {name: _copied(below) for name, below in tree.items()} if isinstance(tree, Mapping) else tree

"""The arrays of a module as variables of a scope: states in one collection, parameters in another."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from liftcore import Blueprint, Scope, flatten_static, traverse_util
from liftcore.errors import LiftArgumentError
from liftcore.typing import Path

from . import problems
from .kinds import COLLECTIONS
from .views import leaves_of

__all__ = ["Places", "blueprint_of", "places_of", "write"]


class Places(NamedTuple):
    """The variables for the arrays of all modules with the same definition.

    Attributes:
        blueprint: the module without its leaves, and the variable of each leaf.
        trainable: the paths of the parameters that are not frozen.
    """

    blueprint: Blueprint
    trainable: frozenset[Path]

    def variables(self, leaves: Iterable[Any]) -> dict[str, Any]:
        """Return leaves as variables, `{collection: {name: … array}}`."""
        return traverse_util.unflatten_dict(dict(zip(self.blueprint.paths, leaves, strict=True)))


def blueprint_of(module: Any) -> Blueprint:
    """Return the blueprint of a module, which maps each of its leaves to a variable in the collection of its kind.

    Args:
        module: the module; types may take the place of its arrays.

    Raises:
        LiftArgumentError: if two leaves have the same path.
    """
    return places_of(jax.tree.structure(module)).blueprint


@functools.lru_cache(256)
def places_of(definition: Any) -> Places:
    """Return the variables of a module, by its tree definition.

    Args:
        definition: the tree definition.

    Raises:
        LiftArgumentError: if two leaves have the same path.
    """
    module = definition.unflatten(range(definition.num_leaves))
    leaves = leaves_of(module)
    paths = [(COLLECTIONS[leaf.kind], *leaf.names) for leaf in leaves]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise LiftArgumentError(
            f"{'.'.join(twice[0][1:])} of {type(module).__name__}",
            "two leaves have this path.",
            "Use dict keys that differ as text.",
        )
    _, rest = flatten_static(module, _is_leaf)
    trainable = [path for path, leaf in zip(paths, leaves, strict=True) if leaf.is_trainable]
    return Places(Blueprint(rest, tuple(paths), _is_leaf), frozenset(trainable))


def write(where: str, blueprint: Blueprint, scope: Scope, module: Any) -> None:
    """Write the changed arrays of a module to the variables that they were read from.

    Args:
        where: the name of the function that changed the module, for the error.
        blueprint: the blueprint of the module before the change.
        scope: the scope of the variables.
        module: the changed module.

    Raises:
        LiftArgumentError: if more than arrays changed.
        ModifyScopeVariableError: if the collection of a changed array is immutable.
    """
    _, rest = flatten_static(module, _is_leaf)
    if rest != blueprint.rest:
        raise problems.changed_definition(where, blueprint.rest.unflatten([None] * len(blueprint.paths)), module)
    blueprint.write(scope, module)


def _is_leaf(leaf: Any) -> bool:
    """Return True: every leaf of a module is kept in a variable, including Python numbers."""
    return True

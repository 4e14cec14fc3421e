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
    """Where the arrays of modules with one definition are kept.

    Attributes:
        blueprint: the module without its leaves, and the variable of each.
        trainable: the paths of parameters that are not frozen.
    """

    blueprint: Blueprint
    trainable: frozenset[Path]

    def variables(self, leaves: Iterable[Any]) -> dict[str, Any]:
        """Leaves as variables, `{collection: {name: … array}}`."""
        return traverse_util.unflatten_dict(dict(zip(self.blueprint.paths, leaves, strict=True)))


def blueprint_of(module: Any) -> Blueprint:
    """The blueprint of a module: its leaves are kept by kind, and no two of them in one variable.

    Args:
        module: the module; types may stand for its arrays.

    Raises:
        LiftArgumentError: where two leaves have one path.
    """
    return places_of(jax.tree.structure(module)).blueprint


@functools.lru_cache(256)
def places_of(definition: Any) -> Places:
    """The places of a module, by its tree definition.

    Args:
        definition: the tree definition.

    Raises:
        LiftArgumentError: where two leaves have one path.
    """
    module = definition.unflatten(range(definition.num_leaves))
    leaves = leaves_of(module)
    paths = [(COLLECTIONS[leaf.kind], *leaf.names) for leaf in leaves]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise LiftArgumentError(
            f"{'.'.join(twice[0][1:])} of {type(module).__name__}",
            "two leaves have this path.",
            "Give dicts keys whose texts differ.",
        )
    _, rest = flatten_static(module, _is_leaf)
    trainable = [path for path, leaf in zip(paths, leaves, strict=True) if leaf.is_trainable]
    return Places(Blueprint(rest, tuple(paths), _is_leaf), frozenset(trainable))


def write(where: str, blueprint: Blueprint, scope: Scope, module: Any) -> None:
    """Writes what changed in a module into the variables that it was read from.

    Args:
        where: the function that changed it, for the error.
        blueprint: that of the module as it was.
        scope: where the variables are.
        module: the module now.

    Raises:
        LiftArgumentError: where more than arrays changed.
        ModifyScopeVariableError: where the collection of what changed is immutable.
    """
    _, rest = flatten_static(module, _is_leaf)
    if rest != blueprint.rest:
        raise problems.changed_definition(where, blueprint.rest.unflatten([None] * len(blueprint.paths)), module)
    blueprint.write(scope, module)


def _is_leaf(leaf: Any) -> bool:
    """That every leaf of a module is kept in a variable, numbers of Python too."""
    return True

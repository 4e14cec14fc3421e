"""The arrays of a module as variables of a scope: states in one collection, parameters in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from liftcore import Blueprint, Rest, Scope, flatten_static, traverse_util
from liftcore.caches import bounded
from liftcore.errors import LiftArgumentError
from liftcore.leaves import is_array_or_struct
from liftcore.owners import by_dtype
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
    return places_of(module)[0].blueprint


def places_of(module: Any) -> tuple[Places, list[Any]]:
    """Return the variables of a module, and the leaves that they hold.

    Args:
        module: the module.

    Raises:
        LiftArgumentError: if two leaves have the same path.
    """
    leaves, rest = flatten_static(module, _is_leaf)
    return _places(rest, tuple(map(_is_inexact, leaves))), leaves


def _is_inexact(leaf: Any) -> bool:
    return is_array_or_struct(leaf) and by_dtype(leaf) == "params"


_TYPES = (jax.ShapeDtypeStruct((), "int32"), jax.ShapeDtypeStruct((), "float32"))


@bounded(256)
def _places(rest: Rest, inexact: tuple[bool, ...]) -> Places:
    """Return the variables of a module, from its static part. The kind of an array may depend on its dtype."""
    module = rest.unflatten([_TYPES[one] for one in inexact])
    leaves = [leaf for leaf in leaves_of(module) if leaf.kind in COLLECTIONS]
    paths = [(COLLECTIONS[leaf.kind], *leaf.names) for leaf in leaves]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise LiftArgumentError(
            f"{'.'.join(twice[0][1:])} of {type(module).__name__}",
            "two leaves have this path.",
            "Use dict keys that differ as text.",
        )
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
    """Return whether a leaf of a module is kept in a variable: all but the functions of pytree modules."""
    return by_dtype(leaf) is not None

"""`Blueprint`: the arrays of a pytree as variables of a scope, by path, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import meta
from ..errors import LiftArgumentError, shown
from ..rest import Rest, is_array, split_static
from ..typing import Path, PyTree, Variables
from .declaring import check_creatable
from .scope import Scope

__all__ = ["Blueprint"]


def _is_typed(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands for the type of one."""
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A pytree without its arrays, and for each of them the variable that it is kept in.

    So a module that is a pytree becomes a part of a model of scopes: its arrays are variables, which filters, lifts and
    checkpoints treat one by one; `read` gives the module again. A blueprint holds no arrays, and is hashable.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> mlp = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.zeros(2)}], "act": jnp.tanh}
        >>> blueprint = Blueprint.of(mlp)
        >>> blueprint.paths
        (('params', 'layers', '0', 'w'), ('params', 'layers', '1', 'w'))
        >>> def model(scope, x):
        ...     mlp = blueprint.read(scope)
        ...     for layer in mlp["layers"]:
        ...         x = mlp["act"](x + layer["w"])
        ...     return x
        >>> liftcore.apply(model)(blueprint.variables(mlp), jnp.zeros(2)).shape
        (2,)

    Attributes:
        rest: the pytree without its arrays.
        paths: for each of its arrays, in order, `(collection, *names)`; those of one array that stands in two places
            are the same.
        is_traced: which leaves are kept in variables.
    """

    rest: Rest
    paths: tuple[Path, ...]
    is_traced: Callable[[Any], bool] = _is_typed

    @classmethod
    def of(
        cls,
        tree: PyTree,
        collection: str | Callable[[Any], str] = "params",
        is_traced: Callable[[Any], bool] = _is_typed,
    ) -> Blueprint:
        """That of a pytree.

        Example:
            >>> import jax.numpy as jnp
            >>> def by_dtype(leaf):
            ...     return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "constants"
            >>> Blueprint.of({"w": jnp.ones(2), "ids": jnp.arange(2)}, by_dtype).paths
            (('constants', 'ids'), ('params', 'w'))

        Args:
            tree: the pytree; `jax.ShapeDtypeStruct` may stand for arrays.
            collection: the collection of all arrays, or a function from an array to that of it.
            is_traced: which leaves are kept in variables: by default arrays.

        Raises:
            Undescribed: where no key stands for another leaf.
            LiftArgumentError: where two arrays would be one variable, and where a collection is no text.
        """
        dynamic, rest = split_static(tree, is_traced)
        of_array: dict[int, Path] = {}
        taken: dict[Path, str] = {}  # what lies at a path, and below it
        paths = []
        for keys, leaf in jax.tree.leaves_with_path(dynamic):
            if id(leaf) not in of_array:
                path = of_array[id(leaf)] = (_collection(collection, leaf), *(map(_name, keys) if keys else ["value"]))
                _check_free(path, taken, jax.tree_util.keystr(keys))
            paths.append(of_array[id(leaf)])
        return cls(rest, tuple(paths), is_traced)

    def variables(self, tree: PyTree) -> dict[str, Any]:
        """The arrays of a pytree as variables, `{collection: {name: … array}}`.

        Args:
            tree: a pytree of this blueprint.

        Raises:
            LiftArgumentError: where it differs from the blueprint in more than its arrays.
        """
        made: dict[str, Any] = {}
        for path, array in self._arrays(tree).items():
            below = made
            for name in path[:-1]:
                below = below.setdefault(name, {})
            below[path[-1]] = array
        return made

    def read(self, source: Scope | Variables) -> Any:
        """The pytree, with the values that its variables have now.

        Args:
            source: a scope, or `{collection: {name: … array}}`.

        Raises:
            ScopeVariableNotFoundError: where a scope has no such variable, or another error that says so.
            LiftArgumentError: where variables lack one.
        """
        get = _from_scope if isinstance(source, Scope) else _from_variables
        values = {path: get(source, path) for path in dict.fromkeys(self.paths)}
        return self.rest.unflatten([values[path] for path in self.paths])

    def create(self, scope: Scope, make: Callable[[], PyTree]) -> None:
        """Makes those variables that do not exist in a scope.

        Example:
            >>> import liftcore
            >>> import jax.numpy as jnp
            >>> blueprint = Blueprint.of({"w": jnp.zeros(2)})
            >>> def model(scope):
            ...     blueprint.create(scope, lambda: {"w": jnp.ones(2)})
            ...     return blueprint.read(scope)
            >>> liftcore.init(model)({})[1]
            {'params': {'w': Array([1., 1.], dtype=float32)}}

        Args:
            scope: the scope; one of its own, such as `scope.push("mlp")`, keeps its names apart.
            make: gives a pytree of this blueprint; called where a variable is missing.

        Raises:
            ScopeVariableNotFoundError: where one is missing and may not be made, or another error that says so.
            LiftArgumentError: where the pytree differs from the blueprint in more than its arrays.
        """
        missing = []
        for collection, *names, name in dict.fromkeys(self.paths):
            below = scope.below(tuple(names))
            if not below.has_variable(collection, name):
                check_creatable(below, collection, name)
                missing.append((collection, *names, name))
        arrays = self._arrays(make()) if missing else {}
        for collection, *names, name in missing:
            scope.below(tuple(names)).create_variable(collection, name, arrays[collection, *names, name])

    def write(self, scope: Scope, tree: PyTree) -> None:
        """Makes the variables that do not exist in a scope, and writes those that hold another array.

        Args:
            scope: the scope; one of its own, such as `scope.push("mlp")`, keeps its names apart.
            tree: a pytree of this blueprint.

        Raises:
            LiftArgumentError: where it differs from the blueprint in more than its arrays.
            ModifyScopeVariableError: where a variable differs, and its collection is immutable.
        """
        for (collection, *names, name), array in self._arrays(tree).items():
            below = scope.below(tuple(names))
            if not below.has_variable(collection, name):
                below.create_variable(collection, name, array)
            elif meta.unbox(below.get_variable(collection, name)) is not array:
                below.put_unboxed(collection, name, array)

    def _arrays(self, tree: PyTree) -> dict[Path, Any]:
        """The arrays of a pytree of this blueprint, by path."""
        dynamic, rest = split_static(tree, self.is_traced)
        if rest != self.rest:
            raise LiftArgumentError(
                "Blueprint",
                f"the pytree differs in more than its arrays: expected {self.rest}, given {rest}.",
                "Make another one: `Blueprint.of(tree)`.",
            )
        found: dict[Path, Any] = {}
        for path, array in zip(self.paths, jax.tree.leaves(dynamic), strict=True):
            if found.setdefault(path, array) is not array:
                raise LiftArgumentError(
                    f"Blueprint, {'/'.join(path)}",
                    "two places of the pytree share this variable, and two arrays were given for them.",
                    "Put the same array in both places, or make a blueprint of a pytree that does not share it.",
                )
        return found


def _collection(collection: str | Callable[[Any], str], leaf: Any) -> str:
    name = collection if isinstance(collection, str) else collection(leaf)
    if not isinstance(name, str):
        raise LiftArgumentError(
            "Blueprint.of",
            f"expected the name of a collection for {shown(leaf)}, given {shown(name)}.",
            'Write `collection="params"`, or a function that returns a name for each array.',
        )
    return name


def _name(key: Any) -> str:
    """The name of one step down a pytree: that of the attribute, the key of the dict or the number in the list."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _check_free(path: Path, taken: dict[Path, str], place: str) -> None:
    """Notes that an array is kept at a path; no other one may be there, above or below."""
    above = [path[:size] for size in range(1, len(path))]
    other = taken.get(path) or next((taken[each] for each in above if taken.get(each, _DICT) != _DICT), None)
    if other is not None:
        raise LiftArgumentError(
            "Blueprint.of",
            f"{place} would be kept at {'/'.join(path)}, where {other} is kept.",
            "Give dicts keys whose texts differ, and nodes of your own different keys for their children.",
        )
    taken.update(dict.fromkeys(above, _DICT))
    taken[path] = place


_DICT = "another part of the pytree"


def _from_scope(scope: Any, path: Path) -> Any:
    collection, *names, name = path
    below = scope.below(tuple(names))
    if not below.has_variable(collection, name):
        check_creatable(below, collection, name, made=False)
    return meta.unbox(below.get_variable(collection, name))


def _from_variables(variables: Any, path: Path) -> Any:
    found: Any = variables
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            available = sorted(map(str, found)) if isinstance(found, Mapping) else []
            raise LiftArgumentError(
                "Blueprint.read",
                f"there is no variable {'/'.join(path)} (available: {available}).",
                "Pass what `variables` gave, or what `init` returned for this pytree.",
            )
        found = found[name]
    return meta.unbox(found)

"""`Blueprint`: stores the arrays of a pytree as variables of a scope, by path, and rebuilds the pytree from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import meta
from ..errors import Expected, LiftArgumentError, shown
from ..filters.trees import nested
from ..pytrees import is_array, is_array_or_struct
from ..rest import Rest, split_static
from ..typing import Path, PyTree, Variables
from .declaring import check_creatable, create_missing
from .scope import Scope

__all__ = ["Blueprint"]


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A pytree without its arrays, and the variable that each of the arrays is stored in.

    A blueprint makes a module that is a pytree a part of a model of scopes. The arrays of the module become variables,
    which filters, lifts and checkpoints handle one by one, and `read` rebuilds the module from them. A blueprint
    contains no arrays and is hashable.

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
        paths: the path `(collection, *names)` of each of its arrays, in order. An array that is in two places has the
            same path twice.
        is_traced: tells which leaves are stored in variables.
    """

    rest: Rest
    paths: tuple[Path, ...]
    is_traced: Callable[[Any], bool] = is_array_or_struct

    @classmethod
    def of(
        cls,
        tree: PyTree,
        collection: str | Callable[[Any], str] = "params",
        is_traced: Callable[[Any], bool] = is_array_or_struct,
    ) -> Blueprint:
        """Return the blueprint of a pytree.

        Example:
            >>> import jax.numpy as jnp
            >>> def by_dtype(leaf):
            ...     return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "constants"
            >>> Blueprint.of({"w": jnp.ones(2), "ids": jnp.arange(2)}, by_dtype).paths
            (('constants', 'ids'), ('params', 'w'))

        Args:
            tree: the pytree; `jax.ShapeDtypeStruct` may stand for arrays.
            collection: the collection of all arrays, or a function from an array to its collection.
            is_traced: tells which leaves are stored in variables; by default, arrays.

        Raises:
            Undescribed: if a leaf that is not an array cannot be turned into a key.
            LiftArgumentError: if two arrays would share one variable, or a collection is not a string.
        """
        dynamic, rest = split_static(tree, is_traced)
        of_array: dict[int, Path] = {}
        taken: dict[Path, str] = {}  # what is stored at each path and below it
        paths = []
        for keys, leaf in jax.tree.leaves_with_path(dynamic):
            if id(leaf) not in of_array:
                path = of_array[id(leaf)] = (_collection(collection, leaf), *(map(_name, keys) if keys else ["value"]))
                _check_free(path, taken, jax.tree_util.keystr(keys))
            paths.append(of_array[id(leaf)])
        return cls(rest, tuple(paths), is_traced)

    @classmethod
    def adopt(cls, scope: Scope, make: Callable[[Any], PyTree], of: Callable[[PyTree], Blueprint]) -> Blueprint:
        """Return the blueprint of what a function makes, and create the variables that do not exist in a scope.

        Example:
            >>> import jax, liftcore
            >>> def model(scope, x):
            ...     below = scope.push("layer")
            ...     layer = Blueprint.adopt(below, lambda key: {"w": jax.random.normal(key, (3,))}, Blueprint.of)
            ...     return layer.read(below)["w"] * x
            >>> liftcore.init(model)(jax.random.key(0), 2.0)[1]["params"]["layer"]["w"].shape
            (3,)

        Args:
            scope: the scope; a separate one, such as `scope.push("mlp")`, keeps the names apart from others.
            make: called with a key of the RNG stream "params"; returns the pytree. If the variables exist, it is only
                traced, to find the structure.
            of: returns the blueprint of the pytree, or of its types.

        Raises:
            ScopeVariableNotFoundError: if a variable is missing and must not be created, or a related error.
            LiftArgumentError: if two arrays would share one variable.
        """

        def made() -> PyTree:
            return make(scope.make_rng("params"))

        begins = scope.is_initializing() and not scope.variables()
        like = made() if begins else _types(make)
        blueprint = of(like)
        blueprint.create(scope, (lambda: like) if begins else made, like)
        return blueprint

    def variables(self, tree: PyTree) -> dict[str, Any]:
        """Return the arrays of a pytree as variables, `{collection: {name: … array}}`.

        Args:
            tree: a pytree of this blueprint.

        Raises:
            LiftArgumentError: if it differs from the blueprint in more than its arrays.
        """
        return nested(self._arrays(tree))

    def read(self, source: Scope | Variables) -> Any:
        """Return the pytree with the current values of its variables.

        Args:
            source: a scope, or `{collection: {name: … array}}`.

        Raises:
            ScopeVariableNotFoundError: if the scope lacks a variable, or a related error that says why.
            LiftArgumentError: if the mapping lacks a variable.
        """
        get = _from_scope if isinstance(source, Scope) else _from_variables
        values = {path: get(source, path) for path in dict.fromkeys(self.paths)}
        return self.rest.unflatten([values[path] for path in self.paths])

    def create(self, scope: Scope, make: Callable[[], PyTree], like: PyTree | None = None) -> None:
        """Create those variables that do not exist in a scope.

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
            scope: the scope; a separate one, such as `scope.push("mlp")`, keeps the names apart from others.
            make: returns a pytree of this blueprint; called only if a variable is missing.
            like: what `make` returns, or its types: the shapes of variables that exist are compared with it.

        Raises:
            NameInUseError: if `like` is given, and something else in the scope uses the name of a variable.
            ScopeParamShapeError: if a parameter exists with another shape than in `like`.
            ScopeVariableNotFoundError: if a variable is missing and must not be created, or a related error.
            LiftArgumentError: if the pytree differs from the blueprint in more than its arrays.
        """
        if like is not None:
            scope.own(self, self._arrays(like))
        create_missing(scope, dict.fromkeys(self.paths), lambda: self._arrays(make()))

    def write(self, scope: Scope, tree: PyTree) -> None:
        """Create the variables that do not exist in a scope, and write those that hold a different array.

        Args:
            scope: the scope; a separate one, such as `scope.push("mlp")`, keeps the names apart from others.
            tree: a pytree of this blueprint.

        Raises:
            LiftArgumentError: if the pytree differs from the blueprint in more than its arrays.
            ModifyScopeVariableError: if a variable differs and its collection is immutable.
        """
        for (collection, *names, name), array in self._arrays(tree).items():
            below = scope.below(tuple(names))
            if not below.has_variable(collection, name):
                below.create_variable(collection, name, array)
            elif meta.unbox(below.get_variable(collection, name)) is not array:
                below.put_unboxed(collection, name, array)

    def _arrays(self, tree: PyTree) -> dict[Path, Any]:
        """Return the arrays of a pytree of this blueprint, by path."""
        dynamic, rest = split_static(tree, self.is_traced)
        if rest != self.rest:
            raise LiftArgumentError(
                "Blueprint",
                f"the pytree differs in more than its arrays: expected {self.rest}, given {rest}.",
                "Make another one: `Blueprint.of(tree)`.",
                given=str(rest),
                expected=str(self.rest),
            )
        found: dict[Path, Any] = {}
        for path, array in zip(self.paths, jax.tree.leaves(dynamic), strict=True):
            if found.setdefault(path, array) is not array:
                raise LiftArgumentError(
                    f"Blueprint, {'/'.join(path)}",
                    "two places of the pytree share this variable, but two different arrays were given for them.",
                    "Put the same array in both places, or make a blueprint of a pytree that does not share it.",
                    variable="/".join(path),
                )
        return found


def _types(make: Callable[[Any], PyTree]) -> PyTree:
    """Return what a function of a key makes, with types in place of arrays: one type for one array in two places."""
    found: list[PyTree] = []

    def trace(key: Any) -> None:
        tree = make(key)
        arrays = {id(leaf): leaf for leaf in jax.tree.leaves(tree) if is_array(leaf)}
        types: Any = jax.eval_shape(lambda: arrays)
        found.append(jax.tree.map(lambda leaf: types.get(id(leaf), leaf), tree))

    jax.eval_shape(trace, jax.eval_shape(jax.random.key, 0))
    return found[0]


def _collection(collection: str | Callable[[Any], str], leaf: Any) -> str:
    name = collection if isinstance(collection, str) else collection(leaf)
    if not isinstance(name, str):
        raise LiftArgumentError(
            f"Blueprint.of, {shown(leaf)}",
            Expected("the name of a collection", given=name),
            'Write `collection="params"`, or a function that returns a name for each array.',
            option="collection",
        )
    return name


def _name(key: Any) -> str:
    """Return the name of one step down a pytree: an attribute name, a dict key or a list index."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _check_free(path: Path, taken: dict[Path, str], place: str) -> None:
    """Record that an array is stored at a path, and check that no other array is there, above it or below it."""
    above = [path[:size] for size in range(1, len(path))]
    other = taken.get(path) or next((taken[each] for each in above if taken.get(each, _DICT) != _DICT), None)
    if other is not None:
        raise LiftArgumentError(
            "Blueprint.of",
            f"{place} would be stored at {'/'.join(path)}, but {other} is stored there.",
            "Give dicts keys whose texts differ, and give the children of custom nodes different keys.",
            variable="/".join(path),
        )
    taken.update(dict.fromkeys(above, _DICT))
    taken[path] = place


_DICT = "another part of the pytree"


def _from_scope(scope: Any, path: Path) -> Any:
    collection, *names, name = path
    below = scope.below(tuple(names))
    if name not in below.dicts(collection):
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
                "Pass the result of `variables`, or what `init` returned for this pytree.",
                variable="/".join(path),
                available=available,
            )
        found = found[name]
    return meta.unbox(found)

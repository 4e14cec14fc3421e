"""The arrays of a module as variables of a scope: states in one collection, parameters in another; `adopt`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import Blueprint, Rest, Scope, flatten_static, traverse_util
from liftcore.caches import bounded
from liftcore.errors import LiftArgumentError, name_of
from liftcore.owners import by_dtype, call_maker, check_made, check_maker
from liftcore.pytrees import is_array_or_struct
from liftcore.typing import Path

from .structure import COLLECTIONS, changed_definition, is_module
from .views import leaves_of

__all__ = ["Adopted", "Places", "adopt", "blueprint_of", "places_of", "write"]

# --- variables --------------------------------------------------------------------------------------------------------


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
    inexact = tuple(is_array_or_struct(leaf) and by_dtype(leaf) == "params" for leaf in leaves)
    return _places(rest, inexact), leaves


_TYPES = (jax.ShapeDtypeStruct((), "int32"), jax.ShapeDtypeStruct((), "float32"))


@bounded(256)
def _places(rest: Rest, inexact: tuple[bool, ...]) -> Places:
    """Return the variables of a module, from its static part. The kind of an array may depend on its dtype."""
    module = rest.unflatten([_TYPES[one] for one in inexact])
    leaves = [leaf for leaf in leaves_of(module) if leaf.kind in COLLECTIONS]
    paths = [(COLLECTIONS[leaf.kind], *leaf.names) for leaf in leaves]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        where = f"{'.'.join(twice[0][1:])} of {type(module).__name__}"
        what = "two leaves have this path."
        raise LiftArgumentError(where, what, "Use dict keys that differ as text.", variable=".".join(twice[0][1:]))
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
        raise changed_definition(where, blueprint.rest.unflatten([None] * len(blueprint.paths)), module)
    blueprint.write(scope, module)


def _is_leaf(leaf: Any) -> bool:
    """Return whether a leaf of a module is kept in a variable: all but the functions of pytree modules."""
    return by_dtype(leaf) is not None


# --- adopted modules --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Adopted:
    """A module whose arrays are variables of a scope. A call reads them first, and writes back those that changed.

    Attributes:
        scope: the scope.
        blueprint: the module without its arrays, and the variable of each array.
    """

    scope: Scope
    blueprint: Blueprint

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Args:
            *args: the positional arguments.
            **kwargs: the keyword arguments.

        Raises:
            ModifyScopeVariableError: if the call changes a variable whose collection is immutable.
        """
        return self.run(_call, *args, **kwargs)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function with the module, such as another one of its methods.

        Example:
            >>> import liftcore, pax_like as pax
            >>> import jax.numpy as jnp
            >>> def model(scope, x):
            ...     norm = pax.adopt(scope.push("norm"), pax.BatchNorm(2))
            ...     return norm(x), norm.run(lambda module: module.mean)
            >>> (_, mean), variables = liftcore.init(model)({}, jnp.ones((3, 2)))
            >>> variables["state"]["norm"]["mean"] is mean
            True

        Args:
            fn: the function, called as `fn(module, *args, **kwargs)`.
            *args: its positional arguments.
            **kwargs: its keyword arguments.

        Raises:
            ModifyScopeVariableError: if the function changes a variable whose collection is immutable.
            LiftArgumentError: if the function changes more of the module than arrays.
        """
        module = self.blueprint.read(self.scope)
        result = fn(module, *args, **kwargs)
        write(name_of(fn), self.blueprint, self.scope, module)
        return result

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        return [self.scope], _OnOther(self.blueprint)


@dataclasses.dataclass(frozen=True)
class _OnOther:
    """A function from a scope to the adopted module on that scope."""

    blueprint: Blueprint

    def __call__(self, scopes: Sequence[Scope]) -> Adopted:
        return Adopted(scopes[0], self.blueprint)


def _call(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def adopt(scope: Scope, module: Any) -> Adopted:
    """Make a module a part of a model of scopes: its parameters are variables in "params", its states in "state".

    Use it in functions of scopes and in Linen-style modules, under any lift. Filters can match each of its arrays.

    Example:
        >>> import jax, liftcore, pax_like as pax
        >>> import jax.numpy as jnp
        >>> def model(scope, x):
        ...     linear = pax.adopt(scope.push("linear"), lambda key: pax.Linear(3, 2, key=key))
        ...     return linear(x)
        >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.ones((1, 3)))
        >>> variables["params"]["linear"]["kernel"].shape
        (3, 2)

    Args:
        scope: a scope for only these variables, such as `scope.push("counter")`.
        module: the module, whose arrays are the initial values; or a function from a key of the RNG stream "params" to
            the module, so that each iteration of a loop and each batch element has initial values of its own.

    Returns:
        An object that you call like the module.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and cannot be created. Some causes raise another error.
    """
    if is_module(module):
        blueprint = blueprint_of(module)
        blueprint.create(scope, lambda: module, module)
        return Adopted(scope, blueprint)
    check_maker("adopt", module, "key")

    def made(key: Any) -> Any:
        tree = call_maker("adopt", module, "a key", key)
        check_made("adopt", tree, "a module with kinds")
        return tree

    return Adopted(scope, Blueprint.adopt(scope, made, blueprint_of))

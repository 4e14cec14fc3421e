"""`adopt`: make the arrays of a module variables of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from liftcore import Blueprint, Scope
from liftcore.errors import name_of
from liftcore.owners import call_maker, check_made, check_maker

from .structure import is_module
from .variables import blueprint_of, write

__all__ = ["Adopted", "adopt"]


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

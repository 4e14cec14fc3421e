"""`adopt`: the arrays of a pytree as variables of a scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import Blueprint, Scope
from liftcore.errors import check_function

from .shapes import filter_eval_shape

__all__ = ["adopt", "by_dtype"]


def by_dtype(leaf: Any) -> str:
    """The collection of an array: "params" where it can be differentiated, else "constants".

    Example:
        >>> by_dtype(jnp.ones(2)), by_dtype(jnp.arange(2))
        ('params', 'constants')

    Args:
        leaf: the array.
    """
    return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "constants"


def adopt(
    scope: Scope,
    make: Callable[..., Any],
    *args: Any,
    collection: str | Callable[[Any], str] = by_dtype,
    **kwargs: Any,
) -> Any:
    """A pytree whose arrays are variables of a scope.

    So a module that is a pytree is a part of any model of scopes: each array is a variable at its path, made in the
    `init` of any lift, and reached by filters. Where the variables exist, `make` is run for its structure alone.

    Example:
        >>> import jax, liftcore, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> def affine(key, size):
        ...     return {"w": jax.random.normal(key, (size,)), "act": jax.nn.relu}
        >>> def model(scope, x):
        ...     layer = eqx.adopt(scope.push("layer"), affine, 3)
        ...     return layer["act"](layer["w"] * x)
        >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.ones(3))
        >>> variables["params"]["layer"]["w"].shape
        (3,)

    Args:
        scope: a scope of its own, such as `scope.push("mlp")`.
        make: called as `make(key, *args, **kwargs)`, with a key of the stream "params"; returns the pytree.
        *args: its arguments.
        collection: the collection of all arrays, or a function from an array to that of it.
        **kwargs: its keyword arguments.

    Returns:
        The pytree, with the values that the variables have now.

    Raises:
        ScopeVariableNotFoundError: where a variable is missing and may not be made, or another error that says so.
        Undescribed: where no key stands for a leaf that is no array.
    """
    check_function("adopt", make)

    def made() -> Any:
        return make(scope.make_rng("params"), *args, **kwargs)

    if scope.is_initializing() and not scope.variables():
        tree = made()
        blueprint = Blueprint.of(tree, collection)
        blueprint.create(scope, lambda: tree)
    else:
        key = jax.eval_shape(jax.random.key, 0)
        blueprint = Blueprint.of(filter_eval_shape(make, key, *args, **kwargs), collection)
        blueprint.create(scope, made)
    return blueprint.read(scope)

"""`adopt`: the arrays of a pytree as variables of a scope."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import Blueprint, Scope
from liftcore.errors import LiftArgumentError, name_of, shown

from .shapes import filter_eval_shape

__all__ = ["adopt", "by_dtype"]


def by_dtype(leaf: Any) -> str:
    """Return the collection of an array: "params" if it can be differentiated, else "constants".

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
    """Return a pytree whose arrays are variables of a scope.

    Use it to make a pytree module a part of any model of scopes. Each array is a variable at its path: filters match
    it, and `init` creates it in any lift. If the variables exist, `make` is only traced, to find the structure.

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
        scope: a scope for only these variables, such as `scope.push("mlp")`.
        make: a function that returns the pytree. It is called as `make(key, *args, **kwargs)`, with a key of the RNG
            stream "params". If it has a parameter `key` that is not the first one, like classes of Equinox, it is
            called as `make(*args, key=key, **kwargs)`.
        *args: the positional arguments of `make`.
        collection: the collection of all arrays, or a function from an array to its collection. By default, arrays of
            floating-point and complex numbers are "params", and other arrays are "constants".
        **kwargs: the keyword arguments of `make`.

    Returns:
        The pytree, with the current values of the variables.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and cannot be created. Some causes raise another error.
        LiftArgumentError: if `scope` is not a scope or `make` cannot be called; or if the pytree holds an
            `equinox.nn.State` and no `collection` is given.
        Undescribed: if a leaf that is not an array cannot be compared by value.
    """
    if not isinstance(scope, Scope):
        raise LiftArgumentError(
            "adopt",
            f"expected a scope, given {shown(scope)}.",
            'In a Linen-style module, pass `self.scope.push("name")`.',
        )
    if not callable(make):
        raise LiftArgumentError(
            "adopt",
            f"expected a function that returns a pytree, given {shown(make)}.",
            "Write `adopt(scope, lambda key: tree)`; or outside of a model, `liftcore.Blueprint.of(tree)`.",
        )
    makes = _of_key(make)

    def made() -> Any:
        return makes(scope.make_rng("params"), *args, **kwargs)

    if scope.is_initializing() and not scope.variables():
        tree = made()
        blueprint = _blueprint(tree, collection)
        blueprint.create(scope, lambda: tree)
    else:
        key = jax.eval_shape(jax.random.key, 0)
        blueprint = _blueprint(filter_eval_shape(makes, key, *args, **kwargs), collection)
        blueprint.create(scope, made)
    return blueprint.read(scope)


def _blueprint(tree: Any, collection: str | Callable[[Any], str]) -> Blueprint:
    """Return the blueprint of a pytree. Only the user knows the collection of an `equinox.nn.State`."""
    state: Any = getattr(sys.modules.get("equinox.nn"), "State", ())
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, state)) if collection is by_dtype else []
    if any(isinstance(node, state) for node in nodes):
        raise LiftArgumentError(
            "adopt",
            "the pytree holds an `equinox.nn.State`, whose arrays would become parameters.",
            "Adopt the module and the state separately, the state in a scope of its own with "
            '`collection="batch_stats"`. To keep the new state of a call, write '
            '`Blueprint.of(state, "batch_stats").write(scope, state)`.',
        )
    return Blueprint.of(tree, collection)


def _of_key(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function with the key as its first argument."""
    named = _takes_key_by_name(make)

    def makes(key: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, key=key, **kwargs) if named else make(key, *args, **kwargs)
        except TypeError as error:
            place = "as `key=`" if named else "as the first argument"
            error.add_note(
                f"adopt passes a key to {name_of(make)}: {place}. For other arguments, write "
                "`adopt(scope, lambda key: …)`; for a module that exists, `adopt(scope, lambda key: module)`."
            )
            raise

    return makes


def _takes_key_by_name(make: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `key` that is not the first one."""
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return False
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return "key" in [one.name for one in parameters if one.kind is one.KEYWORD_ONLY or one in by_position[1:]]

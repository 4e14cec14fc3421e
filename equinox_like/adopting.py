"""`adopt`: the arrays of a pytree as variables of a scope."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax

from liftcore import Blueprint, Scope
from liftcore.errors import Expected, LiftArgumentError, name_of
from liftcore.owners import by_dtype, check_made, check_maker, collections_of, is_changed, style_of

__all__ = ["adopt"]


def adopt(
    scope: Scope,
    make: Callable[..., Any],
    *args: Any,
    collection: str | Callable[[Any], str] | None = None,
    **kwargs: Any,
) -> Any:
    """Return a pytree whose arrays are variables of a scope.

    Use it to make a pytree module a part of any model of scopes. Each array is a variable at its path: filters match
    it, and `init` creates it in any lift. If the variables exist, `make` is only traced, to find the structure.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore, equinox_like as eqx
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
            floating-point and complex numbers are "params", and other arrays are "constants"; in a module of another
            style, the kind of an array decides.
        **kwargs: the keyword arguments of `make`.

    Returns:
        The pytree, with the current values of the variables.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and cannot be created. Some causes raise another error.
        LiftArgumentError: if `scope` is not a scope or `make` cannot be called; or if no `collection` is given, and the
            pytree holds an `equinox.nn.State`, or an object or a module with kinds that has states.
        Undescribed: if a leaf that is not an array cannot be compared by value.
    """
    if not isinstance(scope, Scope):
        fix = 'In a Linen-style module, pass `self.scope.push("name")`.'
        raise LiftArgumentError("adopt", Expected("a scope", scope), fix)
    if not callable(make):
        raise LiftArgumentError(
            "adopt",
            Expected("a function that returns a pytree", make),
            "Write `adopt(scope, lambda key: tree)`; or outside of a model, `liftcore.Blueprint.of(tree)`.",
        )
    makes = _of_key(make)

    blueprint = Blueprint.adopt(
        scope, lambda key: makes(key, *args, **kwargs), lambda tree: _blueprint(tree, collection)
    )
    return blueprint.read(scope)


def _blueprint(tree: Any, collection: str | Callable[[Any], str] | None) -> Blueprint:
    """Return the blueprint of a pytree. Calls change states, so only the user can decide what to do with them."""
    check_made("adopt", tree, "")
    if collection is not None:
        return Blueprint.of(tree, collection)
    state: Any = getattr(sys.modules.get("equinox.nn"), "State", ())
    if any(isinstance(node, state) for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, state))):
        what = "the pytree holds an `equinox.nn.State`, whose arrays would become parameters."
        fix = (
            "Adopt the module and the state separately, the state in a scope of its own with "
            '`collection="batch_stats"`. To keep the new state of a call, write '
            '`Blueprint.of(state, "batch_stats").write(scope, state)`.'
        )
        raise LiftArgumentError("adopt", what, fix, option="collection")
    for node in jax.tree.leaves(tree, is_leaf=is_changed):
        if is_changed(node) and not _KEPT.issuperset(collections_of(node, by_dtype)):
            style: Any = style_of(node)
            raise LiftArgumentError(
                "adopt",
                f"the pytree holds {style.noun}, {type(node).__name__}, whose changes of its states would be lost.",
                f"Write `{style.in_scope}`, in a scope of its own; or write its states yourself with `collection=`.",
                option="collection",
            )
    names = dict(zip(map(id, jax.tree.leaves(tree)), collections_of(tree, by_dtype), strict=True))
    return Blueprint.of(tree, lambda leaf: names[id(leaf)] or "constants")


_KEPT = frozenset({"params", "constants", None})
"""The collections that no call changes."""


def _of_key(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function with the key as its first argument."""
    named = _takes_key_by_name(make)

    def makes(key: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            check_maker("adopt", make, "key")
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

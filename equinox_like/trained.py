"""`trainable`: which leaves of a model to train, as a pytree of bools."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import jax

from liftcore.filters import Parameters, WithTag, to_predicate
from liftcore.owners import collections_of
from liftcore.typing import Filter

from .applied import Applied
from .filters import is_inexact_array

__all__ = ["trainable"]


def trainable(pytree: Any, variables: Filter = "params") -> Any:
    """Return a pytree of bools: True for each leaf to train.

    The leaves to train are the floating-point arrays that a filter matches: by default all parameters. In an `Applied`,
    a module with kinds or an object, those are the arrays that their own style calls parameters. Running statistics are
    floating-point arrays too, and `filter_grad` and an optimizer would change them. Pass the result as `arg` of
    `filter_grad`, and to `filter` for the optimizer.

    Example:
        >>> import jax, equinox_like as eqx, linen_like as nn
        >>> from liftcore.filters import PathContains
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((4, 2))
        >>> norm = eqx.Applied.init(nn.BatchNorm(use_running_average=False), jax.random.key(0), x)
        >>> chosen = eqx.trainable(norm)
        >>> chosen.variables["params"]["bias"], chosen.variables["batch_stats"]["mean"]
        (True, False)
        >>> def loss(norm):
        ...     y, norm = norm(x, mutable="batch_stats")
        ...     return jnp.sum(y), norm
        >>> gradient, changed = eqx.filter_grad(loss, has_aux=True, arg=chosen)(norm)
        >>> gradient.variables["batch_stats"]["mean"] is None
        True
        >>> eqx.trainable({"w": jnp.ones(2), "b": jnp.ones(2)}, PathContains("w"))
        {'b': False, 'w': True}

    Args:
        pytree: the model, or any pytree with models in it.
        variables: a filter of variables; see `liftcore.filters`. The path of an array is its collection, and the names
            that lead to it in the pytree. Its owner decides the collection: a variable of an `Applied` is in its own,
            and an array of a pytree module in "params".

    Raises:
        InvalidFilterError: if `variables` is not a filter.
        LiftArgumentError: if it matches nothing, unless it is "params", is None, or includes None, as
            `("batch_stats", None)` does.
    """
    predicate, found = to_predicate(variables), Parameters.of(pytree, ("params",))
    nodes = jax.tree.leaves_with_path(pytree, is_leaf=_is_applied)
    applied = {tuple(map(_name, keys)) for keys, node in nodes if _is_applied(node)}
    collections = iter(collections_of(pytree, lambda _: "params"))
    paths = []
    for path, value in zip(found.paths, found.values, strict=True):  # a box is one variable of one collection
        owned = [next(collections) for _ in jax.tree.leaves(value)]
        paths.append(_path(path, owned[0] if owned else None, applied))
    chosen = [
        path is not None and bool(predicate(path, value)) for path, value in zip(paths, found.values, strict=True)
    ]
    if not any(chosen) and predicate != WithTag("params"):  # a layer need not have parameters
        found._replace(paths=[path for path in paths if path is not None]).check("trainable", predicate)

    def of_leaves(value: Any, chosen: bool) -> Any:
        return jax.tree.map(lambda leaf: chosen and is_inexact_array(leaf), value)

    return found.like(list(map(of_leaves, found.values, chosen)))


def _is_applied(node: Any) -> bool:
    return isinstance(node, Applied)


def _path(path: tuple[str, ...], collection: str | None, applied: Container[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the path that begins with the collection, or None for a leaf that is not a variable.

    In an `Applied`, the names "variables" and that of the collection are left out.
    """
    names = path[1:]
    place = next((names[:end] for end in range(len(names)) if names[:end] in applied), None)
    if collection is None:
        return None
    return (collection, *names) if place is None else (collection, *place, *names[len(place) + 2 :])


def _name(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True)

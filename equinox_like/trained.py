"""`trainable`: which leaves of a model to train, as a pytree of bools."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import jax

from liftcore.filters import Parameters, WithTag, to_predicate
from liftcore.typing import Filter

from .applied import Applied
from .filters import is_inexact_array

__all__ = ["trainable"]


def trainable(pytree: Any, variables: Filter = "params") -> Any:
    """Return a pytree of bools: True for each leaf to train.

    The leaves to train are the floating-point arrays that a filter matches: by default all of them, except that in an
    `Applied`, only parameters. Running statistics are floating-point arrays too, and `filter_grad` and an optimizer
    would change them. Pass the result as `arg` of `filter_grad`, and to `filter` for the optimizer.

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
            that lead to it in the pytree. A variable of an `Applied` is in its own collection, every other array in
            "params".

    Raises:
        InvalidFilterError: if `variables` is not a filter.
        LiftArgumentError: if it matches nothing, and is neither "params" nor says that it may be empty, as `None` and
            `("batch_stats", None)` do.
    """
    predicate, found = to_predicate(variables), Parameters.of(pytree, ("params",))
    nodes = jax.tree.leaves_with_path(pytree, is_leaf=_is_applied)
    applied = {tuple(map(_name, keys)) for keys, node in nodes if _is_applied(node)}
    paths = [_path(path, applied) for path in found.paths]
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


def _path(path: tuple[str, ...], applied: Container[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the path with the collection of a variable of an `Applied`, or None for a leaf of its function."""
    place = next((path[1:end] for end in range(1, len(path)) if path[1:end] in applied), None)
    if place is None:
        return path
    kind, *names = path[1 + len(place) :]
    return (names[0], *place, *names[1:]) if kind == "variables" else None


def _name(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True)

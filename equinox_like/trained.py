"""`trainable`: which leaves of a model to train, as a pytree of bools."""

from __future__ import annotations

from typing import Any

import jax

from liftcore.filters import to_predicate
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
    """
    selects = to_predicate(variables)

    def chosen(path: tuple[str, ...], leaf: Any) -> bool:
        return is_inexact_array(leaf) and bool(selects(path, leaf))

    def answer(keys: Any, node: Any) -> Any:
        place = tuple(map(_name, keys))
        if not isinstance(node, Applied):
            return chosen(("params", *place), node)

        def of_variable(keys: Any, leaf: Any) -> bool:
            collection, *names = (_name(key) for key in keys if isinstance(key, jax.tree_util.DictKey))
            return chosen((collection, *place, *names), leaf)

        fn = jax.tree.map(lambda _: False, node.fn)
        return Applied(fn, jax.tree_util.tree_map_with_path(of_variable, node.variables))

    return jax.tree_util.tree_map_with_path(answer, pytree, is_leaf=lambda node: isinstance(node, Applied))


def _name(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True)

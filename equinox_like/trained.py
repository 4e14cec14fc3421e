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

    The leaves to train are the floating-point arrays; but in an `Applied`, only the variables that a filter matches.
    Running statistics are floating-point arrays too, and `filter_grad` and an optimizer would change them. Pass the
    result as `arg` of `filter_grad`, and to `filter` for the optimizer.

    Example:
        >>> import jax, equinox_like as eqx, linen_like as nn
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

    Args:
        pytree: the model, or any pytree with models in it.
        variables: a filter of the variables in each `Applied`; the first name of a path is the collection. See
            `liftcore.filters`.

    Raises:
        InvalidFilterError: if `variables` is not a filter.
    """
    selects = to_predicate(variables)

    def of_variable(path: Any, leaf: Any) -> bool:
        names = tuple(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
        return is_inexact_array(leaf) and bool(selects(names, leaf))

    def answer(node: Any) -> Any:
        if not isinstance(node, Applied):
            return is_inexact_array(node)
        fn = jax.tree.map(lambda _: False, node.fn)
        return Applied(fn, jax.tree_util.tree_map_with_path(of_variable, node.variables))

    return jax.tree.map(answer, pytree, is_leaf=lambda node: isinstance(node, Applied))

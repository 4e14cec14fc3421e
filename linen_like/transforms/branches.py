"""`cond` and `switch`: run one of several functions of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import liftcore
from liftcore.calls import boundary
from liftcore.problems import no_functions
from liftcore.typing import Filter

from ..lifting import lift_functions

__all__ = ["cond", "switch"]


@boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    mdl: Any,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`liftcore.cond` for functions of a module; it runs at once.

    Both functions may create variables and submodules. In `init` both create theirs, whichever one runs; submodules
    with the same automatic name are the same.

    Example:
        >>> import jax, linen_like as nn
        >>> class Gate(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, deep):
        ...         return nn.cond(deep, lambda mdl, x: nn.Dense(3, name="deep")(x), lambda mdl, x: x, self, x)
        >>> variables = Gate().init(jax.random.key(0), jax.numpy.ones(3), False)
        >>> list(variables["params"])
        ['deep']

    Args:
        pred: a scalar: whether the first function runs.
        true_fun: called as `true_fun(mdl, *operands)` if `pred` is true.
        false_fun: called as `false_fun(mdl, *operands)` if `pred` is false.
        mdl: the module, or a pytree of modules.
        *operands: pytrees of arrays; modules and variables in them are lifted too.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        The result of the function.
    """
    lift = functools.partial(liftcore.cond, variables=variables, rngs=rngs)
    return lift_functions(lift, true_fun, false_fun, name="nn.cond")(mdl, pred, *operands)


@boundary
def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    mdl: Any,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`liftcore.switch` for functions of a module; it runs at once. See `cond`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Heads(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, head):
        ...         heads = [lambda mdl, x, name=name: nn.Dense(2, name=name)(x) for name in ("a", "b")]
        ...         return nn.switch(head, heads, self, x)
        >>> variables = Heads().init(jax.random.key(0), jax.numpy.ones(3), 1)
        >>> sorted(variables["params"])
        ['a', 'b']

    Args:
        index: an integer: the number of the function that runs, from 0; one out of range is clamped.
        branches: called as `branches[index](mdl, *operands)`.
        mdl: the module, or a pytree of modules.
        *operands: pytrees of arrays; modules and variables in them are lifted too.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        The result of the function.
    """
    functions = list(branches) if isinstance(branches, Iterable) else []
    if not functions:
        raise no_functions("nn.switch", "Pass a list: `nn.switch(index, [f, g], mdl)`.", branches)

    def lift(*calls: Callable[..., Any]) -> Callable[..., Any]:
        return liftcore.switch(calls, variables=variables, rngs=rngs)

    return lift_functions(lift, *functions, name="nn.switch")(mdl, index, *operands)

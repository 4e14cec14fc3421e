"""Lifted `jax.lax.cond` and `jax.lax.switch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ..pipeline.body import Body
from ..pipeline.reuse import once
from ..problems import no_functions
from ..runners.arguments import AS_IT_IS, named_like, passing_all
from ..runners.branching import check_index, check_pred, run_one
from ..runners.eager import cached_when_eager
from ..typing import Filter

__all__ = ["cond", "switch"]

_ADVICE = AS_IT_IS._replace(
    out=("written by the branch that runs",),
    rngs=("passed through, counted from entry in each branch",),
    captured="zeros from branches that do not run",
)


@cached_when_eager(numbers=[1])
def cond(
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.lax.cond` for functions of scopes.

    Variables that either function creates exist afterwards, whichever runs. If both create a variable, its initial
    value is the one of `true_fun`. Both count their draws from the count at entry, and the larger count holds
    afterwards. Values sown by the function that does not run are zeros.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def double(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(2))
        >>> def negate(scope, x):
        ...     return -x
        >>> model = liftcore.cond(double, negate)
        >>> y, variables = liftcore.init(model)(jax.random.key(0), False, 21.0)
        >>> y, variables
        (Array(-21., dtype=float32, weak_type=True), {'params': {'w': Array(2., dtype=float32)}})
        >>> liftcore.apply(model)(variables, True, 21.0)
        Array(42., dtype=float32, weak_type=True)

    Args:
        true_fun: called as `true_fun(scopes, *operands)` if the predicate is true.
        false_fun: called as `false_fun(scopes, *operands)` if the predicate is false.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, pred, *operands)`.

    Raises:
        LiftArgumentError: when called, if the functions disagree about the type of a variable, or the predicate is not
            a scalar.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, pred: Any, *operands: Any) -> Any:
        check_pred(body.where, pred)

        def choose(branches: Sequence[Callable[[], Any]]) -> Any:
            return once(lambda pred: jax.lax.cond(pred, *branches), pred)

        return run_one(body, [true_fun, false_fun], choose, variable_groups, rng_groups, operands)

    lifted = passing_all(transform, "cond", variables, rngs, _ADVICE)(true_fun)

    @named_like(true_fun)
    def call(scopes: Any, pred: Any, *operands: Any) -> Any:
        return lifted(scopes, pred, *operands)

    return call


@cached_when_eager(numbers=[1])
def switch(
    branches: Sequence[Callable[..., Any]],
    *,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.lax.switch` for functions of scopes; see `cond` for what happens to their variables.

    Example:
        >>> import jax, liftcore
        >>> def expert(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (3, 3))
        >>> experts = [lambda scope, x, name=name: scope.child(expert, name)(x) for name in "abc"]
        >>> _, variables = liftcore.init(liftcore.switch(experts))(jax.random.key(0), 1, jax.numpy.ones(3))
        >>> sorted(variables["params"])
        ['a', 'b', 'c']

    Args:
        branches: called as `branches[index](scopes, *operands)`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, index, *operands)`; an index out of range is clamped into it.

    Raises:
        LiftArgumentError: if there are no branches; when called, if they disagree about the type of a variable, or the
            index is not a scalar integer.
    """
    functions = list(branches) if isinstance(branches, Iterable) else []
    if not functions:
        raise no_functions("switch", "Give a list: `switch([f, g])`.", branches)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, index: Any, *operands: Any) -> Any:
        check_index(body.where, index)

        def choose(branches: Sequence[Callable[[], Any]]) -> Any:
            return once(lambda index: jax.lax.switch(index, branches), index)

        return run_one(body, functions, choose, variable_groups, rng_groups, operands)

    lifted = passing_all(transform, "switch", variables, rngs, _ADVICE)(functions[0])

    @named_like(functions[0])
    def call(scopes: Any, index: Any, *operands: Any) -> Any:
        return lifted(scopes, index, *operands)

    return call

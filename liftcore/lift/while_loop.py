"""Lifted `jax.lax.while_loop`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..pipeline.body import Body
from ..runners.arguments import named_like
from ..runners.axes import NO_AXES, split_rules, splits
from ..runners.branching import check_condition
from ..runners.eager import cached_when_eager
from ..runners.while_loops import Repeat, lift_of_loop, loop_keys
from ..typing import Filter, PyTree

__all__ = ["while_loop"]


@cached_when_eager(numbers=[1])
def while_loop(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    *,
    variable_carry: Filter = False,
    variable_broadcast: Filter = True,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
) -> Callable[..., Any]:
    """`jax.lax.while_loop` for functions of scopes.

    If a stream is split, iteration `i` draws from the root key with `2 * i` folded in, and the condition before it
    from the root key with `2 * i + 1` folded in. If it is not split, all bodies draw the same keys, and all conditions
    draw the same keys, from the root key with 1 folded in. Sowing is an error, because the number of values is
    unknown.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def small(scope, x):
        ...     return x < scope.variable("consts", "limit", lambda: 100.0).value
        >>> def double(scope, x):
        ...     scope.variable("counter", "steps", lambda: jnp.int32(0)).value += 1
        ...     return 2 * x
        >>> model = liftcore.while_loop(small, double, variable_carry="counter")
        >>> y, variables = liftcore.init(model)(jax.random.key(0), 3.0)
        >>> float(y), int(variables["counter"]["steps"])
        (192.0, 6)

    Args:
        cond_fun: called as `cond_fun(scopes, value)`. It may create variables, but not write any.
        body_fun: called as `body_fun(scopes, value)`; returns the next value.
        variable_carry: a filter of variables that pass from one iteration to the next.
        variable_broadcast: a filter of variables that all iterations share, among those that are not carried.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.

    Returns:
        `lifted(scopes, init_val)`, which returns the last value.

    Raises:
        CarryTypeError: when called, if the body changes the type of the value or of a carried variable.
        LiftArgumentError: when called, if a value is sown, or the condition is not a scalar bool.
        LoopInvarianceError: when called, if a shared value depends on the iteration, or the condition writes.
    """
    rules, key_axes = split_rules(split_rngs)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, init_val: Any) -> Any:
        def run(fn: Callable[..., Any], offset: int) -> Callable[..., Any]:
            def call(body: Body, variables: Sequence[PyTree], number: Any, value: Any) -> Any:
                keys = loop_keys(rng_groups, key_axes, number, offset)
                result, groups = body.of(fn)(variables, keys, value)
                if fn is cond_fun:
                    check_condition(body.where, result)
                return result, groups

            return call

        loop = Repeat(body, run(cond_fun, 1), run(body_fun, 0))
        return loop.run(variable_groups, init_val, splits(rng_groups, key_axes))

    filters = [variable_carry, variable_broadcast]
    lifted = lift_of_loop(transform, "while_loop", filters, rules, key_axes, "refused")(body_fun)

    @named_like(body_fun)
    def call(scopes: Any, init_val: Any) -> Any:
        return lifted(scopes, init_val)

    return call

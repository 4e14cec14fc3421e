"""Lifted `jax.lax.fori_loop`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..pipeline.body import Body
from ..pytrees import is_array_like
from ..runners.arguments import named_like
from ..runners.axes import NO_AXES, split_rules, splits
from ..runners.eager import cached_when_eager
from ..runners.looping import Loop, lax_scan
from ..runners.while_loops import LOOP_ADVICE, Repeat, lift_of_loop, loop_keys
from ..typing import Filter

__all__ = ["fori_loop"]


@cached_when_eager(numbers=[3], known=[1, 2])
def fori_loop(
    body_fun: Callable[..., Any],
    *,
    unroll: int | bool | None = None,
    variable_carry: Filter = False,
    variable_broadcast: Filter = True,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
) -> Callable[..., Any]:
    """`jax.lax.fori_loop` for a function of scopes.

    If a stream is split, iteration `i`, counted from 0, draws from the root key with `2 * i` folded in. If both bounds
    are known during tracing, the loop can be differentiated in reverse, and sown values are stacked. Otherwise, sowing
    is an error.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, i, x):
        ...     return jnp.tanh(i + x @ scope.param("w", jax.random.normal, (3, 3)))
        >>> model = lambda scope, x: liftcore.fori_loop(layer, split_rngs={"params": False})(scope, 0, 5, x)
        >>> y, variables = liftcore.init(model)(jax.random.key(0), jnp.ones(3))
        >>> y.shape, variables["params"]["w"].shape
        ((3,), (3, 3))

    Args:
        body_fun: called as `body_fun(scopes, i, value)`; returns the next value.
        unroll: the number of iterations in one step of the compiled loop; True for all of them. Only for bounds that
            are known during tracing.
        variable_carry: a filter of variables that pass from one iteration to the next.
        variable_broadcast: a filter of variables that all iterations share, among those that are not carried.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.

    Returns:
        `lifted(scopes, lower, upper, init_val)`, which returns the last value.

    Raises:
        CarryTypeError: when called, if the body changes the type of the value or of a carried variable.
        LiftArgumentError: when called, if the bounds are not integers of one type, or are unknown and `unroll` is
            given.
        LoopInvarianceError: when called, if a shared value depends on the iteration.
    """
    rules, key_axes = split_rules(split_rngs)

    def transform(
        body: Body, variable_groups: Any, rng_groups: Any, lower: Any, upper: Any, init_val: Any
    ) -> tuple[Any, Any]:
        def iteration(body: Body, variables: Any, number: Any, state: Any) -> tuple[Any, Any]:
            index, value = state
            value, groups = body(variables, loop_keys(rng_groups, key_axes, number, 0), index, value)
            return (index + 1, value), groups

        lower, upper = _bounds(body.where, lower, upper)
        counts = splits(rng_groups, key_axes)
        if isinstance(lower, jax.core.Tracer) or isinstance(upper, jax.core.Tracer):
            if unroll is not None:
                raise LiftArgumentError(
                    f"{body.where}, unroll={unroll}",
                    "a loop can be unrolled only if both bounds are known when it is traced.",
                    "Leave out `unroll`, or pass Python integers as bounds.",
                    option="unroll",
                    given=unroll,
                )
            repeat = Repeat(body, lambda body, _, __, state: (state[0] < upper, body.unchanged), iteration)
            (_, value), groups = repeat.run(variable_groups, (lower, init_val), counts)
            return value, groups

        # Between known bounds, the loop is a scan that carries the index and the value.
        first, size = int(lower), max(int(upper) - int(lower), 0)

        def step(body: Body, shared: Any, now: Any, _: Any) -> tuple[Any, Any, Any]:
            carried, carry = now
            number = carry[0] - first if counts else ()
            carry, (carried, shared, captured) = iteration(body, (carried, shared), number, carry)
            return carry, (), (shared, carried, captured)

        carried, shared = variable_groups
        loop = Loop(size, lax_scan(size, unroll=1 if unroll is None else unroll), advice=LOOP_ADVICE)
        (_, value), _, groups = loop.run(body, step, shared, (carried, (first, init_val)), (), 0)
        return value, (groups[1], groups[0], groups[2])

    filters, sown = [variable_carry, variable_broadcast], "stacked on a new axis 0, if both bounds are known"
    lifted = lift_of_loop(transform, "fori_loop", filters, rules, key_axes, sown)(body_fun)

    @named_like(body_fun)
    def call(scopes: Any, lower: Any, upper: Any, init_val: Any) -> Any:
        return lifted(scopes, lower, upper, init_val)

    return call


def _bounds(where: str, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Return the bounds, cast to one integer type."""
    for bound in (lower, upper):
        if not is_array_like(bound) or np.shape(bound):
            fix = "Pass a number, or an array without axes, such as `x.shape[0]`."
            raise LiftArgumentError(where, Expected("an integer as each bound", given=bound), fix)
    kinds = [jax.dtypes.result_type(bound) for bound in (lower, upper)]
    weak = [jax.typeof(bound).weak_type for bound in (lower, upper)]
    if all(jnp.issubdtype(kind, jnp.integer) for kind in kinds):
        if kinds[0] == kinds[1]:
            return lower, upper
        if weak[0] != weak[1]:
            return tuple(jnp.asarray(bound, kinds[weak.index(False)]) for bound in (lower, upper))  # type: ignore
    raise LiftArgumentError(
        where,
        f"the bounds must be integers of one type, given {kinds[0]} and {kinds[1]}.",
        "Cast one of them, such as `lower.astype(upper.dtype)`.",
        expected="integers of one type",
        given=tuple(kinds),
    )

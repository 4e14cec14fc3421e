"""Lifted `jax.lax.associative_scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..errors import LiftArgumentError, words
from ..filters.trees import names_of
from ..pipeline.body import Body
from ..pipeline.stages import Changes
from ..runners.arguments import passing_all
from ..scopes.lifts import Advice
from ..typing import Filter, PyTree

__all__ = ["associative_scan"]

_ADVICE = Advice(
    '"{}" to `variables`', "nothing: it draws no keys", ("passed through",), ("refused",), ("refused",), "refused"
)


def associative_scan(
    fn: Callable[..., Any], reverse: bool = False, axis: int = 0, *, variables: Filter = True
) -> Callable[..., Any]:
    """`jax.lax.associative_scan` for an operator that reads variables.

    The operator may read variables, but not create or write them, sow or draw keys: JAX calls it several times, each
    time on a different number of pairs.

    Example:
        >>> import liftcore
        >>> import jax.numpy as jnp
        >>> def product(scope, a, b):
        ...     return a * scope.get_variable("params", "gain") * b
        >>> liftcore.apply(associative_scan(product))({"params": {"gain": jnp.float32(0.5)}}, jnp.ones(4))
        Array([1.   , 0.5  , 0.25 , 0.125], dtype=float32)

    Args:
        fn: called as `fn(scopes, a, b)`; must be associative.
        reverse: whether to combine from the last element to the first.
        axis: the axis of the arrays along which the elements are.
        variables: a filter of the variables that are lifted.

    Returns:
        `lifted(scopes, elems)`.

    Raises:
        LiftArgumentError: when called, if the operator does more than read.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, elems: PyTree) -> Any:
        def operator(a: Any, b: Any) -> Any:
            result, groups = body(variable_groups, rng_groups, a, b)
            _check_reads_only(body, *groups)
            return result

        scanned = jax.lax.associative_scan(operator, elems, reverse, axis)
        return scanned, body.unchanged

    return passing_all(transform, "associative_scan", variables, advice=_ADVICE)(fn)


def _check_reads_only(body: Body, changes: Changes, _: Sequence[Any]) -> None:
    """Check that one call of the operator changed nothing."""
    record = body.records[-1]
    sown = sorted({f"{one.collection}/{one.name}" for each in record.sown for one in each})
    drawn = sorted({name for (_, _, name), _ in record.draws})
    read = f"Create it before the scan, and read it here: `{words().scope}.get_variable(…)`."
    done = (
        ("creates", names_of(changes.created), read),
        ("writes", names_of(changes.values), "Write it after the scan, from its result."),
        ("sows", sown, "Sow it after the scan, from its result."),
        ("draws from", drawn, "Draw before the scan, and pass the keys, or values made from them, in `elems`."),
    )
    for act, names, fix in done:
        if names:
            raise LiftArgumentError(
                body.where,
                f"the operator {act} {words().variables(names)}, but it may only read: JAX calls it several times, on "
                "different pairs.",
                fix,
                variable=names[0],
            )

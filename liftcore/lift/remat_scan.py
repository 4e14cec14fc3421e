"""A deep loop in little memory: nested scans, whose bodies are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

from ..errors import Expected, LiftArgumentError, check_function, name_of
from ..pipeline.body import call_inside
from ..runners.axes import NO_AXES
from ..runners.eager import cached_when_eager
from ..typing import Filter
from .remat import remat
from .scan import scan

__all__ = ["remat_scan"]

_FIRST: Mapping[Any, Any] = MappingProxyType({True: 0})
_ALL: Mapping[Any, bool] = MappingProxyType({True: True})


@cached_when_eager(numbers=[1])
def remat_scan(
    fn: Callable[..., Any],
    lengths: Sequence[int],
    policy: Callable[..., Any] | None = None,
    *,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    variable_axes: Mapping[Any, Any] = _FIRST,
    split_rngs: Mapping[Any, bool] | bool = _ALL,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """A `scan` inside a `scan` for each of `lengths`, with a `remat` between each and the next.

    For the backward pass, a plain scan over `a * b` layers stores the activations of all of them. With `lengths=(a,
    b)` it stores `a` carries, and the activations of `b` layers at a time. Each further loop costs one more forward
    pass.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jnp.tanh(x @ scope.param("w", jax.random.normal, (3, 3)))
        >>> y, variables = liftcore.init(remat_scan(layer, (4, 5)))(jax.random.key(0), jnp.ones(3))
        >>> variables["params"]["w"].shape
        (4, 5, 3, 3)

    Args:
        fn: called as `fn(scopes, carry)`; returns the next carry.
        lengths: the lengths of the loops, the outermost first.
        policy: the intermediate values to store anyway: one of `jax.checkpoint_policies`; by default none.
        variable_broadcast: a filter of the variables that all iterations share.
        variable_carry: a filter of the variables that pass from one iteration to the next.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`. Each
            loop adds an axis. By default all variables are stacked, along axis 0.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams. By default all streams are split.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, carry)`, which returns the last carry.

    Raises:
        LiftArgumentError: if `lengths` is empty or contains a value that is not a length.
    """
    check_function("remat_scan", fn)
    lengths = tuple(lengths) if isinstance(lengths, Sequence) else (lengths,)
    if not lengths or not all(isinstance(length, Integral) for length in lengths):
        raise LiftArgumentError(
            "lengths of remat_scan",
            Expected("the length of each loop, one or more ints", given=lengths),
            "Write `lengths=(4, 5)` for 20 layers.",
            option="lengths",
        )

    def loop(body: Callable[..., Any], length: int) -> Callable[..., Any]:
        def step(scopes: Any, carry: Any) -> tuple[Any, None]:
            return call_inside(body, scopes, carry), None

        step.__name__ = name_of(fn)  # for the paths of errors
        scanned = scan(
            step,
            length,
            variable_broadcast=variable_broadcast,
            variable_carry=variable_carry,
            variable_axes=variable_axes,
            split_rngs=split_rngs,
            metadata_params=metadata_params,
        )

        def looped(scopes: Any, carry: Any) -> Any:
            return scanned(scopes, carry)[0]

        looped.__name__ = step.__name__
        return looped

    body = loop(fn, lengths[-1])
    for length in reversed(lengths[:-1]):
        body = loop(remat(body, policy=policy, prevent_cse=False), length)
    return body

"""`remat_scan` over objects: nested loops that keep few activations for the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from liftcore.errors import LiftArgumentError

from .decorating import MISSING, checked
from .scan import Carry, scan
from .uniform import remat

__all__ = ["remat_scan"]


def remat_scan(
    f: Callable[..., Any] = MISSING,
    *,
    lengths: Sequence[int],
    in_axes: Any = (0, Carry),
    policy: Callable[..., bool] | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Run nested `scan`s, one for each of `lengths`, with a `remat` around each inner one.

    For the backward pass, a plain scan over `a * b` layers keeps what each layer saves. With `lengths=(a, b)`, it keeps
    `a` carries and, at any one time, what `b` layers save.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> make = nnx.vmap(nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs)))
        >>> layers = make(nnx.Rngs(0).split((4, 5)))
        >>> forward = nnx.remat_scan(lambda layer, x: layer(x), lengths=(4, 5))
        >>> forward(layers, jnp.ones(3)).shape
        (3,)

    Args:
        f: called as `f(layer, x)`; returns the next `x`. Without it the result is a decorator.
        lengths: the number of iterations of each loop, the outermost first. Variables have one leading axis for each
            loop.
        in_axes: for each argument, the axis that each loop slices, None to pass it whole, or `Carry`; as in
            `scan`.
        policy: which intermediate values to save: one of `jax.checkpoint_policies`; by default none.
        transform_metadata: the name of each axis in sharding metadata.

    Returns:
        A function that returns the last `x`.

    Raises:
        LiftArgumentError: if `lengths` is empty.
    """
    if f is MISSING:
        return functools.partial(
            remat_scan, lengths=lengths, in_axes=in_axes, policy=policy, transform_metadata=transform_metadata
        )
    where = checked("remat_scan", f)
    if not lengths:
        raise LiftArgumentError(where, "`lengths` is empty.", "Give the length of each loop: `lengths=(4, 5)`.")
    options = {"in_axes": in_axes, "out_axes": Carry, "transform_metadata": transform_metadata}
    f = scan(f, length=lengths[-1], **options)
    for length in reversed(lengths[:-1]):  # a loop compiles its body separately, so `prevent_cse` is not needed
        f = scan(remat(f, prevent_cse=False, policy=policy), length=length, **options)
    return f

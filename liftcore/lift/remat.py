"""Lifted `jax.checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from .. import _compat
from ..errors import Expected, LiftArgumentError
from ..pipeline.body import Body
from ..pipeline.packing import outline
from ..pipeline.reuse import once
from ..runners.arguments import advise, choose, join_arguments, passing_all, split_arguments
from ..typing import Filter

__all__ = ["checkpoint", "remat"]


def remat(
    fn: Callable[..., Any],
    *,
    prevent_cse: bool = True,
    policy: Callable[..., Any] | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.checkpoint` for a function of scopes: the backward pass computes it again, to save memory.

    Names, values and draws are the same as without it.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jnp.sin(x * scope.param("w", jax.random.normal, ()))
        >>> _, variables = liftcore.init(liftcore.remat(layer))(jax.random.key(0), 1.0)
        >>> bool(variables["params"]["w"] == liftcore.init(layer)(jax.random.key(0), 1.0)[1]["params"]["w"])
        True

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        prevent_cse: whether to keep the compiler from undoing the rematerialization by merging equal operations.
            Inside a `scan`, False is enough and faster.
        policy: the intermediate values to store anyway: one of `jax.checkpoint_policies`; by default none.
        static_argnums: the positions of arguments that Python code needs as values, such as flags. Positions count in
            the signature of `fn`, where the scopes are 0.
        static_argnames: the same, by name.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.
    """
    if policy is not None and not callable(policy):
        raise LiftArgumentError(
            "remat, policy",
            Expected("a function such as those of `jax.checkpoint_policies`", given=policy),
            "Pass one: `jax.checkpoint_policies.dots_saveable`.",
            option="policy",
        )

    def checkpointed(fn: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(once, _compat.checkpoint(fn, prevent_cse=prevent_cse, policy=policy))

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        fixed, dynamic = split_arguments(body, body.prepared, args, kwargs)

        def run(body: Body, variable_groups: Any, rng_groups: Any, dynamic: dict[str, Any]) -> Any:
            args, kwargs = join_arguments({**fixed, **dynamic})
            return body(variable_groups, rng_groups, *args, **kwargs)

        try:
            return outline(checkpointed, body, variable_groups, rng_groups, dynamic, via=run, late=False)
        except TypeError as error:
            advise(error, body, dynamic)
            raise

    prepare = functools.partial(choose, what="static", argnums=static_argnums, argnames=static_argnames)
    return passing_all(transform, "remat", variables, rngs, prepare=prepare)(fn)


checkpoint = remat
"""Another name of `remat`."""

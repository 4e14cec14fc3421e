"""Lifted `jax.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..calls import call_user
from ..errors import Expected, LiftArgumentError, check_function, name_of, words
from ..filters.trees import overlay
from ..pipeline.body import Body
from ..problems import no_rule
from ..runners.custom_derivatives import Operands, Ruled, WithRule, pair, split_held
from ..runners.differentiating import TreesByScope, zero_tangent

__all__ = ["custom_vjp"]


class custom_vjp(WithRule):
    """`jax.custom_vjp` for a function of scopes: a function with a pullback of your own.

    The function and its forward rule are traced once each, whether or not the function is differentiated. The rule can
    use the variables that the function creates. It must write the variables that the function writes; no gradient
    flows through these. Only the arguments and the variables that `wrt` matches get cotangents.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(3))
        >>> clipped = liftcore.custom_vjp(layer)
        >>> def forward(scope, x):
        ...     return liftcore.vjp(layer)(scope, x)  # the result, and the pullback as residuals
        >>> def backward(pullback, cotangent):
        ...     return pullback(jnp.clip(cotangent, -1, 1))
        >>> clipped.defvjp(forward, backward)
        >>> params = {"w": jnp.float32(3)}
        >>> jax.grad(lambda params: 100 * liftcore.apply(clipped)({"params": params}, 2.0))(params)
        {'w': Array(2., dtype=float32)}

    Args:
        fn: called as `fn(scopes, *args)`.
        nondiff_argnums: the positions of arguments that are not differentiated and that Python code needs as values,
            such as flags and functions. Positions count in the signature of `fn`, where the scopes are 0.
        nondiff_argnames: the same, by name.
        wrt: a filter of the variables that have cotangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Attributes:
        identity: identifies the function when its rule calls it; by default the object itself. If you make an object
            for each call of the same function, set the same identity on all of them.

    Returns:
        An object. After `defvjp`, call it as `lifted(scopes, *args, **kwargs)`; its rule may call it, too.
    """

    _forward: Callable[..., Any] | None = None
    _backward: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Define the rule.

        Args:
            fwd: called as `fwd(scopes, *args)`; returns the result and residuals, a pytree.
            bwd: called as `bwd(*nondiff_args, residuals, cotangent)`; returns one cotangent for the scopes,
                `{collection: {module: {name: …}}}`, and one for each other argument. None means zero, and so does a
                variable that is missing in the first.
        """
        for rule in (fwd, bwd):
            check_function(f"defvjp of {self._where}", rule)
        self._forward, self._backward = fwd, bwd

    def _transform(self, body: Body, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
        where, bwd, wrt = body.where, self._backward, words().option("custom_vjp", "wrt")
        if self._forward is None or bwd is None:
            raise no_rule(where, "fn.defvjp(fwd, bwd)")
        seen, held = split_held(body, args, self._nondiff)
        ruled = Ruled(body, variable_groups, rng_groups, seen, held)
        rule = ruled.rule(self.identity, pair(where, self._forward, "result, residuals"), lambda args: args)
        scoped = TreesByScope.of(body.layout)
        types, count = jax.tree.map(jax.typeof, ruled.operands.wrt), len(seen)
        run = jax.custom_vjp(ruled.function)

        def forward(operands: Operands) -> Any:
            (result, residuals), values = rule(operands)
            return (result, values), residuals

        def backward(residuals: Any, cotangents: Any) -> tuple[Operands]:
            given = call_user(f"the rule of {where}", bwd, *held.leaves, residuals, cotangents[0])
            if not isinstance(given, tuple | list) or len(given) != 1 + count:
                raise LiftArgumentError(
                    f"{name_of(bwd)}, the rule of {where}",
                    Expected(
                        f"a cotangent for the scope (or module) and one for each of {count} arguments",
                        given=len(given) if isinstance(given, tuple | list) else given,
                    ),
                    'Write `return {"params": …}, x_cotangent`; None stands for zero.',
                )
            zeros = jax.tree.map(zero_tangent, types)
            along = zeros if given[0] is None else overlay(zeros, scoped.into(where, given[0], types, wrt))
            return (Operands(along, None, None, list(given[1:]), None, (None, None)),)

        run.defvjp(forward, backward)
        result, values = run(ruled.operands)
        return result, ruled.groups(values)

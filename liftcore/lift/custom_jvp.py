"""Lifted `jax.custom_jvp`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import check_function
from ..pipeline.body import Body
from ..problems import no_rule
from ..pytrees import split_leaves
from ..runners.custom_derivatives import Operands, Ruled, WithRule, pair, split_held
from ..runners.differentiating import TreesByScope, zero_tangent, zero_tangents

__all__ = ["custom_jvp"]


class custom_jvp(WithRule):
    """`jax.custom_jvp` for a function of scopes: a function with a derivative of your own.

    The function and its rule are traced once each, whether or not the function is differentiated. The rule can use the
    variables that the function creates. It must write the variables that the function writes; these have no tangents.
    Only the arguments and the variables that `wrt` matches have tangents.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jnp.round(x * scope.param("w", lambda key: jnp.float32(3)))
        >>> straight_through = liftcore.custom_jvp(layer)
        >>> def rule(scope, primals, tangents, variable_tangents):
        ...     (x,), (dx,) = primals, tangents
        ...     w, dw = scope.param("w", None, ()), variable_tangents["params"]["w"]
        ...     return jnp.round(x * w), w * dx + x * dw
        >>> straight_through.defjvp(rule)
        >>> jax.grad(lambda x: liftcore.apply(straight_through)({"params": {"w": jnp.float32(3)}}, x))(0.4)
        Array(3., dtype=float32, weak_type=True)

    Args:
        fn: called as `fn(scopes, *args)`.
        nondiff_argnums: the positions of arguments that are not differentiated and that Python code needs as values,
            such as flags and functions. Positions count in the signature of `fn`, where the scopes are 0.
        nondiff_argnames: the same, by name.
        wrt: a filter of the variables that have tangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Attributes:
        identity: identifies the function when its rule calls it; by default the object itself. If you make an object
            for each call of the same function, set the same identity on all of them.

    Returns:
        An object. After `defjvp`, call it as `lifted(scopes, *args, **kwargs)`; its rule may call it, too.
    """

    _rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> None:
        """Define the rule.

        Args:
            jvp: called as `jvp(scopes, *nondiff_args, primals, tangents, variable_tangents)`; returns the result and
                its tangent. `variable_tangents` is `{collection: {module: {name: …}}}`.
        """
        check_function(f"defjvp of {self._where}", jvp)
        self._rule = jvp

    def _transform(self, body: Body, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
        if self._rule is None:
            raise no_rule(body.where, "fn.defjvp(rule)")
        seen, held = split_held(body, args, self._nondiff)
        ruled = Ruled(body, variable_groups, rng_groups, seen, held)
        scoped = TreesByScope.of(body.layout)
        kinds = jax.tree.map(lambda leaf: jax.typeof(leaf).to_tangent_aval(), (ruled.operands.wrt, ruled.operands.args))
        # Keys, and arrays that are not of floats, have no tangents.
        moving, still = split_leaves(kinds, lambda kind: jnp.issubdtype(kind.dtype, jnp.inexact))

        def with_tangents(args: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
            trees, tangents = still.join(given, map(zero_tangent, still.leaves))
            seen, _ = split_held(body, args, self._nondiff)
            return *held.leaves, tuple(seen), tuple(tangents), scoped.out(trees)

        rule = ruled.rule(self.identity, pair(body.where, self._rule, "result, tangent"), with_tangents, moving)
        run = jax.custom_jvp(ruled.function)

        def jvp(primals: tuple[Operands], tangents: tuple[Operands]) -> Any:
            given = itertools.compress(jax.tree.leaves((tangents[0].wrt, tangents[0].args)), still.chosen)
            (result, tangent), values = rule(primals[0], list(given))
            return (result, values), (tangent, zero_tangents(values))

        run.defjvp(jvp)
        result, values = run(ruled.operands)
        return result, ruled.groups(values)

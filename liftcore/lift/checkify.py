"""Lifted `jax.experimental.checkify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..pipeline.body import Body
from ..runners.arguments import passing_all
from ..typing import Filter

__all__ = ["checkify"]


def checkify(
    fn: Callable[..., Any],
    errors: frozenset[Any] | None = None,
    *,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.experimental.checkify.checkify` for a function of scopes: the checks of its body become a value.

    The body's changes are kept even if a check fails: variables that it created or wrote, draws and sown values.

    Example:
        >>> import jax, liftcore
        >>> from jax.experimental.checkify import check
        >>> def root(scope, x):
        ...     w = scope.param("w", lambda key: 4.0)
        ...     check(x >= 0, "{x} has no root", x=x)
        ...     return w * jax.numpy.sqrt(x)
        >>> (error, y), variables = liftcore.init(checkify(root))(jax.random.key(0), jax.numpy.float32(-1))
        >>> error.get()
        '-1.0 has no root (`check` failed)'
        >>> float(variables["params"]["w"])
        4.0

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        errors: the checks to run: a set from `jax.experimental.checkify`, such as `float_checks`; by default its
            `user_checks`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the error, a `jax.experimental.checkify.Error`, and the result.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        from jax.experimental import checkify as checks  # imported here: it is slow to import and seldom needed

        chosen = checks.user_checks if errors is None else errors

        def run(body: Body) -> Any:
            return body(variable_groups, rng_groups, *args, **kwargs)

        if not body.writes:
            return checks.checkify(lambda: run(body)[0], chosen)(), body.unchanged
        if not body.creates:  # there are no initial values to make outside
            error, (result, groups) = checks.checkify(lambda: run(body), chosen)()
            return (error, result), groups
        errors_before: list[Any] = []

        def checked(part: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
            def run(*inputs: Any) -> Any:
                error, outputs = checks.checkify(part, chosen)(*inputs)
                errors_before.append(error)
                return outputs

            return run

        split = body.split(via=run)
        created = split.batched_prologue(checked, (), (), [None for _ in split.created])

        def rest() -> Any:
            for error in errors_before:
                if jax.tree.leaves(error):
                    checks.check_error(error)
            return split.remainder(created)

        error, (result, values) = checks.checkify(rest, chosen)()
        return split.join(created, (error, result), values)

    return passing_all(transform, "checkify", variables, rngs)(fn)

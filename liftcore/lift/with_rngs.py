"""`with_rngs`: RNG streams start again from keys that the caller passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import rng
from ..pipeline.body import Body
from ..runners.arguments import AS_IT_IS, passing_all
from ..typing import RNGs

__all__ = ["begin_anew", "with_rngs"]

_ADVICE = AS_IT_IS._replace(rngs=("from the given keys",))


def with_rngs(fn: Callable[..., Any], rngs: RNGs) -> Callable[..., Any]:
    """A function of scopes that draws from keys that the caller passes: the same keys give the same draws.

    Inside, the named streams start again: a key depends on the passed key, on the path below the scope and on the
    number of draws inside. The counts outside do not change. Other streams work as usual.

    Example:
        >>> import jax, liftcore
        >>> from liftcore.nn import dropout
        >>> def noisy(scope, x):
        ...     return dropout(scope, x, 0.5, deterministic=False)
        >>> def twice(scope, x):
        ...     masked = with_rngs(noisy, {"dropout": scope.make_rng("dropout")})
        ...     return masked(scope, x), masked(scope, x), noisy(scope, x)
        >>> one, same, other = liftcore.apply(twice)({}, jax.numpy.ones(64), rngs={"dropout": jax.random.key(0)})
        >>> bool((one == same).all()), bool((one == other).all())
        (True, False)

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        rngs: maps names of streams to keys; or one key, which is the root key of the stream `params`. The streams need
            not have been passed to `init` or `apply`.

    Returns:
        `lifted(scopes, *args, **kwargs)`. If there are several scopes, each draws its own keys.

    Raises:
        InvalidRngError: if a value in `rngs` is not a key.
    """
    keys = rng.streams(rngs)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        group = []
        for index, (outer, roots) in enumerate(zip(body.outers, rng_groups[0], strict=True)):
            kept = roots if rng.DEFAULT not in keys else {name: roots[name] for name in outer.tree.rngs}
            own = {name: jax.random.fold_in(key, index) for name, key in keys.items()} if index else keys
            group.append({**kept, **own})
        return begin_anew(body, frozenset(keys), variable_groups, (tuple(group),), args, kwargs)

    return passing_all(transform, "with_rngs", advice=_ADVICE)(fn)


def begin_anew(
    body: Body,
    names: frozenset[str],
    variable_groups: Any,
    rng_groups: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Any, tuple[Any, ...]]:
    """Run a function of scopes in which the named streams start again, from the root keys in their group."""
    scopes = body.scope_fn(variable_groups, rng_groups, restarted=names)
    result = body.run(body.fn, scopes, args, kwargs)
    return result, body.repack_fn(scopes)

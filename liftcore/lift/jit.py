"""Lifted `jax.jit`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..filters import names_collections
from ..layout import Captured
from ..pack import Crossing, Pure, lift
from ..tree import Advice
from ..typing import Filter, Path
from .arguments import advising, choose, fixed_arguments, name_arguments
from .compiled import Body, Compiled

__all__ = ["jit"]

_ADVICE = Advice('"{}" to `variables`', '"{}" to `rngs`')

_CACHED = 256
"""How many compiled functions of different configurations are kept."""


def jit(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.jit` for a function of scopes: compiled once for all equal calls, wherever in a model these stand.

    Names, values and draws are those of `fn` itself.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> runs = []
        >>> def layer(scope, x):
        ...     runs.append(scope.path)
        ...     return jnp.sin(x * scope.param("w", jax.random.normal, ()))
        >>> def model(scope, x):
        ...     for name in "abc":
        ...         x = scope.child(liftcore.jit(layer), name)(x)
        ...     return x
        >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.ones(()))
        >>> len(runs), sorted(variables["params"])
        (1, ['a', 'b', 'c'])

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`. Calls share what is compiled where their functions are equal.
        static_argnums: see `jax.jit`; they count in the signature of `fn`, where the scopes are 0.
        static_argnames: see `jax.jit`.
        donate_argnums: see `jax.jit`; they count as `static_argnums` do. Variables are not donated.
        donate_argnames: see `jax.jit`.
        keep_unused: see `jax.jit`.
        device: see `jax.jit`.
        backend: see `jax.jit`.
        inline: see `jax.jit`.
        compiler_options: see `jax.jit`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the PRNG sequences that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.
    """
    static = choose(fn, "static", static_argnums, static_argnames)
    donated = choose(fn, "donated", donate_argnums, donate_argnames)
    options = _options(
        keep_unused=keep_unused,
        device=device,
        backend=backend,
        inline=inline,
        compiler_options=tuple(sorted(compiler_options.items())) if compiler_options else None,
    )
    find = _shared if _is_shareable(fn) else functools.lru_cache(_CACHED)(Compiled)

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = name_arguments(args, kwargs)
        fixed = fixed_arguments(pure.where, arguments, static)
        gone = {name: value for name, value in arguments.items() if name in donated and name not in fixed}
        kept = {name: value for name, value in arguments.items() if name not in fixed and name not in gone}
        compiled = find(Body(fn, pure.crossing.layout, _hashable(fixed), _paths(pure.crossing)), options)
        with advising(pure.where, fn, {**kept, **gone}):
            return compiled(pure.crossing, gone, (variable_groups, rng_groups, kept))

    return lift(transform, fn, [variables], [variables, Captured()], [rngs], "jit", _ADVICE)


_shared = functools.lru_cache(_CACHED)(Compiled)
"""Compiled functions of bodies that hold no arrays and may be found again by an equal one."""


def _is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it has no closure, or it compares by value."""
    if isinstance(fn, types.FunctionType):
        return fn.__closure__ is None
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


def _options(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in given.items() if value)


def _hashable(fixed: Mapping[str, Any]) -> tuple[tuple[str, type, Any], ...]:
    return tuple((name, type(value), value) for name, value in fixed.items())


def _paths(crossing: Crossing) -> tuple[Path, ...]:
    """The paths of what is lifted, where a filter may ask for them."""
    layout = crossing.layout
    rules = [*layout.in_filters, *layout.out_filters, *(outer.tree.mutable for outer in crossing.outers)]
    return () if all(map(names_collections, rules)) else tuple(outer.path for outer in crossing.outers)

"""Lifted `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from ..filters import names_collections
from ..pipeline.outlining import outline
from ..pipeline.use import Body, Use
from ..runners.arguments import advised, choose, join_arguments, parameter_names, split_arguments
from ..runners.axes import NO_AXES
from ..runners.compiled import DONATED, Cache, Program, is_shareable
from ..runners.shardings import Placement
from ..runners.whole import whole
from ..statics import Undescribed, static_key, surroundings, warn_not_shared
from ..typing import Filter, Path, PyTree

__all__ = ["jit"]


def jit(
    fn: Callable[..., Any],
    *,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
    variable_shardings: Mapping[Any, Any] = NO_AXES,
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
        in_shardings: see `jax.jit`; a pytree prefix of the tuple of arguments after the scopes, static ones left out.
        out_shardings: see `jax.jit`.
        static_argnums: see `jax.jit`; they count in the signature of `fn`, where the scopes are 0.
        static_argnames: see `jax.jit`.
        donate_argnums: see `jax.jit`; they count as `static_argnums` do. Variables are not donated.
        donate_argnames: see `jax.jit`.
        keep_unused: see `jax.jit`.
        device: see `jax.jit`.
        backend: see `jax.jit`.
        inline: see `jax.jit`.
        compiler_options: see `jax.jit`.
        variable_shardings: for each filter of variables how these lie on devices, as they go in and as they come out.
            Those that no filter takes are left to JAX.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        LiftArgumentError: where an argument that is static cannot be hashed, or shardings do not fit what they are for.
    """
    placement = Placement.of(in_shardings, out_shardings, variable_shardings)
    options = _options(
        keep_unused=keep_unused,
        device=device,
        backend=backend,
        inline=inline,
        compiler_options=tuple(sorted(compiler_options.items())) if compiler_options else None,
    )
    rules = [matches for matches, _ in placement.rules] if placement else []
    asked = not all(map(names_collections, [variables, *rules]))

    def prepare(fn: Callable[..., Any]) -> _Prepared:
        static = choose(fn, "static", static_argnums, static_argnames)
        donated = choose(fn, "donate", donate_argnums, donate_argnames)
        all_options = (*options, *_options(donate_argnames=DONATED if donated else None))
        return _Prepared(static, donated, all_options, _SHARED if is_shareable(fn) else Cache(), _key_of(fn))

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        use, prepared = body.use, body.prepared
        fixed, dynamic = split_arguments(body.where, prepared.static, args, kwargs)
        gone = {name: value for name, value in dynamic.items() if name in prepared.donated}
        kept = {name: value for name, value in dynamic.items() if name not in gone}
        with advised(body, dynamic):
            if use.observer is not None:  # a body that was compiled before would not run
                return _run_anew(body, fixed, variable_groups, rng_groups, dynamic)
            placed = None
            if placement is not None:
                placed = placement.arrange(body.where, use, gone, variable_groups, kept)
            cache, keys = _keys(body.where, body.fn, fixed, prepared.cache)
            program = Program(body.fn, (prepared.key, _around()), use.layout, keys, _seen_paths(use, asked), placed)
            return cache.find(program, prepared.options)(use, gone, (variable_groups, rng_groups, kept))

    return whole(transform, "jit", variables, rngs, prepare=prepare)(fn)


class _Prepared(NamedTuple):
    """What is worked out once for each function: its arguments by name, and where what is compiled for it is kept."""

    static: set[str]
    donated: set[str]
    options: tuple[tuple[str, Any], ...]
    cache: Cache
    key: Hashable


def _run_anew(body: Body, fixed: dict[str, Any], *operands: Any) -> Any:
    """The same, for `explain`."""

    def run(body: Body, variable_groups: Any, rng_groups: Any, dynamic: dict[str, Any]) -> Any:
        args, kwargs = join_arguments({**fixed, **dynamic})
        return body(variable_groups, rng_groups, *args, **kwargs)

    return outline(jax.jit, body, *operands, via=run)


_SHARED = Cache()
"""Compiled functions of bodies that hold no arrays and may be found again by an equal one."""


def _key_of(fn: Callable[..., Any]) -> Hashable:
    """The key of a function; an object that equals no other where there is none, or where it may be the lift's own."""
    try:
        return static_key(fn)
    except Undescribed:
        return object()


def _around() -> Hashable:
    """What surrounds a call; an object that equals no other where nothing stands for it."""
    try:
        return surroundings()
    except Undescribed:
        return object()


def _options(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in given.items() if value)


def _keys(
    where: str, fn: Callable[..., Any], fixed: Mapping[str, Any], cache: Cache
) -> tuple[Cache, tuple[tuple[str, Hashable, Any], ...]]:
    """The static arguments, each with its key; and the cache, a new one where one of them has none."""
    names, keys = parameter_names(fn) if fixed else [], []
    for name, value in fixed.items():
        try:
            keys.append((name, static_key(value), value))
        except Undescribed as error:
            shown = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
            warn_not_shared(f"static argument {shown} of {where}", error)
            cache = Cache()
            keys.append((name, object(), value))  # which equals no other
    return cache, tuple(keys)


def _seen_paths(use: Use, asked: bool) -> tuple[Path, ...]:
    """The paths of what is lifted, where a filter may ask for them: one of the lift (`asked`), or that of `mutable`."""
    asked = asked or not all(names_collections(outer.tree.mutable) for outer in use.outers)
    return tuple(outer.path for outer in use.outers) if asked else ()

"""Lifted `jax.jit`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ..filters import Everything, Nothing, names_collections, to_predicate
from ..pipeline.body import Body
from ..pipeline.packing import Lifter
from ..runners.arguments import DONATED, Donated, advise, choose, donate, parameter_names, passing_all, split_arguments
from ..runners.axes import NO_AXES
from ..runners.jitted import Direct, Jitted, Runner
from ..runners.jitting import Cache, Program
from ..runners.shardings import Placement
from ..statics import Undescribed, is_shareable, kept_with, settings_key, static_key, warn_not_shared
from ..typing import Filter, PyTree

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
    donate_variables: Filter = False,
    variables: Filter = True,
    rngs: Filter = True,
) -> Jitted:
    """`jax.jit` for a function of scopes: compiled once for all equal calls, anywhere in a model.

    Names, values and draws are the same as without it.

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
        fn: called as `fn(scopes, *args, **kwargs)`. Calls of equal functions share the compiled function.
        in_shardings: the shardings of the arguments: a pytree prefix of the tuple of arguments after the scopes,
            without static arguments. None leaves the choice to JAX.
        out_shardings: the shardings of the result, as a pytree prefix. None leaves the choice to the compiler.
        static_argnums: the positions of arguments that Python code needs as values, such as flags. Each new value
            compiles again. They must be hashable. Positions count in the signature of `fn`, where the scopes are 0.
        static_argnames: the same, by name.
        donate_argnums: the positions of arguments whose buffers the results may reuse. The call deletes their arrays.
            Positions count as in `static_argnums`.
        donate_argnames: the same, by name.
        keep_unused: whether to pass unused arguments to the compiled function.
        device: the device to run on; by default the device of the arguments.
        backend: the platform to run on, such as `"cpu"`; by default the platform of the arguments.
        inline: whether to inline the body into the surrounding program, instead of calling it as a function.
        compiler_options: options of XLA, by name.
        variable_shardings: maps filters of variables to shardings, on the way in and on the way out. JAX chooses the
            shardings of all other variables.
        donate_variables: a filter of variables whose buffers the results may reuse. The call deletes their arrays, and
            the scope holds the new values. Variables that are not mutable are not donated. A donated variable counts
            as written by the body.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `jitted(scopes, *args, **kwargs)`; `jitted.lower(scopes, *args, **kwargs)` lowers it, to compile it ahead of
        time; see `Jitted.lower`.

    Raises:
        LiftArgumentError: if a static argument is not hashable, or shardings do not fit their arguments, results or
            variables.
    """
    is_placed = in_shardings is not None or out_shardings is not None or variable_shardings != NO_AXES
    placement = Placement.of(in_shardings, out_shardings, variable_shardings) if is_placed else None
    flags = {"keep_unused": keep_unused, "device": device, "backend": backend, "inline": inline}
    flags["compiler_options"] = tuple(sorted(compiler_options.items())) if compiler_options else None
    options = tuple((name, value) for name, value in flags.items() if value)
    rules = [matches for matches, _ in placement.rules] if placement else []
    donates = to_predicate(donate_variables)
    asked = not all(map(names_collections, [variables, *rules]))
    all_variables = to_predicate(variables) == Everything()

    def prepare(fn: Callable[..., Any]) -> _Prepared:
        static = choose(fn, "static", static_argnums, static_argnames)
        donated = choose(fn, "donate", donate_argnums, donate_argnames)
        donating = (("donate_argnames", DONATED),) if donated or donates != Nothing() else ()
        return _Prepared(static, donated, (*options, *donating), _cache_of(fn), _key_of(static_key, fn))

    def transform(runner: Runner, body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = body.prepared
        fixed, dynamic = split_arguments(body, prepared.static, args, kwargs)
        kept = {name: value for name, value in dynamic.items() if name not in prepared.donated}
        try:
            lost, variable_groups = donate(donates, variable_groups, body)
            gone = Donated(lost, {name: value for name, value in dynamic.items() if name not in kept})
            placed = None
            if placement is not None:
                placed = placement.arrange(body, gone, variable_groups, kept)
            cache, keys = _keys(body, fixed, prepared.cache) if fixed else (prepared.cache, ())
            key = (prepared.key, _key_of(settings_key))
            if body.observer is not None:  # trace again, because a compiled body would not run under the observer
                cache, key = Cache(), (object(), ())
            asks = asked or not all(names_collections(outer.tree.mutable) for outer in body.outers)
            paths = tuple([outer.path for outer in body.outers]) if asks else ()  # a filter may depend on them
            program = Program(body.fn, key, body.layout, keys, paths, placed)
            found = cache.find(program, prepared.options)
            if all_variables and body.fn is fn and not (keys or placed or any(gone)):
                direct.note(body, key[1], found)
            return runner(found, body, gone, (variable_groups, rng_groups, kept))
        except TypeError as error:
            advise(error, body, dynamic)
            raise

    def prepared(other: Callable[..., Any]) -> _Prepared:
        return own if other is fn else prepare(other)

    def lift(runner: Runner) -> Lifter:
        return passing_all(functools.partial(transform, runner), "jit", variables, rngs, prepare=prepared)

    own = prepare(fn)  # shared by all runners, so that each can use what another one traced
    direct = Direct(functools.partial(_key_of, settings_key))
    return Jitted(fn, lift, direct.find)


class _Prepared(NamedTuple):
    """The data computed once for each function: its arguments by name, and the cache of its compiled programs."""

    static: set[str]
    donated: set[str]
    options: tuple[tuple[str, Any], ...]
    cache: Cache
    key: Hashable


_SHARED = Cache()
"""Compiled functions of bodies that hold no arrays, are compared by value, and that an equal body may use again."""


def _cache_of(fn: Callable[..., Any]) -> Cache:
    """Return the cache of a function: that of equal ones, or a new one if it may hold arrays."""
    if not is_shareable(fn):
        return Cache()
    return kept_with(fn, Cache) if type(fn) is types.FunctionType else _SHARED


def _key_of(key: Callable[..., Hashable], *args: Any) -> Hashable:
    """Return `key(*args)`; a unique object if there is no key, so that the trace is not shared."""
    try:
        return key(*args)
    except Undescribed:
        return object()


def _keys(body: Body, fixed: Mapping[str, Any], cache: Cache) -> tuple[Cache, tuple[tuple[str, Hashable, Any], ...]]:
    """Return the cache and the static arguments with their keys; if an argument has no key, the cache is a new one."""
    names, keys = parameter_names(body.fn), []
    for name, value in fixed.items():
        try:
            keys.append((name, static_key(value), value))
        except Undescribed as error:
            shown = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
            warn_not_shared(f"static argument {shown} of {body.where}", error)
            cache = Cache()
            keys.append((name, object(), value))  # a key that equals no other
    return cache, tuple(keys)

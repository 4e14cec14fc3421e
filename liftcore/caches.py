"""The caches of this library: each holds a bounded number of results, and `clear_caches` empties all of them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax

__all__ = ["bounded", "cache_sizes", "clear_caches", "watched"]

P = ParamSpec("P")
R = TypeVar("R")

_caches: weakref.WeakSet[Any] = weakref.WeakSet()
"""All caches: those of modules, and those that are kept with a function, for as long as that lives."""


def bounded(size: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function, as `functools.lru_cache` does, until `clear_caches` is called.

    Example:
        >>> square = bounded(2)(lambda x: x * x)
        >>> square(3)
        9

    Args:
        size: the number of results that are kept: those that were used last.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        cached = functools.lru_cache(size)(fn)
        _caches.add(cached)
        return cast(Callable[P, R], cached)

    return decorate


def watched(cache: Any) -> None:
    """Let `clear_caches` call `cache.cache_clear()`, for as long as the object lives.

    Example:
        >>> class Squares(dict):
        ...     cache_clear = dict.clear
        ...     __hash__ = object.__hash__
        >>> squares = Squares({3: 9})
        >>> watched(squares)

    Args:
        cache: an object that keeps results in another way than `bounded`, and no more than a fixed number of them.
    """
    _caches.add(cache)


def cache_sizes() -> dict[str, int]:
    """Return how many results are kept by `bounded`, by the names of the functions whose results they are.

    Example:
        >>> square = bounded(2)(lambda x: x * x)
        >>> [square(number) for number in (1, 2, 3)]
        [1, 4, 9]
        >>> cache_sizes()["<lambda>"]
        2
    """
    sizes: dict[str, int] = {}
    for cached in list(_caches):
        if not hasattr(cached, "cache_info"):
            continue
        fn = getattr(cached.__wrapped__, "func", cached.__wrapped__)
        sizes[fn.__qualname__] = sizes.get(fn.__qualname__, 0) + cached.cache_info().currsize
    return sizes


def clear_caches() -> None:
    """Forget everything that was traced and compiled, as `jax.clear_caches` does, which this function calls.

    A lifted `jit`, and what is built on it in each style, keeps compiled functions with the static values that they
    were compiled for: a model made anew with a function that no other model has is kept as `jax.jit` keeps a static
    argument. `jax.clear_caches` alone does not release these. Afterwards, each function is traced again.

    Example:
        >>> import liftcore
        >>> liftcore.clear_caches()
    """
    for cached in list(_caches):
        cached.cache_clear()
    jax.clear_caches()  # type: ignore[no-untyped-call]

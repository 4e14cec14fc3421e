"""Lifts of a user's own, written with `pack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import liftcore


def inline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One that does nothing: what the body creates stands in the enclosing trace by itself."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return fn(scope, *args), repack_fn(scope)

    return liftcore.pack(transform, [True], [True], [True])


def one_equation(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One that makes one equation of all that the body does: no one can tell what it creates from the rest."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        def inner(variables: Any, rngs: Any, *args: Any) -> Any:
            scope = scope_fn(variables, rngs)
            return fn(scope, *args), repack_fn(scope)

        return jax.jit(inner)(variables, rngs, *args)

    return liftcore.pack(transform, [True], [True], [True])

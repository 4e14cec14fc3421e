"""`value_and_grad` for functions that change a module, with respect to its parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

import liftcore
from liftcore import is_array
from liftcore.caches import bounded
from liftcore.errors import LiftArgumentError, boundary, check_function, name_of

from .lifting import OnScope, run
from .variables import Places

__all__ = ["value_and_grad"]


def value_and_grad(
    fn: Callable[..., Any], has_aux: bool = False, **options: Any
) -> Callable[..., tuple[tuple[Any, Any], Any]]:
    """Apply `jax.value_and_grad` with respect to the parameters of a module that are not frozen.

    Example:
        >>> import jax, pax_like as pax
        >>> import jax.numpy as jnp
        >>> def loss(layer, x):
        ...     return jnp.sum(layer(x) ** 2)
        >>> layer = pax.Linear(2, 1, key=jax.random.key(0))
        >>> (layer, value), gradient = pax.value_and_grad(loss)(layer, jnp.ones((3, 2)))
        >>> gradient
        Linear(bias=float32[1], kernel=float32[2,1], is_training=True)

    Args:
        fn: a function, called as `fn(module, *args, **kwargs)`. It returns a number or, with `has_aux`, a pair of a
            number and anything else. It may change the arrays of the module.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated.
        **options: `holomorphic` and `allow_int` of `jax.value_and_grad`.

    Returns:
        A function that returns `((module, value), gradient)`: the changed module, the value, and a module that holds
        gradients in place of parameters, and None in place of all other arrays.

    Raises:
        LiftArgumentError: when it is called, if the first argument is not a module, has no parameter to differentiate
            with respect to, or has one that is not floating-point.
    """
    where = f"value_and_grad({name_of(fn)})"
    check_function(where, fn)

    @bounded(64)
    def lifted(places: Places) -> Callable[..., Any]:
        if not places.trainable:
            raise LiftArgumentError(
                where,
                "the module has no parameter to differentiate with respect to.",
                "Register one, `self.register_parameter(name, array)`, or write `module.unfreeze()`.",
            )
        body = OnScope(fn, places.blueprint)
        return liftcore.value_and_grad(body, has_aux=has_aux, wrt=_Among(places.trainable), **options)

    @functools.wraps(fn)
    @boundary
    def call(module: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], Any]:
        changed, (value, gradient), places = run(where, lifted, module, args, kwargs)
        paths = places.blueprint.paths
        found = [_below(gradient, path) if path in places.trainable else None for path in paths]
        return (changed, value), _without_functions(places.blueprint.rest.unflatten(found))

    return call


def _without_functions(gradient: Any) -> Any:
    """Replace the functions in pytree modules by None, as in `parameters`."""
    return jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, gradient)


@dataclasses.dataclass(frozen=True)
class _Among:
    """A filter that matches variables by their exact paths."""

    paths: frozenset[Any]

    def __call__(self, path: Any, value: Any) -> bool:
        return tuple(path) in self.paths


def _below(tree: Any, path: Any) -> Any:
    for name in path:
        tree = tree[name]
    return tree

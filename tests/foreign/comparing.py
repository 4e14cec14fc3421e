"""What the tests of foreign models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import liftcore
from liftcore import Scope

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 8))
RNGS = {"params": KEY, "dropout": jax.random.key(2)}
DROPOUT = {"dropout": jax.random.key(3)}


def assert_same(ours: Any, theirs: Any) -> None:
    """Structures are equal, and arrays bit for bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def drawn(stream: str, rngs: Any) -> Any:
    """The first key that the root scope draws from a stream."""
    return liftcore.apply(lambda scope: scope.make_rng(stream))({}, rngs=rngs)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def deep(fn: Callable[..., Any], collections: tuple[str, ...] = ("params",), **options: Any) -> Callable[..., Any]:
    """Three rematerialized layers in a scan, each with variables of its own."""
    body = liftcore.remat(lambda scope, x, _: (fn(scope, x), None))
    layers = liftcore.scan(
        body,
        length=3,
        variable_axes=dict.fromkeys(collections, 0),
        split_rngs={"params": True, "dropout": True},
        **options,
    )

    def run(scope: Scope, x: Any) -> Any:
        return layers(scope, x, None)[0]

    return run


def layer(variables: Any, number: int) -> Any:
    """The variables of one layer of `deep`."""
    return jax.tree.map(lambda leaf: leaf[number], variables)


def assert_deep_equals(fn: Callable[..., Any], original: Callable[..., Any], x: Any, mutable: tuple[str, ...]) -> None:
    """`deep(fn)` equals a scan of the original written by hand: results, updates and gradients, bit for bit.

    `original(variables, rngs, x)` returns the result of one layer and its updates, by collection.
    """
    lifted = deep(fn, ("params", *mutable))
    _, variables = liftcore.init(lifted)(RNGS, x)
    keys = jax.random.split(DROPOUT["dropout"], 3)

    def by_lift(params: Any) -> Any:
        return liftcore.apply(lifted, mutable=mutable)({**variables, "params": params}, x, rngs=DROPOUT)

    def by_hand(params: Any) -> Any:
        body = jax.checkpoint(lambda x, held: original(held[0], {"dropout": held[1]}, x))
        return jax.lax.scan(body, x, ({**variables, "params": params}, keys))

    def with_gradients(run: Callable[..., Any]) -> Any:
        def loss(params: Any) -> Any:
            result = run(params)
            return (result[0] * x).sum(), result

        return jax.jit(jax.grad(loss, has_aux=True))(variables["params"])

    assert_same(with_gradients(by_lift), with_gradients(by_hand))

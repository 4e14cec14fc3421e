"""`from_haiku`: transformed functions of Haiku in scopes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore import errors
from liftcore.foreign import from_haiku
from tests.foreign.comparing import DROPOUT, KEY, RNGS, X, assert_deep_equals, assert_same, drawn

hk = pytest.importorskip("haiku")

IMAGES = jax.random.normal(KEY, (2, 16, 16, 3))
ROWS = X[:, 0]


def by_path(collection: str, tree: Any) -> Any:
    """Arrays of Haiku as nested dicts."""
    nested: Any = {}
    for module, held in tree.items():
        below = nested
        for name in module.split("/"):
            below = below.setdefault(name, {})
        below.update(held)
    return {collection: nested}


def block(x: Any) -> Any:
    h = hk.Linear(8)(hk.LayerNorm(-1, True, True)(x))
    h = hk.dropout(hk.next_rng_key(), 0.5, h)
    return x + hk.BatchNorm(True, True, 0.9)(h, is_training=True)


BLOCK = hk.transform_with_state(block)


@pytest.mark.parametrize("net", ["ResNet18", "MobileNetV1"])
def test_a_network_of_haiku_equals_itself(net: str) -> None:
    theirs = hk.transform_with_state(lambda images, train: getattr(hk.nets, net)(num_classes=10)(images, train))
    fn = from_haiku(theirs)
    y, variables = jax.jit(liftcore.init(fn), static_argnums=2)(KEY, IMAGES, True)
    params, state = jax.jit(theirs.init, static_argnums=2)(drawn("params", KEY), IMAGES, True)
    assert_same(variables, {**by_path("params", params), **by_path("state", state)})
    apply = jax.jit(theirs.apply, static_argnums=4)
    ours = jax.jit(liftcore.apply(fn, mutable="state"), static_argnums=2)(variables, IMAGES, True)
    result, state = apply(params, state, None, IMAGES, True)
    assert_same(ours, (result, by_path("state", state)))
    assert_same(y, result)


def test_a_quantizer_keeps_its_averages() -> None:
    theirs = hk.transform_with_state(lambda x: hk.nets.VectorQuantizerEMA(8, 4, 0.25, 0.9)(x, True))
    _, variables = liftcore.init(from_haiku(theirs))(KEY, X)
    ours, changed = liftcore.apply(from_haiku(theirs), mutable="state")(variables, X)
    params, state = theirs.init(drawn("params", KEY), X)
    result, state = theirs.apply(params, state, None, X)
    assert_same(ours, result)
    assert_same(changed, by_path("state", state))


def test_scanned_and_rematerialized_blocks_equal_a_scan_of_the_original() -> None:
    def original(variables: Any, rngs: Any, x: Any) -> Any:
        averages = variables["state"]["batch_norm"]["~"]
        state = {f"batch_norm/~/{name}": averages[name] for name in averages}
        y, state = BLOCK.apply(variables["params"], state, drawn("dropout", rngs), x)
        return y, by_path("state", state)

    # Normalizing over few rows is ill-conditioned.
    assert_deep_equals(from_haiku(BLOCK), original, jax.random.normal(KEY, (32, 8)), ("state",))


def test_a_function_without_keys() -> None:
    theirs = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(3)(x)))
    y, variables = liftcore.init(from_haiku(theirs))(KEY, ROWS)
    assert_same(y, theirs.apply(variables["params"], ROWS))


def test_missing_keys_arrays_and_collections_are_our_errors() -> None:
    fn = from_haiku(BLOCK)
    _, variables = liftcore.init(fn)(RNGS, ROWS)
    with pytest.raises(errors.InvalidRngError, match='no RNG stream "dropout" was given'):
        liftcore.apply(fn, mutable="state")(variables, ROWS)
    with pytest.raises(errors.ModifyScopeVariableError, match=r'mutable=\["state"\]'):
        liftcore.apply(fn)(variables, ROWS, rngs=DROPOUT)
    bare = {**variables, "params": {**variables["params"], "linear": {}}}
    with pytest.raises(errors.ScopeParamNotFoundError, match="at /linear"):
        liftcore.apply(fn, mutable="state")(bare, ROWS, rngs=DROPOUT)
    stacked = {**variables, "state": jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), variables["state"])}
    one_key = liftcore.vmap(fn, variable_axes={"params": None, "state": 0})
    with pytest.raises(errors.UnliftedStreamError, match="split_rngs"):
        liftcore.apply(one_key, mutable="state")(stacked, X, rngs=DROPOUT)
    only_state = liftcore.vmap(fn, variable_axes={"state": 0}, split_rngs={"dropout": True})
    with pytest.raises(errors.UnliftedCollectionError, match=r"exists outside vmap\(haiku\).*Add `variable_axes="):
        liftcore.apply(only_state, mutable="state")(stacked, X, rngs=DROPOUT)


def test_an_array_at_the_path_of_a_module_is_an_error() -> None:
    class Outer(hk.Module):
        def __call__(self, x: Any) -> Any:
            hk.get_parameter("inner", (), init=jnp.ones)
            return hk.Linear(3, name="inner")(x)

    with pytest.raises(errors.LiftArgumentError, match="params/outer/inner: an array and a module have this path"):
        liftcore.init(from_haiku(hk.transform(lambda x: Outer()(x))))(KEY, ROWS)


def test_what_is_not_transformed_is_an_error() -> None:
    with pytest.raises(errors.LiftArgumentError, match=r"`from_haiku\(hk.transform\(fn\)\)`"):
        from_haiku(block)
    with pytest.raises(errors.WrongStyleError, match="needs no bridge"):
        from_haiku(nn.Dense(3))

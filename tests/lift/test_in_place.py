"""`InPlace`: a loop writes new slices of stacked variables over the old ones, with the numbers of the axis alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
import nnx_like as nnx
from liftcore import InPlace, Scope
from liftcore._compat import scan_sizes
from liftcore.errors import LiftArgumentError
from liftcore.meta import PARTITION_NAME, Partitioned

KEY, LENGTH = jax.random.key(0), 3
X = jnp.linspace(-1.0, 1.0, 4)


def assert_same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(data(one), data(other)), ours, theirs)


def data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def plain(scope: Scope, x: Any) -> Any:
    kernel = scope.param("kernel", jax.random.normal, (4, 4))
    cache = scope.variable("cache", "seen", jnp.ones, 4)
    cache.value = jnp.tanh(cache.value + x @ kernel)
    return cache.value


def below(scope: Scope, x: Any) -> Any:
    return scope.child(plain, "first")(x) + scope.child(plain, "second")(x)


def counted(scope: Scope, x: Any) -> Any:
    count = scope.variable("cache", "count", jnp.zeros, (), jnp.int32)
    keys = scope.variable("cache", "keys", lambda: jax.random.split(KEY, 2))
    count.value += 1
    keys.value = jax.vmap(jax.random.fold_in, (0, None))(keys.value, count.value)
    return plain(scope, x) * count.value


def boxed(scope: Scope, x: Any) -> Any:
    held = scope.variable("cache", "boxed", lambda: Partitioned(jnp.ones(4), ("model",)))
    held.value = held.value * x
    return plain(scope, held.value)


def only_read(scope: Scope, x: Any) -> Any:
    return plain(scope, x) + scope.variable("cache", "fixed", jnp.ones, 4).value


def only_written(scope: Scope, x: Any) -> Any:
    scope.variable("cache", "last", jnp.zeros, 4).value = x
    return plain(scope, x)


def retyped(scope: Scope, x: Any) -> Any:
    halves = scope.variable("cache", "halves", jnp.zeros, 4)
    other = jnp.float32 if halves.value.dtype == jnp.bfloat16 else jnp.bfloat16
    halves.value = (halves.value + x).astype(other)
    longer = scope.variable("cache", "longer", jnp.zeros, 4)
    longer.value = jnp.concatenate([longer.value, x])
    return plain(scope, x)


def as_tree(scope: Scope, x: Any) -> Any:
    both = scope.variable("cache", "both", lambda: {"a": jnp.ones(4), "b": (jnp.zeros(2), jnp.ones(()))})
    a, (b, c) = both.value["a"], both.value["b"]
    both.value = {"a": a + x, "b": (b + 1, c * 2)}
    return plain(scope, a * c)


def in_a_loop(scope: Scope, x: Any) -> Any:
    layers = liftcore.scan(
        lambda scope, x, _: (plain(scope, x), None),
        length=2,
        variable_axes={"params": 0, "cache": InPlace(0)},
        split_rngs={"params": True},
    )
    return layers(scope, x, None)[0]


BODIES: list[Callable[..., Any]] = [
    plain, below, counted, boxed, only_read, only_written, retyped, as_tree, in_a_loop, liftcore.remat(below)
]  # fmt: skip


def layers(body: Any, axis: Any, **options: Any) -> Callable[..., Any]:
    lifted = liftcore.scan(
        lambda scope, x, row: (body(scope, x + row), x.sum()),
        length=LENGTH,
        variable_axes={"cache": axis, "params": 0},
        split_rngs={"params": True},
        metadata_params={PARTITION_NAME: "layers"},
        **options,
    )
    return lambda scope, x: lifted(scope, x, jnp.linspace(0.0, 1.0, LENGTH))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}], ids=str)
def test_the_numbers_are_those_of_the_axis(body: Any, options: dict[str, Any]) -> None:
    theirs, ours = layers(body, 0, **options), layers(body, InPlace(0), **options)
    created = liftcore.init(theirs)(KEY, X)
    assert_same(liftcore.init(ours)(KEY, X), created)
    apply = [jax.jit(liftcore.apply(fn, mutable="cache")) for fn in (ours, theirs)]
    assert_same(apply[0](created[1], X), apply[1](created[1], X))


@pytest.mark.parametrize("axis", [-1, 1])
def test_other_axes(axis: int) -> None:
    _, variables = liftcore.init(layers(below, axis))(KEY, X)
    found = [liftcore.apply(layers(below, one), mutable=True)(variables, X) for one in (axis, InPlace(axis))]
    assert_same(*found)


def test_gradients_and_batches() -> None:
    _, variables = liftcore.init(layers(below, 0))(KEY, X)

    def loss(axis: Any, variables: Any, x: Any) -> Any:
        y, updates = liftcore.apply(layers(below, axis), mutable="cache")(variables, x)
        return y[0].sum() + sum(leaf.sum() for leaf in jax.tree.leaves(updates))

    xs = jnp.stack([X, 2 * X])
    for transform in (
        lambda fn: jax.grad(fn)(variables, X),
        lambda fn: jax.vmap(fn, (None, 0))(variables, xs),
        lambda fn: jax.jvp(fn, (variables, X), (variables, X)),
        lambda fn: jax.vmap(jax.grad(jax.checkpoint(fn)), (None, 0))(variables, xs),
    ):
        ours, theirs = (jax.jit(transform, static_argnums=0)(functools.partial(loss, axis)) for axis in (InPlace(0), 0))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, theirs)


def scans(jaxpr: Any) -> list[Any]:
    found = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    inner = [one.jaxpr for eqn in jaxpr.eqns for one in eqn.params.values() if hasattr(one, "jaxpr")]
    return found + [eqn for one in inner for eqn in scans(one)]


def test_the_loop_carries_what_it_writes_and_stacks_nothing() -> None:
    for axis, stacked in ((0, 2), (InPlace(0), 0)):
        fn = layers(below, axis)
        _, variables = liftcore.init(fn)(KEY, X)
        jaxpr = jax.make_jaxpr(lambda v, fn=fn: liftcore.apply(fn, mutable="cache")(v, X)[1])(variables)
        (loop,) = scans(jaxpr.jaxpr)
        assert len(loop.outvars) - scan_sizes(loop)[1] == stacked + 1  # and the results


def test_mappings_take_it_as_the_axis_alone() -> None:
    def mapped(axis: Any) -> Any:
        fn = liftcore.vmap(below, variable_axes={"params": None, "cache": axis}, split_rngs={"params": False})
        return liftcore.apply(fn, mutable="cache")(variables, jnp.ones((2, 4)))

    init = liftcore.vmap(below, variable_axes={"params": None, "cache": 0}, split_rngs={"params": False})
    _, variables = liftcore.init(init)(KEY, jnp.ones((2, 4)))
    assert_same(mapped(InPlace(0)), mapped(0))


class Block(nn.Module):
    decode: bool

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        attend = nn.MultiHeadAttention(num_heads=2, is_causal=True, decode=self.decode, ragged_cache=True)
        return x + attend(nn.LayerNorm()(x)), None


class Model(nn.Module):
    cache: Any = 0
    decode: bool = False

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        axes = {"params": 0, "cache": self.cache}
        blocks = nn.scan(Block, variable_axes=axes, split_rngs={"params": True}, length=LENGTH)
        x, _ = blocks(self.decode)(nn.Embed(11, 8)(tokens), None)
        return nn.Dense(11)(x)


def test_generation() -> None:
    variables = Model().init(KEY, jnp.zeros((1, 4), int))
    found = [
        nn.generate(Model(cache, decode=True), variables, [[1, 2, 3], [4]], max_new_tokens=6)
        for cache in (InPlace(0), 0)
    ]
    assert_same(found[0].tokens, found[1].tokens)
    np.testing.assert_allclose(found[0].log_probs, found[1].log_probs, rtol=1e-5)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.seen = nnx.Cache(jnp.ones(4), sharding_names=("model",))
        self.count = nnx.Cache(jnp.array(0))
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        self.count += 1
        self.seen.set_value(jnp.tanh(self.seen.get_value() + self.drop(self.linear(x))))
        return self.seen.get_value() * self.count.get_value()


def objects(axis: Any, **options: Any) -> tuple[Any, Any]:
    """Return what layers compute, and the layers, built under `vmap` and run under `scan` with the same axes."""
    axes = nnx.StateAxes({nnx.Cache: axis, ...: 0})
    named = {"transform_metadata": {nnx.PARTITION_NAME: "layers"}}
    model = nnx.vmap(Layer, out_axes=axes, **named)(nnx.Rngs(0, dropout=1).split(LENGTH))
    run = nnx.scan(lambda model, x: model(x), in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, **named, **options)
    return nnx.jit(lambda model, x: run(model, run(model, x)))(model, X), nnx.to_pure_dict(nnx.state(model))


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": True}], ids=str)
def test_objects(options: dict[str, Any]) -> None:
    ours, theirs = objects(InPlace(0), **options), objects(0, **options)
    assert_same(ours, theirs)
    assert theirs[1]["count"].tolist() == [2] * LENGTH


def test_objects_that_are_returned_or_given_twice() -> None:
    axes = nnx.StateAxes({nnx.Cache: InPlace(0), ...: 0})
    model = nnx.vmap(Layer)(nnx.Rngs(0).split(LENGTH))
    again = nnx.scan(lambda model: (model(X), model)[1], in_axes=(axes,), out_axes=0)(model)
    assert again is model
    assert model.count.get_value().tolist() == [1] * LENGTH
    with pytest.raises(nnx.errors.AliasError, match="which is on axis 0, in place; here it is on axis 0"):
        nnx.scan(lambda one, other: None, in_axes=(axes, 0), out_axes=0)(model, model)


@pytest.mark.parametrize("axis", [None, nnx.Carry, "layers"])
def test_objects_are_updated_in_place_along_an_axis_only(axis: Any) -> None:
    axes = nnx.StateAxes({nnx.Cache: InPlace(axis), ...: 0})
    with pytest.raises(nnx.errors.LiftArgumentError, match=r"InPlace\(axis=.*\) in .* is not an axis"):
        nnx.scan(lambda model, x: model(x), in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)


def test_a_loop_over_objects_stacks_nothing() -> None:
    def carried(axis: Any) -> int:
        model = nnx.vmap(Layer)(nnx.Rngs(0).split(LENGTH))
        axes = nnx.StateAxes({nnx.Cache: axis, ...: 0})
        run = nnx.scan(lambda model, x: model(x), in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)
        (loop,) = scans(nnx.make_jaxpr(run)(model, X).jaxpr)
        return scan_sizes(loop)[1]

    assert carried(InPlace(0)) == carried(0) + len(("seen", "count"))


@pytest.mark.parametrize("axis", [None, nnx.Carry, "layers"])
def test_in_place_takes_an_axis(axis: Any) -> None:
    model = nnx.vmap(Layer)(nnx.Rngs(0).split(LENGTH))
    axes = nnx.StateAxes({nnx.Cache: InPlace(axis), ...: 0})
    for transform, others in ((nnx.scan, nnx.Carry), (nnx.vmap, None)):
        with pytest.raises(LiftArgumentError, match=r"InPlace\(axis=.*\) in `in_axes` or `out_axes` is not an axis"):
            transform(lambda model, x: model(x), in_axes=(axes, others), out_axes=others or 0)(model, X)


@pytest.mark.parametrize("axis", [0, InPlace(0)])
def test_a_loop_of_no_iterations(axis: Any) -> None:
    scanned = liftcore.scan(
        lambda scope, x: (plain(scope, x), None), length=0, variable_axes={("params", "cache"): axis}
    )
    variables = {"params": {"kernel": jnp.zeros((0, 4, 4))}, "cache": {"seen": jnp.zeros((0, 4))}}
    (carry, _), updates = liftcore.apply(scanned, mutable="cache")(variables, X)
    assert (carry.tolist(), updates["cache"]["seen"].shape) == (X.tolist(), (0, 4))

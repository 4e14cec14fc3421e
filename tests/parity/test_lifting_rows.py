"""Lifted transformations of functions of a module against those of `flax.linen`: trees, values, outputs, gradients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from tests.layers.bits import assert_same_bits, quick

linen = pytest.importorskip("flax.linen")

RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
X = jax.random.normal(jax.random.key(2), (2, 3))

Build = Callable[[Any, Any, Any], Any]

ROWS: dict[str, Build] = {}
GIVEN: dict[str, str] = {}


def row(build: Build) -> Build:
    """Adds what a compact method does: `build(nn, self, x)`."""
    ROWS[build.__name__] = build
    return build


def given(reason: str) -> Callable[[Build], Build]:
    """The same for one whose `init` Linen does otherwise, and why; it is given the variables of ours."""

    def add(build: Build) -> Build:
        GIVEN[build.__name__] = reason
        return row(build)

    return add


def model(nn: Any, build: Build) -> Any:
    """A module that does it, between draws and layers of its own."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x) + jax.random.uniform(self.make_rng("dropout"))
            y = build(nn, self, x)
            return y, nn.Dense(2)(x) + jax.random.uniform(self.make_rng("dropout"))

    return Model()


def layers(nn: Any) -> Any:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(3)(x))
            return x + nn.Dropout(0.5, deterministic=False)(nn.tanh(y))

    return Layer


# --- branches ---------------------------------------------------------------------------------------------------------


@row
def cond(nn: Any, self: Any, x: Any) -> Any:
    def one(mdl: Any, x: Any) -> Any:
        return nn.Dense(3, name="own")(x)

    def two(mdl: Any, x: Any) -> Any:
        return nn.tanh(nn.Dense(3, name="own")(x))

    return [nn.cond(x.sum() > limit, one, two, self, x) for limit in (-1e9,)]


@given("Linen makes the variables of one branch only if they are those of the other")
def cond_with_parameters_of_its_own_in_each_branch(nn: Any, self: Any, x: Any) -> Any:
    a, b = nn.Dense(3, name="a"), nn.Dense(3, name="b")
    if nn is linen and self.is_initializing():
        return a(x), b(x)
    return [nn.cond(x.sum() > limit, lambda mdl, x: a(x), lambda mdl, x: b(x), self, x) for limit in (-1e9, 1e9)]


@row
def cond_that_writes(nn: Any, self: Any, x: Any) -> Any:
    count = self.variable("state", "count", lambda: jnp.zeros(()))

    def add(mdl: Any, x: Any, by: Any) -> Any:
        # Not by `count` itself: what is written through a variable from outside is lost in Linen.
        mdl.put_variable("state", "count", mdl.get_variable("state", "count") + by)
        return x * mdl.get_variable("state", "count")

    return nn.cond(x.sum() < 1e9, add, lambda mdl, x, by: x, self, x, 3.0), count.value


@row
def switch_over_modules(nn: Any, self: Any, x: Any) -> Any:
    heads = [nn.Dense(3, name=f"head_{index}") for index in range(3)]
    for head in heads:
        head(x)
    branches = [lambda mdl, x, head=head: head(x) for head in heads]
    return nn.switch(jnp.int32(2), branches, self, x)


# --- loops ------------------------------------------------------------------------------------------------------------


@given("Linen's body cannot make variables")
def while_loop(nn: Any, self: Any, x: Any) -> Any:
    def proceed(mdl: Any, value: Any) -> Any:
        return value[0] < 3

    def body(mdl: Any, value: Any) -> Any:
        index, x = value
        return index + 1, nn.tanh(nn.Dense(3, name="own")(x)) + mdl.get_variable("consts", "by")

    self.variable("consts", "by", lambda: jnp.float32(2))
    return nn.while_loop(proceed, body, self, (0, x), split_rngs={"params": False})[1]


@row
def while_loop_with_a_counter_and_draws(nn: Any, self: Any, x: Any) -> Any:
    self.variable("state", "count", lambda: jnp.zeros((), int))

    def proceed(mdl: Any, value: Any) -> Any:
        return mdl.get_variable("state", "count") < 4

    def body(mdl: Any, x: Any) -> Any:
        mdl.put_variable("state", "count", mdl.get_variable("state", "count") + 1)
        return x + jax.random.uniform(mdl.make_rng("dropout"))

    # Where the sequence is split, Linen's bodies draw from keys that ours leave to conditions.
    options = {"carry_variables": "state", "split_rngs": {"dropout": False}}
    return nn.while_loop(proceed, body, self, x, **options)


@given("Linen traces its body several times, and counts the draws of each")
def remat_scan(nn: Any, self: Any, x: Any) -> Any:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.tanh(nn.Dense(3)(x))

    return nn.remat_scan(Layer, lengths=(2, 3))()(x)


@given("as above")
def remat_scan_of_a_tuple(nn: Any, self: Any, x: Any) -> Any:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, pair: Any) -> Any:
            return nn.tanh(nn.Dense(3)(pair[0])), pair[1] + 1

    options = {"variable_axes": {"params": 1}, "split_rngs": {"params": True}}
    return nn.remat_scan(Layer, (2, 2), jax.checkpoint_policies.dots_saveable, **options)(name="deep")((x, 0.0))


# --- derivatives ------------------------------------------------------------------------------------------------------


@row
def grad(nn: Any, self: Any, x: Any) -> Any:
    def loss(mdl: Any, x: Any, y: Any) -> Any:
        return ((nn.Dense(3, name="own")(x) - y) ** 2).sum()

    return nn.grad(loss, self, x, 2.0)


@row
def value_and_grad_with_aux(nn: Any, self: Any, x: Any) -> Any:
    def loss(mdl: Any, x: Any) -> Any:
        y = layers(nn)(name="layer")(x)
        return (y**2).sum(), y

    one = nn.value_and_grad(loss, self, x, has_aux=True)
    return one, nn.grad(lambda mdl, x: x.sum(), self, x)


@given("Linen differentiates with respect to nothing in `init`")
def vjp(nn: Any, self: Any, x: Any) -> Any:
    y, pullback = nn.vjp(lambda mdl, x: nn.tanh(nn.Dense(3, name="own")(x)), self, x)
    return y, pullback(y)


@given("as above")
def vjp_with_aux_and_other_variables(nn: Any, self: Any, x: Any) -> Any:
    self.variable("consts", "by", lambda: jnp.float32(2))

    def scaled(mdl: Any, x: Any) -> Any:
        return mdl.get_variable("consts", "by") * nn.Dense(3, name="own")(x), {"x": x}

    y, pullback, aux = nn.vjp(scaled, self, x, has_aux=True, vjp_variables=["consts", "params"])
    return pullback(y), aux


@given("as above")
def vjp_of_several_scopes(nn: Any, self: Any, x: Any) -> Any:
    class Uses(nn.Module):
        first: Any
        second: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.first(x)) + self.second(x)

    a, b, c = (nn.Dense(3, name=name) for name in "abc")
    inner = Uses(a, b, name="inner")
    outer = Uses(inner, c, name="outer")
    outer(x)
    y, pullback = nn.vjp(lambda mdl, x: mdl(x), outer, x, multi_scope=True)
    return pullback(y)


@row
def jvp(nn: Any, self: Any, x: Any) -> Any:
    dense = nn.Dense(3, name="own")
    dense(x)
    tangents = {"params": jax.tree.map(jnp.ones_like, dict(dense.variables["params"]))}
    some = nn.jvp(lambda mdl, x: nn.tanh(mdl(x)), dense, (x,), (2 * x,), tangents)
    return some, nn.jvp(lambda mdl, x: nn.tanh(mdl(x)), dense, (x,), (x,), {})


@row
def custom_vjp(nn: Any, self: Any, x: Any) -> Any:
    def fn(mdl: Any, scale: Any, x: Any) -> Any:
        return scale * mdl(x)

    def forward(mdl: Any, scale: Any, x: Any) -> Any:
        return nn.vjp(lambda mdl, x: fn(mdl, scale, x), mdl, x)

    def backward(scale: Any, pullback: Any, cotangent: Any) -> Any:
        of_variables, of_x = pullback(cotangent)
        return jax.tree.map(jnp.sign, of_variables), scale * of_x

    return nn.custom_vjp(fn, forward, backward, nondiff_argnums=(1,))(nn.Dense(3, name="own"), 2.0, x)


# --- variables --------------------------------------------------------------------------------------------------------


def transposed(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.T, variables)


@row
def map_variables_of_a_class(nn: Any, self: Any, x: Any) -> Any:
    init = self.is_initializing()  # in Linen `init=True` holds in `apply` too
    return nn.map_variables(nn.Dense, "params", transposed, transposed, init=init)(4)(x)


@row
def map_variables_of_a_function(nn: Any, self: Any, x: Any) -> Any:
    dense = nn.Dense(3, use_bias=False, name="own")
    y = dense(x)
    return nn.map_variables(lambda mdl, x: mdl(x), "params", transposed)(dense, y)


@row
def map_variables_that_are_written(nn: Any, self: Any, x: Any) -> Any:
    def double(variables: Any) -> Any:
        return jax.tree.map(lambda leaf: 2 * leaf, variables)

    def halve(variables: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf / 2, variables)

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, momentum=0.5)(x)

    init = self.is_initializing()
    return nn.map_variables(Norm, "batch_stats", double, halve, init=init, mutable=True)(name="norm")(x)


@row
def add_metadata_axis(nn: Any, self: Any, x: Any) -> Any:
    return nn.add_metadata_axis(nn.Dense, {"params": 0}, {})(3)(x)


@row
def perturb(nn: Any, self: Any, x: Any) -> Any:
    return nn.tanh(self.perturb("hidden", nn.Dense(3, name="own")(x)))


@row
def named_call_of_a_function(nn: Any, self: Any, x: Any) -> Any:
    return nn.named_call(lambda mdl, x: nn.Dense(3)(x))(self, x)


def fold_rngs(nn: Any, self: Any, x: Any) -> Any:
    return nn.fold_rngs(layers(nn))()(x)


# --- what is compared -------------------------------------------------------------------------------------------------

FORWARD = ("while_loop", "while_loop_with_a_counter_and_draws")
"""Without a derivative in reverse."""


def applied(model: Any, variables: Any, x: Any) -> Any:
    return model.apply(variables, x, rngs=RNGS, mutable=["batch_stats", "state"])


def differentiated(model: Any, variables: Any, x: Any) -> Any:
    def loss(params: Any, x: Any) -> Any:
        y, changed = applied(model, {**variables, "params": params}, x)
        return sum((leaf**2).mean() for leaf in jax.tree.leaves(y)), (y, changed)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(variables["params"], x)


def assert_agree(mine: Any, other: Any) -> None:
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), mine, other)


@pytest.mark.parametrize("name", ROWS)
def test_row_is_that_of_linen(name: str) -> None:
    ours, theirs = (model(nn, ROWS[name]) for nn in (linen_like, linen))
    made, expected = quick(
        lambda x: (ours.init_with_output(RNGS, x), None if name in GIVEN else theirs.init_with_output(RNGS, x))
    )(X)
    if name not in GIVEN:
        assert_same_bits(made[1], expected[1])
        assert_agree(made[0], expected[0])
    run = applied if name in FORWARD else differentiated
    mine, other = quick(lambda variables, x: (run(ours, variables, x), run(theirs, variables, x)))(made[1], X)
    assert_agree(mine, other)


def test_fold_rngs_gives_the_same_tree() -> None:
    # Not the same numbers: which new root a call draws is its own affair.
    ours, theirs = (model(nn, fold_rngs).init(RNGS, X) for nn in (linen_like, linen))
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)


NAMES = (
    "add_metadata_axis", "cond", "custom_vjp", "fold_rngs", "grad", "jvp", "map_variables", "named_call", "remat_scan",
    "switch", "value_and_grad", "vjp", "while_loop",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_that_of_linen_with_additions_by_keyword_only(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(nn, name)).parameters for nn in (linen, linen_like))
    added = list(ours)[len(theirs) :]
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[one].kind is inspect.Parameter.KEYWORD_ONLY for one in added) or name == "add_metadata_axis"
    for one in theirs:
        assert ours[one].kind is theirs[one].kind
        mine, other = ours[one].default, theirs[one].default
        if mine is not inspect.Parameter.empty and not callable(mine):
            assert dict(mine) == dict(other) if hasattr(other, "items") else mine == other, one

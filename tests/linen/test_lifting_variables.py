"""`nn.map_variables`, `nn.swap_collection`, `nn.fold_rngs` and `nn.with_rngs`."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import LiftArgumentError, UnliftedCollectionError
from tests.linen.lifted import KEY, RNGS, X, assert_close, assert_same, dense_of, shapes


def transposed(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.T, variables)


class Tied(nn.Module):
    """An autoencoder whose decoder has the encoder's kernel, transposed."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        encoder = nn.Dense(2, use_bias=False, name="encoder")
        Decoder = nn.map_variables(TiedDense, "params", transposed)
        return Decoder(encoder, name="decoder")(encoder(x))


class TiedDense(nn.Module):
    inner: nn.Module

    def __call__(self, x: Any) -> Any:
        return x @ self.inner.variables["params"]["kernel"]


def test_weights_are_tied_and_transposed() -> None:
    y, variables = Tied().init_with_output(KEY, X)
    assert shapes(variables) == {"params": {"encoder": {"kernel": (3, 2)}}}
    kernel = variables["params"]["encoder"]["kernel"]
    assert_close(y, X @ kernel @ kernel.T)
    assert_close(Tied().apply(variables, X), y)
    grads = jax.grad(lambda variables: Tied().apply(variables, X).sum())(variables)
    expected = jax.grad(lambda kernel: (X @ kernel @ kernel.T).sum())(kernel)
    assert_close(grads["params"]["encoder"]["kernel"], expected)


def standardised(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf - leaf.mean(0) if leaf.ndim > 1 else leaf, variables)


def test_variables_are_made_in_the_form_in_which_they_are_stored() -> None:
    Standardised = nn.map_variables(nn.Dense, "params", standardised, init=True)
    plain = nn.Dense(4).init(KEY, X)
    assert_same(Standardised(4).init(KEY, X), plain)
    y = Standardised(4).apply(plain, X)
    assert_close(y, nn.Dense(4).apply(standardised(plain), X))
    Transposed = nn.map_variables(nn.Dense, "params", transposed, transposed, init=True)
    y, variables = Transposed(4).init_with_output(KEY, X)
    assert_same(variables, transposed(plain))
    assert_close(y, nn.Dense(4).apply(plain, X))
    assert_close(Transposed(4).apply(variables, X), y)


def test_mapped_variables_may_be_written_where_that_is_said() -> None:
    class Count(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            count = self.variable("state", "count", lambda: jnp.float32(1))
            count.value *= 3
            return x * count.value

    def exp(variables: Any) -> Any:
        return jax.tree.map(jnp.exp, variables)

    def log(variables: Any) -> Any:
        return jax.tree.map(jnp.log, variables)

    Logs = nn.map_variables(Count, "state", exp, log, mutable=True)
    y, variables = Logs().init_with_output(KEY, 2.0)
    assert_close((y, variables), (jnp.float32(6), {"state": {"count": jnp.log(3)}}))
    y, mutated = Logs().apply(variables, 2.0, mutable="state")
    assert_close((y, mutated), (jnp.float32(18), {"state": {"count": jnp.log(9)}}))
    with pytest.raises(UnliftedCollectionError, match=r"`mutable=True`"):
        nn.map_variables(Count, "state", exp, log, init=True)().init(KEY, 2.0)
    with pytest.raises(UnliftedCollectionError, match=r"`init=True`"):
        nn.map_variables(nn.Dense, "params", transposed)(3).init(KEY, X)


def test_mapping_reaches_single_variables_and_methods() -> None:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def encode(self, x: Any) -> Any:
            return self.dense(x)

    kernel = filters.All("params", filters.PathContains("kernel"))
    Doubled = nn.map_variables(Coder, kernel, lambda v: jax.tree.map(lambda w: 2 * w, v), init=True, methods="encode")
    variables = Doubled().init(KEY, X, method="encode")
    dense = variables["params"]["dense"]
    dense = {**dense, "bias": jnp.ones(3)}
    y = Doubled().apply({"params": {"dense": dense}}, X, method="encode")
    assert_close(y, X @ (2 * dense["kernel"]) + 1)


def test_names_are_those_of_linen_where_it_has_them() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for made in (
                nn.map_variables(nn.Dense, "params", init=True),
                nn.fold_rngs(nn.Dense),
                nn.swap_collection(nn.Dense, "params", "ema"),
                nn.with_rngs(nn.Dense, {"params": jax.random.key(7)}),
            ):
                x = made(3)(x)
            return x

    variables = Model().init(KEY, X)
    assert list(variables["params"]) == ["Map_variablesDense_0", "Fold_rngsDense_0", "Dense_1"]
    assert list(variables["ema"]) == ["Dense_0"]


def test_two_collections_change_places() -> None:
    Swapped = nn.swap_collection(nn.Dense, "params", "ema")
    variables = Swapped(3).init(KEY, X)
    assert_same(variables, {"ema": nn.Dense(3).init(KEY, X)["params"]})
    both = {"params": jax.tree.map(jnp.zeros_like, variables["ema"]), **variables}
    assert_close(Swapped(3).apply(both, X), nn.Dense(3).apply({"params": variables["ema"]}, X))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            y = dense(x)
            self.variable("ema", "unused", lambda: 0.0)
            return y, nn.swap_collection(lambda mdl, x: mdl(x), "params", "ema")(dense, x)

    (y, z), variables = Model().init_with_output(KEY, X)
    assert sorted(variables["ema"]["dense"]) == ["bias", "kernel"]
    assert_close(y, dense_of(variables, "dense")(X))
    assert_close(z, dense_of({"params": variables["ema"]}, "dense")(X))


class Noise(nn.Module):
    @nn.compact
    def __call__(self) -> Any:
        return jax.random.uniform(self.make_rng("noise"))


def test_folded_sequences_depend_on_what_lies_below_only() -> None:
    class Model(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self) -> Any:
            first, second = self.lift(Noise)(name="a"), self.lift(Noise)(name="b")
            return first(), second(), first(), jax.random.uniform(self.make_rng("noise"))

    found = Model(nn.fold_rngs).apply({}, rngs={"noise": KEY})
    plain = Model(lambda cls: cls).apply({}, rngs={"noise": KEY})
    assert len({float(one) for one in found}) == 4
    assert found[-1] == plain[-1]
    assert not {float(one) for one in found[:-1]} & {float(one) for one in plain[:-1]}


def test_sequences_begin_anew_after_draws_too() -> None:
    class Model(nn.Module):
        setup_draws: bool

        def setup(self) -> None:
            self.noise = jax.random.uniform(self.make_rng("noise")) if self.setup_draws else 0.0

        def __call__(self) -> Any:
            folded = nn.fold_rngs(lambda mdl: jax.random.uniform(mdl.make_rng("noise")))
            noise = self.noise
            return noise, folded(self), jax.random.uniform(self.make_rng("noise")), folded(self)

    for setup_draws in (True, False):
        found = Model(setup_draws).apply({}, rngs={"noise": KEY})
        assert len({float(one) for one in found}) == 4


def test_keys_may_be_used_again_by_name() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, key: Any) -> Any:
            again = nn.with_rngs(Noise, {"noise": key})()
            function = nn.with_rngs(lambda mdl: jax.random.uniform(mdl.make_rng("noise")), {"noise": key})
            return again(), again(), function(self), Noise()()

    one, same, other, plain = jax.jit(lambda key: Model().apply({}, key, rngs={"noise": KEY}))(jax.random.key(3))
    assert one == same == other
    assert one != plain
    assert plain == Model().apply({}, jax.random.key(4), rngs={"noise": KEY})[-1]


def test_lifts_with_keys_leave_no_arrays_behind() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, key: Any) -> Any:
            return nn.with_rngs(nn.jit(nn.Dropout), {"dropout": key})(0.5, deterministic=False)(x)

    with jax.checking_leaks():
        jax.jit(lambda key: Model().apply({}, X, key))(KEY)
    y = Model().apply({}, X, KEY)
    np.testing.assert_array_equal(y, Model().apply({}, X, KEY))


def test_wrong_uses_are_told() -> None:
    for lift in (
        lambda target: nn.map_variables(target, "params"),
        lambda target: nn.swap_collection(target, "a", "b"),
        nn.fold_rngs,
        lambda target: nn.with_rngs(target, RNGS),
    ):
        with pytest.raises(LiftArgumentError, match=r"Lift the class: `nn\.\w+\(Dense, …\)"):
            lift(nn.Dense(3))


def test_a_debugger_may_read_the_local_variables() -> None:
    def trace(frame: Any, event: str, arg: Any) -> Any:
        _ = frame.f_locals  # in Python 3.12, this adds the names of a running comprehension to `locals()`
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        mapped = nn.map_variables(nn.Dense, "params", init=True)
        scanned = nn.partitioning.scan_with_axes(nn.Dense, {"params": 0}, axes_collections=("params",))
    finally:
        sys.settrace(before)
    assert issubclass(mapped, nn.Dense)
    assert issubclass(scanned, nn.Dense)

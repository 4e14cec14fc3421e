"""`from_equinox`: models of Equinox in scopes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
from liftcore import errors
from liftcore.foreign import from_equinox
from tests.foreign.comparing import DROPOUT, KEY, RNGS, X, assert_deep_equals, assert_same, deep, drawn

equinox = pytest.importorskip("equinox")

ROWS = X[0]


class Block(equinox.Module):
    """Attention over a sequence, and an MLP."""

    attention: Any
    norm: Any
    mlp: Any

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.attention = equinox.nn.MultiheadAttention(2, 8, dropout_p=0.1, key=first)
        self.norm = equinox.nn.LayerNorm(8)
        self.mlp = equinox.nn.MLP(8, 8, 16, 1, key=second)

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        x = x + self.attention(x, x, x, key=key)
        return x + jax.vmap(lambda row: self.mlp(self.norm(row)))(x)


class Normed(equinox.Module):
    """A layer with state, dropout and a table of integers."""

    linear: Any
    norm: Any
    dropout: Any
    table: Any

    def __init__(self, key: Any) -> None:
        self.linear = equinox.nn.Linear(8, 8, key=key)
        self.norm = equinox.nn.BatchNorm(8, "batch", mode="batch")
        self.dropout, self.table = equinox.nn.Dropout(0.5), jnp.arange(8)

    def __call__(self, x: Any, state: Any, *, key: Any = None) -> Any:
        h, state = self.norm(self.linear(x), state)
        return x + self.dropout(h, key=key)[self.table], state


def over_batch(fn: Any) -> Any:
    axes = {"params": None, "batch_stats": None, "constants": None}
    return liftcore.vmap(fn, variable_axes=axes, split_rngs={"params": False, "dropout": True}, axis_name="batch")


NORMED = over_batch(from_equinox(lambda key: Normed(key)))


def test_scanned_and_rematerialized_blocks_equal_a_scan_of_the_original() -> None:
    blueprint = liftcore.Blueprint.of(Block(KEY))

    def original(variables: Any, rngs: Any, x: Any) -> Any:
        return blueprint.read(variables)(x, key=drawn("dropout", rngs)), {}

    assert_deep_equals(from_equinox(lambda key: Block(key)), original, ROWS, ())


def test_a_given_model_keeps_its_weights() -> None:
    model = Block(KEY)
    fn = from_equinox(model)
    y, variables = liftcore.init(fn)(RNGS, ROWS)
    assert_same(variables["params"]["mlp"]["layers"]["0"]["weight"], model.mlp.layers[0].weight)
    key = liftcore.apply(lambda scope: scope.make_rng("dropout"))({}, rngs=RNGS)
    assert_same(y, model(ROWS, key=key))
    ours = jax.jit(jax.grad(lambda variables: liftcore.apply(fn)(variables, ROWS, rngs=DROPOUT).sum()))(variables)
    loss = equinox.filter_grad(lambda model: model(ROWS, key=drawn("dropout", DROPOUT)).sum())
    theirs = equinox.filter_jit(loss)(model)
    assert_same(ours["params"]["mlp"]["layers"]["0"]["weight"], theirs.mlp.layers[0].weight)


def test_a_state_is_batch_statistics_at_the_path_of_its_field() -> None:
    _, variables = liftcore.init(NORMED)(RNGS, ROWS)
    model, state = equinox.nn.make_with_state(Normed)(drawn("params", KEY))
    assert_same(variables["params"]["linear"]["weight"], model.linear.weight)
    assert_same(variables["constants"], {"table": model.table})
    statistics = variables["batch_stats"]["norm"]
    assert_same(statistics["batch_counter"], state.get(model.norm.batch_counter))
    assert_same(tuple(statistics["batch_state_index"].values()), state.get(model.norm.batch_state_index))

    y, changed = liftcore.apply(NORMED, mutable="batch_stats")(variables, ROWS, rngs=DROPOUT)
    keys = liftcore.vmap(lambda scope, x: scope.make_rng("dropout"), split_rngs={"dropout": True})
    keys = liftcore.apply(keys)({}, ROWS, rngs=DROPOUT)
    call = jax.vmap(lambda x, key: model(x, state, key=key), out_axes=(0, None), axis_name="batch")
    theirs, new = call(ROWS, keys)
    assert_same(y, theirs)
    assert_same(changed["batch_stats"]["norm"]["batch_counter"], new.get(model.norm.batch_counter))
    assert changed["batch_stats"]["norm"]["batch_counter"] == 1


def test_states_of_scanned_layers() -> None:
    fn = deep(NORMED, ("params", "batch_stats"), variable_broadcast="constants")
    _, variables = liftcore.init(fn)(RNGS, ROWS)
    assert variables["batch_stats"]["norm"]["batch_counter"].shape == (3,)
    _, changed = liftcore.apply(fn, mutable="batch_stats")(variables, ROWS, rngs=DROPOUT)
    assert changed["batch_stats"]["norm"]["batch_counter"].tolist() == [1, 1, 1]


def test_a_pair_of_a_model_and_its_state_and_a_function_of_both() -> None:
    model, state = equinox.nn.make_with_state(Normed)(KEY)

    def quiet(model: Any, x: Any, state: Any) -> Any:
        return equinox.nn.inference_mode(model)(x, state)

    fn = from_equinox((model, state), method=quiet)
    y, variables = liftcore.init(fn)(KEY, ROWS[0])
    assert_same(y, quiet(model, ROWS[0], state)[0])
    assert_same(liftcore.apply(fn)(variables, ROWS[0]), y)


def test_missing_keys_and_immutable_states_are_our_errors() -> None:
    _, variables = liftcore.init(NORMED)(RNGS, ROWS)
    with pytest.raises(errors.ModifyScopeVariableError, match="batch_stats"):
        liftcore.apply(NORMED)(variables, ROWS, rngs=DROPOUT)
    with pytest.raises(errors.InvalidRngError, match='no RNG stream "dropout" was given'):
        liftcore.apply(NORMED, mutable="batch_stats")(variables, ROWS)


def test_a_state_that_is_missing_is_an_error() -> None:
    model, _ = equinox.nn.make_with_state(Normed)(KEY)
    with pytest.raises(errors.LiftArgumentError, match=r"Pass both: `from_equinox\(\(model, state\)\)`"):
        liftcore.init(from_equinox(model))(KEY, ROWS[0])


def test_what_is_no_model_is_an_error() -> None:
    for wrong in (Block, 3):
        with pytest.raises(errors.LiftArgumentError, match=r"`from_equinox\(lambda key: model\)`"):
            from_equinox(wrong)


def test_a_pytree_module_of_ours_works_too() -> None:
    class Scale(eqx.Module):
        by: Any

        def __call__(self, x: Any) -> Any:
            return x * self.by

    assert_same(liftcore.init(from_equinox(lambda key: Scale(jnp.ones(8))))(KEY, ROWS[0])[0], ROWS[0])

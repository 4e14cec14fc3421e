"""A training step without plumbing: `apply`, `run` and `minimize` are the loop that one would write by hand."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import liftcore
import linen_like as nn
from liftcore.checkpoints import load_file, save_file
from liftcore.errors import LiftArgumentError
from liftcore.filters import DenyList, PathContains
from liftcore.serialization import to_state_dict
from liftcore.training import Average, TrainState, accumulate_gradients, per_example_gradients


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(nn.Dense(8, name="body")(x))
        return nn.Dense(1, name="head")(nn.Dropout(0.3, deterministic=not train)(nn.relu(x)))


MODEL, TX = Model(), optax.adam(0.01)
X = jax.random.normal(jax.random.key(1), (12, 4))
Y = jnp.sin(X.sum(-1, keepdims=True))
KEY = jax.random.key(2)
VARIABLES = MODEL.init(jax.random.key(0), X)


def made(cls: type[TrainState] = TrainState, **options: Any) -> Any:
    options = {"variables": VARIABLES, "rngs": {"dropout": KEY}, **options}
    return cls.create(apply_fn=MODEL.apply, tx=TX, **options)


def loss_fn(state: Any, x: Any, y: Any) -> Any:
    out, state = state.apply(x, train=True)
    return jnp.mean((out - y) ** 2), state


@jax.jit
def step(state: Any, x: Any, y: Any) -> Any:
    return state.minimize(loss_fn, x, y)


@jax.jit
def by_hand(params: Any, stats: Any, opt_state: Any, number: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        rngs = {"dropout": jax.random.fold_in(KEY, number)}
        variables = {"params": params, "batch_stats": stats}
        out, written = MODEL.apply(variables, x, train=True, mutable=["batch_stats"], rngs=rngs)
        return jnp.mean((out - y) ** 2), written["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), stats, opt_state, number + 1, value


def same(one: Any, other: Any) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_steps_are_those_of_the_loop_by_hand_bit_for_bit() -> None:
    state = made()
    hand: Any = (VARIABLES["params"], VARIABLES["batch_stats"], TX.init(VARIABLES["params"]), 0)
    for _ in range(4):
        state, loss = step(state, X, Y)
        *hand, expected = by_hand(*hand, X, Y)
        assert loss == expected
        assert same(state.variables, {"params": hand[0], "batch_stats": hand[1]})
        assert same(state.opt_state, hand[2])
    assert state.step == 4


def test_a_run_that_resumes_is_the_same_byte_for_byte() -> None:
    state = made()
    for _ in range(2):
        state, _ = step(state, X, Y)
    file, whole, resumed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    save_file(file, state)
    file.seek(0)
    again = load_file(file, made(variables=jax.tree.map(jnp.zeros_like, VARIABLES)))
    for _ in range(2):
        state, again = step(state, X, Y)[0], step(again, X, Y)[0]
    save_file(whole, state)
    save_file(resumed, again)
    assert whole.getvalue() == resumed.getvalue()


def test_a_step_is_compiled_once_and_can_be_scanned() -> None:
    traces = []

    def counted(state: Any, x: Any, y: Any) -> Any:
        traces.append(1)
        return state.minimize(loss_fn, x, y)

    compiled, state = jax.jit(counted), made()
    for _ in range(3):
        state, _ = compiled(state, X, Y)
    assert len(traces) == 1
    scanned, losses = jax.jit(lambda state: jax.lax.scan(lambda state, _: step(state, X, Y), state, length=3))(made())
    assert losses.shape == (3,)
    assert jax.tree.all(jax.tree.map(jnp.allclose, scanned.params, state.params))


class Sowing(nn.Module):
    """A layer with statistics, dropout and a loss of its own."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        self.sow("losses", "size", jnp.mean(x**2))
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=not train)(x)


def test_what_a_model_sows_is_returned_and_not_kept() -> None:
    model, rngs = Sowing(), {"dropout": jax.random.key(1)}
    variables = model.init(jax.random.key(0), X)
    del variables["losses"]  # `init` sows too
    state: Any = TrainState.create(apply_fn=model.apply, variables=variables, tx=optax.sgd(0.1), rngs=rngs)
    plain, after = state.apply(X, train=True)
    for mutable in ("losses", ["losses"], ("batch_stats", "losses"), DenyList("params")):
        (y, sown), other = state.apply(X, train=True, mutable=mutable)
        assert same((y, other.model_state), (plain, after.model_state))
        assert list(sown) == ["losses"]
        assert sown["losses"]["size"] == (jnp.mean(X**2),)
    (y, everything), other = state.apply(X, train=True, mutable=True)
    assert same((y, other.model_state), (plain, after.model_state))
    assert set(everything) == {"losses", "params"}
    (y, captured), other = state.apply(X, train=True, capture_intermediates=True)
    assert same((y, other.model_state), (plain, after.model_state))
    assert captured["intermediates"]["__call__"] == (y,)
    without = state.replace(model_state=None, apply_fn=nn.Dense(4).apply, params=state.params["Dense_0"])
    (_, sown), other = without.apply(X, mutable=["losses"])
    assert sown == {}
    assert other is without


def test_a_model_of_flax_returns_what_it_sows() -> None:
    linen = pytest.importorskip("flax.linen")

    class Old(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            self.sow("losses", "size", jnp.mean(x**2))
            return linen.BatchNorm(use_running_average=False)(x)

    variables = Old().init(jax.random.key(0), X)
    del variables["losses"]
    state: Any = TrainState.create(apply_fn=Old().apply, variables=variables, tx=optax.sgd(0.1))
    for mutable in ("losses", ["losses"], linen.DenyList("params")):
        (_, sown), after = state.apply(X, mutable=mutable)
        assert sown["losses"]["size"] == (jnp.mean(X**2),)
        assert not same(after.model_state, state.model_state)


def test_a_step_may_be_eager_and_have_frozen_parts_and_more_results() -> None:
    def of_pair(state: Any, x: Any, y: Any) -> Any:
        loss, state = loss_fn(state, x, y)
        return loss, (state, loss + 1)

    state = made(trainable=PathContains("head"))
    after, (loss, more) = state.minimize(of_pair, X, Y, has_aux=True)
    assert more == loss + 1
    assert (state.step, after.step) == (0, 1)
    assert after.params["body"] is state.params["body"]
    assert not same(after.params["head"], state.params["head"])
    assert not same(after.model_state, state.model_state)


def test_a_loss_may_replace_fields_of_a_subclass() -> None:
    class State(TrainState):
        losses: Average

    def noted(state: Any, x: Any, y: Any) -> Any:
        loss, state = loss_fn(state, x, y)
        return loss, state.replace(losses=state.losses.update(values=loss))

    state, found = made(State, losses=Average()), []
    run = jax.jit(lambda state: state.minimize(noted, X, Y))
    for _ in range(3):
        state, loss = run(state)
        found.append(loss)
    assert jnp.allclose(state.losses.compute(), jnp.mean(jnp.stack(found)))


def test_a_step_passes_arguments_to_the_optimizer() -> None:
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    state = TrainState.create(apply_fn=MODEL.apply, variables=VARIABLES, tx=tx, rngs={"dropout": KEY})
    assert state.minimize(loss_fn, X, Y, tx_args={"value": 0.5})[0].step == 1


def test_applying_twice_draws_the_same_unless_other_keys_are_passed() -> None:
    state = made()
    first, _ = state.apply(X, train=True)
    assert same(first, state.apply(X, train=True)[0])
    assert not same(first, state.apply(X, train=True, rngs={"dropout": KEY})[0])
    assert not same(first, state.replace(step=1).apply(X, train=True)[0])


@pytest.mark.parametrize("raw", [False, True])
def test_one_key_and_raw_keys_serve_too(raw: bool) -> None:
    key = jax.random.PRNGKey(2) if raw else KEY
    for rngs in (key, {"dropout": key}):
        out, _ = made(rngs=rngs).apply(X, train=True)
        folded = jax.tree.map(lambda one: jax.random.fold_in(one, 0), rngs)
        assert same(out, MODEL.apply(VARIABLES, X, train=True, mutable=["batch_stats"], rngs=folded)[0])


def test_a_model_without_state_or_keys_is_called_as_it_is() -> None:
    state = TrainState.create(apply_fn=lambda variables, x: variables["params"]["w"] * x, params={"w": 2.0}, tx=TX)
    assert state.apply(3.0) == (6.0, state)
    assert state.variables == {"params": {"w": 2.0}}


def test_a_checkpoint_names_only_what_there_is() -> None:
    plain = TrainState.create(apply_fn=None, params=VARIABLES["params"], tx=TX)
    assert set(to_state_dict(plain)) == {"step", "params", "opt_state"}
    assert set(to_state_dict(made())) == {"step", "params", "opt_state", "batch_stats", "rngs"}


def test_a_file_of_a_subclass_with_fields_for_collections_is_restored() -> None:
    class State(TrainState):
        batch_stats: Any

    options: Any = {"apply_fn": MODEL.apply, "tx": TX}
    old, file = State.create(**VARIABLES, **options), io.BytesIO()
    save_file(file, old.replace(step=5))
    file.seek(0)
    state = load_file(file, TrainState.create(variables=jax.tree.map(jnp.zeros_like, VARIABLES), **options))
    assert state.step == 5
    assert same(state.variables, VARIABLES)
    file.seek(0)
    assert same(load_file(file, VARIABLES, filter=["params", "batch_stats"]), VARIABLES)


def test_a_subclass_may_have_fields_of_these_names() -> None:
    class State(TrainState):
        rngs: Any
        batch_stats: Any

    state = made(State, variables=None, params=VARIABLES["params"], batch_stats=VARIABLES["batch_stats"], rngs=KEY)
    assert state.rngs is KEY
    with pytest.raises(LiftArgumentError, match="fields without a value: rngs"):
        made(State, rngs=None, batch_stats=1)


def loss_of(scope: Any, x: Any, y: Any) -> Any:
    return jnp.mean((MODEL.clone(parent=scope)(x, train=True) - y) ** 2)


def test_a_function_of_a_scope_runs_with_the_variables_and_keys_of_the_state() -> None:
    state = made()
    for lift in (
        liftcore.value_and_grad(loss_of, wrt=state.trainable),
        accumulate_gradients(loss_of, 3, wrt=state.trainable),
        per_example_gradients(lambda scope, x, y: loss_of(scope, x[None], y[None]), wrt=state.trainable),
    ):
        (loss, grads), after = state.run(lift, X, Y)
        rngs = {"dropout": jax.random.fold_in(KEY, 0)}
        (value, expected), written = liftcore.apply(lift, mutable=["batch_stats"])(VARIABLES, X, Y, rngs=rngs)
        assert same((loss, grads, after.model_state), (value, expected, written))


def test_values_of_fp8_layers_are_variables_too() -> None:
    model = nn.Dense(4, dot_general_cls=nn.Fp8DotGeneralOp)
    x = jnp.ones((8, 16))
    variables = model.init(jax.random.key(0), x)
    state = TrainState.create(apply_fn=model.apply, variables=variables, tx=TX)
    assert set(state.variables) == {"params", "_overwrite_with_gradient"}

    def loss(state: Any) -> Any:
        out, state = state.apply(x)
        return out.mean(), state

    after, _ = state.minimize(loss)
    assert not same(after.variables["_overwrite_with_gradient"], state.variables["_overwrite_with_gradient"])


ERRORS = {
    "both": (lambda: made(params=VARIABLES["params"]), "expected `params` or `variables`, given both"),
    "neither": (lambda: made(variables=None), "given neither.*variables=model.init"),
    "parameters": (lambda: made(variables=VARIABLES["params"]), 'collection "params".*write `params=…`'),
    "no state": (
        lambda: made().minimize(lambda state: state.apply(X)[0].mean()),
        r"return `\(loss, state\)`, given a float32\[\] array",
    ),
    "no state in aux": (lambda: made().minimize(loss_fn, X, Y, has_aux=True), r"return loss, \(state, aux\)"),
    "sown": (
        lambda: made(variables={**VARIABLES, "batch_stats": {"old": X}}).apply(X, train=True),
        '"batch_stats" has other variables than before',
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_use_says_what_is_right(name: str) -> None:
    use, text = ERRORS[name]
    with pytest.raises(LiftArgumentError, match=text):
        use()

"""`TrainState` with optimizers whose parameters or arguments have another form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.filters import PathContains
from liftcore.training import TrainState, mask

PARAMS = {"layers": [{"w": jnp.ones((2, 2)), "b": jnp.ones(2)}]}
PAIR = optax.LookaheadParams.init_synced(PARAMS)


def loss_fn(params: Any) -> Any:
    params = params.fast if isinstance(params, optax.LookaheadParams) else params
    return sum(jnp.sum((leaf - 0.5) ** 2) for leaf in jax.tree.leaves(params))


OPTIMIZERS: dict[str, Any] = {
    "lookahead": lambda: optax.lookahead(optax.sgd(0.1), 2, 0.5),
    "lookahead in a chain": lambda: optax.chain(
        optax.clip(1.0), optax.lookahead(optax.adam(0.1), 2, 0.5, reset_state=True)
    ),
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.sgd(0.1), 1),
    "lbfgs": lambda: optax.lbfgs(memory_size=2),
    "sam": lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.01), opaque_mode=True),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 2),
    "plateau": lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
    "ema": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("trainable", [True, PathContains("w")])
def test_an_optimizer_of_another_form_trains(name: str, trainable: Any) -> None:
    params = PAIR if "lookahead" in name else PARAMS
    state = TrainState.create(apply_fn=None, params=params, tx=OPTIMIZERS[name](), trainable=trainable)

    def of_part(part: Any, *_: Any) -> Any:
        return loss_fn(state.with_trainable(part))

    for _ in range(2):
        value, grads = state.value_and_grad(loss_fn)()
        args = {
            "lbfgs": {"value": value, "grad": grads, "value_fn": of_part},
            "sam": {"grad_fn": jax.grad(of_part)},
            "plateau": {"value": value},
        }
        state = state.apply_gradients(grads=grads, tx_args=args.get(name))
    assert float(loss_fn(state.params)) < float(loss_fn(params))
    assert jax.tree.structure(state.params) == jax.tree.structure(params)
    fast = state.params.fast if "lookahead" in name else state.params
    assert bool((fast["layers"][0]["b"] == 1).all()) == (trainable is not True)


def test_lookahead_is_that_of_optax_by_hand() -> None:
    tx, params = optax.lookahead(optax.adam(0.1), 2, 0.5), PAIR
    state, opt_state = TrainState.create(apply_fn=None, params=params, tx=tx), tx.init(params)
    for step in range(3):
        updates, opt_state = tx.update(jax.grad(loss_fn)(params.fast), opt_state, params)
        params = optax.apply_updates(params, updates)
        grads = jax.grad(loss_fn)(state.params.fast) if step == 1 else state.value_and_grad(loss_fn)()[1]
        state = state.apply_gradients(grads=grads)  # those of the fast ones suffice
    assert jax.tree.all(jax.tree.map(jnp.array_equal, state.params, params))


@pytest.mark.parametrize("name", ["lookahead", "lookahead in a chain"])
def test_lookahead_needs_fast_and_slow_parameters(name: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"Write `params=optax\.LookaheadParams\.init_synced\(params\)`"):
        TrainState.create(apply_fn=None, params=PARAMS, tx=OPTIMIZERS[name]())


def test_arguments_that_an_optimizer_lacks_are_passed_by_tx_args() -> None:
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=optax.lbfgs())
    with pytest.raises(TypeError, match="required keyword-only") as caught:
        state.apply_gradients(grads=PARAMS)
    assert "tx_args={name: value}" in caught.value.__notes__[0]


def test_what_an_optimizer_does_not_see_counts_only_while_it_is_called() -> None:
    params = {"body": jnp.ones(2), "head": jnp.ones(2)}
    on_body = mask(PathContains("body"))
    tx = optax.adamw(0.1, mask=on_body)
    state = TrainState.create(apply_fn=None, params=params, tx=tx, trainable=PathContains("head"))
    state.apply_gradients(grads={"head": jnp.ones(2)})
    with pytest.raises(LiftArgumentError, match="matches no variable"):
        on_body({"head": jnp.ones(2)})

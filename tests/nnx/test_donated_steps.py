"""A step of training that donates its objects needs the memory of the step by hand, and no more."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import nnx_like as nnx

TX = optax.adam(1e-2)
X = jnp.ones((2, 64))


def _step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def _by_hand(params: Any, state: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return ((x @ params["kernel"] + params["bias"]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = TX.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def _objects() -> tuple[Any, Any]:
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def test_a_step_that_donates_its_objects_takes_the_memory_of_the_step_by_hand() -> None:
    params = {"kernel": jnp.ones((64, 64)), "bias": jnp.ones(64)}
    hand = jax.jit(_by_hand, donate_argnums=(0, 1)).lower(params, TX.init(params), X).compile().memory_analysis()
    step = nnx.jit(_step, donate_argnames=("model", "optimizer"))
    ours = step.lower(*_objects(), X).compile().memory_analysis()
    extra = 64  # the optimizer counts its steps
    assert hand.alias_size_in_bytes <= ours.alias_size_in_bytes <= hand.alias_size_in_bytes + extra
    assert ours.temp_size_in_bytes <= hand.temp_size_in_bytes + extra
    kept = nnx.jit(_step).lower(*_objects(), X).compile().memory_analysis()
    assert kept.alias_size_in_bytes == 0


def test_a_donated_step_trains_on_and_gives_up_the_arrays_before_it() -> None:
    model, optimizer = _objects()
    step = nnx.jit(_step, donate_argnames=("model", "optimizer"))
    before = model.kernel[...]
    first, second = (float(step(model, optimizer, X)) for _ in range(2))
    assert second < first
    assert optimizer.step.value == 2
    assert before.is_deleted()
    assert not model.kernel[...].is_deleted()

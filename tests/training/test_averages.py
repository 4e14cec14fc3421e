from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.filters import PathContains
from liftcore.meta import Partitioned
from liftcore.serialization import from_bytes, to_bytes
from liftcore.training import ExponentialMovingAverage


def variables(n: float, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"params": {"a": {"w": jnp.full(2, n, dtype)}, "b": Partitioned(jnp.ones(3) * n, ("x",))}, "stats": {"n": 1}}


def close(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, rtol=1e-6), a, b))


@pytest.mark.parametrize("debias", [False, True])
def test_the_numbers_are_those_of_optax(debias: bool) -> None:
    ema, tx = ExponentialMovingAverage.create(variables(1), 0.9, debias=debias), optax.ema(0.9, debias=debias)
    state = tx.init(variables(1)["params"])
    if not debias:  # that of optax begins at zero all the same
        state = state._replace(ema=variables(1)["params"])
    for n in (2.0, 5.0, 3.0):
        ema = jax.jit(lambda ema, new: ema.update(new))(ema, variables(n))
        expected, state = tx.update(variables(n)["params"], state)
        found = ema.apply_to(variables(n))
        assert close(found["params"], expected)
        assert found["stats"] == {"n": 1}
        assert jax.tree.structure(found) == jax.tree.structure(variables(n))


def test_before_the_first_update_variables_are_as_they_are() -> None:
    for debias in (False, True):
        assert close(
            ExponentialMovingAverage.create(variables(3), 0.9, debias=debias).apply_to(variables(3)), variables(3)
        )


def test_only_what_the_filter_takes_is_averaged() -> None:
    ema = ExponentialMovingAverage.create(variables(1), 0.5, only=PathContains("a")).update(variables(3))
    assert list(ema.averages["params"]) == ["a"]
    found = ema.apply_to(variables(3))["params"]
    assert (float(found["a"]["w"][0]), float(found["b"].value[0])) == (2.0, 3.0)


def test_small_steps_are_not_lost_in_small_dtypes() -> None:
    ema = ExponentialMovingAverage.create(variables(1, jnp.bfloat16), 0.999)
    for _ in range(20):
        ema = ema.update(variables(2, jnp.bfloat16))
    assert float(ema.averages["params"]["a"]["w"][0]) == pytest.approx(2 - 0.999**20, rel=1e-5)
    assert ema.apply_to(variables(2, jnp.bfloat16))["params"]["a"]["w"].dtype == jnp.bfloat16


def test_one_step_may_have_another_decay() -> None:
    ema = ExponentialMovingAverage.create(variables(1), 0.9, debias=True)
    found = ema.update(variables(1), decay=0.5).update(variables(4), decay=jnp.float32(0.75)).apply_to(variables(0))
    assert float(found["params"]["a"]["w"][0]) == pytest.approx((0.375 + 1.0) / (0.375 + 0.25))


def test_averages_are_restored_from_their_bytes() -> None:
    ema = ExponentialMovingAverage.create(variables(1), 0.9, debias=True).update(variables(2))
    restored = from_bytes(ExponentialMovingAverage.create(variables(0), 0.9, debias=True), to_bytes(ema))
    assert close(restored.apply_to(variables(0)), ema.apply_to(variables(0)))


ERRORS = {
    "decay": (
        lambda: ExponentialMovingAverage.create(variables(1), 1.0),
        "expected a number that is at least 0 and below 1 as `decay`, given 1.0",
    ),
    "decay as a text": (
        lambda: ExponentialMovingAverage.create(variables(1), "0.9"),
        "below 1 as `decay`, given '0.9'",
    ),  # type: ignore[arg-type]
    "decay of a step": (
        lambda: ExponentialMovingAverage.create(variables(1), 0.9).update(variables(1), decay="0.9"),
        r"update, decay: expected a number from 0 to 1, given '0.9'",
    ),
    "decay of a step beyond 1": (
        lambda: ExponentialMovingAverage.create(variables(1), 0.9).update(variables(1), decay=1.5),
        "update, decay: expected a number from 0 to 1, given 1.5",
    ),
    "decays of a step": (
        lambda: ExponentialMovingAverage.create(variables(1), 0.9).update(variables(1), decay=jnp.ones(2)),
        r"update, decay: .* given a float32\[2\] array",
    ),
    "integers": (
        lambda: ExponentialMovingAverage.create(variables(1), 0.9, only=True),
        "stats/n: 1 is not floating-point",
    ),
    "shape": (
        lambda: ExponentialMovingAverage.create({"params": {"w": jnp.ones(2)}}, 0.9).update(
            {"params": {"w": jnp.ones((5, 2))}}
        ),
        r"update: given params/w of shape \(5, 2\), not \(2,\)",
    ),
    "filter": (lambda: ExponentialMovingAverage.create(variables(1), 0.9, only="parms"), "matches no variable"),
    "others": (
        lambda: ExponentialMovingAverage.create(variables(1), 0.9).update({"params": {"a": {"w": jnp.ones(2)}}}),
        "missing params/b",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_averaged_is_an_error(name: str) -> None:
    use, text = ERRORS[name]
    with pytest.raises(LiftArgumentError, match=text):
        use()

"""Law 9 under `jax.disable_jit`: a debugging run gives what any other gives, with the same keys."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import liftcore
from tests.laws.test_laws import X, calls, given_variables, keys, lifted_block
from tests.lift.quick import assert_same, key
from tests.lift.table import TABLE


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("name", TABLE)
def test_law_9_without_jit_the_same(name: str, mutable: bool) -> None:
    model = calls(lifted_block(name), times=1)
    variables = given_variables(model)
    run = liftcore.apply(model, mutable=mutable)
    expected = run(variables, X, rngs=keys(10))
    with jax.disable_jit():
        assert_same(run(variables, X, rngs=keys(10)), expected)


@pytest.mark.parametrize("name", TABLE)
def test_law_9_without_jit_init_makes_the_same(name: str) -> None:
    init = liftcore.init(calls(lifted_block(name), times=1))
    expected = init(keys(), X)
    with jax.disable_jit():
        assert_same(init(keys(), X), expected)


def drawing(times: int) -> Any:
    def draw(scope: Any, x: Any) -> Any:
        for _ in range(times):
            x = x + jax.random.uniform(scope.make_rng("dropout"))
        return x

    return draw


SKIPPED = {
    "cond": lambda scope, x: liftcore.cond(drawing(1), drawing(3))(scope, True, x),
    "switch": lambda scope, x: liftcore.switch([drawing(2), drawing(1), drawing(5)])(scope, 1, x),
    "nested": lambda scope, x: liftcore.cond(SKIPPED["switch"], SKIPPED["cond"])(scope, False, x),
    "while_loop": lambda scope, x: liftcore.while_loop(
        lambda scope, x: drawing(1)(scope, x) < 0, drawing(2), split_rngs=True
    )(scope, x),
    "fori_loop": lambda scope, x: liftcore.fori_loop(
        lambda scope, index, x: drawing(2)(scope, x), split_rngs=True
    )(scope, 0, 0, x),
    "scan": lambda scope, x: liftcore.scan(
        lambda scope, x, _: (drawing(2)(scope, x), None), length=0, split_rngs=True
    )(scope, x, None)[0],
}  # fmt: skip
"""Bodies that draw more keys where they do not run than where they do."""


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("name", SKIPPED)
def test_what_does_not_run_counts_its_draws_all_the_same(name: str, mutable: bool) -> None:
    def model(scope: Any, x: Any) -> Any:
        return drawing(1)(scope, SKIPPED[name](scope, x))

    run = liftcore.apply(model, mutable=mutable)
    expected = run({}, 0.5, rngs={"dropout": key(3)})
    with jax.disable_jit():
        assert_same(run({}, 0.5, rngs={"dropout": key(3)}), expected)

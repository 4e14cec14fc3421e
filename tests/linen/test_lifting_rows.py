"""What holds for every lifted transformation alike, over functions of a module; see `rows`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes
from tests.linen.rows import ROWS, STACKED, UNCHANGED

rows = pytest.mark.parametrize("row", ROWS)
unchanged = pytest.mark.parametrize("row", UNCHANGED)
stacked = pytest.mark.parametrize("row", STACKED)

RULES = ("custom_vjp", "custom_jvp")
"""Rows with a rule, which is traced too."""

READERS = ("custom_vmap",)
"""Rows whose function writes nothing."""

RUNS: list[str] = []


class Block(nn.Module):
    """Makes a submodule and variables, draws, and writes."""

    writes: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS.append("block")
        scale = self.param("scale", nn.initializers.normal(), (3,))
        offset = self.variable("consts", "offset", lambda: jnp.full((), 0.5))
        seen = self.variable("state", "seen", lambda: jnp.zeros(()))
        if self.writes and self.is_mutable_collection("state"):
            seen.value += 1
        return jnp.tanh(nn.Dense(3)(x) * (1 + scale)) + offset.value


class Model(nn.Module):
    """Runs a block under rows, the outermost first, between layers of its own."""

    rows: tuple[str, ...] = ()
    writes: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        fn: Any = Block.__call__
        for row in reversed(self.rows):
            fn = functools.partial(ROWS[row], fn)
        return nn.Dense(3)(fn(Block(self.writes, name="block"), nn.Dense(3)(x)))


def models(row: str) -> tuple[Model, Model]:
    """A model with a row, and the same without."""
    writes = row not in READERS
    return Model((row,), writes), Model((), writes)


def runs(fn: Any, *args: Any) -> int:
    """How often the body runs."""
    RUNS.clear()
    fn(*args)
    return len(RUNS)


def loss(model: Any, variables: Any, x: Any) -> Any:
    y, mutated = model.apply(variables, x, mutable=["state"])
    return (y**2).sum(), mutated


@unchanged
def test_variables_are_those_of_the_function_itself(row: str) -> None:
    model, plain = models(row)
    y, variables = model.init_with_output(KEY, X)
    expected_y, expected = plain.init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)


@unchanged
def test_values_writes_and_gradients_are_those_of_the_function_itself(row: str) -> None:
    model, plain = models(row)
    variables = plain.init(KEY, X)
    run = loss
    if row != "while_loop":  # it has no derivative in reverse
        run = jax.value_and_grad(loss, (1, 2), has_aux=True)
    assert_close(run(model, variables, X), run(plain, variables, X))


@stacked
def test_variables_are_made_along_new_axes(row: str) -> None:
    axes = (2, 2) if row == "remat_scan" else (2,)
    model, plain = models(row)
    variables, expected = model.init(KEY, X), plain.init(KEY, X)
    for collection in ("params", "state"):
        inside = expected[collection]["block"]
        assert shapes(variables[collection]["block"]) == jax.tree.map(lambda leaf: (*axes, *leaf.shape), inside)
    kernels = np.reshape(variables["params"]["block"]["Dense_0"]["kernel"], (-1, 3, 3))
    assert all((kernels[0] != other).all() for other in kernels[1:])


@rows
def test_body_runs_once_in_init_apply_and_gradient(row: str) -> None:
    model, _ = models(row)
    once = 2 if row in RULES else 1
    variables = model.init(KEY, X)
    assert runs(model.init, KEY, 2 * X) in (once, 0)  # 0 is a cached call of `jit`
    assert runs(loss, model, variables, X) == once
    if row != "while_loop":
        assert runs(jax.grad(loss, 1, has_aux=True), model, variables, X) in (once, 0)

"""`error_if`: it raises at run time, alone and inside of transformations, and changes nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
from liftcore.errors import LiftArgumentError

X = jnp.arange(3.0)
FAILED = (RuntimeError, ValueError)
"""The errors of JAX for a callback that raises one depend on how the program is run."""


def checked(x: Any) -> Any:
    return eqx.error_if(x, x < 0, "it is negative")


def total(x: Any) -> Any:
    return (checked(x) ** 2).sum()


def looped(x: Any) -> Any:
    return jax.lax.scan(lambda carry, row: (carry + checked(row), carry), 0.0, x)[0]


RUNS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "alone": (checked, X),
    "jit": (eqx.filter_jit(checked), X),
    "vmap": (eqx.filter_vmap(checked), X),
    "jit of vmap": (eqx.filter_jit(eqx.filter_vmap(checked)), X),
    "grad": (eqx.filter_grad(total), 2 * X),
    "jit of grad": (eqx.filter_jit(eqx.filter_grad(total)), 2 * X),
    "hessian": (lambda x: jnp.diag(jax.hessian(total)(x)) * x, 2 * X),
    "checkpoint": (eqx.filter_grad(eqx.filter_checkpoint(total)), 2 * X),
    "scan": (looped, 3.0),
    "grad of scan": (jax.grad(looped), jnp.ones(3)),
    "lifted scan": (
        lambda x: liftcore.apply(liftcore.scan(lambda s, c, x: (c + checked(x), None)))({}, 0.0, x)[0],
        3.0,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_an_error_is_raised_where_the_condition_holds(name: str) -> None:
    run, expected = RUNS[name]
    np.testing.assert_allclose(run(X), expected)
    with pytest.raises(FAILED, match="it is negative"):
        jax.block_until_ready(run(X - 1))


def test_all_leaves_are_returned_and_one_of_several_texts_is_chosen() -> None:
    tree = {"x": X, "key": jax.random.key(0), "name": "net"}
    run = eqx.filter_jit(lambda tree, pred, index: eqx.branched_error_if(tree, pred, index, ["a", "b"]))
    assert eqx.tree_equal(run(tree, jnp.array(False), jnp.array(0)), tree)
    with pytest.raises(FAILED, match="RuntimeError: b"):
        jax.block_until_ready(run(tree, jnp.array(True), jnp.array(1))["x"])


def test_a_condition_that_is_known_is_checked_while_tracing() -> None:
    with pytest.raises(RuntimeError, match="it fails"):
        jax.jit(lambda x: eqx.error_if(x, True, "it fails"))(X)
    assert eqx.error_if(X, False, "it fails") is X


def test_without_an_array_nothing_could_be_checked() -> None:
    with pytest.raises(LiftArgumentError, match="error_if, x: expected a pytree with an array of numbers, given 'a'"):
        eqx.error_if("a", True, "it fails")

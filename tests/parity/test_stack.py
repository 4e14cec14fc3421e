"""`Stack` against `flax.linen.scan` of the same block: names and initial values bit for bit, the same numbers after."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from linen_like import Stack, stack_layers, unstack_layers
from tests.layers.bits import assert_same_bits, quick

linen = pytest.importorskip("flax.linen")

RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
X = jax.random.normal(jax.random.key(2), (4, 3))
MUTABLE = ["batch_stats", "intermediates"]
MODES = pytest.mark.parametrize("mode", ["scan", "loop", "jit"])


def block(nn: Any, in_scan: bool) -> Any:
    """A layer with parameters, statistics, draws and sown values, as each library's loop takes it."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, *rest: Any) -> Any:
            y = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(3)(x))
            self.sow("intermediates", "mean", y.mean())
            x = x + nn.Dropout(0.5, deterministic=False)(nn.tanh(y))
            return (x, None) if in_scan else x

    return Block


class Scanned(linen.Module):  # type: ignore[misc]
    """What `Stack` is, with Linen."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        loop = linen.scan(
            block(linen, True),
            variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=3,
            check_constancy_invariants=False,
        )
        return loop(name="block")(x, None)[0]


@MODES
def test_a_stack_is_linens_scan_of_the_block(mode: str) -> None:
    stack = Stack(block(linen_like, False)(), 3, mode)
    variables = quick(Scanned().init)(RNGS, X)
    assert_same_bits(quick(stack.init)(RNGS, X), variables)
    ours, expected = (one.apply(variables, X, rngs=RNGS, mutable=MUTABLE) for one in (stack, Scanned()))
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    assert all(map(jnp.allclose, jax.tree.leaves(ours), jax.tree.leaves(expected)))


def test_variables_of_linens_loop_over_blocks_are_those_of_a_stack() -> None:
    class Looped(linen.Module):  # type: ignore[misc]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = block(linen, False)()(x)
            return x

    variables = quick(Looped().init)(RNGS, X)
    stacked = stack_layers(variables, "Block_{}", "block")
    stack = Stack(block(linen_like, False)(), 3)
    assert jax.tree.structure(jax.eval_shape(stack.init, RNGS, X)) == jax.tree.structure(stacked)
    assert_same_bits(unstack_layers(stacked, "block", "Block_{}"), variables)


def test_a_checkpoint_of_linens_loop_computes_the_same_in_a_stack() -> None:
    class Trained(linen.Module):  # type: ignore[misc]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for number in range(3):
                x = x + linen.tanh(linen.Dense(3, name=f"Dense_{number}")(x))
            return x

    class Layer(linen_like.Module):
        @linen_like.compact
        def __call__(self, x: Any) -> Any:
            return x + linen_like.tanh(linen_like.Dense(3, name="dense")(x))

    variables = quick(Trained().init)(RNGS, X)
    stacked = stack_layers(variables, "Dense_{}", "block/dense")
    assert jnp.allclose(Stack(Layer(), 3).apply(stacked, X), Trained().apply(variables, X))

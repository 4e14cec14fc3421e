"""Every layer under transformations: mapped, looped over, computed again, and compiled, it is the layer itself.

One program for a row holds the layer once for each element, and under each transformation. All of it is traced while
JAX looks for leaked tracers. A product over elements may add in another order than one for each element, and XLA fuses
a program otherwise than operations one by one: so numbers agree but for their last bits, while trees, shapes and dtypes
agree. To leave no more to rounding than that, `float32` inputs are `float64` here; the tests of parity compare all
bits.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from tests.layers.bits import assert_close, quick
from tests.layers.keys import quick_sequences
from tests.layers.layered import Layered
from tests.layers.row import Row
from tests.layers.structure import BRIEF, FIRST

LANES = 2


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def element(tree: Any, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number], tree)


def elements_of(args: Any) -> Any:
    """The arguments along a new axis, with other floating-point numbers in each element."""

    def spread(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return np.stack([leaf] * LANES)
        wide = leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf
        return np.stack([wide + np.asarray(0.25 * i, wide.dtype) for i in range(LANES)])

    return jax.tree.map(spread, args)


def mapped(call: Callable[..., Any]) -> Callable[..., Any]:
    return nn.vmap(call, variable_axes={True: 0}, split_rngs=True)


def scanned(call: Callable[..., Any]) -> Callable[..., Any]:
    def step(mdl: Any, count: Any, args: Any) -> Any:
        return count + 1, call(mdl, *args)

    loop = nn.scan(step, variable_axes={True: 0}, split_rngs=True)
    return lambda mdl, *args: loop(mdl, 0, args)[1]


def keys_of_elements() -> list[dict[str, Any]]:
    """What a lift makes of the sequences when it splits them."""
    keys = {name: jax.random.split(key, LANES) for name, key in quick_sequences().items()}
    return [element(keys, number) for number in range(LANES)]


def program(row: Row, *elements: Any) -> dict[str, Any]:
    """For each law what must be equal: the layer under a transformation, and what it is without."""
    plain, rngs, keys = Layered(row), quick_sequences(), keys_of_elements()
    singles = [plain.both(keys[i], *element(elements, i)) for i in range(LANES)]
    one = (singles[0][0][1], keys[0], *element(elements, 0))
    shared = [singles[0][1], *(plain.apply(*one[:2], *element(elements, i)) for i in range(1, LANES))]
    over = (None, None, *(0 for _ in elements))
    return {
        "jit": (singles[0], singles[0]),  # the left one is replaced by that without
        "jax.vmap": (jax.vmap(plain.apply, over)(one[0], keys[0], *elements), stacked(shared)),
        "nn.vmap": (Layered(row, mapped).both(rngs, *elements), stacked(singles)),
        "nn.scan": (Layered(row, scanned).both(rngs, *elements), stacked(singles)),
        "nn.remat": (Layered(row, nn.remat).gradients(*one), plain.gradients(*one)),
    }


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """JAX's check, which collects garbage again and again: only what is made meanwhile."""
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("name", BRIEF)
def test_a_transformed_layer_is_the_layer(name: str) -> None:
    row = BRIEF[name]
    elements, eager = elements_of(row.args), Layered(row)
    with jax.enable_x64(True):
        with checking_leaks():
            laws = quick(lambda *elements: program(row, *elements))(*elements)
        (made, applied), key = laws["jit"][1], keys_of_elements()[0]
        first = eager.init(key, *element(elements, 0)) if name in FIRST else made
        laws["jit"] = (first, eager.apply(made[1], key, *element(elements, 0))), (made, applied)
    for law, (ours, expected) in laws.items():
        assert_close(ours, expected, law)

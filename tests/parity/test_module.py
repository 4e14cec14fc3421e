"""Modules written in many styles against `flax.linen`: the same names, values and outputs, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from tests.layers.bits import assert_same_bits
from tests.parity.module_styles import STYLES

linen = pytest.importorskip("flax.linen")

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def results(nn: Any, name: str) -> Any:
    """What a style's model makes in `init` and computes in `apply`, then again with what that wrote."""
    build = STYLES[name]
    call = dict(build.call)  # type: ignore[attr-defined]
    model = build(nn)
    names = call.pop("rngs", [])
    keys = {name: jax.random.key(number) for number, name in enumerate(names, 1)}
    y, variables = model.init_with_output({"params": jax.random.key(0), **keys}, X)
    first = model.apply(variables, X, rngs=keys or None, **call)
    if "mutable" not in call:
        return y, variables, first
    return y, variables, first, model.apply({**variables, **first[1]}, X, rngs=keys or None, **call)


@pytest.mark.parametrize("name", STYLES)
def test_style_is_that_of_linen(name: str) -> None:
    ours, theirs = results(linen_like, name), results(linen, name)
    assert_same_bits(ours, theirs)

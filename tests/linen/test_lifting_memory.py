"""What is compiled is kept, and what it was compiled with is not."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp

import linen_like as nn


class Shares(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.inner(nn.Dense(2)(x))


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = nn.Dense(2)
        x = nn.jit(Shares)(dense)(x)  # a module that is bound elsewhere, in a field
        x = nn.jit(lambda mdl, dense, x: dense(x))(self, dense, x)  # and as an argument
        return nn.jit(nn.Dense)(2)(x)


def test_compiled_functions_keep_no_arrays_alive() -> None:
    x = jnp.ones((1, 2))
    variables = Model().init(jax.random.key(0), x)
    Model().apply(variables, x)
    Model().apply(variables, x, mutable=["params"])
    arrays = [weakref.ref(leaf) for leaf in jax.tree.leaves((variables, x))]
    del variables, x
    gc.collect()
    assert [array() for array in arrays] == [None] * len(arrays)


def test_compiled_functions_keep_no_closures_alive() -> None:
    class Closes(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            big = jnp.ones(3) * 2
            arrays.append(weakref.ref(big))
            return nn.jit(lambda mdl, x: x + big)(self, x)

    arrays: list[Any] = []
    Closes().apply({}, jnp.ones(3))
    gc.collect()
    assert arrays[0]() is None

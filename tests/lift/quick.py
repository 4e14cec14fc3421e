"""Small tools that make the tests of lifts fast: a cheap kind of PRNG key, one compilation for many results.

The keys of `key` are typed keys like any others, to jax and to liftcore. But XLA needs a while for each of the twenty
rounds of a real one, and the tests of laws draw thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np


def _mix(state: Any, number: Any) -> Any:
    mixed = (state * jnp.uint32(0x9E3779B1)) ^ (number * jnp.uint32(0x85EBCA6B) + jnp.uint32(0xC2B2AE35))
    return mixed ^ (mixed >> 15)


_CHEAP = jax.extend.random.define_prng_impl(
    key_shape=(1,),
    seed=lambda number: jnp.asarray(number).astype(jnp.uint32).reshape(1),
    split=lambda key, shape: _mix(key, jnp.arange(77, 77 + math.prod(shape), dtype=jnp.uint32)).reshape(*shape, 1),
    random_bits=lambda key, width, shape: _mix(key, jnp.arange(math.prod(shape), dtype=jnp.uint32)).reshape(shape),
    fold_in=lambda key, number: _mix(key, jnp.asarray(number).astype(jnp.uint32)),
    name="cheap",
    tag="cheap",
)


def key(seed: int) -> Any:
    """A cheap typed key."""
    return jax.random.key(seed, impl=_CHEAP)


def uniform(key: Any, shape: tuple[int, ...] = (3,)) -> Any:
    """An initializer: numbers between -1 and 1."""
    return jax.random.uniform(key, shape, minval=-1.0)


def compiled(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, as one program."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})(*args)


def assert_same(ours: Any, theirs: Any, exact: bool = False) -> None:
    """Checks that two pytrees agree: up to XLA's rounding where they are floats, else bit for bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, mine), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        place = jax.tree_util.keystr(path)
        mine, other = (jax.random.key_data(leaf) if is_key(leaf) else np.asarray(leaf) for leaf in (mine, other))
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), place
        if exact or mine.dtype.kind != "f":
            np.testing.assert_array_equal(mine, other, err_msg=place)
        else:
            np.testing.assert_allclose(mine, other, rtol=3e-5, atol=3e-5, err_msg=place)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

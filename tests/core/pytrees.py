"""Generated pytrees of any Python objects, for tests of what splits them and puts them together again."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree with one static field."""

    weight: Any
    act: Any
    size: Any = dataclasses.field(default=1, metadata={"static": True})


class Pair(NamedTuple):
    first: Any
    second: Any


def double(x: Any) -> Any:
    return 2 * x


STATIC = st.one_of(
    st.sampled_from([jnp.tanh, double, len, int, math.nan, 0.0, -0.0, 1, 1.0, True, "train", b"x", 2j]),
    st.text(max_size=3),
    st.integers(),
    st.floats(),
    st.booleans(),
)
"""Leaves that are no arrays."""

ARRAYS = st.sampled_from([jnp.arange(3.0), jnp.ones((2, 2)), np.arange(2), np.float32(1.5), np.int8(3), np.ones(())])
LEAVES = st.one_of(STATIC, ARRAYS, st.none())


def _nodes(below: Any) -> Any:
    return st.one_of(
        st.lists(below, max_size=3),
        st.tuples(below, below),
        st.dictionaries(st.sampled_from(["a", "b", "c/d"]), below, max_size=3),
        st.builds(Pair, below, below),
        st.builds(Layer, below, below, st.sampled_from([1, "x"])),
    )


PYTREES = st.recursive(LEAVES, _nodes, max_leaves=8)
"""Pytrees of dicts, lists, tuples, named tuples, dataclasses, None, texts, functions, numbers and arrays."""


def same(one: Any, other: Any) -> bool:
    """Whether two pytrees have equal structures, types and values; NaN equals itself, the zeros differ."""
    ones, structure = jax.tree.flatten(one)
    others, its = jax.tree.flatten(other)
    return structure == its and all(map(_same, ones, others))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, jax.Array | np.ndarray | np.generic):
        return bool(np.array_equal(one, other)) and jnp.result_type(one) == jnp.result_type(other)
    if isinstance(one, float):
        return type(other) is float and one.hex() == other.hex()
    return type(one) is type(other) and bool(one == other)

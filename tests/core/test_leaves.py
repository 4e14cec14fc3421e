"""Leaves of a pytree, taken out and put back."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.pytrees import is_array, split_leaves

TREES: dict[str, Any] = {
    "nested": {"rest": [1, "text", (np.float32(3), None)], "x": np.ones(2)},
    "array": jnp.ones(3),
    "flag": True,
    "nothing": None,
    "empty": {"a": [], "b": ()},
}


@pytest.mark.parametrize("name", TREES)
def test_what_is_split_joins_again(name: str) -> None:
    chosen, others = split_leaves(TREES[name], is_array)
    assert all(map(is_array, chosen))
    assert not any(map(is_array, others.leaves))
    joined = others.join(chosen)
    assert split_leaves(joined, is_array)[1] == others
    assert str(joined) == str(TREES[name])


def test_other_values_take_both_places_in_order() -> None:
    chosen, others = split_leaves([1, "a", 2, "b"], lambda leaf: isinstance(leaf, int))
    assert (chosen, others.leaves) == ([1, 2], ("a", "b"))
    assert others.join([{"x": 3}, None]) == [{"x": 3}, "a", None, "b"]
    assert others.join(chosen, ["c", "d"]) == [1, "c", 2, "d"]


def test_one_answer_for_each_leaf() -> None:
    chosen, others = split_leaves((1, (2, 3)), [True, False], is_leaf=lambda one: one == (2, 3))
    assert (chosen, others.leaves) == ([1], ((2, 3),))
    with pytest.raises(ValueError, match="shorter"):
        split_leaves((1, 2), [True])


def test_the_others_have_a_hash_and_compare() -> None:
    one, same, other = (split_leaves([1.0, mode], is_array)[1] for mode in ("train", "train", "eval"))
    assert one == same != other
    assert hash(one) == hash(same)

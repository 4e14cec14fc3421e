"""Every layer on batches of no, of one and of five examples: shapes as expected, and no number that is none.

The batch is the first axis of all arguments, and of arrays among the keyword arguments that have its size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.errors import LiftArgumentError
from tests.layers.bits import quick
from tests.layers.keys import quick_sequences
from tests.layers.layered import Layered
from tests.layers.row import Row
from tests.layers.structure import BRIEF
from tests.layers.table import TABLE

UNBATCHED = {
    "conv, one example",
    "dense general, all axes",
    "dense general, batch",
    "dense general, first axis",
    "dense general, list of features",
    "dense general, two of batch",
    "dense, one example",
    "einsum, kernel with more dimensions",
    "einsum, shared dimension",
    "embed, one index",
    "layer norm, all axes",
    "max pool, one example",
    "rnn, one sequence",
    "attention, mask for each head",  # has as many heads as examples
}
"""Rows whose first axis is no batch: parameters depend on its size, or it is a place or a step."""

BATCHED = {name: row for name, row in BRIEF.items() if name not in UNBATCHED}

NOT_FINITE = {"embed", "max pool, pairs"}
"""An index beyond the table, which gives NaN, and a window of padding alone, of which nothing is the largest."""


def resized(row: Row, size: int) -> Row:
    """The row with another number of examples, the same ones again and again."""
    first, *_ = jax.tree.leaves(row.args)

    def fitted(leaf: Any) -> Any:
        if np.shape(leaf)[:1] != first.shape[:1]:
            return leaf
        return np.take(leaf, np.arange(size) % len(leaf), axis=0)

    return row._replace(inputs=jax.tree.map(fitted, row.args), call=jax.tree.map(fitted, row.call))


def outcome(row: Row) -> Any:
    """The variables, results, new state and gradients of a row."""
    layer, rngs = Layered(row), quick_sequences()
    variables = layer.init(rngs, *row.args)[1]
    return variables, layer.gradients(variables, rngs, *row.args)


def shapes(tree: Any) -> list[Any]:
    return [np.array(leaf.shape) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", BATCHED)
def test_any_number_of_examples_has_a_result(name: str) -> None:
    sizes, row = [0, 1, 5], BATCHED[name]

    def outcomes() -> list[Any]:
        return [outcome(resized(row, size)) for size in sizes]

    try:
        found = quick(outcomes)()
    except LiftArgumentError as error:
        if "nothing to average over" not in str(error):  # a mean of no examples would be NaN for ever
            raise
        sizes.remove(0)
        found = quick(outcomes)()
    else:
        for none, one, some in zip(*map(shapes, found), strict=True):
            np.testing.assert_array_equal(some - none, 5 * (one - none))
    for size, tree in zip(sizes, found, strict=True):
        for path, leaf in jax.tree.leaves_with_path(tree):
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and name not in NOT_FINITE:
                assert np.isfinite(np.asarray(leaf, np.float64)).all(), f"{size} examples: {jax.tree_util.keystr(path)}"


def test_every_layer_is_asked() -> None:
    assert {row.layer for row in BATCHED.values()} == {row.layer for row in BRIEF.values()}
    assert not UNBATCHED - set(TABLE), "rows that are no more"

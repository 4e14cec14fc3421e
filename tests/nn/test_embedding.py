from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ScopeParamShapeError
from tests.layers.row import array

TABLE = array(4, 3)


def test_lookup_counts_from_both_ends_and_gives_nan_past_them() -> None:
    found = nn.Embedding(jnp.asarray(TABLE)).lookup(np.array([[0, -1], [3, 4]]))
    np.testing.assert_array_equal(found, np.stack([TABLE[[0, 3]], [TABLE[3], np.full(3, np.nan)]]))


def test_attend_is_the_product_with_all_vectors() -> None:
    query = array(2, 3)
    np.testing.assert_allclose(nn.Embedding(jnp.asarray(TABLE)).attend(query), query @ TABLE.T, rtol=1e-5)


def test_one_table_serves_both_ends_of_a_model_and_passes_through_jit() -> None:
    def logits(scope: liftcore.Scope, tokens: jax.Array) -> jax.Array:
        table = nn.embedding(scope, 4, 3)
        return jax.jit(lambda table, tokens: table.attend(table.lookup(tokens)))(table, tokens)

    found = liftcore.apply(logits)({"params": {"embedding": TABLE}}, jnp.array([1, 2]))
    np.testing.assert_allclose(found, TABLE[[1, 2]] @ TABLE.T, rtol=1e-5)


def test_bad_indices_and_queries_are_refused() -> None:
    scope = liftcore.bind({"params": {"words": {"embedding": TABLE}}})
    table = nn.embedding(scope.push("words"), 4, 3)
    with pytest.raises(
        LiftArgumentError, match=r"embedding at /words: expected indices of an integer dtype, given float32"
    ):
        table.lookup(array(2))
    for query in (array(2, 4), np.float32(1)):
        message = f"attend of embedding at /words: expected a query of shape (..., 3), given {query.shape}"
        with pytest.raises(LiftArgumentError, match=re.escape(message)):
            table.attend(query)


def test_indices_may_be_of_any_shape_and_of_plain_python() -> None:
    table = nn.Embedding(jnp.asarray(TABLE))
    assert [table.lookup(given).shape for given in (2, [1, 2], np.zeros((0, 2), np.int8))] == [(3,), (2, 3), (0, 2, 3)]


def test_table_of_one_vector_or_none_serves_as_any_other() -> None:
    one = nn.Embedding(jnp.asarray(TABLE[:1]))
    assert [one.lookup(given).shape for given in (0, [0, 0], np.zeros((0, 2), np.int8))] == [(3,), (2, 3), (0, 2, 3)]
    for sizes in ((0, 3), (4, 0)):
        found, _ = liftcore.init(lambda scope, sizes=sizes: nn.embedding(scope, *sizes))(jax.random.key(0))
        assert found.table.shape == sizes


def test_sizes_of_a_table_are_checked() -> None:
    with pytest.raises(LiftArgumentError, match=r"num_embeddings of embedding at /: expected an int of at least 0"):
        liftcore.init(nn.embedding)(jax.random.key(0), -2, 3)


def test_table_of_other_sizes_is_refused_with_both_shapes() -> None:
    applied = liftcore.apply(lambda scope: nn.embedding(scope.push("words"), 5, 3).lookup(0))
    message = (
        r'param "embedding" at /words: the stored value has shape \(4, 3\), but its initializer makes shape \(5, 3\)\.'
    )
    with pytest.raises(ScopeParamShapeError, match=message):
        applied({"params": {"words": {"embedding": TABLE}}})

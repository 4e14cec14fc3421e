"""Flat dicts and nested ones."""

from __future__ import annotations

import copy
import pickle

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftcore.frozen_dict import FrozenDict
from liftcore.traverse_util import empty_node, flatten_dict, path_aware_map, unflatten_dict

TREE = {"foo": 1, "bar": {"a": 2, "b": {}}}
KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.dictionaries(
    KEYS, st.recursive(st.integers(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8), max_size=3
)


def test_flatten_leaves_empty_dicts_out_unless_asked():
    assert flatten_dict(TREE) == {("foo",): 1, ("bar", "a"): 2}
    assert flatten_dict(TREE, keep_empty_nodes=True) == {("foo",): 1, ("bar", "a"): 2, ("bar", "b"): empty_node}
    assert flatten_dict({}, keep_empty_nodes=True) == {}


def test_flatten_joins_keys_by_the_separator():
    assert flatten_dict(TREE, sep="/") == {"foo": 1, "bar/a": 2}


def test_flatten_stops_where_is_leaf_says():
    assert flatten_dict(TREE, is_leaf=lambda path, tree: path == ("bar",)) == {("foo",): 1, ("bar",): TREE["bar"]}
    assert flatten_dict(TREE, is_leaf=lambda path, tree: tree == {}) == {("foo",): 1, ("bar", "a"): 2, ("bar", "b"): {}}


def test_flatten_takes_frozen_dicts_and_keeps_the_order():
    assert list(flatten_dict(FrozenDict({"b": {"x": 1}, "a": 2}))) == [("b", "x"), ("a",)]


def test_flatten_refuses_what_is_no_mapping():
    with pytest.raises(TypeError, match=r"flatten_dict: expected a mapping, not list\."):
        flatten_dict([1])


@given(TREES, st.sampled_from([None, "/"]))
def test_unflatten_is_the_inverse_of_flatten(tree, sep):
    assert unflatten_dict(flatten_dict(tree, keep_empty_nodes=True, sep=sep), sep=sep) == tree


@pytest.mark.parametrize("flat", [{("a",): 1, ("a", "b"): 2}, {("a", "b"): 2, ("a",): 1}, {("a",): {}, ("a", "b"): 2}])
def test_unflatten_refuses_a_path_below_a_leaf(flat):
    with pytest.raises(ValueError, match=r"\('a', 'b'\) is below the leaf \('a',\)\. Drop one of them\."):
        unflatten_dict(flat)


def test_unflatten_refuses_an_empty_path():
    with pytest.raises(ValueError, match="a path is empty"):
        unflatten_dict({(): 1})


def test_there_is_one_empty_node():
    flat = flatten_dict(TREE, keep_empty_nodes=True)
    assert unflatten_dict(jax.tree.map(lambda x: -x, flat)) == {"foo": -1, "bar": {"a": -2, "b": {}}}
    assert copy.deepcopy(empty_node) is empty_node
    assert pickle.loads(pickle.dumps(empty_node)) is empty_node
    assert repr(empty_node) == "empty_node"


@given(TREES)
def test_path_aware_map_sees_each_path_and_keeps_empty_dicts(tree):
    assert path_aware_map(lambda path, leaf: leaf, tree) == tree
    flat = flatten_dict(path_aware_map(lambda path, leaf: path, tree))
    assert all(path == leaf for path, leaf in flat.items())

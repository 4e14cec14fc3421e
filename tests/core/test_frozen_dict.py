"""The immutable dict, and the functions that take frozen and plain dicts alike."""

from __future__ import annotations

import copy as python_copy
import pickle

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftcore.frozen_dict import FrozenDict, copy, freeze, pop, pretty_repr, unfreeze

KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.dictionaries(
    KEYS, st.recursive(st.integers(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8), max_size=3
)


def test_it_cannot_be_written():
    frozen = FrozenDict(a={"b": 1})
    with pytest.raises(TypeError, match="does not support item assignment"):
        frozen["c"] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        frozen["a"]["b"] = 2
    with pytest.raises(TypeError, match="does not support item deletion"):
        del frozen["a"]  # type: ignore[attr-defined]


def test_it_shares_no_dict_with_what_it_was_made_of():
    plain = {"a": {"b": 1}}
    frozen = freeze(plain)
    plain["a"]["b"] = 2
    thawed = frozen.unfreeze()
    thawed["a"]["b"] = 3
    frozen.copy({"new": thawed["a"]})
    assert frozen == {"a": {"b": 1}}


def test_nested_dicts_come_out_frozen():
    frozen = freeze({"a": {"b": {"c": 1}}})
    assert isinstance(frozen["a"], FrozenDict)
    assert isinstance(frozen.get("a"), FrozenDict)
    assert [type(value) for value in frozen.values()] == [FrozenDict]
    assert [type(value) for _, value in frozen.items()] == [FrozenDict]
    assert frozen.get("missing", 5) == 5


@given(TREES, TREES)
def test_it_is_equal_and_hashed_by_its_items(a, b):
    assert freeze(a) == a
    assert (freeze(a) == freeze(b)) == (a == b)
    if a == b:
        assert hash(freeze(a)) == hash(freeze(dict(reversed(b.items()))))


def test_a_value_that_has_no_hash_gives_it_none():
    with pytest.raises(TypeError, match="unhashable"):
        hash(freeze({"a": jnp.zeros(2)}))


@given(TREES)
def test_unfreeze_is_the_inverse_of_freeze(tree):
    thawed = unfreeze(freeze(tree))
    assert thawed == tree
    assert type(thawed) is dict
    assert all(not isinstance(value, FrozenDict) for value in thawed.values())
    assert list(thawed) == list(tree)


def test_unfreeze_reaches_frozen_dicts_inside_plain_ones():
    assert type(unfreeze({"a": freeze({"b": 1})})["a"]) is dict
    assert unfreeze(3) == 3


@pytest.mark.parametrize("kind", [dict, freeze])
def test_copy_and_pop_keep_the_kind_and_change_nothing(kind):
    tree = kind({"a": {"b": 1}, "c": 2})
    added = copy(tree, freeze({"d": {"e": 3}}))
    assert type(added) is type(tree)
    assert added == {"a": {"b": 1}, "c": 2, "d": {"e": 3}}
    assert copy(tree) == tree
    rest, value = pop(tree, "a")
    assert type(rest) is type(tree)
    assert (rest, value) == ({"c": 2}, {"b": 1})
    assert tree == {"a": {"b": 1}, "c": 2}
    with pytest.raises(KeyError, match="missing"):
        pop(tree, "missing")


def test_copy_of_a_plain_dict_shares_no_dict():
    plain = {"a": {"b": 1}}
    copy(plain)["a"]["b"] = 2
    assert plain == {"a": {"b": 1}}


def test_pretty_repr_indents():
    text = "{\n  a: {\n    b: [1,\n     2],\n  },\n  c: {},\n}"

    class TwoLines:
        def __repr__(self):
            return "[1,\n 2]"

    tree = {"a": {"b": TwoLines()}, "c": {}}
    assert pretty_repr(tree, 2) == text
    assert pretty_repr(freeze(tree), 2) == f"FrozenDict({text})"
    assert repr(freeze({})) == "FrozenDict({})"
    assert pretty_repr("x") == "'x'"


def test_it_is_a_pytree_with_key_paths():
    frozen = freeze({"b": {"x": 1}, "a": 2})
    paths, _ = jax.tree_util.tree_flatten_with_path(frozen)
    assert [(jax.tree_util.keystr(path), leaf) for path, leaf in paths] == [("['a']", 2), ("['b']['x']", 1)]
    assert jax.tree.map(lambda x: x + 1, frozen) == freeze({"b": {"x": 2}, "a": 3})
    assert jax.tree.structure(frozen) == jax.tree.structure(freeze({"a": 0, "b": {"x": 0}}))
    assert isinstance(jax.jit(lambda tree: tree)(frozen), FrozenDict)


def test_it_survives_copy_and_pickle():
    frozen = freeze({"a": {"b": 1}})
    for again in (pickle.loads(pickle.dumps(frozen)), python_copy.deepcopy(frozen), python_copy.copy(frozen)):
        assert isinstance(again, FrozenDict)
        assert again == frozen

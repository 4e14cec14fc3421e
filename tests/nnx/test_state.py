"""States: views, order, copies, pytrees, and what their errors say."""

import copy
import pickle
import types

import jax
import jax.numpy as jnp
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError, UnmatchedFilterError
from nnx_like.statelib import FlatState, State, create_path_filters, diff, state_over
from nnx_like.variablelib.kinds import BatchStat, Param


def made():
    return State({"encoder": {"kernel": Param(jnp.ones(2)), "mean": BatchStat(2)}, "bias": Param(3)})


# --- nested -----------------------------------------------------------------------------------------------------------


def test_what_lies_below_is_a_view():
    state = made()
    state.encoder.mean = 5
    state["encoder"]["layers"] = State({0: 1})
    state.encoder.layers[1] = 2
    del state.encoder.kernel
    assert state.raw_mapping["encoder"] == {"mean": 5, "layers": {0: 1, 1: 2}}


def test_the_outermost_mapping_is_copied():
    raw = {"a": {"b": 1}, "c": 2}
    state = State(raw)
    state.c = state.a.b = 3
    assert raw == {"a": {"b": 3}, "c": 2}
    assert state_over(raw).raw_mapping is raw


def test_a_missing_key_is_named_with_those_that_are_there():
    state = State({"kernel": 1, 0: 2})
    for ask in (lambda: state.kernle, lambda: delattr(state, "kernle")):
        with pytest.raises(AttributeError, match=r"no key 'kernle'.*\['kernel', 0\]"):
            ask()
    with pytest.raises(KeyError):
        state["kernle"]
    assert "kernel" in dir(state)
    assert "kernle" not in state


def test_a_key_that_the_class_has_is_asked_for_as_an_item():
    state = State({"map": 1})
    state.filter = 2
    assert (state["map"], state["filter"]) == (1, 2)
    assert callable(state.map)
    assert callable(state.filter)


def test_states_of_equal_leaves_are_equal_however_they_are_made():
    one, other = State({"a": State({"b": 1})}), State({"a": {"b": 1}})
    assert one == other == {"a": {"b": 1}}
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert one != State({"a": {"b": 2}})
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_copies_are_apart():
    state = made()
    shallow, deep, pickled = copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))
    state.new = 1
    for other in (shallow, deep, pickled):
        assert list(other) == ["encoder", "bias"]
        assert type(other.encoder.mean) is BatchStat
    assert shallow.bias is state.bias
    assert deep.bias is not state.bias
    tied = State(dict.fromkeys("ab", state.bias))
    assert (again := pickle.loads(pickle.dumps(tied))).a is again.b


def test_a_subclass_stays_one_below_and_as_a_pytree():
    class Own(State):
        pass

    state = Own({"a": {"b": 1}})
    assert type(state.a) is type(jax.tree.map(lambda x: x, state)) is type(Own.from_flat_path({("a",): 1})) is Own
    assert repr(state).startswith("Own({")


def test_operators_take_any_mapping_and_nothing_else():
    state = State({"a": 1, "b": {"c": 2}})
    assert (state | {"b": {"d": 3}}) == {"a": 1, "b": {"c": 2, "d": 3}}
    assert (state - {"b": {"c": 0}}) == diff(state, {"b": {"c": 0}}) == {"a": 1}
    assert state == {"a": 1, "b": {"c": 2}}
    for wrong in (lambda: state | 3, lambda: state - 3):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()


def test_merging_neither_changes_nor_shares_what_was_given():
    first, second = State({"a": {"b": 1}}), {"a": {"c": 2}}
    merged = State.merge(first, second)
    merged.a.b = merged.a.c = 7
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"c": 2}})
    assert State.merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


# --- order ------------------------------------------------------------------------------------------------------------


def test_numbers_go_before_names():
    state = State({"b": 1, 10: 2, "a": {"x": 3, 1: 4}, 2: 5})
    assert [path for path, _ in state.flat_state()] == [(2,), (10,), ("a", 1), ("a", "x"), ("b",)]
    assert FlatState(reversed(state.flat_state()), sort=True).paths == state.flat_state().paths
    flat = State({"b": 1, 10: 2, "a": 3, 2: 5})
    assert jax.tree.leaves(flat) == [5, 2, 3, 1]
    assert jax.tree.map(lambda x: x, flat) == flat


def test_states_cross_jit_and_are_found_again():
    count = 0

    @jax.jit
    def double(state):
        nonlocal count
        count += 1
        return jax.tree.map(lambda x: 2 * x, state)

    state = State({"b": jnp.ones(2), "a": {"c": jnp.zeros(())}})
    again = double(double(State(sorted(state.items()))))
    assert count == 1
    assert again.flat_state().paths == (("a", "c"), ("b",))
    assert again.b.tolist() == [4.0, 4.0]


# --- flat -------------------------------------------------------------------------------------------------------------


def test_flat_states_are_sequences_of_pairs():
    flat = made().flat_state()
    assert [path for path, _ in flat] == [path for path, _ in flat.items()] == list(flat.paths)
    assert flat.flat_state() is flat
    assert flat[1:].paths == flat.paths[1:]
    assert [type(leaf) for leaf in flat.leaves] == [Param, Param, BatchStat]
    assert len(flat) == 3
    flat.leaves.clear()
    assert len(flat.leaves) == 3


def test_flat_states_nest_again():
    state = made()
    flat = state.flat_state()
    for nested in (flat.to_nested_state(), State.from_flat_path(flat), nnx.from_flat_state(dict(flat))):
        assert nested == state
        assert nested.encoder.mean is state.encoder.mean
    assert FlatState.merge(flat, [(("bias",), 1)]).to_nested_state().bias == 1
    assert pickle.loads(pickle.dumps(flat)).paths == flat.paths


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([((), 1)], r"path \(\).*Add a key"),
        ([(("a",), 1), (("a", "b"), 2)], r"\('a', 'b'\).*a part of this path already holds a leaf of type int"),
        ([(("a",), jnp.ones(2)), (("a", "b", "c"), 2)], r"\('a', 'b', 'c'\).*a part of this path already holds a leaf"),
    ],
)
def test_paths_that_cannot_be_nested_are_errors(pairs, words):
    with pytest.raises(LiftArgumentError, match=words):
        State.from_flat_path(pairs)


def test_functions_take_dicts_and_flat_states_too():
    for state in (made(), made().raw_mapping, made().flat_state()):
        assert nnx.to_flat_state(state).paths == made().flat_state().paths
        assert nnx.filter_state(state, BatchStat).flat_state().paths == (("encoder", "mean"),)
        assert [len(part) for part in nnx.split_state(state, Param, ...)] == [2, 1]
        assert nnx.to_pure_dict(nnx.map_state(lambda path, leaf: len(path), state))["bias"] == 1
        assert nnx.merge_state(state, {"x": 1}, cls=dict)["x"] == 1


def test_a_split_that_misses_leaves_names_them():
    for state in (made(), made().flat_state()):
        with pytest.raises(UnmatchedFilterError, match=r"encoder\.mean \(BatchStat\) \(filters given: Param\)"):
            state.split(Param)


def test_places_of_equal_specs_share_a_filter():
    (zero, nothing) = create_path_filters(State({"a": 0, "b": {"c": None, "d": 0}}))
    assert [zero(("b", "d"), 1), zero(("b", "c"), 1), nothing(("b", "c"), 1)] == [True, False, True]


# --- values -----------------------------------------------------------------------------------------------------------


def test_pure_values_come_and_go():
    state = made()
    values = state.to_pure_dict()
    assert (values["bias"], values["encoder"]["mean"]) == (3, 2)
    kept = state.bias
    state.replace_by_pure_dict(jax.tree.map(lambda x: x + 1, values))
    assert (state.bias.value, kept.value) == (4, 3)
    assert type(state.encoder.mean) is BatchStat


def test_a_value_may_be_a_dict():
    state = State({"a": Param({"x": 1}, tag="t")})
    state.replace_by_pure_dict(jax.tree.map(lambda x: x + 1, state.to_pure_dict()))
    assert (state.a.value, state.a.tag) == ({"x": 2}, "t")


@pytest.mark.parametrize("values", [{"bias": 1, "q": 2}, {"bias": 1, "encoder": 2}, {"bias": 1, "n": {"a": 2}}])
def test_a_value_for_no_leaf_changes_nothing(values):
    state = made() | {"n": 0}
    with pytest.raises(LiftArgumentError, match=r"the state has no leaf.*\('(q|encoder|n)',"):
        state.replace_by_pure_dict(values)
    assert state.bias.value == 3


@pytest.mark.parametrize("key", ["1_0", " 10", "-2", "+10"])
def test_only_digits_stand_for_the_number_of_an_item(key):
    state = State({"layers": {number: Param(number) for number in range(11)}})
    state.replace_by_pure_dict({"layers": {"10": 7}})
    assert state["layers"][10].value == 7
    with pytest.raises(LiftArgumentError, match="the state has no such key"):
        state.replace_by_pure_dict({"layers": {key: 8}})


def test_pure_pytrees_hold_no_variables():
    pure = nnx.as_pure({"state": made(), "x": [Param({"inner": Param(1)}), "text", None]})
    assert pure["state"].encoder.mean == 2
    assert pure["x"] == [{"inner": 1}, "text", None]


# --- shown, and together with a definition ----------------------------------------------------------------------------


def test_texts_have_a_leaf_on_each_line():
    state = State({"a": {"b": 1, 0: {}}, "c": types.SimpleNamespace(d=2)})
    assert repr(state).splitlines() == [
        "State({", "  'a': {", "    'b': 1,", "    0: {}", "  },", "  'c': namespace(d=2)", "})",
    ]  # fmt: skip
    assert repr(state.flat_state()).splitlines()[1] == "  (('a', 'b'), 1),"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of treescope, on some releases of JAX
def test_treescope_shows_states():
    treescope = pytest.importorskip("treescope")
    text = treescope.render_to_text(State({"encoder": {"kernel": 1.0}}))
    assert "State({'encoder': {'kernel': 1.0}})" in text


def test_a_definition_and_its_state_are_one_mapping():
    pair = nnx.GraphState("definition", State({"b": {"c": 1}, "a": 2}))
    pair.d = 3
    pair["b"]["c"] = 5
    assert dict(pair) == {"b": {"c": 5}, "a": 2, "d": 3}
    assert jax.tree.leaves(pair) == [2, 5, 3]
    del pair["d"]
    assert len(pair) == 2
    assert pair == pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair)
    assert pair != nnx.GraphState("other", State(pair))
    assert nnx.to_flat_state(pair).paths == (("a",), ("b", "c"))

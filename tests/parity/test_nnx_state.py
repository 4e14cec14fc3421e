"""Filters and states of nnx_like do what those of `flax.nnx` do: one expression, asked of both."""

from __future__ import annotations

import copy
import itertools
import pickle
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnx_like
from nnx_like import filterlib as our_filterlib
from nnx_like import statelib as our_statelib
from nnx_like import traversals as our_traversals

nnx = pytest.importorskip("flax.nnx")

pytestmark = [  # what ours keeps
    pytest.mark.filterwarnings("ignore:.flax.nnx.State. will be deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Variable hooks are deprecated:UserWarning"),
]

Lib = types.SimpleNamespace
NAMES = """
    All Any Everything Not Nothing OfType PathContains WithTag Param BatchStat Variable State FlatState GraphState
    filter_state from_flat_state map_state merge_state replace_by_pure_dict restore_int_paths split_state
    to_flat_state to_pure_dict as_pure
"""
OURS = Lib(
    filterlib=our_filterlib,
    statelib=our_statelib,
    traversals=our_traversals,
    **{name: getattr(nnx_like, name) for name in NAMES.split()},
)


class Tagged:
    tag = "dropout"


def made(lib: Any) -> Any:
    """A state with two kinds of variables, an array and numbers, not in the order of its keys."""
    nested = {"x": lib.Param(1), "a": lib.BatchStat(2, tag="dropout"), "list": {10: 3, 2: lib.Param(4)}}
    return lib.State({"b": nested, "a": lib.Param(jnp.arange(3)), "empty": {}})


def plain(x: Any) -> Any:
    """Whatever both may return, in words that they have in common."""
    if type(x).__name__ in ("FlatState", "list", "tuple"):
        return [type(x).__name__, *map(plain, x)]
    if type(x).__name__ in ("State", "GraphState", "dict"):
        return [type(x).__name__, {key: plain(x[key]) for key in x}]
    if hasattr(x, "get_value"):
        return [type(x).__name__, plain(x.get_value())]
    return x.tolist() if isinstance(x, jax.Array) else x


def agree(ask: Callable[[Any], Any]) -> None:
    assert plain(ask(OURS)) == plain(ask(nnx))


def each(*cases: Callable[[Any], Any]) -> Any:
    return pytest.mark.parametrize("ask", cases, ids=lambda case: str(case.__code__.co_firstlineno))


# --- filters ----------------------------------------------------------------------------------------------------------

FILTERS = [
    lambda lib: ...,
    lambda lib: True,
    lambda lib: None,
    lambda lib: False,
    lambda lib: lib.Param,
    lambda lib: lib.Variable,
    lambda lib: int,
    lambda lib: object,
    lambda lib: "dropout",
    lambda lib: "b",
    lambda lib: (),
    lambda lib: (int, "dropout"),
    lambda lib: [lib.Param, [int, None]],
    lambda lib: lib.Any(),
    lambda lib: lib.All(),
    lambda lib: lib.Any("dropout", lib.Not(lib.Variable)),
    lambda lib: lib.All(lib.Param, lib.PathContains("b")),
    lambda lib: lib.Not((lib.Param, "dropout")),
    lambda lib: lib.Everything(),
    lambda lib: lib.Nothing(),
    lambda lib: lib.OfType(lib.BatchStat),
    lambda lib: lib.WithTag("dropout"),
    lambda lib: lib.PathContains("a"),
    lambda lib: lib.PathContains(2),
    lambda lib: lib.PathContains("1", exact=False),
    lambda lib: lib.PathContains(1, False),
    lambda lib: lib.filterlib.PathIn(("b", "x"), ("a",)),
    lambda lib: lambda path, value: len(path) > 2,
]


def values(lib: Any) -> list[Any]:
    a_lambda = lambda path, value: len(path) > 1  # noqa: E731  # an attribute of no use to a filter
    return [1, 2.0, "dropout", None, Tagged(), lib.Param(1), lib.BatchStat(2, tag="dropout"), lib.Param, a_lambda]


PATHS = [(), ("a",), ("b", "x"), ("dropout",), ("layers", 2, "lora_a"), ("3",), (1, "b"), ("b", 10, "x")]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_filters_match_the_same(number: int) -> None:
    def ask(lib: Any) -> list[bool]:
        matches = lib.filterlib.to_predicate(FILTERS[number](lib))
        return [bool(matches(path, value)) for path, value in itertools.product(PATHS, values(lib))]

    agree(ask)


@pytest.mark.parametrize("number", range(len(FILTERS) - 1))
def test_filters_look_the_same(number: int) -> None:
    def ask(lib: Any) -> list[str]:
        predicate, again = (lib.filterlib.to_predicate(FILTERS[number](lib)) for _ in range(2))
        assert predicate == again
        assert hash(predicate) == hash(again)
        text = repr(predicate).replace("flax.nnx.variablelib", "").replace("nnx_like.variablelib.kinds", "")
        return ["PathIn" if "PathIn" in text else text.replace("nnx_like.variablelib.variable", "")]

    agree(ask)


@each(
    lambda lib: lib.All("a") == lib.Any("a"),
    lambda lib: lib.Not(...) == lib.Not(True),
    lambda lib: lib.PathContains("a") == lib.PathContains("a", exact=True),
    lambda lib: lib.filterlib.PathIn(("a",), ("b",)) == lib.filterlib.PathIn(("b",), ("a",)),
    lambda lib: [lib.All("a").predicates == (lib.WithTag("a"),), lib.Not("a").predicate == lib.WithTag("a")],
    lambda lib: [lib.WithTag("a").tag, lib.OfType(int).type, lib.PathContains("a").key, lib.PathContains("a").exact],
    lambda lib: len(lib.filterlib.filters_to_predicates([int, None, ..., True])),
)
def test_predicates_are_equal_where_theirs_are(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@pytest.mark.parametrize("filters", [(..., int), (True, "a"), (None, ..., None)])
def test_a_filter_after_all_is_an_error(filters: Any) -> None:
    for lib in OURS, nnx:
        for ask in lib.filterlib.filters_to_predicates, lambda given, lib=lib: made(lib).split(*given):
            with pytest.raises(ValueError, match=r"last|end"):
                ask(filters)


# --- states -----------------------------------------------------------------------------------------------------------


@each(
    lambda lib: made(lib),
    lambda lib: [list(made(lib)), len(made(lib)), "b" in made(lib), "x" in made(lib), bool(lib.State({}))],
    lambda lib: [made(lib).b.x, made(lib)["b"]["list"][2], made(lib).get("b"), made(lib).get("q", 3)],
    lambda lib: [hasattr(made(lib), name) for name in ("a", "q", "x", "items")],
    lambda lib: list(made(lib).values()),
    lambda lib: list(made(lib).items()),
    lambda lib: made(lib).raw_mapping,
    lambda lib: lib.State([("a", 1), ("b", {"c": 2})]),
    lambda lib: lib.State(iter([("a", 1)])),
    lambda lib: lib.State(lib.State({"a": {"c": 1}})),
    lambda lib: [lib.State({"a": {"b": 1}}) == {"a": {"b": 1}}, lib.State({"a": 1}) == lib.State({"a": 2})],
    lambda lib: lib.State({"a": {"b": 1}}) == {"a": {"b": 1}},
)
def test_states_read_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


def test_states_change_the_same() -> None:
    def ask(lib: Any) -> Any:
        state = made(lib)
        state.b.d = 4
        state["e"] = lib.State({"k": 1})
        state.f = {"g": 1}
        state._private = 2
        del state["b"]["x"]
        popped = [state.pop("a"), state.setdefault("n", {"q": 1}), state.n]
        state.update({"z": 1})
        return [state, type(state.raw_mapping["e"]).__name__, popped]

    agree(ask)


@each(
    lambda lib: made(lib).flat_state(),
    lambda lib: lib.to_flat_state(made(lib)),
    lambda lib: [made(lib).flat_state().paths, made(lib).flat_state().leaves, len(made(lib).flat_state())],
    lambda lib: [made(lib).flat_state()[0], made(lib).flat_state()[-1], made(lib).flat_state()[1:3]],
    lambda lib: list(reversed(made(lib).flat_state())),
    lambda lib: made(lib).flat_state().to_nested_state(),
    lambda lib: made(lib).flat_state().split(lib.Param, ...),
    lambda lib: made(lib).flat_state().split(...),
    lambda lib: made(lib).flat_state().filter(int),
    lambda lib: made(lib).flat_state().filter(int, lib.BatchStat),
    lambda lib: lib.FlatState.merge(lib.State({"b": 1}).flat_state(), [(("a",), 4)], [(("a", "b"), 2)]),
    lambda lib: lib.FlatState([(("b",), 1), (("a",), 2)], sort=False),
    lambda lib: lib.FlatState([(("b",), 1), (("b", 2), 3), (("a",), 2)], sort=True),
    lambda lib: lib.FlatState.from_sorted_keys_values((("a",),), [1]),
    lambda lib: dict(made(lib).flat_state()),
    lambda lib: [lib.State({"a": 1}).flat_state().index((("a",), 1)), (("a",), 1) in lib.State({"a": 1}).flat_state()],
    lambda lib: lib.State({"a": types.MappingProxyType({"b": 1})}).flat_state(),
    lambda lib: lib.State({2: 1, 10: 2, 1: {"b": 0, "a": 1}}).flat_state(),
    lambda lib: lib.State.from_flat_path(made(lib).flat_state()),
    lambda lib: lib.State.from_flat_path({("a", "b"): 1, (0,): 2}),
    lambda lib: lib.State.from_flat_path([(("a",), 1), (("a",), 2)]),
    lambda lib: lib.from_flat_state([(("a", "c"), 1)], cls=dict),
    lambda lib: lib.from_flat_state({("a", "c"): 1, ("b",): 1}),
)
def test_flat_states_are_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@each(
    lambda lib: made(lib).split(lib.Param, lib.BatchStat, ...),
    lambda lib: made(lib).split(...),
    lambda lib: made(lib).split(..., ...),
    lambda lib: made(lib).split(None, lib.Variable, int),
    lambda lib: made(lib).filter("dropout"),
    lambda lib: made(lib).filter(("q", None), lib.PathContains("b")),
    lambda lib: made(lib).filter(None),
    lambda lib: lib.split_state(made(lib), (lib.Param, int), ...),
    lambda lib: lib.filter_state(made(lib), lib.Param),
    lambda lib: lib.filter_state(made(lib), lib.Param, int),
    lambda lib: lib.State.merge(made(lib), {"c": {"d": 4}, "b": {"x": 7}}),
    lambda lib: lib.State.merge({"a": {"b": 2}}, {"a": 3}),
    lambda lib: lib.merge_state(made(lib), {"c": 1}),
    lambda lib: lib.merge_state({"c": 1}, {"d": {"e": 2}}, cls=dict),
    lambda lib: made(lib) | lib.State({"b": {"z": 4}, "a": 9}),
    lambda lib: made(lib) | {"b": 9},
    lambda lib: made(lib) - lib.State({"a": 1, "b": {"x": 0, "list": {2: 0}}}),
    lambda lib: made(lib) - lib.State({"b": 9}),
    lambda lib: lib.statelib.diff(made(lib), lib.State({"a": 0})),
    lambda lib: lib.State({}) - made(lib),
    lambda lib: made(lib).map(lambda path, leaf: path),
    lambda lib: lib.map_state(lambda path, leaf: {"k": leaf}, made(lib)),
    lambda lib: [[matches(("b",), 0), leaf] for matches, leaf in lib.statelib.create_path_filters(
        lib.State({"a": 0, "b": 1})).items()],
)  # fmt: skip
def test_parts_of_states_are_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@pytest.mark.parametrize("filters", [(("q", None),), (int,), (None, int)])
def test_a_leaf_without_a_filter_is_an_error(filters: Any) -> None:
    for lib in OURS, nnx:
        for state in made(lib), made(lib).flat_state():
            with pytest.raises(ValueError, match=r"`?\.\.\.`?"):
                state.split(*filters)


def replaced(lib: Any, state: Any, values: Any, *args: Any) -> Any:
    before = state.flat_state().leaves
    lib.replace_by_pure_dict(state, values, *args)
    return [state, [old is new for old, new in zip(before, state.flat_state().leaves, strict=True)], before]


@each(
    lambda lib: lib.to_pure_dict(made(lib)),
    lambda lib: made(lib).to_pure_dict(),
    lambda lib: lib.to_pure_dict(made(lib), lambda leaf: 7),
    lambda lib: lib.to_pure_dict(lib.State({"a": lib.State({"b": 1}), "c": [lib.Param(1)], "d": None})),
    lambda lib: lib.to_pure_dict(lib.State({"a": lib.Param(1, on_get_value=lambda variable, value: 9)})),
    lambda lib: lib.as_pure(made(lib)),
    lambda lib: lib.as_pure([lib.Param({"a": lib.Param(1)}), 2, None, "x"]),
    lambda lib: replaced(lib, made(lib), {"a": jnp.ones(2)}),
    lambda lib: replaced(lib, made(lib), {"a": 7, "b": {"x": 8, "a": 9}}),
    lambda lib: replaced(lib, made(lib), {"b": {"list": {"2": 5, 10: 6}}}),
    lambda lib: replaced(lib, made(lib), {"b": {}}),
    lambda lib: replaced(lib, made(lib), {"a": 7}, lambda leaf, value: (leaf, value)),
    lambda lib: made(lib).replace_by_pure_dict({"a": 7}),
    lambda lib: lib.restore_int_paths({"a": {"0": 1, "1": {"x": 2}}, 3: {"4": [{"5": 6}]}}),
    lambda lib: lib.restore_int_paths({"0": 1, "-1": 2, "01": 3, "1.0": 4, "²": 3, "1_0": 6, "e": {}}),
)
def test_pure_values_are_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@pytest.mark.parametrize("values", [{"q": 7}, {"b": 7}, {"b": {"q": 7}}, {"b": {"list": {10: {"c": 3}}}}])
def test_a_value_for_no_leaf_is_an_error(values: Any) -> None:
    for lib in OURS, nnx:
        with pytest.raises(ValueError, match="state"):
            lib.replace_by_pure_dict(made(lib), values)


@each(
    lambda lib: jax.tree.leaves(made(lib)),
    lambda lib: [path[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(made(lib).filter(lib.Variable))],
    lambda lib: jax.tree_util.tree_leaves_with_path(lib.State({"b": {2: 1, 1: 3}, "a": 2})),
    lambda lib: str(jax.tree.structure(lib.State({"b": {"d": 1, "c": 3}, "a": None}))),
    lambda lib: jax.tree.map(lambda x: x + 1, made(lib)),
    lambda lib: type(jax.tree.map(lambda x: x + 1, made(lib)).raw_mapping["b"]).__name__,
    lambda lib: jax.tree.map(lambda x: x + 1, made(lib).flat_state()),
    lambda lib: jax.tree_util.tree_leaves_with_path(lib.State({"b": {"d": 1}, "a": 2}).flat_state()),
    lambda lib: str(jax.tree.structure(lib.State({"b": {"d": 1}, "a": 2}).flat_state())),
    lambda lib: jax.tree_util.tree_leaves_with_path(lib.GraphState(1, lib.State({"b": {"d": 1}, "a": 2}))),
    lambda lib: jax.tree.map(lambda x: x + 1, lib.GraphState(1, lib.State({"a": 2}))),
    lambda lib: str(jax.tree.structure(lib.GraphState(1, lib.State({"b": {"d": 1}, "a": 2})))),
)
def test_jax_sees_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@each(
    lambda lib: repr(made(lib)),
    lambda lib: repr(made(lib).flat_state()),
    lambda lib: repr(lib.State({"a": {}, "b": {0: None}, "c": jnp.ones((2, 2)), "d": lib.State({})})),
    lambda lib: [repr(lib.State({})), repr(lib.State({}).flat_state())],
    lambda lib: repr(lib.GraphState(1, lib.State({"a": {"b": 2}}))),
    lambda lib: pickle.loads(pickle.dumps(lib.State({"b": {"c": lib.Param(1)}, "a": jnp.ones(2)}))),
    lambda lib: pickle.loads(pickle.dumps(lib.State({"b": {"c": lib.Param(1)}, "a": 2}).flat_state())),
    lambda lib: copy.deepcopy(lib.State({"b": {"c": lib.Param(1)}, "a": 2})),
    lambda lib: copy.copy(made(lib)),
    lambda lib: lib.GraphState(1, lib.State({"a": {"b": 2}})),
    lambda lib: lib.GraphState(1, lib.State({"a": {"b": 2}})).a,
    lambda lib: lib.GraphState(1, lib.State({"a": 2})) == lib.GraphState(2, lib.State({"a": 2})),
)
def test_python_sees_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


@each(
    lambda lib: lib.traversals.flatten_mapping({"z": {"b": 1}, "a": 2, "c": {}}),
    lambda lib: list(lib.traversals.flatten_mapping({"a": {"b": 1}, "c": {}}, keep_empty_nodes=True)),
    lambda lib: lib.traversals.flatten_mapping({"a": {"b": {"c": 1}}}, sep="/"),
    lambda lib: lib.traversals.flatten_mapping({"a": {"b": 1}}, is_leaf=lambda path, x: path == ("a",)),
    lambda lib: list(lib.traversals.flatten_mapping({"a": made(lib)}).items()),
    lambda lib: lib.traversals.flatten_to_sequence({"z": 1, "a": {"c": 2}, "e": {}}),
    lambda lib: lib.traversals.flatten_to_sequence({"a": {"b": 1}}, is_leaf=lambda path, x: path == ("a",)),
    lambda lib: lib.traversals.unflatten_mapping({("a", "b"): 1, ("c",): lib.traversals.empty_node}),
    lambda lib: lib.traversals.unflatten_mapping([(("a", "b"), 1)]),
    lambda lib: lib.traversals.unflatten_mapping({"a/b": 1, "c": 2}, sep="/"),
)
def test_traversals_are_the_same(ask: Callable[[Any], Any]) -> None:
    agree(ask)


def test_axes_by_filter_are_a_mapping() -> None:
    for lib in nnx_like, nnx:
        axes = lib.StateAxes({lib.Param: 0, (lib.BatchStat, "dropout"): 1, ...: None})
        assert list(axes) == list(axes.keys()) == [lib.Param, (lib.BatchStat, "dropout"), ...]
        assert list(axes.values()) == [axes[one] for one in axes] == [0, 1, None]
        assert (axes.get(lib.Param), axes.get(...), lib.Param in axes, len(axes)) == (0, None, True, 3)
        assert {axes: 1}[lib.StateAxes(dict(axes.items()))] == 1
    ours = nnx_like.StateSharding({nnx_like.Param: None})
    assert (ours.get(int, 7), int in ours, bool(nnx_like.StateAxes({}))) == (7, False, True)
    with pytest.raises(KeyError):
        ours[int]

"""The filter language: what each form matches, what is decided without visiting values, set algebra, split, merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftcore import filters
from liftcore.errors import InvalidFilterError, LiftArgumentError, UnmatchedFilterError
from liftcore.filters import (
    All,
    DenyList,
    Everything,
    Not,
    Nothing,
    OfType,
    PathContains,
    WithTag,
    decide,
    intersect,
    matches_collection,
    matches_stream,
    merge,
    partition,
    split,
    subtract,
    to_predicate,
    union,
)

PATH = ("params", "encoder", "kernel")


@dataclasses.dataclass
class Box:
    value: int = 0


class SubBox(Box):
    pass


@dataclasses.dataclass
class Declared:
    type: object


@dataclasses.dataclass
class Tagged:
    tag: object


def is_kernel(path, value):
    return path[-1] == "kernel"


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "predicate"),
    [
        (..., Everything()),
        (True, Everything()),
        (None, Nothing()),
        (False, Nothing()),
        ("params", WithTag("params")),
        (Box, OfType(Box)),
        (("a", Box), filters.Any("a", Box)),
        (["a", "b"], filters.Any("a", "b")),
        ({"b", "a"}, filters.Any("a", "b")),
        (frozenset({"b", "a"}), filters.Any("a", "b")),
        ({"a": 1, "b": 2}.keys(), filters.Any("a", "b")),
        ((("a", ["b"]),), filters.Any(filters.Any("a", filters.Any("b")))),
        (is_kernel, is_kernel),
        (WithTag("a"), WithTag("a")),
        ((), filters.Any()),
    ],
)
def test_short_forms_stand_for_predicates(short, predicate):
    assert to_predicate(short) == predicate
    assert hash(to_predicate(short)) == hash(predicate)


@pytest.mark.parametrize(
    ("filter", "path", "value", "expected"),
    [
        (..., PATH, 1, True),
        (None, PATH, 1, False),
        ("params", PATH, 1, True),
        ("cache", PATH, 1, False),
        ("encoder", PATH, 1, False),
        ("cache", PATH, Tagged("cache"), True),
        ("cache", PATH, Tagged(3), False),
        (Box, PATH, SubBox(), True),
        (SubBox, PATH, Box(), False),
        (Box, PATH, Declared(SubBox), True),
        (SubBox, PATH, Declared(Box), False),
        (Box, PATH, Declared("no class"), False),
        (jax.Array, PATH, jnp.zeros(2), True),
        (("cache", Box), PATH, Box(), True),
        (("cache", Box), PATH, 1, False),
        ((), PATH, 1, False),
        (All(), PATH, 1, True),
        (All("params", Box), PATH, Box(), True),
        (All("params", Box), PATH, 1, False),
        (Not("params"), PATH, 1, False),
        (DenyList("cache"), PATH, 1, True),
        (DenyList(["cache", "params"]), PATH, 1, False),
        (PathContains("encoder"), PATH, 1, True),
        (PathContains("params"), PATH, 1, True),
        (PathContains("enc"), PATH, 1, False),
        (PathContains("enc", exact=False), PATH, 1, True),
        (PathContains("aram", exact=False), PATH, 1, True),
        (PathContains("sen", exact=False), PATH, 1, False),
        (is_kernel, PATH, 1, True),
    ],
)
def test_predicate_answers(filter, path, value, expected):
    assert to_predicate(filter)(path, value) is expected


@pytest.mark.parametrize("given_", [1, 2.5, {"params": 1}, b"params", object(), ("a", 3), [{}]])
def test_what_is_no_filter_is_an_error(given_):
    with pytest.raises(
        InvalidFilterError, match=r"filter: .* of type \w+ is not a filter\. Use \.\.\., True, None, False, a coll"
    ):
        to_predicate(given_)


def test_a_predicate_class_that_was_not_called_is_an_error():
    with pytest.raises(
        InvalidFilterError, match=r"Everything is the class of a predicate\. Call it: Everything\(\.\.\.\)"
    ):
        to_predicate(Everything)


def test_predicates_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WithTag("a").tag = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        DenyList("a").filter = "b"


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (Everything(), "Everything()"),
        (WithTag("a"), "WithTag('a')"),
        (OfType(Box), "OfType(Box)"),
        (filters.Any("a", Box, ...), "Any('a', Box, ...)"),
        (All("params", PathContains("lora")), "All('params', PathContains('lora'))"),
        (Not(PathContains("lora", exact=False)), "Not(PathContains('lora', exact=False))"),
        (Not(is_kernel), "Not(is_kernel)"),
        (DenyList(("a", "b")), "DenyList(('a', 'b'))"),
        (All(None, filters.Any("a")), "All(None, Any('a'))"),
    ],
)
def test_predicates_print_as_they_are_written(predicate, text):
    assert repr(predicate) == text


def test_not_and_deny_list_agree_but_are_told_apart():
    assert Not("a") != DenyList("a")
    assert DenyList("a").deny == WithTag("a")


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (..., True),
        (None, False),
        ("params", True),
        ("cache", False),
        (("cache", "params"), True),
        (DenyList("cache"), True),
        (DenyList("params"), False),
        (Box, None),
        (is_kernel, None),
        (PathContains("params"), True),
        (PathContains("lora"), None),
        (PathContains("aram", exact=False), True),
        (PathContains("lora", exact=False), None),
        (All("cache", Box), False),
        (All("params", Box), None),
        (filters.Any("params", Box), True),
        (filters.Any("cache", Box), None),
        (Not(Box), None),
        (Not(All("cache", Box)), True),
    ],
)
def test_collections_are_decided_without_values(filter, expected):
    assert matches_collection(filter, "params") is expected


def test_a_prefix_decides_more():
    assert matches_collection(PathContains("lora"), "params", ("block", "lora")) is True
    assert matches_collection(PathContains("lora"), "params", ("block",)) is None
    assert matches_collection(PathContains("lora", exact=False), "params", ("lora_1",)) is True
    assert matches_collection(PathContains("lora"), "params", ("lora_1",)) is None


def test_sequences_are_matched_by_name():
    assert matches_stream("dropout", "dropout")
    assert not matches_stream("dropout", "params")
    assert matches_stream(DenyList("params"), "dropout")
    assert matches_stream(lambda path, value: path == ("dropout",) and value is None, "dropout")
    assert not matches_stream(Box, "dropout")


NAMES = st.sampled_from(["params", "cache", "stats"])
MODULES = st.sampled_from(["a", "b", "lora", "lora_1"])
PIECES = MODULES | NAMES | st.sampled_from(["s", "_", "ora", "ra_1", ""])
LEAVES = st.integers() | st.builds(Box) | st.lists(st.integers(), max_size=1)
SIMPLE = st.recursive(
    st.sampled_from([..., True, None, False]) | NAMES | st.frozensets(NAMES),
    lambda inner: (
        st.tuples(inner, inner) | st.builds(All, inner, inner) | st.builds(Not, inner) | st.builds(DenyList, inner)
    ),
    max_leaves=5,
)
FILTERS = st.recursive(
    st.sampled_from([..., None, Box, int, is_kernel]) | NAMES | st.builds(PathContains, PIECES, st.booleans()),
    lambda inner: (
        st.tuples(inner, inner) | st.builds(All, inner, inner) | st.builds(Not, inner) | st.builds(DenyList, inner)
    ),
    max_leaves=5,
)
PATHS = st.tuples(NAMES, MODULES, MODULES)


@given(FILTERS, PATHS, LEAVES)
def test_a_decision_is_what_the_call_says(filter, path, value):
    predicate = to_predicate(filter)
    for length in (1, 2, 3):
        assert decide(predicate, path[:length]) in (None, predicate(path, value))


@given(PIECES, st.lists(MODULES | NAMES, max_size=4).map(tuple))
def test_a_path_contains_what_a_plain_loop_over_its_names_finds(key, path):
    whole = part = False
    for name in path:
        whole = whole or name == key
        part = part or name.find(key) >= 0
    assert PathContains(key)(path, 1) is PathContains(key, exact=True)(path, 1) is whole
    assert PathContains(key, exact=False)(path, 1) is part


def test_parts_of_names_and_whole_names_are_different_filters():
    part, whole = PathContains("lora", exact=False), PathContains("lora")
    assert whole == PathContains("lora", exact=True)
    assert hash(whole) == hash(PathContains("lora", True))
    assert part != whole
    assert len({part, whole, PathContains("lora", False)}) == 2
    assert intersect(part, PathContains("lora", exact=False)) == part
    assert intersect(part, whole) == All(part, whole)
    assert subtract(..., part) == Not(part)


# --- algebra ----------------------------------------------------------------------------------------------------------


@given(FILTERS, FILTERS, PATHS, LEAVES)
def test_algebra_is_membership(a, b, path, value):
    in_a, in_b = to_predicate(a)(path, value), to_predicate(b)(path, value)
    assert union(a, b)(path, value) == (in_a or in_b)
    assert intersect(a, b)(path, value) == (in_a and in_b)
    assert subtract(a, b)(path, value) == (in_a and not in_b)


@given(SIMPLE, SIMPLE, SIMPLE)
def test_algebra_of_collection_names_is_canonical(a, b, c):
    assert union(a, b) == union(b, a)
    assert intersect(a, union(b, c)) == union(intersect(a, b), intersect(a, c))
    assert subtract(a, b) == intersect(a, subtract(True, b))
    assert union(subtract(a, b), intersect(a, b)) == union(a, a)


@given(SIMPLE, SIMPLE, NAMES)
def test_algebra_of_collection_names_stays_decided(a, b, name):
    in_a, in_b = matches_collection(a, name), matches_collection(b, name)
    assert matches_collection(union(a, b), name) is (in_a or in_b)
    assert matches_collection(subtract(a, b), name) is (in_a and not in_b)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (union("a", "b"), filters.Any("a", "b")),
        (union({"b"}, ("a", "b")), filters.Any("a", "b")),
        (union("a", DenyList("a")), Everything()),
        (union(None, is_kernel), is_kernel),
        (union(True, is_kernel), Everything()),
        (union("a", is_kernel), filters.Any("a", is_kernel)),
        (intersect("a", "b"), Nothing()),
        (intersect(True, Box), OfType(Box)),
        (intersect(Box, None), Nothing()),
        (intersect(Box, Box), OfType(Box)),
        (subtract(True, ("b", "a")), DenyList(("a", "b"))),
        (subtract(("a", "b"), "b"), WithTag("a")),
        (subtract(DenyList("a"), "b"), DenyList(("a", "b"))),
        (subtract(Box, "a"), All(Box, DenyList("a"))),
        (subtract("a", Not(Box)), All("a", Box)),
    ],
)
def test_algebra_gives_the_shortest_form(result, expected):
    assert result == expected
    hash(result)


class _Loose(WithTag):
    """A predicate of a user's that takes more than the one it is made from."""

    def __call__(self, path, value):
        return path[0].startswith(self.tag)

    def decide(self, prefix):
        return prefix[0].startswith(self.tag)


class _Never(Not):
    def __call__(self, path, value):
        return False

    def decide(self, prefix):
        return False


def test_algebra_asks_subclasses_of_predicates():
    loose, never = _Loose("par"), _Never("params")
    path = ("params", "w")
    for taken in (intersect(loose, True), intersect(True, loose), union(loose, None), union("cache", loose)):
        assert taken(path, 1)
        assert decide(taken, path[:1])
    for taken in (intersect(never, "params"), subtract(True, union(loose, never)), union(never, "cache")):
        assert not taken(path, 1)
    assert subtract("params", never)(path, 1)


# --- trees ------------------------------------------------------------------------------------------------------------


def test_split_gives_each_variable_to_the_first_filter_that_matches():
    variables = {"params": {"a": {"w": 1, "lora": 2}, "b": 3}, "cache": {"lora": 4}}
    lora, params, rest = split(variables, All("params", PathContains("lora")), "params", ...)
    assert lora == {"params": {"a": {"lora": 2}}}
    assert params == {"params": {"a": {"w": 1}, "b": 3}}
    assert rest == {"cache": {"lora": 4}}


def test_split_names_what_no_filter_matched():
    variables = {"params": {"a": {"w": 1}}, "cache": {"step": 1, "size": 2}}
    with pytest.raises(UnmatchedFilterError) as error:
        split(variables, "params", Box)
    assert str(error.value) == (
        "split: no filter matches /cache/step, /cache/size (filters given: 'params', Box). "
        "Add a filter that does, or `...` as the last filter to take the rest."
    )


def test_split_shortens_a_long_list_of_unmatched_paths():
    with pytest.raises(UnmatchedFilterError, match=r"/c/0, /c/1, /c/2, /c/3, /c/4 and 3 more \(filters given: none\)"):
        split({"c": {str(i): i for i in range(8)}})


@pytest.mark.parametrize("given", [[1, 2], jnp.ones(2), None])
def test_what_is_no_mapping_is_an_error(given):
    with pytest.raises(LiftArgumentError, match=r"variables: expected {collection: .*Blueprint\.of\(tree\)"):
        split(given, "params")


def test_decided_collections_are_passed_on_by_reference_and_unvisited():
    class Unvisited(dict[str, Any]):
        def items(self):
            raise AssertionError("visited")

    params, lora = Unvisited(w=1), Unvisited(w=1)
    variables = {"params": params, "cache": {"lora": lora, "w": 2}}
    (first, second), rest = partition(variables, ["params", PathContains("lora")])
    assert first["params"] is params
    assert second["cache"]["lora"] is lora
    assert rest == {"cache": {"w": 2}}


def test_empty_collections_appear_nowhere():
    variables: dict[str, Any] = {"params": {}, "cache": {"a": {}}}
    assert partition(variables, ["params", Box]) == ([{}, {}], {})


def test_values_are_whatever_is_no_mapping():
    seen = []
    frozen = MappingProxyType({"x": [1, 2], "y": None, "z": Box()})
    partition({"params": {"m": frozen}, "top": 5}, [lambda path, value: seen.append((path, value))])
    assert seen == [
        (("params", "m", "x"), [1, 2]),
        (("params", "m", "y"), None),
        (("params", "m", "z"), Box()),
        (("top",), 5),
    ]


def test_predicates_see_the_absolute_path():
    seen = []
    tree = {"params": {"w": 1}}
    partition(tree, [lambda path, value: seen.append(path)], prefix=("encoder", "block"))
    assert seen == [("params", "encoder", "block", "w")]
    assert partition(tree, [PathContains("block")], prefix=("encoder", "block")) == ([tree], {})


def test_merge_lets_the_later_one_win_and_changes_nothing_given():
    first, second = {"c": {"a": 1, "b": {"x": 1}}}, {"c": {"b": {"x": 2, "y": 3}}, "d": {"e": 4}}
    assert merge(first, second) == {"c": {"a": 1, "b": {"x": 2, "y": 3}}, "d": {"e": 4}}
    assert first == {"c": {"a": 1, "b": {"x": 1}}}
    assert second["c"] == {"b": {"x": 2, "y": 3}}
    assert merge() == {}


TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(MODULES, inner, min_size=1, max_size=3), max_leaves=6)
VARIABLES = st.dictionaries(NAMES, st.dictionaries(MODULES, TREES, min_size=1, max_size=2), max_size=3)


def leaves(tree, path=()):
    if not isinstance(tree, Mapping):
        return {path: tree}
    return {p: leaf for key, child in tree.items() for p, leaf in leaves(child, (*path, key)).items()}


@given(VARIABLES, st.lists(FILTERS, max_size=3))
def test_split_then_merge_is_the_identity(variables, chosen):
    trees, rest = partition(variables, chosen)
    assert merge(*trees, rest) == variables
    assert merge(*split(variables, *[(one, None) for one in chosen], ...)) == variables


NAMED = {"params": {"head": {"kernel": 1.0}, "body": {"kernel": 2.0}}}


@pytest.mark.parametrize(
    ("filter", "closest"),
    [
        ("pramas", "params/head/kernel"),
        (PathContains("hed"), "params/head/kernel"),
        (PathContains("bo", exact=True), "params/body/kernel"),
        (All("params", PathContains("bdy")), "params/body/kernel"),
        (All("cache", PathContains("body")), "params/head/kernel"),
        (filters.Any("cache", PathContains("heat")), "params/head/kernel"),
    ],
)
def test_a_name_that_nothing_has_is_an_error(filter: Any, closest: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"split: the filter .* matches no variable \(available: {closest}"):
        split(NAMED, filter, ...)
    assert split(NAMED, (filter, None), ...) == ({}, NAMED)
    assert split({}, filter, ...) == ({}, {})


@pytest.mark.parametrize(
    "filter",
    [None, int, lambda path, value: False, All(int, PathContains("head")), Not(PathContains("kernel"))],
)
def test_other_filters_may_match_nothing(filter: Any) -> None:
    assert split(NAMED, filter, ...) == ({}, NAMED)
    assert split(NAMED, "params", PathContains("head"), ...) == (NAMED, {}, {})  # an earlier filter took it


@given(VARIABLES, st.lists(FILTERS, max_size=3))
def test_partition_is_the_first_predicate_that_says_yes(variables, chosen):
    trees, rest = partition(variables, chosen)
    owner = {path: index for index, tree in enumerate([*trees, rest]) for path in leaves(tree)}
    predicates = [*map(to_predicate, chosen), Everything()]
    for path, value in leaves(variables).items():
        assert owner[path] == next(i for i, matches in enumerate(predicates) if matches(path, value))


def test_a_tag_counts_where_values_are_visited():
    variables = {"params": {"w": 1, "tagged": Tagged("lora")}}
    assert partition(variables, ["lora"]) == ([{}], variables)
    (tree,), rest = partition(variables, [("lora", Box)])
    assert tree == {"params": {"tagged": Tagged("lora")}}
    assert rest == {"params": {"w": 1}}


def test_a_value_without_a_path_is_matched_by_its_tag_alone():
    assert WithTag("a")((), Tagged("a"))
    for filter in (WithTag("a"), to_predicate(("a", "b")), All("a", ...), PathContains("a"), Not(DenyList("a"))):
        assert not filter((), 3)
    assert DenyList("a")((), 3)
    assert decide(WithTag("a"), ()) is None

"""The filter language over attribute paths: all its forms, grouping, and what its errors say."""

import jax.numpy as jnp
import pytest

import nnx_like as nnx
from liftcore import filters as core
from liftcore.errors import InvalidFilterError, LiftArgumentError, UnmatchedFilterError
from nnx_like.filterlib import group, to_predicate
from nnx_like.variablelib.kinds import BatchStat, Param, RngKey, VariableState


class Declared:
    """A value that says its type, as variables of older releases did."""

    type = Param


PAIRS = [
    (("encoder", "kernel"), Param(jnp.ones(2))),
    (("encoder", "mean"), BatchStat(jnp.zeros(2))),
    (("layers", 0, "lora_a"), Param(1.0)),
    (("rngs", "dropout", "key"), RngKey(0, tag="dropout")),
]
PATHS = [path for path, _ in PAIRS]


def chosen(filter):
    matches = to_predicate(filter)
    return [PATHS.index(path) for path, value in PAIRS if matches(path, value)]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (..., [0, 1, 2, 3]),
        (True, [0, 1, 2, 3]),
        (None, []),
        (False, []),
        (Param, [0, 2]),
        (nnx.Variable, [0, 1, 2, 3]),
        ("dropout", [3]),
        ("encoder", []),  # an attribute is no tag
        ((BatchStat, "dropout"), [1, 3]),
        ([BatchStat, [Param, "x"]], [0, 1, 2]),
        ({BatchStat, "dropout"}, [1, 3]),
        (frozenset(), []),
        (nnx.All(Param, nnx.PathContains("encoder")), [0]),
        (nnx.All(), [0, 1, 2, 3]),
        (nnx.Any(), []),
        (nnx.Not(Param), [1, 3]),
        (nnx.Not("dropout"), [0, 1, 2]),
        (nnx.PathContains("lora"), []),
        (nnx.PathContains("lora", exact=False), [2]),
        (nnx.PathContains(0), [2]),
        (nnx.PathContains("0"), [2]),  # an index is one thing, as a number and as text
        (nnx.PathIn(("layers", "0", "lora_a")), [2]),
        (nnx.PathContains("0", exact=False), [2]),
        (nnx.PathIn(("encoder", "kernel"), ("layers",)), [0]),
        (lambda path, value: path[0] == "encoder", [0, 1]),
        (core.Any("encoder", core.OfType(BatchStat)), [0, 1]),  # the core's own say what they say there
    ],
)
def test_each_form_matches(filter, expected):
    assert chosen(filter) == expected


def test_a_type_matches_what_declares_it():
    matches = [to_predicate(kind)((), Declared()) for kind in (Param, nnx.Variable, BatchStat, Declared)]
    assert matches == [True, True, False, True]
    assert to_predicate(Param)((), VariableState(type=Param, value=1))


def test_equal_sets_give_equal_predicates():
    one, other = to_predicate({"a", "b", int}), to_predicate({int, "b", "a"})
    assert one == other
    assert hash(one) == hash(other)


def test_predicates_are_values():
    assert len({nnx.OfType(int), nnx.OfType(int), nnx.WithTag("a"), nnx.PathContains("a"), nnx.Not(int)}) == 4
    assert nnx.WithTag("a") != core.WithTag("a")  # that one asks for a collection
    assert to_predicate(nnx.Not(int)) is not core.Not(int)


def test_predicates_know_whole_subtrees_from_paths_only():
    def below(filter, *prefix):
        return core.decide(to_predicate(filter), prefix)

    assert [below(..., "a"), below("a", "a"), below(Param, "a")] == [True, None, None]
    assert [below(nnx.PathContains("a"), "a", "b"), below(nnx.PathContains("a"), "b")] == [True, None]
    assert [below(nnx.PathIn(("a", "b")), "a"), below(nnx.PathIn(("a", "b")), "c")] == [None, False]


@pytest.mark.parametrize("wrong", [3, {"a": 1}, b"x", (int, 3), nnx.All, [nnx.PathContains]])
def test_what_is_no_filter_is_an_error(wrong):
    with pytest.raises(InvalidFilterError, match=r"Use \.\.\.|Call it"):
        to_predicate(wrong)


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([...], [[0, 1, 2, 3]]),
        ([..., True], [[0, 1, 2, 3], []]),
        ([Param, ...], [[0, 2], [1, 3]]),
        ([nnx.PathContains("lora_a"), Param, ...], [[2], [0], [1, 3]]),
        ([Param, nnx.PathContains("lora_a"), ...], [[0, 2], [], [1, 3]]),
        ([None, nnx.Variable], [[], [0, 1, 2, 3]]),
    ],
)
def test_the_first_filter_that_matches_takes_a_pair(filters, expected):
    assert [[PATHS.index(path) for path, _ in part] for part in group(iter(PAIRS), filters)] == expected


def test_values_without_a_filter_may_be_left_out():
    assert [len(part) for part in group(PAIRS, [BatchStat], complete=False)] == [1]
    assert group(PAIRS, [], complete=False) == []
    assert group([], [], complete=True) == []


def test_a_value_without_a_filter_says_which_and_what_was_asked():
    with pytest.raises(UnmatchedFilterError) as caught:
        group(PAIRS, [Param, nnx.All("dropout", BatchStat)], where="state")
    text = str(caught.value)
    for part in (
        "state:",
        "encoder.mean (BatchStat)",
        "rngs.dropout.key (RngKey)",
        "Param, All(WithTag('dropout')",
        "...",
    ):
        assert part in text
    many = [((f"layer_{number}",), number) for number in range(9)]
    with pytest.raises(UnmatchedFilterError, match=r"layer_4 \(int\) and 4 more \(filters given: none\)"):
        group(many, [])


def test_a_filter_after_all_says_to_move_it():
    with pytest.raises(LiftArgumentError, match=r"filters \(Param, \.\.\., 'x'\): 'x' comes after .* Move"):
        group(PAIRS, [Param, ..., "x"])


# --- names ------------------------------------------------------------------------------------------------------------

SELECTING = {
    "state": lambda model, filter: nnx.state(model, filter),
    "split": lambda model, filter: nnx.split(model, filter, ...)[1],
    "pop": lambda model, filter: nnx.pop(model, filter),
    "State.filter": lambda model, filter: nnx.state(model).filter(filter),
    "State.split": lambda model, filter: nnx.state(model).split(filter, ...)[0],
    "FlatState.filter": lambda model, filter: nnx.state(model).flat_state().filter(filter),
    "split_state": lambda model, filter: nnx.split_state(nnx.state(model), filter, ...)[0],
    "filter_state": lambda model, filter: nnx.filter_state(nnx.state(model), filter),
    "set_metadata": lambda model, filter: nnx.set_metadata(model, only=filter, frozen=True) or (),
    "EMA": lambda model, filter: nnx.EMA(model, 0.9, only=filter).params,
    "grad": lambda model, filter: nnx.grad(total, argnums=nnx.DiffState(0, filter))(model),
    "custom_vjp": lambda model, filter: held_back(filter)(model),
}


def total(model):
    return jnp.sum(model.head.w.value)


def held_back(filter):
    rule = nnx.custom_vjp(total, nondiff_argnums=(nnx.DiffState(0, filter),))
    rule.defvjp(lambda model: (total(model), None), lambda _, __, g: (g,))
    return lambda model: [] if rule(model) else None


def small():
    return nnx.Dict(head=nnx.Dict(w=Param(jnp.ones(2))), layers=nnx.List([BatchStat(jnp.ones(2))]))


@pytest.mark.parametrize("function", SELECTING)
def test_a_name_that_no_variable_has_is_an_error(function):
    select = SELECTING[function]
    for filter in (
        nnx.PathContains("hed"),
        nnx.PathIn(("hed", "w")),
        nnx.All(Param, nnx.PathContains("hea", exact=True)),
        nnx.Any("heads", nnx.PathContains("heed")),
    ):
        with pytest.raises(LiftArgumentError, match=r"matches no variable \(available: head/w"):
            select(small(), filter)
        assert len(select(small(), (filter, None))) == 0
    with pytest.raises(LiftArgumentError, match=r'the tag of a variable\. .*write `PathContains\("head"\)`'):
        select(small(), "head")


@pytest.mark.parametrize("function", SELECTING)
@pytest.mark.parametrize("filter", [RngKey, None, nnx.All(RngKey, nnx.PathContains("head")), lambda path, value: False])
def test_a_kind_that_the_model_lacks_is_none(function, filter):
    assert len(SELECTING[function](small(), filter)) == 0


def test_names_are_missing_where_there_is_nothing_to_name():
    assert len(nnx.state(nnx.Dict(), nnx.PathContains("hed"))) == 0
    first, second, rest = nnx.split(small(), Param, nnx.PathContains("head"), ...)[1:]
    assert [len(part.flat_state()) for part in (first, second, rest)] == [1, 0, 1]
    assert nnx.state(small(), nnx.PathContains("0")).flat_state().paths == (("layers", 0),)

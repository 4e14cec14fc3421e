from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from liftcore.cursor import Cursor, cursor
from liftcore.errors import CursorFindError, LiftArgumentError
from liftcore.frozen_dict import FrozenDict
from liftcore.training import TrainState


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    layers: Any = ()
    name: str = dataclasses.field(default="made", init=False)


def whole() -> dict[str, Any]:
    frozen = FrozenDict({"x": {"y": 8}})
    return {"a": [1, {"b": (2, 3)}], "pair": Pair(4, [5]), "config": Config(6, (7,)), "frozen": frozen}


EDITS = {
    "a dict": (lambda c: c["a"][1]["b"].set(0), {"a": [1, {"b": 0}]}),
    "a list": (lambda c: c["a"][0].set(0), {"a": [0, {"b": (2, 3)}]}),
    "from the end": (lambda c: c["a"][-1].set(0), {"a": [1, 0]}),
    "a tuple": (lambda c: c["a"][1]["b"][1].set(0), {"a": [1, {"b": (2, 0)}]}),
    "a named tuple": (lambda c: c["pair"].first.set(0), {"pair": Pair(0, [5])}),
    "one by index": (lambda c: c["pair"][1][0].set(0), {"pair": Pair(4, [0])}),
    "a dataclass": (lambda c: c["config"].layers[0].set(0), {"config": Config(6, (0,))}),
    "a frozen dict": (lambda c: c["frozen"]["x"]["y"].set(0), {"frozen": FrozenDict({"x": {"y": 0}})}),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_gives_a_whole_with_it_and_leaves_the_given_one(name: str) -> None:
    edit, new = EDITS[name]
    given = whole()
    found = edit(cursor(given))
    assert found == {**whole(), **new}
    assert given == whole()
    assert [type(one) for one in found.values()] == [type(one) for one in whole().values()]
    assert all(found[key] is given[key] for key in given if key not in new)


def test_edits_add_up_and_may_be_of_what_was_set() -> None:
    edit = cursor(whole())
    edit["a"] = {"new": [1]}
    edit["a"]["new"][0] += 1
    edit["a"]["more"] = edit["config"].width
    edit["config"].width *= 2
    edit["pair"].second[0] = 10 - edit["pair"].first
    assert edit["frozen"]["x"]["y"].set(1) == edit.build()
    assert edit.build() == {
        "a": {"new": [2], "more": 6}, "pair": Pair(4, [6]), "config": Config(12, (7,)), "frozen": {"x": {"y": 1}}
    }  # fmt: skip
    assert edit["a"].build() == {"new": [2], "more": 6}


def test_one_item_is_one_place_whatever_it_is_called() -> None:
    edit = cursor(whole())
    edit["pair"][0] = 1
    edit["pair"].first += 1
    edit["pair"][-2] += 1
    edit["a"][-2] = 5
    edit["a"][0] += 1
    assert (edit["pair"].build().first, edit["a"][0].build()) == (3, 6)


def test_without_an_edit_nothing_is_made() -> None:
    given = whole()
    edit = cursor(given)
    assert edit["frozen"]["x"]["y"] == 8
    assert edit["config"].layers[0] + edit["a"][0] == 8
    assert edit.build() is given


def test_mappings_keep_their_class_and_order() -> None:
    found = cursor(OrderedDict(b=1, a=2))["b"].set(3)
    assert type(found) is OrderedDict
    assert list(found.items()) == [("b", 3), ("a", 2)]


def test_a_mapping_may_have_fields() -> None:
    @dataclasses.dataclass
    class Fielded(UserDict[str, int]):
        data: dict[str, int]

    whole = cursor(Fielded({"a": 1}))
    assert whole.data["a"].build() == whole["a"].build() == 1
    assert [found.build() for found in whole.find_all(lambda path, value: value == 1)] == [1]


def test_values_are_computed_with_and_compared() -> None:
    edit = cursor({"x": 3, "y": 4.0, "s": "ab", "w": jnp.arange(4.0)})
    x, y, w = edit["x"], edit["y"], edit["w"]
    assert (x + 1, 1 - x, x**2, -x, x // y, abs(x)) == (4, -2, 9, -3, 0.0, 3)
    assert x < y
    assert x == 3
    assert (x != 3) is False
    assert not cursor([])
    assert "a" in edit["s"]
    assert (len(edit), list(edit), w.shape, float(w[1])) == (4, ["x", "y", "s", "w"], (4,), 1.0)
    assert [item + 1 for item in cursor((1, 2))] == [2, 3]
    assert repr(edit["x"]) == "Cursor(3)"


def test_updates_go_down_until_something_is_changed() -> None:
    asked = []

    def update(path: str, value: Any) -> Any:
        asked.append(path)
        return 0 if path in ("a/1/b", "config/width", "frozen/x") else value

    found = cursor(whole()).apply_update(update).build()
    assert found == {
        "a": [1, {"b": 0}], "pair": Pair(4, [5]), "config": Config(0, (7,)), "frozen": FrozenDict({"x": 0})
    }  # fmt: skip
    assert asked[:4] == ["a", "a/0", "a/1", "a/1/b"]
    assert "frozen/x/y" not in asked


def test_cursors_are_found_and_edited() -> None:
    edit = cursor({"dense_0": {"kernel": 1, "bias": 2}, "dense_1": {"kernel": 3, "bias": 4}, "count": 5})
    for dense in edit.find_all(lambda path, value: "dense" in path):
        dense["kernel"] *= 10
    found = edit.find(lambda path, value: path.endswith("1/bias"))
    assert found.set(0) == {"dense_0": {"kernel": 10, "bias": 2}, "dense_1": {"kernel": 30, "bias": 0}, "count": 5}
    assert [one.build() for one in edit.find_all(lambda path, value: isinstance(value, int) and value > 4)] == [
        10,
        30,
        5,
    ]


def test_a_train_state_is_edited_with_what_is_static() -> None:
    optax = pytest.importorskip("optax")
    state = TrainState.create(apply_fn=len, params={"w": jnp.ones(2)}, tx=optax.adam(0.1))
    edit = cursor(state)
    edit.params["w"] = edit.params["w"] * 2
    edit.opt_state[0].count += 3
    edit.apply_fn = print
    found = edit.build()
    assert (float(found.params["w"][0]), int(found.opt_state[0].count), found.apply_fn) == (2.0, 3, print)
    assert type(found) is TrainState


def assign(target: Any, name: str) -> None:
    setattr(target, name, 1)


ERRORS = {
    "no such key": (CursorFindError, lambda c: c["b"], "at /: there is no item 'b' .items: 'a', 'pair', 'config', 'fr"),
    "no such key below": (CursorFindError, lambda c: c["a"][1]["c"], r"at /a/1: .*add the item: `\['c'\] = …`"),
    "no such index": (CursorFindError, lambda c: c["a"].__setitem__(2, 1), "at /a: there is no item 2, but 2 items"),
    "a name in a list": (CursorFindError, lambda c: c["a"]["b"], "at /a: there is no item 'b', but 2 items"),
    "no such field": (LiftArgumentError, lambda c: assign(c["config"], "with"), "its fields: width, layers"),
    "a field of a dict": (LiftArgumentError, lambda c: assign(c, "a"), r"Write `\['a'\]`"),
    "a field that is read": (AttributeError, lambda c: c["a"].b, "has no fields"),
    "an item of a dataclass": (LiftArgumentError, lambda c: c["config"]["width"], "Write `.width`"),
    "an item of a leaf": (
        LiftArgumentError,
        lambda c: c["a"][0].__setitem__(0, 1),
        "at /a/0: 1 is not a container",
    ),
    "found nowhere": (CursorFindError, lambda c: c.find(lambda path, value: False), "nothing fulfils it"),
    "found twice": (CursorFindError, lambda c: c.find(lambda path, value: value in (1, 4)), "a/0, pair/first"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_edited_is_an_error(name: str) -> None:
    kind, use, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        use(cursor(whole()))


def test_a_cursor_has_no_hash() -> None:
    with pytest.raises(TypeError):
        hash(Cursor({}))

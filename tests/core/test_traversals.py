from __future__ import annotations

import copy
import dataclasses
from typing import Any, NamedTuple

import pytest

from liftcore.errors import CursorFindError, LiftArgumentError
from liftcore.traverse_util import ModelParamTraversal, t_identity


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Config:
    width: int


TREE = {"a": [1, 2, {"x": 3}], "b": (4, 5), "c": Pair(6, Config(7))}

CASES = {
    "the whole": (t_identity, [TREE], None),
    "an item": (t_identity["b"][-1], [5], {"b": (4, 50)}),
    "fields": (t_identity["c"].second.width, [7], {"c": Pair(6, Config(70))}),
    "each": (t_identity["b"].each(), [4, 5], {"b": (40, 50)}),
    "each value": (t_identity["a"][2].each(), [3], {"a": [1, 2, {"x": 30}]}),
    "leaves": (t_identity["a"].tree(), [1, 2, 3], {"a": [10, 20, {"x": 30}]}),
    "some": (t_identity["a"].tree().filter(lambda x: x != 2), [1, 3], {"a": [10, 2, {"x": 30}]}),
    "both": (t_identity.merge(t_identity["b"][0], t_identity["a"][1]), [4, 2], {"b": (40, 5), "a": [1, 20, {"x": 3}]}),
}


@pytest.mark.parametrize("name", CASES)
def test_places_are_read_mapped_and_set(name: str) -> None:
    traversal, values, new = CASES[name]
    before = copy.deepcopy(TREE)
    assert list(traversal.iterate(TREE)) == values
    if new is not None:
        assert traversal.update(lambda x: 10 * x, TREE) == {**TREE, **new}
        assert traversal.set([10 * x for x in values], TREE) == {**TREE, **new}
    assert before == TREE


def test_parameters_are_chosen_by_path() -> None:
    params = {"dense": {"kernel": 1, "bias": 2}, "empty": {}}
    bias = ModelParamTraversal(lambda path, value: path == "/dense/bias" and value == 2)
    assert list(bias.iterate(params)) == [2]
    assert bias.set([5], params) == {"dense": {"kernel": 1, "bias": 5}, "empty": {}}


@pytest.mark.parametrize(
    ("kind", "use", "text"),
    [
        (LiftArgumentError, lambda: t_identity["b"].each().set([1], TREE), "there are 1 values for 2 places"),
        (LiftArgumentError, lambda: t_identity.each().update(abs, 5), r"write `.tree\(\)`"),
        (CursorFindError, lambda: t_identity["d"].update(abs, TREE), "no item 'd'"),
        (AttributeError, lambda: t_identity["c"].third.update(abs, TREE), "third"),
    ],
)
def test_places_that_are_not_there_are_errors(kind: Any, use: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        use()

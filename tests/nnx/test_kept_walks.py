"""A walk that was kept with an object is used again only where a new one would find the same."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from nnx_like.crossing import kept
from nnx_like.crossing.groups import Groups
from nnx_like.crossing.outside import crossed
from nnx_like.errors import TraceContextError

Change = Callable[[Any], object]


class Pair(NamedTuple):
    left: Any
    right: Any


class Other(nnx.Dict):
    pass


class Model(nnx.Module):
    def __init__(self) -> None:
        self.first = nnx.Dict(a=nnx.Param(jnp.ones(2), tags=(1,)), b=nnx.Param(jnp.zeros(2)), c=1)
        self.second = nnx.Dict(d=nnx.Param(jnp.ones(3)))
        self.items = [nnx.Param(jnp.ones(2)), "text", {"x": nnx.Param(jnp.full(2, 2.0)), "n": 4}, {1: 2}]
        self.kept = nnx.State({0: {"a": nnx.Param(6.0)}})
        self.held = Pair(nnx.Param(jnp.ones(1)), (1, [nnx.Dict(v=nnx.Param(jnp.full(1, 3.0)))]))


def moved(model: Any) -> None:
    """The names and the values of all attributes, one after the other, are as before; they are in other objects."""
    first, second = vars(model.first), vars(model.second)
    c, d = first.pop("c"), second.pop("d")
    second.update(c=c, d=d)


def swapped(model: Any) -> None:
    model.items[0], model.items[2]["x"] = model.items[2]["x"], model.items[0]


def put(model: Any, place: int, value: Any) -> None:
    model.items[place] = value


CHANGES: dict[str, Change] = {
    "nothing": lambda model: None,
    "a value": lambda model: model.items[0].set_value(jnp.full(2, 9.0)),
    "moved": moved,
    "swapped": swapped,
    "an item of a list": lambda model: put(model, 1, "other"),
    "an item of a list that is equal, and of another type": lambda model: put(model, 1, np.str_("text")),
    "an object in a list": lambda model: put(model, 0, nnx.Param(jnp.full(2, 8.0))),
    "a list grows": lambda model: model.items.append(nnx.Param(jnp.ones(1))),
    "a list shrinks": lambda model: model.items.pop(),
    "the order of a list": lambda model: model.items.reverse(),
    "an item of a dict": lambda model: model.items[2].update(n=True),
    "a name in a dict": lambda model: model.items[2].update(y=model.items[2].pop("x")),
    "a name of another type in a dict": lambda model: model.items[3].update({True: model.items[3].pop(1)}),
    "a value in a state": lambda model: model.kept.raw_mapping[0].update(a=nnx.Param(7.0)),
    "a list in a tuple": lambda model: model.held.right[1].append(5),
    "below a list in a tuple": lambda model: setattr(model.held.right[1][0], "more", 5),
    "another tuple": lambda model: setattr(model, "held", Pair(model.held.left, (True, model.held.right[1]))),
    "a class": lambda model: object.__setattr__(model.second, "__class__", Other),
    "the class of a variable": lambda model: object.__setattr__(model.second.d, "__class__", nnx.BatchStat),
    "metadata": lambda model: model.second.d.set_metadata(tag=1),
    "a tie": lambda model: setattr(model.first, "b", model.first.a),
}


def walked(model: Any) -> tuple[Any, Any]:
    groups = Groups("test", "group")
    return crossed(groups, model, groups.group(None), "prefix")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_kept_walk_finds_what_a_new_one_does(change: Change) -> None:
    model = Model()
    walked(model)
    assert type(walked(model)[0]) is kept.Used
    change(model)
    found, ref = walked(model)
    object.__setattr__(model, "_walks", {})
    new, new_ref = walked(model)
    assert type(new) is not kept.Used
    assert ref == new_ref
    assert list(map(id, found.nodes)) == list(map(id, new.nodes))
    assert {group: {key: id(value) for key, value in values.items()} for group, values in found.values.items()} == {
        group: {key: id(value) for key, value in values.items()} for group, values in new.values.items()
    }
    assert found.holders == new.holders


@pytest.mark.parametrize("name", ["nothing", "a value"])
def test_it_is_used_where_nothing_but_values_is_another(name: str) -> None:
    model = Model()
    walked(model)
    CHANGES[name](model)
    assert type(walked(model)[0]) is kept.Used


def test_no_walk_is_kept_where_another_object_is_in_a_list() -> None:
    one, other = (nnx.Dict(n=nnx.Variable(jnp.array(0))) for _ in range(2))

    @nnx.jit
    def count(one: Any, others: Any) -> None:
        one.n.value += 1
        others[0].n.value += 1

    for _ in range(3):
        count(one, [other])
    assert (int(one.n), int(other.n)) == (3, 3)


class Free:
    """What may change in itself."""


@pytest.mark.parametrize(
    "value", [defaultdict(list, a=1), {"s"}, bytearray(1), (1, {"s"}), Free()], ids=lambda value: type(value).__name__
)
def test_no_walk_is_kept_where_something_could_change_unseen(value: Any) -> None:
    models = [nnx.Dict(w=nnx.Param(1.0, held=value)), nnx.Dict(w=nnx.Param(1.0), held=value)]
    for model in [*models, nnx.Dict(held=jnp.ones(1)), nnx.Dict(held=[jnp.ones(1)])]:
        with warnings.catch_warnings(action="ignore"):
            walked(model)
            assert type(walked(model)[0]) is not kept.Used


def test_an_optimizer_is_kept() -> None:
    optax = pytest.importorskip("optax")
    optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), optax.adam(0.1), wrt=nnx.Param)
    walked(optimizer)
    assert type(walked(optimizer)[0]) is kept.Used


def test_a_training_step_writes_what_plain_code_does() -> None:
    def step(model: Any, x: Any) -> Any:
        model.items[0].value = model.items[0] + x
        model.held.right[1][0].v.value = model.held.right[1][0].v * 2
        return model.items[0] * model.items[2]["n"]

    compiled, model, plain = nnx.jit(step), Model(), Model()
    for change in CHANGES.values():
        if change in (CHANGES["the order of a list"], CHANGES["swapped"], CHANGES["a name in a dict"]):
            continue
        for _ in range(2):
            np.testing.assert_array_equal(compiled(model, 1.0), step(plain, 1.0))
        change(model), change(plain)


def test_a_model_in_its_own_lists_goes_away() -> None:
    model = Model()
    model.items.append(model)
    walked(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_objects_in_a_list_are_met_in_each_call_beside_one_whose_walk_could_be_kept() -> None:
    @nnx.jit
    def step(model: Any, others: list[Any]) -> Any:
        model.w += others[0].w
        return model.w * 1

    model, others = nnx.Dict(w=nnx.Param(jnp.zeros(()))), [nnx.Dict(w=nnx.Param(jnp.ones(()))) for _ in range(2)]
    assert [float(step(model, [other])) for other in (*others, *others)] == [1, 2, 3, 4]


def test_a_kept_walk_does_not_write_in_another_trace() -> None:
    @nnx.jit
    def step(model: Any) -> None:
        model.w += 1

    model = nnx.Dict(w=nnx.Param(jnp.zeros(())))
    for _ in range(2):
        step(model)
    with pytest.raises(TraceContextError, match="w"):
        jax.jit(lambda: step(model))()
    assert model.w.get_value() == 2

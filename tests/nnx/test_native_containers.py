"""Containers in attributes: dicts with any keys are known by identity, like lists; others may not hold objects."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError, NotSharedWarning
from nnx_like.errors import AliasError, StructureError, TraceContextError
from nnx_like.objects.markers import items_of
from tests.nnx.lifts import ONCE


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Both:
    left: Any
    right: Any


@dataclasses.dataclass
class Plain:
    held: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    held: Any


class OwnDict(dict[Any, Any]):
    pass


class Color(enum.Enum):
    RED = 1


def weight() -> Any:
    return nnx.Param(jnp.ones(2))


DICTS: dict[str, Callable[[], Any]] = {
    "strings": lambda: {"b": weight(), "a": weight()},
    "integers": lambda: {1: weight(), 0: weight()},
    "tuples": lambda: {(1, "a"): weight(), (0,): weight()},
    "enums": lambda: {Color.RED: weight()},
    "types": lambda: {nnx.Param: weight(), int: 1},
    "floats, None, bytes": lambda: {0.5: weight(), None: weight(), b"x": 3},
    "frozensets": lambda: {frozenset({1, "a"}): weight(), frozenset({2}): weight()},
    "mixed": lambda: {"a": weight(), 2: weight(), (1,): weight(), True: "text"},
    "equal and of another type": lambda: {1.0: weight(), "1": weight()},
    "OrderedDict": lambda: OrderedDict(b=weight(), a=weight()),
    "OrderedDict, mixed": lambda: OrderedDict({1: weight(), "a": weight(), 0: weight()}),
    "defaultdict": lambda: defaultdict(list, {3: weight()}),
    "of dicts and lists": lambda: {0: {1: weight()}, 2: [weight(), {3: weight()}]},
    "of an object": lambda: {0: nnx.Dict(w=weight()), 1: "x", 2: 3, 3: None},
}
OTHERS: dict[str, Callable[[], Any]] = {
    "named tuple": lambda: Pair(weight(), {0: weight()}),
    "registered dataclass": lambda: Both([weight()], {0: weight(), "a": weight()}),
    "tuple": lambda: (weight(), {0: weight()}, [{(1,): weight()}]),
    "state": lambda: nnx.State({0: {"a": weight()}}),
}


class Model(nnx.Module):
    """One container in two attributes, and once more below another object."""

    def __init__(self, held: Any) -> None:
        self.held, self.alias, self.below = held, held, nnx.Dict(again=[held])


def variables(model: Any) -> list[Any]:
    return [one for _, one in nnx.iter_graph(model) if isinstance(one, nnx.Variable)]


def shared(model: Model) -> bool:
    return model.held is model.alias is model.below.again[0]


@pytest.mark.parametrize("name", [*DICTS, *OTHERS])
def test_a_body_finds_and_changes_what_a_container_holds(name: str) -> None:
    def body(model: Any, x: Any) -> Any:
        for one in variables(model):
            one.set_value(one.get_value() + x)
        return x * 1

    model = Model((DICTS | OTHERS)[name]())
    held, before = model.held, variables(model)
    assert before
    for number, lift in enumerate((nnx.jit, nnx.remat, ONCE["cond"], ONCE["fori_loop"], ONCE["value_and_grad"]), 1):
        lift(body)(model, jnp.ones(()))
        assert [one.get_value().tolist() for one in before] == [[1.0 + number] * 2] * len(before)
        assert all(one is other for one, other in zip(before, variables(model), strict=True))
    assert name in OTHERS or (model.held is held and shared(model))


@pytest.mark.parametrize("lift", ONCE)
def test_every_lift_knows_a_dict_with_other_keys_by_identity(lift: str) -> None:
    def body(model: Any, x: Any) -> Any:
        assert shared(model)
        assert list(model.held) == [1, "a", (0,)]
        model.held[1].set_value(model.held[1].get_value() * 2)
        return x * 1

    model = Model({1: weight(), "a": [1], (0,): nnx.Dict(w=weight())})
    held = model.held
    ONCE[lift](body)(model, jnp.ones(()))
    assert shared(model)
    assert model.held is held
    assert held[1].get_value().tolist() == [2, 2]


@pytest.mark.parametrize("lift", ["jit", "remat", "vmap", "cond", "value_and_grad"])
def test_a_body_adds_and_deletes_items_with_any_keys(lift: str) -> None:
    def body(model: Any, x: Any) -> Any:
        model.held[(2, 3)] = nnx.Param(x * 1)
        del model.held[0]
        model.ordered.move_to_end("a")
        model.default["new"].append(nnx.Param(x * 3))
        model.default.default_factory = dict
        return x * 1

    model = Model({0: weight(), "s": 1})
    model.ordered, model.default = OrderedDict(a=1, b=2), defaultdict(list)
    held, default = model.held, model.default

    def chosen(body: Any) -> Any:
        return lambda model, x: nnx.cond(True, body, body, model, x)

    (chosen if lift == "cond" else ONCE[lift])(body)(model, jnp.ones(()))
    assert model.held is held
    assert shared(model)
    assert list(held) == ["s", (2, 3)]
    assert float(held[2, 3]) == 1
    assert list(model.ordered) == ["b", "a"]
    assert model.default is default
    assert default.default_factory is dict
    assert float(default["new"][0]) == 3


LOOPS = ("scan", "fori_loop", "while_loop", "cond", "switch")
"""Those whose bodies may change no structure."""


@pytest.mark.parametrize(
    "form", [set, lambda one: [set(one)], lambda one: {1: (set(one),)}], ids=["set", "list", "dict"]
)
@pytest.mark.parametrize("lift", ONCE)
def test_a_set_is_known_by_identity(lift: str, form: Any) -> None:
    def the_set(held: Any) -> Any:
        return held if type(held) is set else held[0] if type(held) is list else held[1][0]

    def body(model: Any, x: Any) -> Any:
        assert shared(model)
        if lift not in LOOPS:
            the_set(model.held).add(model.count)
            assert len(the_set(model.alias)) == model.count
        return x * 1

    model = Model(form({"a"}))
    model.w, held = weight(), the_set(model.held)
    for model.count in (2, 3):
        ONCE[lift](body)(model, jnp.ones(()))
        assert shared(model)
        assert the_set(model.held) is held
    assert held == ({"a"} if lift in LOOPS else {"a", 2, 3})


@pytest.mark.parametrize("lift", ["jit", "remat"])
def test_a_new_or_replaced_set_is_one_set_after_the_body(lift: str) -> None:
    def body(model: Any, x: Any) -> Any:
        model.alias = model.held = model.below.again[0] = {"new"}
        model.second = {object}
        return x * 1

    model = Model({"old"})
    before = model.held
    ONCE[lift](body)(model, jnp.ones(()))
    assert shared(model)
    assert (model.held, before, model.second) == ({"new"}, {"old"}, {object})


@pytest.mark.parametrize("form", [lambda: {1, "a"}, lambda: [1, "a"]], ids=["set", "list"])
def test_a_container_of_an_outer_trace_may_stay_and_may_not_change(form: Any) -> None:
    def changes(model: Any) -> None:
        model.held.clear()

    model = nnx.Dict(w=weight(), held=form())
    for body, how in ((changes, pytest.raises(TraceContextError)), (lambda model: None, contextlib.nullcontext())):
        with how:
            nnx.jit(lambda x, body=body: nnx.remat(lambda m: (body(m), nnx.Dict(x=x))[1])(model).x * 1)(jnp.ones(2))
        assert len(model.held) == 2


def test_a_body_may_change_nothing_but_the_factory_of_a_defaultdict() -> None:
    def body(model: Any) -> None:
        model.held.default_factory = dict

    for lift in (nnx.jit, nnx.remat):
        model = nnx.Dict(w=weight(), held=defaultdict(list, a=1))
        lift(body)(model)
        assert model.held.default_factory is dict


def test_a_set_of_values_that_cannot_be_compared_stays_as_it_is() -> None:
    one = iter([1])
    model = nnx.Dict(w=weight(), held={one})
    nnx.remat(lambda model: model.w.set_value(model.w.get_value() + 1))(model)
    assert model.held == {one}
    assert nnx.clone(model).held == {one}


def test_a_compiled_function_sees_what_a_set_holds_now() -> None:
    model, sizes = nnx.Dict(w=weight(), held={1}), []
    f = nnx.jit(lambda model: sizes.append(len(model.held)))
    for more in (1, 2, 2, 3):
        model.held.add(more)
        f(model)
    assert sizes == [1, 2, 3]


COPIES: dict[str, Any] = {
    "clone": nnx.clone,
    "split and merge": lambda m: nnx.merge(*nnx.split(m)),
    "recursive_map": lambda m: nnx.recursive_map(lambda _, x: x, m),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("copied", [name for name in COPIES if name != "recursive_map"])  # it maps static values too
def test_a_copy_has_a_set_of_its_own(copied: str) -> None:
    model = Model({1})
    made = COPIES[copied](model)
    assert shared(made)
    model.held.add(2)
    assert made.held == {1}


@pytest.mark.parametrize("name", [*DICTS, *OTHERS])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_same_containers(name: str, copied: Any) -> None:
    model = Model((DICTS | OTHERS)[name]())
    made = copied(model)
    assert type(made.held) is type(model.held)
    assert len(variables(made)) == len(variables(model))
    if name in DICTS:
        assert shared(made)
        assert made.held is not model.held
        assert list(map(repr, made.held)) == list(map(repr, model.held))
        assert getattr(made.held, "default_factory", 0) is getattr(model.held, "default_factory", 0)


@pytest.mark.parametrize("name", [*DICTS, *OTHERS])
def test_states_reach_every_item(name: str) -> None:
    model = Model((DICTS | OTHERS)[name]())
    before = variables(model)
    state = nnx.state(model)
    assert len(jax.tree.leaves(state)) == len(before)
    nnx.update(model, jax.tree.map(lambda x: 3 * x, state))
    assert all(one.get_value().tolist() == [3, 3] for one in before)
    nnx.update(model, nnx.state(model).to_pure_dict())
    assert [one is other for one, other in zip(before, variables(model), strict=True)] == [True] * len(before)
    assert "Param" in repr(model)
    if name in DICTS:
        nnx.pop(model, nnx.Param)
        assert variables(model) == []
        assert shared(model)


@pytest.mark.parametrize("name", ["mixed", "of dicts and lists", "defaultdict"])
def test_an_optimizer_updates_every_item(name: str) -> None:
    def loss(model: Any) -> Any:
        return sum(one.get_value().sum() for one in variables(model))

    model = Model(DICTS[name]())
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(loss)(model))
    assert all(one.get_value().tolist() == [0, 0] for one in variables(model))


def test_the_order_of_keys_in_a_state_depends_on_the_keys_alone() -> None:
    items = [("a", 1), (2, 1), ((1, "x"), 1), (None, 1), (frozenset({3, 1}), 1), (0.5, 1), (frozenset({2}), 1)]
    if jax.__version_info__ < (0, 10):  # paths of older ones cannot contain the key None
        items = [item for item in items if item[0] is not None]
    orders = []
    for some in (items, items[::-1]):
        model = nnx.Dict(held={key: weight() for key, _ in some})
        orders.append([path for path, _ in jax.tree_util.tree_leaves_with_path(nnx.state(model))])
    assert orders[0] == orders[1]


def test_a_number_as_text_names_the_item_with_that_number() -> None:
    model = nnx.Dict(held={0: weight(), "1": weight(), 1: weight()}, items=[weight()])
    texts = {"held": {"0": jnp.full(2, 5.0), "1": jnp.full(2, 6.0)}, "items": {"0": jnp.full(2, 7.0)}}
    nnx.update(model, texts)
    values = [model.held[0], model.held["1"], model.held[1], model.items[0]]
    assert [float(one.get_value()[0]) for one in values] == [5, 6, 1, 7]
    model = nnx.Dict(held={0: weight()}, items=[weight()])
    made = nnx.merge(nnx.graphdef(model), {"held": {"0": jnp.zeros(2)}, "items": {"0": jnp.zeros(2)}})
    assert made.held[0].get_value().tolist() == made.items[0].get_value().tolist() == [0, 0]


def test_a_compiled_function_sees_another_key_that_is_equal() -> None:
    traces: list[Any] = []

    @nnx.jit
    def read(model: Any) -> None:
        traces.append(list(map(type, model.held)))

    model = nnx.Dict(held={1: weight()})
    for key in (1, 1, True, 1.0):
        model.held[key] = model.held.pop(1)
        read(model)
    assert traces == [[int], [bool], [float]]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {0: x, "a": weight()},
        lambda x: [x],
        lambda x: OrderedDict({(1,): (1, x)}),
        lambda x: [Both(x, 1)],
        lambda x: ([{0: x}], 3),
    ],
)
def test_one_container_under_two_axes_is_an_error(make: Any) -> None:
    held = make(jnp.ones((2, 2)))
    with pytest.raises(AliasError, match="is also"):
        nnx.vmap(lambda one, other: None, in_axes=(0, None))(nnx.Dict(x=held), nnx.Dict(y=held))
    one = nnx.Dict(x=held, y=3)
    axes = nnx.StateAxes({nnx.Param: None, ...: 0})
    nnx.vmap(lambda both: None, in_axes=([axes, 0],) if not variables(one) else ([axes, axes],))([one, one])


def test_pop_from_a_list_that_is_shared_removes_each_item_once() -> None:
    items: list[Any] = [weight(), 1, weight(), 2]
    items.append(items)
    model = nnx.Dict(one=items, other=items)
    nnx.pop(model, nnx.Param)
    assert items[:2] == [1, 2]
    assert items[2] is items


HIDING: dict[str, Callable[[Any], Any]] = {
    "set": lambda one: {nnx.Linear(1, 1, rngs=nnx.Rngs(0))},
    "frozenset": lambda one: frozenset({nnx.Linear(1, 1, rngs=nnx.Rngs(0))}),
    "deque": lambda one: deque([1, one]),
    "UserDict": lambda one: UserDict(a=one),
    "UserList": lambda one: UserList([one]),
    "ChainMap": lambda one: ChainMap({"a": one}),
    "mappingproxy": lambda one: types.MappingProxyType({"a": one}),
    "a class derived from dict": lambda one: OwnDict(a=one),
    "dataclass": lambda one: Plain([one]),
    "dataclass with slots": lambda one: Slotted([one]),
    "SimpleNamespace": lambda one: types.SimpleNamespace(a=one),
    "partial": lambda one: (functools.partial(len, one),),
    "partial by name": lambda one: [functools.partial(functools.partial(len, x={0: one}))],
    "partial of a method": lambda one: functools.partial(nnx.Linear(1, 1, rngs=nnx.Rngs(0)).__call__, one),
    "bound method": lambda one: nnx.Linear(1, 1, rngs=nnx.Rngs(0)).__call__,
    "key": lambda one: {nnx.Linear(1, 1, rngs=nnx.Rngs(0)): 1},
    "in a list": lambda one: [deque([one])],
}
USES: dict[str, Callable[[Any], Any]] = {
    "jit": nnx.jit(lambda model: None),
    "state": nnx.state,
    "clone": nnx.clone,
    "iter_graph": lambda model: list(nnx.iter_graph(model)),
    "grad": lambda model: nnx.grad(lambda model: model.w.get_value().sum())(model),
    "jax.tree": jax.tree.leaves,
    "eval": lambda model: model.eval(),
}


def _meets(name: str, use: str) -> bool:
    """Whether a use looks at the place: the keys of a dict are no children of it."""
    return name != "key" or use not in ("iter_graph", "jax.tree", "eval")


@pytest.mark.parametrize(("name", "use"), [(name, use) for name in HIDING for use in USES if _meets(name, use)])
def test_a_container_that_would_hide_an_object_is_refused(name: str, use: str) -> None:
    model = nnx.Module()
    model.w, model.held = weight(), HIDING[name](weight())
    with pytest.raises(
        StructureError, match=r"only static values are allowed(, in a .*)?\. (Keep it in an attribute|Write `jax)"
    ):
        USES[use](model)


@pytest.mark.parametrize(
    "held", [{1, 2}, deque([1]), UserDict(a=1), OwnDict(a=1), Plain(3), Slotted(3), functools.partial(len)]
)
def test_containers_of_static_values_are_static(held: Any) -> None:
    model = nnx.Dict(w=weight(), held=held)
    with pytest.warns() if type(held) is deque else pytest.MonkeyPatch.context():
        assert nnx.jit(lambda model: len(nnx.state(model)))(model) == 1
    assert type(nnx.clone(model).held) is type(held)


def test_an_array_in_a_deque_is_refused_where_it_would_cross() -> None:
    model = nnx.Dict(w=weight(), held=deque([jnp.ones(2)]))
    assert len(nnx.clone(model).held) == 1
    with pytest.raises(StructureError, match=r"held\[0\]: a ArrayImpl is in a place"):
        nnx.jit(lambda model: None)(model)
    misfit = pytest.raises(StructureError, match="is in a place where only static values")
    with pytest.warns(NotSharedWarning, match="queue is deque"), misfit:  # which warns once of each place
        nnx.jit(lambda model: model.queue.append(2 * model.w.get_value()))(nnx.Dict(w=weight(), queue=deque()))


def test_an_ordered_dict_keeps_its_order_as_in_jax() -> None:
    held = OrderedDict(b=1, a=2)
    assert [value for _, value in items_of(held)] == jax.tree.leaves(held) == [1, 2]
    assert [value for _, value in items_of(dict(held))] == jax.tree.leaves(dict(held)) == [2, 1]


class Through(nnx.Module):
    """Calls a function that it has with a layer."""

    def __init__(self, make: Callable[..., Any], rngs: nnx.Rngs) -> None:
        self.run = make(lambda layer, x, scale: layer(x) * scale.get_value(), nnx.Linear(2, 2, rngs=rngs))
        self.scale = weight()

    def __call__(self, x: Any) -> Any:
        return self.run(x, self.scale)


@pytest.mark.parametrize("make", [functools.partial, jax.tree_util.Partial])
def test_what_a_partial_function_holds_belongs_to_the_object(make: Any) -> None:
    model, x = Through(make, nnx.Rngs(0)), jnp.ones((1, 2))
    path, y = ("run", 0, 0, "kernel"), model(x)
    kernel = dict(nnx.state(model).flat_state())[path].get_value()
    for copied in (nnx.clone(model), nnx.merge(*nnx.split(model)), jax.tree.map(lambda one: one, model)):
        np.testing.assert_array_equal(copied(x), y)
        assert copied.run.args[0] is not model.run.args[0]
    step = nnx.jit(lambda model, x: model(x).sum())
    model.run.args[0].kernel.set_value(0 * kernel)
    assert step(model, x) == 0
    model.run.args[0].kernel.set_value(kernel)
    np.testing.assert_allclose(step(model, x), y.sum(), rtol=1e-6)
    grads = nnx.grad(lambda model: model(x).sum())(model)
    np.testing.assert_array_equal(dict(grads.flat_state())[path].get_value(), jnp.ones((2, 2)) * model.scale[...])
    updated = nnx.jit(lambda model: model.run.args[0].kernel.set_value(jnp.ones((2, 2))))
    updated(model)
    assert model.run.args[0].kernel.get_value().tolist() == [[1, 1], [1, 1]]


class Counted(nnx.Module):
    def __init__(self) -> None:
        self.scale = jnp.ones(2)

    def __call__(self, x: Any) -> Any:
        self.sow(nnx.Intermediate, "seen", x)
        return x * self.scale


class Within(nnx.Module):
    def __init__(self, **options: Any) -> None:
        self.run = functools.partial(lambda layer, x, **_: layer(x), Counted(), **options)


def test_objects_in_a_partial_function_are_changed_in_place() -> None:
    model = Within(b=2, a=jnp.ones(2))
    layer = model.run.args[0]
    layer(jnp.ones(2))
    nnx.update(model, {"run": {0: {0: {"scale": 3 * jnp.ones(2)}}, 1: {"a": jnp.zeros(2)}}})
    assert (layer.scale.tolist(), model.run.keywords["a"].tolist()) == ([3, 3], [0, 0])
    assert [path for path, _ in nnx.pop(model, nnx.Intermediate).flat_state()] == [("run", 0, 0, "seen")]
    assert not hasattr(layer, "seen")
    with pytest.raises(LiftArgumentError, match="a Partial holds run, and cannot be changed in place"):
        nnx.pop(model, lambda path, _: path[-1] == "a")


@pytest.mark.parametrize("options", [{}, {"b": 2, "a": "text"}, {"b": jnp.ones(2)}], ids=str)
def test_a_loop_carries_objects_with_partial_functions(options: dict[str, Any]) -> None:
    model = Within(**options)

    def body(_: Any, carried: Any) -> Any:
        model, x = carried
        model.run.args[0].scale *= 2
        return model, x + model.run.args[0].scale

    found, x = nnx.fori_loop(0, 2, body, (model, jnp.zeros(2)))
    assert found is model
    assert (model.run.args[0].scale.tolist(), x.tolist()) == ([4, 4], [6, 6])
    assert model.run.keywords.keys() == options.keys()

"""Cases of the crossing that went wrong at first, or go wrong elsewhere."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import nnx_like as nnx
from liftcore.errors import CarryTypeError, LiftArgumentError, LoopInvarianceError, NotSharedWarning
from nnx_like.errors import AliasError, StructureError, TraceContextError
from tests.lift.quick import assert_same, compiled


class Model(nnx.Module):
    def __init__(self, flag: Any = 1) -> None:
        self.w = nnx.Param(jnp.ones(2))
        self.n = nnx.BatchStat(jnp.zeros(()))
        self.flag = flag
        self.array = jnp.zeros(3)
        self.parts = [jnp.ones(2), {"k": nnx.Param(jnp.ones(1))}]


def test_static_values_differ_by_type() -> None:
    seen = []

    @nnx.jit
    def run(model: Any) -> Any:
        seen.append(model.flag)
        return model.w * 1

    for flag in (1, True, 1.0, 1, 0.0, -0.0, ["a", 2], ["a", 2], ["a", 2.0], ("a",)):
        run(Model(flag))
    assert [repr(flag) for flag in seen] == ["1", "True", "1.0", "0.0", "-0.0", "['a', 2]", "['a', 2.0]", "('a',)"]


def test_a_static_list_that_changes_in_place_is_seen() -> None:
    model = Model(["a"])
    length = nnx.jit(lambda model: model.w * len(model.flag))
    assert length(model)[0] == 1
    model.flag.append("b")
    assert length(model)[0] == 2


def test_an_object_that_may_change_unseen_is_traced_each_time() -> None:
    class Config:
        rate, rows = 1.0, None

        def __init__(self) -> None:
            self.rows = iter(())

    model = Model(Config())
    scaled = nnx.jit(lambda model: model.w * model.flag.rate)
    with pytest.warns(NotSharedWarning, match="flag"):
        assert scaled(model)[0] == 1
    model.flag.rate = 3.0
    assert scaled(model)[0] == 3


def test_retraces_names_the_change_of_structure() -> None:
    run, model = nnx.jit(lambda model: model.w * model.flag), Model()
    with liftcore.retraces() as found:
        for change in (
            lambda: None,
            lambda: setattr(model, "flag", True),
            lambda: setattr(model, "extra", nnx.Param(jnp.ones(1))),
            lambda: model.w.set_metadata(tag="t"),
            lambda: model.parts.append(model.n),
        ):
            change()
            run(model)
            run(model)
    texts = str(found).splitlines()
    assert len(texts) == 5
    facts = ("first trace", ".flag: 1 before, True now", ".extra: absent before, Param now", ".w.tag", ".parts[2]")
    assert [fact for fact, text in zip(facts, texts, strict=True) if fact not in text] == []


def test_references_change_as_they_did_inside() -> None:
    model = Model()
    w, n = model.w, model.n

    @nnx.jit
    def change(model: Any) -> None:
        model.w, model.n = model.n, model.w  # swapped
        model.tied = model.w
        model.parts.append(model.n)
        model.new = nnx.Dict(v=nnx.Param(jnp.zeros(1)))
        model.new.back = model  # a cycle
        del model.flag

    change(model)
    assert model.w is n
    assert model.n is w
    assert model.tied is n
    assert model.parts[2] is w
    assert model.new.back is model
    assert not hasattr(model, "flag")


def test_a_tie_that_is_broken_is_broken_outside() -> None:
    model = nnx.Dict(a=nnx.Param(1.0))
    model.b = model.a

    @nnx.jit
    def untie(model: Any) -> None:
        model.b = nnx.Param(model.a * 2)

    untie(model)
    assert model.b is not model.a
    assert model.b.get_value() == 2
    assert nnx.jit(lambda model: model.a + model.b)(model) == 3


def test_sharing_between_arguments_and_results_survives() -> None:
    model = Model()
    other = nnx.Dict(inner=model)

    @nnx.jit
    def run(model: Any, other: Any) -> Any:
        assert other.inner is model
        made = nnx.Dict(w=model.w)
        return made, made, other.inner, model.w

    first, second, inner, w = run(model, other)
    assert first is second
    assert first.w is w is model.w
    assert inner is model


def test_one_variable_has_one_axis() -> None:
    stacked = nnx.Dict(w=nnx.Param(jnp.ones((3, 2))))
    run = nnx.vmap(lambda a, b: a.w * b.inner.w, in_axes=(0, None))
    with pytest.raises(AliasError, match=r"\[1\].inner.w.*\[0\].w.*on axis 0.*on no axis"):
        run(stacked, nnx.Dict(inner=stacked))
    same = nnx.StateAxes({nnx.Param: 0})
    assert nnx.vmap(lambda a, b: a.w * b.inner.w, in_axes=(same, 0))(stacked, nnx.Dict(inner=stacked)).shape == (3, 2)


def test_a_variable_that_is_assigned_its_own_value_is_not_written() -> None:
    model = Model()
    before = model.w.get_value()

    @nnx.jit
    def own(model: Any) -> None:
        model.w.value = model.w.value

    own(model)
    assert model.w.get_value() is before


def test_variables_hold_anything() -> None:
    model = nnx.Dict(
        tree=nnx.Variable({"x": jnp.ones(2), "mode": "train", "n": 3}),
        none=nnx.Variable(None),
        text=nnx.Variable("a"),
        function=nnx.Variable(jnp.sin),
        number=nnx.Variable(1),
        empty=nnx.Variable({}),
    )

    @nnx.jit
    def run(model: Any) -> Any:
        tree = model.tree.get_value()
        assert tree["mode"] == "train"
        assert model.text.get_value() == "a"
        assert model.empty.get_value() == {}
        tree["x"] = model.function.get_value()(tree["x"])  # in place, which is a write too
        model.none.value = jnp.ones(1)
        model.text.value = "b"
        model.number += 1

    run(model)
    assert model.tree.get_value()["mode"] == "train"
    np.testing.assert_allclose(model.tree.get_value()["x"], np.sin(np.ones(2)), rtol=1e-6)
    assert model.none.get_value().shape == (1,)
    assert model.text.get_value() == "b"
    assert model.number.get_value() == 2


def test_arrays_that_are_attributes_are_written_where_they_are() -> None:
    model = Model()
    parts = model.parts

    @nnx.jit
    def run(model: Any) -> None:
        model.array = model.array + 1
        model.parts[0] = model.parts[0] * 5

    run(model)
    assert model.array.tolist() == [1, 1, 1]
    assert parts[0].tolist() == [5, 5]
    assert model.parts is parts


def test_branches_agree_on_structure() -> None:
    def add(model: Any) -> None:
        model.extra = nnx.Param(jnp.ones(1))

    with pytest.raises(StructureError, match="extra was"):
        nnx.cond(True, add, lambda model: None, Model())
    model = Model()
    nnx.cond(True, add, lambda model: setattr(model, "extra", nnx.Param(jnp.zeros(1))), model)
    assert model.extra.get_value() == 1


def test_a_loop_carries_the_same_objects() -> None:
    for body, text in [
        (lambda i, model: Model(), "the objects that came in"),
        (lambda i, model: nnx.clone(model), "the objects that came in"),
        (lambda i, model: (setattr(model, "extra", nnx.Param(jnp.ones(1))), model)[1], "extra was added"),
        (lambda i, model: (model.w.set_metadata(tag=1), model)[1], "metadata"),
    ]:
        model = Model()
        with pytest.raises(StructureError, match=text):
            nnx.fori_loop(0, 2, body, model)
        assert not hasattr(model, "extra")
        assert not model.w.get_metadata()


def test_a_body_that_changes_the_list_or_dict_of_its_carry_is_seen() -> None:
    def swap(carry: Any) -> Any:
        carry[0], carry[1] = carry[1], carry[0]
        return carry

    models = [Model(), Model()]
    for loop in (
        lambda: nnx.fori_loop(0, 1, lambda i, carry: swap(carry), models),
        lambda: nnx.scan(lambda carry, x: (swap(carry), x), in_axes=(nnx.Carry, 0))(models, jnp.ones(1)),
    ):
        with pytest.raises(StructureError, match="the objects that came in"):
            loop()
    with pytest.raises(CarryTypeError, match="returned"):
        nnx.fori_loop(0, 1, lambda i, carry: (carry.update(more=1.0), carry)[1], {"model": Model()})
    with pytest.raises(CarryTypeError, match="returned"):
        nnx.fori_loop(0, 1, lambda i, carry: (carry.append(carry[0]), carry)[1], models)

    def count(i: Any, carry: Any) -> Any:
        carry["n"] += 1
        return carry

    assert nnx.fori_loop(0, 3, count, {"model": models[0], "n": 0})["n"] == 3


def test_a_lost_write_of_a_shared_variable_is_an_error() -> None:
    def count(model: Any, x: Any) -> Any:
        model.n += 1
        return x

    model = Model()
    with pytest.raises(LoopInvarianceError, match=r"\[0\].n"):
        nnx.scan(count, in_axes=(None, 0), out_axes=0)(model, jnp.ones(3))
    assert model.n.get_value() == 0
    carried = nnx.StateAxes({nnx.BatchStat: nnx.Carry, ...: None})
    nnx.scan(count, in_axes=(carried, 0), out_axes=0)(model, jnp.ones(3))
    assert model.n.get_value() == 3


def test_streams_are_split_by_axes_and_no_key_comes_twice() -> None:
    rngs = nnx.Rngs(0)

    @nnx.split_rngs(splits=4)
    @nnx.vmap
    def draw(rngs: Any) -> Any:
        return jax.random.key_data(rngs()), jax.random.key_data(rngs())

    keys = np.concatenate([np.concatenate(draw(rngs)) for _ in range(2)] + [jax.random.key_data(rngs())[None]])
    assert len(np.unique(keys, axis=0)) == len(keys) == 17


def test_axis_names_follow_negative_axes() -> None:
    seen = []

    def make(x: Any) -> Any:
        return nnx.Dict(w=nnx.Param(jnp.zeros((2, 3)), sharding=("a", "b")))

    names = {nnx.PARTITION_NAME: "layers"}
    model = nnx.vmap(make, out_axes=-1, transform_metadata=names)(jnp.arange(4))
    assert model.w.shape == (2, 3, 4)
    assert model.w.sharding == ("a", "b", "layers")

    @nnx.jit
    @nnx.vmap(in_axes=(-1, None), transform_metadata=names)
    def run(model: Any, x: Any) -> None:
        seen.append(model.w.sharding)
        model.w += x

    run(model, 1.0)
    run(model, 1.0)
    assert seen == [("a", "b")]
    assert model.w.sharding == ("a", "b", "layers")


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("given", [("a",), ("a", "b"), jax.sharding.PartitionSpec("a")])
def test_axis_names_follow_axes_also_if_there_are_few(given: Any, axis: int) -> None:
    names = {nnx.PARTITION_NAME: "new"}
    expected = [*given, *[None] * (2 - len(given))]
    expected.insert(axis if axis >= 0 else 3 + axis, "new")
    while expected[-1] is None:
        expected.pop()
    seen = []

    def make(x: Any) -> Any:
        return nnx.Dict(w=nnx.Param(jnp.zeros((2, 3)), sharding=given, optimizer_sharding=given))

    def run(model: Any) -> None:
        seen.append(model.w.sharding)
        model.w += 1

    model = nnx.vmap(make, out_axes=axis, transform_metadata=names)(jnp.arange(4))
    assert type(model.w.sharding) is type(given)
    assert tuple(model.w.sharding) == tuple(model.w.optimizer_sharding) == tuple(expected)
    nnx.vmap(run, in_axes=axis, transform_metadata=names)(model)
    nnx.scan(run, in_axes=axis, out_axes=None, transform_metadata=names)(model)
    assert [[name for name in one if name] for one in seen] == [list(given)] * 2
    assert tuple(model.w.sharding) == tuple(expected)


def test_a_variable_that_goes_home_has_the_names_of_its_axes_again() -> None:
    seen = []
    model = nnx.Dict(w=nnx.Param(jnp.zeros((2, 3)), sharding=("a", "b")))

    def run(model: Any) -> None:
        seen.append(model.w.sharding)
        model.w += 1

    nnx.vmap(run)(model)
    assert seen == [("b",)]
    assert model.w.sharding == ("a", "b")


def test_an_inner_lift_changes_nothing_that_the_outer_body_closes_over() -> None:
    model = Model()

    def through(x: Any) -> Any:
        nnx.jit(lambda model: model.n.set_value(model.n + x))(model)
        return x

    with pytest.raises(TraceContextError, match="Pass it"):
        nnx.jit(through)(1.0)
    with pytest.raises(TraceContextError, match="Pass the object"):
        nnx.jit(lambda x: model.w)(1.0)
    with pytest.raises(LiftArgumentError, match=r"jit\(Model"):
        nnx.jit(Model.__init__.__get__(model))
    assert model.n.get_value() == 0


def test_caches_hold_neither_arrays_nor_models() -> None:
    run = nnx.jit(lambda model: model.w * 1)
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), inner=nnx.Dict(v=nnx.Param(jnp.ones(2))))
    run(model)
    run(model)
    alive = [weakref.ref(one) for one in (model, model.w, model.inner)]
    del model
    gc.collect()
    assert [one() for one in alive] == [None, None, None]


def test_copies_keep_sharing_and_can_be_changed() -> None:
    model = nnx.Dict(a=nnx.Param(jnp.ones(1)))
    model.b = model.a
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model)):
        made.a.value = jnp.zeros(1)
        assert made.b.get_value() == 0
        assert model.a.get_value() == 1
    doubled = jax.tree.map(lambda leaf: 2 * leaf, model)
    assert doubled.b.get_value() == 2


def test_names_that_look_like_paths_stay_apart() -> None:
    model = nnx.Dict({"a.b": nnx.Param(1.0), "a": nnx.Dict(b=nnx.Param(2.0)), "dropout": nnx.Param(3.0)})
    items = nnx.List([nnx.Param(4.0)])

    @nnx.jit
    def run(model: Any, *items: Any, **named: Any) -> Any:
        model["a.b"].value = model["a.b"] * 10
        return model["a.b"] + model["a"].b + items[0][0] + named["items"]["0"]

    assert run(model, items, items=nnx.Dict({"0": nnx.Param(100.0)})) == 116
    assert nnx.state(items).flat_state()[0][0] == (0,)
    assert nnx.state(model, ("dropout", None)).to_pure_dict() == {}


class Line(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(2))
        self.inner = nnx.Dict(b=nnx.Param(jnp.ones(2)), n=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "w", nnx.Param(jnp.full(2, 5.0))),
        lambda model: setattr(model.inner, "n", True),
        lambda model: setattr(model.inner, "n", 1.0),
        lambda model: vars(model.inner).update(n=7),
        lambda model: setattr(model.inner, "b", model.w),
        lambda model: model.inner.b.set_value({"x": jnp.ones(2)}["x"] * 3),
        lambda model: model.w.set_value(np.ones(2, np.float32)),
        lambda model: model.w.set_metadata(tag="t"),
        lambda model: setattr(model, "inner", nnx.Dict(b=nnx.Param(jnp.zeros(2)), n=2)),
        lambda model: setattr(model.inner, "n", [1]),
        lambda model: setattr(model, "added", jnp.ones(3)),
    ],
)
def test_a_kept_walk_is_never_stale(change: Any) -> None:
    def body(model: Any) -> Any:
        n = model.inner.n if isinstance(model.inner.n, (int, float)) else 9
        kind = {bool: 100.0, int: 200.0, float: 300.0, list: 400.0}[type(model.inner.n)]
        result = model.w * n + model.inner.b + kind + len(vars(model)) + len(model.w.get_metadata())
        model.w.value = model.w + 1
        return result

    compiled, model, plain = nnx.jit(body), Line(), Line()
    for _ in range(2):
        np.testing.assert_array_equal(compiled(model), body(plain))
    change(model), change(plain)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(model), body(plain))
    assert (model.inner.b is model.w) == (plain.inner.b is plain.w)


def test_native_lists_and_dicts_keep_their_identity() -> None:
    model = nnx.Dict(x=[], named={"k": nnx.Param(jnp.zeros(1))}, n=nnx.Param(jnp.zeros(())))
    model.y, model.same = model.x, model.named
    x, named = model.x, model.named

    @nnx.jit
    def run(model: Any) -> Any:
        model.x.append(nnx.Param(jnp.ones(2)))
        model.named["new"] = model.x[-1]
        return len(model.y) + len(model.same)

    assert [int(run(model)), int(run(model))] == [3, 4]
    assert model.x is model.y is x
    assert model.named is model.same is named
    assert len(x) == 2
    assert named["new"] is x[1]


def test_a_list_may_hold_itself() -> None:
    model = nnx.Dict(items=[nnx.Param(jnp.ones(()))])
    model.items.append(model.items)
    graphdef, state = nnx.split(model)
    assert len(state.flat_state()) == 1
    made = nnx.merge(graphdef, state, copy=True)
    assert made.items[1] is made.items
    assert nnx.jit(lambda model: model.items[1][1][0] * 3)(model) == 3


def test_a_list_of_an_object_that_was_not_passed_cannot_be_changed() -> None:
    captured = nnx.Dict(items=[1])

    def through(x: Any) -> Any:
        nnx.jit(lambda captured: captured.items.append(2))(captured)
        return x

    with pytest.raises(TraceContextError, match="Pass it"):
        nnx.jit(through)(1.0)
    assert captured.items == [1]


def test_attributes_keep_their_order() -> None:
    layers = nnx.Dict(b=nnx.Param(jnp.float32(2)), a=nnx.Param(jnp.float32(3)))

    def run(layers: Any, x: Any) -> Any:
        for name in layers:
            x = (x + layers[name]) * layers[name]
        return x

    expected = run(layers, 1.0)
    assert (
        nnx.jit(run)(layers, 1.0) == run(nnx.clone(layers), 1.0) == run(nnx.merge(*nnx.split(layers)), 1.0) == expected
    )
    nnx.jit(lambda layers: setattr(layers, "c", 1))(layers)
    assert list(vars(layers)) == ["b", "a", "c"]


def test_metadata_that_may_change_unseen_is_traced_each_time() -> None:
    class Config:
        rate, rows = 1.0, None

        def __init__(self) -> None:
            self.rows = iter(())

    model = nnx.Dict(w=nnx.Param(jnp.ones(()), config=Config()))
    run = nnx.jit(lambda model: model.w * model.w.config.rate)
    with pytest.warns(NotSharedWarning, match="w"):
        assert run(model) == 1
    model.w.config.rate = 5.0
    assert run(model) == 5


def test_what_may_change_unseen_is_no_change_of_structure() -> None:
    class Config: ...

    def step(i: Any, model: Any) -> Any:
        model.w += 1
        return model

    model = nnx.Dict(w=nnx.Param(jnp.zeros(()), config=Config()), config=Config())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotSharedWarning)
        assert nnx.fori_loop(0, 3, step, model).w.get_value() == 3


def test_kept_walks_keep_nothing_alive() -> None:
    @nnx.jit
    def step(model: Any, other: Any) -> None:
        model.w += other.inner.w

    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), part=nnx.Dict(v=nnx.Param(jnp.ones(2))))
    other = nnx.Dict(inner=nnx.Dict(w=nnx.Param(jnp.ones(2))))
    for _ in range(2):
        step(model, other)
    gone = [weakref.ref(one) for one in (other, other.inner, other.inner.w, model.part, model.part.v)]
    del other
    assert [one() for one in gone[:3]] == [None] * 3  # before anything becomes of the first object, and its walks
    model.part = None
    assert [one() for one in gone[3:]] == [None] * 2


@pytest.mark.parametrize(
    ("make", "change", "holds"),
    [
        (lambda: {0: jnp.ones(2)}, lambda held: held.update({1: held[0] + 1}), lambda held: held[1][0] == 2),
        (lambda: {0: 1}, lambda held: held.update({0: 2}), lambda held: held == {0: 2}),
        (lambda: nnx.Param([jnp.ones(1)]), lambda held: held[...].append(held[0]), lambda held: len(held[...]) == 2),
    ],
)
def test_what_a_body_does_to_other_containers_is_seen(make, change, holds):
    model = nnx.Dict(held=make())
    nnx.jit(lambda model: change(model.held))(model)
    assert holds(model.held)


def test_an_object_that_a_body_takes_out_is_changed_as_it_was_inside() -> None:
    @nnx.jit
    def take_out(model: Any) -> None:
        part = model.part
        part.w[...] *= 2
        part.steps = 3
        del model.part

    part = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    model = nnx.Dict(part=part)
    take_out(model)
    assert not hasattr(model, "part")
    assert (part.w[0], part.steps) == (2, 3)


def test_what_attributes_are_marked_as_crosses_with_the_object() -> None:
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.steps, self.size = nnx.data(1), 2

    counter = Counter()
    assert jax.tree.leaves(nnx.clone(counter)) == [1]
    assert nnx.jit(lambda counter: len(jax.tree.leaves(counter)))(counter) == 1
    assert jax.tree.leaves(nnx.jit(nnx.clone)(counter)) == [1]


def grown(model: Any) -> Any:
    model.flag = 1
    return model


@pytest.mark.parametrize(
    "run",
    [
        lambda model: nnx.scan(lambda model, x: (grown(model), x))(model, jnp.ones(3)),
        lambda model: nnx.fori_loop(0, 3, lambda i, model: grown(model), model),
        lambda model: nnx.while_loop(lambda model: model.w < 3, grown, model),
    ],
)
def test_structure_of_a_carry_stays_in_a_loop(run: Any) -> None:
    model = nnx.Dict(w=nnx.Param(jnp.zeros(())))
    with pytest.raises(StructureError, match="the structure of the carry must not change: flag was added"):
        run(model)
    assert not hasattr(model, "flag")


def test_streams_that_iterations_share_may_be_returned() -> None:
    rngs = nnx.Rngs(0)
    shared = nnx.scan(lambda carry, x, rngs: (carry, rngs), in_axes=(nnx.Carry, 0, None))
    assert shared(0.0, jnp.ones(3), rngs)[1] is rngs


def with_vmap(fn: Any) -> Any:
    ruled = nnx.custom_vmap(fn)
    ruled.def_vmap(lambda size, in_batched, model, x: (fn(model, x), True))
    return ruled


@pytest.mark.parametrize(
    "lift",
    [nnx.jit, nnx.remat, lambda fn: nnx.jit(nnx.remat(fn)), with_vmap],
    ids=["jit", "remat", "both", "custom_vmap"],
)
@pytest.mark.parametrize("loop", [nnx.scan, nnx.vmap], ids=["scan", "vmap"])
def test_a_shared_value_may_be_written_with_a_constant_inside_another_lift(loop: Any, lift: Any) -> None:
    @lift
    def count(model: Any, x: Any) -> Any:
        model.p[...] += 1
        return x * 2

    def body(model: Any, x: Any) -> Any:
        model.p.set_value(jnp.full(3, 3.0))
        return count(model, x)

    model = nnx.Dict(p=nnx.Param(jnp.ones(3)))
    loop(body, in_axes=(None, 0), out_axes=0)(model, jnp.ones(2))
    assert model.p[...].tolist() == [4, 4, 4]
    if loop is nnx.scan:
        with pytest.raises(LoopInvarianceError, match="p is shared by all iterations"):
            loop(count, in_axes=(None, 0), out_axes=0)(model, jnp.ones(2))


def scaled(model: Any, x: Any) -> Any:
    model.p.set_value(model.p.get_value() * model.q.get_value() + 1)
    return x * model.p.get_value().sum()


def with_vjp(fn: Any) -> Any:
    """The pullback reads the slice, also for the cotangent of what the function writes."""
    ruled = nnx.custom_vjp(fn)

    def backward(x: Any, cotangents: Any) -> Any:
        (of_model, _), y = cotangents
        return nnx.State({"p": 10 * of_model["p"] * x + y, "q": of_model["q"] + 7 * of_model["p"] * x}), y * x

    ruled.defvjp(lambda model, x: (ruled(model, x), x), backward)
    return ruled


def with_jvp(fn: Any) -> Any:
    ruled = nnx.custom_jvp(fn)
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[1] * 2 + tangents[0]["q"].sum()))
    return ruled


RULED: dict[str, Any] = {
    "custom_vjp": with_vjp,
    "custom_jvp": with_jvp,
    "remat of custom_vjp": lambda fn: nnx.remat(with_vjp(fn)),
    "jit of custom_jvp": lambda fn: nnx.jit(with_jvp(fn)),
}
XS = jnp.array([1.0, 2.0, 5.0])


def put(model: Any, x: Any) -> Any:
    model.p.set_value(model.q.get_value() * 3)
    return x * 2


def by_python(body: Any, reverse: bool) -> list[Any]:
    def plain(model: Any, xs: Any) -> Any:
        order = slice(None, None, -1 if reverse else 1)
        return jnp.stack([body(model, x) for x in xs[order]][order])

    def twice(model: Any, xs: Any) -> Any:
        return jnp.stack([plain(model, xs) * c for c in xs[:2]])

    return [plain, plain, twice]


def by_scan(body: Any, reverse: bool) -> list[Any]:
    scan = nnx.scan(body, in_axes=(None, 0), out_axes=0, reverse=reverse)

    def nested(model: Any, xs: Any) -> Any:
        return nnx.scan(lambda model, c: c * scan(model, xs), in_axes=(None, 0), out_axes=0)(model, xs[:2])

    return [scan, nnx.remat(scan), nested]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_function_with_a_rule_may_write_a_constant_in_a_scan(reverse: bool) -> None:
    """The values and gradients are those of a Python loop, also if a rule reads slices or values from before."""

    def loss(q: Any, loop: Any) -> Any:
        model = nnx.Dict(p=nnx.Param(2 * q), q=nnx.Param(q))
        ys = loop(model, XS)
        return (model.p[...] ** 2).sum() + ys.sum(), (model.p[...], ys)

    def gradients(ruled: Any, loops: Any) -> list[Any]:
        inner = ruled(scaled)
        bodies = (lambda model, x: put(model, x) * inner(model, x), ruled(put))
        return [
            jax.value_and_grad(loss, has_aux=True)(XS, loop) for body in bodies for loop in loops(body, reverse=reverse)
        ]

    def all_of(loops: Any) -> Any:
        return {name: gradients(ruled, loops) for name, ruled in RULED.items()}

    assert_same(*compiled(lambda: (all_of(by_scan), all_of(by_python))))


def test_a_loop_without_iterations_runs_no_rule() -> None:
    model = nnx.Dict(p=nnx.Param(jnp.ones(3)), q=nnx.Param(jnp.ones(3)))

    def body(model: Any, x: Any) -> Any:
        model.p.set_value(model.q.get_value())
        return with_vjp(scaled)(model, x)

    assert nnx.scan(body, in_axes=(None, 0), out_axes=0)(model, jnp.ones(0)).shape == (0,)
    assert model.p[...].tolist() == [1, 1, 1]

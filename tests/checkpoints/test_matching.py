"""What a target expects, compared with what was saved."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from liftcore import meta, struct
from liftcore.checkpoints import Stored, each_holding, match_state
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.filters import All, Not, PathContains
from liftcore.frozen_dict import freeze
from liftcore.serialization import register_serialization_state, to_state_dict
from tests.machine import devices


def problems(target: Any, state: Any, **options: Any) -> dict[str, str]:
    """What does not fit, by path."""
    with pytest.raises(SerializationError) as caught:
        match_state(target, state, **options)
    lines = caught.value.what.strip().splitlines()
    found = dict(line.strip().split(": ", 1) for line in lines[1:])
    assert lines[0].split()[0] == str(len(found))
    return found


def never() -> Any:
    raise AssertionError("it was read")


def test_everything_that_does_not_fit_is_told_at_once():
    target = {
        "dense": {"kernel": np.zeros((9, 4), np.float32), "bias": jnp.zeros(4, jnp.bfloat16)},
        "step": 0,
        "key": jax.random.key(0),
        "text": "a",
        "head": np.zeros(3),
        "none": None,
    }
    state = {
        "dense": {"kernel": np.zeros((8, 4), np.float32), "bias": Stored((4,), np.dtype(np.float32), never)},
        "step": 1.5,
        "key": np.zeros(2, np.uint32),
        "text": 3,
        "heads": np.zeros(3),
        "none": np.zeros(()),
    }
    assert problems(target, state) == {
        "head": "missing, float64[3] in the target; closest: heads",
        "heads": "unexpected, float64[3] in the saved state; closest: head",
        "dense/kernel": "shape (8, 4), not (9, 4) as in the target",
        "dense/bias": "dtype float32, not bfloat16 as in the target",
        "step": "expected int, found float",
        "key": "expected key<fry>[], found uint32[2]",
        "text": "expected str, found int",
        "none": "expected None, found float64[]",
    }


def test_only_ways_out_of_what_is_wrong_are_told():
    def fix(target: Any, state: Any, cast: bool = False, filter: Any = True) -> str:
        with pytest.raises(SerializationError) as caught:
            match_state(target, state, where="here", cast=cast, filter=filter)
        assert str(caught.value).startswith("here: 1 entry does")
        return caught.value.fix

    assert "strict=False" in fix({"a": 1}, {})
    assert "cast=True" in fix(np.zeros(2), np.zeros(2, np.float32))
    assert "restore a part with `filter=`" in fix({"a": 1}, {})
    state = {"params": {"encoder": 1}, "opt_state": {"encoder": 1}}
    narrower = fix({"params": {"encoder": 1}}, state, filter=PathContains("encoder"))
    assert 'narrower filter, such as `filters.All("params", filter)`' in narrower
    assert "filter=" not in narrower
    assert match_state({"params": {"encoder": 0}}, state, filter=All("params", PathContains("encoder")))
    assert "filter=" in fix(np.zeros(2), np.zeros(3))
    assert "cast" not in fix(np.zeros(2), np.zeros(3))
    for cast in (False, True):
        assert "cast" not in fix(np.zeros(1, np.int8), np.full(1, 300), cast)
        assert "cast" not in fix(np.zeros(1, np.int8), np.ones(1), cast)


def test_boxes_in_one_of_the_two_have_their_own_way_out():
    box = {"w": meta.Partitioned(np.zeros(2), ("data",))}
    for target, state in ((box, {"w": np.zeros(2)}), ({"w": np.zeros(2)}, to_state_dict(box))):
        with pytest.raises(SerializationError, match="Restore boxed values into boxed ones"):
            match_state(target, state)


def test_closest_names_are_looked_for_within_limits():
    many = {f"layer_{i:05}": 1 for i in range(3000)}
    with pytest.raises(SerializationError) as caught:
        match_state({name.replace("_", "-"): 1 for name in many}, many)
    first, *lines, last = caught.value.what.strip().splitlines()
    assert first.startswith("6000 entries")
    assert lines[0].endswith("closest: layer_00000")
    assert (len(lines), last) == (10, "  and 5990 more")


# --- what comes back --------------------------------------------------------------------------------------------------


@struct.dataclass
class State:
    step: Any
    params: Any
    opt_state: Any
    rng: Any
    name: str = struct.field(pytree_node=False, default="run")


def training_state(fill: float, seed: int) -> State:
    params = freeze({"dense": {"kernel": meta.Partitioned(jnp.full((2, 3), fill), ("in", "out"))}})
    tx = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.adam)(fill))
    return State(int(fill), params, tx.init(params), {"dropout": jax.random.key(seed)}, "run")


def test_a_training_state_comes_back_whole():
    saved = training_state(2.0, 5)
    restored = match_state(training_state(0.0, 1), to_state_dict(saved))
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(saved), strict=True):
        assert type(one) is type(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        assert np.all(one == other)


def test_a_number_takes_the_array_that_it_became_under_jit_weak_or_not():
    state = {"step": np.asarray(7, np.int32)}
    for saved, weak in ((state, False), ({"step": jnp.int32(7)}, False), ({"step": jax.jit(lambda: 7)()}, True)):
        step = match_state({"step": 0}, saved)["step"]
        assert (step.dtype, step.weak_type, int(step)) == (jnp.int32, weak, 7)
    assert problems({"step": 0.0}, state) == {"step": "dtype int32, not float as in the target"}
    assert match_state({"step": 0.0}, state, cast=True) == {"step": 7.0}
    assert problems({"step": 0}, {"step": np.zeros(2, np.int32)}) == {"step": "shape (2,), not () as in the target"}
    assert match_state({"step": np.int8(0)}, {"step": 7})["step"].dtype == np.int8
    assert problems({"step": np.int8(0)}, {"step": 300}) == {
        "step": "expected int8[], found int with a number that is out of range"
    }
    assert problems({"on": True}, {"on": 1}) == {"on": "expected bool, found int"}


def test_the_saved_value_decides_whether_a_weak_scalar_of_the_target_stays_weak():
    target = {"weak": jnp.asarray(1.0), "strong": jnp.asarray(1.0, jnp.float32)}
    placed = {name: jax.device_put(leaf, devices(4)[3]) for name, leaf in target.items()}
    for like in (target, placed, jax.eval_shape(lambda: target)):
        for saved, weak in ((3.0, True), (jnp.asarray(3.0), True), (np.float32(3), False), (jnp.float32(3), False)):
            new = match_state(like, dict.fromkeys(target, saved))
            assert (new["weak"].weak_type, new["strong"].weak_type) == (weak, False)
            assert {(leaf.dtype, float(leaf)) for leaf in new.values()} == {(np.dtype(np.float32), 3.0)}
    assert match_state(target, {"weak": 3, "strong": 3}, cast=True)["weak"].weak_type


def test_a_leaf_comes_back_as_what_the_target_has_there():
    value = np.arange(4, dtype=np.float32)
    on = devices(4)
    sharding = NamedSharding(Mesh(on, "x"), PartitionSpec("x"))
    target = {
        "numpy": np.zeros(4, np.float32),
        "jax": jnp.zeros(4),
        "placed": jax.device_put(jnp.zeros(4), on[3]),
        "sharded": jax.device_put(jnp.zeros(4), sharding),
        "shape": jax.ShapeDtypeStruct((4,), np.float32),
        "shape_on_mesh": jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding),
        "double": jax.ShapeDtypeStruct((4,), np.float64),
    }
    state = dict.fromkeys(target, value) | {"double": value.astype(np.float64)}
    new = match_state(target, state)
    assert list(new) == list(target)
    assert type(new["numpy"]) is type(new["double"]) is np.ndarray
    assert not new["jax"].committed
    assert not new["shape"].committed
    assert new["placed"].devices() == {on[3]}
    assert new["sharded"].sharding == new["shape_on_mesh"].sharding == sharding
    for array in new.values():
        np.testing.assert_array_equal(array, value)
    swapped = match_state(np.zeros(4, ">f4"), value)
    np.testing.assert_array_equal(swapped, value)
    assert swapped.dtype == np.dtype(">f4")


@pytest.mark.cpu("its arrays can take the memory of those of NumPy")
@pytest.mark.parametrize("committed", [False, True])
def test_an_array_of_jax_takes_the_memory_of_what_was_read_and_of_nothing_else(committed):
    memory = np.zeros(4064, np.uint8)
    array = memory[(first := -memory.ctypes.data % 64) : first + 4000].view(np.float32)  # which XLA can use as it is
    target = {"w": jax.device_put(jnp.ones(1000), jax.devices()[0] if committed else None)}
    copied = match_state(target, {"w": array})["w"]
    taken = match_state(target, {"w": Stored(array.shape, array.dtype, lambda: array)})["w"]
    array[:] = 5
    assert (copied.sum(), taken.sum()) == (0, 5000)
    assert match_state({"w": jnp.ones(1000, jnp.bfloat16)}, {"w": copied}, cast=True)["w"].dtype == jnp.bfloat16


def test_typed_keys_are_compared_and_placed():
    sharding = NamedSharding(Mesh(devices(2), "x"), PartitionSpec("x"))
    keys = jax.random.split(jax.random.key(3), 4)
    state = {"keys": to_state_dict(keys)}
    for target in (
        jax.random.split(jax.random.key(0), 4),
        jax.eval_shape(lambda: keys),
        jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=sharding),
    ):
        new = match_state({"keys": target}, state)["keys"]
        assert np.all(new == keys)
    assert new.sharding == sharding
    assert problems({"keys": jax.random.key(0)}, state) == {"keys": "expected key<fry>[], found key<fry>[4]"}
    assert problems({"keys": jax.random.split(jax.random.key(0, impl="rbg"), 4)}, state) == {
        "keys": "expected key<rbg>[4], found key<fry>[4]"
    }
    for bad in ({"impl": "x", "data": np.zeros((4, 2), np.uint32)}, {"impl": 5, "data": 3}, {"impl": "rbg", "data": 3}):
        assert "keys" in problems({"keys": keys}, {"keys": bad})
    for options in ({"filter": PathContains("w")}, {"strict": False}):
        kept = match_state({"keys": jax.eval_shape(lambda: keys), "w": 1}, {"w": 2}, **options)
        assert type(kept["keys"]) is jax.ShapeDtypeStruct


def test_trees_that_jax_cannot_sort_and_registered_types():
    class Span:
        def __init__(self, stop: int) -> None:
            self.stop = stop

    register_serialization_state(Span, lambda span: {"stop": span.stop}, lambda span, state: Span(state["stop"]))
    target = {"b": 1, 5: Span(3), "a": [np.zeros(2)]}
    new = match_state(target, {"b": 2, "5": {"stop": 4}, "a": {"0": np.ones(2)}})
    assert (list(new), new[5].stop) == (["b", 5, "a"], 4)
    assert problems(target, {"b": 2, "5": {"stops": 4}, "a": {"0": np.ones(2)}}).keys() == {"5/stop", "5/stops"}
    assert match_state(np.zeros(()), np.ones(())) == 1
    assert match_state({}, {}) == {}
    assert match_state({"empty": (), "w": 1}, {"w": 2}) == {"empty": (), "w": 2}  # nothing of it was to be saved


@pytest.mark.parametrize("make", [list, tuple])
def test_the_state_of_a_registered_type_may_be_a_sequence(make: Any):
    class Pair:
        def __init__(self, values: Any) -> None:
            self.values = values

    register_serialization_state(Pair, lambda pair: make(pair.values), lambda pair, state: Pair(state))
    new = match_state({"pair": Pair([np.zeros(2), 1])}, {"pair": make([np.ones(2), 5])})["pair"].values
    assert type(new) is make
    assert (new[0].tolist(), new[1]) == ([1, 1], 5)


# --- loosened ---------------------------------------------------------------------------------------------------------


def test_without_strictness_names_may_differ_and_shapes_may_not():
    target, state = {"a": 1, "b": np.zeros(2)}, {"b": np.ones(2), "c": 3}
    assert problems(target, state).keys() == {"a", "c"}
    new = match_state(target, state, strict=False)
    assert (new["a"], new["b"].tolist(), list(new)) == (1, [1, 1], ["a", "b"])
    assert problems({"b": np.zeros(3)}, state, strict=False).keys() == {"b"}


CASTS = [
    (np.float32, jnp.bfloat16, True),
    (np.float16, np.complex64, True),
    (np.int32, np.float32, True),
    (np.int64, np.int8, True),
    (np.uint8, np.int16, True),
    (np.float32, np.int32, False),
    (np.complex64, np.float32, False),
    (np.bool_, np.int32, False),
    (np.int8, np.bool_, False),
]


@pytest.mark.parametrize(("held", "wanted", "possible"), CASTS)
def test_dtypes_are_converted_where_that_was_asked_for_and_means_something(held, wanted, possible):
    target, state = {"w": jnp.zeros(3, wanted)}, {"w": np.array([0, 1, 1], held)}
    assert problems(target, state).keys() == {"w"}
    if possible:
        new = match_state(target, state, cast=True)["w"]
        assert (new.dtype, new.tolist()) == (wanted, [0, 1, 1])
    else:
        assert problems(target, state, cast=True).keys() == {"w"}


def test_integers_that_do_not_fit_are_not_converted():
    assert problems({"w": np.zeros(2, np.int8)}, {"w": np.array([1, 200])}, cast=True).keys() == {"w"}
    assert problems({"w": np.zeros(1, np.uint8)}, {"w": np.array([-1])}, cast=True).keys() == {"w"}
    assert match_state({"w": np.zeros(0, np.int8)}, {"w": np.zeros(0, np.int64)}, cast=True)["w"].dtype == np.int8


def test_a_filter_takes_a_part_and_reads_no_more():
    target = {"params": {"encoder": {"w": np.zeros(2)}, "head": {"w": np.zeros(3)}}, "step": 0}
    stored = Stored((5,), np.dtype(np.float64), never)
    state = {"params": {"encoder": {"w": np.ones(2)}, "head": {"w": stored}, "old": {"w": stored}}, "step": 9}
    new = match_state(target, state, filter=PathContains("encoder"))
    assert new["params"]["encoder"]["w"].tolist() == [1, 1]
    assert new["params"]["head"] is not None
    assert new["step"] == 0
    assert match_state(target, state, filter=lambda path, value: path == ("step",))["step"] == 9
    assert problems(target, state, filter="params").keys() == {"params/head/w", "params/old/w"}
    assert problems(target, {"params": {"encoder": {"v": 1}}}, filter=PathContains("encoder")).keys() == {
        "params/encoder/w",
        "params/encoder/v",
    }
    assert match_state(target, state, filter=Not(PathContains("w")))["step"] == 9
    with pytest.raises(SerializationError, match="the filter matches no leaf"):
        match_state(target, state, filter=PathContains("decoder"))
    with pytest.raises(SerializationError, match=r"\(available: \.\)"):
        match_state(np.zeros(2), np.ones(2), filter=PathContains("decoder"))


def test_each_holding_finds_modules_in_optimizer_states():
    params = {"encoder": {"Block_0": {"w": np.ones(2)}, "Block_1": {"w": np.zeros(2)}}}
    state = to_state_dict({"params": params, "opt_state": optax.adam(0.1).init(params)})

    def stack(modules: dict[str, Any]) -> Any:
        return {"blocks": {"w": np.stack([modules[f"Block_{i}"]["w"] for i in range(2)])}}

    new = each_holding("Block_0", stack)(state)
    moments = new["opt_state"]["0"]
    for tree in (new["params"], moments["mu"], moments["nu"]):
        assert tree["encoder"]["blocks"]["w"].shape == (2, 2)
    assert "Block_0" in state["params"]["encoder"]
    with pytest.raises(LiftArgumentError, match=r"no dict in the state has this name \(at the top: \['opt_state'"):
        each_holding("Block", stack)(state)
    with pytest.raises(LiftArgumentError, match="expected a function"):
        each_holding("Block_0", "Block_1")

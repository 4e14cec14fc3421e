"""State dicts and bytes: round trips, errors that name the place, and bytes from anyone."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pickle
import random
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftcore import meta, serialization, struct
from liftcore.errors import SerializationError
from liftcore.frozen_dict import FrozenDict, freeze
from liftcore.saving import encoding
from liftcore.serialization import (
    current_path,
    from_bytes,
    from_state_dict,
    msgpack_restore,
    msgpack_serialize,
    register_serialization_state,
    to_bytes,
    to_state_dict,
)

Pair = collections.namedtuple("Pair", ["left", "right"])
DTYPES = sorted(encoding._DTYPES)


@struct.dataclass
class State:
    step: Any
    params: Any
    name: str = struct.field(pytree_node=False, default="train")


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# --- round trips ------------------------------------------------------------------------------------------------------


def test_state_dicts_have_string_keys_and_no_containers_but_dicts():
    tree = {"a": [1, (2,)], 5: Pair(3, None), "s": State(4, freeze({"w": 6}))}
    assert to_state_dict(tree) == {
        "a": {"0": 1, "1": {"0": 2}},
        "5": {"left": 3, "right": None},
        "s": {"step": 4, "params": {"w": 6}},
    }
    assert type(to_state_dict(freeze({"a": {"b": 1}}))["a"]) is dict


TREES = [
    {"a": [1, (2.5, "text", b"bytes")], "b": {5: Pair(True, None)}},
    State(np.int32(3), freeze({"w": {"kernel": jnp.ones((2, 3))}}), name="eval"),
    (np.zeros((0, 3)), np.float64(1.5), 1 + 2j, np.array(7)),
    [[], {}, (), FrozenDict()],
    3,
]


@pytest.mark.parametrize("tree", TREES)
def test_bytes_give_the_tree_back(tree):
    restored = from_bytes(tree, to_bytes(tree))
    assert_same(restored, tree)
    assert type(restored) is type(tree)


def test_an_optimizer_state_gives_itself_back():
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    state = optax.chain(optax.clip(1.0), optax.adamw(1e-3)).init(params)
    assert_same(from_bytes(jax.tree.map(jnp.zeros_like, state), to_bytes(state)), state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_gives_itself_back(dtype):
    array = np.array([[0, 1, 1]]).astype(dtype)
    restored = msgpack_restore(msgpack_serialize({"array": array, "scalar": array[0, 1]}))
    assert restored["array"].dtype == restored["scalar"].dtype == array.dtype
    assert restored["array"].tobytes() == array.tobytes()
    assert isinstance(restored["scalar"], type(array[0, 1]))


def test_byte_order_and_strides_do_not_matter():
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    np.testing.assert_array_equal(msgpack_restore(msgpack_serialize(array)), array)


def test_large_arrays_go_in_pieces(monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_CHUNK_BYTES", 20)
    tree = {"big": np.arange(15, dtype=np.float32).reshape(3, 5), "list": [np.arange(30)], "small": np.zeros(2)}
    data = msgpack_serialize(tree)
    assert data.count(b"__msgpack_chunked_array__") == 2
    assert_same(msgpack_restore(data), tree)
    assert_same(msgpack_restore(msgpack_serialize(np.arange(10))), np.arange(10))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys_give_themselves_back(impl):
    tree = {"one": jax.random.key(1, impl=impl), "many": jax.random.split(jax.random.key(2, impl=impl), 3)}
    target = jax.tree.map(lambda key: jax.random.wrap_key_data(0 * jax.random.key_data(key), impl=impl), tree)
    for restored in (from_bytes(target, to_bytes(tree)), from_bytes(jax.eval_shape(lambda: tree), to_bytes(tree))):
        assert restored["many"].dtype == tree["many"].dtype
        assert_same(jax.tree.map(jax.random.key_data, restored), jax.tree.map(jax.random.key_data, tree))


def test_functions_with_arguments_give_themselves_back():
    partial = jax.tree_util.Partial(jnp.add, jnp.ones(2), y=jnp.zeros(2))
    restored = from_bytes(jax.tree.map(jnp.zeros_like, partial), to_bytes(partial))
    assert restored.func is jnp.add
    assert_same(restored, partial)


# What others register with JAX: a dataclass by its fields; with keys of its own, as Equinox does for each
# subclass of its base; and without keys.


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mean", "count"], meta_fields=["name"])
@dataclasses.dataclass
class Moments:
    mean: Any
    count: Any = None
    name: str = "moments"


class Base:
    def __init_subclass__(cls):
        def flatten(value):
            return [(jax.tree_util.GetAttrKey(f.name), getattr(value, f.name)) for f in dataclasses.fields(cls)], None

        def unflatten(_, children):
            made = object.__new__(cls)
            for field, child in zip(dataclasses.fields(cls), children, strict=True):
                object.__setattr__(made, field.name, child)
            return made

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)


@dataclasses.dataclass(frozen=True, init=False)
class Linear(Base):
    weight: Any
    bias: Any

    def __init__(self, size):
        object.__setattr__(self, "weight", jnp.arange(float(size)))
        object.__setattr__(self, "bias", None)

    def __call__(self, x):
        return self.weight * x


@jax.tree_util.register_pytree_node_class
class Keyless:
    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


KNOWN_TO_JAX = {
    "a registered dataclass": (Moments(jnp.ones(2), name="m"), {"mean": "L", "count": None}),
    "one in another": (
        Moments({"a": [Moments(np.zeros(3))]}, 4), {"mean": {"a": {"0": {"mean": "L", "count": None}}}, "count": "L"}
    ),
    "a class with keys": (Linear(3), {"weight": "L", "bias": None}),
    "a class without keys": (Keyless(1, {"b": 2}), {"0": "L", "1": {"b": "L"}}),
    "an ordered dict": (collections.OrderedDict(b=1, a=2), {"b": "L", "a": "L"}),
    "nothing inside": (Keyless(), {}),
    "a partial of JAX": (
        jax.tree_util.Partial(jnp.add, Moments(1.0)), {"args": {"0": {"mean": "L", "count": None}}, "keywords": {}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KNOWN_TO_JAX)
def test_any_pytree_that_jax_knows_gives_itself_back(kind):
    tree, state = KNOWN_TO_JAX[kind]
    assert jax.tree.map(lambda _: "L", to_state_dict({"x": [tree]})) == {"x": {"0": state}}
    target = jax.tree.map(lambda x: np.asarray(x) * 0, tree)
    restored = from_bytes(target, to_bytes(tree))
    assert type(restored) is type(tree)
    assert_same(restored, tree)
    assert_same(from_bytes(jax.eval_shape(lambda: tree), to_bytes(tree)), tree)


def test_a_partial_of_python_gives_itself_back():
    tree = {"f": functools.partial(jnp.add, jnp.ones(2)), "m": functools.partial(Linear(2), x=Moments(3.0))}
    assert sorted(to_state_dict(tree)["m"]) == ["args", "func", "keywords"]
    target = {"f": functools.partial(jnp.add, 0), "m": functools.partial(Linear(1), x=Moments(0))}
    restored = from_bytes(target, to_bytes(tree))
    assert restored["f"].func is jnp.add
    assert restored["f"](1).tolist() == [2.0, 2.0]
    assert (restored["m"].func.weight.tolist(), restored["m"].keywords["x"].mean) == ([0.0, 1.0], 3.0)


def test_what_is_static_of_a_pytree_comes_from_the_target():
    assert from_bytes(Moments(0, 0, name="mine"), to_bytes(Moments(1, 2, name="theirs"))) == Moments(1, 2, name="mine")


def test_a_pytree_that_does_not_fit_is_named():
    with pytest.raises(SerializationError, match=r"state at /a/mean: the state lacks 'w'"):
        from_state_dict({"a": Moments({"w": 0})}, {"a": {"mean": {}, "count": None}})
    with pytest.raises(SerializationError, match=r"state at /a: the state has 'size' besides"):
        from_state_dict({"a": Linear(1)}, {"a": {"weight": 0, "bias": None, "size": 1}})


def test_a_target_of_shapes_is_enough():
    tree = State(jnp.zeros((), jnp.int32), {"w": jnp.ones(3)})
    assert_same(from_bytes(jax.eval_shape(lambda: tree), to_bytes(tree)), tree)


def test_a_target_of_none_takes_what_is_there():
    assert from_bytes(None, to_bytes({"a": [1, 2]})) == {"a": {"0": 1, "1": 2}}


def test_static_fields_come_from_the_target():
    assert from_bytes(State(0, 0, name="mine"), to_bytes(State(1, 2, name="theirs"))) == State(1, 2, name="mine")


def test_shapes_and_dtypes_are_not_compared():
    assert from_state_dict({"w": np.zeros(3)}, {"w": np.ones((2, 2), np.int8)})["w"].shape == (2, 2)
    assert from_state_dict({"step": 0}, {"step": np.int32(4)}) == {"step": 4}


def test_nothing_given_is_changed():
    inner = {"w": jnp.ones(2)}
    tree = {"params": inner}
    to_bytes(tree)
    msgpack_serialize(tree)
    assert tree["params"] is inner
    assert isinstance(inner["w"], jax.Array)


# --- registered types -------------------------------------------------------------------------------------------------


class Box:
    def __init__(self, value):
        self.value = value


@pytest.fixture
def box(monkeypatch):
    monkeypatch.setattr(serialization, "_HOOKS", {})
    register_serialization_state(
        Box,
        lambda box: {"value": to_state_dict(box.value)},
        lambda box, state: Box(from_state_dict(box.value, state["value"], name="value")),
    )


@pytest.mark.usefixtures("box")
def test_registered_types_are_taken_apart_and_made_again():
    restored = from_bytes({"a": [Box({"w": 0})]}, to_bytes({"a": [Box({"w": 3})]}))
    assert restored["a"][0].value == {"w": 3}


@pytest.mark.usefixtures("box")
def test_errors_inside_registered_types_have_the_whole_path():
    with pytest.raises(SerializationError, match=r"^state at /a/0/value: the state lacks 'w'"):
        from_state_dict({"a": [Box({"w": 0})]}, {"a": {"0": {"value": {}}}})


def test_a_registered_type_knows_its_path(monkeypatch):
    monkeypatch.setattr(serialization, "_HOOKS", {})
    seen = []
    register_serialization_state(Box, lambda box: box.value, lambda box, state: seen.append(current_path()))
    from_state_dict({"a": [0, Box(1)], "b": Moments(Box(2))}, {"a": {"0": 0, "1": 1}, "b": {"mean": 1, "count": 1}})
    from_state_dict(Box(0), 0)
    assert seen == ["./a/1", "./b/mean", "."]
    with pytest.raises(SerializationError):
        from_state_dict({"a": {"w": 0}}, {"a": {}})
    assert current_path() == "."


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize("ty", [Box, dict])
def test_a_type_is_registered_once(ty):
    with pytest.raises(SerializationError, match=rf"type {ty.__name__}: it is already registered\. Pass override=True"):
        register_serialization_state(ty, to_state_dict, from_state_dict)
    register_serialization_state(ty, lambda value: 5, lambda target, state: state, override=True)
    assert to_state_dict({1: Box(0)} if ty is Box else {}) == ({"1": 5} if ty is Box else 5)


# --- structures that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "state", "message"),
    [
        (
            {"params": {"Dense_0": {"kernel": 0, "bias": 0}}},
            {"params": {"Dense_0": {"kernel": 1, "scale": 2}}},
            "state at /params/Dense_0: the state lacks 'bias' and has 'scale' besides "
            "(the dict expects 'kernel', 'bias'; the state has 'kernel', 'scale'). "
            "Restore into a target with the names that were saved, or rename them in the state.",
        ),
        (
            {"a": [0, 0]},
            {"a": {"0": 1}},
            "state at /a: the state lacks '1' (the list expects '0', '1'; the state has '0')",
        ),
        ((), {"0": 1}, "state at /: the state has '0' besides (the tuple expects nothing; the state has '0')"),
        ([Pair(0, 0)], {"0": {"left": 1}}, "state at /0: the state lacks 'right' (the Pair expects"),
        (State(0, {}), {"step": 1}, "state at /: the state lacks 'params' (the State expects 'step', 'params'"),
        (freeze({"a": 0}), {}, "state at /: the state lacks 'a' (the FrozenDict expects 'a'; the state has nothing)"),
        ({"a": {"b": 0}}, {"a": 1}, "state at /a: expected a dict for the dict here, found an array or number."),
        ({"a": [0]}, {"a": [1]}, "state at /a: expected a dict for the list here, found a value of type list."),
        ({"a": np.zeros(2)}, {"a": {"b": 1}}, "state at /a: expected an array or number, found a value of type dict."),
        ({"a": np.zeros(2)}, {"a": None}, "state at /a: expected an array or number, found a value of type NoneType."),
        ({"a": np.zeros(2)}, {"a": "x"}, "state at /a: expected an array or number, found a string."),
        ({"a": "x"}, {"a": b"x"}, "state at /a: expected a string, found bytes."),
    ],
)
def test_a_structure_that_does_not_fit_is_named(target, state, message):
    with pytest.raises(SerializationError) as error:
        from_state_dict(target, state)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"impl": "rbg", "data": np.zeros(4, np.uint32)},
            r"state at /key: expected a random key of type key<fry>, found",
        ),
        (
            {"impl": "none", "data": np.zeros(2, np.uint32)},
            r"state at /key: this is not the data of a random key of impl 'none'",
        ),
        ({"impl": "threefry2x32", "data": np.zeros(2)}, r"this is not the data .* \(they are not an array of uint32\)"),
        ({"impl": "threefry2x32", "data": np.zeros(3, np.uint32)}, r"this is not the data of a random key"),
        (np.zeros(2, np.uint32), r"state at /key: expected a dict for the PRNGKeyArray here, found an array or number"),
    ],
)
def test_a_key_of_another_kind_is_an_error(state, message):
    with pytest.raises(SerializationError, match=message):
        from_state_dict({"key": jax.random.key(0)}, {"key": state})


def test_keys_that_are_one_string_are_an_error():
    with pytest.raises(
        SerializationError, match=r"state at /a: several keys are written as '1'\. Use keys that differ"
    ):
        to_state_dict({"a": {1: 0, "1": 0}})


def deep(levels):
    tree: Any = 1
    for _ in range(levels):
        tree = {"a": tree}
    return tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [0, (1,)]}, r"state at /a/1: a value of type tuple cannot be written\. Call to_bytes"),
        ({"a": object()}, r"state at /a: a value of type object cannot be written\."),
        ({"a": jax.nn.relu}, r"a value of type custom_jvp cannot be written\. To save only the arrays.*is_array"),
        ({"a": {1.5: 0}}, r"state at /a: the key 1\.5 is neither a string nor an integer\. Use strings as keys\."),
        ({"a": np.array([None])}, r"state at /a: an array of dtype object cannot be written\. Use one of bool, int8,"),
        ({"a": np.array(["x"])}, r"state at /a: an array of dtype <U1 cannot be written\."),
        ({"a": np.zeros(2, [("x", "i4")])}, r"state at /a: an array of dtype .* cannot be written\."),
        ({"a": jax.random.key(0)}, r"state at /a: a typed random key is not a plain array\. Call to_bytes, or save"),
        ({"a": 2**70}, r"state at /a: msgpack cannot hold the value \(.*\)\. Keep integers within 64 bits"),
        (deep(129), r"state at /a/a.*: the tree is more than 128 levels deep\. Flatten it"),
    ],
)
def test_what_cannot_be_written_is_named(tree, message):
    with pytest.raises(SerializationError, match=message):
        msgpack_serialize(tree)


def test_errors_can_be_pickled():
    with pytest.raises(SerializationError) as error:
        from_state_dict({"a": 0}, {"a": "x"})
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


# --- bytes from anyone ------------------------------------------------------------------------------------------------


def array_of(shape, dtype, buffer, code=1):
    return msgpack.packb(msgpack.ExtType(code, msgpack.packb((shape, dtype, buffer))))


def chunked(**changes):
    piece = msgpack.ExtType(1, msgpack.packb(([2], "int8", b"12")))
    whole = {"__msgpack_chunked_array__": True, "shape": {"0": 4}, "chunks": {"0": piece, "1": piece}}
    return msgpack.packb({"a": {k: v for k, v in {**whole, **changes}.items() if v is not None}})


OTHER_PIECE = msgpack.ExtType(1, msgpack.packb(([1], "int16", b"12")))
SQUARE_PIECE = msgpack.ExtType(1, msgpack.packb(([2, 2], "int8", b"1234")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the bytes cannot be read"),
        (b"\xc1", "the bytes cannot be read"),
        (msgpack.packb(1) + b"\x00", "the bytes cannot be read"),
        (msgpack.packb({"a": [1, 2]})[:-1], "the bytes cannot be read"),
        (b"\x91" * 5000 + b"\x01", "the tree is more than 128 levels deep"),
        (b"\x91" * 900 + b"\x01", "the tree is more than 128 levels deep"),
        (b"\xdd\xff\xff\xff\xff", "the bytes cannot be read"),
        (b"\xdf\xff\xff\xff\xff", "the bytes cannot be read"),
        (b"\x81\xa1a\x91\xc1", "state at /a/0: the bytes cannot be read"),
        (b"\x81\x92\x01\x01\x01", "a key is neither a string nor an integer"),
        (b"\xc6\xff\xff\xff\xff", "the bytes cannot be read"),
        (b"\xa2\xff\xff", "the bytes cannot be read"),
        (b"\x82\xa1a\x01\xa1a\x02", "state at /: a dict has the key 'a' twice"),
        (b"\x81\x90\x01", "a key is neither a string nor an integer"),
        (b"\x81\xc0\x01", "a key is neither a string nor an integer"),
        (msgpack.packb({"t": msgpack.Timestamp(1)}), "state at /t: there is an extension of the unknown type -1"),
        (b"\xc7\x03\xff123", "there is an extension of the unknown type -1"),
        (msgpack.packb(msgpack.ExtType(9, b"")), "there is an extension of the unknown type 9"),
        (msgpack.packb(msgpack.ExtType(1, b"")), "the bytes cannot be read"),
        (msgpack.packb(msgpack.ExtType(1, b"\x01")), "an array does not consist of shape, dtype and bytes"),
        (
            msgpack.packb(msgpack.ExtType(1, msgpack.packb(([1], "int8")))),
            "an array does not consist of shape, dtype and bytes",
        ),
        (array_of([1], 5, b"1"), "an array does not consist of shape, dtype and bytes"),
        (array_of([1], "object", b"12345678"), "an array has the unknown dtype 'object'"),
        (array_of([1], "O", b"12345678"), "an array has the unknown dtype 'O'"),
        (array_of([1], "i4,O", b"1234"), "an array has the unknown dtype"),
        (array_of([1], "\xff", b"1"), "an array has the unknown dtype"),
        (array_of([2], "int8", b"1"), r"an array of shape \[2\] and dtype int8 cannot have 1 bytes"),
        (array_of([2**63, 2**63], "int8", b"1"), "cannot have 1 bytes"),
        (array_of([-1], "int8", b"1"), r"an array has the shape \[-1\]"),
        (array_of([1.0], "int8", b"1"), r"an array has the shape \[1.0\]"),
        (array_of([[]], "int8", b"1"), r"an array has the shape \[None\]"),
        (array_of(1, "int8", b"1"), r"an array has the shape \[None\]"),
        (array_of([1], b"int8", b"1"), "an array does not consist of shape, dtype and bytes"),
        (array_of([1], "int8", "1"), "an array does not consist of shape, dtype and bytes"),
        (array_of([True], "int8", b"1"), r"an array has the shape \[True\]"),
        (array_of([1] * 65, "int8", b"1"), r"an array has 65 dimensions"),
        (array_of([0, 2**63, 2**63], "int8", b""), r"an array has the shape \[0, \d+, \d+\] \("),
        (array_of([2], "bool", b"\x00\x02"), "an array of dtype bool has bytes other than 0 and 1"),
        (array_of([1], "int8", b"1", code=3), r"a NumPy scalar has the shape \(1,\)"),
        (msgpack.packb(msgpack.ExtType(2, msgpack.packb((1.0,)))), "a complex number does not consist of two floats"),
        (msgpack.packb(msgpack.ExtType(2, msgpack.packb(1.0))), "a complex number does not consist of two floats"),
        (msgpack.packb(msgpack.ExtType(2, b"")), "the bytes cannot be read"),
        (chunked(shape=None), "state at /a: an array in pieces lacks its shape or its pieces"),
        (chunked(chunks=None), "lacks its shape or its pieces"),
        (chunked(chunks={}), "lacks its shape or its pieces"),
        (chunked(chunks={"1": 0}), "lacks its shape or its pieces"),
        (chunked(extra=1), "lacks its shape or its pieces"),
        (chunked(chunks={"0": 1}), "the pieces of an array are not flat arrays of one dtype"),
        (chunked(chunks={"0": SQUARE_PIECE}), "the pieces of an array are not flat arrays of one dtype"),
        (
            chunked(chunks={"0": OTHER_PIECE, "1": msgpack.ExtType(1, msgpack.packb(([3], "int8", b"123")))}),
            "not flat arrays of one dtype",
        ),
        (chunked(shape={"0": 5}), r"state at /a: the pieces of an array do not make up its shape \[5\]"),
        (chunked(shape={"0": -4}), r"an array has the shape \[-4\]"),
    ],
)
def test_damaged_bytes_are_an_error(data, message):
    with pytest.raises(SerializationError, match=message):
        msgpack_restore(data)


def test_only_bytes_are_read():
    with pytest.raises(SerializationError, match=r"msgpack: expected bytes, given '"):
        msgpack_restore("text")  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match=r"msgpack: the bytes are not contiguous in memory\. Pass bytes"):
        msgpack_restore(memoryview(b"abcd")[::2])


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: memoryview(np.frombuffer(data, np.int8))])
def test_bytes_of_any_kind_are_read(kind):
    assert msgpack_restore(kind(msgpack_serialize({"a": 1}))) == {"a": 1}


TARGET = {
    "params": {"Dense_0": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, jnp.bfloat16)}},
    "state": State(np.int32(1), [True, 2.5, "name", b"raw", 1j]),
    "mask": np.array([True, False]),
}
DATA = to_bytes(TARGET)


def check_fuzzed(data):
    """Damage that goes unnoticed may have changed values or array shapes, never the structure."""
    try:
        restored = from_bytes(TARGET, data)
    except SerializationError:
        return
    assert jax.tree.structure(restored) == jax.tree.structure(TARGET)
    pairs = zip(jax.tree.leaves(TARGET), jax.tree.leaves(restored), strict=True)
    assert all(serialization._kind(a) == serialization._kind(b) for a, b in pairs)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_restore_or_raise_our_error(changes):
    data = bytearray(DATA)
    for position, byte in changes:
        data[position] = byte
    check_fuzzed(bytes(data))


def test_each_changed_byte_and_each_cut_restores_or_raises_our_error():
    bits = random.Random(0)
    for position in range(len(DATA)):
        for byte in (0, 0x80, 0xC1, 0xD9, 0xFF, bits.randrange(256)):
            check_fuzzed(DATA[:position] + bytes([byte]) + DATA[position + 1 :])
        with pytest.raises(SerializationError):
            msgpack_restore(DATA[:position])


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_restore_or_raise_our_error(data):
    check_fuzzed(data)
    check_fuzzed(msgpack.packb(msgpack.ExtType(1, data)))


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(STATES)
def test_plain_data_gives_itself_back(state):
    assert msgpack_restore(msgpack_serialize(state)) == state


ARRAYS = st.builds(
    lambda dtype, shape, step: (step * np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 3),
)
ARRAY_STATES = st.recursive(
    LEAVES | ARRAYS | ARRAYS.map(lambda array: array.T) | ARRAYS.map(np.asfortranarray),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)


def packed_by_msgpack(tree):
    """The format as its definition says, by way of copies."""

    def plain(tree):
        if isinstance(tree, dict):
            return {name: plain(child) for name, child in tree.items()}
        if isinstance(tree, list):
            return [plain(child) for child in tree]
        if isinstance(tree, np.ndarray):
            return msgpack.ExtType(1, msgpack.packb((tree.shape, tree.dtype.name, tree.tobytes())))
        return msgpack.ExtType(2, msgpack.packb((tree.real, tree.imag))) if isinstance(tree, complex) else tree

    return msgpack.packb(plain(tree))


@given(ARRAY_STATES, st.booleans())
def test_arrays_are_written_as_msgpack_would_and_give_themselves_back(state, copy):
    data = msgpack_serialize(state)
    assert data == packed_by_msgpack(state)
    assert packed_by_msgpack(msgpack_restore(data, copy=copy)) == data


def test_arrays_of_one_length_in_bytes_are_told_apart():
    tree = [np.array([1], np.int16), np.array([1, 2], np.uint8), np.array([3], np.int16), np.array([True] * 4)]
    assert_same(msgpack_restore(msgpack_serialize(tree)), tree)
    data = msgpack_serialize([tree[3], tree[3]])
    with pytest.raises(SerializationError, match=r"state at /1: an array of dtype bool has bytes other than 0 and 1"):
        msgpack_restore(data[:-1] + b"\x02")
    with pytest.raises(SerializationError, match=r"state at /1: an array of shape \[5\] and dtype bool cannot have 4"):
        msgpack_restore(data[: data.rindex(b"\x91\x04")] + b"\x91\x05" + data[data.rindex(b"\x91\x04") + 2 :])


def test_metadata_on_one_side_only_is_told_of_with_what_to_do():
    plain = {"params": {"kernel": jnp.ones((2, 3))}}
    boxed = {"params": {"kernel": meta.Partitioned(jnp.ones((2, 3)), (None, "x"))}}
    with pytest.raises(
        SerializationError, match=r"the target is an array .* saved has axis metadata.*`unbox`"
    ) as caught:
        serialization.from_bytes(plain, serialization.to_bytes(boxed))
    assert caught.value.where.endswith("/params/kernel")
    with pytest.raises(
        SerializationError, match=r"the target has axis metadata here \(Partitioned\).*`unbox\(target\)`"
    ):
        serialization.from_bytes(boxed, serialization.to_bytes(plain))
    with pytest.raises(SerializationError, match="found a value of type dict"):
        serialization.from_state_dict(plain, {"params": {"kernel": {"other": 1}}})

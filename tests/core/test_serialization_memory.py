"""How much memory saving and restoring take, and arrays that are views of the bytes."""

from __future__ import annotations

import gc
import mmap
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.errors import SerializationError
from liftcore.saving import encoding
from liftcore.serialization import from_bytes, msgpack_restore, msgpack_serialize, to_bytes
from tests.machine import make_mesh

SIZE = 20_000_000
SMALL = SIZE // 20 + 100_000


def peak(fn, *args, **kwargs):
    """Bytes allocated at the most while `fn` ran, and those that are left when its result is gone."""
    gc.collect()
    tracemalloc.start()
    try:
        result = fn(*args, **kwargs)
        highest = tracemalloc.get_traced_memory()[1]
        del result
        gc.collect()
        return highest, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def tree_of(count, make=np.ones, dtype=np.float32, size=SIZE):
    length = size // count // np.dtype(dtype).itemsize
    return {f"layer_{index}": {"kernel": make((length,), dtype)} for index in range(count)}


TREES = [
    pytest.param(4, np.ones, np.float32, id="few"),
    pytest.param(1000, np.ones, np.float32, id="many"),
    pytest.param(4, np.ones, jnp.bfloat16, id="bfloat16"),
    pytest.param(4, jnp.ones, jnp.float32, id="jax"),
    pytest.param(4, lambda shape, dtype: bytes(shape[0]), np.int8, id="bytes"),
]


@pytest.mark.parametrize(("count", "make", "dtype"), TREES)
def test_saving_takes_the_memory_of_the_bytes(count, make, dtype):
    tree = tree_of(count, make, dtype)
    to_bytes(tree_of(2, make, dtype, 100))
    highest, left = peak(to_bytes, tree)
    assert SIZE <= highest <= SIZE + SMALL
    assert left < SMALL


@pytest.mark.parametrize(("count", "make", "dtype"), TREES)
def test_restoring_takes_one_copy(count, make, dtype):
    data = to_bytes(tree_of(count, make, dtype))
    assert SIZE <= peak(msgpack_restore, data)[0] <= SIZE + SMALL


@pytest.mark.parametrize(("count", "make", "dtype"), TREES[:4])
def test_restoring_without_a_copy_takes_none(count, make, dtype):
    tree = tree_of(count, make, dtype)
    data = to_bytes(tree)
    assert peak(from_bytes, tree, data, copy=False)[0] <= SMALL


def test_arrays_in_pieces_take_no_more(monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_CHUNK_BYTES", SIZE // 10)
    tree = tree_of(2)
    data = to_bytes(tree)
    assert data.count(b"__msgpack_chunked_array__") == 2
    assert peak(to_bytes, tree)[0] <= SIZE + SMALL
    for copy in (True, False):
        assert peak(from_bytes, tree, data, copy=copy)[0] <= SIZE + SMALL


def test_strided_arrays_are_copied_one_at_a_time():
    tree = [np.ones((1000, 500)).T for _ in range(5)]
    highest, _ = peak(to_bytes, tree)
    assert highest <= SIZE + tree[0].nbytes + SMALL


def test_arrays_of_several_devices_are_copied_one_at_a_time_and_not_kept():
    mesh = make_mesh((4,), "x")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = [jax.device_put(np.full((1000, 500), i, np.float32), sharding) for i in range(10)]
    to_bytes(tree[0])
    highest, left = peak(to_bytes, tree)
    assert highest <= SIZE + tree[0].nbytes + SMALL
    assert left < SMALL
    for array, restored in zip(tree, from_bytes(tree, to_bytes(tree)), strict=True):
        np.testing.assert_array_equal(array, restored)


def test_damaged_bytes_take_no_memory():
    def restore(data):
        with pytest.raises(SerializationError):
            msgpack_restore(data)

    for data in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\xa1a\x01", b"\xc9\xff\xff\xff\xff\x01\x93"):
        assert peak(restore, data)[0] < 100_000


# --- views ------------------------------------------------------------------------------------------------------------


def test_copies_and_views_are_read_only_and_equal():
    tree = {"a": np.arange(6.0).reshape(2, 3), "b": [jnp.ones(3, jnp.bfloat16)], "c": np.zeros((0, 2))}
    data = to_bytes(tree)
    for copy in (True, False):
        restored = from_bytes(tree, data, copy=copy)
        for given, array in zip(jax.tree.leaves(tree), jax.tree.leaves(restored), strict=True):
            assert array.dtype == given.dtype
            assert array.shape == given.shape
            assert not array.flags.writeable
            np.testing.assert_array_equal(array, given)
        assert np.shares_memory(restored["a"], np.frombuffer(data, np.uint8)) == (not copy)


@pytest.mark.parametrize("offset", range(1, 9))
@pytest.mark.parametrize("dtype", sorted(encoding._DTYPES))
def test_views_may_begin_anywhere(dtype, offset):
    array = (np.arange(24).reshape(4, 6) % 2).astype(dtype)
    view = msgpack_restore(msgpack_serialize({"x" * offset: array}), copy=False)["x" * offset]
    for fn in (np.copy, np.transpose, lambda x: x[::2, 1], lambda x: np.concatenate([x, x]), lambda x: x.astype("c8")):
        assert fn(view).tobytes() == fn(array).tobytes()
    if not dtype.startswith("float6"):  # JAX has none on CPUs
        for fn in (jnp.asarray, jax.jit(jnp.transpose)):
            assert np.asarray(fn(view)).tobytes() == np.asarray(fn(array)).tobytes()


def test_a_view_keeps_the_bytes_alive():
    view = msgpack_restore(msgpack_serialize(np.arange(1000)), copy=False)
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(1000))


def test_a_view_shows_what_becomes_of_a_buffer_but_changes_nothing():
    data = bytearray(msgpack_serialize(np.arange(3, dtype=np.uint8)))
    copy, view = msgpack_restore(data), msgpack_restore(data, copy=False)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    data[-1] = 9
    assert (copy.tolist(), view.tolist()) == ([0, 1, 2], [0, 1, 9])
    with pytest.raises(BufferError):
        data.clear()


def test_a_file_is_read_where_its_arrays_are(tmp_path):
    tree = {"w": np.arange(1000.0), "n": 3}
    path = tmp_path / "checkpoint"
    path.write_bytes(to_bytes(tree))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    restored = from_bytes(tree, memoryview(mapped), copy=False)
    np.testing.assert_array_equal(restored["w"], tree["w"])
    assert np.shares_memory(restored["w"], np.frombuffer(mapped, np.uint8))


def test_what_is_no_array_is_no_view():
    tree = {"text": "a", "raw": b"b", "number": 1j, "scalar": np.float32(2)}
    data = bytearray(to_bytes(tree))
    restored = from_bytes(tree, data, copy=False)
    data[:] = bytes(len(data))
    assert restored == tree
    data.clear()  # nothing holds it

"""One file: what is saved comes back, what is damaged is found, and neither takes more memory than the data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import equinox_like as eqx
from liftcore import serialization
from liftcore.checkpoints import (
    disk,
    each_holding,
    layout,
    load_file,
    load_safetensors,
    save_file,
    save_safetensors,
)
from liftcore.errors import CheckpointInUseError, LiftArgumentError, SerializationError
from liftcore.saving import encoding
from linen_like import stack_layers
from tests.core.test_serialization_memory import SIZE, SMALL, TREES, peak, tree_of

TREE = {
    "params": {"dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.ones(3, jnp.bfloat16)}},
    "flags": np.array([True, False]),
    "raw": b"some bytes",
    "none": None,
    "number": 3,
    "complex": 1 + 2j,
    "scalar": np.float32(1.5),
    "empty": np.zeros((0, 2)),
    "nothing": {},
    "text": "ü" * 40,
}


def assert_equal(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        else:
            assert a == b


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.msgpack"


def test_what_is_saved_comes_back(path):
    save_file(path, TREE)
    assert_equal(load_file(path), TREE)
    assert_equal(load_file(str(path), TREE), TREE)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("dtype", sorted(encoding._DTYPES))
def test_dtypes_come_back_aligned_and_writeable(path, dtype):
    tree = {"x" * length: (np.arange(24).reshape(4, 6) % 2).astype(dtype) for length in range(1, 9)}
    save_file(path, tree)
    restored = load_file(path)
    assert_equal(restored, tree)
    for array in restored.values():
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0


@pytest.mark.parametrize("name", sorted(name for name in TREE if name != "nothing"))
def test_one_leaf_alone_is_a_tree(path, name):
    save_file(path, TREE[name])
    assert_equal(load_file(path), TREE[name])


def test_arrays_in_pieces_come_back(path, monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_CHUNK_BYTES", 24)
    save_file(path, TREE)
    assert path.read_bytes().count(b"__msgpack_chunked_array__") == 1
    assert_equal(load_file(path), TREE)


def test_any_reader_of_msgpack_finds_the_state_and_the_checksums(path):
    save_file(path, TREE)
    found = serialization.msgpack_restore(path.read_bytes())
    assert list(found) == ["liftcore_checkpoint", "state", "checksums"]
    assert_equal(found["state"], TREE)
    assert found["checksums"]["arrays"].shape == (5,)
    assert msgpack.unpackb(path.read_bytes(), strict_map_key=False)["liftcore_checkpoint"] == 1


def test_files_without_checksums_are_read_where_that_was_asked_for(path):
    path.write_bytes(serialization.to_bytes(TREE))
    with pytest.raises(SerializationError, match="read it with `checksums=False`"):
        load_file(path, TREE)
    assert_equal(load_file(path, TREE, checksums=False), TREE)
    assert_equal(load_file(path, checksums=False), TREE)
    save_file(path, TREE)
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(6.0).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(SerializationError, match="checksum mismatch"):  # where there are some, they count
        load_file(path, TREE, checksums=False)


# --- damage -----------------------------------------------------------------------------------------------------------


DAMAGED = [
    (np.arange(6.0).tobytes(), "state at /params/dense/kernel: the bytes differ from those that were written"),
    (np.ones(3, jnp.bfloat16).tobytes(), "state at /params/dense/bias: the bytes differ"),
    (b"some bytes", "state at /raw: the bytes differ"),
    (b"bias", "names, shapes or numbers"),
    ("ü".encode(), "names, shapes or numbers"),
    (b"\xcb", "state at /complex"),
    (b"rest", "the last checksum is missing"),
    (b"\xc4\x14", "bytes"),
]


@pytest.mark.parametrize(("part", "message"), DAMAGED)
def test_a_flipped_bit_is_found_and_an_array_is_named(path, part, message):
    save_file(path, TREE)
    data = bytearray(path.read_bytes())
    data[data.rindex(part)] ^= 1
    path.write_bytes(data)
    for target in (None, TREE):
        with pytest.raises(SerializationError) as caught:
            load_file(path, target)
        assert message in str(caught.value)
        assert f'"{path}"' in caught.value.where


def test_a_part_that_is_not_taken_is_not_read(path):
    save_file(path, {"a": np.arange(3.0), "b": np.ones(3)})
    data = bytearray(path.read_bytes())
    data[data.index(np.ones(3).tobytes())] ^= 1
    path.write_bytes(data)
    target = {"a": np.zeros(3), "b": np.zeros(3)}
    assert load_file(path, target, filter="a")["a"].tolist() == [0, 1, 2]
    with pytest.raises(SerializationError, match="state at /b"):
        load_file(path, target)


def test_a_file_that_gets_shorter_while_it_is_read_is_an_error(path):
    save_file(path, {"a": np.ones(100_000), "b": np.ones(100_000)})

    with open(path, "rb", buffering=0) as file:
        state, _ = layout.state_in(file, 0, path.stat().st_size, True)
        os.truncate(path, 10_000)
        with pytest.raises(SerializationError, match="became shorter"):
            state["a"].read()


@pytest.mark.parametrize("checksums", [True, False])
def test_nothing_may_come_after_the_end(path, checksums):
    save_file(path, TREE)
    data = path.read_bytes() if checksums else serialization.to_bytes(TREE)
    path.write_bytes(data + b"\xc0")
    with pytest.raises(SerializationError, match="1 bytes follow the end"):
        load_file(path, checksums=checksums)


def test_a_newer_version_says_so(path):
    save_file(path, TREE)
    path.write_bytes(path.read_bytes().replace(b"liftcore_checkpoint\x01", b"liftcore_checkpoint\x02"))
    with pytest.raises(SerializationError, match="not of version 1"):
        load_file(path)


# --- options ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_told_with_the_file_before_anything_is_read(path, monkeypatch):
    save_file(path, TREE)
    monkeypatch.setattr(layout, "_read", lambda *args: pytest.fail("an array was read"))
    with pytest.raises(SerializationError, match="2 entries do not fit") as caught:
        load_file(path, TREE | {"params": {"dense": {"kernel": np.ones((3, 3)), "bias": np.ones(3)}}} | {"raw": b""})
    assert caught.value.where == f'"{path}"'


def test_separate_layers_go_into_stacked_ones_with_their_optimizer_state(path):
    blocks = {f"Block_{i}": {"w": np.full(2, i, np.float32)} for i in range(3)}
    save_file(path, {"params": blocks, "mu": blocks, "step": 3})
    target = {name: {"Stack_0": {"block": {"w": jnp.zeros((3, 2))}}} for name in ("params", "mu")} | {"step": 0}
    stacked = each_holding(
        "Block_0", lambda modules: stack_layers({"all": modules}, "Block_{}", "Stack_0/block")["all"]
    )
    restored = load_file(path, target, transform=stacked)
    assert restored["mu"]["Stack_0"]["block"]["w"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert jax.tree.structure(load_file(path, transform=stacked)) == jax.tree.structure(target)


def test_options_about_a_target_need_one(path):
    save_file(path, TREE)
    for options in ({"filter": "params"}, {"strict": False}, {"cast": True}):
        with pytest.raises(LiftArgumentError, match="`target` is None"):
            load_file(path, **options)
    with pytest.raises(FileNotFoundError):
        load_file(path.with_name("other"))


# --- writing ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_leaves_the_file_as_it_was(path):
    save_file(path, {"a": 1})
    with pytest.raises(SerializationError, match="state at /x"):
        save_file(path, {"a": 2, "x": object()})
    assert load_file(path) == {"a": 1}
    assert os.listdir(path.parent) == [path.name]


def test_a_link_leads_to_the_file_that_is_written(path):
    save_file(path, {"a": 1})
    link = path.with_name("link")
    link.symlink_to(path.name)
    save_file(link, {"a": 2})
    assert link.is_symlink()
    assert load_file(path) == {"a": 2}


def test_what_a_killed_writer_left_is_overwritten(path):
    left = path.with_name(f".{path.name}.tmp")
    left.write_bytes(b"x" * 10_000)
    save_file(path, TREE)
    assert_equal(load_file(path), TREE)
    assert not left.exists()


def test_a_file_has_one_writer_at_a_time(path):
    lock = disk.FileLock(path.with_name(f".{path.name}.tmp"), "it")
    with pytest.raises(CheckpointInUseError, match="another object or thread of this process is writing there"):
        save_file(path, TREE)
    lock.release()
    save_file(path, TREE)


def test_a_lock_on_a_file_that_got_another_name_is_taken_again(path, monkeypatch):
    first = disk.FileLock(path, "it")
    real, seen = disk.FileLock._lock, []

    def lock(self: Any, where: str) -> None:
        if not seen:
            seen.append(first.release())
            os.replace(path, path.with_name("done"))
        real(self, where)

    monkeypatch.setattr(disk.FileLock, "_lock", lock)
    second = disk.FileLock(path, "it")
    assert second.is_at(path)
    assert not second.is_at(path.with_name("done"))


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "make", "dtype"), TREES)
def test_saving_takes_next_to_no_memory_and_loading_that_of_the_data(path, count, make, dtype):
    tree = tree_of(count, make, dtype)
    save_file(path, tree_of(2, make, dtype, 100))
    load_file(path)
    assert peak(save_file, path, tree)[0] < SMALL + count * 200
    assert SIZE <= peak(load_file, path)[0] <= SIZE + SMALL + count * 600


def test_arrays_in_pieces_take_no_more_memory(path, monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_CHUNK_BYTES", SIZE // 10)
    tree = tree_of(2)
    assert peak(save_file, path, tree)[0] < SMALL
    assert peak(load_file, path)[0] <= SIZE + SMALL


@pytest.mark.parametrize("name", ["msgpack", "safetensors", "npy"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.float8_e4m3fn])
def test_loading_takes_at_most_twice_the_file_and_the_target(tmp_path, name, dtype):
    tree = {str(index): np.ones(SIZE // 4 // np.dtype(dtype).itemsize, dtype) for index in range(4)}
    path = tmp_path / f"model.{name}"
    if name == "npy":
        with open(path, "wb") as file:
            for leaf in tree.values():
                np.save(file, leaf)
    else:
        (save_safetensors if name == "safetensors" else save_file)(path, tree)
    load = {"msgpack": load_file, "safetensors": load_safetensors, "npy": eqx.tree_deserialise_leaves}[name]
    # What a file of Equinox does not name is loaded as bytes.
    target = {key: np.zeros(one.shape, one.dtype.str) for key, one in tree.items()} if name == "npy" else tree
    load(path, target)
    assert peak(load, path, target)[0] <= 3 * SIZE + SMALL


def test_lengths_that_a_file_claims_take_no_memory(path):
    def load() -> None:
        with pytest.raises(SerializationError):
            load_file(path, checksums=False)

    begin = layout._MARK + b"\x01" + msgpack.packb("state")
    for data in (b"\xdd", b"\xdf\xff\xff\xff\xff\xa1a\x01", b"\xc9\xff\xff\xff\xff\x01\x93", b"\xdb", b"\xc6"):
        for prefix in (b"", begin):
            path.write_bytes(prefix + data + b"\xff\xff\xff\xffa")
            load()
            assert peak(load)[0] < 200_000


def test_importing_and_using_it_loads_no_layers_and_no_other_library(tmp_path):
    code = """if True:
        import sys, numpy, liftcore.checkpoints as checkpoints
        with checkpoints.Checkpoints(sys.argv[1]) as folder:
            folder.save(1, {"w": numpy.ones(3)})
            assert folder.restore()["w"].sum() == 3
        others = ("optax", "orbax", "flax", "safetensors", "liftcore.nn", "liftcore.lift")
        print(*[name for name in others if name in sys.modules])
        print(*[name for name in sys.modules if name.startswith("liftcore.")])
    """
    found = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    others, own = found.stdout.split("\n")[:2]
    assert others == ""
    assert not [name for name in own.split() if name.startswith(("liftcore.scopes", "liftcore.pipeline"))]

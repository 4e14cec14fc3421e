"""Bytes from anyone: an error that says what is wrong, or what was saved; never anything else.

`--full` runs 20,000 mutated files.
"""

from __future__ import annotations

import io
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
from liftcore.checkpoints import Stored, layout, load_file, load_safetensors, match_state, safetensors
from liftcore.errors import SerializationError
from liftcore.saving import encoding
from liftcore.saving.nested import mapped
from liftcore.serialization import from_bytes, msgpack_serialize, to_state_dict

TREES: list[Any] = [
    {"params": {f"layer_{i}": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.ones(3, "f4")} for i in range(3)}},
    {"key": to_state_dict(jax.random.key(3)), "n": 3, "f": 1.5, "t": "text", "b": b"bytes", "none": None, "c": 2j},
    {"flags": np.array([True, False]), "scalar": np.float16(2), "list": [1, [np.zeros((0, 4))]], "e": {}},
    {"large": np.arange(4.0).reshape(2, 2), "after": np.ones(2)},
    np.arange(300, dtype=np.int16),
]
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(encoding, "_MAX_CHUNK_BYTES", 600)
    CHECKED = [b"".join(bytes(part) for part in layout.parts_of(tree)) for tree in TREES]
    PLAIN = [msgpack_serialize(tree) for tree in TREES]
    patch.setattr(encoding, "_MAX_CHUNK_BYTES", 16)  # it has large arrays, in pieces
    CHECKED[3] = b"".join(bytes(part) for part in layout.parts_of(TREES[3]))
    PLAIN[3] = msgpack_serialize(TREES[3])
VALUES = {msgpack_serialize(tree) for tree in TREES}
CASES = [200, *[495] * 40]
"""How many mutations in a case, each of them of a file with checksums and of one without: 20,000 of the first kind."""


def flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def splice(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(CHECKED + PLAIN)
    start, stop = sorted(chance.randrange(len(other)) for _ in range(2))
    at, length = chance.randrange(len(data)), chance.choice((0, stop - start, chance.randrange(20)))
    return data[:at] + other[start:stop] + data[at + length :]


def insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.choice((1, 2, 5, 40))) + data[at:]


def repeat(data: bytes, chance: random.Random) -> bytes:
    start, stop = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:stop] + data[start:]


def headers(data: bytes, chance: random.Random) -> bytes:
    """A byte that announces something else, or an enormous amount of it."""
    at = chance.randrange(len(data))
    head = chance.choice([bytes([first]) for first in range(0x80, 0xE0)])
    return data[:at] + head + chance.choice((b"", b"\xff\xff\xff\xff", b"\x7f" * 8)) + data[at + 1 :]


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [flip, flip, cut, splice, insert, repeat, headers]


def load(data: bytes, checksums: bool) -> Any:
    state, end = layout.state_in(io.BytesIO(data), 0, len(data), checksums)
    if end < len(data):
        raise SerializationError("the file", "it goes on.", "Cut it off.")
    return mapped(lambda _, leaf: leaf.read() if isinstance(leaf, Stored) else leaf, state)


@pytest.mark.parametrize("seed", range(len(CASES)))
def test_mutated_files_are_errors_or_what_was_saved(seed):
    chance, read = random.Random(seed), 0
    for _ in range(CASES[seed]):
        index, mutation = chance.randrange(len(TREES)), chance.choice(MUTATIONS)
        data = mutation(CHECKED[index], chance)
        try:
            found = load(data, checksums=True)
        except SerializationError:
            pass
        else:
            assert msgpack_serialize(found) in VALUES, mutation
        try:  # without checksums a number may be another one, and all the same nothing but plain data comes out
            found = load(mutation(PLAIN[index], chance), checksums=False)
            read += 1
            msgpack_serialize(found)
            match_state(TREES[index], found)
        except SerializationError:
            pass
    assert 0 < read < CASES[seed]


def in_npy(tree: Any) -> bytes:
    file = io.BytesIO()
    for leaf in jax.tree.leaves(tree):
        np.save(file, leaf)
    return file.getvalue()


def in_safetensors(tree: Any) -> bytes:
    return b"".join(bytes(part) for part in safetensors._parts(tree, {"by": "us"}))


ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c": np.ones(3, jnp.bfloat16)}
ARRAYS |= {"d": np.ones((), "i4"), "e": np.ones(4, jnp.float8_e5m2)}
FORMATS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "npy": (in_npy(ARRAYS), lambda path: eqx.tree_deserialise_leaves(path, ARRAYS)),
    "safetensors": (in_safetensors(ARRAYS), lambda path: load_safetensors(path, ARRAYS)),
}


@pytest.mark.parametrize(("seed", "count"), [(0, 100), *((seed, 300) for seed in range(1, 20))])
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_arrays_are_errors_or_other_numbers(tmp_path: Path, name: str, seed: int, count: int) -> None:
    """In formats without checksums. No class and no warning of another library comes out."""
    chance, (data, load_arrays), read = random.Random(seed), FORMATS[name], 0
    texts = list[str]()
    path = tmp_path / "model.eqx"
    for _ in range(count):
        path.write_bytes(chance.choice(MUTATIONS)(data, chance))
        try:
            found = load_arrays(path)
        except SerializationError as error:
            texts.append(str(error))
        else:
            read += 1
            assert [one.dtype for one in found.values()] == [one.dtype for one in ARRAYS.values()]
            assert set(found["b"].view(np.uint8).tolist()) <= {0, 1}
    assert 0 < read < count
    assert all(len(text) < 2_000 and str(path) in text for text in texts)


def test_what_was_not_mutated_is_read():
    for checked, plain in zip(CHECKED, PLAIN, strict=True):
        assert msgpack_serialize(load(checked, True)) == msgpack_serialize(load(plain, False))


def test_every_flipped_bit_is_found():
    data = b"".join(bytes(part) for part in layout.parts_of({"a": np.arange(3), "b": [1, b"c"]}))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SerializationError):
            load(bytes(damaged), True)


@pytest.mark.parametrize("inner", [b"\x81\xa1a", b"\x91"])
def test_depth_is_bounded(inner):
    for depth in (127, 128, 100_000):
        data = inner * depth + b"\xc0"
        if depth == 127:
            assert load(data, False)
        else:
            with pytest.raises(SerializationError, match="levels deep"):
                load(data, False) if depth > 128 else load(inner * 130 + b"\xc0", False)


HOSTILE = [
    b"\xc7\xff\x05" + bytes(255),  # an extension of an unknown type
    b"\xc7\x09\x01\x93\x91\x04\xa3abc\xc4\x00",  # a dtype that is none
    b"\xc7\x0b\x01\x93\x91\x04\xa5int32\xc4\x00",  # four numbers in no bytes
    b"\xc7\x13\x01\x93\x92\xcf" + b"\xff" * 8 + b"\x00\xa4int8\xc4\x00",  # an empty array with an enormous axis
    b"\xc7\x0c\x01\x93\x91\xff\xa5int32\xc4\x00\x00",  # a negative length
    b"\x82\xa1a\x01\xa1a\x02",  # a name twice
    b"\x81\xc0\x01",  # a name that is none
    b"\x81\xc4\x01a\x01",
    b"\x81\x91\x01\x01",
    b"\xc1",
    b"",
    b"\xa2\xff\xff",  # no text
]


def _many(count: int, one: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + one * count


LARGE = 6_000
TEXT = b"\xdb" + LARGE.to_bytes(4, "big") + b"k" * LARGE
NUMEROUS: dict[str, tuple[bytes, int]] = {
    "None": (_many(LARGE, b"\xc0"), 30),
    "dicts": (_many(LARGE, b"\x80"), 120),
    "lists": (_many(LARGE, b"\x90"), 120),
    "empty bytes": (_many(LARGE, b"\xc4\x00"), 300),
    "empty arrays": (_many(LARGE // 12, b"\xc7\x0a\x01\x93\x91\x00\xa4int8\xc4\x00"), 120),
    "names": (
        b"\xdf" + LARGE.to_bytes(4, "big") + b"".join(b"\xa5%05x\xc0" % number for number in range(LARGE)),
        40,
    ),
    "a long name": (b"\x81" + TEXT + b"\xc0", 10),
    "a long name twice": (b"\x82" + 2 * (TEXT + b"\xc0"), 10),
    "long names above damage": (100 * (b"\x81\xda\x03\xe8" + b"k" * 1000) + b"\xc1", 10),
    "dimensions": (b"\xc9" + (LARGE + 13).to_bytes(4, "big") + b"\x01\x93" + _many(LARGE, b"\x01") + b"\xa4int8", 10),
    "a long dtype": (b"\xc9" + (LARGE + 9).to_bytes(4, "big") + b"\x01\x93\x90" + TEXT + b"\xc4\x00", 10),
}
"""Files with much of something, and how many times its size a file may take."""


@pytest.mark.parametrize("name", NUMEROUS)
@pytest.mark.parametrize("load", [load_file, lambda path, target, **_: from_bytes(target, path.read_bytes())])
def test_memory_and_texts_are_bounded_by_the_size_of_the_file(
    tmp_path: Path, name: str, load: Callable[..., Any]
) -> None:
    data, times = NUMEROUS[name]
    path = tmp_path / "model"
    path.write_bytes(data)
    with pytest.raises(SerializationError):  # what is imported for a first error does not count
        load(path, {"w": np.zeros(3)}, checksums=False)
    tracemalloc.start()
    with pytest.raises(SerializationError) as caught:
        load(path, {"w": np.zeros(3)}, checksums=False)
    text, (_, peak) = str(caught.value), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text) < 2_000
    assert peak < times * len(data) + 350_000


VALUES_IN_BYTES = {
    "None": b"\xc0",
    "dicts": b"\x80",
    "lists": b"\x90",
    "empty bytes": b"\xc4\x00",
    "texts": b"\xa1k",
    "numbers": b"\xcd\x12\x34",
    "lists of one": b"\x91\x01",
    "dicts of one": b"\x81\xa1k\xc0",
    "empty arrays": b"\xc7\x0a\x01\x93\x91\x00\xa4int8\xc4\x00",
}


@pytest.mark.parametrize("name", VALUES_IN_BYTES)
@pytest.mark.parametrize("target", [None, {"w": np.zeros(3)}], ids=["no target", "a target"])
def test_the_work_is_bounded_by_the_size_of_the_file(tmp_path: Path, name: str, target: Any) -> None:
    """In calls of functions, which are counted, since times depend on the machine."""

    def calls(count: int) -> int:
        (tmp_path / "model").write_bytes(_many(count, VALUES_IN_BYTES[name]))
        made = 0

        def count_call(frame: Any, event: str, arg: Any) -> None:
            nonlocal made
            made += event == "call"

        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            load_file(tmp_path / "model", target, checksums=False)
        except SerializationError:
            pass
        finally:
            sys.setprofile(before)
        return made

    few = 1_100  # more than the entries that are compared with the names of a target
    assert calls(2 * few) - calls(few) < 13 * few * len(VALUES_IN_BYTES[name])


def test_the_first_ten_are_named_and_the_others_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(_many(LARGE, b"\xc0"))
    with pytest.raises(SerializationError) as caught:
        load_file(path, {"w": np.zeros(3)}, checksums=False)
    lines = caught.value.what.strip().splitlines()
    assert (len(lines), lines[0]) == (12, f"{LARGE + 1} entries do not fit the target:")
    assert lines[-1] == f"  and {LARGE - 9} more"


def test_names_that_are_the_same_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"\x82\x01\xc0\xa11\xc0")
    with pytest.raises(SerializationError, match="two names are the same text: 1"):
        load_file(tmp_path / "model", {"1": None}, checksums=False)


@pytest.mark.parametrize("data", HOSTILE)
def test_what_nobody_writes_is_an_error(data):
    with pytest.raises(SerializationError):
        load(data, False)

"""Reading and writing of msgpack: what the `msgpack` package reads and writes, and nothing else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftcore.errors import SerializationError
from liftcore.saving.wire import Tokens, bin_header, ext_header

LENGTHS = [*range(18), 2**8 - 1, 2**8, 2**16 - 1, 2**16]


@pytest.mark.parametrize("length", LENGTHS)
def test_headers_are_those_of_msgpack(length):
    content = bytes(length)
    assert bin_header(length) + content == msgpack.packb(content)
    assert ext_header(5, length) + content == msgpack.packb(msgpack.ExtType(5, content))


def test_headers_of_what_is_too_long_are_an_error():
    assert bin_header(2**32 - 1) == b"\xc6\xff\xff\xff\xff"
    with pytest.raises(OverflowError):
        bin_header(2**32)
    with pytest.raises(OverflowError):
        ext_header(1, 2**32)


def read(tokens: Tokens) -> Any:
    """All of a value; a map as its pairs, as keys may be anything here."""
    kind, value = tokens.take()
    if kind == "list":
        return [read(tokens) for _ in range(value)]
    if kind == "map":
        return [(read(tokens), read(tokens)) for _ in range(value)]
    if kind == "ext":
        code, data = value
        return msgpack.Timestamp.from_bytes(bytes(data)) if code == -1 else msgpack.ExtType(code, bytes(data))
    return bytes(value) if kind == "bin" else value


def ours(data: bytes) -> str:
    tokens = Tokens(memoryview(data))
    try:
        value = read(tokens)
    except (SerializationError, ValueError):  # ours, and those of extensions that msgpack does not take
        return "damaged"
    return repr(value) if tokens.left == 0 else "damaged"


def theirs(data: bytes) -> str:
    try:
        return repr(msgpack.unpackb(data, object_pairs_hook=list, strict_map_key=False))
    except ValueError:
        return "damaged"


EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=20)
    | EXTENSIONS
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=30,
)


@given(VALUES)
def test_what_msgpack_packs_is_read_as_msgpack_reads_it(value):
    data = msgpack.packb(value)
    assert ours(data) == theirs(data) != "damaged"


@given(st.floats(width=32))
def test_floats_of_single_precision_are_read_as_msgpack_reads_them(value):
    data = msgpack.packb(value, use_single_float=True)
    assert ours(data) == theirs(data) != "damaged"


@given(VALUES, st.data())
def test_changed_and_cut_bytes_are_read_as_msgpack_reads_them(value, data):
    packed = bytearray(msgpack.packb(value))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    assert ours(bytes(packed)) == theirs(bytes(packed))
    assert ours(cut) == theirs(cut)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_as_msgpack_reads_them(data):
    assert ours(data) == theirs(data)


@pytest.mark.parametrize("marker", range(256))
def test_each_first_byte_is_read_as_msgpack_reads_it(marker):
    for rest in (b"", b"\x00", b"\x01\x02", b"\x00" * 4, b"\x00" * 8, b"\x00" * 9, b"\x01" * 17, b"\x01" * 40):
        assert ours(bytes([marker]) + rest) == theirs(bytes([marker]) + rest)

"""The layout of a checkpoint file: msgpack of a state, followed by a checksum for each array in it.

    {"liftcore_checkpoint": 1, "state": …, "checksums": {"arrays": uint32[n], "rest": …}}

The state is written as `liftcore.serialization` and flax write it, so any msgpack reader finds it under `"state"`.
A weakly typed scalar is written as a number: arrays in the file are strongly typed.
`arrays` holds the CRC-32 of each array and of each value of type bytes, in the order of the file. `rest`, the last four
bytes, is the CRC-32 of all other bytes before it: names, shapes, numbers, and the other checksums.

CRC-32 detects every error burst of up to 32 bits, and misses about one in 4 billion other errors. It processes 7 GB a
second, BLAKE2 only 1.4. Neither protects against someone who changes a file on purpose.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack
import numpy as np

from ..saving.encoding import NDARRAY, Reader, WritePlan, array_type, checked, pieces_of, reshaped
from ..saving.nested import mapped
from ..saving.problems import StateError, damaged
from ..saving.wire import Tokens
from ..typing import Path
from .placing import Stored, number_of

__all__ = ["NO_CHECKSUMS", "parts_of", "state_in"]

NO_CHECKSUMS = "If to_bytes or flax wrote it, read it with `checksums=False`. Otherwise it is damaged."
_MARK = b"\x83" + msgpack.packb("liftcore_checkpoint")
_VERSION = 1
_UINT32 = b"\xce"
_WINDOW = 2**16
_ALIGNMENT = 64  # the alignment of XLA's arrays, so that JAX can use the memory without a copy


# --- writing ----------------------------------------------------------------------------------------------------------


def parts_of(state: Any) -> Iterator[Any]:
    """Return an iterator over the bytes of a file, in buffers. Drop each buffer before you ask for the next one.

    Raises:
        StateError: at once, if the state holds something that cannot be written.
    """
    plan = _Plan()
    plan.head += _MARK + msgpack.packb(_VERSION) + msgpack.packb("state")
    plan.add(state, 1)
    return _parts(plan)


class _Plan(WritePlan):
    """A plan that writes weakly typed scalars as numbers."""

    def add(self, tree: Any, depth: int) -> None:
        super().add(number_of(tree), depth)


def _parts(plan: WritePlan) -> Iterator[Any]:
    sums, rest = [0] * len(plan.arrays), 0
    for number, part in plan.parts():
        if number is None:
            rest = zlib.crc32(part, rest)
        else:
            sums[number] = zlib.crc32(part, sums[number])
        yield part
        del part
    end = WritePlan()
    end.head += msgpack.packb("checksums") + b"\x82" + msgpack.packb("arrays")
    end.add(np.array(sums, np.uint32), 2)
    end.head += msgpack.packb("rest") + _UINT32
    data = b"".join(part for _, part in end.parts())
    yield data + zlib.crc32(data, rest).to_bytes(4, "big")


# --- reading ----------------------------------------------------------------------------------------------------------


def state_in(file: Any, start: int, end: int, checksums: bool) -> tuple[Any, int]:
    """Return the state in a file, and the position at which it ends. Arrays are `Stored`: they are read on demand.

    Args:
        file: an open file, with `seek` and `read`; it must still be open when arrays are read.
        start: the position at which the state begins.
        end: the position at which the file ends.
        checksums: whether the file must have checksums; if false, a file that holds only a state is accepted too.

    Raises:
        StateError: if the file is damaged, or does not begin with a checkpoint.
    """
    tokens = _FileTokens(file, start, end)
    ours = tokens.left >= len(_MARK) and tokens.bytes(len(_MARK)) == _MARK
    if not ours:
        if checksums:
            what = "the file does not begin like a file with checksums."
            raise StateError(what, NO_CHECKSUMS, option="checksums")
        tokens = _FileTokens(file, start, end)
    elif tokens.take() != ("value", _VERSION) or tokens.take() != ("value", "state"):
        raise damaged(f"the file is not of version {_VERSION}, the only one that this liftcore can read.")
    reader = _FileReader(tokens)
    state = reader.read(1 if ours else 0, copy=False)
    sums = _sums(tokens, len(reader.payloads)) if ours else [None] * len(reader.payloads)
    of_payload = dict(zip(map(id, reader.payloads), sums, strict=True))

    def lazy(path: Path, leaf: Any) -> Any:
        return _stored(file, leaf, of_payload[id(leaf)], path) if type(leaf) is _Payload else leaf

    return mapped(lazy, state), end - tokens.left


def _sums(tokens: _FileTokens, count: int) -> list[int]:
    """Return the checksums of the arrays, after verifying them and everything else that is not an array."""
    head = [tokens.take() for _ in range(3)]
    kind, value = tokens.take()
    if head != [("value", "checksums"), ("map", 2), ("value", "arrays")] or kind != "ext" or value[0] != NDARRAY:
        raise damaged("the checksums are missing.")
    if array_type(tokens, value[1]) != (np.dtype(np.uint32), [count]):
        raise damaged(f"the number of checksums is not {count}, the number of arrays.")
    sums: list[int] = np.frombuffer(tokens.bytes(4 * count), np.uint32).tolist()
    if tokens.take() != ("value", "rest") or tokens.bytes(1) != _UINT32:
        raise damaged("the last checksum is missing.")
    found = tokens.checksum()
    if found != int.from_bytes(tokens.bytes(4), "big"):
        raise damaged("names, shapes or numbers differ from those that were written (checksum mismatch).")
    return sums


class _FileTokens(Tokens):
    """The values in a file. Only a window of it is in memory, and the bytes of arrays are skipped."""

    def __init__(self, file: Any, start: int, end: int) -> None:
        super().__init__(memoryview(b""))
        self._file, self._at, self._end = file, start, end
        self._start = start  # the position in the file at which the window begins
        self._summed, self._sum = 0, 0  # the checksum covers the window up to this offset

    def take(self) -> tuple[str, Any]:
        """Return the next value; for bytes and arrays, only the length (call `skip` or `array_type` next)."""
        kind, value = self.head()
        if kind == "ext" and value[0] != NDARRAY:
            code, length = value
            return kind, (code, self.bytes(length))
        return kind, value

    def step(self, count: int) -> int:
        """Move forward by `count` bytes, which are in the window afterwards."""
        start = self._at - self._start
        if start + count > len(self._data):  # the window moves to these bytes
            self.check(count)
            self._sum_up(start)
            self._start, self._summed, start = self._at, 0, 0
            self._data = memoryview(bytearray(min(max(count, _WINDOW), self._end - self._start)))
            _read_into(self._file, self._start, self._data)
        self._at += count
        return start

    def skip(self, count: int) -> int:
        """Skip bytes, which the checksum leaves out, and return their position in the file."""
        self._sum_up(self._at - self._start)
        self.check(count)
        start = self._at
        self._at += count
        self._summed = self._at - self._start
        return start

    def checksum(self) -> int:
        """Return the checksum of all bytes so far that were not skipped."""
        self._sum_up(self._at - self._start)
        return self._sum

    def _sum_up(self, end: int) -> None:
        if self._summed < end:
            self._sum = zlib.crc32(self._data[self._summed : end], self._sum)
            self._summed = end


class _Payload(NamedTuple):
    """The position in a file of an array or, without a dtype, of a value of type bytes."""

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    spans: list[tuple[int, int]]


class _FileReader(Reader):
    """A reader of a state that leaves the bytes of arrays in the file."""

    _tokens: _FileTokens

    def __init__(self, tokens: _FileTokens) -> None:
        super().__init__(tokens)
        self.payloads: list[_Payload] = []

    def array(self, data: Any, copy: bool) -> Any:
        dtype, shape = array_type(self._tokens, data)
        return self._skipped(dtype, tuple(shape), math.prod(shape) * dtype.itemsize)

    def binary(self, data: Any) -> Any:
        return self._skipped(None, (data,), data)

    def joined(self, pieces: dict[Any, Any]) -> Any:
        parts, shape = pieces_of(pieces, _Payload)
        if parts[0].dtype is None:
            raise damaged("the pieces of an array are not arrays.")
        del self.payloads[-len(parts) :]
        whole = _Payload(parts[0].dtype, tuple(shape), [span for part in parts for span in part.spans])
        self.payloads.append(whole)
        return whole

    def _skipped(self, dtype: np.dtype[Any] | None, shape: tuple[int, ...], size: int) -> _Payload:
        payload = _Payload(dtype, shape, [(self._tokens.skip(size), size)])
        self.payloads.append(payload)
        return payload


def _stored(file: Any, payload: _Payload, expected: int | None, path: Path) -> Any:
    if payload.dtype is not None:
        return Stored(payload.shape, payload.dtype, functools.partial(_read, file, payload, expected, path))
    [(start, length)] = payload.spans
    file.seek(start)
    data = b"".join(iter(lambda: file.read(left) if (left := start + length - file.tell()) else b"", b""))
    _check(data, expected, path)
    return data


def _read(file: Any, payload: _Payload, expected: int | None, path: Path) -> Any:
    """Read an array into new memory, and verify it."""
    size = sum(length for _, length in payload.spans)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    flat = memory[(first := -memory.ctypes.data % _ALIGNMENT) : first + size]
    done = 0
    for start, length in payload.spans:
        _read_into(file, start, flat[done : done + length].data)
        done += length
    _check(flat.data, expected, path)
    try:
        return reshaped(checked(flat.view(payload.dtype)), payload.shape)
    except StateError as error:
        raise StateError(error.what, error.fix, path, **error.facts) from error.__cause__


def _check(data: bytes | memoryview, expected: int | None, path: Path) -> None:
    if expected is not None and zlib.crc32(data) != expected:
        raise damaged("the bytes differ from those that were written (checksum mismatch).", path)


def _read_into(file: Any, start: int, buffer: memoryview) -> None:
    file.seek(start)
    done = 0
    while done < len(buffer):
        if hasattr(file, "readinto"):
            count = file.readinto(buffer[done:])
        else:
            data = file.read(len(buffer) - done)
            count = len(data)
            buffer[done : done + count] = data
        if not count:
            raise damaged("the file became shorter while it was being read.")
        done += count

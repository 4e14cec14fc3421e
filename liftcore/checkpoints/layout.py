"""How a checkpoint is laid out in a file: msgpack of a state, and of a checksum for each array in it.

    {"liftcore_checkpoint": 1, "state": …, "checksums": {"arrays": uint32[n], "rest": …}}

The state is as `liftcore.serialization` and flax write it, so any reader of msgpack finds it under its name. `arrays`
has the CRC-32 of the bytes of each array, and of each value that is bytes, in the order of the file; `rest`, the last
four bytes, that of all other bytes before it: names, shapes, numbers, and the other checksums.

CRC-32 finds all errors of up to 32 bits in a row, and misses one of 4 billion others. It reads 7 GB a second where
BLAKE2 reads 1.4; against someone who changes a file on purpose neither would help.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np

from ..saving.encoding import NDARRAY, Reader, WritePlan, array_type, checked, pieces_of, reshaped
from ..saving.problems import StateError, damaged
from ..saving.wire import Tokens
from .placing import Stored

__all__ = ["NoChecksums", "parts_of", "state_and_end", "state_in"]

_MARK = b"\x83" + msgpack.packb("liftcore_checkpoint")
_VERSION = 1
_UINT32 = b"\xce"
_WINDOW = 2**16
_ALIGNMENT = 64  # as XLA has its arrays, which then need no copy of these


# --- writing ----------------------------------------------------------------------------------------------------------


def parts_of(state: Any) -> Iterator[Any]:
    """The bytes of a file, one buffer after the other, which is to be let go of before the next one is asked for.

    Raises:
        StateError: at once, if there is something in the state that cannot be written.
    """
    plan = WritePlan()
    plan.head += _MARK + msgpack.packb(_VERSION) + msgpack.packb("state")
    plan.add(state, 1)
    return _parts(plan)


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


class NoChecksums(StateError):
    """A file is not one of those that carry checksums."""


def state_in(file: BinaryIO, size: int, checksums: bool) -> Any:
    """The state in a file, in which arrays are `Stored`: they are read, and checked, when they are asked for.

    Args:
        file: an open file, without a buffer; it must be open still when arrays are read.
        size: the number of its bytes.
        checksums: whether the file must carry checksums; if not, one of nothing but a state is read too.

    Raises:
        StateError: if it is damaged, or no such file.
    """
    state, end = state_and_end(file, size, checksums)
    if end < size:
        raise damaged(f"after the value that the file begins with there are {size - end} bytes more.")
    return state


def state_and_end(file: Any, size: int, checksums: bool) -> tuple[Any, int]:
    """The same of a file that may go on after the state, and the number of bytes up to its end.

    Args:
        file: see `state_in`; what has `seek`, `tell`, `read` and `readinto` is enough.
        size: the number of its bytes.
        checksums: see `state_in`.

    Raises:
        StateError: if it is damaged, or no such file.
    """
    tokens = _FileTokens(file, size)
    ours = size >= len(_MARK) and tokens.bytes(len(_MARK)) == _MARK
    if not ours:
        if checksums:
            what = "the file does not begin as one with checksums does."
            fix = "If it is what to_bytes or flax wrote, read it with `checksums=False`. If not, it is damaged."
            raise NoChecksums(what, fix)
        tokens = _FileTokens(file, size)
    elif tokens.take() != ("value", _VERSION) or tokens.take() != ("value", "state"):
        raise damaged(f"this is no file of version {_VERSION}, which is the only one that is known.")
    reader = _FileReader(tokens)
    state = reader.read(1 if ours else 0, copy=False)
    sums = _sums(tokens, len(reader.payloads)) if ours else [None] * len(reader.payloads)
    of_payload = dict(zip(map(id, reader.payloads), sums, strict=True))
    lazy = _lazy(state, (), lambda payload, path: _stored(file, payload, of_payload[id(payload)], path))
    return lazy, size - tokens.left


def _sums(tokens: _FileTokens, count: int) -> list[int]:
    """The checksums of arrays, which are themselves checked, and all else with them."""
    head = [tokens.take() for _ in range(3)]
    kind, value = tokens.take()
    if head != [("value", "checksums"), ("map", 2), ("value", "arrays")] or kind != "ext" or value[0] != NDARRAY:
        raise damaged("the checksums are missing.")
    if array_type(tokens, value[1]) != (np.dtype(np.uint32), [count]):
        raise damaged(f"there are not as many checksums as arrays, {count}.")
    sums: list[int] = np.frombuffer(tokens.bytes(4 * count), np.uint32).tolist()
    if tokens.take() != ("value", "rest") or tokens.bytes(1) != _UINT32:
        raise damaged("the last checksum is missing.")
    found = tokens.checksum()
    if found != int.from_bytes(tokens.bytes(4), "big"):
        raise damaged("names, shapes or numbers in it are not those that were written: their checksum differs.")
    return sums


class _FileTokens(Tokens):
    """The values in a file, of which no more than a window is in memory; the bytes of arrays are skipped."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(memoryview(b""))
        self._file, self._end = file, size
        self._start = 0  # where in the file the window begins
        self._summed, self._sum = 0, 0  # what comes before that in the window is in the checksum

    def take(self) -> tuple[str, Any]:
        """Returns the next value; of bytes and of arrays the length only, as `skip` or `array_type` go on with them."""
        kind, value = self.head()
        if kind == "ext" and value[0] != NDARRAY:
            code, length = value
            return kind, (code, self.bytes(length))
        return kind, value

    def step(self, count: int) -> int:
        """Moves on, with that many bytes in the window."""
        start = super().step(count) - self._start
        if start + count > len(self._data):
            self._sum_up(start)
            self._start, self._summed, start = self._start + start, 0, 0
            size = min(max(count, _WINDOW), self._end - self._start)
            self._data = memoryview(_bytes_at(self._file, self._start, size))
        return start

    def skip(self, count: int) -> int:
        """Moves on without reading, and returns where in the file the bytes are that are left out of the checksum."""
        self._sum_up(self._at - self._start)
        start = super().step(count)
        self._summed = self._at - self._start
        return start

    def checksum(self) -> int:
        """That of all bytes so far which were not skipped."""
        self._sum_up(self._at - self._start)
        return self._sum

    def _sum_up(self, end: int) -> None:
        if self._summed < end:
            self._sum = zlib.crc32(self._data[self._summed : end], self._sum)
            self._summed = end


class _Payload(NamedTuple):
    """Where in a file the bytes of an array are or, without a dtype, a value that is bytes."""

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    spans: list[tuple[int, int]]


class _FileReader(Reader):
    """What reads a state, and leaves the bytes of arrays in the file."""

    def __init__(self, tokens: _FileTokens) -> None:
        super().__init__(tokens)
        self._file_tokens = tokens
        self.payloads: list[_Payload] = []

    def array(self, data: Any, copy: bool) -> Any:
        dtype, shape = array_type(self._file_tokens, data)
        return self._skipped(dtype, tuple(shape), math.prod(shape) * dtype.itemsize)

    def binary(self, data: Any) -> Any:
        return self._skipped(None, (data,), data)

    def joined(self, pieces: dict[Any, Any]) -> Any:
        parts, shape = pieces_of(pieces, _Payload)
        if parts[0].dtype is None:
            raise damaged("the pieces of an array are no arrays.")
        del self.payloads[-len(parts) :]
        whole = _Payload(parts[0].dtype, tuple(shape), [span for part in parts for span in part.spans])
        self.payloads.append(whole)
        return whole

    def _skipped(self, dtype: np.dtype[Any] | None, shape: tuple[int, ...], size: int) -> _Payload:
        payload = _Payload(dtype, shape, [(self._file_tokens.skip(size), size)])
        self.payloads.append(payload)
        return payload


def _lazy(tree: Any, path: tuple[str, ...], stored: Callable[[_Payload, tuple[str, ...]], Any]) -> Any:
    """A state in which what is still in the file is found by `stored`."""
    if isinstance(tree, _Payload):
        return stored(tree, path)
    if isinstance(tree, dict):
        return {name: _lazy(below, (*path, str(name)), stored) for name, below in tree.items()}
    if isinstance(tree, list):
        return [_lazy(below, (*path, str(index)), stored) for index, below in enumerate(tree)]
    return tree


def _stored(file: BinaryIO, payload: _Payload, expected: int | None, path: tuple[str, ...]) -> Any:
    if payload.dtype is not None:
        return Stored(payload.shape, payload.dtype, functools.partial(_read, file, payload, expected, path))
    [(start, length)] = payload.spans
    file.seek(start)
    data = b"".join(iter(lambda: file.read(left) if (left := start + length - file.tell()) else b"", b""))
    _check(data, expected, path)
    return data


def _read(file: BinaryIO, payload: _Payload, expected: int | None, path: tuple[str, ...]) -> Any:
    """The bytes of an array, in memory of their own."""
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
        raise StateError(error.what, error.fix, path) from error.__cause__


def _check(data: bytes | memoryview, expected: int | None, path: tuple[str, ...]) -> None:
    if expected is not None and zlib.crc32(data) != expected:
        error = damaged("the bytes here are not those that were written: their checksum differs.")
        raise StateError(error.what, error.fix, path)


def _bytes_at(file: BinaryIO, start: int, count: int) -> bytearray:
    data = bytearray(count)
    _read_into(file, start, memoryview(data))
    return data


def _read_into(file: BinaryIO, start: int, buffer: memoryview) -> None:
    file.seek(start)
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])  # type: ignore[attr-defined]
        if not count:
            raise damaged("the file has become shorter while it was read.")
        done += count

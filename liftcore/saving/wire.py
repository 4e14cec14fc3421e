"""msgpack without copies: values are read where they lie, and headers are written without what they stand before.

The `msgpack` package copies what is in an extension when it packs it, and twice when it unpacks it. Checkpoints are
nearly all extensions, so here is the little that it has no function for. All else is packed by the package.
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["Tokens", "bin_header", "ext_header"]


def bin_header(length: int) -> bytes:
    """Returns what stands before that many bytes; an `OverflowError` if they are more than one value can hold."""
    return _sized(0xC4, length)


def ext_header(code: int, length: int) -> bytes:
    """Returns what stands before that many bytes of an extension."""
    if length in (1, 2, 4, 8, 16):
        return bytes([0xD3 + length.bit_length(), code])
    return _sized(0xC7, length) + bytes([code])


def _sized(marker: int, length: int) -> bytes:
    """Returns the first of three markers that leaves enough room for the length (1, 2 or 4 bytes), and the length."""
    power = 0 if length < 2**8 else 1 if length < 2**16 else 2
    return bytes([marker + power]) + length.to_bytes(2**power, "big")


_CONSTANTS: dict[int, Any] = {0xC0: None, 0xC2: False, 0xC3: True}
_CONSTANTS |= {number & 0xFF: number for number in range(-32, 128)}

_NUMBERS = {0xCA + index: struct.Struct(">" + kind) for index, kind in enumerate("fdBHIQbhiq")}

# What a marker is followed by: the bytes of its length or, where there are none, the length itself.
_SIZED: dict[int, tuple[str, int, int]] = {
    **{0x80 + length: ("map", 0, length) for length in range(16)},
    **{0x90 + length: ("list", 0, length) for length in range(16)},
    **{0xA0 + length: ("str", 0, length) for length in range(32)},
    **{0xD4 + power: ("ext", 0, 2**power) for power in range(5)},
    **{0xC4 + power: ("bin", 2**power, 0) for power in range(3)},
    **{0xC7 + power: ("ext", 2**power, 0) for power in range(3)},
    **{0xD9 + power: ("str", 2**power, 0) for power in range(3)},
    **{0xDC + power: ("list", 2 << power, 0) for power in range(2)},
    **{0xDE + power: ("map", 2 << power, 0) for power in range(2)},
}


class Tokens:
    r"""The values in msgpack bytes, one after the other; of lists and maps only the size, as their values follow.

    Example:
        >>> tokens = Tokens(memoryview(b"\x92\xa1a\xc4\x01b"))
        >>> tokens.take(), tokens.take(), tokens.take()[0], tokens.left
        (('list', 2), ('value', 'a'), 'bin', 0)
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at, self._end = data, 0, len(data)

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return self._end - self._at

    def take(self) -> tuple[str, Any]:
        """Returns the next value and what it is.

        Returns:
            `("value", value)` for `None`, booleans, numbers and strings; `("bin", view)`; `("ext", (code, view))`;
            `("list", length)` and `("map", length)`.

        Raises:
            ValueError: if the bytes are not msgpack, or end inside of the value.
        """
        marker = self._bytes(1)[0]
        if marker in _SIZED:
            kind, width, length = _SIZED[marker]
            return self._sized(kind, int.from_bytes(self._bytes(width), "big") if width else length)
        if marker in _CONSTANTS:
            return "value", _CONSTANTS[marker]
        if marker in _NUMBERS:
            number = _NUMBERS[marker]
            return "value", number.unpack(self._bytes(number.size))[0]
        raise ValueError(f"nothing begins with the byte {marker:#x}")

    def _sized(self, kind: str, length: int) -> tuple[str, Any]:
        if kind == "str":
            return "value", str(self._bytes(length), "utf-8")
        if kind == "ext":
            code = int.from_bytes(self._bytes(1), signed=True)
            return kind, (code, self._bytes(length))
        if kind == "bin":
            return kind, self._bytes(length)
        return kind, length

    def _bytes(self, count: int) -> memoryview:
        start, stop = self._at, self._at + count
        if stop > self._end:
            raise ValueError(f"they end where at least {stop - self._end} more are to come")
        self._at = stop
        return self._data[start:stop]

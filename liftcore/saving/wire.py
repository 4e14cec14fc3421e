"""msgpack without copies: values are read in place, and headers are written separately from the bytes after them.

The `msgpack` package copies the contents of an extension when it packs or unpacks it, and checkpoints consist almost
entirely of extensions. With its reader, no array can be a view of the bytes; to restore 1 GB in 4 arrays takes 4 to 6
times as long and a quarter more memory; and errors cannot name the path in the tree. See docs/performance-log.md. So
this file has the few functions that the package lacks; the package packs everything else.
"""

from __future__ import annotations

import struct
from typing import Any

from .problems import damaged

__all__ = ["Tokens", "bin_header", "ext_header"]


def bin_header(length: int) -> bytes:
    """Return the header of that many bytes; raises `OverflowError` if one value cannot hold them."""
    return _sized(0xC4, length)


def ext_header(code: int, length: int) -> bytes:
    """Return the header of an extension with that many bytes."""
    if length in (1, 2, 4, 8, 16):
        return bytes([0xD3 + length.bit_length(), code])
    return _sized(0xC7, length) + bytes([code])


def _sized(marker: int, length: int) -> bytes:
    """Return the first of three markers with enough room for the length (1, 2 or 4 bytes), and the length."""
    power = 0 if length < 2**8 else 1 if length < 2**16 else 2
    return bytes([marker + power]) + length.to_bytes(2**power, "big")


# The first byte of a value determines its kind, the number that follows, and the value or length if no number follows.
# A number that follows is the value itself for the kind "value", and a length for the others. Nothing begins with 0xC1.
_FIRST: dict[int, tuple[str, struct.Struct | None, Any]] = {
    **{number & 0xFF: ("value", None, number) for number in range(-32, 128)},
    **{first: ("value", None, value) for first, value in ((0xC0, None), (0xC2, False), (0xC3, True))},
    **{0x80 + length: ("map", None, length) for length in range(16)},
    **{0x90 + length: ("list", None, length) for length in range(16)},
    **{0xA0 + length: ("str", None, length) for length in range(32)},
    **{0xD4 + power: ("ext", None, 2**power) for power in range(5)},
}
_FOLLOWED = {
    0xC4: ("bin", "BHI"),
    0xC7: ("ext", "BHI"),
    0xCA: ("value", "fdBHIQbhiq"),
    0xD9: ("str", "BHI"),
    0xDC: ("list", "HI"),
    0xDE: ("map", "HI"),
}
for _first, (_kind, _formats) in _FOLLOWED.items():
    _FIRST |= {_first + index: (_kind, struct.Struct(f">{code}"), None) for index, code in enumerate(_formats)}


class Tokens:
    r"""The values in msgpack bytes, one after the other; for lists and maps only the size, since their values follow.

    Example:
        >>> tokens = Tokens(memoryview(b"\x92\xa1a\xc4\x01b"))
        >>> tokens.take(), tokens.take(), tokens.take()[0], tokens.left
        (('list', 2), ('value', 'a'), 'bin', 0)
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at, self._end = data, 0, len(data)

    @property
    def left(self) -> int:
        """The number of bytes that have not been read."""
        return self._end - self._at

    def take(self) -> tuple[str, Any]:
        """Return the kind and the value of the next value.

        Returns:
            `("value", value)` for `None`, booleans, numbers and strings; `("bin", view)`; `("ext", (code, view))`;
            `("list", length)` and `("map", length)`.

        Raises:
            StateError: if the bytes are not msgpack, or end inside the value.
        """
        kind, value = self.head()
        if kind == "ext":
            code, length = value
            return kind, (code, self.bytes(length))
        return kind, self.bytes(value) if kind == "bin" else value

    def head(self) -> tuple[str, Any]:
        """Return the next value, or its length if its bytes are still to be read.

        Raises:
            StateError: as `take` does.
        """
        at = self.step(1)
        first = self._data[at]
        if first not in _FIRST:
            raise damaged(f"the bytes cannot be read (nothing begins with the byte {first:#x}).")
        kind, number, value = _FIRST[first]
        if number:
            at = self.step(number.size)
            (value,) = number.unpack_from(self._data, at)
        if kind == "ext":
            return kind, (int.from_bytes(self.bytes(1), signed=True), value)
        if kind == "str":
            try:
                return "value", str(self.bytes(value), "utf-8")
            except UnicodeDecodeError as error:
                raise damaged(f"the bytes cannot be read ({error}).") from error
        return kind, value

    def bytes(self, count: int) -> memoryview:
        """Return the next bytes."""
        start = self.step(count)
        return self._data[start : start + count]

    def step(self, count: int) -> int:
        """Move forward by that many bytes, and return the position where they begin."""
        start = self._at
        if start + count > self._end:
            self.check(count)
        self._at += count
        return start

    def check(self, count: int) -> None:
        """Raise an error if fewer than that many bytes are left."""
        if count > self.left:
            what = f"they end, but at least {count - self.left} more are expected"
            raise damaged(f"the bytes cannot be read ({what}).")

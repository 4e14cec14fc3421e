"""msgpack without copies: values are read where they lie, and headers are written without what they stand before.

The `msgpack` package copies what is in an extension when it packs it, and when it unpacks it; checkpoints are nearly
all extensions. With its reader no array can be a view of the bytes, restoring 1 GB in 4 arrays took 4 to 6 times as
long and a quarter more memory, and errors could not say where in the tree they are; see docs/performance-log.md. So
here is the little that it has no function for. All else is packed by the package.
"""

from __future__ import annotations

import struct
from typing import Any

from .problems import damaged

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


# What is known of a value by its first byte: its kind, the number that follows, and the value or length if none does.
# A number that follows is the value itself or, of all other kinds, a length. Nothing begins with 0xC1.
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
            StateError: if the bytes are not msgpack, or end inside of the value.
        """
        kind, value = self.head()
        if kind == "ext":
            code, length = value
            return kind, (code, self.bytes(length))
        return kind, self.bytes(value) if kind == "bin" else value

    def head(self) -> tuple[str, Any]:
        """Returns the next value, or its length instead of a view: its bytes come next.

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
        """Returns the next bytes."""
        start = self.step(count)
        return self._data[start : start + count]

    def step(self, count: int) -> int:
        """Moves on by that many bytes, and returns where they begin in the data at hand."""
        start = self._at
        self._at += count
        if self._at > self._end:
            raise damaged(f"the bytes cannot be read (they end where at least {-self.left} more are to come).")
        return start

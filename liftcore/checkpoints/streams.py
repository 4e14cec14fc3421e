"""Checkpoints in open binary files: each is written and read at the file's current position."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any

from ..errors import LiftArgumentError

__all__ = ["Section", "name_of_file", "write_to"]


def name_of_file(path: Any) -> str:
    """Return the name of a file for errors: its path in quotes, or the type of a file object that has no path.

    Args:
        path: a path, or an open file.
    """
    if not isinstance(path, str | os.PathLike):
        name = getattr(path, "name", None)
        if not isinstance(name, str):
            return type(path).__name__
        path = name
    return f'"{os.fspath(path)}"'


def write_to(file: Any, parts: Iterable[Any]) -> None:
    """Write bytes to a file, from its current position on.

    Args:
        file: an object with a method `write` that takes bytes.
        parts: the buffers to write, in order.

    Raises:
        LiftArgumentError: if the file is in text mode.
    """
    _check_binary(file, "wb")
    for part in parts:
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = file.write(left)
            # An unbuffered file may write fewer bytes, and returns how many. Other objects write all of them, and may
            # return nothing.
            left = left[count if isinstance(count, int) else left.nbytes :]
        del part, left


class Section:
    """The rest of a file, from its current position on, as a file of its own.

    Args:
        file: an open binary file that can seek.

    Raises:
        LiftArgumentError: if the file is in text mode, or cannot seek.
    """

    def __init__(self, file: Any) -> None:
        _check_binary(file, "rb")
        try:
            self._start = file.tell()
            self.size = file.seek(0, os.SEEK_END) - self._start
        except (AttributeError, OSError) as error:
            what = "the file cannot seek, so its size is unknown."
            fix = "Read all of it first: `load_file(io.BytesIO(file.read()), …)`."
            raise LiftArgumentError(name_of_file(file), what, fix) from error
        self._file = file
        self.seek(0)

    def seek(self, offset: int) -> int:
        """Move to a position, counted from the beginning of the section, and return it."""
        position: int = self._file.seek(self._start + offset) - self._start
        return position

    def tell(self) -> int:
        """Return the position, counted from the beginning of the section."""
        position: int = self._file.tell() - self._start
        return position

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes."""
        data: bytes = self._file.read(count)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Read bytes into a buffer, and return their number."""
        if hasattr(self._file, "readinto"):
            return self._file.readinto(buffer) or 0
        data = self.read(buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)


def _check_binary(file: Any, mode: str) -> None:
    if isinstance(file, io.TextIOBase):
        what = "the file was opened in text mode, but a checkpoint consists of bytes."
        raise LiftArgumentError(name_of_file(file), what, f'Open it with mode "{mode}".')

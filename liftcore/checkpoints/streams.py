"""Checkpoints in open binary files: each is written where the file is, and read from there."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any

from ..errors import LiftArgumentError

__all__ = ["Section", "name_of_file", "write_to"]


def name_of_file(path: Any) -> str:
    """What errors call a file: its path in quotes, or the type of a file object without one.

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
    """Writes bytes to a file, from where it is on.

    Args:
        file: an object with a method `write` for bytes.
        parts: buffers, one after the other.

    Raises:
        LiftArgumentError: if the file was opened for text.
    """
    _check_binary(file, "wb")
    for part in parts:
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = file.write(left)
            # A file without a buffer may write less, and says so; other objects write everything, and may say nothing.
            left = left[count if isinstance(count, int) else left.nbytes :]
        del part, left


class Section:
    """The rest of a file, from where it is on, as a file that begins there.

    Args:
        file: an open binary file that can `seek`.

    Raises:
        LiftArgumentError: if the file was opened for text, or cannot seek.
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
        """Goes to a position, counted from the beginning of the section."""
        position: int = self._file.seek(self._start + offset) - self._start
        return position

    def tell(self) -> int:
        """The position, counted from the beginning of the section."""
        position: int = self._file.tell() - self._start
        return position

    def read(self, count: int) -> bytes:
        """At most that many bytes."""
        data: bytes = self._file.read(count)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Reads bytes into a buffer, and returns how many."""
        if hasattr(self._file, "readinto"):
            return self._file.readinto(buffer) or 0
        data = self.read(buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)


def _check_binary(file: Any, mode: str) -> None:
    if isinstance(file, io.TextIOBase):
        what = "the file was opened for text, and a checkpoint consists of bytes."
        raise LiftArgumentError(name_of_file(file), what, f'Open it with mode "{mode}".')

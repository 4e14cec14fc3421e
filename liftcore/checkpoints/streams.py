"""Checkpoints in open binary files: each is written and read at the file's current position."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import Expected, LiftArgumentError

__all__ = ["check_path", "check_path_or_file", "name_of_file", "span_of", "write_all"]


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


def write_all(write: Callable[[memoryview], int | None], parts: Iterable[Any]) -> None:
    """Write bytes to an open file, from its current position on.

    Args:
        write: the function that writes bytes to the file.
        parts: the buffers to write, in order.
    """
    for part in parts:
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = write(left)
            # An unbuffered file may write fewer bytes, and returns how many. Other objects write all of them, and may
            # return nothing.
            left = left[count if isinstance(count, int) else left.nbytes :]
        del part, left


def span_of(file: Any) -> tuple[int, int]:
    """Return the current position of an open file and the position of its end.

    Raises:
        LiftArgumentError: if the file cannot seek.
    """
    try:
        return file.tell(), file.seek(0, os.SEEK_END)
    except (AttributeError, OSError) as error:
        what = "the file cannot seek, so its size is unknown."
        fix = "Read all of it first: `load_file(io.BytesIO(file.read()), …)`."
        raise LiftArgumentError(name_of_file(file), what, fix) from error


def check_path(where: str, path: Any) -> None:
    """Check that a value is the path of a file, and not a tree: arguments are easily swapped.

    Args:
        where: the function that got it, with its arguments in order, as in `save_file(path, tree)`.
        path: the value.

    Raises:
        LiftArgumentError: if it is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise LiftArgumentError(where, Expected("a path first", given=path), f"Write `{where}`.")


def check_path_or_file(where: str, path: Any, mode: str) -> None:
    """Check that a value is the path of a file, or an open binary file.

    Args:
        where: the function that got it, with its arguments in order.
        path: the value.
        mode: the mode to open a file in, `"rb"` or `"wb"`.

    Raises:
        LiftArgumentError: if it is neither, or if the file is in text mode.
    """
    if isinstance(path, io.TextIOBase):
        what = "the file was opened in text mode, but a checkpoint consists of bytes."
        raise LiftArgumentError(name_of_file(path), what, f'Open it with mode "{mode}".', expected=mode, option="mode")
    if not callable(getattr(path, "read" if mode == "rb" else "write", None)):
        check_path(where, path)

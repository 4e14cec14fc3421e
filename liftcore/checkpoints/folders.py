"""A folder of checkpoints with one file for each step. The last few are kept, and one process writes."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np

from ..errors import CheckpointInUseError, LiftArgumentError, SerializationError, shown
from ..saving.problems import several
from ..serialization import to_state_dict
from ..typing import Filter, PyTree
from .disk import LOCKING, FileLock, folder_lock, kind_of, make_folder, remove_left_over, replace_file
from .files import Transform, about, load_file
from .layout import parts_of
from .streams import check_path

__all__ = ["Checkpoints", "no_such_step"]

_NAME = re.compile(r"step-(\d{9,18})\.msgpack")
_LEFT_OVER = ".step-*.msgpack.tmp"
_LOCK = ".lock"


class Checkpoints:
    """A folder with the last few checkpoints of a training run.

    A checkpoint is any tree, such as a dict of the training state, the position in the data and the keys of the RNG
    streams. A step is complete or does not exist, however the process ends. Earlier steps are removed only when the new
    one is on the disk.

    One object at a time may write to a folder: from its first `save` until it is closed or its process ends. Any number
    of processes may read.

    Example:
        >>> import tempfile, numpy as np
        >>> with Checkpoints(tempfile.mkdtemp(), keep=2) as checkpoints:
        ...     for step in range(1, 5):
        ...         checkpoints.save(step, {"w": np.full(2, step), "position": 32 * step})
        ...     checkpoints.steps(), checkpoints.latest()
        ...     checkpoints.restore({"w": np.zeros(2, int), "position": 0})
        ([3, 4], 4)
        {'w': array([4, 4]), 'position': 128}

    Args:
        folder: the folder, which the first `save` creates if it does not exist.
        keep: the number of steps to keep, counted from the last; `None` keeps all.
        lock: whether to lock the folder against a second writer. On a file system without locks, the first `save` warns
            once and goes on. Pass False if you make sure yourself that there is one writer.

    Raises:
        LiftArgumentError: if `folder` is not a path, or if `keep` is not a positive integer.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = 3, *, lock: bool = True) -> None:
        check_path("Checkpoints(folder)", folder)
        if keep is not None and (not isinstance(keep, int | np.integer) or isinstance(keep, bool) or keep < 1):
            what = f"`keep` is {keep!r}."
            raise LiftArgumentError(f'Checkpoints("{folder}")', what, "Give a number of steps, or None to keep all.")
        self.folder, self.keep, self.lock = Path(folder), keep, lock
        self._lock: FileLock | None = None

    def steps(self) -> list[int]:
        """Return the saved steps, in order. A folder, a link or a pipe with the name of a step is none."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            found = [_NAME.fullmatch(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
            return sorted({int(match[1]) for match in found if match and match[0] == _name(int(match[1]))})
        return []

    def latest(self) -> int | None:
        """Return the last saved step, or `None`."""
        return max(self.steps(), default=None)

    def save(self, step: SupportsIndex, tree: PyTree) -> None:
        """Save the tree of a step, then remove the earliest steps beyond those to keep.

        Args:
            step: the step, not before the last saved one. You may save the last one again, which replaces it.
            tree: anything that `to_state_dict` accepts.

        Raises:
            LiftArgumentError: if a later step is saved already.
            CheckpointInUseError: if another process, or another object, writes to the folder.
            SerializationError: if the tree holds something that cannot be written.
            OSError: if the system cannot write, for instance because the disk is full; or if a link or a folder is in
                the place of the step or the lock. The saved steps are unchanged.
        """
        where = f'Checkpoints("{self.folder}").save'
        number = _index(where, step)
        self._hold(where)
        last = self.latest()
        if last is not None and number < last:
            what = f"step {number} comes before step {last}, which is saved already."
            fix = f"Continue from step {last}, write to another folder, or remove later files, such as {_name(last)}."
            raise LiftArgumentError(where, what, fix)
        path = self.folder / _name(number)
        with about(path):
            replace_file(path, parts_of(to_state_dict(tree)))  # unlike `save_file`, it follows no link
        for old in self.steps()[: -self.keep] if self.keep is not None else ():
            (self.folder / _name(old)).unlink(missing_ok=True)

    def restore(
        self,
        target: PyTree = None,
        step: SupportsIndex | None = None,
        *,
        filter: Filter = True,
        strict: bool = True,
        cast: bool = False,
        transform: Transform | None = None,
    ) -> Any:
        """Return a tree like `target` with the leaves of a step, which must have the same names, shapes and dtypes.

        Args:
            target: a tree with the structure to restore; see `load_file` for this and all options.
            step: the step; the last one by default.
            filter: which leaves to restore; the others keep the value of the target.
            strict: whether the names must be the same.
            cast: whether to convert floating-point numbers and integers to the target's dtype.
            transform: a function that takes the saved state and returns the state to compare with the target.

        Returns:
            A new tree.

        Raises:
            LiftArgumentError: if there is no such step.
            SerializationError: if the file is damaged (the error names the array), or if something does not fit.
        """
        where = f'Checkpoints("{self.folder}").restore'
        for number in self._candidates(where, step):
            with contextlib.suppress(FileNotFoundError):
                path = self.folder / _name(number)
                if kind := kind_of(os.lstat(path)):
                    what = f"the file of step {number} is {kind}, not a regular file."
                    raise SerializationError(
                        where, what, f"Give one of the saved steps: [{several(map(str, self.steps()))}]."
                    )
                return load_file(path, target, filter=filter, strict=strict, cast=cast, transform=transform)
        steps = self.steps()
        raise no_such_step(where, step, steps)

    def _candidates(self, where: str, step: SupportsIndex | None) -> Iterator[int]:
        """Yield the step; or the last step, and the new last step if a writer has removed the first one meanwhile."""
        if step is not None:
            yield _index(where, step)
            return
        tried = None
        while (last := self.latest()) is not None and last != tried:
            yield (tried := last)

    def close(self) -> None:
        """Stop writing, so that another object may write. The next `save` of this object makes it the writer again."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self, where: str) -> None:
        """Make this object the writer, and remove the temporary files of a writer that was killed."""
        path = self.folder / _LOCK
        with LOCKING:  # another thread may use this object too
            if self._lock is not None and self._lock.is_at(path):
                return
            self.close()  # someone removed the lock, or the folder, so another writer may have come
            make_folder(self.folder)
            self._lock = folder_lock(path, where, self.lock)
            for left in self.folder.glob(_LEFT_OVER):
                with contextlib.suppress(OSError, CheckpointInUseError):
                    remove_left_over(left, where)


def no_such_step(where: str, step: Any, steps: list[int]) -> LiftArgumentError:
    """Return the error for a step that is not in a folder, or for a folder without steps."""
    if steps:
        return LiftArgumentError(
            where, f"there is no step {step}.", f"Give one of the saved steps: [{several(map(str, steps))}]."
        )
    fix = "If this may be the first run, check before you restore: `if checkpoints.latest() is not None`."
    return LiftArgumentError(where, "there is no checkpoint, and `latest()` returns None.", fix)


def _name(step: int) -> str:
    return f"step-{step:09d}.msgpack"


def _index(where: str, step: SupportsIndex) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 10**18 or isinstance(step, bool):
        raise LiftArgumentError(where, f"the step is {shown(step)}.", "Give an integer of 0 or more.")
    return number

"""A folder of checkpoints, one file for each step: the last few are kept, and one process writes."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from ..errors import LiftArgumentError
from ..typing import Filter, PyTree
from .disk import FileLock, make_folder
from .files import Transform, load_file, save_file

__all__ = ["Checkpoints", "no_such_step"]

_NAME = re.compile(r"step-(\d{9,18})\.msgpack")
_LEFT_OVER = ".step-*.msgpack.tmp"
_LOCK = ".lock"


class Checkpoints:
    """A folder with the last few checkpoints of a training run.

    Whatever is saved is a tree, such as a dict with the training state, the position in the data and the streams of
    random keys. A step is there with all that is in it, or not at all, however the process ends; earlier ones are
    removed only after it is on the disk.

    One object at a time may write into a folder: from its first `save` on until it is closed, or its process ends.
    Any number of processes may read.

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
        folder: the folder, which the first `save` makes if it is not there.
        keep: how many steps to keep, the last ones; `None` for all.

    Raises:
        LiftArgumentError: if `keep` is not a positive integer.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = 3) -> None:
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            what = f"`keep` is {keep!r}."
            raise LiftArgumentError(f'Checkpoints("{folder}")', what, "Give the number of steps, or None for all.")
        self.folder, self.keep = Path(folder), keep
        self._lock: FileLock | None = None

    def steps(self) -> list[int]:
        """The steps that are there, in order."""
        with contextlib.suppress(FileNotFoundError):
            found = [_NAME.fullmatch(name) for name in os.listdir(self.folder)]
            return sorted({int(match[1]) for match in found if match and match[0] == _name(int(match[1]))})
        return []

    def latest(self) -> int | None:
        """The last step that is there, or `None`."""
        return max(self.steps(), default=None)

    def save(self, step: SupportsIndex, tree: PyTree) -> None:
        """Saves a tree as that of a step, and removes the earliest steps beyond those to keep.

        Args:
            step: the step, not before the last one; that one may be saved again, and is replaced.
            tree: anything that `to_state_dict` takes apart.

        Raises:
            LiftArgumentError: if there is a later step.
            CheckpointInUseError: if another process, or another object, writes into the folder.
            SerializationError: if there is something in the tree that cannot be written.
            OSError: if the disk is full, for instance. The steps that were there are there still.
        """
        where = f'Checkpoints("{self.folder}").save'
        number = _index(where, step)
        self._hold(where)
        last = self.latest()
        if last is not None and number < last:
            what = f"step {number} comes before step {last}, which is there already."
            fix = f"Go on from step {last}, write to another folder, or remove what comes after, such as {_name(last)}."
            raise LiftArgumentError(where, what, fix)
        save_file(self.folder / _name(number), tree)
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
        """A tree like `target` with the leaves of a step, which must fit in names, shapes and dtypes.

        Args:
            target: a tree of the structure to restore; see `load_file` for this and all options.
            step: the step; by default the last one.
            filter: which leaves to take; the others stay as in the target.
            strict: whether the names must be the same.
            cast: whether floating-point numbers, and integers, become those of the target's dtype.
            transform: called with the state before it is compared, and returns another one.

        Returns:
            A new tree.

        Raises:
            LiftArgumentError: if there is no such step.
            SerializationError: if the file is damaged, which names the array; or if something does not fit.
        """
        where = f'Checkpoints("{self.folder}").restore'
        for number in self._candidates(where, step):
            with contextlib.suppress(FileNotFoundError):
                path = self.folder / _name(number)
                return load_file(path, target, filter=filter, strict=strict, cast=cast, transform=transform)
        steps = self.steps()
        raise no_such_step(where, step, steps)

    def _candidates(self, where: str, step: SupportsIndex | None) -> Iterator[int]:
        """The step; or the last one, and again the last if a writer that has saved others removes it meanwhile."""
        if step is not None:
            yield _index(where, step)
            return
        tried = None
        while (last := self.latest()) is not None and last != tried:
            yield (tried := last)

    def close(self) -> None:
        """Lets another writer in. The object may be used again, and is the writer again with its next `save`."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self, where: str) -> None:
        """Makes this the writer, and removes what one that was killed left."""
        if self._lock is not None and self._lock.held:
            return
        make_folder(self.folder)
        self._lock = FileLock(self.folder / _LOCK, where)
        with contextlib.suppress(OSError):  # who it is, for the error of another one; there may be no room for it
            os.ftruncate(self._lock.fd, 0)
            os.write(self._lock.fd, str(os.getpid()).encode())
        for left in self.folder.glob(_LEFT_OVER):
            left.unlink(missing_ok=True)


def no_such_step(where: str, step: Any, steps: list[int]) -> LiftArgumentError:
    """The error for a step that is not in a folder, or for a folder that has no steps."""
    if steps:
        return LiftArgumentError(where, f"there is no step {step}.", f"Give one of the steps that are there: {steps}.")
    fix = "A run that may be the first one asks before it restores: `if checkpoints.latest() is not None`."
    return LiftArgumentError(where, "there is no checkpoint, and `latest()` returns None.", fix)


def _name(step: int) -> str:
    return f"step-{step:09d}.msgpack"


def _index(where: str, step: SupportsIndex) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 10**18 or isinstance(step, bool):
        raise LiftArgumentError(where, f"the step is {step!r}.", "Give an integer from 0 on.")
    return number

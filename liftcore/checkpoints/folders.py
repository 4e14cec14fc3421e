"""A folder of checkpoints with one file for each step. The last few and the best are kept, and one process writes."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, SupportsIndex

from ..errors import CheckpointInUseError, Expected, LiftArgumentError, SerializationError
from ..saving.problems import DAMAGED, several
from ..serialization import to_state_dict
from ..typing import Filter, PyTree
from .disk import LOCKING, FileLock, folder_lock, kind_of, make_folder, open_plain, remove_left_over, replace_file
from .files import Transform, about, is_intact, load_file
from .layout import NO_CHECKSUMS, parts_of
from .ranking import Ranking
from .streams import check_path

__all__ = ["Checkpoints", "no_such_step", "step_number"]

_NAME = re.compile(r"step-(\d{9,18})\.msgpack")
_LEFT_OVER = ".step-*.tmp"
_LOCK = ".lock"


class Checkpoints:
    """A folder with the last few checkpoints of a training run, and the best ones.

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
        >>> with Checkpoints(tempfile.mkdtemp(), keep=1, best=1) as checkpoints:
        ...     for step, loss in enumerate([3.0, 1.0, 2.0, 2.5]):
        ...         checkpoints.save(step, {"w": np.full(2, step)}, metrics={"loss": loss})
        ...     checkpoints.restore({"w": np.zeros(2, int)}, checkpoints.best_step())
        {'w': array([1, 1])}

    Args:
        folder: the folder, which the first `save` creates if it does not exist.
        keep: the number of steps to keep, counted from the last; `None` keeps all.
        best: the number of steps to keep in addition: those with the best `metric`.
        metric: the name of that metric.
        mode: `"min"` if the least value is the best, `"max"` if the greatest is.
        lock: whether to lock the folder against a second writer. On a file system without locks, the first `save` warns
            once and goes on. Pass False if you make sure yourself that there is one writer.

    Raises:
        LiftArgumentError: if `folder` is not a path, or if `keep`, `best` or `mode` has another value.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int | None = 3,
        best: int = 0,
        *,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        lock: bool = True,
    ) -> None:
        check_path("Checkpoints(folder)", folder)
        self._ranking = Ranking.checked(f'Checkpoints("{folder}")', keep, best, metric, mode)
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

    def best_step(self) -> int | None:
        """Return the saved step with the best metric (the last of equal ones), or `None` if no step has the metric.

        Raises:
            SerializationError: if the file with the metrics of a step is damaged.
        """
        return next(iter(self._ranking.best_first({step: self._metrics(step) for step in self.steps()})), None)

    def save(self, step: SupportsIndex, tree: PyTree, metrics: Mapping[str, Any] | None = None) -> None:
        """Save the tree of a step, then remove the earliest steps beyond those to keep.

        Args:
            step: the step, not before the last saved one. You may save the last one again, which replaces it.
            tree: anything that `to_state_dict` accepts.
            metrics: numbers by name, which go to a file of their own after the tree. A step without metrics, or whose
                metric is NaN, is never one of the best; one whose metrics cannot be read is kept.

        Raises:
            LiftArgumentError: if a later step is saved already; if a metric is not a number; or if the best steps are
                kept, and the one that decides is not among the `metrics`.
            CheckpointInUseError: if another process, or another object, writes to the folder.
            SerializationError: if the tree holds something that cannot be written.
            OSError: if the system cannot write, for instance because the disk is full; or if a link or a folder is in
                the place of the step or the lock. The saved steps are unchanged.
        """
        where = f'Checkpoints("{self.folder}").save'
        number, numbers = step_number(where, step), self._ranking.numbers(f"{where}, metrics", metrics)
        self._hold(where)
        last = self.latest()
        if last is not None and number < last:
            what = f"step {number} comes before step {last}, which is saved already."
            fix = f"Continue from step {last}, write to another folder, or remove later files, such as {_name(last)}."
            raise LiftArgumentError(where, what, fix, option="step", given=number)
        path = self.folder / _name(number)
        with about(path):
            parts = parts_of(to_state_dict(tree))
        # Unlike `save_file`, it follows no link. The metrics of what was saved as this step before go first: if the
        # process ends in between, a tree may have no metrics, but never those of another tree.
        replace_file(path, parts, before=lambda: self._forget_metrics(number))
        if numbers:
            replace_file(self.folder / _metrics_name(number), [json.dumps(numbers).encode()])
        self._remove(number, numbers)

    def _remove(self, number: int, numbers: Mapping[str, float]) -> None:
        """Remove the steps that are neither among the last nor among the best; those with damaged metrics stay."""
        keep, best = self.keep, self._ranking.best
        if keep is None:
            return
        steps, metrics, kept = self.steps(), dict[int, Mapping[str, float]](), set[int]()
        for step in steps if best else ():
            try:
                metrics[step] = numbers if step == number else self._metrics(step)
            except SerializationError:
                kept.add(step)
        kept.update(self._ranking.best_first(metrics)[:best])
        for old in steps[:-keep]:
            if old not in kept:
                (self.folder / _name(old)).unlink(missing_ok=True)
                self._forget_metrics(old)

    def _metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of a saved step."""
        path = self.folder / _metrics_name(step)
        try:
            with open_plain(path) as file:
                return {str(name): float(value) for name, value in json.loads(file.read()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            what = "the metrics of a step cannot be read."
            fix = f"Remove {path.name}: step {step} then has no metrics."
            raise SerializationError(f'"{path}"', what, fix, given=step) from error

    def _forget_metrics(self, step: int) -> None:
        (self.folder / _metrics_name(step)).unlink(missing_ok=True)

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
            SerializationError: if the file is damaged (the error names the array, and the last step before it that is
                intact), or if something does not fit.
        """
        where = f'Checkpoints("{self.folder}").restore'
        for number in self._candidates(where, step):
            with contextlib.suppress(FileNotFoundError):
                path = self.folder / _name(number)
                if kind := kind_of(os.lstat(path)):
                    what = f"the file of step {number} is {kind}, not a regular file."
                    fix = f"Give one of the saved steps: [{several(map(str, self.steps()))}]."
                    raise SerializationError(where, what, fix, option="step", given=number)
                with self._naming_good_steps(number):
                    return load_file(path, target, filter=filter, strict=strict, cast=cast, transform=transform)
        raise no_such_step(where, step, self.steps())

    @contextlib.contextmanager
    def _naming_good_steps(self, step: int) -> Iterator[None]:
        """Add the last intact step before a damaged one to the error about it."""
        try:
            yield
        except SerializationError as error:
            if error.fix not in (DAMAGED, NO_CHECKSUMS):
                raise
            earlier = [one for one in reversed(self.steps()) if one < step]
            good = next((one for one in earlier if is_intact(self.folder / _name(one))), None)
            if good is None:
                raise
            fix = f"{error.fix} Step {good} before it is intact: restore it with `step={good}`."
            raise SerializationError(error.where, error.what, fix, **error.facts | {"option": "step"}) from error

    def _candidates(self, where: str, step: SupportsIndex | None) -> Iterator[int]:
        """Yield the step; or the last step, and the new last step if a writer has removed the first one meanwhile."""
        if step is not None:
            yield step_number(where, step)
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

    def __exit__(self, *exception: object) -> None:
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
        what, fix = f"there is no step {step}.", f"Give one of the saved steps: [{several(map(str, steps))}]."
        return LiftArgumentError(where, what, fix, option="step", given=step, available=steps)
    fix = "If this may be the first run, check before you restore: `if checkpoints.latest() is not None`."
    return LiftArgumentError(where, "there is no checkpoint, and `latest()` returns None.", fix, available=())


def _name(step: int) -> str:
    return f"step-{step:09d}.msgpack"


def _metrics_name(step: int) -> str:
    return f"step-{step:09d}.metrics.json"


def step_number(where: str, step: SupportsIndex) -> int:
    """Return a step as an int; raise if it is none."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 10**18 or isinstance(step, bool):
        fix = "Give an integer of 0 or more."
        raise LiftArgumentError(where, Expected("the number of a step", given=step), fix, option="step")
    return number

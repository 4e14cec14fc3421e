"""Checkpoints of large runs: orbax saves in the background, each host writes its part, and any mesh can restore."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, SupportsIndex

import jax

from ..errors import LiftArgumentError
from ..saving.nested import mapped
from ..saving.problems import several
from ..serialization import to_state_dict
from ..typing import Filter, PyTree
from .files import Transform
from .folders import no_such_step, step_number
from .matching import compare, options_of
from .orbax_arrays import SavedTree, check_regular, guarded, require_orbax, restored, step_folders, structure_in
from .orbax_foreign import load_orbax
from .orbax_items import parted, state_in
from .ranking import Ranking
from .streams import check_path

__all__ = ["OrbaxCheckpoints"]

_REMOVED = ".removed"
_CODE = re.compile(r"\[os_error_code='(\d+)'")
"""The number of a system's error in the text of TensorStore, which raises ValueError."""


class OrbaxCheckpoints:
    """A folder of checkpoints that orbax writes: in the background, with each host writing its part.

    It has the methods of `Checkpoints`, and accepts the same trees, except a single leaf. `save` returns as soon as the
    arrays are copied off the devices. Each host writes the data that it holds, and no host ever holds a whole sharded
    array. A step is complete or does not exist, and is saved only once. Unlike `Checkpoints`, it has no checksums of
    arrays, and no lock against a second writer.

    With several processes, each of them must call the same methods in the same order.

    Example:
        >>> import tempfile, numpy as np
        >>> with OrbaxCheckpoints(tempfile.mkdtemp(), keep=1, best=1) as checkpoints:
        ...     for step, loss in enumerate([3.0, 1.0, 2.0]):
        ...         checkpoints.save(step, {"w": np.full(2, step)}, metrics={"loss": loss})
        ...     checkpoints.wait()
        ...     checkpoints.steps(), checkpoints.latest(), checkpoints.best_step()
        ...     checkpoints.restore({"w": np.zeros(2, int)})
        ([1, 2], 2, 1)
        {'w': array([2, 2])}

    Args:
        folder: the folder, a path or an address such as `gs://…`. The first `save` creates it if it does not exist.
        keep: the number of steps to keep, counted from the last; `None` keeps all.
        best: the number of steps to keep in addition: those with the best `metric`.
        metric: the name of that metric.
        mode: `"min"` if the least value is the best, `"max"` if the greatest is.
        asynchronous: whether `save` returns while files are being written. If so, call `close` at the end, or use a
            `with` block.

    Raises:
        LiftArgumentError: if `folder` is not a path, or if `keep`, `best` or `mode` has another value.
        ImportError: if orbax is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int | None = 3,
        best: int = 0,
        *,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        asynchronous: bool = True,
    ) -> None:
        self._ocp = require_orbax()
        check_path("OrbaxCheckpoints(folder)", folder)
        text = os.fspath(folder)
        self.folder = text if "://" in text else os.path.abspath(text)
        where = f'OrbaxCheckpoints("{text}")'
        self._where, self._ranking = where, Ranking.checked(where, keep, best, metric, mode)
        self._asynchronous = asynchronous
        self._manager: Any = None
        self._last = -1
        self._remover: threading.Thread | None = None

    # --- saved steps --------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the saved steps, in order, without one that is still being written."""
        return sorted(self._folders())

    def latest(self) -> int | None:
        """Return the last saved step, or `None`."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """Return the saved step with the best metric (the last of equal ones), or `None` if no step has the metric."""
        check_regular(self._where, self.folder)
        found = {}
        for step, folder in self._folders().items():
            with self._guarded(step):
                file = folder / "metrics/metrics"
                metrics = json.loads(file.read_text()) if file.exists() else {}
                found[step] = {name: float(value) for name, value in metrics.items() if name == self._ranking.metric}
        return next(iter(self._ranking.best_first(found)), None)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, step: SupportsIndex, tree: PyTree, metrics: Mapping[str, Any] | None = None) -> None:
        """Save the tree of a step. The step is complete when `wait`, or the next `save`, has returned.

        Args:
            step: the step, greater than all saved ones.
            tree: anything that `to_state_dict` accepts. You may change or donate its arrays as soon as this returns.
            metrics: numbers by name. A step without metrics, or whose metric is NaN, is never one of the best.

        Raises:
            LiftArgumentError: if the step, or a later one, is saved already; if a metric is not a number; or if the
                best steps are kept, and the one that decides is missing among the metrics.
            SerializationError: if the tree holds something that cannot be written.
            OSError: if the system cannot write, for instance because the disk is full, now or in the background since
                the last call. The failed step leaves nothing, and you may save it again.
            Exception: another error of the background since the last call.
        """
        where = f"{self._where}.save"
        number = step_number(where, step)
        last = max([self._last, *self.steps()])
        if number <= last:
            what = f"step {number} does not come after step {last}, which is saved already."
            fix = f"Continue after step {last}, or write to another folder."
            raise LiftArgumentError(where, what, fix, option="step", given=number)
        arrays, rest = parted(where, tree)
        numbers = self._ranking.numbers(f"{where}, metrics", metrics)
        args = self._ocp.args
        aside = os.path.join(self.folder, _REMOVED)
        if os.path.islink(aside):  # steps would be moved to another folder, and all that is there would be removed
            raise OSError(errno.ELOOP, "This is a link, and not the folder for removed steps; remove it", aside)
        items = {"rest": args.JsonSave(rest)} | ({"state": args.PyTreeSave(arrays)} if arrays else {})
        manager = self._open()
        self.wait()  # orbax would wait too, but only after our thread began to remove old steps
        if self._remover is None or not self._remover.is_alive():
            self._remover = threading.Thread(target=self._remove, name="removes old checkpoints")
            self._remover.start()
        self._last = number
        with self._writing():
            manager.save(number, args=args.Composite(**items), metrics=numbers)

    def wait(self) -> None:
        """Wait until everything that was saved is on the disk.

        Raises:
            OSError: if the system could not write. The failed step leaves nothing, and you may save it again.
            Exception: another error of the background.
        """
        if self._manager is not None:
            with self._writing():
                self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for the last save, and end the threads of orbax. You may use the object again."""
        manager, self._manager = self._manager, None
        if manager is not None:
            with self._writing():
                manager.close()
        if self._remover is not None:
            self._remover.join()
        if manager is not None:
            self._remove()
            with contextlib.suppress(OSError):  # the folder does not exist, or another writer uses it
                os.rmdir(os.path.join(self.folder, _REMOVED))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Remove what a step left that could not be written, and raise the error of the system as what it is."""
        try:
            yield
        except Exception as error:
            if jax.process_index() == 0 and "://" not in self.folder:
                for left in glob.glob(f"{glob.escape(self.folder)}/{self._last}.orbax-checkpoint-tmp*"):
                    shutil.rmtree(left, ignore_errors=True)
            self._last = -1  # once there is room, the step can be saved
            if code := _CODE.search(str(error)):
                text = f"{os.strerror(int(code[1]))} ({str(error)[:300]})"
                raise OSError(int(code[1]), text, self.folder) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- restoring ----------------------------------------------------------------------------------------------------

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

        One error lists everything that does not fit, before any array is read. If the target has an array that is
        committed to devices, or a `jax.ShapeDtypeStruct` with a sharding, each device gets its part. The mesh need not
        be the one that saved the step. This method waits for a save in the background. A step that orbax wrote without
        this class, such as one of `orbax.checkpoint.CheckpointManager`, is read as `load_orbax` does.

        Args:
            target: a tree with the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
                `match_state` for what each leaf becomes. `None` returns the state itself, nested dicts of NumPy arrays.
            step: the step; the last one by default.
            filter: which leaves to restore; the others keep the value of the target, and are not read.
            strict: whether the names must be the same; see `match_state`.
            cast: whether to convert floating-point numbers and integers to the target's dtype; see `match_state`.
            transform: a function of the saved state, as in `load_file`. With it, all arrays are read whole.

        Raises:
            LiftArgumentError: if there is no such step; if a sharding does not fit a shape; or if an option needs a
                target and there is none.
            SerializationError: if something does not fit, or cannot be read.
        """
        where = f"{self._where}.restore"
        options = options_of(where, target, filter, strict, cast)
        self.wait()
        folders = self._folders()
        number = max(folders, default=None) if step is None else step_number(where, step)
        if number is None or number not in folders:
            raise no_such_step(where, number, sorted(folders))
        folder = folders[number]
        place, guard = f"{self._where}, step {number}", functools.partial(self._guarded, number)
        with guard():
            check_regular(place, os.fspath(folder))
            note = folder / "_CHECKPOINT_METADATA"  # it names the items that were saved
            items = note.read_text() if note.exists() else ""
        if not (folder / "rest").exists() and '"rest"' not in items:  # this class did not write it
            return load_orbax(folder, target, transform=transform, **options)
        with guard():
            rest = json.loads((folder / "rest/metadata").read_text())
            structure = structure_in(folder / "state", guard)
            if structure is None and '"state"' in items:
                raise FileNotFoundError("the folder of its arrays, `state`, is missing")
        saved = SavedTree(place, folder / "state", structure or {}, guard)
        state = state_in(place, rest, saved.leaves())
        if target is None or transform is not None:
            values = saved.whole(may_be_keys=False)
            whole = mapped(lambda path, leaf: values.get(path, leaf), state)
            whole = whole if transform is None else transform(whole)
            if target is None:
                return whole
            state = to_state_dict(whole)
        return restored(where, compare(target, state, where=place, **options), saved.read)

    def _folders(self) -> dict[int, Any]:
        try:
            return step_folders(self.folder)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}

    def _guarded(self, step: int) -> contextlib.AbstractContextManager[None]:
        saved = several(map(str, self.steps()))
        fix = f"It may be damaged, or have just been removed. Give another step; saved are {saved}."
        return guarded(f"{self._where}, step {step}", "it cannot be read", fix)

    # --- orbax --------------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        """Return the manager, which creates the folder and removes what a killed writer left."""
        if self._manager is None:
            ocp = self._ocp
            self._remove()
            check_regular(self._where, self.folder)  # orbax reads a file of each step now
            options = ocp.CheckpointManagerOptions(
                create=True,
                cleanup_tmp_directories=True,
                enable_async_checkpointing=self._asynchronous,
                preservation_policy=self._policy(),
                todelete_subdir=None if "://" in self.folder else _REMOVED,
                best_fn=self._value_of,  # without it no metrics are written; the policy decides
                best_mode=self._ranking.mode,
            )
            handlers = {"state": ocp.PyTreeCheckpointHandler(), "rest": ocp.JsonCheckpointHandler()}
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
        return self._manager

    def _remove(self) -> None:
        """Remove the steps that orbax has moved aside.

        To remove a folder takes many system calls, and a process that is killed between them would leave an incomplete
        step. To rename it takes one call, so orbax renames it first.
        """
        aside = os.path.join(self.folder, _REMOVED)
        ours = "://" not in self.folder and os.path.isdir(aside) and not os.path.islink(aside)
        if jax.process_index() == 0 and ours:
            for name in os.listdir(aside):  # not the folder itself: orbax may be moving another one there
                shutil.rmtree(os.path.join(aside, name), ignore_errors=True)

    def _policy(self) -> Any:
        keep, best, _, mode = self._ranking
        if keep is None:
            return None
        policies = self._ocp.checkpoint_managers
        kept = [policies.LatestN(keep)]
        if best:
            kept.append(
                policies.BestN(
                    get_metric_fn=self._value_of,
                    reverse=mode == "min",
                    n=best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        return policies.AnyPreservationPolicy(kept)

    def _value_of(self, metrics: Mapping[str, float]) -> float:
        worst = math.inf if self._ranking.mode == "min" else -math.inf
        value = metrics.get(self._ranking.metric, worst)
        return worst if math.isnan(value) else value  # NaN compares false with everything, which breaks sorting

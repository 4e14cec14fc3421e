"""A folder of checkpoints: the last few, one writer, and nothing that a killed process or a full disk can spoil."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from liftcore.checkpoints import Checkpoints
from liftcore.errors import CheckpointInUseError, LiftArgumentError, SerializationError
from tests.checkpoints.writers import check, tree_of

ROOT = Path(__file__).resolve().parents[2]


def test_the_last_few_steps_are_kept(tmp_path):
    folder = tmp_path / "deep" / "run"
    checkpoints = Checkpoints(folder, keep=2)
    assert (checkpoints.latest(), checkpoints.steps(), folder.exists()) == (None, [], False)
    for step in (0, 5, 10, 10**12):
        checkpoints.save(step, tree_of(step))
        assert checkpoints.latest() == step
    assert check(folder) == [10, 10**12]
    everything = Checkpoints(tmp_path / "all", keep=None)
    for step in range(5):
        everything.save(np.int32(step), step)
    assert everything.steps() == [0, 1, 2, 3, 4]
    assert everything.restore(step=2) == 2


def test_the_last_step_may_be_saved_again_and_none_before_it(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(5, 1)
        checkpoints.save(5, 2)
        assert checkpoints.restore(0) == 2
        with pytest.raises(LiftArgumentError, match=r"step 4 comes before step 5.* such as step-000000005.msgpack"):
            checkpoints.save(4, 3)
        assert checkpoints.steps() == [5]


def test_the_best_steps_are_kept_beside_the_last(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: np.nan, 4: np.float32(1.0), 5: 2.0, 6: None, 7: 4.0}
    with Checkpoints(tmp_path, keep=1, best=2) as checkpoints:
        for step, loss in losses.items():
            checkpoints.save(step, step, None if loss is None else {"loss": loss, "other": 0})
        assert checkpoints.steps() == [2, 4, 7]
    again = Checkpoints(tmp_path, keep=1, best=1)
    assert (again.best_step(), again.latest()) == (4, 7)
    assert again.restore(0, again.best_step()) == 4
    again.save(8, 8, {"loss": 0.5})
    assert (again.steps(), again.best_step()) == ([8], 8)
    again.save(8, 8)  # again, now without metrics
    assert again.best_step() is None
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-000000008.msgpack"]


def test_the_greatest_metric_may_be_the_best(tmp_path):
    with Checkpoints(tmp_path, keep=1, best=1, metric="accuracy", mode="max") as checkpoints:
        for step, accuracy in enumerate((0.5, 0.9, 0.7)):
            checkpoints.save(step, step, {"accuracy": jax.numpy.float32(accuracy)})
        assert (checkpoints.steps(), checkpoints.best_step()) == ([1, 2], 1)
        with pytest.raises(LiftArgumentError, match=r"'accuracy' decides .* another `metric` to `Checkpoints`"):
            checkpoints.save(3, 3, {"loss": 1.0})
        with pytest.raises(LiftArgumentError, match=r"expected a number as 'accuracy', given"):
            checkpoints.save(3, 3, {"accuracy": np.ones(2)})
        assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("text", ["", "[1]", '{"loss": "a"}', "\xff"])
def test_metrics_that_are_damaged_are_named(tmp_path, text):
    with Checkpoints(tmp_path, best=1) as checkpoints:
        checkpoints.save(1, 1, {"loss": 1.0})
        noted = tmp_path / "step-000000001.metrics.json"
        noted.write_text(text, "latin-1")
        with pytest.raises(SerializationError, match=r"Remove step-000000001.metrics.json: step 1 then has no"):
            checkpoints.best_step()
        noted.unlink()
        assert checkpoints.best_step() is None


@pytest.mark.parametrize("options", [{"best": -1}, {"best": True}, {"mode": "least"}])
def test_options_of_the_best_steps_are_checked(tmp_path, options):
    with pytest.raises(LiftArgumentError, match=next(iter(options))):
        Checkpoints(tmp_path, **options)


def test_the_error_about_a_damaged_step_names_the_last_intact_one(tmp_path):
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        for step in range(1, 5):
            checkpoints.save(step, small(step))
        for step, size in ((3, 20), (4, -1)):
            path = tmp_path / f"step-00000000{step}.msgpack"
            path.write_bytes(path.read_bytes()[:size])
        for step in (None, 3):
            with pytest.raises(SerializationError, match=r"Step 2 before it is intact: restore it with `step=2`\."):
                checkpoints.restore(small(0), step)
        with pytest.raises(SerializationError) as caught:
            checkpoints.restore({"other": 0}, 2)
        assert "intact" not in str(caught.value)
        for step in (1, 2):
            (tmp_path / f"step-00000000{step}.msgpack").write_bytes(b"")
        with pytest.raises(SerializationError) as caught:
            checkpoints.restore(small(0))
        assert "intact" not in str(caught.value)


def test_other_files_are_left_alone(tmp_path):
    for name in ("step-1.msgpack", "step-0000000001.msgpack", "step-000000001.msgpack.old", "notes", ".step.tmp"):
        (tmp_path / name).write_text("x")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == []
        checkpoints.save(1, 1)
        assert checkpoints.steps() == [1]
    assert len(os.listdir(tmp_path)) == 7


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None, 10**18, np.ones(2), {"w": np.ones(200)}])
def test_a_step_is_a_natural_number(tmp_path, step):
    with pytest.raises(
        LiftArgumentError,
        match=r"expected the number of a step as `step`, given .{1,50}\. Give an integer of 0 or more",
    ):
        Checkpoints(tmp_path).save(step, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep", [0, -1, 1.5, "3", True])
def test_at_least_one_is_kept(tmp_path, keep):
    with pytest.raises(LiftArgumentError, match="`keep` is"):
        Checkpoints(tmp_path, keep)


def test_what_is_not_there_is_told(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(LiftArgumentError, match=r"no checkpoint, .* `if checkpoints.latest\(\) is not None`"):
        checkpoints.restore()
    checkpoints.save(1, 1)
    with pytest.raises(LiftArgumentError, match=r"there is no step 2. .* saved steps: \[1\]"):
        checkpoints.restore(0, 2)


def test_options_of_a_file_are_those_of_a_folder(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.ones(2), "b": 3})
    target = {"a": np.zeros(2, np.float32), "c": 4}
    with pytest.raises(SerializationError, match=r"step-000000001.msgpack.: 3 entries"):
        checkpoints.restore(target)
    restored = checkpoints.restore(target, strict=False, cast=True, filter=lambda path, _: path != ("b",))
    assert (restored["a"].tolist(), restored["a"].dtype, restored["c"]) == ([1, 1], np.float32, 4)
    assert checkpoints.restore({"d": 0}, transform=lambda state: {"d": state["b"]}) == {"d": 3}


def test_a_step_that_a_writer_removes_meanwhile_is_passed_over(tmp_path, monkeypatch):
    writer, reader = Checkpoints(tmp_path, keep=1), Checkpoints(tmp_path)
    writer.save(1, 1)
    real = Checkpoints.latest

    def latest(self: Any) -> int | None:
        found = real(self)
        if self is reader and found == 1:
            writer.save(2, 2)
        return found

    monkeypatch.setattr(Checkpoints, "latest", latest)
    assert reader.restore(0) == 2


def test_position_and_streams_are_part_of_what_is_saved(tmp_path):
    def run(steps: int, interrupt: int | None = None) -> Any:
        state = {"w": jax.numpy.zeros(3), "position": 0, "rngs": {"dropout": jax.random.key(0)}}
        with Checkpoints(tmp_path / str(interrupt)) as checkpoints:
            if checkpoints.latest() is not None:
                state = checkpoints.restore(state)
            while state["position"] < (steps if interrupt is None else interrupt):
                key, now = jax.random.split(state["rngs"]["dropout"])
                w = state["w"] + jax.random.normal(now, (3,)) * state["position"]
                state = {"w": w, "position": state["position"] + 1, "rngs": {"dropout": key}}
                checkpoints.save(state["position"], state)
        return state

    whole = run(5)
    os.rename(tmp_path / "None", tmp_path / "whole")
    run(5, 2)
    os.rename(tmp_path / "2", tmp_path / "None")
    again = run(5)
    np.testing.assert_array_equal(again["w"], whole["w"])
    assert again["rngs"]["dropout"] == whole["rngs"]["dropout"]
    files = [(tmp_path / name / "step-000000005.msgpack").read_bytes() for name in ("whole", "None")]
    assert files[0] == files[1]


# --- one writer -------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_an_error_until_the_first_is_done(tmp_path):
    first, second = Checkpoints(tmp_path), Checkpoints(tmp_path)
    first.save(1, 1)
    with pytest.raises(CheckpointInUseError, match="another object or thread of this process is writing there"):
        second.save(2, 2)
    assert second.restore(0) == 1
    first.close()
    second.save(2, 2)
    with pytest.raises(CheckpointInUseError):
        first.save(3, 3)
    del second  # as an exception may do with it
    first.save(3, 3)
    first.close()
    first.close()
    assert first.steps() == [1, 2, 3]


def test_bytes_are_on_the_disk_before_names_and_names_before_anything_is_removed(tmp_path, monkeypatch):
    checkpoints, calls = Checkpoints(tmp_path, keep=1), []
    checkpoints.save(1, small(1), {"loss": 1.0})

    def recorded(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            if name != "unlink" or os.path.lexists(args[0]):
                calls.append(f"unlink {Path(args[0]).suffix}" if name == "unlink" else name)
            return real(*args)

        return call

    for name in ("write", "fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, recorded(name))
    checkpoints.save(1, small(1))
    assert [name for name in calls if name != "write"] == ["fsync", "unlink .json", "replace", "fsync"]
    calls.clear()
    checkpoints.save(2, small(2))
    assert [name for name in calls if name != "write"] == ["fsync", "replace", "fsync", "unlink .msgpack"]
    assert calls.index("fsync") == calls.count("write") >= 4


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    left = tmp_path / ".step-000000007.msgpack.tmp"
    left.write_text("half of it")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    checkpoints.save(1, 1)
    assert not left.exists()


def writers(*args: Any) -> str:
    command = [sys.executable, "-m", "tests.checkpoints.writers", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_lock_ends_with_its_process_and_not_with_those_that_it_made(tmp_path):
    assert writers("locks", tmp_path).splitlines() == ["True True", "[1, 2]"]


@pytest.mark.parametrize(("kills", "seed"), [(3, 0), (10, 1), (20, 2), (20, 3)])
def test_a_writer_that_is_killed_leaves_complete_checkpoints(tmp_path, kills, seed):
    words = writers("kills", tmp_path, kills, seed).split()
    assert int(words[0]) >= 1
    assert int(words[2]) >= (1 if kills >= 10 else 0)  # some in the middle of a file


# --- a full disk ------------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, number: int, ever_after: bool) -> Callable[[], int]:
    """Makes the disk full at a write, fsync or rename; returns what counts them."""
    count = 0

    def patch(name: str, before: Callable[..., Any]) -> None:
        real = getattr(os, name)

        def fn(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count - 1 == number or (ever_after and count > number):
                before(real, *args)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        monkeypatch.setattr(os, name, fn)

    patch("write", lambda real, fd, data: real(fd, data[: len(data) // 2]))
    for name in ("fsync", "replace", "ftruncate"):
        patch(name, lambda *args: None)
    return lambda: count


def small(step: int) -> Any:
    return {"a": np.full(10, step), "b": {"c": step, "d": np.full((2, 2), -step)}}


@pytest.mark.parametrize("ever_after", [False, True])
@pytest.mark.parametrize("begun", [True, False])
def test_a_full_disk_leaves_complete_checkpoints(tmp_path, ever_after, begun):
    """At each operation in turn, in a folder that is there, and in one that is not."""
    for number in range(100):
        folder = tmp_path / str(number)
        if begun:
            with Checkpoints(folder, keep=1) as checkpoints:
                checkpoints.save(1, small(1))
        checkpoints = Checkpoints(folder, keep=1)
        with pytest.MonkeyPatch.context() as patch:
            count = failing(patch, number, ever_after)
            try:
                checkpoints.save(2, small(2))
                error = None
            except OSError as caught:
                error = caught.errno
        assert error in (None, errno.ENOSPC)
        failed = error is not None
        steps = checkpoints.steps()
        assert [checkpoints.restore(small(0), step)["b"]["c"] for step in steps] == steps
        assert steps in ([[1], [1, 2]] if failed and begun else [[], [2]] if failed else [[2]])
        assert not list(folder.glob(".*.tmp"))
        if count() <= number:
            break
        checkpoints.save(3, small(3))  # there is room again
        assert checkpoints.restore(small(0))["b"]["c"] == 3
        assert checkpoints.steps() == [3]
        checkpoints.close()
    assert 8 < number < 99


def test_a_limit_of_the_system_leaves_complete_checkpoints(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, tree_of(1))
        size = (tmp_path / "step-000000001.msgpack").stat().st_size
        for limit in (1, 1000, size // 2, size - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                with pytest.raises(OSError, match="too large") as caught:
                    checkpoints.save(2, tree_of(2))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert caught.value.errno == errno.EFBIG
            assert check(tmp_path) == [1]
            assert sorted(os.listdir(tmp_path)) == [".lock", "step-000000001.msgpack"]
        checkpoints.save(2, tree_of(2))
        assert check(tmp_path) == [2]


def test_an_interpreter_that_ends_with_an_open_folder_says_nothing(tmp_path: Path) -> None:
    program = f"from liftcore.checkpoints import Checkpoints\nc = Checkpoints({str(tmp_path / 'c')!r})\nc.save(1, [1])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not done.stderr


@pytest.mark.parametrize("text", ['{"loss": ' + "1" * 400 + "}", "[" * 100_000, '{"loss": "a"}', "3"])
def test_a_step_with_damaged_metrics_is_kept(tmp_path: Path, text: str) -> None:
    with Checkpoints(tmp_path, keep=1, best=1) as checkpoints:
        checkpoints.save(1, {"w": 1}, metrics={"loss": 1.0})
        (tmp_path / "step-000000001.metrics.json").write_text(text)
        with pytest.raises(SerializationError, match=r"Remove step-000000001\.metrics\.json"):
            checkpoints.best_step()
        for step in (2, 3):
            checkpoints.save(step, {"w": step}, metrics={"loss": 5.0 - step})
        assert checkpoints.steps() == [1, 3]


def test_a_step_that_cannot_be_saved_again_stays_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Checkpoints(tmp_path, keep=1, best=1) as checkpoints:
        checkpoints.save(1, {"w": 1}, metrics={"loss": 1.0})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                checkpoints.save(1, {"w": 2}, metrics={"loss": 0.5})
        checkpoints.save(2, {"w": 2}, metrics={"loss": 9.0})
        assert checkpoints.steps() == [1, 2]
        assert checkpoints.restore({"w": 0}, checkpoints.best_step()) == {"w": 1}


@pytest.mark.parametrize(("moves", "kept"), [(0, 1), (1, 2), (2, 2)])
def test_a_step_never_has_the_metrics_of_another_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, kept: int
) -> None:
    replace, left = os.replace, moves

    def until_killed(source: Path, target: Path) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        replace(source, target)

    with Checkpoints(tmp_path, best=1) as checkpoints:
        checkpoints.save(1, {"w": 1}, metrics={"loss": 1.0})
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "replace", until_killed)
            checkpoints.save(1, {"w": 2}, metrics={"loss": 0.5})
    assert Checkpoints(tmp_path).restore({"w": 0}) == {"w": kept}
    assert Checkpoints(tmp_path).best_step() == (1 if moves == 2 else None)


def test_a_metric_too_large_for_a_float_is_an_error(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(LiftArgumentError, match="expected a number"):
        checkpoints.save(1, {"w": 1}, metrics={"loss": 10**400})


def test_the_number_of_steps_to_keep_can_change(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, {"w": 1})
        checkpoints.keep = 1
        for step in (2, 3):
            checkpoints.save(step, {"w": step})
        assert checkpoints.steps() == [3]

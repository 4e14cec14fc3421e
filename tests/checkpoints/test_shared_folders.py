"""Folders that others may write to: links, pipes and folders in place of files, locks that are lost, forks, threads."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equinox_like as eqx
from liftcore.checkpoints import (
    Checkpoints,
    OrbaxCheckpoints,
    disk,
    load_file,
    load_orbax,
    load_safetensors,
    safetensors_metadata,
    save_file,
    save_safetensors,
)
from liftcore.errors import CheckpointInUseError, SerializationError

TREE = {"w": np.ones(2)}
STEP = "step-000000002.msgpack"


def save_step(path: Path, tree: Any) -> None:
    with Checkpoints(path.parent) as checkpoints:
        checkpoints.save(2, tree)


def save_leaves(path: Path, tree: Any) -> None:
    eqx.tree_serialise_leaves(path, tree)


WRITERS: dict[str, tuple[Callable[[Path, Any], None], Callable[[Path], Any]]] = {
    "model": (save_file, load_file),
    "model.safetensors": (save_safetensors, load_safetensors),
    "model.eqx": (save_leaves, lambda path: eqx.tree_deserialise_leaves(path, {"w": np.zeros(2)})),
    STEP: (save_step, lambda path: Checkpoints(path.parent).restore(step=2)),
}
"""How files of each kind are written and read, by their names."""

# --- what is in the way -----------------------------------------------------------------------------------------------

OBSTACLES: dict[str, Callable[[Path, Path], Any]] = {
    "a link": lambda path, precious: path.symlink_to(precious),
    "a link to nothing": lambda path, precious: path.symlink_to(precious.with_name("new")),
    "a hard link": lambda path, precious: path.hardlink_to(precious),
    "a special file": lambda path, precious: os.mkfifo(path),
    "a folder": lambda path, precious: path.mkdir(),
    "a file": lambda path, precious: path.write_text("precious"),
}


def put(obstacle: str, path: Path) -> Path:
    """Puts something in the place of a file; returns what must stay as it is."""
    path.parent.mkdir()
    precious = path.parent.parent / "precious"
    precious.write_text("precious")
    OBSTACLES[obstacle](path, precious)
    return precious


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_at_the_temporary_name_is_removed_and_not_followed(tmp_path: Path, name: str, obstacle: str) -> None:
    (save, load), path = WRITERS[name], tmp_path / "run" / name
    precious = put(obstacle, path.with_name(f".{name}.tmp"))
    if obstacle == "a folder":
        with pytest.raises(IsADirectoryError, match=rf"while \.{name}\.tmp is a folder: '{path}'$"):
            save(path, TREE)
        return
    save(path, TREE)
    assert load(path)["w"].tolist() == [1, 1]
    assert stat.S_ISREG(path.lstat().st_mode)
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["precious", "run"]
    assert set(os.listdir(path.parent)) <= {name, ".lock"}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_lock_that_is_not_ours_is_refused(tmp_path: Path, obstacle: str) -> None:
    precious = put(obstacle, tmp_path / "run" / ".lock")
    kind = {"a link to nothing": "a link", "a file": "holds something else"}.get(obstacle, obstacle)
    with Checkpoints(tmp_path / "run") as checkpoints, pytest.raises(OSError, match=f"{kind}.*/run/.lock'"):
        checkpoints.save(1, TREE)
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["precious", "run"]
    assert os.listdir(tmp_path / "run") == [".lock"]


@pytest.mark.parametrize("obstacle", ["a link", "a link to nothing", "a special file", "a folder"])
def test_what_is_in_the_place_of_a_step_is_no_step(tmp_path: Path, obstacle: str) -> None:
    precious = put(obstacle, tmp_path / "run" / STEP)
    with Checkpoints(tmp_path / "run", keep=1) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(1, TREE)
        assert checkpoints.latest() == 1
        assert checkpoints.restore()["w"].tolist() == [1, 1]
        with pytest.raises(SerializationError, match=r"step 2 is a .*, not a regular file"):
            checkpoints.restore(step=2)
        with pytest.raises(OSError, match=STEP):
            checkpoints.save(2, TREE)
        checkpoints.save(3, TREE)
        assert checkpoints.steps() == [3]
    assert os.path.lexists(tmp_path / "run" / STEP)
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["precious", "run"]


@pytest.mark.parametrize("obstacle", ["a special file", "a folder"])
@pytest.mark.parametrize(
    "load",
    [load_file, load_safetensors, safetensors_metadata, lambda path: eqx.tree_deserialise_leaves(path, TREE)],
    ids=["msgpack", "safetensors", "metadata", "equinox"],
)
def test_what_is_no_file_is_not_read(tmp_path: Path, load: Callable[[Path], Any], obstacle: str) -> None:
    OBSTACLES[obstacle](tmp_path / "model.eqx", tmp_path)
    with pytest.raises(SerializationError, match=rf'model\.eqx"?: this is {obstacle}, not a '):
        load(tmp_path / "model.eqx")


def test_a_file_that_is_left_over_does_not_decide_who_may_read_the_new_one(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        left = tmp_path / ".model.tmp"
        left.touch()
        left.chmod(0o666)
        if os.getuid() == 0:
            os.chown(left, 1234, 1234)
        save_file(tmp_path / "model", TREE)
    finally:
        os.umask(before)
    status = os.stat(tmp_path / "model")
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.getuid())


@pytest.mark.parametrize("length", [249, 250, 251, 252, 255])
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("é" + "n" * (length - 2))
    for _ in range(2):
        save_file(path, TREE)
    assert os.listdir(tmp_path) == [path.name]
    assert load_file(path)["w"].tolist() == [1, 1]


def test_the_folder_for_removed_steps_of_orbax_is_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    (tmp_path / "home" / "thesis").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".removed").symlink_to(tmp_path / "home")
    with OrbaxCheckpoints(tmp_path / "run") as checkpoints, pytest.raises(OSError, match=r"link.*\.removed'"):
        checkpoints.save(1, TREE)
    assert os.listdir(tmp_path / "home") == ["thesis"]
    with pytest.raises(SerializationError, match="this is a file"):
        load_orbax(__file__)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


READERS: dict[str, Callable[[Path], Any]] = {
    "restore": lambda folder: OrbaxCheckpoints(folder).restore({"w": np.zeros(2)}),
    "best_step": lambda folder: OrbaxCheckpoints(folder).best_step(),
    "save": lambda folder: OrbaxCheckpoints(folder).save(3, TREE),
    "load_orbax": lambda folder: load_orbax(folder / "1/state"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, device])
def test_a_pipe_or_a_device_in_a_folder_of_orbax_is_an_error(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """Orbax would wait for ever, or fill the memory."""
    pytest.importorskip("orbax.checkpoint")
    with OrbaxCheckpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, TREE)
    files = [path for path in (tmp_path / "run/1").rglob("*") if path.is_file()]
    for path in [one for one in files if name != "load_orbax" or "state" in one.parts]:
        path.rename(tmp_path / "kept")
        make(path)
        with pytest.raises(SerializationError, match=f'{path.name}" is a special file, not a regular file'):
            READERS[name](tmp_path / "run")
        path.unlink()
        (tmp_path / "kept").rename(path)


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def flock(*args: Any) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", flock)


@pytest.mark.parametrize("no_locks", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK], indirect=True)
def test_a_file_system_without_locks_is_named_once(tmp_path: Path, no_locks: None) -> None:
    save_file(tmp_path / "model", TREE)
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    with pytest.warns(RuntimeWarning, match=r"no locks.*`Checkpoints\(folder, lock=False\)`") as caught:
        checkpoints.save(1, TREE)
    assert [one.filename for one in caught] == [__file__]
    checkpoints.close()
    checkpoints.save(2, TREE)
    checkpoints.close()
    with Checkpoints(tmp_path / "other", lock=False) as checkpoints:
        checkpoints.save(3, TREE)
    for folder, names in {".": ["model", "other", "run"], "run": [".lock", STEP]}.items():
        assert sorted(os.listdir(tmp_path / folder)) == names


@pytest.mark.parametrize("no_locks", [errno.ENOSYS], indirect=True)
def test_without_locks_no_writer_takes_the_file_of_another(tmp_path: Path, no_locks: None) -> None:
    def parts() -> Iterator[bytes]:
        yield b"first"
        save_file(tmp_path / "model", TREE)

    with pytest.raises(CheckpointInUseError):
        disk.replace_file(tmp_path / "model", parts())
    assert os.listdir(tmp_path) == ["model"]
    assert load_file(tmp_path / "model")["w"].tolist() == [1, 1]


@pytest.mark.parametrize("no_locks", [errno.EIO], indirect=True)
@pytest.mark.parametrize("name", ["model", "model.safetensors", STEP])
def test_nothing_is_left_of_a_file_that_cannot_be_locked(tmp_path: Path, no_locks: None, name: str) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        WRITERS[name][0](tmp_path / name, TREE)
    assert set(os.listdir(tmp_path)) <= {".lock"}


def test_a_folder_without_a_lock_has_many_writers(tmp_path: Path) -> None:
    for step in (1, 2):
        Checkpoints(tmp_path, lock=False).save(step, TREE)
    assert Checkpoints(tmp_path).steps() == [1, 2]


def remove_lock(folder: Path) -> None:
    (folder / ".lock").unlink()


def renew(folder: Path) -> None:
    shutil.move(folder, folder.with_name("old"))
    folder.mkdir()


@pytest.mark.parametrize("lose", [remove_lock, shutil.rmtree, renew])
def test_a_lock_that_is_gone_is_noticed_before_the_next_write(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    first, second = Checkpoints(tmp_path / "run"), Checkpoints(tmp_path / "run")
    first.save(1, TREE)
    lose(tmp_path / "run")
    first.save(2, TREE)
    with pytest.raises(CheckpointInUseError, match="another object or thread of this process"):
        second.save(3, TREE)
    lose(tmp_path / "run") if lose is not renew else remove_lock(tmp_path / "run")
    second.save(3, TREE)
    with pytest.raises(CheckpointInUseError, match="another object or thread of this process"):
        first.save(4, TREE)


def test_a_child_that_is_forked_while_a_lock_is_taken_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment between `open` and `flock`, and in the one after `flock`."""
    real = disk.fcntl.flock

    def slow(fd: int, what: int) -> None:
        inside.set()
        time.sleep(0.05)
        real(fd, what)
        time.sleep(0.05)

    read, write = os.pipe()
    for delay in (0, 0.075):
        inside, checkpoints = threading.Event(), Checkpoints(tmp_path)
        monkeypatch.setattr(disk.fcntl, "flock", slow)
        thread = threading.Thread(target=lambda: checkpoints._hold("it"))  # noqa: B023 - it ends in this round
        thread.start()
        inside.wait()
        time.sleep(delay)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX and Python warn of forks with threads
            child = os.fork()
        if child == 0:
            os.write(write, b"I am here")
            time.sleep(60)
            os._exit(0)
        os.read(read, 9)
        thread.join()
        monkeypatch.undo()
        os.close(checkpoints._lock.fd)  # as the system does when the process ends
        checkpoints._lock.fd = -1
        with Checkpoints(tmp_path) as other:
            other.save(1, TREE)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_another_process_is_called_another_process(tmp_path: Path) -> None:
    """Also if the number in the lock is that of this process: the lock of a child that was forked without Python."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TREE)
    disk._HELD.discard(checkpoints._lock)
    with pytest.raises(CheckpointInUseError, match=": another process is writing there"):
        Checkpoints(tmp_path).save(2, TREE)
    (tmp_path / ".lock").write_text("1")
    with pytest.raises(CheckpointInUseError, match=": process 1 is writing there"):
        Checkpoints(tmp_path).save(2, TREE)


def test_threads_may_share_one_object(tmp_path: Path) -> None:
    checkpoints, problems = Checkpoints(tmp_path, keep=None), []
    start = threading.Barrier(4)

    def save(steps: range) -> None:
        start.wait()
        for step in steps:
            try:
                checkpoints.save(step, {"w": np.full(3, step)})
            except ValueError as error:  # another thread has saved a later step
                problems.append(str(error))

    threads = [threading.Thread(target=save, args=(range(first, 40, 4),)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("comes before step" in problem for problem in problems)
    steps = checkpoints.steps()
    assert len(steps) == 40 - len(problems)
    assert [int(checkpoints.restore(step=step)["w"][0]) for step in steps] == steps
    assert not list(tmp_path.glob(".*.tmp"))
    checkpoints.close()


def test_a_new_writer_leaves_the_file_that_another_one_is_writing(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, TREE)
        yield b"whole"

    disk.replace_file(tmp_path / STEP, parts())
    assert (tmp_path / STEP).read_bytes() == b"halfwhole"

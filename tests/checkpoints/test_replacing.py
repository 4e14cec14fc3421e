"""Files that are made or replaced: permissions, missing folders, and errors that name the file itself."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftcore.checkpoints import Checkpoints, disk, load_file, load_safetensors, save_file, save_safetensors

Save = Callable[[Path, Any], None]
TREE = {"w": np.ones(2)}


@pytest.fixture(params=[save_file, save_safetensors])
def save(request: pytest.FixtureRequest) -> Save:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, save: Save, umask: None) -> None:
    save(tmp_path / "model", TREE)
    assert mode_of(tmp_path / "model") == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, save: Save, umask: None, mode: int) -> None:
    path = tmp_path / "model"
    for _ in range(2):
        save(path, TREE)
        path.chmod(mode)
    save(path, {"w": np.zeros(2)})
    assert mode_of(path) == mode
    loaded = load_safetensors(path) if save is save_safetensors else load_file(path)
    assert loaded["w"].tolist() == [0, 0]


def test_no_one_else_can_read_a_private_file_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.touch(0o600)
    modes = []

    def parts() -> Iterator[bytes]:
        modes.append(mode_of(tmp_path / ".model.tmp"))
        yield b"secret"

    disk.replace_file(path, parts())
    assert modes == [0o600]


def test_missing_folders_are_made_and_on_the_disk(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync_folder", synced.append)
    save(tmp_path / "runs" / "first" / "model", TREE)
    assert (tmp_path / "runs" / "first" / "model").is_file()
    assert synced[:2] == [tmp_path, tmp_path / "runs"]


def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, save: Save) -> None:
    with pytest.raises(IsADirectoryError, match=f"This is a folder; give .* '{tmp_path}'"):
        save(tmp_path, TREE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        save(tmp_path / "pipe", TREE)
    (tmp_path / "file").touch()
    with pytest.raises((FileExistsError, NotADirectoryError), match=f"'{tmp_path}/file"):
        save(tmp_path / "file" / "model", TREE)
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_errors_of_the_system_name_the_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*args: Any) -> None:
        names = [arg for arg in args if isinstance(arg, str | Path)]
        raise OSError(errno.ENOSPC, "No space", *names[:1], *[None] * bool(names[1:]), *names[1:])

    save_file(tmp_path / "model", TREE)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match=f"No space: '{tmp_path}/model'$"):
            save_file(tmp_path / "model", TREE)
    assert load_file(tmp_path / "model")["w"].tolist() == [1, 1]


def test_a_folder_of_checkpoints_keeps_permissions(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, TREE)
        (tmp_path / "run" / "step-000000001.msgpack").chmod(0o600)
        checkpoints.save(1, TREE)
        assert mode_of(tmp_path / "run" / "step-000000001.msgpack") == 0o600

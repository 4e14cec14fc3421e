"""Open files: a checkpoint is written where the file is, and read from there."""

from __future__ import annotations

import gzip
import io
import os
import tempfile

import numpy as np
import pytest

from liftcore.checkpoints import (
    Checkpoints,
    OrbaxCheckpoints,
    load_file,
    load_orbax,
    load_safetensors,
    save_file,
    save_safetensors,
)
from liftcore.errors import LiftArgumentError, SerializationError

TREE = {"kernel": np.arange(6.0).reshape(2, 3), "flags": np.array([True, False]), "step": 3, "text": "ü" * 40}
SMALL = {"x": np.arange(3), "step": 2}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
        assert type(value) is type(other[name])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.msgpack"


class Dripping(io.RawIOBase):
    """A file without a buffer, which writes and reads three bytes at a time."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()

    def write(self, data):
        return self.bytes.write(bytes(data)[:3])

    def read(self, size=-1):
        return self.bytes.read(min(size, 3))

    def readinto(self, buffer):
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset, whence=0):
        return self.bytes.seek(offset, whence)

    def tell(self):
        return self.bytes.tell()


OPENERS = {
    "memory": lambda path: io.BytesIO(),
    "buffered": lambda path: path.open("w+b"),
    "raw": lambda path: path.open("w+b", buffering=0),
    "spooled": lambda path: tempfile.SpooledTemporaryFile(100),  # noqa: SIM115
    "dripping": lambda path: Dripping(),
}


def assert_both_are_read(file):
    assert file.read(3) == b"{}\n"
    assert_equal(load_file(file, TREE), TREE)
    assert_equal(load_file(file), SMALL)
    assert file.read(2) == b"!\n"


@pytest.mark.parametrize("kind", OPENERS)
def test_an_open_file_holds_several_trees_among_other_bytes(kind, path):
    with OPENERS[kind](path) as file:
        file.write(b"{}\n")
        save_file(file, TREE)
        save_file(file, SMALL)
        file.write(b"!\n")
        file.seek(0)
        assert_both_are_read(file)


def test_a_compressed_file(path):
    with gzip.open(path, "wb") as file:
        file.write(b"{}\n")
        save_file(file, TREE)
        save_file(file, SMALL)
        file.write(b"!\n")
    with gzip.open(path, "rb") as file:
        assert_both_are_read(file)


def test_a_file_in_memory_has_the_bytes_of_one_on_disk(path):
    file = io.BytesIO()
    save_file(file, TREE)
    save_file(path, TREE)
    assert file.getvalue() == path.read_bytes()


def test_errors_about_open_files(path):
    with pytest.raises(LiftArgumentError, match=r'opened in text mode.*mode "wb"'):
        save_file(io.StringIO(), TREE)
    with pytest.raises(LiftArgumentError, match=r"BytesIO\).*target"):
        load_file(io.BytesIO(), cast=True)
    with path.open("w") as file, pytest.raises(LiftArgumentError, match=str(path)):
        save_file(file, TREE)
    with path.open() as file, pytest.raises(LiftArgumentError, match='mode "rb"'):
        load_file(file)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as file, pytest.raises(LiftArgumentError, match=r"cannot seek.*io.BytesIO"):
        load_file(file)
    data = io.BytesIO()
    save_file(data, TREE)
    damaged = bytearray(data.getvalue())
    damaged[data.getvalue().index(TREE["kernel"].tobytes())] ^= 1
    with pytest.raises(SerializationError, match=r"BytesIO.*/kernel.*checksum"):
        load_file(io.BytesIO(damaged))
    with pytest.raises(SerializationError, match="BytesIO"):
        load_file(io.BytesIO(data.getvalue()[:-1]))


@pytest.mark.parametrize("call", [Checkpoints, OrbaxCheckpoints, load_orbax])
def test_a_folder_is_a_path(call):
    if call is not Checkpoints:
        pytest.importorskip("orbax.checkpoint")
    with pytest.raises(LiftArgumentError, match=rf"{call.__name__}\(\w+.*\): expected a path first, given None"):
        call(None)


@pytest.mark.parametrize("call", [save_file, load_file, save_safetensors, load_safetensors])
def test_swapped_arguments_are_named(call, path):
    if "safetensors" in call.__name__:
        pytest.importorskip("safetensors")
    with pytest.raises(
        LiftArgumentError, match=rf"expected a path first, given .*Write `{call.__name__}\(path, \w+\)`"
    ):
        call({"w": np.ones(2)}, path)

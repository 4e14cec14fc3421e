from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from liftcore.checkpoints import load_file, load_safetensors, safetensors_metadata, save_file, save_safetensors
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.meta import Partitioned
from tests.machine import make_mesh

package = pytest.importorskip("safetensors.numpy")

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def test_arrays_of_all_dtypes_and_layouts_come_back(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    tree: dict[str, Any] = {name: np.arange(1, 7).astype(jnp.dtype(name)).reshape(2, 3) for name in DTYPES}
    tree |= {"strided": np.arange(6).reshape(2, 3).T, "empty": np.zeros((0, 2)), "scalar": np.float32(3), "number": 4}
    save_safetensors(path, tree)
    found = load_safetensors(path)
    assert found.keys() == tree.keys()
    for name, array in tree.items():
        assert (found[name].dtype, found[name].shape) == (np.asarray(array).dtype, np.shape(array)), name
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        found[name][...] = 0  # each is an array of its own


def test_the_bytes_are_those_of_the_package(tmp_path: Path) -> None:
    tree = {
        "b": np.arange(6.0).reshape(2, 3),
        "a": np.arange(3, dtype=">f8"),
        "é": np.ones((0, 2)),
        "c": np.ones(5, bool),
    }
    tree |= {"scalar": np.ones((), np.float32), "half": np.ones(3, np.float16)}
    for metadata in (None, {"format": "np", "ü": 'a "text"\n'}):
        save_safetensors(tmp_path / "ours", tree, metadata)
        package.save_file(tree, tmp_path / "theirs", metadata)
        (header, data), (expected, their_data) = (parted((tmp_path / name).read_bytes()) for name in ("ours", "theirs"))
        assert (header, data) == (expected, their_data)


def parted(file: bytes) -> tuple[Any, bytes]:
    size = 8 + int.from_bytes(file[:8], "little")
    assert size % 8 == 0
    return json.loads(file[8:size]), file[size:]


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    program = (
        "import os, sys, numpy as np\n"
        "from liftcore.checkpoints import save_safetensors\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), 9)\n"
        "save_safetensors(sys.argv[1], {'w': np.ones(2)})"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "model")], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    save_safetensors(tmp_path / "model", {"w": np.ones(2)})
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("separator", ["", None, 3])
def test_a_separator_is_a_text(tmp_path: Path, separator: Any) -> None:
    with pytest.raises(LiftArgumentError, match="separator: expected the text that joins names"):
        save_safetensors(tmp_path / "model", {"w": np.ones(2)}, separator=separator)
    if separator is not None:
        with pytest.raises(LiftArgumentError, match="separator: expected the text that joins names"):
            load_safetensors(tmp_path / "model", separator=separator)
    with pytest.raises(SerializationError, match="metadata: expected texts by name, given 'np'"):
        save_safetensors(tmp_path / "model", {"w": np.ones(2)}, "np")  # type: ignore[arg-type]


@pytest.mark.parametrize("metadata", [{"step": 3}, {3: "step"}, {"text": "\ud800"}])
def test_metadata_are_texts(tmp_path: Path, metadata: Any) -> None:
    with pytest.raises(SerializationError, match=r"metadata: .* must be texts, given"):
        save_safetensors(tmp_path / "model", {"w": np.ones(2)}, metadata)
    assert not list(tmp_path.iterdir())


def test_names_are_joined_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "names.safetensors"
    save_safetensors(path, {"layers": [{"weight": np.ones(2)}]}, {"format": "pt"}, separator=".")
    assert list(package.load_file(path)) == ["layers.0.weight"]
    assert list(load_safetensors(path, separator=None)) == ["layers.0.weight"]
    assert load_safetensors(path, separator=".")["layers"]["0"].keys() == {"weight"}
    assert safetensors_metadata(path) == {"format": "pt"}
    save_safetensors(path, {"w": np.ones(2)})
    assert safetensors_metadata(path) == {}


def test_a_target_gets_its_types_its_boxes_and_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "target.safetensors"
    on = NamedSharding(make_mesh((8,), "x"), P("x"))
    save_safetensors(path, {"a": Partitioned(jnp.ones((8, 2)), ("x", None)), "b": np.full(3, 2, jnp.float8_e5m2)})
    assert load_safetensors(path)["a"].shape == (8, 2)
    target = {
        "a": Partitioned(jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=on), ("x", None)),
        "b": jnp.zeros(3, jnp.bfloat16),
    }
    found = load_safetensors(path, target, cast=True)
    assert found["a"].names == ("x", None)
    assert found["a"].value.sharding == on
    np.testing.assert_array_equal(found["b"], jnp.full(3, 2, jnp.bfloat16))
    part = load_safetensors(path, {"a": np.zeros((8, 2), np.float32), "c": np.zeros(1)}, filter="a")
    np.testing.assert_array_equal(part["a"], np.ones((8, 2)))


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "misfits.safetensors"
    save_safetensors(path, {"kernel": np.ones((8, 4)), "bias": np.ones(4), "scale": np.ones(4)})
    with pytest.raises(SerializationError) as caught:
        load_safetensors(path, {"kernel": np.ones((9, 4)), "bias": np.ones(4, np.float32), "scales": np.ones(4)})
    lines = [line.strip().partition(":")[0] for line in caught.value.what.splitlines()[1:]]
    assert lines == ["scales", "scale", "kernel", "bias"]
    with pytest.raises(LiftArgumentError, match="`target` is None"):
        load_safetensors(path, cast=True)


def test_what_cannot_be_saved_is_listed_and_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(path, {"w": np.ones(2)})
    tree = {
        "s": "text",
        "k": jax.random.key(0),
        "i": np.ones(2, jnp.int4),
        "a/b": np.ones(1),
        "__metadata__": np.ones(1),
    }
    with pytest.raises(SerializationError) as caught:
        save_safetensors(path, tree)
    lines = [line.strip().partition(":")[0] for line in caught.value.what.splitlines()[1:]]
    assert lines == ["s", "k/impl", "i", "a/b", "__metadata__"]
    with pytest.raises(SerializationError, match="needs a name"):
        save_safetensors(path, np.ones(2))

    def fails(fd: int, data: Any) -> int:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        with pytest.raises(OSError, match="no space"):
            save_safetensors(path, {"w": np.zeros(2)})
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    np.testing.assert_array_equal(load_safetensors(path)["w"], np.ones(2))


# --- files from anyone ------------------------------------------------------------------------------------------------


def written(path: Path, header: Any, payload: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return path


def array(dtype: str, shape: list[int], end: int, begin: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"{", b""),
        (b"\xff\xff", b""),
        ([], b""),
        ({"a": array("F32", [2], 8)}, b"\0" * 4),
        ({"a": array("F32", [2**62], 8)}, b"\0" * 8),
        ({"a": array("F32", [-2], 8)}, b"\0" * 8),
        ({"a": array("F32", [1] * 100, 4)}, b"\0" * 4),
        ({"a": array("F8_E5M2", [1] * 100, 1)}, b"\0"),
        ({"a": array("F4", [4], 2)}, b"\0" * 2),
        ({"a": array("NEW", [4], 2)}, b"\0" * 2),
        ({"a": array("F32", [2], 8), "b": array("F32", [2], 8)}, b"\0" * 8),
        ({"a": array("F8_E5M2", [2], 4, 2)}, b"\0" * 4),
        ({"a": array("F32", [1], 4), "a/b": array("F32", [1], 8, 4)}, b"\0" * 8),
    ],
)
def test_hostile_files_are_our_errors(tmp_path: Path, header: Any, payload: bytes) -> None:
    with pytest.raises(SerializationError):
        load_safetensors(written(tmp_path / "x", header, payload))


def test_cut_and_changed_files_are_our_errors_or_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_safetensors(path, {"a": {"w": np.ones((2, 3))}, "b": np.ones(4, jnp.float8_e4m3fn)}, {"k": "v"})
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(SerializationError):
            load_safetensors(path)
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data)
        changed[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(SerializationError):
            load_safetensors(path)


@pytest.mark.parametrize("read", [load_safetensors, safetensors_metadata])
def test_a_folder_names_the_files_in_it(tmp_path: Path, read: Any) -> None:
    with pytest.raises(SerializationError, match=r"is a folder, .* in it: none\)"):
        read(tmp_path)
    for number in (2, 1):
        save_safetensors(tmp_path / f"model-{number}.safetensors", {str(number): np.ones(1)})
    with pytest.raises(SerializationError, match=r"in it: model-1\.safetensors, model-2\.safetensors\)\. Pass .* one"):
        read(tmp_path)


def test_a_missing_file_and_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "nothing")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"liftcore\[safetensors\]"):
        load_safetensors(tmp_path / "nothing")


# --- errors of others -------------------------------------------------------------------------------------------------


def broken_filter(path: Any, value: Any) -> bool:
    raise TypeError("a bug in the filter")


def broken_leaf(error: BaseException) -> Any:
    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


@pytest.mark.parametrize("kind", ["safetensors", "msgpack"])
@pytest.mark.parametrize(
    "error", [OSError("no disk"), MemoryError(), KeyboardInterrupt(), RuntimeError("x"), ValueError()]
)
def test_errors_of_others_are_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: BaseException
) -> None:
    save, load = (save_safetensors, load_safetensors) if kind == "safetensors" else (save_file, load_file)
    tree = {"enc": {"w": jnp.arange(6.0)}}
    save(tmp_path / "file", tree)
    with pytest.raises(TypeError, match="a bug in the filter") as caught:
        load(tmp_path / "file", tree, filter=broken_filter)
    assert '"enc/w"' in caught.value.__notes__[0]
    monkeypatch.setattr("liftcore.checkpoints.matching.converted", broken_leaf(error))
    with pytest.raises(type(error)) as other:
        load(tmp_path / "file", tree)
    assert other.value is error
    assert isinstance(error, KeyboardInterrupt) or '"enc/w"' in error.__notes__[-1]


def test_a_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {str(index): np.full(2, index, jnp.float8_e4m3fn) for index in range(9)}
    save_safetensors(tmp_path / "file", tree)
    calls, real = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: (calls.append(text), real(text))[1])
    found = load_safetensors(tmp_path / "file", tree)
    assert [float(found[name][1]) for name in tree] == list(range(9))
    assert len(calls) == 1


def test_a_file_that_cannot_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_safetensors(tmp_path / "file", {"w": np.ones(2, jnp.float8_e4m3fn)})
    monkeypatch.setattr(np, "fromfile", broken_leaf(OSError("no disk")))
    with pytest.raises(OSError, match="no disk") as caught:
        load_safetensors(tmp_path / "file")
    assert '"w"' in caught.value.__notes__[0]
    monkeypatch.setattr(np, "fromfile", broken_leaf(ValueError("too short")))
    with pytest.raises(SerializationError, match=r'file", w: .* damaged \(too short\)'):
        load_safetensors(tmp_path / "file", {"w": np.ones(2, jnp.float8_e4m3fn)})


def test_an_index_of_several_files_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(SerializationError, match="the index of a model in several files"):
        load_safetensors(tmp_path / "model.safetensors.index.json")

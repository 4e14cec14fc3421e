"""`tree_serialise_leaves` and `tree_deserialise_leaves`, on files of ours and on those of Equinox."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
from liftcore.checkpoints import load_file
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.saving.dtypes import DTYPES

KEY = jax.random.key(0)


class Mlp(eqx.Module):
    """Layers, a function, and numbers of several kinds."""

    layers: list[Any]
    act: Any
    steps: int
    rate: float
    flag: bool
    phase: complex
    mask: Any
    size: int = eqx.field(static=True)

    def __init__(self, size: int, number: int, *, key: Any) -> None:
        self.layers = [{"w": jax.random.normal(each, (size, size))} for each in jax.random.split(key, 2)]
        self.layers.append({"w": jnp.full(2, number, jnp.bfloat16)})
        self.act, self.size = jnp.tanh, size
        self.steps, self.rate, self.flag, self.phase = number, number / 3, number > 1, number * 1j
        self.mask = np.asfortranarray(np.arange(6).reshape(2, 3) > number)


MODEL, LIKE = Mlp(3, 2, key=KEY), Mlp(3, 1, key=jax.random.key(1))


def assert_equal(found: Any, wanted: Any) -> None:
    assert eqx.tree_equal(found, wanted, typematch=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.eqx"


def write(tree: Any = MODEL, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, tree, **options)
    file.seek(0)
    return file


def test_leaves_come_back_and_the_others_are_those_of_like(path: Path) -> None:
    eqx.tree_serialise_leaves(path, MODEL)
    assert_equal(eqx.tree_deserialise_leaves(path, LIKE), MODEL)
    assert_equal(eqx.tree_deserialise_leaves(str(path), LIKE), MODEL)


def test_a_path_without_a_suffix_gets_one(path: Path) -> None:
    eqx.tree_serialise_leaves(path.with_suffix(""), MODEL)
    assert path.exists()
    assert_equal(eqx.tree_deserialise_leaves(str(path.with_suffix("")), LIKE), MODEL)


def test_hyperparameters_on_the_first_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write((json.dumps({"size": 3, "number": 1}) + "\n").encode())
        eqx.tree_serialise_leaves(file, MODEL)
        eqx.tree_serialise_leaves(file, jnp.arange(3))
    with path.open("rb") as file:
        like = eqx.filter_eval_shape(lambda: Mlp(**json.loads(file.readline()), key=KEY))
        assert isinstance(like.layers[0]["w"], jax.ShapeDtypeStruct)
        assert eqx.tree_equal(eqx.tree_deserialise_leaves(file, like), MODEL)
        assert_equal(eqx.tree_deserialise_leaves(file, jnp.zeros(3, int)), jnp.arange(3))


def test_the_files_are_those_of_the_core(path: Path) -> None:
    eqx.tree_serialise_leaves(path, MODEL)
    assert_equal(eqx.combine(load_file(path, eqx.filter(LIKE, eqx.is_array_like)), LIKE), MODEL)


WRONG: dict[str, tuple[Any, str]] = {
    "shape": ({"w": jnp.ones(3)}, r"w: shape \(2,\), not \(3,\)"),
    "dtype": ({"w": jnp.ones(2, int)}, r"w: expected int32\[2\], found float32"),
    "number": ({"w": 1.0}, r"w: shape \(2,\), not \(\)"),
    "missing": ({"w": jnp.ones(2), "b": jnp.ones(2)}, "b: missing"),
    "unexpected": ({}, "w: unexpected"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_an_error(wrong: str, path: Path) -> None:
    like, text = WRONG[wrong]
    for place in (path, write({"w": jnp.ones(2)})):
        eqx.tree_serialise_leaves(path, {"w": jnp.ones(2)})
        with pytest.raises(SerializationError, match=text) as caught:
            eqx.tree_deserialise_leaves(place, like)
        assert ("model.eqx" if place is path else "BytesIO") in str(caught.value)


def test_a_damaged_file_is_an_error() -> None:
    data = bytearray(write().getvalue())
    data[-200] ^= 1
    with pytest.raises(SerializationError):
        eqx.tree_deserialise_leaves(io.BytesIO(data), LIKE)


@pytest.mark.parametrize("spec", [eqx.is_inexact_array, eqx.is_array])
def test_a_spec_chooses_leaves(spec: Any) -> None:
    found = eqx.tree_deserialise_leaves(write(filter_spec=spec), LIKE, filter_spec=spec)
    assert_equal(found, eqx.combine(eqx.filter(MODEL, spec), LIKE))
    shapes = eqx.filter_eval_shape(lambda: LIKE)
    found = eqx.tree_deserialise_leaves(write(filter_spec=spec), shapes, filter_spec=spec)
    assert_equal(eqx.filter(found, eqx.is_inexact_array), eqx.filter(MODEL, eqx.is_inexact_array))


def test_a_spec_of_equinox_is_an_error() -> None:
    def spec(file: Any, leaf: Any) -> None:
        raise AssertionError

    with pytest.raises(LiftArgumentError, match=r"filter_spec.*takes a file and a leaf.*eqx.is_array"):
        eqx.tree_serialise_leaves(io.BytesIO(), MODEL, filter_spec=spec)
    with pytest.raises(LiftArgumentError, match=r"filter_spec.*takes a file and a leaf"):
        eqx.tree_deserialise_leaves(io.BytesIO(), MODEL, filter_spec=spec)


def test_nodes_that_are_leaves_are_not_saved() -> None:
    options = {"is_leaf": lambda node: isinstance(node, dict)}
    found = eqx.tree_deserialise_leaves(write(**options), LIKE, **options)
    assert found.layers[0] is LIKE.layers[0]
    assert found.steps == MODEL.steps


def test_random_keys_come_back() -> None:
    for like in (jax.random.key(3), jax.eval_shape(lambda: jax.random.key(3))):
        found = eqx.tree_deserialise_leaves(write({"key": KEY}), {"key": like})
        assert found["key"] == KEY


# -- files of Equinox --------------------------------------------------------------------------------------------------


def of_equinox(tree: Any) -> bytes:
    """What `equinox.tree_serialise_leaves` writes."""
    file = io.BytesIO()
    for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array_like)):
        np.save(file, leaf)
    return file.getvalue()


def test_the_writer_of_this_test_is_that_of_equinox() -> None:
    equinox = pytest.importorskip("equinox")
    file = io.BytesIO()
    equinox.tree_serialise_leaves(file, MODEL)
    assert file.getvalue() == of_equinox(MODEL)


def test_files_of_equinox_are_read(path: Path) -> None:
    path.write_bytes(of_equinox(MODEL))
    assert_equal(eqx.tree_deserialise_leaves(path, LIKE), MODEL)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(path, eqx.filter_eval_shape(lambda: LIKE)), MODEL)
    with io.BytesIO(b"line\n" + of_equinox(MODEL) + of_equinox([1, jnp.ones(2)])) as file:
        assert file.readline() == b"line\n"
        assert_equal(eqx.tree_deserialise_leaves(file, LIKE), MODEL)
        assert_equal(eqx.tree_deserialise_leaves(file, [0, jnp.zeros(2)]), [1, jnp.ones(2)])
        assert not file.read()


def npy(descr: str, shape: str, size: int = 12) -> bytes:
    """A file of one array with this header, and some bytes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\7" * size


ALL_DTYPES = [*DTYPES.values(), np.dtype("V1"), np.dtype("V2")]
NAMELESS = [dtype for dtype in DTYPES.values() if dtype.str.endswith("V1")]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_an_array_is_never_read_as_one_of_another_type(dtype: Any) -> None:
    ones = np.ones(3, dtype)
    data = of_equinox([ones])
    for other in ALL_DTYPES:
        like = [np.zeros(3, other)]
        if other == (np.dtype("V1") if dtype in NAMELESS else dtype):
            found = eqx.tree_deserialise_leaves(io.BytesIO(data), like)[0]
            assert found.dtype == other
            assert found.view(dtype).tolist() == ones.tolist()
        else:
            with pytest.raises(SerializationError, match=r"not .* as in the target|expected|does not"):
                eqx.tree_deserialise_leaves(io.BytesIO(data), like)


def test_a_type_that_a_file_does_not_name_is_loaded_as_bytes() -> None:
    assert jnp.float8_e4m3fn in NAMELESS
    assert jnp.int4 in NAMELESS
    file = io.BytesIO(of_equinox({"a": jnp.ones(2), "w": jnp.arange(3).astype(jnp.float8_e4m3fn)}))
    like = {"a": jnp.zeros(2), "w": jnp.zeros(3, jnp.float8_e4m3fn)}
    with pytest.raises(SerializationError, match=r"leaf \['w'\] has a type of one byte that the file does not name"):
        eqx.tree_deserialise_leaves(file, like)
    file.seek(0)
    leaf = eqx.tree_deserialise_leaves(file, {**like, "w": np.zeros(3, "V1")})["w"]
    assert leaf.view(jnp.float8_e4m3fn).tolist() == [0, 1, 2]


def test_the_order_of_bytes_is_that_of_the_file() -> None:
    file = io.BytesIO(of_equinox([np.arange(3, dtype=">i4")]))
    assert eqx.tree_deserialise_leaves(file, [np.zeros(3, np.int32)])[0].tolist() == [0, 1, 2]


BAD: dict[str, tuple[bytes, Any, str]] = {
    "shape": (of_equinox([jnp.ones(2)]), [jnp.ones(3)], r"0: shape \(2,\), not \(3,\)"),
    "dtype": (of_equinox([jnp.ones(2)]), [jnp.ones(2, int)], r"0: expected int32\[2\], found float32"),
    "fewer": (of_equinox([jnp.ones(2)]), [jnp.ones(2), 3], "expected 2 leaves, but number 2 cannot be read"),
    "more": (of_equinox([jnp.ones(2), 3]), [jnp.ones(2)], "expected 1 leaves, but the file has more"),
    "cut": (of_equinox([jnp.ones(2)])[:-1], [jnp.ones(2)], "ends 1 bytes before"),
    "huge": (of_equinox([jnp.ones(2)]).replace(b"(2,), }      ", b"(2000000,), }"), [jnp.ones(2)], "shape"),
    "objects": (of_equinox([jnp.ones(2)]).replace(b"<f4", b"|O "), [jnp.ones(2)], "number 1 cannot be read"),
    "structured": (npy("[('a', '<i4')]", "(3,)"), [jnp.ones(3)], "its header is not one"),
    "raw": (npy("'|V4'", "(3,)"), [np.ones(3, "V4")], "a type that NumPy does not know, of 4 bytes"),
    "negative": (npy("'<f4'", "(-3,)"), [jnp.ones(3)], "its header is not one"),
    "a code": (npy("'<f4'", "(__import__('os').abort(),)"), [jnp.ones(3)], "its header is not one"),
    "a size": (npy("'<f4'", f"({2**62},)"), [jnp.ones(3)], rf"before the end of an array of shape \({2**62},\)"),
    "many sizes": (npy("'<f4'", f"({'1, ' * 70})"), [jnp.ones(3)], "its header is not one"),
    "bool": (npy("'|b1'", "(3,)", 3), [np.ones(3, bool)], "bytes other than 0 and 1"),
    "a bool": (npy("'|b1'", "()", 1), [True], "bytes other than 0 and 1"),
    "a key": (npy("'<f4'", "()", 4), [KEY], r"expected key<fry>\[\], found float32"),
    "version": (of_equinox([jnp.ones(2)]).replace(b"Y\x01", b"Y\x07"), [jnp.ones(2)], "number 1 cannot be read"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_file_of_equinox_that_does_not_fit_is_an_error(bad: str, path: Path) -> None:
    data, like, text = BAD[bad]
    path.write_bytes(data)
    with pytest.raises(SerializationError, match=text):
        eqx.tree_deserialise_leaves(path, like)

"""What no format can hold is an error that names its path, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.checkpoints import Checkpoints, OrbaxCheckpoints, load_file, match_state, save_file, save_safetensors
from liftcore.errors import SerializationError
from liftcore.serialization import to_bytes, to_state_dict

Write = Callable[[Path, Any], None]


def in_folder(path: Path, tree: Any) -> None:
    with Checkpoints(path.parent) as checkpoints:
        checkpoints.save(1, tree)


def in_orbax(path: Path, tree: Any) -> None:
    with OrbaxCheckpoints(path.parent / "orbax") as checkpoints:
        checkpoints.save(1, tree)


def in_bytes(path: Path, tree: Any) -> None:
    to_bytes(tree)


WRITERS = [save_file, in_folder, in_bytes, save_safetensors, in_orbax]


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Write:
    return request.param  # type: ignore[no-any-return]


def message(write: Write, path: Path, tree: Any) -> str:
    with pytest.raises(SerializationError) as caught:
        write(path, tree)
    assert not [left for left in path.parent.rglob("*") if left.is_file() and left.name != ".lock"]
    str(caught.value).encode("utf-8")  # can be printed
    return str(caught.value)


def deep(levels: int) -> Any:
    tree: Any = np.ones(2)
    for _ in range(levels):
        tree = {"a": tree}
    return tree


@pytest.mark.parametrize("trace", [jax.jit, jax.grad, jax.vmap])
def test_a_tracer_is_named(tmp_path: Path, write: Write, trace: Any) -> None:
    def traced(x: Any) -> Any:
        text = message(write, tmp_path / "file", {"a": {"w": x, "k": jax.random.key(0)}})
        assert "a/w: this is a tracer" in text
        assert "Return it from the traced function" in text
        return x.sum()

    trace(traced)(jnp.ones(3))


def test_a_donated_array_is_named(tmp_path: Path, write: Write) -> None:
    for array in (jnp.ones(3), jnp.asarray(1.1)):  # the second is weakly typed, and saved as a number
        array.delete()
        text = message(write, tmp_path / "file", {"a": {"w": array}})
        assert "a/w: this array was deleted, probably donated" in text
        assert "Save what that function returned" in text


def test_a_tree_that_contains_itself_is_named(tmp_path: Path, write: Write) -> None:
    tree: dict[str, Any] = {"w": np.ones(2), "a": {"n": 3}}
    tree["a"]["b"] = [0, tree["a"]]
    assert "/a/b/1: the tree contains itself: this dict is also 2 levels further up." in message(
        write, tmp_path / "file", tree
    )


@pytest.mark.usefixtures("usual_depth")
def test_a_tree_that_is_too_deep_is_no_error_of_python(tmp_path: Path, write: Write) -> None:
    assert "more than 128 levels deep" in message(write, tmp_path / "file", deep(3000))


def test_half_of_a_surrogate_pair_is_escaped_in_the_error(tmp_path: Path, write: Write) -> None:
    text = message(write, tmp_path / "file", {"a": {"x\ud800": np.ones(2)}})
    assert "a/x\\ud800: the text contains one half of a surrogate pair" in text


@pytest.mark.parametrize("write", [save_file, in_orbax])
def test_half_of_a_surrogate_pair_in_a_value_is_an_error(tmp_path: Path, write: Write) -> None:
    assert "a/x: the text contains one half of a surrogate" in message(write, tmp_path / "file", {"a": {"x": "\udfff"}})


def test_a_target_with_tracers_or_without_an_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(path, {"w": np.ones(3, np.float32)})

    @jax.jit
    def traced(x: Any) -> Any:
        with pytest.raises(SerializationError, match=r"w: a tracer, which has no value.*\n Restore outside of"):
            load_file(path, {"w": x})
        with pytest.raises(SerializationError, match="w: a tracer"):
            match_state({"w": np.ones(3, np.float32)}, {"w": x})
        return x

    traced(jnp.ones(3))
    target: dict[str, Any] = {}
    target["w"] = target
    with pytest.raises(SerializationError, match="state at /w: the tree contains itself"):
        load_file(path, target)


def test_the_state_of_a_tree_may_have_tracers_and_levels() -> None:
    jax.jit(lambda x: to_state_dict([{"w": x}])["0"]["w"])(jnp.ones(3))
    state = to_state_dict(deep(200))
    assert list(state) == ["a"]

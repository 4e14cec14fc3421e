from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from liftcore.checkpoints import OrbaxCheckpoints
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.meta import Partitioned
from tests.machine import make_mesh

optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")

ROOT = Path(__file__).parents[2]


def same(ours: Any, theirs: Any) -> None:
    def check(a: Any, b: Any) -> None:
        if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, ours, theirs)


# --- what is saved ----------------------------------------------------------------------------------------------------


def anything() -> dict[str, Any]:
    params = {"w": Partitioned(jnp.ones((4, 3)), ("x", None)), "empty": jnp.zeros((0, 2))}
    return {
        "params": params,
        "opt_state": optax.adam(1e-3).init(params),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(3, impl="rbg"), 3),
        "arrays": [np.arange(3.0), np.ones(2, np.uint8), jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float8_e4m3fn)],
        "narrow": [np.ones(2, jnp.uint4), np.ones(2, jnp.int4), np.ones(2, jnp.float8_e4m3)],
        "scalars": [3, 2.5, float("inf"), True, 2 + 1j, np.float32(2), np.complex64(1j), None, "é", b"\0\1"],
        "a/b": np.ones(2),
    }


def test_any_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    tree = anything()
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
    same(OrbaxCheckpoints(tmp_path).restore(tree), tree)


def test_without_a_target_the_state_comes_as_numpy(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path, asynchronous=False) as checkpoints:
        checkpoints.save(0, {"layers": [jnp.ones(2), 3]})
        state = checkpoints.restore()
    assert state["layers"]["1"] == 3
    assert type(state["layers"]["0"]) is np.ndarray


def test_arrays_may_be_changed_as_soon_as_save_returns(tmp_path: Path) -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    on_device, on_host = step(jnp.zeros(1_000_000)), np.zeros(1_000_000)
    with OrbaxCheckpoints(tmp_path, keep=None) as checkpoints:
        for number in range(3):
            checkpoints.save(number, {"device": on_device, "host": on_host})
            on_device = step(on_device)
            on_host += 1
        checkpoints.wait()
        for number in range(3):
            found = checkpoints.restore(step=number)
            np.testing.assert_array_equal(found["device"], np.full(1_000_000, number + 1.0))
            np.testing.assert_array_equal(found["host"], np.full(1_000_000, number))


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": {"b": object()}}, "a/b"),
        (np.ones(2), "Put it into a dict"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "same name"),
    ],
)
def test_what_cannot_be_saved_is_an_error_before_anything_is_written(tmp_path: Path, tree: Any, text: str) -> None:
    with OrbaxCheckpoints(tmp_path / "new") as checkpoints, pytest.raises(SerializationError, match=text):
        checkpoints.save(0, tree)
    assert not (tmp_path / "new").exists()


# --- meshes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_what_was_saved_on_one_mesh_is_restored_on_another(tmp_path: Path, kind: AxisType) -> None:
    values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    before = jax.device_put(values, NamedSharding(make_mesh((8,), "data"), P("data")))
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(7, {"w": before, "step": jnp.asarray(7), "key": jax.random.key(1)})
    other = make_mesh((2, 4), "x", "y", kind=kind)
    shapes = jax.eval_shape(lambda: {"w": jnp.zeros((8, 8)), "step": jnp.asarray(0), "key": jax.random.key(0)})
    specs = {"w": P("y", "x"), "step": P(), "key": P()}
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(other, spec)),
        shapes,
        specs,
    )
    restored = OrbaxCheckpoints(tmp_path).restore(target)
    np.testing.assert_array_equal(restored["w"], values)
    assert restored["w"].sharding == NamedSharding(other, P("y", "x"))
    assert {shard.data.shape for shard in restored["w"].addressable_shards} == {(2, 4)}
    assert restored["step"] == 7
    assert restored["key"] == jax.random.key(1)
    again = OrbaxCheckpoints(tmp_path).restore({"w": before, "step": 0, "key": jax.random.key(0)})
    assert again["w"].sharding == before.sharding


def test_no_host_reads_a_whole_array_that_is_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = NamedSharding(make_mesh((8,), "data"), P("data"))
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": jax.device_put(np.ones((8, 128, 128)), on)})
    monkeypatch.setattr(np, "asarray", _no_larger_than(128 * 128, np.asarray))
    restored = OrbaxCheckpoints(tmp_path).restore({"w": jax.ShapeDtypeStruct((8, 128, 128), jnp.float32, sharding=on)})
    assert restored["w"].shape == (8, 128, 128)


def _no_larger_than(size: int, asarray: Any) -> Any:
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        array = asarray(value, *args, **kwargs)
        assert array.size <= size
        return array

    return checked


def test_shardings_that_do_not_divide_a_shape_are_listed(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": np.ones(6, np.float32), "b": np.ones(7, np.float32)})
    on = NamedSharding(make_mesh((4,), "x"), P("x"))
    target = {name: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=on) for name, size in (("a", 6), ("b", 7))}
    with pytest.raises(LiftArgumentError, match=r"(?s)\n  a: .*\n  b: "):
        OrbaxCheckpoints(tmp_path).restore(target)


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed_before_an_array_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"kernel": np.ones((8, 4)), "bias": np.ones(4), "scale": np.ones(4), "n": 3})
    monkeypatch.setattr("liftcore.checkpoints.orbax_arrays.SavedTree.read", lambda self, wanted, *_: wanted and 1 / 0)
    target = {"kernel": np.ones((9, 4)), "bias": np.ones(4, np.float32), "scales": np.ones(4), "n": "3"}
    with pytest.raises(SerializationError) as caught:
        OrbaxCheckpoints(tmp_path).restore(target)
    lines = [line.strip() for line in caught.value.what.splitlines()[1:]]
    assert [line.partition(":")[0] for line in lines] == ["scales", "scale", "kernel", "bias", "n"]


def test_parts_are_restored_by_filter_cast_and_transform(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": np.full(2, 1.5), "b": np.full(2, 7), "c": np.ones(3)})
        some = {"a": np.zeros(2), "b": np.zeros(5)}
        np.testing.assert_array_equal(checkpoints.restore(some, filter="a")["a"], [1.5, 1.5])
        cast = checkpoints.restore(
            {"a": jnp.zeros(2, jnp.bfloat16), "b": np.zeros(2, np.int8)}, strict=False, cast=True
        )
        assert (cast["a"].dtype, cast["b"].dtype) == (jnp.bfloat16, np.int8)
        renamed = checkpoints.restore({"d": np.zeros(3)}, transform=lambda state: {"d": state["c"]})
        np.testing.assert_array_equal(renamed["d"], np.ones(3))


def test_damage_is_our_error(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": np.ones(2), "n": 3})
    (text,) = (tmp_path / "0/rest").glob("metadata")
    for damage in ("{", "[]", '{"leaves": [[["n"], [1]]]}', '{"leaves": [[["n"], {"msgpack": "!"}]]}', '{"leaves": 3}'):
        text.write_text(damage)
        with pytest.raises(SerializationError, match="damaged"):
            OrbaxCheckpoints(tmp_path).restore({"a": np.ones(2), "n": 0})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    with OrbaxCheckpoints(folder) as checkpoints:
        checkpoints.save(0, TREE)
    tree = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    tree.save(folder.with_name("plain"), {"w": np.ones(3)})
    return folder


TREE = {"w": np.ones(3), "n": 3, "t": "text"}


def _rest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(step: Path) -> None:
        path = step / "rest/metadata"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def _array(**lies: Any) -> Callable[[Path], None]:
    """Puts an array in the place of that of the step that says something else of itself."""

    def damage(step: Path) -> None:
        shutil.rmtree(step / "state")
        shutil.copytree(step.parent.with_name("plain"), step / "state")
        path = step / "state/w/.zarray"
        path.write_text(json.dumps({**json.loads(path.read_text()), "fill_value": 0, **lies}))

    return damage


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "no arrays": lambda step: shutil.rmtree(step / "state"),
    "no rest": lambda step: shutil.rmtree(step / "rest"),
    "no array of that name": _rest(lambda rest: {**rest, "arrays": []}),
    "another number": _rest(lambda rest: {**rest, "leaves": [[["n"], 4], [["t"], "text"]]}),
    "a leaf less": _rest(lambda rest: {**rest, "leaves": rest["leaves"][:1]}),
    "no checksum": _rest(lambda rest: {name: rest[name] for name in ("leaves", "arrays")}),
    "a leaf below an array": _rest(lambda rest: {"leaves": [[["w", "x"], 1]]}),
    "a leaf that is an array": _rest(lambda rest: {"leaves": [[["w"], 1]]}),
    "a leaf twice": _rest(lambda rest: {"leaves": [[["n"], 1], [["n"], 2]]}),
    "no metadata": lambda step: (step / "state/_METADATA").write_text("null"),
    "large pieces": _array(chunks=[2**40]),
    "pieces that may fit": _array(chunks=[2**31]),
    "a large array": _array(shape=[2**50]),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # threads of orbax
@pytest.mark.parametrize("name", DAMAGED)
def test_a_step_that_is_damaged_or_hostile_is_our_error(tmp_path: Path, saved: Path, name: str) -> None:
    shutil.copytree(saved.parent, tmp_path / "all")
    DAMAGED[name](tmp_path / "all/run/0")
    for target in (None, TREE):
        with pytest.raises(SerializationError, match="step 0") as caught:
            OrbaxCheckpoints(tmp_path / "all/run").restore(target)
        assert len(str(caught.value)) < 1000


def test_a_step_of_an_older_version_has_no_checksum(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "run")
    _rest(lambda rest: {"leaves": rest["leaves"]})(tmp_path / "run/0")
    same(OrbaxCheckpoints(tmp_path / "run").restore(TREE), TREE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # threads of orbax
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(tmp_path: Path, asynchronous: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with OrbaxCheckpoints(tmp_path, asynchronous=asynchronous) as checkpoints:
        checkpoints.save(1, TREE)
        for large in ({"w": np.random.default_rng(0).normal(size=100_000)}, {"t": "x" * 800_000}):
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
            try:
                with pytest.raises(OSError, match="File too large") as caught:
                    (checkpoints.save(2, large), checkpoints.wait())
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert caught.value.errno == errno.EFBIG
            assert os.listdir(tmp_path) == ["1"]
        checkpoints.save(2, TREE)
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2]


# --- which steps are there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "kept", "best"), [("min", [1, 2, 5, 6], 1), ("max", [0, 4, 5, 6], 4)])
def test_the_last_and_the_best_are_kept(tmp_path: Path, mode: Any, kept: list[int], best: int) -> None:
    for losses in ([3.0, 1.0, 2.0], [2.5, 4.0, None, None]):  # as of a run that is resumed
        with OrbaxCheckpoints(tmp_path, keep=2, best=2, metric="score", mode=mode, asynchronous=False) as checkpoints:
            for loss in losses:
                step = (checkpoints.latest() if checkpoints.latest() is not None else -1) + 1
                checkpoints.save(
                    step, {"a": np.ones(1)}, metrics=None if loss is None else {"score": jnp.asarray(loss)}
                )
    assert OrbaxCheckpoints(tmp_path).steps() == kept
    assert OrbaxCheckpoints(tmp_path, metric="score", mode=mode).best_step() == best


@pytest.mark.parametrize(("mode", "best"), [("min", 0), ("max", 3)])
def test_a_run_that_diverges_keeps_its_best_step(tmp_path: Path, mode: Any, best: int) -> None:
    with OrbaxCheckpoints(tmp_path, keep=1, best=1, mode=mode, asynchronous=False) as checkpoints:
        for step, loss in enumerate([1.0, np.nan, np.nan, 3.0, np.nan, np.nan]):
            checkpoints.save(step, {"a": np.ones(1)}, metrics={"loss": loss})
        assert (checkpoints.steps(), checkpoints.best_step()) == ([best, 5], best)


def test_of_equal_metrics_the_last_is_the_best(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path, best=1, asynchronous=False) as checkpoints:
        for step, loss in enumerate([2.0, 1.0, 1.0]):
            checkpoints.save(step, {"a": np.ones(1)}, metrics={"loss": loss})
        assert checkpoints.best_step() == 2


def test_only_a_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    left = tmp_path / "7.orbax-checkpoint-tmp"
    (left / "state").mkdir(parents=True)
    with OrbaxCheckpoints(tmp_path, asynchronous=False) as checkpoints:
        assert (checkpoints.latest(), checkpoints.best_step(), left.exists()) == (None, None, True)
        checkpoints.save(1, {"a": np.ones(1)})
        assert (checkpoints.steps(), left.exists()) == ([1], False)


def test_steps_that_cannot_be_saved_or_are_not_there(tmp_path: Path) -> None:
    checkpoints = OrbaxCheckpoints(tmp_path / "new")
    assert (checkpoints.steps(), checkpoints.latest(), checkpoints.best_step()) == ([], None, None)
    with pytest.raises(LiftArgumentError, match="there is no checkpoint"):
        checkpoints.restore()
    with checkpoints:
        checkpoints.save(3, {"a": np.ones(1)})
        for step in (3, 2, -1, "4", True):
            with pytest.raises(LiftArgumentError, match="step"):
                checkpoints.save(step, {"a": np.ones(1)})  # type: ignore[arg-type]
    with pytest.raises(LiftArgumentError, match=r"no step 2. .* saved steps: \[3\]"):
        checkpoints.restore(step=2)
    for wrong in ({"keep": 0}, {"best": -1}, {"mode": "least"}):
        with pytest.raises(LiftArgumentError, match=next(iter(wrong))):
            OrbaxCheckpoints(tmp_path, **wrong)  # type: ignore[arg-type]


KILLED = """
import os, signal, sys, threading, time
import numpy as np
from liftcore.checkpoints import OrbaxCheckpoints
checkpoints = OrbaxCheckpoints(sys.argv[1])
checkpoints.save(0, {"w": np.zeros(200_000)})
checkpoints.wait()
threading.Thread(target=lambda: (time.sleep(float(sys.argv[2])), os.kill(os.getpid(), signal.SIGKILL))).start()
for step in range(1, 1000):
    checkpoints.save(step, {"w": np.full(200_000, float(step))})
"""


@pytest.mark.parametrize("seconds", [0.05, *np.linspace(0.2, 1.5, 20)])
def test_the_last_step_is_whole_if_the_process_is_killed(tmp_path: Path, seconds: float) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(seconds)]
    child = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        last = checkpoints.latest()
        assert last is not None
        for step in checkpoints.steps():
            np.testing.assert_array_equal(checkpoints.restore(step=step)["w"], np.full(200_000, float(step)))
        checkpoints.save(last + 1, {"w": np.ones(3)})
        assert len(checkpoints.steps()) <= 4
    assert all(path.name.isdigit() for path in tmp_path.iterdir() if path.is_dir())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"liftcore\[orbax\]"):
        OrbaxCheckpoints("anywhere")


@pytest.mark.parametrize("metrics", [0.3, {"acc": "high"}, {"acc": "0.5"}, {"acc": np.ones(2)}])
def test_metrics_are_numbers_by_name(metrics: Any, tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(
            LiftArgumentError, match=r"save, metrics: (expected numbers by name|expected a number as 'acc')"
        ):
            checkpoints.save(0, {"w": np.ones(2)}, metrics=metrics)
        assert checkpoints.steps() == []


def test_the_metric_that_decides_which_steps_are_kept_must_be_there(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path, best=1, metric="accuracy", mode="max") as checkpoints:
        with pytest.raises(LiftArgumentError, match=r"'accuracy' decides .* metrics are \['acc', 'loss'\]"):
            checkpoints.save(0, {"w": np.ones(2)}, metrics={"acc": 0.5, "loss": 1.0})
        checkpoints.save(0, {"w": np.ones(2)})  # a step may have none

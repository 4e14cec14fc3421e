from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from liftcore.checkpoints import OrbaxCheckpoints, each_holding, load_orbax
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.meta import Partitioned
from liftcore.training import TrainState
from tests.machine import make_mesh

optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")


class Pair(NamedTuple):
    one: Any
    other: Any


def state() -> dict[str, Any]:
    params = {"dense": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.ones(4, jnp.bfloat16)}}
    boxed = {"w": Partitioned(jnp.full((8, 2), 2.5), ("x", None))}
    train = TrainState.create(apply_fn=None, params=params, tx=optax.chain(optax.clip(1.0), optax.adam(1e-3)))
    return {
        "train": train,
        "boxed": boxed,
        "pair": Pair(jnp.zeros(1), [np.arange(3), (jnp.ones(2, jnp.int8),)]),
        "none": None,
        "empty": {},
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 2),
        "raw": jax.random.PRNGKey(5),
        "scalars": [3, 2.5, True, np.float32(1.5)],
    }


def standard(path: Path, tree: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def pytree(**options: Any) -> Callable[[Path, Any], None]:
    def save(path: Path, tree: Any) -> None:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(tree))

    return save


def manager(folder: Path, args: Any, steps: tuple[int, ...] = (3,), **options: Any) -> None:
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**options)) as one:
        for step in steps:
            one.save(step, args=args)
        one.wait_until_finished()


def blank(tree: Any) -> Any:
    """The target: other values of the same types."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jax.random.key_data(leaf) + 1, impl=jax.random.key_impl(leaf))
        return type(leaf)(0) if isinstance(leaf, int | float | np.generic) else leaf * 0

    return jax.tree.map(other, tree)


def same(ours: Any, theirs: Any) -> None:
    def check(a: Any, b: Any) -> None:
        assert type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, ours, theirs)


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "save",
    [standard, pytree(), pytree(use_ocdbt=False), pytree(use_zarr3=True)],
    ids=["standard", "pytree", "no ocdbt", "zarr3"],
)
def test_a_tree_comes_back_whatever_checkpointer_wrote_it(tmp_path: Path, save: Any) -> None:
    tree = state()
    save(tmp_path / "tree", tree)
    same(load_orbax(tmp_path / "tree", blank(tree)), tree)
    shapes = jax.eval_shape(lambda: tree["train"].params)
    same(
        load_orbax(tmp_path / "tree", {"train": {"params": shapes}}, strict=False)["train"]["params"],
        tree["train"].params,
    )


def test_without_a_target_the_tree_comes_as_dicts_of_numpy(tmp_path: Path) -> None:
    pytree()(tmp_path / "tree", {**state(), "text": "é"})
    found = load_orbax(tmp_path / "tree")
    assert found["text"] == "é"
    assert found["none"] is None
    assert found["scalars"] == {"0": 3, "1": 2.5, "2": True, "3": 1.5}
    assert found["key"]["impl"] == "threefry2x32"
    np.testing.assert_array_equal(found["key"]["data"], jax.random.key_data(jax.random.key(3)))
    np.testing.assert_array_equal(found["raw"], jax.random.PRNGKey(5))
    assert type(found["boxed"]["w"]["value"]) is np.ndarray
    assert found["train"]["params"]["dense"]["bias"].dtype == jnp.bfloat16
    found["raw"][...] = 0  # each is an array of its own
    standard(tmp_path / "list", [jnp.ones(2), {"a": jnp.zeros(1)}])
    assert load_orbax(tmp_path / "list").keys() == {"0", "1"}


def test_one_array_is_a_tree(tmp_path: Path) -> None:
    try:
        pytree()(tmp_path / "one", jnp.ones(3))
    except ValueError:
        pytest.skip("this version of orbax saves no single arrays")
    np.testing.assert_array_equal(load_orbax(tmp_path / "one"), np.ones(3))
    same(load_orbax(tmp_path / "one", jnp.zeros(3)), jnp.ones(3))


def test_a_box_may_be_on_either_side(tmp_path: Path) -> None:
    array, box = jnp.arange(6.0).reshape(3, 2), lambda value: Partitioned(value, ("a", "b"))
    standard(tmp_path / "boxed", {"w": box(array), "value": array})
    standard(tmp_path / "bare", {"w": array, "value": array})
    for name in ("boxed", "bare"):
        same(load_orbax(tmp_path / name, {"w": array * 0, "value": array * 0}), {"w": array, "value": array})
        found = load_orbax(tmp_path / name, {"w": box(array * 0), "value": array * 0})
        same(found, {"w": box(array), "value": array})
        assert found["w"].names == ("a", "b")


def test_a_typed_key_fits_a_target_of_raw_keys(tmp_path: Path) -> None:
    standard(tmp_path / "tree", {"key": jax.random.key(1)})
    on = NamedSharding(make_mesh((8,), "x"), P())
    for target in (jax.random.PRNGKey(0), jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=on)):
        found = load_orbax(tmp_path / "tree", {"key": target})["key"]
        same(found, jax.random.PRNGKey(1))
    assert found.sharding == on


@pytest.mark.cpu("the text names its devices")
def test_a_tree_of_devices_that_are_not_here_is_read(tmp_path: Path) -> None:
    tree = state()
    standard(tmp_path / "tree", tree)
    path = tmp_path / "tree/_sharding"
    path.write_text(path.read_text().replace("cpu:0", "cuda:7"))
    same(load_orbax(tmp_path / "tree", blank(tree)), tree)
    assert load_orbax(tmp_path / "tree")["key"]["impl"] == "threefry2x32"


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_each_device_gets_its_part_and_no_host_the_whole(
    tmp_path: Path, kind: AxisType, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(8 * 128 * 128, dtype=np.float32).reshape(8, 128, 128)
    standard(tmp_path / "tree", {"w": Partitioned(jnp.asarray(values), ("x", None, None)), "n": 3})
    on = NamedSharding(make_mesh((8,), "x", kind=kind), P("x"))
    target = {"w": jax.ShapeDtypeStruct(values.shape, jnp.float32, sharding=on), "n": 0}
    monkeypatch.setattr(np, "asarray", _no_larger_than(128 * 128, np.asarray))
    found = load_orbax(tmp_path / "tree", target)
    monkeypatch.undo()
    assert found["w"].sharding == on
    np.testing.assert_array_equal(found["w"], values)
    standard(tmp_path / "small", {"n": jnp.ones(3)})
    with pytest.raises(LiftArgumentError, match=r"do not divide the shapes:\n  n: "):
        load_orbax(tmp_path / "small", {"n": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=on)})


def _no_larger_than(size: int, asarray: Any) -> Any:
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        array = asarray(value, *args, **kwargs)
        assert array.size <= size
        return array

    return checked


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    standard(tmp_path / "tree", {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4), "scale": jnp.ones(4), "n": 3})
    target = {"kernel": jnp.ones((9, 4)), "bias": jnp.ones(4, jnp.float16), "scales": jnp.ones(4), "n": "3"}
    with pytest.raises(SerializationError) as caught:
        load_orbax(tmp_path / "tree", target)
    assert caught.value.where == f'"{tmp_path / "tree"}"'
    lines = [line.strip() for line in caught.value.what.splitlines()[1:]]
    assert [line.partition(":")[0] for line in lines] == ["scales", "scale", "kernel", "bias", "n"]
    assert lines[0].endswith("closest: scale")


def test_parts_are_restored_by_filter_cast_strict_and_transform(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    standard(path, {"a": jnp.full(2, 1.5), "b": {"c": jnp.ones(3), "d": [jnp.zeros(1)]}, "key": jax.random.key(1)})
    same(
        load_orbax(path, {"a": jnp.zeros(2), "b": jnp.zeros(9)}, filter="a"), {"a": jnp.full(2, 1.5), "b": jnp.zeros(9)}
    )
    found = load_orbax(path, {"a": jnp.zeros(2, jnp.bfloat16), "other": jnp.ones(1)}, strict=False, cast=True)
    same(found, {"a": jnp.full(2, 1.5, jnp.bfloat16), "other": jnp.ones(1)})
    target = {"a": jnp.zeros(2), "b": {"e": jnp.zeros(3)}, "key": jax.random.key(0)}
    renamed = load_orbax(path, target, transform=each_holding("c", lambda part: {"e": part["c"]}))
    same(renamed, {"a": jnp.full(2, 1.5), "b": {"e": jnp.ones(3)}, "key": jax.random.key(1)})
    assert load_orbax(path, transform=lambda state: sorted(state)) == ["a", "b", "key"]
    with pytest.raises(SerializationError, match=r"key: expected key<rbg>\[\], found"):
        load_orbax(path, {"key": jax.random.key(0, impl="rbg")}, filter="key")
    with pytest.raises(LiftArgumentError, match="`filter` needs a target"):
        load_orbax(path, filter="a")


# --- which folder -----------------------------------------------------------------------------------------------------


def test_a_step_of_a_manager_holds_the_item_default(tmp_path: Path) -> None:
    tree = {"w": jnp.ones(2), "n": 3}
    manager(tmp_path / "run", ocp.args.StandardSave(tree), (3, 10), best_fn=lambda _: 0.0)
    for folder in ("run/3", "run/3/default"):
        same(load_orbax(tmp_path / folder, blank(tree)), tree)
    with pytest.raises(SerializationError, match=r'holds steps: 3, 10\. Pass .*load_orbax\(".*run/10"\)'):
        load_orbax(tmp_path / "run")


def test_the_trees_of_a_step_are_named(tmp_path: Path) -> None:
    save = ocp.args.StandardSave
    items = ocp.args.Composite(
        params=save({"w": jnp.ones(2)}), opt=save({"m": jnp.zeros(2)}), extra=ocp.args.JsonSave({})
    )
    manager(tmp_path / "run", items)
    with pytest.raises(SerializationError, match=r'holds several trees: opt, params\. Pass .*run/3/opt"'):
        load_orbax(tmp_path / "run/3")
    np.testing.assert_array_equal(load_orbax(tmp_path / "run/3/params")["w"], np.ones(2))
    manager(tmp_path / "one", ocp.args.Composite(params=save({"w": jnp.ones(2)}), extra=ocp.args.JsonSave({"a": 1})))
    np.testing.assert_array_equal(load_orbax(tmp_path / "one/3")["w"], np.ones(2))


def test_steps_of_our_own_name_the_class_that_reads_them(tmp_path: Path) -> None:
    with OrbaxCheckpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(0, {"w": jnp.ones(2), "n": 3})
    for folder in ("run", "run/0"):
        with pytest.raises(SerializationError, match=r'Use `OrbaxCheckpoints\(".*run"\)\.restore\(target\)`'):
            load_orbax(tmp_path / folder)
    np.testing.assert_array_equal(load_orbax(tmp_path / "run/0/state")["w"], np.ones(2))


@pytest.mark.parametrize(
    "options", [{}, {"step_prefix": "ckpt", "step_format_fixed_length": 6}], ids=["plain", "named"]
)
def test_checkpoints_go_on_from_steps_that_a_manager_wrote(tmp_path: Path, options: Any) -> None:
    tree = {"w": jnp.ones(2), "key": jax.random.key(1), "n": 3}
    manager(tmp_path, ocp.args.StandardSave(tree), (3, 10), **options)
    with OrbaxCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 10
        same(checkpoints.restore(blank(tree)), tree)
        np.testing.assert_array_equal(checkpoints.restore(step=3)["w"], np.ones(2))
        half = checkpoints.restore({"w": jnp.zeros(2, jnp.bfloat16)}, filter="w", cast=True)
        assert half["w"].dtype == jnp.bfloat16
        with pytest.raises(SerializationError, match="v: missing"):
            checkpoints.restore({"v": jnp.zeros(2)}, filter="v")
        checkpoints.save(11, {**tree, "n": 4})
        checkpoints.wait()
        assert checkpoints.restore(blank(tree))["n"] == 4
        assert checkpoints.restore(blank(tree), step=10)["n"] == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flax, in favor of orbax
def test_a_training_state_that_flax_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("flax.training.checkpoints")
    params, tx = {"kernel": jnp.arange(6.0).reshape(2, 3)}, optax.adam(0.1)
    theirs = pytest.importorskip("flax.training.train_state").TrainState.create(apply_fn=len, params=params, tx=tx)
    theirs = theirs.apply_gradients(grads=params)
    path = checkpoints.save_checkpoint(tmp_path, theirs, step=5)
    found = load_orbax(path, TrainState.create(apply_fn=len, params={"kernel": jnp.zeros((2, 3))}, tx=tx))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


# --- folders that are broken ------------------------------------------------------------------------------------------


def test_what_is_no_checkpoint_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_orbax(tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"\x81")
    with pytest.raises(SerializationError, match=r"this is a file, .*checksums=False"):
        load_orbax(tmp_path / "file")
    (tmp_path / "other/inside").mkdir(parents=True)
    with pytest.raises(SerializationError, match=r"no complete tree of orbax .*folders in it: inside"):
        load_orbax(tmp_path / "other")


def _without(name: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for path in folder.rglob(name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _metadata(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / "_METADATA"
        path.write_text(change(json.loads(path.read_text())))

    return rewrite


def _tree(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return _metadata(lambda whole: json.dumps({**whole, "tree_metadata": change(whole["tree_metadata"])}))


DAMAGED: dict[str, Callable[[Path], None]] = {
    "no metadata": _without("_METADATA"),
    "no arrays": _without("d"),
    "no manifests": _without("manifest.ocdbt"),
    "cut off": _metadata(lambda whole: json.dumps(whole)[:-9]),
    "no JSON": _metadata(lambda whole: "\0"),
    "a list": _metadata(lambda whole: "[]"),
    "empty": _metadata(lambda whole: "{}"),
    "deep": _metadata(lambda whole: '{"tree_metadata":' + "[" * 100_000),
    "a number": _tree(lambda tree: 3),
    "leaves that are numbers": _tree(lambda tree: dict.fromkeys(tree, 3)),
    "no keys": _tree(lambda tree: {name: {**leaf, "key_metadata": []} for name, leaf in tree.items()}),
    "other names": _tree(
        lambda tree: {
            name: {**leaf, "key_metadata": [{"key": "../../tree/w", "key_type": 2}]} for name, leaf in tree.items()
        }
    ),
    "code for a type": _tree(
        lambda tree: {
            name: {**leaf, "value_metadata": {"value_type": "__import__('os').abort()", "skip_deserialize": False}}
            for name, leaf in tree.items()
        }
    ),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # threads of orbax
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # that stop halfway
@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("with_target", [False, True])
def test_damage_is_our_error(tmp_path: Path, name: str, with_target: bool) -> None:
    standard(tmp_path / "tree", {"w": jnp.ones(200), "v": jnp.ones((3, 3))})
    DAMAGED[name](tmp_path / "tree")
    target = {"w": jnp.zeros(200), "v": jnp.zeros((3, 3))} if with_target else None
    with pytest.raises(SerializationError) as caught:
        load_orbax(tmp_path / "tree", target)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["shape", "chunks"])
def test_arrays_that_no_memory_holds_are_an_error(tmp_path: Path, name: str) -> None:
    pytree(use_ocdbt=False)(tmp_path / "tree", {"w": jnp.ones(3)})
    path = tmp_path / "tree/w/.zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: [10**17], "fill_value": 0}))
    with pytest.raises(SerializationError, match=r'"w" has (10+ elements, which do not fit|3 .* pieces of 10+\.)'):
        load_orbax(tmp_path / "tree")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"liftcore\[orbax\]"):
        load_orbax(tmp_path)

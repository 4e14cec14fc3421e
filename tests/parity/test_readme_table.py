"""The table of the README: what its cells say about `flax.linen`, `flax.nnx`, Equinox and this library."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like
import nnx_like
from benchmarks.items.nesting import body_runs, lifted
from liftcore.filters import All, PathContains
from nnx_like.errors import StructureError

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
lift = pytest.importorskip("flax.core.lift")

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("liftcore", "flax.linen", "flax.nnx", "Equinox")
KEY, X = jax.random.key(0), jnp.ones(3)
DEPTH = 4
LIFTS: list[Callable[[Any], Callable[..., Any]]] = [lambda nn: nn.remat, lambda nn: nn.jit]


def needed_equinox() -> Any:
    return pytest.importorskip("equinox")


def table(path: Path) -> dict[str, str]:
    """Return the rows of a Markdown file by their first cells."""
    rows = re.findall(r"^\| +(\S.*?) +\|(.*)\|$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


README, LOG = table(ROOT / "README.md"), table(ROOT / "docs" / "performance-log.md")
HOME = table(ROOT / "docs" / "index.md")


def number(row: str, library: str) -> int:
    """Return the first number in a cell of the README."""
    return int(re.findall(r"\d+", README[row].split("|")[LIBRARIES.index(library)])[0])


# -- runs of a body under four nested scans ----------------------------------------------------------------------------


RUNS = "body runs in 4 nested scans"


@pytest.mark.parametrize(
    ("name", "library"), [("core", "liftcore"), ("linen_like", "liftcore"), ("flax", "flax.linen")]
)
def test_runs_of_a_body_under_four_scans(name: str, library: str) -> None:
    assert body_runs(lifted(name, "loops", DEPTH)) == (number(RUNS, library),) * 2


def nested(scan: Callable[..., Any], body: Callable[..., Any], depth: int = DEPTH) -> Callable[..., Any]:
    """Return `body` under scans that carry `x` and go over the first axes of the model."""
    return body if depth == 0 else lambda x, model: scan(nested(scan, body, depth - 1), x, model)


def test_runs_of_a_body_under_four_scans_of_nnx() -> None:
    class Cell(nnx.Module):
        def __init__(self, kernel: Any) -> None:
            self.kernel = nnx.Param(kernel)

    runs = []

    def body(x: Any, cell: Any) -> Any:
        runs.append(x)
        return jnp.tanh(x @ cell.kernel)

    def scan(body: Callable[..., Any], x: Any, cell: Any) -> Any:
        return nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, cell)

    nested(scan, body)(X, Cell(jnp.ones((2, 2, 2, 2, 3, 3))))
    assert len(runs) == number(RUNS, "flax.nnx")


def test_runs_of_a_body_under_four_scans_over_an_equinox_module() -> None:
    eqx = needed_equinox()

    class Cell(eqx.Module):  # type: ignore[misc, name-defined]
        kernel: Any

    runs = []

    def body(x: Any, cell: Any) -> Any:
        runs.append(x)
        return jnp.tanh(x @ cell.kernel)

    def scan(body: Callable[..., Any], x: Any, cell: Any) -> Any:
        return jax.lax.scan(lambda x, cell: (body(x, cell), None), x, cell)[0]

    nested(scan, body)(X, Cell(jnp.ones((2, 2, 2, 2, 3, 3))))
    assert len(runs) == number(RUNS, "Equinox")


# -- names and keys ----------------------------------------------------------------------------------------------------


def automatic_name(nn: Any, lifted: Callable[..., Any]) -> str:
    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lifted(nn.Dense)(2)(x)

    (name,) = Net().init(KEY, X)["params"]
    return str(name)


def test_automatic_names() -> None:
    assert [automatic_name(linen_like, of(linen_like)) for of in LIFTS] == ["Dense_0", "Dense_0"]
    assert [automatic_name(linen, of(linen)) for of in LIFTS] == ["CheckpointDense_0", "JitDense_0"]


def draws(nn: Any, lifted: Callable[..., Any]) -> list[float]:
    """Return a draw in a method that is lifted, and one after it."""

    class Net(nn.Module):  # type: ignore[misc]
        @lifted
        def inner(self) -> Any:
            return jax.random.normal(self.make_rng("params"))

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.inner(), jax.random.normal(self.make_rng("params"))

    return [float(draw) for draw in Net().init_with_output(KEY, X)[0]]


def unlifted(fn: Any) -> Any:
    return fn


def test_random_numbers_of_modules() -> None:
    ours, theirs = draws(linen_like, unlifted), draws(linen, unlifted)
    assert [draws(linen_like, of(linen_like)) == ours for of in LIFTS] == [True, True]
    assert [draws(linen, of(linen)) == theirs for of in LIFTS] == [True, False]


@pytest.mark.parametrize("nn", [nnx_like, nnx])
def test_random_numbers_of_objects(nn: Any) -> None:
    def masks(lifted: Callable[..., Any]) -> list[float]:
        dropout = nn.Dropout(0.5, rngs=nn.Rngs(0))
        call = lifted(lambda dropout, x: dropout(x))
        return [*call(dropout, jnp.ones(8)).tolist(), *call(dropout, jnp.ones(8)).tolist()]

    assert [masks(of(nn)) == masks(unlifted) for of in LIFTS] == [True, True]


# -- variables that a loop or a branch creates -------------------------------------------------------------------------


def created(nn: Any, body: Callable[[Any, Any, Any], Any]) -> list[str]:
    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return body(nn, self, x)

    return sorted(Net().init(KEY, X)["params"])


def while_loop(nn: Any, self: Any, x: Any) -> Any:
    def proceed(self: Any, value: Any) -> Any:
        return value[0] < 3

    def body(self: Any, value: Any) -> Any:
        return value[0] + 1, nn.Dense(3, name="a")(value[1])

    return nn.while_loop(proceed, body, self, (0, x), split_rngs={"params": False})


def branches(nn: Any, self: Any, x: Any) -> Any:
    return nn.cond(x.sum() > 0, *[lambda _, x, name=name: nn.Dense(3, name=name)(x) for name in "ab"], self, x)


def test_a_while_loop_creates_variables() -> None:
    assert created(linen_like, while_loop) == ["a"]
    with pytest.raises(linen.module.errors.ScopeCollectionNotFound):
        created(linen, while_loop)


def test_branches_create_different_variables() -> None:
    assert created(linen_like, branches) == ["a", "b"]
    with pytest.raises(TypeError, match="same pytree structure"):
        created(linen, branches)


def growing(nn: Any) -> Any:
    """Return an object that can get variables after its constructor."""

    class Growing(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.w = nn.Param(X)

        def add(self, name: str) -> Any:
            setattr(self, name, nn.Param(X))
            return self.w[...]

    return Growing()


@pytest.mark.parametrize("nn", [nnx_like, nnx])
def test_loops_and_branches_of_objects_do_not_create_variables(nn: Any) -> None:
    def body(value: Any) -> Any:
        value[0].add("a")
        return value[0], value[1] + 1

    with pytest.raises((StructureError, ValueError), match="structure"):
        nn.while_loop(lambda value: value[1] < 3, body, (growing(nn), 0))
    with pytest.raises((StructureError, TypeError), match="structure"):
        nn.cond(X.sum() > 0, lambda model: model.add("a"), lambda model: model.add("b"), growing(nn))


# -- transformations ---------------------------------------------------------------------------------------------------

TRANSFORMATIONS = (
    "associative_scan", "checkify", "cond", "custom_jvp", "custom_vjp", "custom_vmap", "eval_shape", "fori_loop",
    "grad", "hessian", "jacfwd", "jacrev", "jit", "jvp", "linearize", "map", "named_call", "pmap", "remat", "scan",
    "shard_map", "switch", "value_and_grad", "vjp", "vmap", "while_loop",
)  # fmt: skip
"""Transformations and control flow of JAX that change or repeat a function."""

LIFTED = f"lifted forms of {len(TRANSFORMATIONS)} [transformations](docs/transformations.md) of JAX"


def offered(package: Any, prefix: str = "") -> list[str]:
    return [name for name in TRANSFORMATIONS if hasattr(package, prefix + name)]


def test_lifted_transformations() -> None:
    assert len(offered(liftcore)) == number(LIFTED, "liftcore")
    assert len(offered(linen)) == number(LIFTED, "flax.linen")
    assert len(set(offered(nnx)) - {"map"}) == number(LIFTED, "flax.nnx")  # `nnx.map` changes the values of a state


def test_filtered_transformations_of_equinox() -> None:
    eqx = needed_equinox()
    assert len(offered(eqx, "filter_")) + hasattr(eqx, "filter_checkpoint") == number(LIFTED, "Equinox")


# -- one variable of a lift --------------------------------------------------------------------------------------------


shapes: dict[str, tuple[int, ...]] = {}


def doubled(scope: Any) -> Any:
    shapes.update({name: scope.get_variable("params", name).shape for name in "vw"})
    return 2 * scope.get_variable("params", "w")


MAPPED = {"w": (), "v": (3,)}
VARIABLES = {"params": {"w": X, "v": X}}


def test_a_lift_maps_one_variable() -> None:
    shapes.clear()
    axes = {All("params", PathContains("w")): 0, "params": None}
    liftcore.apply(liftcore.vmap(doubled, in_axes=0, axis_size=3, variable_axes=axes))(VARIABLES)
    assert shapes == MAPPED


def test_a_lift_of_linen_maps_collections() -> None:
    core = pytest.importorskip("flax.core")
    axes = {(lambda path, _: path == ("w",)): 0, "params": None}
    with pytest.raises(linen.module.errors.InvalidFilterError):
        core.apply(lift.vmap(doubled, axis_size=3, variable_axes=axes, split_rngs={}))(VARIABLES)


class Two(nnx.Module):
    def __init__(self) -> None:
        self.w, self.v = nnx.Param(X), nnx.Param(X)


def test_a_lift_of_nnx_maps_one_variable() -> None:
    seen = {}

    def body(model: Any) -> Any:
        seen.update({"w": model.w.shape, "v": model.v.shape})
        return model.w[...]

    axes = nnx.StateAxes({(lambda path, _: path == ("w",)): 0, ...: None})
    nnx.vmap(body, in_axes=(axes,))(Two())
    assert seen == MAPPED


def test_a_filtered_vmap_of_equinox_maps_one_array() -> None:
    eqx, seen = needed_equinox(), {}

    def body(model: Any) -> Any:
        seen.update({name: leaf.shape for name, leaf in model.items()})
        return model["w"]

    eqx.filter_vmap(body, in_axes=({"w": 0, "v": None},))({"w": X, "v": X})
    assert seen == MAPPED


# -- a transformation of one's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [liftcore.pack, lift.pack])
def test_pack_lifts_a_function_of_a_scope(pack: Callable[..., Any]) -> None:
    def transform(scope_fn: Any, repack_fn: Any, groups: Any, rngs: Any) -> Any:
        scope = scope_fn(jax.lax.stop_gradient(groups), rngs)
        return doubled(scope).sum(), repack_fn(scope)

    side = liftcore if pack is liftcore.pack else pytest.importorskip("flax.core")
    grads = jax.grad(side.apply(pack(transform, [True], [True], [True])))(VARIABLES)
    assert not grads["params"]["w"].any()


def test_nnx_and_equinox_take_models_apart_for_a_transformation_of_jax() -> None:
    eqx = needed_equinox()
    definition, state = nnx.split(Two())
    assert jax.jit(lambda state: nnx.merge(definition, state).w[...])(state).shape == (3,)
    arrays, rest = eqx.partition({"w": X, "name": "w"}, eqx.is_array)
    assert jax.jit(lambda arrays: eqx.combine(arrays, rest)["w"])(arrays).shape == (3,)


# -- figures -----------------------------------------------------------------------------------------------------------


FIGURES = {
    "trace `apply`, 24 blocks": "trace of apply, transformer of 24 blocks",
    "`apply` without `jit`, 50 layers": "apply without jit, MLP of 50 layers",
    "calling a compiled function that reads 1 of a model's 300 variables": (
        "call that reads one of 300 variables in 150 objects"
    ),
}
"""Rows with times, and the rows of the performance log that they are from."""


def test_figures_are_those_of_the_performance_log() -> None:
    shown = {row: re.findall(r"\d[\d.]* x", cells) for row, cells in README.items()}
    assert {row for row, figures in shown.items() if figures} == set(FIGURES)
    assert [(row, figure) for row in FIGURES for figure in shown[row] if figure not in LOG[FIGURES[row]]] == []


def test_the_home_page_has_the_same_cells() -> None:
    def cells(rows: dict[str, str]) -> set[str]:
        """The rows with a cell for each library, without links."""
        lines = [f"{row} | {rest}" for row, rest in rows.items() if rest.count("|") == len(LIBRARIES) - 1]
        return {re.sub(r"\[(.*?)\](\(.*?\)|\[.*?\])", r"\1", line) for line in lines}

    assert cells(HOME)
    assert cells(HOME) <= cells(README)


def test_limits_are_those_of_the_performance_log() -> None:
    def times(row: str) -> list[float]:
        return [float(figure) for figure in re.findall(r"([\d.]+) x", LOG[row])]

    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    scans = [times(f"trace of {entry}, 4 nested scans")[:2] for entry in ("apply", "init")]  # without flax
    assert f"four nested scans take {min(map(min, scans)):.1f} to {max(map(max, scans)):.1f} times as long" in text

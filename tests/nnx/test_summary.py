from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnx_like as nnx
from nnx_like.errors import StructureError
from nnx_like.summary.tabulation import CallInfo


class Scale(nnx.Module):
    def __init__(self, size: int) -> None:
        self.factor = nnx.Param(jnp.ones(size))
        self.calls = nnx.BatchStat(jnp.zeros((), int))
        self.pair = [nnx.Param(jnp.ones(2))]

    def __call__(self, x: jax.Array, times: int = 1) -> jax.Array:
        self.calls += 1
        return x * self.factor * times


class Model(nnx.Module):
    def __init__(self) -> None:
        self.scales = nnx.List([Scale(3), Scale(3)])
        self.again = self.scales[0]
        self.unused = Scale(5)
        self.rngs = nnx.Rngs(0)

    def __call__(self, x: jax.Array) -> Any:
        y = self.scales[0](x, times=2)
        return {"y": self.scales[1](y), "z": self.again(y)}

    @nnx.jit
    def rows(self, x: jax.Array) -> jax.Array:
        return nnx.vmap(lambda scale, row: scale(row), in_axes=(None, 0))(self.scales[1], x)


def rows(*args: Any, **kwargs: Any) -> list[CallInfo]:
    found: list[CallInfo] = []

    def keep(row: CallInfo) -> bool:
        found.append(row)
        return True

    nnx.tabulate(*args, row_filter=keep, **kwargs)
    return found


def plain(*args: Any, **kwargs: Any) -> str:
    return nnx.tabulate(*args, console_kwargs={"force_terminal": False, "width": 200}, **kwargs)


X = jax.ShapeDtypeStruct((4, 3), jnp.float32)


def test_each_object_that_is_called_has_a_row_of_its_first_call() -> None:
    model = Model()
    found = rows(model, X)
    assert [row.path for row in found] == [(), ("again",), ("scales", 1)]
    assert [row.type for row in found] == [Model, Scale, Scale]
    assert found[1].inputs_repr == "- float32[4,3]\ntimes: 2"
    assert (found[1].object_id, found[1].outputs.shape) == (id(model.again), (4, 3))
    assert found[0].outputs["z"].dtype == jnp.float32
    assert int(model.scales[0].calls.get_value()) == 0
    assert type(model) is Model


def test_the_table_shows_own_variables_and_sizes_of_all_below() -> None:
    table = plain(Model(), jnp.ones((4, 3)))
    assert table.splitlines()[1].strip() == "Model Summary"
    assert "BatchStat" in table
    assert "factor: float32[3]" in table
    assert "pair/0: float32[2]" in table
    assert "5 (20 B)" in table
    assert "Total Parameters: 22 (92 B)" in table


@pytest.mark.parametrize(("depth", "count"), [(0, 1), (1, 2), (2, 3), (None, 3)])
def test_depth_limits_rows(depth: int | None, count: int) -> None:
    assert len(rows(Model(), X, depth=depth)) == count


def test_calls_inside_of_jit_are_seen_each_time() -> None:
    model = Model()
    for _ in range(2):
        found = rows(model, X, method="rows")
        assert [row.path for row in found] == [("rows",), ("scales", 1)]
        assert found[1].inputs_repr == "float32[3]"


def test_costs_are_counted_alone() -> None:
    found = rows(Model(), X, compute_flops=True, compute_vjp_flops=True)
    assert [row.flops for row in found][1:] == [24, 12]
    assert all(row.vjp_flops > row.flops for row in found)
    assert "flops" in plain(Model(), X, compute_flops=True)


def test_what_cannot_be_run_alone_has_no_count() -> None:
    class Mean(nnx.Module):
        def __call__(self, x: jax.Array) -> jax.Array:
            return jax.lax.pmean(x, "i")

    class Outer(nnx.Module):
        def __init__(self) -> None:
            self.mean = Mean()

        def __call__(self, x: jax.Array) -> jax.Array:
            return jax.vmap(self.mean, axis_name="i")(x)

    found = rows(Outer(), X, compute_flops=True)
    assert [row.flops is None for row in found] == [False, True]
    assert "?" in plain(Outer(), X, compute_flops=True)


def test_objects_and_values_may_be_arguments() -> None:
    class Noise(nnx.Module):
        def __call__(self, x: jax.Array, rngs: Any, kind: str) -> jax.Array:
            return x + rngs.noise()[0] if kind == "raw" else x + jax.random.normal(rngs.noise())

    rngs = nnx.Rngs(0)
    (row,) = rows(Noise(), X, rngs, kind="normal", compute_flops=True)
    assert row.inputs_repr == "- float32[4,3]\n- Rngs\nkind: 'normal'"
    assert row.flops is not None
    assert int(rngs.default.count.get_value()) == 0


def test_random_streams_have_methods_but_no_rows() -> None:
    assert [row.path for row in rows(nnx.Rngs(0), method="params")] == [("params",)]


@pytest.mark.parametrize("obj", [[Scale(2)], nnx.State({})])
def test_what_has_no_such_method_is_an_error(obj: Any) -> None:
    with pytest.raises(StructureError, match="no method '__call__'"):
        nnx.tabulate(obj)


def test_without_rich_the_table_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else real(name))
    assert nnx.tabulate(Scale(3), X) == (
        "\n"
        "                               Scale Summary\n"
        "path  type   inputs        outputs       BatchStat       Param\n"
        "----  -----  ------------  ------------  --------------  ------------------\n"
        "      Scale  float32[4,3]  float32[4,3]  calls: int32[]  factor: float32[3]\n"
        "                                                         pair/0: float32[2]\n"
        "                                         1 (4 B)\n"
        "                                                         5 (20 B)\n"
        "----  -----  ------------  ------------  --------------  ------------------\n"
        "                           Total         1 (4 B)         5 (20 B)\n"
        "\n"
        "Total Parameters: 6 (24 B)\n"
    )

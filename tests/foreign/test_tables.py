"""Tables of models have rows for the parts of foreign models that they call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore import foreign

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
hk = pytest.importorskip("haiku")
equinox = pytest.importorskip("equinox")

KEY, X = jax.random.key(0), jnp.ones((2, 8))


class Old(linen.Module):  # type: ignore[misc, name-defined]
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(8)(linen.LayerNorm()(x))


OLD: dict[str, tuple[Any, dict[str, tuple[str, int]]]] = {
    "linen": (
        foreign.from_linen(Old()),
        {"old": ("Old", 0), "old/LayerNorm_0": ("LayerNorm", 16), "old/Dense_0": ("Dense", 72)},
    ),
    "haiku": (
        foreign.from_haiku(hk.transform(lambda x: hk.nets.MLP([4, 8])(x))),
        {"old/mlp": ("MLP", 0), "old/mlp/~/linear_0": ("Linear", 36), "old/mlp/~/linear_1": ("Linear", 40)},
    ),
    "nnx": (foreign.from_nnx(lambda rngs: nnx.Linear(8, 8, rngs=rngs)), {"old": ("Linear", 72)}),
    "equinox": (foreign.from_equinox(lambda key: equinox.nn.MLP(8, 8, 4, 1, key=key)), {"old": ("MLP", 76)}),
}


@pytest.mark.parametrize("library", OLD)
def test_the_parts_of_a_foreign_model_have_rows(library: str) -> None:
    run, expected = OLD[library]

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = run(self.scope.push("old"), x[0] if library == "equinox" else x)
            return nn.Dense(2)(x)

    summary = nn.summarize(Model(), KEY, compute_flops=True)(X)
    found = {"/".join(row.path): (type(row.module).__name__, row.sizes["params"].count) for row in summary.rows}
    assert found == {"": ("Model", 0), **expected, "Dense_0": ("Dense", 18)}
    assert summary.total.count == sum(count for _, count in found.values())
    assert summary.rows[-2].outputs.shape[-1] == 8
    assert summary.rows[-2].flops is None
    assert (summary.rows[0].flops or 0) > (summary.rows[-1].flops or 0) > 0
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves([row.module for row in summary.rows]))


def test_rows_inside_lifts_say_what_the_lifts_do() -> None:
    block = foreign.from_linen(linen.Dense(8))
    layers = liftcore.scan(
        liftcore.remat(lambda scope, x: (block(scope, x), None)),
        length=3,
        variable_axes={"params": 0},
        split_rngs={"params": True},
    )

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return layers(self.scope.push("layers"), x)[0]

    row = nn.summarize(Model(), KEY)(X).rows[-1]
    assert (row.path, type(row.module).__name__, row.outputs.shape) == (("layers",), "Dense", (2, 8))
    assert row.variables["params"]["kernel"].shape == (3, 8, 8)
    assert len(row.lifts) == 2

"""A sharded step of training communicates as much as one written by hand, and holds as much."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.collectives import collectives
from benchmarks.items.scale import STAGES, compiled_step
from benchmarks.models import sharded
from benchmarks.sides import PURE
from tests.machine import make_mesh

pytestmark = pytest.mark.devices(8)

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # of code, not of sharding


@functools.cache
def measured(side: str, axes: AxisType) -> dict[str, float]:
    return compiled_step(side, sharded.SMALL, 8, axes, **FAST)


@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit], ids=lambda axes: axes.name)
@pytest.mark.parametrize("side", sharded.SIDES[1:])
def test_a_step_sends_and_holds_what_one_by_hand_does(side, axes):
    ours, by_hand = (
        {name: value for name, value in measured(side, axes).items() if name not in STAGES} for side in (side, PURE)
    )
    beside = ours.pop("beside"), by_hand.pop("beside")
    if axes is AxisType.Explicit and jax.__version_info__ < (0, 9):  # it gathers the indices of the tokens once more
        by_hand |= {kind: pytest.approx(by_hand[kind], abs=1e-6) for kind in ("all-gather", "collective-permute")}
    assert ours == by_hand
    assert min(ours["all-gather"], ours["all-reduce"]) > 1e-4
    assert beside[0] <= 1.01 * beside[1]


def test_collectives_in_loops_count_for_each_iteration():
    mesh = make_mesh((8,), "x")
    sharding = NamedSharding(mesh, PartitionSpec(None, "x"))

    def total(rows):
        return jax.lax.scan(lambda carry, row: (carry + row.sum() * carry, None), 1.0, rows)[0]

    rows = jax.ShapeDtypeStruct((5, 16), np.float32, sharding=sharding)
    program = jax.jit(total, out_shardings=NamedSharding(mesh, PartitionSpec())).lower(rows).compile().as_text()
    assert collectives(program) == {"all-reduce": 5 * 4}


def test_the_size_is_that_of_seventy_billion_parameters():
    assert round(sharded.SEVENTY_BILLION.parameters / 1e9) == 69
    mesh = make_mesh((4, 2), "data", "model")
    with jax.set_mesh(mesh):
        for side in sharded.SIDES:
            params, _ = sharded.stepped(side, sharded.SMALL, mesh).state
            assert sum(leaf.size for leaf in jax.tree.leaves(params)) == sharded.SMALL.parameters
            assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params))

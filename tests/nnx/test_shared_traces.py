"""Equal blocks under `nnx.remat` share one trace, and never see what an earlier one read."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx

SCALE = 1.0
TABLE = {"scale": 1.0}
OUTER = nnx.Dict(w=nnx.Param(jnp.ones(())))
USER = sys.modules["user_settings"] = types.ModuleType("user_settings")
USER.scale = 1.0


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 1.0


class Box:
    scale = 1.0

    def read(self) -> float:
        return self.scale


BOX = Box()
READ, GET, WEAK = BOX.read, TABLE.get, weakref.ref(BOX)


def helper(x: Any) -> Any:
    return SCALE * x


def imported_inside(layer: Any, x: Any) -> Any:
    from user_settings import scale

    return scale * layer(x)


class Block(nnx.Module):
    scale = 1.0

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.seen = nnx.BatchStat(jnp.zeros(()))
        self.factor = 1.0
        self.act = jnp.tanh
        self.config = Config()

    def __call__(self, x: Any) -> Any:
        self.seen.value = self.seen.value + x.sum()
        return self.act(self.linear(x)) * self.factor * self.config.scale


def blocks(number: int = 5) -> list[Block]:
    return [Block(nnx.Rngs(seed)) for seed in range(number)]


def loss(layers: list[Any], x: Any, run: Callable[..., Any], between: Callable[[int], Any]) -> Any:
    for number, layer in enumerate(layers):
        between(number)
        x = run(layer, x)
    return x.sum()


def outcome(run: Callable[..., Any], between: Callable[[int], Any], make: Callable[[], Any] = blocks) -> Any:
    layers = make()
    value, grads = nnx.value_and_grad(functools.partial(loss, run=run, between=between))(layers, jnp.ones(3))
    between(0)
    held = value, nnx.to_pure_dict(nnx.state(layers)), jax.tree.leaves(grads)
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), held)


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def same_as_without(
    run: Callable[..., Any], between: Callable[[int], Any] = lambda number: None, make: Callable[[], Any] = blocks
) -> None:
    expected = outcome(run, between, make)
    for _ in range(2):  # the second time, nothing of the first is used
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5), outcome(nnx.remat(run), between, make), expected
        )


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 2), reason="there, each call is traced")
def test_equal_blocks_share_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    before, count = nnx.Linear.__call__, []
    monkeypatch.setattr(nnx.Linear, "__call__", lambda self, x: count.append(1) or before(self, x))
    outcome(nnx.remat(Block.__call__), lambda number: None)
    assert len(count) == 1
    outcome(nnx.remat(Block.__call__), lambda number: None)
    assert len(count) == 2, "a later call traces again"


def test_values_and_changes_are_those_of_each_block() -> None:
    same_as_without(Block.__call__)


def change(where: Any, name: str) -> Callable[[int], Any]:
    return lambda number: setattr(where, name, 1.0 + number)


def scale_globally(number: int) -> None:
    globals().update(SCALE=1.0 + number)


READS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "a global": (lambda layer, x: SCALE * layer(x), scale_globally),
    "a global of a function": (lambda layer, x: helper(layer(x)), scale_globally),
    "a dict": (lambda layer, x: TABLE["scale"] * layer(x), lambda number: TABLE.update(scale=1.0 + number)),
    "a module": (lambda layer, x: USER.scale * layer(x), change(USER, "scale")),
    "a module by name": (lambda layer, x: getattr(USER, "sca" + "le") * layer(x), change(USER, "scale")),
    "a module that is imported inside": (imported_inside, change(USER, "scale")),
    "globals by name": (lambda layer, x: globals()["SCALE"] * layer(x), scale_globally),
    "an object of Python": (lambda layer, x: BOX.scale * layer(x), change(BOX, "scale")),
    "a method": (lambda layer, x: READ() * layer(x), change(BOX, "scale")),
    "a method of a dict": (lambda layer, x: GET("scale") * layer(x), lambda number: TABLE.update(scale=1.0 + number)),
    "a weak reference": (lambda layer, x: WEAK().scale * layer(x), change(BOX, "scale")),
    "a class": (lambda layer, x: Box.scale * layer(x), change(Box, "scale")),
    "the class of the block": (lambda layer, x: layer.scale * layer(x), change(Block, "scale")),
    "an object that is not an argument": (
        lambda layer, x: OUTER.w * layer(x),
        lambda number: vars(OUTER).update(w=nnx.Param(1.0 + number)),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_what_a_body_reads_elsewhere_is_read_each_time(name: str) -> None:
    same_as_without(*READS[name])


def test_a_closure_is_read_each_time() -> None:
    scale, table = 1.0, [1.0]

    def between(number: int) -> None:
        nonlocal scale
        scale = table[0] = 1.0 + number

    same_as_without(lambda layer, x: scale * layer(x), between)
    same_as_without(lambda layer, x: table[0] * layer(x), between)


def test_an_array_of_the_outer_function_is_read_each_time() -> None:
    def loss(layers: list[Block], x: Any, change: Callable[..., Any]) -> Any:
        scale = x.sum()
        run = change(lambda layer, x: scale * layer(x))
        for layer in layers:
            x = run(layer, x)
            scale = scale + x.sum()
        return x.sum()

    found = [
        nnx.jit(functools.partial(loss, change=change))(blocks(), jnp.ones(3)) for change in (nnx.remat, lambda f: f)
    ]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_changed_attribute_is_read() -> None:
    def make() -> list[Block]:
        layers = blocks()
        layers[1].factor, layers[2].act, layers[3].config = 2.0, jnp.sin, Config(3.0)
        return layers

    same_as_without(Block.__call__, make=make)


def test_a_function_in_an_attribute_is_read_each_time() -> None:
    def make() -> list[Block]:
        layers = blocks()
        for layer in layers:
            layer.act = helper
        return layers

    same_as_without(Block.__call__, scale_globally, make)


def test_an_attribute_that_may_change_in_place_shares_nothing() -> None:
    shared = types.SimpleNamespace(value=1.0)

    def make() -> list[Block]:
        layers = blocks()
        for layer in layers:
            layer.config = shared
        return layers

    def run(layer: Block, x: Any) -> Any:
        return layer.linear(x) * layer.config.value

    same_as_without(run, lambda number: setattr(shared, "value", 1.0 + number), make)


class Random(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dropout, self.rngs = nnx.Dropout(0.5, rngs=rngs), rngs

    def __call__(self, x: Any) -> Any:
        self.sow(nnx.Intermediate, "x", x)
        return self.dropout(x) + self.rngs.noise.normal(x.shape)


def test_draws_and_stored_values_are_those_of_each_block() -> None:
    same_as_without(Random.__call__, make=lambda: [Random(nnx.Rngs(noise=seed, dropout=seed)) for seed in range(4)])


def test_blocks_that_share_a_stream_draw_in_turn() -> None:
    def make() -> list[Random]:
        rngs = nnx.Rngs(noise=0, dropout=1)
        return [Random(rngs) for _ in range(4)]

    same_as_without(Random.__call__, make=make)


def test_a_body_may_count_its_runs() -> None:
    count = 0

    def run(layer: Block, x: Any) -> Any:
        nonlocal count
        count += 1
        return layer(x) * count

    layers, x = blocks(3), jnp.ones(3)
    nnx.grad(functools.partial(loss, run=nnx.remat(run), between=lambda number: None))(layers, x)
    assert count == 3


def test_outside_of_a_trace_nothing_is_kept() -> None:
    run = nnx.remat(lambda layer, x: SCALE * layer(x))
    layer = blocks(1)[0]
    found = []
    for scale in (1.0, 2.0):
        globals().update(SCALE=scale)
        found.append(run(layer, jnp.ones(3)))
    globals().update(SCALE=1.0)
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-6)

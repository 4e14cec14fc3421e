"""Loops and branches outside `jit`: one compilation, however the functions are made, and nothing is kept."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
import nnx_like as nnx
from tests.lift.test_eager import COMPILED, compilations

KEY, X = jax.random.key(0), jnp.ones((3, 4))
SPLIT: dict[str, Any] = {"split_rngs": {"params": False, "dropout": True}}
SHARED: dict[str, Any] = {"variable_broadcast": "params", **SPLIT}


class Step(nn.Module):
    size: int = 4

    @nn.compact
    def __call__(self, x: Any, *_: Any) -> Any:
        y = nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(nn.relu(nn.Dense(self.size)(x)))
        self.sow("seen", "y", y.sum())
        return (y, y.sum()) if _ else y


class Quiet(nn.Module):
    """What runs in a loop of unknown length cannot sow."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.relu(nn.Dense(4)(x))


class Loop(nn.Module):
    """Runs one of the loops of this module; `by` is in closures."""

    kind: str
    by: float = 1.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return LOOPS[self.kind](self, x, jnp.float32(self.by))


def while_loop(mdl: Any, x: Any, by: Any) -> Any:
    step = Quiet(name="step")
    step(x)
    return nn.while_loop(lambda mdl, c: c[0] < 2, lambda mdl, c: (c[0] + 1, by * step(c[1])), mdl, (0, x))[1]


LOOPS: dict[str, Callable[..., Any]] = {
    "RNN": lambda mdl, x, by: nn.RNN(nn.GRUCell(4), name="rnn")(by * x),
    "Bidirectional": lambda mdl, x, by: nn.Bidirectional(nn.RNN(nn.SimpleCell(2)), nn.RNN(nn.SimpleCell(2)))(by * x),
    "scan of a class": lambda mdl, x, by: nn.scan(Step, length=2, **SHARED)()(by * x, None)[0],
    "scan of a closure": lambda mdl, x, by: nn.scan(
        lambda m, c, _: (by * Step(name="step")(c), None), length=2, **SHARED
    )(mdl, x, None)[0],
    "while_loop": while_loop,
    "fori_loop": lambda mdl, x, by: nn.fori_loop(
        0, 2, lambda m, i, c: by * Step(name="step")(c), mdl, x, split_rngs={"params": False, "dropout": True}
    ),
    "cond": lambda mdl, x, by: nn.cond(True, lambda m, c: by * Step(name="step")(c), lambda m, c: c, mdl, x),
    "switch": lambda mdl, x, by: nn.switch(1, [lambda m, c: c, lambda m, c: by * Step(name="step")(c)], mdl, x),
    "remat_scan": lambda mdl, x, by: nn.remat_scan(Step, lengths=(2,))()(by * x),
    "map_variables of scan": lambda mdl, x, by: nn.map_variables(
        nn.scan(Step, length=2, **SHARED), "params", lambda held: held, lambda held: held, init=True
    )()(by * x, None)[0],
    "vmap of scan": lambda mdl, x, by: nn.vmap(
        nn.scan(Step, length=2, **SHARED), variable_axes={"params": None}, in_axes=(0, None), **SPLIT
    )()(by * x[None], None)[0],
    "remat of scan": lambda mdl, x, by: nn.remat(nn.scan(Step, length=2, **SHARED))()(by * x, None)[0],
}


def rngs(number: int) -> dict[str, Any]:
    return {"dropout": jax.random.key(number)}


@pytest.mark.parametrize("kind", LOOPS)
def test_calls_outside_jit_compile_once(kind: str) -> None:
    model = Loop(kind)
    variables = model.init(KEY, X)
    bound = model.bind(variables)
    others = [2 * X, X + 1]
    calls: list[Callable[[Any], Any]] = [
        lambda x: model.init(KEY, x),
        lambda x: model.apply(variables, x),
        lambda x: bound(x),
        lambda x: Loop(kind, 3.0).apply(variables, x),
        lambda x: jax.vmap(functools.partial(model.apply, variables))(x[None]),
    ]
    if kind != "while_loop":
        calls.append(lambda x: model.apply(variables, x, rngs=rngs(1), mutable=["seen"]))
    for call in calls:
        call(X), call(X)
        COMPILED.clear()
        found = [call(x) for x in others]
        assert compilations() == 0
        expected = jax.jit(call)(others[1])
        for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_changed_field_is_seen() -> None:
    sizes = [
        nn.scan(Step, length=2, variable_axes={"params": 0}, split_rngs={"params": True})(4).init(KEY, X, None),
        nn.RNN(nn.GRUCell(5)).init(KEY, X),
        nn.RNN(nn.GRUCell(6)).init(KEY, X),
    ]
    assert [jax.tree.leaves(variables)[0].shape[-1] for variables in sizes] == [4, 5, 6]
    closures = [
        Loop("scan of a closure", by).apply(Loop("scan of a closure").init(KEY, X), X).sum() for by in (1.0, 2.0)
    ]
    assert closures[1] == 4 * closures[0]


def layer(size: int = 4) -> nnx.Linear:
    return nnx.Linear(4, size, rngs=nnx.Rngs(0))


RNN, BACK = (nnx.RNN(nnx.GRUCell(4, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0)) for _ in range(2))
OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "RNN": lambda dense, x: RNN(x),
    "Bidirectional": lambda dense, x: nnx.Bidirectional(RNN, BACK, rngs=nnx.Rngs(0))(x),
    "scan": lambda dense, x: nnx.scan(
        lambda dense, c, x: (dense(c) + x, None), in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0)
    )(dense, x[0], x)[0],
    "while_loop": lambda dense, x: nnx.while_loop(
        lambda state: state[0] < 2, lambda state: (state[0] + 1, state[1], state[1](state[2])), (0, dense, x)
    )[2],
    "fori_loop": lambda dense, x: nnx.fori_loop(0, 2, lambda i, state: (state[0], state[0](state[1])), (dense, x))[1],
    "cond": lambda dense, x: nnx.cond(True, lambda dense, x: dense(x), lambda dense, x: x, dense, x),
    "switch": lambda dense, x: nnx.switch(0, [lambda dense, x: dense(x), lambda dense, x: x], dense, x),
    "cond of a rule without graph": lambda dense, x: nnx.cond(
        True, lambda dense, x: nnx.relu(dense(x)), lambda dense, x: x, dense, x, graph=False
    ),
    "fori_loop of a rule under vmap": lambda dense, x: jax.vmap(
        lambda x: nnx.fori_loop(0, 2, lambda i, state: (state[0], nnx.relu(state[0](state[1]))), (dense, x))[1]
    )(x),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_too(name: str) -> None:
    dense, others = layer(), [2 * X, X + 1]
    OBJECTS[name](dense, X), OBJECTS[name](dense, X)
    COMPILED.clear()
    found = [OBJECTS[name](dense, x) for x in others]
    assert compilations() == 0
    if name not in ("RNN", "Bidirectional"):  # these draw their first carry
        with jax.disable_jit():
            np.testing.assert_allclose(found[1], OBJECTS[name](dense, others[1]), rtol=1e-5)


@pytest.mark.parametrize("kind", ["RNN", "while_loop", "cond"])
def test_fifty_calls_keep_nothing(kind: str) -> None:
    variables = Loop(kind).init(KEY, X)
    call = functools.partial(Loop(kind).apply, variables, X)
    for _ in range(3):
        call()
    gc.collect()
    objects, arrays = len(gc.get_objects()), len(jax.live_arrays())
    for _ in range(50):
        call()
    gc.collect()
    assert len(gc.get_objects()) - objects < 50
    assert len(jax.live_arrays()) == arrays

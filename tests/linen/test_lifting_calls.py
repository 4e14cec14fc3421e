"""The options of a lift are worked out once, and what runs is always the module that is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from liftcore.scopes.lifts import Lift

KEY, X = jax.random.key(0), jnp.ones((2, 3))
MAPPED: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
LIFTS: dict[str, Callable[[Any], Any]] = {
    "remat": nn.remat,
    "vmap": lambda cls: nn.vmap(cls, **MAPPED),
    "named_call": nn.named_call,
}


@dataclasses.dataclass(frozen=True)
class Config:
    size: int
    note: Callable[[Any], None] = dataclasses.field(compare=False)


class Noted(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self.config.note(self.name)
        return nn.Dense(self.config.size)(x)


class Scaled(nn.Module):
    by: Any = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.by * nn.Dense(2)(x)


@pytest.mark.parametrize("lift", LIFTS)
def test_what_an_equal_field_does_is_that_of_the_module_called(lift: str) -> None:
    cls, seen = LIFTS[lift](Noted), []

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for number in range(3):
                x = cls(Config(2, lambda _, number=number: seen.append(number)), name=f"noted_{number}")(x)
            return x

    Model().init(KEY, X)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("other", [2, 1.0, True, (1,), [1], jnp.ones(())])
def test_other_fields_are_those_of_the_module_called(lift: str, other: Any) -> None:
    seen = []

    class Seeing(Scaled):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            seen.append(self.by)
            return x

    cls = LIFTS[lift](Seeing)
    for by in (1, other, 1):
        cls(by).apply({"params": {}}, X)
    assert [type(value) for value in seen] == [int, tuple if isinstance(other, list) else type(other), int]
    assert all(one is value or one == tuple(value) for one, value in zip(seen, (1, other, 1), strict=True))


@pytest.mark.parametrize("lift", ["remat", "vmap", "jit"])
def test_the_options_of_a_lift_are_worked_out_once(lift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any) -> Lift:
        made.append(args)
        return known(*args)

    known = Lift.of
    monkeypatch.setattr(Lift, "of", counted)
    block = {**LIFTS, "jit": nn.jit}[lift](type("Block", (Scaled,), {"__module__": __name__}))
    assert len(made) == 1

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for number in range(4):
                x = block(name=f"block_{number}")(x)
            return x

    variables = Model().init(KEY, X)
    Model().apply(variables, X)
    assert len(made) == 1

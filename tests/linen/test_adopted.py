"""Parts of other styles, adopted by a module, under the lifts of modules: as arguments, in fields and in closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax

KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)


class Sum(nnx.Module):
    def __init__(self) -> None:
        self.w, self.seen = nnx.Param(jnp.full(3, 2.0)), nnx.BatchStat(jnp.zeros(3))

    def __call__(self, x: Any) -> Any:
        self.seen += x.sum(0)
        return x * self.w

    def again(self, x: Any) -> Any:
        return self(x)


class SumWithKinds(pax.Module):
    def __init__(self) -> None:
        self.register_parameter("w", jnp.full(3, 2.0))
        self.register_state("seen", jnp.zeros(3))

    def __call__(self, x: Any) -> Any:
        self.seen = self.seen + x.sum(0)
        return x * self.w


class Scale(eqx.Module):
    w: Any

    def __call__(self, x: Any) -> Any:
        return x * self.w


ADOPTED: dict[str, Callable[[liftcore.Scope], Any]] = {
    "object": lambda scope: nnx.bridge.adopt(scope, lambda rngs: Sum()),
    "part of an object": lambda scope: nnx.bridge.adopt(scope, lambda rngs: nnx.Dict(parts=nnx.List([Sum()]))).parts[0],
    "method of an object": lambda scope: nnx.bridge.adopt(scope, lambda rngs: Sum()).again,
    "with kinds": lambda scope: pax.adopt(scope, SumWithKinds()),
    "pytree": lambda scope: eqx.adopt(scope, lambda key: Scale(jnp.full(3, 2.0))),
}
REST = nn.DenyList("params")
ALL: dict[str, Any] = {"variable_axes": {True: None}, "split_rngs": {"params": False}}
LOOP: dict[str, Any] = {"variable_broadcast": "params", "variable_carry": REST, "split_rngs": {"params": False}}


def called(module: Any, part: Any, x: Any) -> Any:
    return part(x)


def looped(module: Any, part: Any, x: Any) -> Any:
    def step(module: Any, x: Any, _: Any, part: Any) -> Any:
        return part(x), None

    return nn.scan(step, length=1, in_axes=(nn.broadcast, nn.broadcast), **LOOP)(module, x, None, part)[0]


AS_ARGUMENT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "remat": nn.remat(called),
    "jit": nn.jit(called),
    "vmap": lambda *args: nn.vmap(called, in_axes=None, axis_size=2, **ALL)(*args)[0],
    "scan": looped,
    "while_loop": lambda module, part, x: nn.while_loop(
        lambda module, state: state[0] < 1,
        lambda module, state: (state[0] + 1, part(state[1])),  # in the closure
        module,
        (0, x),
        carry_variables=REST,
    )[1],
    "vjp": lambda module, part, x: nn.vjp(called, module, part, x)[0],
    "map_variables": nn.map_variables(called, "other", init=True),
    "add_metadata_axis": nn.add_metadata_axis(called, variable_axes={"params": 0}),
    "cond": lambda module, part, x: nn.cond(True, called, lambda *args: X, module, part, x),
    "switch": lambda module, part, x: nn.switch(1, [lambda *args: X, called], module, part, x),
    "filter_checkpoint": lambda module, part, x: eqx.filter_checkpoint(lambda part, x: part(x))(part, x),
    "filter_jit": lambda module, part, x: eqx.filter_jit(lambda part, x: part(x))(part, x),
}


class Part(nn.Module):
    part: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.part(x)


class Step(Part):
    def __call__(self, x: Any, _: Any) -> Any:
        return self.part(x), None


AS_FIELD: dict[str, Callable[[Any, Any], Any]] = {
    "remat": lambda part, x: nn.remat(Part)(part)(x),
    "jit": lambda part, x: nn.jit(Part)(part)(x),
    "vmap": lambda part, x: nn.vmap(Part, in_axes=None, axis_size=2, **ALL)(part)(x)[0],
    "scan": lambda part, x: nn.scan(Step, length=1, **LOOP)(part)(x, None)[0],
    "map_variables": lambda part, x: nn.map_variables(Part, "other", init=True)(part)(x),
    "cond": lambda part, x: nn.cond(True, lambda module, x: module(x), lambda module, x: X, Part(part), x),
}


def outcome(use: Callable[[Any, Any, Any], Any], adopt: Callable[[Any], Any]) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return use(self, adopt(self.scope.push("part")), x)

    y, variables = Model().init_with_output(KEY, X)
    return y, variables, Model().apply(variables, X, mutable=REST)


@pytest.mark.parametrize("where", [*AS_ARGUMENT, *[f"{name} of a field" for name in AS_FIELD]])
@pytest.mark.parametrize("style", ADOPTED)
@pytest.mark.filterwarnings("ignore:.*cannot be compared by its contents")  # a pytree holds arrays
def test_an_adopted_part_means_the_same_under_a_lift(style: str, where: str) -> None:
    field = AS_FIELD.get(where.removesuffix(" of a field")) if " of a field" in where else None
    use = AS_ARGUMENT[where] if field is None else lambda module, part, x: field(part, x)
    found, plain = outcome(use, ADOPTED[style]), outcome(called, ADOPTED[style])
    jax.tree.map(np.testing.assert_allclose, found, plain)

"""`jit`: what a call costs that is compiled already, and what is compiled again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import liftcore

from ..counts import Counted
from ..measure import seconds
from ..models import core, linen, pure
from ..row import Row
from ..settings import Settings
from ..sides import PURE, linen_of

__all__ = ["compiled", "recompiles"]

_LAYERS = 150  # of two leaves each
_CALLS = 5


def compiled(settings: Settings) -> Iterator[Row]:
    """The call of a compiled function with 300 leaves: of a lifted `jit`, and of `jax.jit(model.apply)`."""
    params, x = pure.init_wide(_LAYERS), jnp.ones(4)
    variables = {"params": params}
    by_hand = jax.jit(pure.wide)
    wide = liftcore.jit(lambda scope, x: core.wide(scope, x, _LAYERS))
    lifted = {"core": liftcore.apply(wide)}
    held = {"core": jax.jit(liftcore.apply(lambda scope, x: core.wide(scope, x, _LAYERS)))}
    for name in settings.linens:
        nn = linen_of(name)
        cls = linen.lifted(nn).Wide
        lifted[name], held[name] = nn.jit(cls)(_LAYERS).apply, jax.jit(cls(_LAYERS).apply)
    for what, fns, targets in (
        ("call of a lifted jit, 300 leaves", lifted, {"core": 1.10, "linen_like": 1.30}),
        ("call of jax.jit(apply), 300 leaves", held, {"core": 1.02, "linen_like": 1.02}),
    ):
        sides: dict[str, Callable[[], Any]] = {PURE: functools.partial(_finished, by_hand, params, x)}
        for name, fn in fns.items():
            sides[name] = functools.partial(_finished, fn, variables, x)
        yield Row("jit", what, "s", seconds(sides, settings.rounds), targets)


def _finished(fn: Callable[..., Any], *args: Any) -> Any:
    return jax.block_until_ready(fn(*args))


def recompiles(settings: Settings) -> Iterator[Row]:
    """How often a body runs again in five calls that could share one program."""
    found: dict[str, dict[str, float]] = {}
    for name in settings.linens:
        for what, call in ways(linen_of(name)).items():
            found.setdefault(what, {})[name] = float(again(call)[1])
    for what, values in found.items():
        yield Row("recompiles", f"recompiles, {what}", "runs", values, {"linen_like": 0.0}, is_count=True)


def ways(nn: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Call with a new instance of a module each time."""
    cell = linen.new_lifted(nn).Cell
    jitted, held = nn.jit(cell), cell()
    return {
        "a new equal instance of nn.jit(Net)": lambda variables, x: jitted().apply(variables, x),
        "nn.jit(Net) applied again": lambda variables, x: nn.jit(cell)().apply(variables, x),
        "jax.jit(net.apply) of the same instance": lambda variables, x: jax.jit(held.apply)(variables, x),
    }


def again(call: Callable[[Any, Any], Any]) -> tuple[int, int]:
    """How often the body runs in the first call, and in several more."""
    variables, x = {"params": {"kernel": jnp.ones((pure.WIDTH, pure.WIDTH))}}, jnp.ones((8, pure.WIDTH))
    with mock.patch.object(pure, "cell", Counted(pure.cell)) as cell:
        call(variables, x)
        first = cell.runs
        for _ in range(_CALLS):
            call(variables, x)
        return first, cell.runs - first

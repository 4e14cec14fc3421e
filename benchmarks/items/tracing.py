"""Plain models: what it costs to trace, to initialize and to run them without `jit`, and how that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..measure import seconds
from ..models.pure import WIDTH
from ..row import Row
from ..settings import Settings
from ..sides import side

__all__ = ["eager", "growth", "init", "trace"]

_MODELS = {
    "mlp": ("MLP of 50 layers", 50, {"core": 1.10, "linen_like": 1.20}),
    "transformer": ("transformer of 24 blocks", 24, {"core": 1.08, "linen_like": 1.15}),
}


def traced(fn: Callable[..., Any], *args: Any) -> Callable[[], object]:
    """A function that traces another one, as if it were new each time: JAX would find an old one again."""
    return lambda: jax.make_jaxpr(lambda *args: fn(*args))(*args)


def trace(settings: Settings) -> Iterator[Row]:
    """The trace of apply."""
    for model, (what, layers, targets) in _MODELS.items():
        yield Row("trace", f"trace of apply, {what}", "s", _applied(settings, model, layers, traced), targets)


def init(settings: Settings) -> Iterator[Row]:
    """The trace of init and forward."""
    what, layers, _ = _MODELS["transformer"]
    x = jnp.ones((8, WIDTH))
    sides = {name: traced(side(name, "transformer", layers).init, jax.random.key(0), x) for name in settings.sides}
    targets = {"core": 1.12, "linen_like": 1.20}
    yield Row("init", f"trace of init and forward, {what}", "s", seconds(sides, settings.rounds), targets)


def eager(settings: Settings) -> Iterator[Row]:
    """Apply without `jit`."""
    what, layers, _ = _MODELS["mlp"]
    values = _applied(settings, "mlp", layers, lambda fn, *args: lambda: jax.block_until_ready(fn(*args)))
    yield Row("eager", f"apply without jit, {what}", "s", values, {"core": 1.15, "linen_like": 1.3})


def growth(settings: Settings) -> Iterator[Row]:
    """The exponent of the time of a trace in the number of layers."""
    sizes = (12, 24, 48, 96)
    times = [_applied(settings, "transformer", layers, traced) for layers in sizes]
    slopes = {
        name: float(np.polyfit(np.log(sizes), np.log([found[name] for found in times]), 1)[0]) for name in times[0]
    }
    targets = {"core": 1.02, "linen_like": 1.02}
    yield Row("growth", "trace of apply, exponent in 12 to 96 blocks", "exponent", slopes, targets)


def _applied(settings: Settings, model: str, layers: int, how: Callable[..., Callable[[], object]]) -> dict[str, float]:
    """What it takes to apply a model, each side with variables of its own."""
    x = jnp.ones((8, WIDTH))
    variables = {name: side(name, model, layers).init(jax.random.key(0), x)[1] for name in settings.sides}
    sides = {name: how(side(name, model, layers).apply, found, x) for name, found in variables.items()}
    return seconds(sides, settings.rounds)

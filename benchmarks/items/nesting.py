"""Transformations in transformations: how often a body runs, and what a trace costs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import liftcore

from ..counts import Counted
from ..measure import first_seconds
from ..models import core, linen, pure
from ..row import Row
from ..settings import Settings
from ..sides import PURE, Side, linen_of
from .tracing import traced

__all__ = ["body_runs", "levels", "lifted", "nest", "nested", "nested_scans", "runs"]

_DEPTH = 4


def runs(settings: Settings) -> Iterator[Row]:
    """How often the body of nested scans and of `remat_scan` runs."""
    for model in ("loops", "remat_loops"):
        for depth in (1, 2, 3, 4):
            found = {name: body_runs(lifted(name, model, depth)) for name in ("core", *settings.linens)}
            for number, entry in enumerate(("init", "apply")):
                values = {name: counts[number] for name, counts in found.items()}
                what = f"body runs of {entry}, {model}, depth {depth}"
                yield Row("runs", what, "runs", values, {"core": 1.0, "linen_like": 1.0}, is_count=True)


def nested_scans(settings: Settings) -> Iterator[Row]:
    """The trace of four scans, one in the other, of a new model each time."""
    names = (PURE, "core", *settings.linens)
    targets = {"core": 2.0, "linen_like": 2.0}
    for entry in ("apply", "init"):
        makers = {name: functools.partial(_loops, name, entry) for name in names}
        what = f"trace of {entry}, {_DEPTH} nested scans"
        yield Row("nested_scans", what, "s", first_seconds(makers, settings.rounds), targets)


def nested(settings: Settings) -> Iterator[Row]:
    """The trace of apply of one transformation in itself, of a new model each time."""
    for transformation in ("vmap", "remat", "jit"):
        for depth in (1, 2, 3, 4):
            what = f"trace of apply, {transformation} nested {depth} times"
            values = _nested(settings, transformation, depth)
            yield Row("nested", what, "s", values, {"core": 1.6, "linen_like": 2.0})


def levels(settings: Settings) -> Iterator[Row]:
    """What a level of nested transformations costs deep down, over what it costs near the top."""
    few, some, many = (_nested(settings, "vmap", depth) for depth in (2, 8, 32))
    values = {name: ((many[name] - some[name]) / 24) / ((some[name] - few[name]) / 6) for name in few}
    target = round(1.05 * values[PURE], 2)  # what pure JAX grows by itself, and a twentieth
    yield Row(
        "levels",
        "a level of nested vmaps at depths 8 to 32, relative to depths 2 to 8",
        "times",
        values,
        {"core": target, "linen_like": target},
    )


def _nested(settings: Settings, transformation: str, depth: int) -> dict[str, float]:
    kernel, x = jnp.ones((pure.WIDTH, pure.WIDTH)), jnp.ones((8, pure.WIDTH))

    def make(name: str) -> Callable[[], object]:
        if name == PURE:
            return traced(pure.nest(transformation, depth), kernel, x)
        return traced(nest(name, transformation, depth).apply, {"params": {"kernel": kernel}}, x)

    makers = {name: functools.partial(make, name) for name in (PURE, "core", *settings.linens)}
    return first_seconds(makers, settings.rounds)


def _init_by_hand(key: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
    kernels = pure.init_loops(key, _DEPTH)
    return pure.loops(kernels, x, _DEPTH), kernels


def _loops(name: str, entry: str) -> Callable[[], object]:
    """The function that traces one entry of nested loops, new ones each time."""
    key, x = jax.random.key(0), jnp.ones((8, pure.WIDTH))
    kernels = pure.init_loops(key, _DEPTH)
    if name == PURE:
        side = Side(_init_by_hand, lambda kernels, x: pure.loops(kernels, x, _DEPTH))
        return traced(side.init, key, x) if entry == "init" else traced(side.apply, kernels, x)
    side = lifted(name, "loops", _DEPTH)
    return traced(side.init, key, x) if entry == "init" else traced(side.apply, {"params": {"kernel": kernels}}, x)


def nest(name: str, transformation: str, depth: int) -> Side:
    """One transformation in itself, of one side, of new functions or classes."""
    return _of(name, lambda models: models.nest(transformation, depth))


def lifted(name: str, model: str, depth: int) -> Side:
    """Nested loops of one side, of new functions or classes."""
    return _of(name, lambda models: getattr(models, model)(depth))


def _of(name: str, make: Callable[[Any], Any]) -> Side:
    """A model of one side; `make` takes it from the models of that side."""
    if name == "core":
        body = make(core)
        return Side(liftcore.init(body), liftcore.apply(body))
    module = make(linen.new_lifted(linen_of(name)))
    return Side(module.init_with_output, module.apply)


def body_runs(side: Side) -> tuple[int, int]:
    """How often the body runs in init, and in apply."""
    with mock.patch.object(pure, "cell", Counted(pure.cell)) as cell:
        variables = side.init(jax.random.key(0), jnp.ones((8, pure.WIDTH)))[1]
        first, cell.runs = cell.runs, 0
        side.apply(variables, jnp.ones((8, pure.WIDTH)))
        return first, cell.runs

"""Objects: an eager call of a compiled function of many variables, and the trace of a step of training."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ..measure import first_seconds, seconds
from ..models import objects, pure
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["called", "called_on", "calls", "stepped", "traced"]

_OURS = "nnx_like"
_PAIRS, _LAYERS = 150, 24

_CALLS = {"reads one": 3.0, "writes all": 1.6}
_STEPS = {"plain": 1.05, "jit": 1.6, "remat": 1.6, "remat of jit": 1.6, "scan": 1.15, "scan of remat": 1.15}
"""What is measured, with the most that it may take, over pure JAX."""


def called(settings: Settings) -> Iterator[Row]:
    """Eager calls that are compiled already."""
    sides = {name: calls(name) for name in _names(settings)}
    for what, target in _CALLS.items():
        found = seconds({name: ways[what] for name, ways in sides.items()}, settings.rounds)
        title = f"call that {what} of {2 * _PAIRS} variables in {_PAIRS} objects"
        yield Row("objects", title, "s", found, {_OURS: target})


def stepped(settings: Settings) -> Iterator[Row]:
    """Traces of a step of training: value and gradient of a loss, and new parameters."""
    for what, target in _STEPS.items():
        makers = {name: functools.partial(traced, name, what) for name in _names(settings)}
        found = first_seconds(makers, settings.rounds)
        title = f"trace of a training step, transformer of {_LAYERS} blocks"
        targets = {} if target is None else {_OURS: target}
        yield Row("steps", title if what == "plain" else f"{title}, {what}", "s", found, targets)


def _names(settings: Settings) -> tuple[str, ...]:
    return (PURE, _OURS, *(peer for peer in settings.peers if peer == "flax"))


def _nnx(name: str) -> Any:
    """The package with the API of NNX of one side."""
    return importlib.import_module("flax.nnx" if name == "flax" else name)


def calls(name: str) -> dict[str, Callable[[], Any]]:
    """Eager calls of one side, of functions that read one variable, or write all."""
    if name == PURE:
        arrays = {str(number): jnp.ones(2) for number in range(2 * _PAIRS)}
        first = jax.jit(lambda arrays: arrays["0"])
        more = jax.jit(lambda arrays: {key: array + 1 for key, array in arrays.items()})
        return {"reads one": lambda: first(arrays), "writes all": lambda: more(arrays)}
    nnx = _nnx(name)
    return called_on(nnx, objects.models(nnx).Wide(_PAIRS))


def called_on(nnx: Any, model: Any) -> dict[str, Callable[[], Any]]:
    """The same of a package with the API of NNX, on a model whose `layers` are pairs of variables."""
    first, more = nnx.jit(_first), nnx.jit(_more)
    return {"reads one": lambda: first(model), "writes all": lambda: more(model)}


def traced(name: str, way: str) -> Callable[[], object]:
    """What traces a step of training of one side; all its functions are new.

    Args:
        name: the side.
        way: how the blocks run one after the other, see `pure.new_step`.
    """
    model, x = _model(name, way.startswith("scan")), jnp.ones((8, pure.WIDTH))
    if name == PURE:
        return functools.partial(jax.eval_shape, pure.new_step(way), model, x)
    nnx = _nnx(name)
    return functools.partial(nnx.eval_shape, objects.new_step(nnx, way), model, x)


@functools.cache
def _model(name: str, stacked: bool) -> Any:
    """The parameters of all blocks, or the objects."""
    if name != PURE:
        return (objects.stacked if stacked else objects.transformer)(_nnx(name), _LAYERS)
    key = jax.random.key(0)
    return (pure.init_stack if stacked else pure.init_transformer)(key, _LAYERS)


def _first(model: Any) -> Any:
    return model.layers[0].scale[...]


def _more(model: Any) -> None:
    for layer in model.layers:
        layer.scale[...] = layer.scale[...] + 1
        layer.bias[...] = layer.bias[...] + 1

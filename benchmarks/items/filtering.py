"""Filtered transformations beside Equinox: the time of a call, and of a trace, over what Equinox takes for it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ..measure import seconds
from ..row import Row
from ..settings import Settings

__all__ = ["filtering", "ways"]

_ARRAYS = 300
_OURS = "equinox_like"


def filtering(settings: Settings) -> Iterator[Row]:
    """Eager calls of `filter_jit`, and traces of `filter_grad` and `filter_vmap`."""
    if "equinox" not in settings.peers:
        return
    ours, others = (ways(importlib.import_module(name)) for name in (_OURS, "equinox"))
    for what, target in (
        (f"call of filter_jit, {_ARRAYS} arrays", 1.10),
        ("call of filter_jit, one array", 1.50),
        (f"trace of filter_grad, {_ARRAYS} arrays", 1.10),
        (f"trace of filter_vmap, {_ARRAYS} arrays", 1.10),
    ):
        # Under another name than that of a peer: both run in the same rounds, in turns.
        found = seconds({_OURS: ours[what], "by Equinox": others[what]}, settings.rounds)
        ratio = found[_OURS] / found["by Equinox"]
        yield Row("filtered", f"{what}, relative to Equinox", "x", {_OURS: ratio}, {_OURS: target})


def ways(eqx: Any) -> dict[str, Callable[[], Any]]:
    """What is measured of a package: this one, or Equinox."""
    many = {f"w{number}": jnp.ones(2) for number in range(_ARRAYS)}
    model: dict[str, Any] = {"layers": many, "act": jnp.tanh, "name": "net"}
    x = jnp.ones(2)
    run, run_one = eqx.filter_jit(_first), eqx.filter_jit(_scaled)
    grad, mapped = eqx.filter_grad(_loss), eqx.filter_vmap(_first)
    return {
        f"call of filter_jit, {_ARRAYS} arrays": functools.partial(run, model, x),
        "call of filter_jit, one array": functools.partial(run_one, x),
        f"trace of filter_grad, {_ARRAYS} arrays": lambda: _traced(grad, many, model, x),
        f"trace of filter_vmap, {_ARRAYS} arrays": lambda: _traced(mapped, many, model, x),
    }


def _traced(fn: Callable[..., Any], many: Any, model: Any, x: Any) -> Any:
    """The trace of a function of a model, the arrays of which are `many`."""
    return jax.make_jaxpr(lambda many: jax.tree.leaves(fn({**model, "layers": many}, x))[0])(many)


def _first(model: Any, x: Any) -> Any:
    return model["act"](model["layers"]["w0"] * x)


def _scaled(x: Any) -> Any:
    return 2 * x


def _loss(model: Any, x: Any) -> Any:
    for w in model["layers"].values():
        x = x * w
    return jnp.sum(model["act"](x))

"""A lift of a scope with many variables, of which the body reads one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import liftcore

from ..measure import seconds
from ..models import core, linen
from ..row import Row
from ..settings import Settings
from ..sides import PURE, linen_of
from .tracing import traced

__all__ = ["selecting"]

_AXES: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {}}


def selecting(settings: Settings) -> Iterator[Row]:
    """`vmap` over 10, 100 and 1000 variables."""
    for size in (10, 100, 1000):
        params = {f"w{i}": jnp.ones((5, 3)) for i in range(size)}
        variables, x = {"params": params}, jnp.ones((5, 3))
        sides = {
            PURE: traced(jax.vmap(lambda params, x: params["w0"] * x), params, x),
            "core": traced(liftcore.apply(liftcore.vmap(core.first_of_many, **_AXES)), variables, x),
        }
        for name in settings.linens:
            nn = linen_of(name)
            sides[name] = traced(nn.vmap(linen.lifted(nn).FirstOfMany, **_AXES)().apply, variables, x)
        targets = {"core": 1.10, "linen_like": 1.10} if size == 1000 else {}
        yield Row("select", f"vmap over {size} variables", "s", seconds(sides, settings.rounds), targets)

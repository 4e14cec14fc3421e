"""A loop over equal blocks: the program that is compiled, and what it costs to get there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import liftcore

from ..counts import equations, program
from ..measure import first_seconds
from ..models import core, linen, pure
from ..row import Row
from ..settings import Settings
from ..sides import PURE, Side, linen_of

__all__ = ["differing", "losses", "scanned", "stack", "stacks"]

_LAYERS = 24
_PROGRAMS = (("forward", False, False), ("gradient", False, True), ("gradient, remat", True, True))


def scanned(settings: Settings) -> Iterator[Row]:
    """The lines of compiled programs that differ, the equations of init, the time to trace and to lower."""
    names = settings.linens
    for what, remat, gradient in _PROGRAMS:
        values = {name: float(count) for name, count in differing(names, remat, gradient).items()}
        targets = {"core": 0.0, "linen_like": 0.0}
        title = f"operations that differ from pure JAX, scan of {_LAYERS} blocks, {what}"
        yield Row("scan", title, "operations", values, targets, is_count=True)
    key, x = jax.random.key(0), jnp.ones((8, pure.WIDTH))
    counts = {name: float(equations(init, key, x)) for name, (init, _) in stacks(names, False).items()}
    limit = round(1.05 * counts[PURE])
    yield Row("scan", "equations of init", "equations", counts, {"core": limit, "linen_like": limit}, is_count=True)
    variables = {"params": pure.init_stack(key, _LAYERS)}

    def make(name: str) -> Callable[[], object]:
        return _lowered(stack(name, False)[1], variables, x)

    makers = {name: functools.partial(make, name) for name in (PURE, "core", *names)}
    targets = {"core": 1.15, "linen_like": 1.15}
    what = f"trace and lower, scan of {_LAYERS} blocks"
    yield Row("scan", what, "s", first_seconds(makers, settings.rounds), targets)


def stacks(linens: tuple[str, ...], remat: bool) -> dict[str, Side]:
    """The loop of each side, all on the same variables."""
    return {name: stack(name, remat) for name in (PURE, "core", *linens)}


def stack(name: str, remat: bool) -> Side:
    """The loop of one side, of new functions or classes."""
    if name == PURE:
        by_hand = pure.remat_stack if remat else pure.stack

        def init(key: jax.Array, x: jax.Array) -> Any:
            params = pure.init_stack(key, _LAYERS)
            return by_hand(params, x), {"params": params}

        return Side(init, lambda variables, x: by_hand(variables["params"], x))
    if name == "core":
        run = core.stack(_LAYERS, remat)
        return Side(liftcore.init(run), liftcore.apply(run))
    module = linen.new_lifted(linen_of(name)).stack(_LAYERS, remat)
    return Side(module.init_with_output, lambda variables, x: module.apply(variables, x)[0])


def differing(linens: tuple[str, ...], remat: bool, gradient: bool) -> dict[str, int]:
    """How many operations of each compiled program are unlike those of pure JAX."""
    x, variables = jnp.ones((8, pure.WIDTH)), {"params": pure.init_stack(jax.random.key(0), _LAYERS)}
    texts = {}
    for name, (_, apply) in stacks(linens, remat).items():
        texts[name] = program(losses(apply) if gradient else apply, variables, x).splitlines()
    by_hand = texts.pop(PURE)
    return {
        name: sum(one != other for one, other in zip(lines, by_hand, strict=False)) + abs(len(lines) - len(by_hand))
        for name, lines in texts.items()
    }


def losses(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of what a function returns."""
    return jax.grad(lambda variables, x: apply(variables, x).sum())


def _lowered(apply: Callable[..., Any], *args: Any) -> Callable[[], object]:
    return lambda: jax.jit(lambda *args: apply(*args)).lower(*args)

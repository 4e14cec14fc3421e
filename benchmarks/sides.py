"""The sides of a comparison: the same models by hand, on scopes, as modules, and with the peers that are installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

import liftcore
import linen_like

from .models import core, linen, pure

__all__ = ["OURS", "PEERS", "PURE", "Side", "installed", "linen_of", "side"]

PURE = "pure JAX"
OURS = ("core", "linen_like")
PEERS = ("flax", "equinox", "haiku")


class Side(NamedTuple):
    """One way to write the models `mlp` and `transformer`.

    Attributes:
        init: `init(key, x) -> (y, variables)`.
        apply: `apply(variables, x) -> y`.
    """

    init: Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]
    apply: Callable[[Any, jax.Array], jax.Array]


def installed(peers: Iterable[str]) -> list[str]:
    """Those peers that can be imported."""
    return [peer for peer in peers if importlib.util.find_spec(peer) is not None]


def linen_of(name: str) -> Any:
    """The package with the API of Linen of one side."""
    return importlib.import_module("flax.linen") if name == "flax" else linen_like


def side(name: str, model: str, layers: int) -> Side:
    """A model of one side; `apply` makes it anew, as the code of a user does.

    Args:
        name: the side: `PURE`, or one of `OURS` or `PEERS`.
        model: `mlp` or `transformer`.
        layers: how many layers or blocks it has.
    """
    makers: dict[str, Callable[[str, int], Side]] = {
        PURE: _pure,
        "core": _core,
        "linen_like": functools.partial(_linen, name),
        "flax": functools.partial(_linen, name),
        "equinox": _equinox,
        "haiku": _haiku,
    }
    return makers[name](model, layers)


def _pure(model: str, layers: int) -> Side:
    make, run = getattr(pure, f"init_{model}"), getattr(pure, model)

    def init(key: jax.Array, x: jax.Array) -> Any:
        params = make(key, layers)
        return run(params, x, layers), {"params": params}

    return Side(init, lambda variables, x: run(variables["params"], x, layers))


def _core(model: str, layers: int) -> Side:
    run = getattr(core, model)
    return Side(
        lambda key, x: liftcore.init(run)(key, x, layers),
        lambda variables, x: liftcore.apply(run)(variables, x, layers),
    )


def _linen(name: str, model: str, layers: int) -> Side:
    cls = getattr(linen.models(linen_of(name)), {"mlp": "MLP", "transformer": "Transformer"}[model])
    return Side(
        lambda key, x: cls(layers).init_with_output(key, x),
        lambda variables, x: cls(layers).apply(variables, x),
    )


def _equinox(model: str, layers: int) -> Side:
    models = importlib.import_module("benchmarks.models.equinox")
    cls = getattr(models, {"mlp": "MLP", "transformer": "Transformer"}[model])

    def init(key: jax.Array, x: jax.Array) -> Any:
        made = cls(key, layers)
        return made(x), made

    return Side(init, lambda made, x: made(x))


def _haiku(model: str, layers: int) -> Side:
    run = getattr(importlib.import_module("benchmarks.models.haiku"), model)
    hk = importlib.import_module("haiku")

    def init(key: jax.Array, x: jax.Array) -> Any:
        transformed = hk.transform(lambda x: run(x, layers))
        params = transformed.init(key, x)
        return transformed.apply(params, None, x), params

    return Side(init, lambda params, x: hk.transform(lambda x: run(x, layers)).apply(params, None, x))

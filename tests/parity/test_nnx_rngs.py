"""Random streams draw the keys that those of `flax.nnx` draw, bit for bit, and count as they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like

nnx = pytest.importorskip("flax.nnx")

Program = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """Streams, variables and keys as lists and names, which are compared."""
    if hasattr(value, "items"):
        return {name: plain(one) for name, one in value.items()}
    if hasattr(value, "tag") and hasattr(value, "count") and hasattr(value, "key"):
        return value.tag, value.key.tag, value.count.tag, plain(value.key), plain(value.count), str(value.count.dtype)
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    value = value.get_value() if hasattr(value, "get_value") else value
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(value)), jax.random.key_data(value).tolist()
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def both(change: Callable[[Any, Any], Any]) -> Program:
    """A program that returns what a change of two streams gives, and the streams after it."""

    def program(nnx: Any) -> Any:
        rngs = nnx.Rngs(params=0, dropout=1)
        rngs.params()
        return plain(change(nnx, rngs)), plain(rngs)

    return program


def held(make: Callable[[Any, Any], Any]) -> Program:
    """A program that returns the streams before, inside of and after a context."""

    def program(nnx: Any) -> Any:
        rngs = nnx.Rngs(params=0, dropout=1)
        rngs.params()
        with make(nnx, rngs):
            inside = plain(rngs)
        return inside, plain(rngs)

    return program


def with_rngs(**options: Any) -> Program:
    """A program with a copy; the peer is asked for the mode in which it makes one."""

    def change(nnx: Any, rngs: Any) -> Any:
        modes = {} if nnx is nnx_like else {"graph": True, "graph_updates": False}
        given = {name: one(nnx) if callable(one) else one for name, one in options.items()}
        new = nnx.with_rngs({"a": rngs, "b": [rngs]}, **given, **modes)
        return new["a"] is new["b"][0], sorted(plain(new["a"]).items())

    return both(change)


def reseeded(make: Callable[[Any], Any], **options: Any) -> Program:
    def program(nnx: Any) -> Any:
        rngs = make(nnx)
        nnx.reseed({"m": rngs, "n": [nnx.Rngs(params=3).params]}, **options)
        return plain(rngs)

    return program


SEEDS: dict[str, Program] = {
    "int": lambda nnx: nnx.Rngs(7),
    "bool": lambda nnx: nnx.Rngs(True),
    "negative": lambda nnx: nnx.Rngs(-1),
    "large": lambda nnx: nnx.Rngs(2**31),
    "key": lambda nnx: nnx.Rngs(params=0, dropout=jax.random.key(1)),
    "raw": lambda nnx: nnx.Rngs(jax.random.PRNGKey(3)),
    "rbg": lambda nnx: nnx.Rngs(jax.random.key(3, impl="rbg")),
    "mapping": lambda nnx: nnx.Rngs({"a": 0, "b": jax.random.key(1)}, a=2),
    "order": lambda nnx: nnx.Rngs(b=0, a=1, default=2),
    "keys": lambda nnx: nnx.Rngs(jax.random.split(jax.random.key(0), 3)),
    "stream": lambda nnx: nnx.Rngs(nnx.RngStream(3, tag="default"), a=nnx.RngStream(4, tag="b")),
    "empty": lambda nnx: nnx.Rngs(),
    "name of a method": lambda nnx: nnx.Rngs(normal=0),
}

DRAWS: dict[str, Program] = {
    "default": both(lambda nnx, rngs: nnx.Rngs(0, params=1)()),
    "fallback": both(lambda nnx, rngs: nnx.Rngs(0, params=1).dropout()),
    "item": both(lambda nnx, rngs: rngs["params"]()),
    "rbg": both(lambda nnx, rngs: nnx.Rngs(jax.random.key(3, impl="rbg"))()),
    "normal": both(lambda nnx, rngs: rngs.params.normal((2, 3))),
    "bernoulli": both(lambda nnx, rngs: rngs.dropout.bernoulli(0.5, (10,))),
    "choice": both(lambda nnx, rngs: rngs.dropout.choice(5, (3,), replace=False)),
    "glorot_uniform": both(lambda nnx, rngs: rngs.dropout.glorot_uniform()((2, 2), jnp.float32)),
    "orthogonal": both(lambda nnx, rngs: rngs.dropout.orthogonal(2)),
}

NEW: dict[str, Program] = {
    "fork": both(lambda nnx, rngs: rngs.fork()),
    "split": both(lambda nnx, rngs: rngs.split(2)),
    "split 1": both(lambda nnx, rngs: rngs.split(1)),
    "split tuple": both(lambda nnx, rngs: rngs.split((1, 2))),
    "split mapping": both(lambda nnx, rngs: rngs.split({"params": 2})),
    "split None": both(lambda nnx, rngs: rngs.split({"params": 2, ...: None})),
    "split first": both(lambda nnx, rngs: rngs.split({nnx.RngStream: 2, "params": 3})),
    "broadcast": both(lambda nnx, rngs: rngs.broadcast((2, 1))),
    "broadcast mapping": both(lambda nnx, rngs: rngs.broadcast({"params": 3, "dropout": None})),
    "stream fork": both(lambda nnx, rngs: rngs.params.fork()),
    "stream split": both(lambda nnx, rngs: rngs.params.split((2, 2))),
    "stream broadcast": both(lambda nnx, rngs: rngs.params.broadcast(2)),
}

CONTEXTS: dict[str, Program] = {
    "split": held(lambda nnx, rngs: nnx.split_rngs(rngs, splits=2)),
    "split tuple": held(lambda nnx, rngs: nnx.split_rngs([{"a": rngs}], splits=(2, 1))),
    "split only": held(lambda nnx, rngs: nnx.split_rngs(rngs, splits=2, only="params")),
    "split squeeze": held(lambda nnx, rngs: nnx.split_rngs(rngs, splits=1, squeeze=True)),
    "split none": held(lambda nnx, rngs: nnx.split_rngs(rngs, splits=2, only="missing")),
    "fork": held(lambda nnx, rngs: nnx.fork_rngs(rngs)),
    "fork split": held(lambda nnx, rngs: nnx.fork_rngs(rngs, split=2)),
    "fork mapping": held(lambda nnx, rngs: nnx.fork_rngs(rngs, split={"params": 3})),
}

COPIES: dict[str, Program] = {
    "none": with_rngs(),
    "split": with_rngs(split=2),
    "split tuple": with_rngs(split=(2, 1)),
    "split mapping": with_rngs(split={"params": 4, ...: (2, 3)}),
    "fork": with_rngs(fork=...),
    "fork one": with_rngs(fork="params"),
    "fork several": with_rngs(fork=("params", "dropout")),
    "split before fork": with_rngs(split={"params": 4}, fork=...),
    "split all before fork": with_rngs(split=2, fork="params"),
    "split before broadcast": with_rngs(split=2, broadcast={"params": 3}),
    "broadcast": with_rngs(broadcast={"params": 5}),
    "broadcast before fork": with_rngs(split={"params": 2}, fork=lambda nnx: nnx.Not("params"), broadcast=3),
    "only": with_rngs(split=2, only="dropout"),
}


def stacked(nnx: Any) -> Any:
    """Layers with keys of their own, made by one `__init__`."""

    class Layers(nnx.Module):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0, 0))
        def __init__(self, rngs: Any) -> None:
            self.kernel = nnx.Param(rngs.params.normal((2,)))
            self.rngs = rngs

    rngs = nnx.Rngs(params=0, dropout=1)
    layers = Layers(rngs)
    return plain(layers.kernel), layers.rngs is rngs, plain(dict(sorted(plain(rngs).items())))


def mapped(nnx: Any) -> Any:
    """Noise of its own for each element, from one of two streams."""

    @nnx.split_rngs(splits=3, only="dropout")
    @nnx.vmap(in_axes=(nnx.StateAxes({"dropout": 0, ...: None}), 0))
    def noisy(rngs: Any, x: Any) -> Any:
        return x + rngs.dropout.normal()

    rngs = nnx.Rngs(params=0, dropout=1)
    return plain([noisy(rngs, jnp.zeros(3)) for _ in range(2)]), sorted(plain(rngs).items())


def compiled(nnx: Any) -> Any:
    """Draws, a split and new streams inside of a compiled function."""

    @nnx.jit
    def draw(rngs: Any) -> Any:
        with nnx.split_rngs(rngs, splits=2):
            keys = rngs.params.key.get_value()
        return keys, rngs.params(), rngs.fork()

    rngs = nnx.Rngs(params=0, dropout=1)
    keys, key, forked = draw(rngs)
    return plain([keys, key]), sorted(plain(forked).items()), sorted(plain(rngs).items())


CROSSING: dict[str, Program] = {"__init__": stacked, "vmap": mapped, "jit": compiled}

SEEDED: dict[str, Program] = {
    "reseed": reseeded(lambda nnx: nnx.Rngs(0, params=1), params=5, other=2),
    "default": reseeded(lambda nnx: nnx.Rngs(0, params=1), default=jax.random.key(3)),
    "match": reseeded(lambda nnx: nnx.Rngs(params=1).split((2, 1)), params=5, policy="match_shape"),
    "function": reseeded(
        lambda nnx: nnx.Rngs(params=1), params=5, policy=lambda path, key, shape: jax.random.split(key, 3)
    ),
}

PROGRAMS = {
    f"{group}: {name}": program
    for group, programs in [
        ("seeds", SEEDS),
        ("draws", DRAWS),
        ("new", NEW),
        ("contexts", CONTEXTS),
        ("copies", COPIES),
        ("reseed", SEEDED),
        ("crossing", CROSSING),
    ]
    for name, program in programs.items()
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:The 'split' argument of 'fork' is deprecated")  # which the peer itself uses
def test_a_program_gives_the_same_streams(name: str) -> None:
    assert plain(PROGRAMS[name](nnx_like)) == plain(PROGRAMS[name](nnx))


def test_methods_are_those_of_the_peer() -> None:
    public = [name for name in dir(nnx.RngStream) if not name.startswith("_")]
    assert set(public) <= {name for name in dir(nnx_like.RngStream) if not name.startswith("_")}
    assert {name for name in dir(nnx.Rngs) if not name.startswith("_")} <= set(dir(nnx_like.Rngs))


REFUSED: dict[str, tuple[type[Exception], Program]] = {
    "float": (ValueError, lambda nnx: nnx.Rngs(0.5)),
    "text": (ValueError, lambda nnx: nnx.RngStream("a", tag="a")),
    "numpy": (ValueError, lambda nnx: nnx.Rngs(np.int64(3))),
    "attribute": (AttributeError, lambda nnx: nnx.Rngs(params=0).other),
    "item": (KeyError, lambda nnx: nnx.Rngs(params=0)["other"]),
    "call": (AttributeError, lambda nnx: nnx.Rngs(params=0)()),
    "dunder": (AttributeError, lambda nnx: nnx.Rngs(0).__json__),
    "no tag": (TypeError, lambda nnx: nnx.RngStream(0)),
    "split twice": (ValueError, lambda nnx: nnx.Rngs(0).split(2).split(2)),
    "squeeze": (ValueError, lambda nnx: nnx.split_rngs(nnx.Rngs(0), splits=2, squeeze=True)),
    "scalars only": (ValueError, lambda nnx: nnx.reseed(nnx.Rngs(a=0).split(2), a=1)),
    "policy": (ValueError, lambda nnx: nnx.reseed(nnx.Rngs(a=0), policy="all", a=1)),
    "seed": (ValueError, lambda nnx: nnx.reseed(nnx.Rngs(a=0), a="a")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_there_is_refused_here(name: str) -> None:
    error, program = REFUSED[name]
    for package in (nnx, nnx_like):
        with pytest.raises(error):
            program(package)

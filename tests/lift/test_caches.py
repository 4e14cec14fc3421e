"""The caches: calls with models that are made anew, and bodies that raise, add nothing; `clear_caches` empties all."""

from __future__ import annotations

import ast
import collections
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore import nn as core
from liftcore.caches import bounded, cache_sizes
from liftcore.generation import generate
from liftcore.pytrees import Others
from tests.architecture.sources import PACKAGES, sources
from tests.lift.test_nothing_grows import STYLES, Failed, X, of_core

KEY = jax.random.key(0)


class Linen(nn.Module):
    act: Any = jnp.tanh

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.act(nn.Dense(3, name="layer")(x))


LINEN = Linen().init(KEY, X)
LiftedLinen = nn.jit(Linen)


class Object(nnx.Module):
    def __init__(self, act: Any = jnp.tanh) -> None:
        self.layer, self.act = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), act

    def __call__(self, x: Any) -> Any:
        return self.act(self.layer(x))


class Tree(eqx.Module):
    w: Any
    act: Any = eqx.field(static=True, default=jnp.tanh)

    def __call__(self, x: Any) -> Any:
        return self.act(self.w * x)


class Pax(pax.Module):
    def __init__(self, act: Any = jnp.tanh) -> None:
        super().__init__()
        self.layer, self.act = pax.Linear(3, 3, key=KEY), act

    def __call__(self, x: Any) -> Any:
        return self.act(self.layer(x))


def tokens_to_logits(scope: Any, tokens: Any) -> Any:
    x = scope.child(core.embedding, "words")(5, 4).lookup(tokens)[..., None, :]
    cache = scope.child(core.decode_cache, "cache")(x, x)
    query, key, value, mask = (x, x, x, None) if cache is None else cache.append(x, x, x)
    return scope.child(core.dense, "head")(core.dot_product_attention(query, key, value, mask=mask)[..., 0, :], 5)


TOKENS = liftcore.init(tokens_to_logits)(KEY, jnp.zeros((1, 2), int))[1]


def called(model: Any, x: Any) -> Any:
    return model(x)


def summed(model: Any, x: Any) -> Any:
    return model(x).sum()


def body(scope: Any, x: Any) -> Any:
    return x * scope.param("w", lambda key: jnp.ones(3))


core_step, linen_init = liftcore.jit(body), liftcore.init(liftcore.jit(body))
object_step, object_grad = nnx.jit(called), nnx.jit(nnx.grad(summed))
tree_step, tree_grad = eqx.filter_jit(called), eqx.filter_jit(eqx.filter_grad(summed))
pax_step, pax_grad = pax.lift(liftcore.jit, called), pax.value_and_grad(summed)

MADE_ANEW: dict[str, Callable[[], Any]] = {
    "core jit": lambda: liftcore.apply(core_step)({"params": {"w": jnp.ones(3)}}, X),
    "core init": lambda: linen_init(jax.random.key(0), X),
    "linen apply": lambda: Linen().apply(LINEN, X),
    "linen jit": lambda: LiftedLinen().apply(LINEN, X),
    "linen scan of a new class": lambda: (
        nn.scan(
            Linen, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=2
        ).__name__
    ),
    "nnx jit": lambda: object_step(Object(), X),
    "nnx jit of grad": lambda: object_grad(Object(), X),
    "nnx split": lambda: nnx.merge(*nnx.split(Object()))(X),
    "filter_jit": lambda: tree_step(Tree(jnp.ones(3)), X),
    "filter_jit of filter_grad": lambda: tree_grad(Tree(jnp.ones(3)), X),
    "pax lift": lambda: pax_step(Pax(), X),
    "pax value_and_grad": lambda: pax_grad(Pax(), X),
    "generate": lambda: generate(functools.partial(tokens_to_logits), TOKENS, [[1, 2]], max_new_tokens=2),
}
"""Calls with a model that is made anew and equals the last one, by functions that live on."""


def fail(x: Any) -> Any:
    raise Failed


RAISING = {
    **{f"core {name}": of_core(name) for name in ("jit", "scan", "cond", "remat", "vmap")},
    **{
        name: STYLES[f"{name}"] for name in ("linen scan", "linen cond", "linen jit", "nnx cond", "nnx scan", "nnx jit")
    },
    **{name: STYLES[name] for name in ("equinox filter_jit", "equinox filter_grad", "pax lift", "pax value_and_grad")},
    "linen init": lambda fn: Linen(fn).init(KEY, X),
    "linen lazy_init": lambda fn: Linen(fn).lazy_init(KEY, jax.ShapeDtypeStruct(X.shape, X.dtype)),
}
"""Calls of a body that raises, which is made anew."""


def raising(call: Callable[..., Any]) -> Callable[[], Any]:
    def run() -> None:
        with pytest.raises(Failed):
            call(lambda x: fail(x))

    return run


ROUNDS: dict[str, Callable[[], Any]] = MADE_ANEW | {f"{name} raises": raising(call) for name, call in RAISING.items()}


def objects() -> collections.Counter[str]:
    """Count the objects of our classes, without the structures of calls: JAX keeps those of the last 4,096 kinds."""
    gc.collect()
    found = (one for one in gc.get_objects() if type(one) not in (liftcore.Rest, Others))  # a `Rest` has an `Others`
    names = (f"{type(one).__module__}.{type(one).__qualname__}" for one in found)
    return collections.Counter(name for name in names if name.partition(".")[0] in PACKAGES)


@pytest.mark.parametrize("name", ROUNDS)
def test_fifty_rounds_leave_no_object_and_no_result_in_a_cache(name: str) -> None:
    run = ROUNDS[name]
    for _ in range(3):
        run()
    before, sizes = objects(), cache_sizes()
    for _ in range(50):
        run()
    assert objects() - before == collections.Counter()
    assert cache_sizes() == sizes


STATIC: dict[str, Callable[[Any], Any]] = {
    "core jit": lambda act: liftcore.jit(lambda scope, act, x: act(x), static_argnums=1)((), act, X),
    "linen jit": lambda act: LiftedLinen(act).apply(LINEN, X),
    "nnx jit": lambda act: object_step(Object(act), X),
    "nnx jit of grad": lambda act: object_grad(Object(act), X),
    "filter_jit": lambda act: tree_step(Tree(jnp.ones(3), act), X),
    "filter_jit, an argument": lambda act: eqx.filter_jit(called)(act, X),
    "pax lift": lambda act: pax_step(Pax(act), X),
    "pax value_and_grad": lambda act: pax_grad(Pax(act), X),
}
"""Calls by functions that live on, with a function as a static value."""


def test_clear_caches_releases_static_values() -> None:
    def once(call: Callable[[Any], Any]) -> list[Any]:
        big = jnp.ones(3)

        def act(x: Any) -> Any:
            return x * big.sum()

        call(act)
        return [weakref.ref(act), weakref.ref(big)]

    alive = {name: once(call) for name, call in STATIC.items()}
    liftcore.clear_caches()
    gc.collect()
    assert [name for name, refs in alive.items() if any(ref() is not None for ref in refs)] == []
    assert set(cache_sizes().values()) <= {0}
    for run in MADE_ANEW.values():  # they are traced again
        run()


def test_each_cache_is_bounded_and_known() -> None:
    """`functools.cache` is left for functions without arguments, which have one result."""
    found = []
    for source in sources().values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr == "lru_cache":
                found.append(source.module)
            if isinstance(node, ast.FunctionDef) and "functools.cache" in map(ast.unparse, node.decorator_list):
                found += [source.module] if node.args.args else []
    assert found == ["liftcore.caches"]


def test_a_bounded_cache_holds_the_results_that_were_used_last() -> None:
    calls = []
    cached = bounded(2)(lambda x: calls.append(x) or x)  # type: ignore[func-returns-value]
    assert [cached(x) for x in (1, 1, 2, 1, 3, 1, 2)] == [1, 1, 2, 1, 3, 1, 2]
    assert calls == [1, 2, 3, 2]
    liftcore.clear_caches()
    assert cached(1) == 1
    assert calls[4:] == [1]

"""What is wrapped by the bridge computes what it does in `flax.nnx.bridge`, from the same keys, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
import nnx_like

flax_nnx = pytest.importorskip("flax.nnx")
flax_linen = pytest.importorskip("flax.linen")

KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 2.0, 6).reshape(2, 3)


def linen_modules(nn: Any, nnx: Any) -> dict[str, Any]:
    class Linen(nn.Module):
        def setup(self) -> None:
            self.dense, self.norm = nn.Dense(3), nn.BatchNorm(use_running_average=False)
            self.drop = nn.Dropout(0.5, deterministic=False)
            self.count = self.variable("counter", "count", lambda: jnp.zeros((), jnp.int32))

        def __call__(self, x: Any) -> Any:
            if not self.is_initializing():
                self.count.value += 1
            self.sow("intermediates", "seen", x)
            return self.drop(self.norm(self.dense(x)))

        def encode(self, x: Any) -> Any:
            return self.dense(x)

    return {"Linen": Linen}


def objects(nn: Any, nnx: Any) -> dict[str, Any]:
    class Object(nnx.Module):
        def __init__(self, size: int, *, rngs: Any) -> None:
            self.linear, self.norm = nnx.Linear(size, size, rngs=rngs), nnx.BatchNorm(size, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.dropout(self.norm(self.linear(x)))

        def encode(self, x: Any) -> Any:
            return self.linear(x)

    class Outer(nnx.Module):
        def __init__(self, *, rngs: Any) -> None:
            self.inner, self.out = nnx.bridge.ToNNX(nn.Dense(3), rngs=rngs), nnx.Linear(3, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(self.inner(x))

    class Holder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nnx.bridge.to_linen(Object, 3, name="object")(nn.Dense(3)(x))

    return {"Object": Object, "Outer": Outer, "Holder": Holder}


def modules(nn: Any, nnx: Any) -> Any:
    """The same modules over each of the libraries."""
    return SimpleNamespace(nn=nn, nnx=nnx, **linen_modules(nn, nnx), **objects(nn, nnx))


def plain(value: Any) -> Any:
    """Variables and boxes as arrays, with sorted names."""
    if isinstance(value, dict) or type(value).__name__ in ("State", "FrozenDict"):
        return {str(name): plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    value = value.get_value() if hasattr(value, "get_value") else value
    if type(value).__name__ == "NNXMeta":
        return ["box", value.var_type.__name__, plain(value.value), plain(dict(value.metadata).get("out_sharding", ()))]
    return np.asarray(value) if isinstance(value, (jax.Array, np.ndarray)) else value


def params_of(m: Any, node: Any) -> Any:
    return plain(m.nnx.to_pure_dict(m.nnx.state(node, m.nnx.Param)))


def wrapped(m: Any) -> Any:
    model = m.nnx.bridge.ToNNX(m.Linen(), rngs=m.nnx.Rngs(0, dropout=1))
    m.nnx.bridge.lazy_init(model, X)
    calls = [model(X, mutable=["batch_stats", "counter"]) for _ in range(2)]
    kinds = [type(model.dense["kernel"]).__name__, type(model.norm["mean"]).__name__, type(model.count).__name__]
    return (
        params_of(m, model),
        calls,
        model.encode(X),
        model(X, method="encode"),
        kinds,
        model.count,
        model.norm["mean"],
    )


def lazily(m: Any) -> Any:
    model = m.nnx.bridge.ToNNX(m.nn.Dense(4), m.nnx.Rngs(params=3)).lazy_init(X)
    given = m.nnx.bridge.ToNNX(m.nn.Dense(4))
    m.nnx.bridge.lazy_init(given, X, rngs=m.nnx.Rngs(3))
    keyed = m.nnx.bridge.ToNNX(m.nn.Dense(4))
    m.nnx.bridge.lazy_init(keyed, X, rngs=KEY)
    return params_of(m, model), params_of(m, given), params_of(m, keyed), model(X), given(X)


def sown(m: Any) -> Any:
    model = m.nnx.bridge.lazy_init(m.nnx.bridge.ToNNX(m.Linen(), rngs=m.nnx.Rngs(0)), X)
    model(X, mutable=True)
    model(X, mutable=True)
    return type(model.seen).__name__, model.seen.get_value(), model.count


def inside(m: Any) -> Any:
    model = m.nnx.bridge.lazy_init(m.Outer(rngs=m.nnx.Rngs(0)), X)
    gradient = m.nnx.grad(lambda model: model(X).sum())(model)
    return params_of(m, model), model(X), plain(m.nnx.to_pure_dict(gradient))


def split(m: Any) -> Any:
    model = m.nnx.bridge.lazy_init(m.nnx.bridge.ToNNX(m.Linen(), rngs=m.nnx.Rngs(0)), X)
    graphdef, params, rest = m.nnx.split(model, m.nnx.Param, ...)
    made = m.nnx.merge(graphdef, params, rest)
    return plain(m.nnx.to_pure_dict(params)), sorted(params), made.encode(X)


def mapped(m: Any) -> Any:
    @m.nnx.split_rngs(splits=3)
    @m.nnx.vmap(in_axes=(0, None), axis_size=3)
    def call(model: Any, x: Any) -> Any:
        return m.nnx.bridge.lazy_init(model, x)(x)

    model = m.nnx.bridge.ToNNX(m.nn.Dense(2), rngs=m.nnx.Rngs(0))
    return call(model, X), params_of(m, model)


def linear(m: Any) -> Any:
    model = m.nnx.bridge.to_linen(m.nnx.Linear, 3, out_features=4)
    y, variables = model.init_with_output(KEY, X)
    return y, plain(variables), model.apply(variables, X)


def collections(m: Any) -> Any:
    model = m.nnx.bridge.to_linen(m.Object, 3)
    variables = model.init({"params": KEY, "dropout": jax.random.key(1)}, X)
    variables["batch_stats"] = {"norm": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}  # in flax, `init` changes no states
    rngs = {"dropout": jax.random.key(2)}
    _, changed = model.apply(variables, X, mutable=["batch_stats"], rngs=rngs)
    return plain(variables), plain(changed), model.apply(variables, X, nnx_method="encode", rngs=rngs)


def held(m: Any) -> Any:
    keys = {"params": KEY, "dropout": jax.random.key(1)}
    variables = m.Holder().init(keys, X)
    return jax.tree.map(np.shape, plain(variables)), plain(variables["params"]["Dense_0"])


def stacked(m: Any) -> Any:
    many = m.nn.vmap(m.nnx.bridge.ToLinen, variable_axes={"params": 0}, split_rngs={"params": True})
    model = many(m.nnx.Linear, args=(3, 2))
    variables = model.init(KEY, X)
    return plain(jax.tree.map(jnp.shape, variables)), model.apply(variables, X).shape


def renamed(m: Any) -> Any:
    kind = m.nnx.register_variable_name("parity_counts", overwrite=True)(type("ParityCount", (m.nnx.Variable,), {}))

    class Counter(m.nnx.Module):
        def __init__(self) -> None:
            self.count = kind(jnp.array(0))

        def __call__(self) -> None:
            self.count[...] += 1
            self.late = m.nnx.Intermediate(jnp.array(1))

    model = m.nnx.bridge.ToLinen(Counter, skip_rng=True)
    names = sorted(model.init(KEY))
    variables = {"parity_counts": {"count": jnp.array(0)}}  # in flax, `init` changes no states
    model.apply(variables)
    return names, plain(model.apply(variables, mutable=["parity_counts", "intermediates"])[1])


def functional(m: Any) -> Any:
    made = m.nnx.bridge.functional(m.nnx.Linear)(3, 2)
    state = made.init(rngs=m.nnx.Rngs(0))
    y, (_, after) = made.apply(state)(X)
    return y, plain(m.nnx.to_pure_dict(after))


PROGRAMS = (
    wrapped,
    lazily,
    sown,
    inside,
    split,
    mapped,
    linear,
    collections,
    held,
    stacked,
    renamed,
    functional,
)

OURS, FLAX = modules(linen_like, nnx_like), modules(flax_linen, flax_nnx)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_bridge_computes_what_that_of_flax_does(program: Callable[[Any], Any]) -> None:
    ours, theirs = plain(program(OURS)), plain(program(FLAX))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.array_equal(one, other), (one, other)


def test_names_are_those_of_flax_but_for_modules_of_a_third_kind() -> None:
    left_out = {
        "AttrPriority",
        "Module",
        "Scope",
        "compact",
        "current_context",
        "current_module",
        "initializers",
        "linen_in_bridge_mdl",
        "nnx_in_bridge_mdl",
    }
    files = {"interop", "module", "variables", "wrappers"}
    theirs = {name for name in vars(flax_nnx.bridge) if not name.startswith("_")}
    assert theirs - set(dir(nnx_like.bridge)) - files == left_out

"""Cases for closures and custom rules, each a function of a package: this one or Equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

X = jnp.arange(1.0, 4.0)
MODEL = {"w": jnp.arange(1.0, 4.0), "act": jnp.tanh, "rate": 0.5}


def call(model: Any, x: Any) -> Any:
    return model["act"](model["w"] * x) * model["rate"], "name"


def scaled(model: Any, x: Any) -> Any:
    return call(model, x)[0]


def none(tree: Any) -> list[bool]:
    """Where a tree has None."""
    return [leaf is None for leaf in jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)]


def with_jvp(eqx: Any, fn: Any = scaled, older: bool = False, seen: Any = None) -> Any:
    ruled = eqx.filter_custom_jvp(fn)

    def rule(primals: Any, tangents: Any, **kwargs: Any) -> Any:
        if seen is not None:
            seen.append(none(tangents))
        (model, x), (along_model, along_x) = primals, tangents
        value = fn(model, x, **kwargs)
        moved = jnp.zeros(3)
        if along_model is not None and along_model["w"] is not None:
            moved += 10 * along_model["w"]
        if along_x is not None:
            moved += 100 * along_x
        return value, moved

    (ruled.defjvp if older else ruled.def_jvp)(rule)
    return ruled


def jvp_of_some(eqx: Any) -> Any:
    seen: list[Any] = []
    ruled = with_jvp(eqx, seen=seen)
    found = eqx.filter_grad(lambda x: ruled(MODEL, x).sum())(X)
    return found, seen


def with_vjp(eqx: Any, seen: list[Any]) -> Any:
    ruled = eqx.filter_custom_vjp(call)

    @ruled.def_fwd
    def forward(perturbed: Any, model: Any, x: Any) -> Any:
        seen.append(perturbed)
        return call(model, x), {"x": x, "text": "residual"}

    @ruled.def_bwd
    def backward(residuals: Any, cotangent: Any, perturbed: Any, model: Any, x: Any) -> Any:
        seen.extend([residuals["text"], none(cotangent), perturbed])
        return {"w": 7 * cotangent[0] * residuals["x"], "act": None, "rate": None}

    return ruled


def vjp_of_model(eqx: Any) -> Any:
    seen: list[Any] = []
    ruled = with_vjp(eqx, seen)
    return eqx.filter_grad(lambda model: ruled(model, X)[0].sum())(MODEL), seen


def vjp_of_other(eqx: Any) -> Any:
    return eqx.filter_grad(lambda x: with_vjp(eqx, [])(MODEL, x)[0].sum())(X)


def older_vjp(eqx: Any) -> Any:
    seen: list[Any] = []
    ruled = eqx.filter_custom_vjp(lambda model, x, *, k: (model["w"] * x * k, model["w"] + 1, "s"))

    def forward(model: Any, x: Any, *, k: Any) -> Any:
        return (model["w"] * x * k, model["w"] + 1, "s"), (k, "residual")

    def backward(residuals: Any, cotangent: Any, model: Any, x: Any, *, k: Any) -> Any:
        seen.extend([residuals[1], none(cotangent)])
        return {**model, "w": 3 * cotangent[0] + cotangent[1]}

    ruled.defvjp(forward, backward)
    model = {"w": X, "act": None}
    return eqx.filter_grad(lambda model: ruled(model, X, k=2.0)[0].sum())(model), seen


def closed(eqx: Any) -> Any:
    def loss(w: Any) -> Any:
        fn = eqx.filter_closure_convert(lambda x, k: {"y": w * x * k, "k": k}, X, 2)
        return fn(X, 2)["y"].sum() + sum(len(one.shape) for one in jax.tree.leaves(fn) if eqx.is_array(one))

    return jax.value_and_grad(loss)(jnp.float32(2))


RULES: dict[str, Callable[[Any], Any]] = {
    "custom_jvp": lambda eqx: eqx.filter_jvp(with_jvp(eqx), (MODEL, X), (eqx.filter(MODEL, eqx.is_array), X)),
    "custom_jvp, called": lambda eqx: with_jvp(eqx)(MODEL, X),
    "custom_jvp, some": jvp_of_some,
    "custom_jvp, older": lambda eqx: eqx.filter_grad(lambda x: with_jvp(eqx, older=True)(MODEL, x).sum())(X),
    "custom_jvp, in jit and vmap": lambda eqx: eqx.filter_jit(
        eqx.filter_vmap(eqx.filter_grad(lambda x: with_jvp(eqx)(MODEL, x).sum()))
    )(jnp.stack([X, X])),
    "custom_jvp, no rule": lambda eqx: eqx.filter_custom_jvp(call)(MODEL, X),
    "custom_jvp, another structure": lambda eqx: eqx.filter_grad(
        lambda x: with_jvp(eqx, lambda model, x: (x, x))(MODEL, x)[0].sum()
    )(X),
    "custom_vjp": vjp_of_model,
    "custom_vjp, called": lambda eqx: with_vjp(eqx, [])(MODEL, X),
    "custom_vjp, another argument": vjp_of_other,
    "custom_vjp, in jit": lambda eqx: eqx.filter_jit(vjp_of_model)(eqx)[0],
    "custom_vjp, older": older_vjp,
    "custom_vjp, no rule": lambda eqx: eqx.filter_custom_vjp(call)(MODEL, X),
    "closure_convert": closed,
    "closure_convert, other types": lambda eqx: eqx.filter_closure_convert(lambda x: x, X)(jnp.ones(2)),
    "closure_convert, other static leaves": lambda eqx: eqx.filter_closure_convert(lambda x, k: x, X, 1)(X, 2),
}

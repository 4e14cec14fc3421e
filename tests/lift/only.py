"""Every kind of lift that can leave a collection or an RNG stream outside, told which ones to take in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import liftcore
from tests.lift.plain import Body


def _mapped(name: str, body: Body, collections: Any, sequences: Any) -> Body:
    options = {"variable_axes": dict.fromkeys(collections, 0), "split_rngs": dict.fromkeys(sequences, True)}
    if name == "vmap":
        return liftcore.vmap(body, in_axes=None, axis_size=2, **options)
    if name == "scan":
        step = liftcore.scan(lambda scope, x, _: (body(scope, x), None), length=2, **options)
        return lambda scope, x: step(scope, x, None)[0]
    if name == "remat_scan":
        return liftcore.remat_scan(body, (2,), **options)
    lifted = {"map": liftcore.map, "pmap": liftcore.pmap}[name](body, **options)
    return lambda scope, x: lifted(scope, jnp.stack([x, x]))


def _over_shards(body: Body, collections: Any, sequences: Any) -> Body:
    mesh = jax.make_mesh((1,), ("shards",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs, split = dict.fromkeys(collections, P()), dict.fromkeys(sequences, True)
    options: dict[str, Any] = {"mesh": mesh, "in_specs": P(), "out_specs": P(), "check_vma": False}
    return liftcore.shard_map(body, variable_specs=specs, split_rngs=split, **options)


def _looped(name: str, body: Body, collections: Any, sequences: Any) -> Body:
    shared = {"variable_broadcast": collections, "split_rngs": dict.fromkeys(sequences, True)}
    if name == "fori_loop":
        return lambda s, x: liftcore.fori_loop(lambda s, i, x: body(s, x), **shared)(s, 0, 2, x)
    return lambda s, x: liftcore.while_loop(lambda s, x: x.ravel()[0] < 1, body, **shared)(s, x)


def _ruled(name: str, body: Body, rules: Any) -> Body:
    ruled: Any = getattr(liftcore, name)(body, **rules)
    if name == "custom_jvp":
        ruled.defjvp(lambda s, primals, tangents, _: liftcore.jvp(body, wrt=False)(s, primals, tangents))
    elif name == "custom_vjp":
        ruled.defvjp(lambda s, x: (body(s, x), None), lambda residuals, dy: (None, dy))
    else:
        ruled.def_vmap(lambda size, batched, s, x: (body(s, x), True))
    return ruled  # type: ignore[no-any-return]


_FILTERED: dict[str, Callable[[Body, Any], Body]] = {
    "remat": lambda body, rules: liftcore.remat(body, **rules),
    "jit": lambda body, rules: liftcore.jit(body, **rules),
    "checkify": lambda body, rules: lambda s, x: liftcore.checkify(body, **rules)(s, x)[1],
    "eval_shape": lambda body, rules: liftcore.eval_shape(body, **rules),
    "fold_rngs": lambda body, rules: liftcore.fold_rngs(body, **rules),
    "map_variables": lambda body, rules: liftcore.map_variables(body, "mapped", **rules),
    "cond": lambda body, rules: lambda s, x: liftcore.cond(body, lambda s, x: x, **rules)(s, True, x),
    "switch": lambda body, rules: lambda s, x: liftcore.switch([body, body], **rules)(s, 0, x),
}

_DERIVED: dict[str, Callable[[Body, Any], Body]] = {
    "vjp": lambda body, rules: lambda s, x: liftcore.vjp(body, **rules)(s, x)[0],
    "jvp": lambda body, rules: lambda s, x: liftcore.jvp(body, **rules)(s, (x,), (x,))[0],
    "linearize": lambda body, rules: lambda s, x: liftcore.linearize(body, **rules)(s, x)[0],
    "jacfwd": lambda body, rules: lambda s, x: liftcore.jacfwd(body, argnums=1, **rules)(s, x)[0],
    "jacrev": lambda body, rules: lambda s, x: liftcore.jacrev(body, argnums=1, **rules)(s, x)[0],
    "grad": lambda body, rules: (
        lambda s, x: liftcore.grad(lambda s, x: body(s, x).sum(), argnums=1, **rules)(s, x)  # type: ignore[no-any-return]
    ),
    **{name: lambda body, rules, name=name: _ruled(name, body, rules) for name in ("custom_jvp", "custom_vjp")},  # type: ignore[misc]
}

_MAPPED, _LOOPED = ("vmap", "map", "pmap", "scan", "remat_scan"), ("fori_loop", "while_loop")

KINDS = (*_MAPPED, "shard_map", *_LOOPED, "custom_vmap", *_FILTERED, *_DERIVED)
"""By name; a kind shows in paths as its own name, but for `remat_scan`, which is scans of rematerialized scans."""


def only(name: str, body: Body, collections: Any, sequences: Any) -> Body:
    """A body under a kind of lift that takes some collections and streams only.

    It may change the shape of what the body returns.
    """
    rules = {"variables": collections, "rngs": sequences}
    if name in _MAPPED:
        return _mapped(name, body, collections, sequences)
    if name in _LOOPED:
        return _looped(name, body, collections, sequences)
    if name == "shard_map":
        return _over_shards(body, collections, sequences)
    if name == "custom_vmap":
        return _ruled(name, body, rules)
    return _FILTERED[name](body, rules) if name in _FILTERED else _DERIVED[name](body, {**rules, "wrt": False})

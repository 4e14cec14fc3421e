"""Every lifted transformation of functions of a module, as one that runs `fn(mdl, x) -> y` on a module and an array.

`x` and `y` have one shape. `UNCHANGED` are the rows that give what the function itself gives, variables included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import linen_like as nn

Row = Callable[..., Any]

ALL = ["params", "state", "consts"]
MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def _stacked(x: Any, size: int = 2) -> Any:
    return jnp.stack([x] * size)


def _axes(axis: int | None) -> dict[str, Any]:
    return {"variable_axes": dict.fromkeys(ALL, axis), "split_rngs": axis is not None}


def vmap(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.vmap(fn, **_axes(0))(mdl, _stacked(x)).mean(0)


def vmap_shared(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.vmap(fn, **_axes(None))(mdl, _stacked(x))[0]


def map(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.map(fn, **_axes(0))(mdl, _stacked(x)).mean(0)


def map_shared(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.map(fn, **_axes(None), batch_size=2)(mdl, _stacked(x, 3))[0]


def pmap(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.pmap(fn, **_axes(None))(mdl, x[None])[0]


def shard_map(fn: Row, mdl: Any, x: Any) -> Any:
    whole = PartitionSpec()
    specs = dict.fromkeys([*ALL, "perturbations"], whole)  # how a value is partitioned is for the user to say
    return nn.shard_map(fn, specs, False, mesh=MESH, in_specs=whole, out_specs=whole)(mdl, x)


def custom_vmap(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.custom_vmap(fn, lambda size, batched, mdl, x: (fn(mdl, x), True))(mdl, x)


def scan(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.scan(lambda mdl, x, _: (fn(mdl, x), None), length=2, **_axes(0))(mdl, x, None)[0]


def scan_shared(fn: Row, mdl: Any, x: Any) -> Any:
    shared = {"variable_broadcast": ["params", "consts"], "variable_carry": "state", "split_rngs": False}
    return nn.scan(lambda mdl, x, _: (fn(mdl, x), None), length=1, **shared)(mdl, x, None)[0]


def remat_scan(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.remat_scan(fn, lengths=(2, 2))(mdl, x)


def while_loop(fn: Row, mdl: Any, x: Any) -> Any:
    def body(mdl: Any, value: Any) -> Any:
        return value[0] + 1, fn(mdl, value[1])

    options = {"carry_variables": "state", "split_rngs": False}
    return nn.while_loop(lambda mdl, value: value[0] < 1, body, mdl, (jnp.int32(0), x), **options)[1]


def fori_loop(fn: Row, mdl: Any, x: Any) -> Any:
    options = {"carry_variables": "state", "split_rngs": False}
    return nn.fori_loop(0, 1, lambda mdl, i, x: fn(mdl, x), mdl, x, **options)


def cond(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.cond(jnp.bool_(True), fn, lambda mdl, x: 2 * x, mdl, x)


def switch(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.switch(jnp.int32(1), [lambda mdl, x: 2 * x, fn, lambda mdl, x: 3 * x], mdl, x)


def _with_aux(fn: Row) -> Row:
    def loss(mdl: Any, x: Any) -> Any:
        y = fn(mdl, x)
        return (y**2).sum(), y

    return loss


def grad(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.grad(_with_aux(fn), mdl, x, has_aux=True)[1]


def value_and_grad(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.value_and_grad(_with_aux(fn), mdl, x, has_aux=True)[0][1]


def vjp(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.vjp(fn, mdl, x, multi_scope=True)[0]


def jvp(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.jvp(fn, mdl, (x,), (x,), None)[0]


def linearize(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.linearize(fn, mdl, x)[0]


def jacfwd(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.jacfwd(_with_aux(fn), mdl, x, has_aux=True)[1]


def jacrev(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.jacrev(_with_aux(fn), mdl, x, has_aux=True)[1]


def hessian(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.hessian(_with_aux(fn), mdl, x, has_aux=True)[1]


def custom_vjp(fn: Row, mdl: Any, x: Any) -> Any:
    def forward(mdl: Any, x: Any) -> Any:
        return nn.vjp(fn, mdl, x)

    return nn.custom_vjp(fn, forward, lambda pullback, cotangent: pullback(cotangent))(mdl, x)


def custom_jvp(fn: Row, mdl: Any, x: Any) -> Any:
    def rule(mdl: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        return nn.jvp(fn, mdl, primals, tangents, variable_tangents)

    return nn.custom_jvp(fn, rule)(mdl, x)


def jit(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.jit(fn)(mdl, x)


def remat(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.remat(fn)(mdl, x)


def named_call(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.named_call(fn)(mdl, x)


def checkify(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.checkify(fn)(mdl, x)[1]


def map_variables(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.map_variables(fn, "params", init=True)(mdl, x)


def swap_collection(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.swap_collection(fn, "unused", "neither")(mdl, x)


def add_metadata_axis(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.add_metadata_axis(fn, {"params": 0})(mdl, x)


def fold_rngs(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.fold_rngs(fn)(mdl, x)


def with_rngs(fn: Row, mdl: Any, x: Any) -> Any:
    return nn.with_rngs(fn, {"noise": jax.random.key(7)})(mdl, x)


UNCHANGED: dict[str, Row] = {
    row.__name__: row
    for row in (
        vmap_shared, map_shared, pmap, shard_map, custom_vmap, scan_shared, while_loop, fori_loop, cond, switch, grad,
        value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian, custom_vjp, custom_jvp, jit, remat, named_call,
        checkify, map_variables, swap_collection, add_metadata_axis, with_rngs,
    )
}  # fmt: skip
"""Rows that give what the function itself gives, bit for bit in their variables."""

STACKED: dict[str, Row] = {row.__name__: row for row in (vmap, map, scan, remat_scan)}
"""Rows with variables along new leading axes."""

ROWS: dict[str, Row] = {**UNCHANGED, **STACKED, "fold_rngs": fold_rngs}
"""All rows. Missing are those that compute nothing or take an operator: `eval_shape`, `purify`, `associative_scan`."""

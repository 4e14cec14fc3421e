"""Every transformation as a way to call a function of a model and an array once, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import liftcore
import nnx_like as nnx

Body = Callable[[Any, Any], Any]


def scanned(body: Body) -> Body:
    def step(carry: Any) -> Any:
        model, x = carry
        return model, body(model, x)

    loop = nnx.scan(step, in_axes=nnx.Carry, out_axes=nnx.Carry, length=1)
    return lambda model, x: loop((model, x))[1]


def scanned_over_nothing(body: Body) -> Body:
    axes = nnx.StateAxes({...: nnx.Carry})
    loop = nnx.scan(body, in_axes=(axes, None), out_axes=0, length=1)
    return lambda model, x: loop(model, x)[0]


def fori(body: Body) -> Body:
    def step(i: Any, value: Any) -> Any:
        model, x = value
        return model, body(model, x)

    return lambda model, x: nnx.fori_loop(0, 1, step, (model, x))[1]


def repeated(body: Body) -> Body:
    def step(value: Any) -> Any:
        i, model, x = value
        return i + 1, model, body(model, x)

    return lambda model, x: nnx.while_loop(lambda value: value[0] < 1, step, (0, model, x))[2]


def chosen(body: Body) -> Body:
    return lambda model, x: nnx.cond(jnp.array(True), body, lambda model, x: x, model, x)


def switched(body: Body) -> Body:
    return lambda model, x: nnx.switch(jnp.array(1), [lambda model, x: x, body], model, x)


def sharded(body: Body) -> Body:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return nnx.shard_map(body, mesh=mesh, in_specs=(P(), P()), out_specs=P())


def by_rule(body: Body) -> Body:
    rule = nnx.custom_vjp(body)
    rule.defvjp(lambda model, x: (body(model, x), ()), lambda residuals, cotangents: None)
    return rule


def checked(body: Body) -> Body:
    lifted = nnx.checkify(body)
    return lambda model, x: lifted(model, x)[1]


ONCE = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "named_call": nnx.named_call,
    "checkify": checked,
    "vmap": lambda body: nnx.vmap(body, in_axes=None, out_axes=None, axis_size=2),
    "pmap": lambda body: nnx.pmap(body, in_axes=None, out_axes=None, axis_size=1),
    "shard_map": sharded,
    "scan": scanned,
    "scan_of_carried_state": scanned_over_nothing,
    "fori_loop": fori,
    "while_loop": repeated,
    "cond": chosen,
    "switch": switched,
    "value_and_grad": lambda body: lambda model, x: nnx.value_and_grad(body)(model, x)[0],
    "vjp": lambda body: lambda model, x: nnx.vjp(body, model, x)[0],
    "linearize": lambda body: lambda model, x: nnx.linearize(body, model, x)[0],
    "custom_vjp": by_rule,
}


def with_aux(derivative: Any) -> Callable[[Body], Body]:
    """A derivative as a way to call: what it gives beside itself."""

    def lift(body: Body) -> Body:
        def both(model: Any, x: Any) -> Any:
            y = body(model, x)
            return y, y

        return lambda model, x: derivative(both, has_aux=True)(model, x)[1]

    return lift


def pushed(body: Body) -> Body:
    def call(model: Any, x: Any) -> Any:
        tangent = jax.tree.map(jnp.zeros_like, nnx.clone(nnx.state(model)))
        return nnx.jvp(body, (model, x), (tangent, jnp.zeros_like(x)))[0]

    return call


def mapped_one_by_one(body: Body) -> Body:
    def call(model: Any, x: Any) -> Any:
        return nnx.batched_map(lambda model, _: body(model, x), in_axes=(None, 0))(model, jnp.zeros(2))[1]

    return call


def looped_twice(body: Body) -> Body:
    return nnx.remat_scan(body, lengths=(1, 1), in_axes=(nnx.StateAxes({...: nnx.Carry}), nnx.Carry))


def by_rule_for_tangents(body: Body) -> Body:
    rule = nnx.custom_jvp(body)
    rule.defjvp(lambda primals, tangents: (body(*primals), jnp.zeros_like(primals[1])))
    return rule


def by_rule_for_batches(body: Body) -> Body:
    rule = nnx.custom_vmap(body)
    rule.def_vmap(lambda size, in_batched, model, x: (body(model, x), False))
    return rule


ALSO = {
    "grad": with_aux(nnx.grad),
    "jacfwd": with_aux(nnx.jacfwd),
    "jacrev": with_aux(nnx.jacrev),
    "hessian": with_aux(nnx.hessian),
    "jvp": pushed,
    "batched_map": mapped_one_by_one,
    "remat_scan": looped_twice,
    "custom_jvp": by_rule_for_tangents,
    "custom_vmap": by_rule_for_batches,
    "split_rngs": nnx.split_rngs(splits=2),
    "lift": lambda body: nnx.lift(liftcore.remat, body),
}
"""Those that are built of the ones above, or near to one: the first laws hold of them too."""

"""Other lifts to nest a lift in, and to nest in it: each takes `body(scope, x) -> y` and keeps the shape of `x`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from tests.lift.plain import Body
from tests.lift.quick import uniform

MUTABLE = ("count", "intermediates")


def block(scope: Any, x: Any) -> Any:
    """Makes and reads a parameter, counts, draws and sows."""
    w = scope.param("w", uniform, x.shape)
    count = scope.variable("count", "n", lambda: jnp.zeros(()))
    if scope.is_mutable_collection("count"):
        count.value += 1
    scope.sow("intermediates", "x", x)
    return jnp.tanh(x * w + count.value) + uniform(scope.make_rng("dropout"), x.shape)


def _scan(body: Body) -> Body:
    lifted = liftcore.scan(
        lambda scope, x, _: (body(scope, x), None),
        length=2,
        variable_axes={"params": 0},
        variable_carry="count",
        split_rngs=True,
    )
    return lambda scope, x: lifted(scope, x, None)[0]


def _vmap(body: Body) -> Body:
    lifted = liftcore.vmap(
        body, in_axes=None, axis_size=2, variable_axes={"params": 0, "count": 0}, split_rngs={"params": True, ...: True}
    )
    return lambda scope, x: lifted(scope, x).sum(0)


NESTS: dict[str, Callable[[Body], Body]] = {
    "scan": _scan,
    "vmap": _vmap,
    "remat": liftcore.remat,
    "jit": liftcore.jit,
}
"""By name."""


class Counted:
    """A body that counts how often it runs."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body, self.runs = body, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.body(*args, **kwargs)

    def since(self) -> int:
        """How often it ran since this was asked last."""
        runs, self.runs = self.runs, 0
        return runs


def everything(body: Body, rngs: Any, later: Any, x: Any) -> Any:
    """All that `init`, `apply` and `grad` give of a body."""
    y, variables = liftcore.init(body)(rngs, x)
    held = {name: found for name, found in variables.items() if name != "intermediates"}
    apply = liftcore.apply(body, mutable=MUTABLE)

    def loss(params: Any, x: Any) -> Any:
        result = apply({**held, "params": params}, x, rngs=later)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(result)), result

    grads, result = jax.grad(loss, argnums=(0, 1), has_aux=True)(held["params"], x)
    return y, variables, result, grads

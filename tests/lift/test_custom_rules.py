"""Functions with rules of their own: what holds for `custom_jvp` as for `custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from tests.lift.derivatives import KEY, RNGS, X
from tests.lift.quick import assert_same, compiled
from tests.lift.ruled import MUTABLE, VARIABLES, fails, layer, ruled_backward, ruled_forward

RULES = {"custom_jvp": ruled_forward, "custom_vjp": ruled_backward}
BOTH = pytest.mark.parametrize("ruled", RULES.values(), ids=RULES)


@BOTH
def test_the_state_is_that_of_the_function(ruled: Any) -> None:
    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        return lift(layer)(scope, x), jax.random.key_data(scope.push("noise", reuse=True).make_rng("dropout"))

    assert_same(*(liftcore.init(model)(RNGS, X, lift) for lift in (ruled, lambda fn: fn)))
    apply = liftcore.apply(model, mutable=MUTABLE)
    assert_same(*(apply(VARIABLES, X, lift, rngs=RNGS) for lift in (ruled, lambda fn: fn)))


@BOTH
@pytest.mark.parametrize("source", ["dropout", "params"])
def test_values_do_not_depend_on_whether_init_is_differentiated(ruled: Any, source: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jax.random.normal(scope.make_rng(source)))
        return x * n.value * jax.random.normal(scope.make_rng(source))

    lifted = ruled(fn)
    value = liftcore.init(lifted)(RNGS, 2.0)[0]
    again, slope = jax.value_and_grad(lambda x: liftcore.init(lifted)(RNGS, x)[0])(2.0)
    assert_same((again, slope), (value, value / 2))


@BOTH
@pytest.mark.parametrize("number", [2, -3, 7])
def test_a_number_that_is_out_of_range_is_an_error(ruled: Any, number: int) -> None:
    error = fails(ruled(layer, nondiff_argnums=(number,)), X)
    assert f"nondiff_argnums=({number},)" in error.where
    assert "there are 2 arguments" in error.what


# -- other lifts -------------------------------------------------------------------------------------------------------

AROUND: dict[str, Callable[[Any], Any]] = {
    "remat": liftcore.remat,
    "jit": liftcore.jit,
    "cond": lambda fn: lambda scope, x: liftcore.cond(fn, lambda scope, x: x)(scope, x[0] < 9, x),
    "scan": lambda fn: (
        lambda scope, x: liftcore.scan(
            lambda scope, x, _: (fn(scope, x), None),
            length=2,
            variable_axes={"params": 0},
            variable_carry="state",
            split_rngs=True,
        )(scope, x, None)[0]
    ),
    "vmap": lambda fn: (
        lambda scope, x: liftcore.vmap(
            fn, variable_axes={"params": None, "state": 0}, split_rngs={"params": False, "dropout": True}
        )(scope, jnp.stack([x, 2 * x]))
    ),
    "jvp": lambda fn: lambda scope, x: sum(liftcore.jvp(fn)(scope, (x,), (x,))),
    "vjp": lambda fn: lambda scope, x: liftcore.vjp(fn)(scope, x)[0],
    "jacfwd": lambda fn: lambda scope, x: liftcore.jacfwd(fn, 1)(scope, x).sum(0),
    "fori": lambda fn: (
        lambda scope, x: liftcore.fori_loop(
            lambda scope, i, x: fn(scope, x),
            variable_carry="state",
            split_rngs={"params": False, "dropout": True},
        )(scope, 0, 2, x)
    ),
}
FORWARD = {"jvp", "jacfwd"}
"""Of these, those that a pullback does not pass."""

INSIDE = [
    pytest.param(rule, name, inside, id=f"{kind}-{name}{number}")
    for kind, rule in RULES.items()
    for number, (name, inside) in enumerate(
        [(name, lambda fn: fn) for name in AROUND] + [("scan", liftcore.remat), ("cond", liftcore.jit)]
    )
    if kind == "custom_jvp" or name not in FORWARD
]


def everything(model: Callable[..., Any], rngs: Any, x: Any) -> Any:
    """All that `init`, `apply` and `grad` give."""
    y, variables = liftcore.init(model)(rngs, x)
    held = {name: value for name, value in variables.items() if name != "intermediates"}

    def loss(params: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(model, mutable=MUTABLE)({**held, "params": params}, x, rngs=rngs)
        return jnp.sum(y), mutated

    return y, variables, jax.grad(loss, (0, 1), has_aux=True)(held["params"], x)


@pytest.mark.parametrize(("ruled", "name", "inside"), INSIDE)
def test_inside_and_outside_other_lifts_values_and_gradients_stay(
    ruled: Any, name: str, inside: Callable[..., Any]
) -> None:
    """The state takes part in no gradient, so that those of the bare function are the same."""

    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(1))
        n.value = n.value + 1
        scope.sow("intermediates", "x", x)
        noise = jax.random.uniform(scope.make_rng("dropout"))
        return jnp.tanh(scope.param("w", jax.random.normal, (3,)) * x + noise) * n.value

    bare, ours = AROUND[name](inside(fn)), AROUND[name](ruled(inside(fn)))
    rngs = {"params": jax.random.PRNGKey(0), "dropout": jax.random.PRNGKey(1)}  # JAX 0.8 has no typed ones in branches
    assert_same(*compiled(lambda rngs, x: (everything(ours, rngs, x), everything(bare, rngs, x)), rngs, X))


@BOTH
def test_a_scan_carries_and_writes_what_the_function_created(ruled: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return n.value * x

    def step(scope: Scope, x: Any, _: Any) -> Any:
        y = ruled(fn)(scope, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x + 1, (y, seen)

    loop = liftcore.scan(step, length=3, variable_carry="state")
    (_, (ys, ns)), variables = liftcore.init(loop)(KEY, jnp.float32(1), None)
    assert (ns.tolist(), ys.tolist(), variables["state"]["n"]) == ([11, 23, 47], [11, 46, 141], 94)

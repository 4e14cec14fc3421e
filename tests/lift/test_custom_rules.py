"""Functions with rules of their own: what holds for `custom_jvp` as for `custom_vjp`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError
from tests.lift.derivatives import KEY, RNGS, X
from tests.lift.quick import assert_same, compiled, key, uniform
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
    assert "there are 2 positional arguments" in error.what


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


# -- rules that call the function itself -------------------------------------------------------------------------------


def _ruled(kind: str, body: Any, sown: bool = False) -> tuple[Any, Any]:
    """A lifted function of `w` and `x` whose rule calls it, as JAX's examples do, and the same of plain JAX."""

    def layer(scope: Any, x: Any) -> Any:
        BODIES.append(1)
        if sown:
            scope.sow("intermediates", "x", x)
        return body(scope.param("w", lambda key: jnp.float32(0.3)), x)

    if kind == "custom_vjp":
        lifted: Any = liftcore.custom_vjp(layer)
        plain: Any = jax.custom_vjp(body)

        def backward(residuals: Any, ct: Any) -> Any:
            w, x = residuals
            return 2 * ct * jnp.cos(w * x) * x, 3 * ct * jnp.cos(w * x) * w

        def pull(residuals: Any, ct: Any) -> Any:
            dw, dx = backward(residuals, ct)
            return {"params": {"w": dw}}, dx

        lifted.defvjp(lambda scope, x: (lifted(scope, x), (scope.get_variable("params", "w"), x)), pull)
        plain.defvjp(lambda w, x: (plain(w, x), (w, x)), backward)
        return lifted, plain
    lifted, plain = liftcore.custom_jvp(layer), jax.custom_jvp(body)

    def rule(scope: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        y = lifted(scope, *primals)
        return y, (2 * variable_tangents["params"]["w"] + 3 * tangents[0]) * y

    def plain_rule(primals: Any, tangents: Any) -> Any:
        y = plain(*primals)
        return y, (2 * tangents[0] + 3 * tangents[1]) * y

    lifted.defjvp(rule)
    plain.defjvp(plain_rule)
    return lifted, plain


BODIES: list[int] = []


def _sine(w: Any, x: Any) -> Any:
    return jnp.sin(w * x)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("sown", [False, True])
@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit], ids=["alone", "remat", "jit"])
def test_a_rule_may_call_the_function_and_derivatives_of_every_order_are_as_in_jax(
    kind: str, sown: bool, lift: Any
) -> None:
    lifted, plain = _ruled(kind, _sine, sown)
    model = lift(lambda scope, x: lifted(scope, x))

    def apply(w: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(model, mutable=["intermediates"])({"params": {"w": w}}, x)
        assert list(mutated) == (["intermediates"] if sown else [])
        return y

    args = jnp.float32(0.3), jnp.float32(0.7)
    for derive in (
        lambda fn: fn,
        lambda fn: jax.grad(fn, (0, 1)),
        lambda fn: jax.grad(jax.grad(fn, 1), (0, 1)),
        lambda fn: jax.grad(jax.grad(jax.grad(fn, 1)), (0, 1)),
        lambda fn: jax.jit(jax.vmap(jax.grad(jax.grad(fn, 1), (0, 1)), (None, None), axis_size=2)),
    ):
        assert_same(derive(apply)(*args), derive(plain)(*args))


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_rule_that_calls_the_function_runs_it_once_more(kind: str) -> None:
    lifted, _ = _ruled(kind, _sine)
    BODIES.clear()
    y, variables = liftcore.init(lifted)(key(0), 0.7)
    assert y == _sine(jnp.float32(0.3), 0.7)
    assert variables == {"params": {"w": jnp.float32(0.3)}}
    assert len(BODIES) == 2


def test_a_rule_that_calls_the_function_draws_its_keys() -> None:
    def noisy(scope: Any, x: Any) -> Any:
        return x * uniform(scope.make_rng("noise"), ())

    ruled = liftcore.custom_jvp(noisy)

    def rule(scope: Any, primals: Any, tangents: Any, _: Any) -> Any:
        y = ruled(scope, *primals)
        return y, tangents[0] * y**2

    ruled.defjvp(rule)
    apply = functools.partial(liftcore.apply(ruled), {}, rngs={"noise": key(0)})
    y = apply(0.5)
    assert y == liftcore.apply(noisy)({}, 0.5, rngs={"noise": key(0)})
    np.testing.assert_allclose(jax.grad(apply)(0.5), y**2, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(apply))(0.5), 2 * y * y**2, rtol=1e-6)

    def late(scope: Any, primals: Any, tangents: Any, _: Any) -> Any:
        scope.make_rng("noise")
        return ruled(scope, *primals), tangents[0]

    ruled.defjvp(late)
    with pytest.raises(LiftArgumentError, match=r"late, the rule of .* draws keys before it calls .*Call the function"):
        apply(0.5)


def test_a_rule_may_call_the_function_on_other_arguments() -> None:
    def power(scope: Any, n: int, x: Any) -> Any:
        return x if n == 1 else x * power(scope, n - 1, x)

    lifted = liftcore.custom_jvp(power, nondiff_argnums=(1,))

    def rule(scope: Any, n: int, primals: Any, tangents: Any, _: Any) -> Any:
        slope = 1.0 if n == 1 else n * lifted(scope, n - 1, *primals)
        return lifted(scope, n, *primals), slope * tangents[0]

    lifted.defjvp(rule)
    apply = functools.partial(liftcore.apply(lifted), {}, 4)
    for order, expected in enumerate((16.0, 32.0, 48.0, 48.0)):
        derived = apply
        for _ in range(order):
            derived = jax.grad(derived)
        assert derived(2.0) == expected

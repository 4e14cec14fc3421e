"""`nn.custom_vjp`, `nn.custom_jvp` and `nn.custom_vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
import nnx_like
from liftcore import filters
from linen_like.errors import LiftArgumentError, LiftError
from tests.lift.quick import compiled, key, uniform
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes


class Model(nn.Module):
    """Runs something with a layer."""

    run: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.run(nn.Dense(3, name="dense"), x)


def body(mdl: Any, x: Any) -> Any:
    return mdl(x)


def signed(mdl: Any, x: Any) -> Any:
    """The gradient with respect to variables loses its size."""

    def backward(pullback: Any, cotangent: Any) -> Any:
        of_variables, of_x = pullback(cotangent)
        return jax.tree.map(jnp.sign, of_variables), 10 * of_x

    return nn.custom_vjp(body, lambda mdl, x: nn.vjp(body, mdl, x), backward)(mdl, x)


def test_rule_of_custom_vjp_takes_the_place_of_the_gradient() -> None:
    y, variables = Model(signed).init_with_output(KEY, X)
    assert_same(variables, Model(body).init(KEY, X))
    assert_close(y, Model(body).apply(variables, X))

    def loss(variables: Any, x: Any, run: Any) -> Any:
        return (Model(run).apply(variables, x) ** 2).sum()

    found, plain = (jax.grad(loss, (0, 1))(variables, X, run) for run in (signed, body))
    assert_close(found, (jax.tree.map(jnp.sign, plain[0]), 10 * plain[1]))
    grads = jax.jit(jax.grad(loss), static_argnums=2)(variables, X, signed)
    assert_close(grads, found[0])


def test_rules_take_none_for_zero_and_leave_out_variables() -> None:
    def run(mdl: Any, x: Any) -> Any:
        def forward(mdl: Any, x: Any) -> Any:
            return mdl(x), x.sum(0)

        def backward(residual: Any, cotangent: Any) -> Any:
            return {"params": {"bias": residual}}, None

        return nn.custom_vjp(body, forward, backward)(mdl, x)

    variables = Model(run).init(KEY, X)
    of_variables, of_x = jax.grad(lambda *args: Model(run).apply(*args).sum(), (0, 1))(variables, X)
    assert_close(of_variables["params"]["dense"], {"bias": X.sum(0), "kernel": jnp.zeros((3, 3))})
    assert_close(of_x, jnp.zeros_like(X))


def test_arguments_without_a_derivative_and_methods() -> None:
    class Scaled(nn.Module):
        def setup(self) -> None:
            self.scale = self.param("scale", nn.initializers.ones, ())

        def scaled(self, mode: str, x: Any, by: Any) -> Any:
            return x * self.scale * by if mode == "times" else x + self.scale * by

        def forward(self, mode: str, x: Any, by: Any) -> Any:
            return self.scaled(mode, x, by), (x, by)

        @staticmethod
        def backward(mode: str, residuals: Any, cotangent: Any) -> Any:
            seen.append(mode)
            return {"params": {"scale": jnp.float32(7)}}, cotangent, None

        custom = nn.custom_vjp(scaled, forward, backward.__func__, nondiff_argnums=(1,))

        def __call__(self, x: Any) -> Any:
            return self.custom("times", x, 2.0) + self.custom("plus", x, 3.0)

    seen: list[str] = []
    variables = Scaled().init(KEY, X)
    grads = jax.grad(lambda variables: Scaled().apply(variables, X).sum())(variables)
    assert grads == {"params": {"scale": 14}}
    assert sorted(seen) == ["plus", "times"]
    assert_close(Scaled().apply(variables, X), 2 * X + X + 3)


@pytest.mark.parametrize("wrt", ["lora", "params"])
def test_filter_says_which_variables_have_cotangents(wrt: str) -> None:
    chosen = filters.PathContains("bias") if wrt == "lora" else "params"

    def run(mdl: Any, x: Any) -> Any:
        def forward(mdl: Any, x: Any) -> Any:
            return nn.vjp(body, mdl, x, vjp_variables=chosen)

        return nn.custom_vjp(body, forward, lambda pullback, cotangent: pullback(cotangent), chosen)(mdl, x)

    variables = Model(run).init(KEY, X)
    grads = jax.grad(lambda variables: Model(run).apply(variables, X).sum())(variables)["params"]["dense"]
    assert (grads["bias"] == 2).all()
    assert bool((grads["kernel"] != 0).any()) is (wrt == "params")


def test_tuple_of_modules_has_a_tuple_of_cotangents() -> None:
    class Two(nn.Module):
        backward: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            def both(modules: Any, x: Any) -> Any:
                return modules[0](x) * modules[1](x)

            def forward(modules: Any, x: Any) -> Any:
                return nn.vjp(both, modules, x)

            modules = nn.Dense(3, name="a"), nn.Dense(3, name="b")
            return nn.custom_vjp(both, forward, self.backward)(modules, x)

    def swapped(pullback: Any, cotangent: Any) -> Any:
        (of_a, of_b), of_x = pullback(cotangent)
        return (of_b, of_a), of_x

    variables = Two(swapped).init(KEY, X)

    def loss(variables: Any, backward: Any) -> Any:
        return Two(backward).apply(variables, X).sum()

    found = jax.grad(loss)(variables, swapped)["params"]
    plain = jax.grad(loss)(variables, lambda pullback, cotangent: pullback(cotangent))["params"]
    assert_close((found["a"], found["b"]), (plain["b"], plain["a"]))
    with pytest.raises(LiftArgumentError, match=r"nn\.custom_vjp: expected trees of variables in the structure"):
        jax.grad(loss)(variables, lambda pullback, cotangent: ({"params": {}}, cotangent))


def test_arguments_of_a_function_with_a_rule_may_be_passed_by_name() -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        rules = (
            nn.custom_vjp(body, lambda mdl, x: nn.vjp(body, mdl, x), lambda pullback, cotangent: pullback(cotangent)),
            nn.custom_jvp(body, lambda mdl, xs, dxs, variables: nn.jvp(body, mdl, xs, dxs, variables)),
            nn.custom_vmap(body, lambda size, batched, mdl, x: (x, True)),
        )
        return [rule(*args, **kwargs) for rule in rules]

    variables = Model(run).init(KEY, X)
    assert_same(Model(lambda mdl, x: run(mdl, x=x)).apply(variables, X), Model(run).apply(variables, X))
    with pytest.raises(TypeError, match="missing a required argument") as caught:
        Model(lambda mdl, x: run(mdl, y=x)).apply(variables, X)
    assert "Call it with what it takes" in "".join(caught.value.__notes__)


def test_wrong_rules_are_told() -> None:
    def wrong_number(mdl: Any, x: Any) -> Any:
        return nn.custom_vjp(body, lambda mdl, x: (mdl(x), x), lambda x, y: ({}, y, y))(mdl, x)

    def no_pair(mdl: Any, x: Any) -> Any:
        return nn.custom_vjp(body, lambda mdl, x: mdl(x), lambda x, y: ({}, y))(mdl, x)

    def unknown(mdl: Any, x: Any) -> Any:
        return nn.custom_vjp(body, lambda mdl, x: (mdl(x), x), lambda x, y: ({"params": {"w": x}}, y))(mdl, x)

    variables = Model(body).init(KEY, X)
    for run, text in (
        (
            wrong_number,
            r"custom_vjp\(body\) at /dense: expected a cotangent for the scope \(or module\) and one for each of 1",
        ),
        (no_pair, r"expected the pair `result, residuals`"),
        (unknown, r'"params/w"'),
    ):
        with pytest.raises(LiftError, match=text):
            jax.grad(lambda x, run=run: Model(run).apply(variables, x).sum())(X)


# --- custom_jvp -------------------------------------------------------------------------------------------------------


def rounded(mdl: Any, x: Any) -> Any:
    """Rounds, and has the derivative of the layer."""

    def rule(mdl: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        y, tangent = nn.jvp(body, mdl, primals, tangents, variable_tangents)
        return jnp.round(y), tangent

    return nn.custom_jvp(lambda mdl, x: jnp.round(mdl(x)), rule)(mdl, x)


def test_rule_of_custom_jvp_takes_the_place_of_the_derivative() -> None:
    y, variables = Model(rounded).init_with_output(KEY, X)
    assert_close(y, jnp.round(Model(body).apply(variables, X)))
    assert_same(variables, Model(body).init(KEY, X))
    both = (variables, X), (variables, X)
    found, plain = (jax.jvp(lambda *args, run=run: Model(run).apply(*args), *both) for run in (rounded, body))
    assert_close(found, (jnp.round(plain[0]), plain[1]))
    found, plain = (
        jax.grad(lambda *args, run=run: Model(run).apply(*args).sum(), (0, 1))(variables, X) for run in (rounded, body)
    )
    assert_close(found, plain)


def test_rule_of_custom_jvp_sees_only_what_its_filter_takes() -> None:
    def run(mdl: Any, x: Any) -> Any:
        def rule(mdl: Any, scale: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
            assert shapes(variable_tangents) == {"params": {"bias": (3,)}}
            return scale * mdl(*primals), scale * variable_tangents["params"]["bias"] + 0 * tangents[0]

        bias = filters.PathContains("bias")
        return nn.custom_jvp(lambda mdl, scale, x: scale * mdl(x), rule, bias, (1,))(mdl, 2.0, x)

    variables = Model(run).init(KEY, X)
    grads = jax.grad(lambda variables: Model(run).apply(variables, X).sum())(variables)["params"]["dense"]
    assert_close(grads, {"bias": jnp.full(3, 4.0), "kernel": jnp.zeros((3, 3))})


# --- custom_vmap ------------------------------------------------------------------------------------------------------


def test_rule_of_custom_vmap_takes_the_place_of_batching() -> None:
    seen: list[Any] = []

    def rule(axis_size: int, in_batched: Any, mdl: Any, x: Any, by: Any) -> Any:
        seen.append((axis_size, in_batched, x.shape))
        return mdl(x) * by, True

    def run(mdl: Any, x: Any) -> Any:
        layer = nn.custom_vmap(lambda mdl, x, by: mdl(x) * by, rule)
        elements = nn.vmap(layer, {"params": None}, False, in_axes=(0, None))
        return elements(mdl, x, 2.0)

    y, variables = Model(run).init_with_output(KEY, X)
    tree = {"params": {"bias": False, "kernel": False}}
    assert seen == [(2, (tree, True, False), (2, 3))]
    assert_close(y, 2 * Model(body).apply(variables, X))
    assert_close(Model(run).apply(variables, X), y)


def test_rule_of_custom_vmap_may_only_read() -> None:
    def run(mdl: Any, x: Any) -> Any:
        def rule(axis_size: int, in_batched: Any, mdl: Any, x: Any) -> Any:
            return x + jax.random.normal(mdl.make_rng("params")), True

        return nn.vmap(nn.custom_vmap(body, rule), {"params": None}, False)(mdl, x)

    with pytest.raises(LiftError) as caught:
        Model(run).init(KEY, X)
    assert "it may read variables" in "".join(caught.value.__notes__)


def test_functions_with_rules_keep_their_names() -> None:
    for made in (nn.custom_vjp(body, body, body), nn.custom_jvp(body, body), nn.custom_vmap(body, body)):
        assert (made.__name__, made.is_lifted) == ("body", True)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_rule_may_call_the_function_itself(kind: str) -> None:
    def sine(mdl: Any, x: Any) -> Any:
        return jnp.sin(mdl(x))

    def forward(mdl: Any, x: Any) -> Any:
        return ruled(mdl, x), (x, mdl.get_variable("params", "kernel"))

    def backward(residuals: Any, ct: Any) -> Any:
        x, kernel = residuals
        return {"params": {"kernel": 2 * x.T @ ct}}, 3 * ct @ kernel.T * x

    def rule(mdl: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        y = ruled(mdl, *primals)
        return y, y**2 * (tangents[0].sum() + variable_tangents["params"]["kernel"].sum(0))

    ruled: Any = nn.custom_vjp(sine, forward, backward) if kind == "custom_vjp" else nn.custom_jvp(sine, rule)
    plain: Any = getattr(jax, kind)(lambda kernel, x: jnp.sin(x @ kernel))
    if kind == "custom_vjp":
        plain.defvjp(
            lambda kernel, x: (plain(kernel, x), (x, kernel)),
            lambda residuals, ct: (backward(residuals, ct)[0]["params"]["kernel"], backward(residuals, ct)[1]),
        )
    else:
        plain.defjvp(
            lambda primals, tangents: (
                plain(*primals),
                plain(*primals) ** 2 * (tangents[1].sum() + tangents[0].sum(0)),
            )
        )

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return ruled(nn.Dense(2, use_bias=False, name="dense"), x)

    y, variables = Layer().init_with_output(KEY, X)
    kernel = variables["params"]["dense"]["kernel"]
    assert_same(y, plain(kernel, X))

    def loss(kernel: Any, x: Any) -> Any:
        return Layer().apply({"params": {"dense": {"kernel": kernel}}}, x).sum()

    def plain_loss(kernel: Any, x: Any) -> Any:
        return plain(kernel, x).sum()

    def twice(loss: Callable[..., Any]) -> Any:
        return jax.grad(lambda *args: sum((one**2).sum() for one in jax.grad(loss, (0, 1))(*args)), (0, 1))(kernel, X)

    assert_close(jax.grad(loss, (0, 1))(kernel, X), jax.grad(plain_loss, (0, 1))(kernel, X))
    assert_close(twice(loss), twice(plain_loss))


class _Noisy(nn.Module):
    """Draws for a parameter and a variable, and between and after them."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = x * self.param("w", uniform) + uniform(self.make_rng("noise"))
        return y + self.variable("consts", "c", lambda: uniform(self.make_rng("noise"))).value


class _FromSetup(nn.Module):
    def setup(self) -> None:
        self.one, self.other = _Noisy(), _Noisy()

    def __call__(self, x: Any) -> Any:
        return self.one(self.other(self.one(x)))


class _Shared(nn.Module):
    inner: nn.Module

    def __call__(self, x: Any) -> Any:
        return self.inner(self.inner(x))


class _Names(nn.Module):
    """One submodule under two names, and in another one."""

    def setup(self) -> None:
        self.first = _Noisy()
        self.second, self.third = self.first, _Shared(self.first)

    def __call__(self, x: Any) -> Any:
        return self.third(self.second(self.first(x)))


class _Looped(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        layer, jitted = _Noisy(), nn.jit(nn.remat(_Noisy))()
        for _ in range(2):
            x = jitted(layer(x))
        shared = {"variable_broadcast": ("params", "consts"), "split_rngs": {"params": False}, "length": 2}
        return nn.scan(lambda mdl, x, _: (mdl(x), None), **shared)(layer, x, None)[0]


class _ToLinen(nn.Module):
    """An object that draws when it is made."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        class Scale(nnx_like.Module):
            def __init__(self, rngs: Any) -> None:
                self.w = nnx_like.Param(uniform(rngs.params()))

            def __call__(self, x: Any) -> Any:
                return x * self.w[...]

        layer = nnx_like.bridge.ToLinen(Scale)
        return _Noisy()(layer(layer(x)))


def _pulled(mdl: Any, x: Any) -> Any:
    lifted = nn.custom_vjp(body, lambda mdl, x: nn.vjp(body, mdl, x), lambda pullback, cotangent: pullback(cotangent))
    return nn.vjp(lifted, mdl, x)[0]


def _pushed(mdl: Any, x: Any) -> Any:
    lifted = nn.custom_jvp(body, lambda mdl, *args: nn.jvp(body, mdl, *args))
    return nn.jvp(lifted, mdl, (x,), (x,), variable_tangents={})[0]


@pytest.mark.parametrize("inner", [_Noisy, _FromSetup, _Names, _Looped, _ToLinen])
def test_a_rule_draws_once_for_each_variable_of_a_module_that_is_called_again(inner: Any) -> None:
    class Outer(nn.Module):
        run: Callable[..., Any]

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.run(inner(), x), [uniform(self.make_rng(name)) for name in ("params", "noise")]

    def run(x: Any) -> Any:
        return [Outer(run).init_with_output({"params": key(0)}, x) for run in (body, _pulled, _pushed)]

    expected, *found = compiled(run, X[0])
    assert_close(found, [expected, expected])

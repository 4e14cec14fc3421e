"""`nn.grad`, `nn.vjp`, `nn.jvp` and their kin, against JAX's own over `apply`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import LiftArgumentError
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes


class Loss(nn.Module):
    """A loss with an adapter beside its kernel, and a count of its calls."""

    @nn.compact
    def __call__(self, x: Any, y: Any = 0.0) -> Any:
        x = nn.tanh(nn.Dense(3, name="dense")(x)) * self.param("lora", nn.initializers.normal(), (3,))
        calls = self.variable("state", "calls", lambda: jnp.zeros(()))
        if self.is_mutable_collection("state"):
            calls.value += 1
        return ((x - y) ** 2).sum()

    @nn.compact
    def vector(self, x: Any) -> Any:
        return nn.tanh(nn.Dense(3, name="dense")(x)) * self.param("lora", nn.initializers.normal(), (3,))


class Model(nn.Module):
    """Runs something with a loss in it."""

    run: Callable[..., Any]

    @nn.compact
    def __call__(self, *args: Any) -> Any:
        return self.run(Loss(name="loss"), *args)


def body(mdl: Any, *args: Any) -> Any:
    return mdl(*args)


VARIABLES = Model(body).init(KEY, X)
PARAMS = VARIABLES["params"]["loss"]


def plain(params: Any, x: Any, y: Any = 0.0) -> Any:
    return Model(body).apply({**VARIABLES, "params": {"loss": params}}, x, y)


def vector(params: Any, x: Any) -> Any:
    return Loss().apply({"params": params}, x, method="vector")


# --- grad and value_and_grad ------------------------------------------------------------------------------------------


def test_by_default_the_gradient_is_a_tuple_of_those_of_the_primals() -> None:
    def run(mdl: Any, x: Any, y: Any) -> Any:
        return nn.grad(body, mdl, x, y), nn.value_and_grad(body, mdl, x)

    grads, (value, one) = Model(run).apply(VARIABLES, X, 0.5)
    assert_close(grads, jax.grad(plain, (1, 2))(PARAMS, X, 0.5))
    assert_close((value, one), jax.value_and_grad(plain, (1,))(PARAMS, X))


@pytest.mark.parametrize("argnums", [1, 2, (2, 1), (0, 2)])
def test_argnums_choose_among_the_module_and_the_primals(argnums: Any) -> None:
    def run(mdl: Any, x: Any, y: Any) -> Any:
        return nn.value_and_grad(body, mdl, x, y, argnums=argnums)

    value, grads = Model(run).apply(VARIABLES, X, 0.5)
    expected_value, expected = jax.value_and_grad(plain, argnums)(PARAMS, X, 0.5)
    if argnums == (0, 2):
        expected = {"params": expected[0]}, expected[1]
    assert_close((value, grads), (expected_value, expected))


def test_wrt_alone_gives_the_gradient_of_variables_down_to_single_ones() -> None:
    lora = filters.All("params", filters.PathContains("lora"))

    def run(mdl: Any, x: Any) -> Any:
        return [nn.grad(body, mdl, x, wrt=wrt) for wrt in ("params", lora, filters.PathContains("dense"))]

    whole, only_lora, only_dense = Model(run).apply(VARIABLES, X)
    expected = jax.grad(plain)(PARAMS, X)
    assert_close(whole, {"params": expected})
    assert_close(only_lora, {"params": {"lora": expected["lora"]}})
    assert_close(only_dense, {"params": {"dense": expected["dense"]}})


def test_aux_is_handed_on_and_state_is_written() -> None:
    def run(mdl: Any, x: Any) -> Any:
        first = nn.grad(lambda mdl, x: (mdl(x), x.shape[0]), mdl, x, has_aux=True)
        return first, nn.value_and_grad(lambda mdl, x: (mdl(x), {"twice": 2 * x}), mdl, x, has_aux=True)

    (first, second), mutated = Model(run).apply(VARIABLES, X, mutable="state")
    expected = jax.grad(plain, (1,))(PARAMS, X)
    assert_close(first[0], expected)
    assert first[1] == 2
    assert_close(second, ((plain(PARAMS, X), {"twice": 2 * X}), expected))
    assert mutated["state"]["loss"]["calls"] == VARIABLES["state"]["loss"]["calls"] + 2


def test_init_gives_what_apply_gives() -> None:
    def run(mdl: Any, x: Any) -> Any:
        return nn.value_and_grad(body, mdl, x, argnums=(0, 1))

    result, variables = Model(run).init_with_output(KEY, X)
    assert_same(variables["params"], VARIABLES["params"])
    assert_close(result, Model(run).apply(variables, X))


def test_integers_among_the_primals_have_no_gradient_unless_it_is_asked_for() -> None:
    def scaled(mdl: Any, x: Any, n: Any) -> Any:
        return mdl(x) * n

    _, of_n = Model(lambda mdl, x: nn.grad(scaled, mdl, x, 3)).apply(VARIABLES, X)
    assert (of_n.shape, of_n.dtype) == ((), jax.dtypes.float0)
    with pytest.raises(TypeError, match="int32"):
        Model(lambda mdl, x: nn.grad(scaled, mdl, x, 3, argnums=(1, 2))).apply(VARIABLES, X)


def test_holomorphic_gradients() -> None:
    x = X.astype(complex)
    (found,) = Model(lambda mdl, x: nn.grad(lambda mdl, x: (x**2).sum(), mdl, x, holomorphic=True)).apply({}, x)
    assert_close(found, 2 * x)


class Shares(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.inner(nn.Dense(3, name="own")(x)).sum()


class Sharing(nn.Module):
    run: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        shared = nn.Dense(3, name="shared")
        return self.run(Shares(shared, name="shares"), shared, nn.Dense(3, name="other"), x)


def sharing(params: Any, x: Any) -> Any:
    hidden = nn.Dense(3).apply({"params": params["shares"]["own"]}, x)
    return nn.Dense(3).apply({"params": params["shared"]}, hidden).sum()


def test_gradient_of_a_tuple_of_modules_is_a_tuple() -> None:
    def run(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        return nn.grad(lambda modules, x: modules["b"][0](x), {"b": [shares], "a": shared}, x, wrt="params")

    grads, variables = Sharing(run).init_with_output(KEY, X)
    expected = jax.grad(sharing)(variables["params"], X)
    assert_close(grads, {"a": {"params": expected["shared"]}, "b": [{"params": expected["shares"]}]})
    assert_close(Sharing(run).apply(variables, X), grads)


def test_gradient_that_would_leave_a_module_out_is_refused() -> None:
    def field(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        return nn.grad(body, shares, x, wrt="params")

    def operand(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        return nn.vjp(lambda mdl, layer, x: layer(x), shared, other, x)

    for run, text in ((field, r"nn\.grad: .*'/shares'.*'/shared'"), (operand, r"nn\.vjp: .*'/shared'.*'/other'")):
        with pytest.raises(LiftArgumentError, match=text + r".*Pass a tuple of modules.*multi_scope"):
            Sharing(run).init(KEY, X)


def test_gradient_of_arguments_alone_leaves_nothing_out() -> None:
    def run(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        return nn.grad(lambda mdl, layer, x: (mdl(x) * layer(x)).sum(), shares, other, x)

    (of_layer, of_x), variables = Sharing(run).init_with_output(KEY, X)
    assert of_layer is None
    params = variables["params"]
    scaled = lambda x: (sharing(params, x) * nn.Dense(3).apply({"params": params["other"]}, x)).sum()  # noqa: E731
    assert_close(of_x, jax.grad(scaled)(X))


def test_wrong_uses_of_gradients_are_told() -> None:
    with pytest.raises(LiftArgumentError, match=r"nn\.grad: reduce_axes=\('batch',\) is not supported"):
        Model(lambda mdl, x: nn.grad(body, mdl, x, reduce_axes=("batch",))).apply(VARIABLES, X)
    with pytest.raises(LiftArgumentError, match=r"nn\.grad: there are no primals.*`wrt=\"params\"`"):
        Model(lambda mdl, x: nn.grad(lambda mdl: mdl(x), mdl)).apply(VARIABLES, X)
    with pytest.raises(LiftArgumentError, match=r"grad\(body\) at /loss: .*`wrt` takes no variable"):
        Model(lambda mdl, x: nn.grad(body, mdl, x, wrt="cache")).apply(VARIABLES, X)


# --- vjp --------------------------------------------------------------------------------------------------------------


def test_vjp_pulls_back_to_variables_and_primals() -> None:
    def run(mdl: Any, x: Any) -> Any:
        y, pullback = nn.vjp(Loss.vector, mdl, x)
        return y, pullback(2 * y), pullback(jnp.ones_like(y))

    y, pulled, ones = Model(run).apply(VARIABLES, X)
    expected, pullback = jax.vjp(vector, PARAMS, X)
    assert_close(y, expected)
    for found, cotangent in ((pulled, 2 * y), (ones, jnp.ones_like(y))):
        of_params, of_x = pullback(cotangent)
        assert_close(found, ({"params": of_params}, of_x))


def test_vjp_takes_other_variables_and_aux() -> None:
    def run(mdl: Any, x: Any) -> Any:
        y, pullback, aux = nn.vjp(
            lambda mdl, x: (mdl.vector(x), "aux"), mdl, x, has_aux=True, vjp_variables=filters.PathContains("lora")
        )
        return pullback(y), aux

    (of_variables, _), aux = Model(run).apply(VARIABLES, X)
    assert shapes(of_variables) == {"params": {"lora": (3,)}}
    assert aux == "aux"


def test_vjp_of_several_scopes_is_a_list_with_the_module_last() -> None:
    def run(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        y, pullback = nn.vjp(lambda mdl, layer, x: mdl(x) + layer(x).sum(), shares, other, x, multi_scope=True)
        alone = nn.vjp(lambda mdl, x: mdl(x), other, x, multi_scope=True)[1](jnp.ones((2, 3)))
        return pullback(jnp.ones_like(y)), alone

    (found, alone), variables = Sharing(run).init_with_output(KEY, X)
    of_variables, of_layer, _ = found
    expected = jax.grad(sharing)(variables["params"], X)
    assert_close(of_variables[0], {"params": expected["shared"]})
    assert_close(of_variables[-1], {"params": expected["shares"]})
    assert shapes(of_variables[1]) == {"params": {"bias": (3,), "kernel": (3, 3)}}
    assert of_layer is None
    assert isinstance(alone[0], list)
    assert len(alone[0]) == 1


def test_pullback_may_leave_a_jitted_function() -> None:
    def run(mdl: Any, x: Any) -> Any:
        return nn.vjp(Loss.vector, mdl, x)

    y, pullback = jax.jit(lambda variables, x: Model(run).apply(variables, x))(VARIABLES, X)
    assert_close(pullback(y)[1], jax.vjp(vector, PARAMS, X)[1](y)[1])


# --- jvp and linearize ------------------------------------------------------------------------------------------------


def test_jvp_moves_primals_and_the_variables_that_are_given() -> None:
    tangent = jax.tree.map(jnp.ones_like, PARAMS)

    def run(mdl: Any, x: Any) -> Any:
        given = [{"params": tangent}, {"params": {"lora": tangent["lora"]}}, {}, None]
        return [nn.jvp(Loss.vector, mdl, (x,), (2 * x,), some) for some in given]

    still = jax.tree.map(jnp.zeros_like, PARAMS)
    expected = [
        jax.jvp(vector, (PARAMS, X), (some, 2 * X))
        for some in (tangent, {**still, "lora": tangent["lora"]}, still, still)
    ]
    assert_close(Model(run).apply(VARIABLES, X), expected)


def test_jvp_moves_variables_of_other_collections() -> None:
    class Shifted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("shifts", "by", lambda: jnp.float32(1))

            def shift(mdl: Any, x: Any) -> Any:
                return x * mdl.get_variable("shifts", "by")

            return nn.jvp(shift, self, (x,), (0 * x,), {"shifts": {"by": jnp.float32(1)}}, has_aux=False)

    assert_close(Shifted().init_with_output(KEY, X)[0], (X, X))


def test_tangents_of_a_module_given_twice_count_once() -> None:
    tangent = {"params": jax.tree.map(jnp.ones_like, PARAMS)}

    def run(mdl: Any, x: Any) -> Any:
        def both(modules: Any, x: Any) -> Any:
            return (modules[0].vector(x) + modules[1].vector(x)) / 2

        return nn.jvp(both, (mdl, mdl), (x,), (x,), (tangent, tangent))

    assert_close(Model(run).apply(VARIABLES, X), jax.jvp(vector, (PARAMS, X), (tangent["params"], X)))


def test_linearize_moves_likewise() -> None:
    def run(mdl: Any, x: Any) -> Any:
        y, along, aux = nn.linearize(lambda mdl, x: (mdl.vector(x), x), mdl, x, has_aux=True)
        return y, aux, along(None, x), along({"params": {"lora": jnp.ones(3)}}, 0 * x)

    still = jax.tree.map(jnp.zeros_like, PARAMS)
    y, aux, of_x, of_lora = Model(run).apply(VARIABLES, X)
    assert_close(aux, X)
    assert_close((y, of_x), jax.jvp(vector, (PARAMS, X), (still, X)))
    assert_close((y, of_lora), jax.jvp(vector, (PARAMS, X), ({**still, "lora": jnp.ones(3)}, 0 * X)))


def test_tangents_that_fit_nothing_are_told() -> None:
    def named(mdl: Any, x: Any) -> Any:
        return nn.jvp(body, mdl, (x,), (x,), {"params": {"lorra": jnp.ones(3)}})

    def structured(mdl: Any, x: Any) -> Any:
        return nn.jvp(lambda modules, x: modules[0](x), (mdl, mdl), (x,), (x,), [{}, {}, {}])

    for run, text in ((named, r'jvp\(body\) at /loss: .*"params/lorra"'), (structured, r"nn\.jvp: expected trees")):
        with pytest.raises(LiftArgumentError, match=text):
            Model(run).apply(VARIABLES, X)


# --- Jacobians --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jacfwd", "jacrev"])
def test_jacobians_are_those_of_jax(name: str) -> None:
    lifted, of_jax = getattr(nn, name), getattr(jax, name)

    def run(mdl: Any, x: Any) -> Any:
        def with_aux(mdl: Any, x: Any) -> Any:
            return {"y": mdl.vector(x)}, x

        both = lifted(lambda mdl, x: {"y": mdl.vector(x)}, mdl, x, argnums=(0, 1))
        return (
            lifted(Loss.vector, mdl, x),
            lifted(Loss.vector, mdl, x, wrt="params"),
            both,
            lifted(with_aux, mdl, x, has_aux=True, argnums=1),
        )

    (of_x,), of_params, both, (one, aux) = Model(run).apply(VARIABLES, X)
    expected = of_jax(vector, (0, 1))(PARAMS, X)
    assert_close(of_x, expected[1])
    assert_close(of_params, {"params": expected[0]})
    assert_close(both, {"y": ({"params": expected[0]}, expected[1])})
    assert_close((one, aux), ({"y": expected[1]}, X))


@pytest.mark.rest
def test_hessians_are_those_of_jax() -> None:
    def run(mdl: Any, x: Any) -> Any:
        return (
            nn.hessian(body, mdl, x),
            nn.hessian(body, mdl, x, argnums=(0, 1)),
            nn.hessian(body, mdl, x, wrt="params"),
        )

    of_x, both, of_params = Model(run).apply(VARIABLES, X)
    expected = jax.hessian(plain, (0, 1))(PARAMS, X)
    assert_close(of_x, ((expected[1][1],),))
    assert_close(of_params["params"]["lora"]["params"], jax.hessian(plain)(PARAMS, X)["lora"])
    (of_kernel, of_kernel_x), theirs = both[0]["params"]["dense"]["kernel"], expected[0]["dense"]["kernel"]
    assert_close((of_kernel["params"], of_kernel_x), theirs)
    assert_close((both[1][0]["params"], both[1][1]), expected[1])


def test_jacobian_of_a_tuple_of_modules_is_a_tuple() -> None:
    def run(shares: Any, shared: Any, other: Any, x: Any) -> Any:
        return nn.jacrev(lambda modules, x: modules[1](modules[0](x)), (shared, other), x, wrt="params")

    jacobian, variables = Sharing(run).init_with_output(KEY, X)
    assert isinstance(jacobian, tuple)
    assert shapes(jacobian[0]) == {"params": {"bias": (2, 3, 3), "kernel": (2, 3, 3, 3)}}
    assert_close(Sharing(run).apply(variables, X), jacobian)


# --- in other lifts ---------------------------------------------------------------------------------------------------


def test_inner_step_of_training_in_a_scan() -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            fast = self.variable("fast", "w", lambda: jnp.ones(3))

            def loss(mdl: Any, x: Any) -> Any:
                return ((x * mdl.get_variable("fast", "w")) ** 2).sum()

            value, grads = nn.value_and_grad(loss, self, x, wrt="fast")
            fast.value = fast.value - 0.1 * grads["fast"]["w"]
            return x, value

    (_, values), variables = nn.scan(Inner, {}, False, "fast", length=4)().init_with_output(KEY, X[0], None)
    w, expected = jnp.ones(3), []
    for _ in range(4):
        expected.append(((X[0] * w) ** 2).sum())
        w = w - 0.1 * 2 * X[0] ** 2 * w
    assert_close(values, jnp.stack(expected))
    assert_close(variables["fast"]["w"], w)
    np.testing.assert_array_less(values[1:], values[:-1])

"""What stands on scopes among the arguments: bound modules, their methods, variables, and any class that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
from liftcore import Scope
from liftcore.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)


class Net(nn.Module):
    """A dense layer, a counter and dropout."""

    size: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        count = self.variable("state", "count", lambda: jnp.int32(0))
        count.value += 1
        return nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(nn.Dense(self.size)(x))

    @nn.compact
    def scaled(self, x: Any, factor: Any) -> Any:
        return factor * self.param("scale", nn.initializers.ones, ()) * x


def bound(**rngs: Any) -> Any:
    variables = Net().init(KEY, X)
    return Net().bind({**variables, "params": {**variables["params"], "scale": 2.0}}, rngs=rngs, mutable=["state"])


def call(module: Any, x: Any) -> Any:
    return module(x)


WAYS: dict[str, Callable[..., Any]] = {
    "filter_jit": eqx.filter_jit,
    "filter_checkpoint": eqx.filter_checkpoint,
    "filter_jit of filter_checkpoint": lambda fn: eqx.filter_jit(eqx.filter_checkpoint(fn)),
}


@pytest.mark.parametrize("way", ["filter_jit", "filter_checkpoint", "filter_jit of filter_checkpoint"])
def test_a_bound_module_is_lifted(way: str) -> None:
    module, other, rng = bound(dropout=KEY), bound(dropout=KEY), WAYS[way](call)
    for _ in range(3):
        np.testing.assert_array_equal(rng(module, X), other(X))
    assert module.variables["state"]["count"] == 4
    assert jax.tree.structure(module.variables) == jax.tree.structure(other.variables)


def test_a_bound_module_may_be_the_function_or_own_the_method() -> None:
    module, other = bound(), bound()
    np.testing.assert_array_equal(eqx.filter_jit(module)(X), other(X))
    np.testing.assert_array_equal(eqx.filter_jit(module.scaled)(X, 3), other.scaled(X, 3))
    assert module.variables["state"]["count"] == 2


def test_equal_modules_find_the_same_trace_and_others_do_not() -> None:
    traces: list[int] = []

    def run(module: Any, x: Any) -> Any:
        traces.append(module.size)
        return module.scaled(x, 1)

    compiled = eqx.filter_jit(run)
    for size in (3, 3, 4, 3):
        variables = {"params": {"scale": jnp.float32(size)}}
        np.testing.assert_array_equal(compiled(Net(size).bind(variables), X), size * X)
    assert traces == [3, 4]


def test_gradients_are_those_of_the_arguments() -> None:
    module = bound()
    gradient = eqx.filter_grad(lambda x, module: module.scaled(x, 3).sum())(X, module)
    np.testing.assert_array_equal(gradient, jnp.full_like(X, 6))
    value, back = eqx.filter_vjp(lambda x, module: module(x).sum(), X, module)
    assert value.shape == ()
    assert module.variables["state"]["count"] == 2
    np.testing.assert_allclose(back(1.0)[0][0], module.variables["params"]["Dense_0"]["kernel"].sum(1), rtol=1e-5)


def test_a_vmap_maps_the_variables_of_a_module() -> None:
    keys = jax.random.split(KEY, 4)
    variables = jax.vmap(lambda key: Net().init(key, X))(keys)
    module = Net().bind(variables, mutable=["state"])
    run = eqx.filter_vmap(call, in_axes=(None, None), variable_axes={...: 0}, axis_size=4)
    expected = jax.vmap(lambda variables: Net().bind(variables, mutable=["state"])(X))(variables)
    np.testing.assert_allclose(run(module, X), expected, rtol=1e-6)
    np.testing.assert_array_equal(module.variables["state"]["count"], [2] * 4)


def test_a_module_is_lifted_inside_a_model_too() -> None:
    class Model(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            first, second = Net(name="first"), Net(name="second")
            run = eqx.filter_jit(eqx.filter_checkpoint(call)) if self.lifted else call
            return run(second, run(first, x))

    rngs = {"params": KEY, "dropout": jax.random.key(1)}
    one, other = (Model(lifted).init_with_output(rngs, X) for lifted in (True, False))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_module_in_a_field_of_a_pytree_module() -> None:
    class Twice(eqx.Module):
        inner: Any
        factor: Any

        def __call__(self, x: Any) -> Any:
            return self.factor * self.inner(self.inner(x))

    module, other = bound(), bound()
    np.testing.assert_allclose(eqx.filter_jit(Twice(module, 2.0))(X), 2 * other(other(X)), rtol=1e-6)
    assert module.variables["state"]["count"] == 3
    gradient = eqx.filter_grad(lambda twice: twice(X).sum())(Twice(bound(), jnp.float32(2)))
    assert gradient.inner is None
    np.testing.assert_allclose(gradient.factor, bound()(bound()(X)).sum(), rtol=1e-5)


def test_a_module_that_is_not_bound_is_static() -> None:
    module = Net(4)
    assert eqx.filter_jit(lambda module, x: module.init(KEY, x)["params"]["Dense_0"]["kernel"])(module, X).shape == (
        3,
        4,
    )


def test_a_variable_is_lifted() -> None:
    @eqx.filter_jit
    def add(variable: Any, x: Any) -> None:
        variable.value += x

    scope = liftcore.bind({"state": {"n": jnp.zeros(3)}}, mutable=True)
    add(scope.variable("state", "n"), X[1])
    np.testing.assert_array_equal(scope.get_variable("state", "n"), X[1])


@dataclasses.dataclass(frozen=True)
class Pair:
    """A class that knows nothing of this package: two scopes and a name."""

    left: Scope
    right: Scope
    name: str

    def swap(self) -> None:
        left, right = self.left.get_variable("state", self.name), self.right.get_variable("state", self.name)
        self.left.put_variable("state", self.name, right)
        self.right.put_variable("state", self.name, left)

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        return [self.left, self.right], PairNamed(self.name)


@dataclasses.dataclass(frozen=True)
class PairNamed:
    """Makes a pair on other scopes."""

    name: str

    def __call__(self, scopes: Sequence[Scope]) -> Pair:
        return Pair(*scopes, self.name)


@pytest.mark.parametrize("way", ["filter_jit", "filter_checkpoint", "filter_jit of filter_checkpoint"])
def test_any_class_may_stand_on_scopes(way: str) -> None:
    pair = Pair(*(liftcore.bind({"state": {"n": value}}, mutable=True) for value in (X, X + 1)), "n")  # type: ignore[misc]
    WAYS[way](lambda pair, x: pair.swap())(pair, X)
    np.testing.assert_array_equal(pair.left.get_variable("state", "n"), X + 1)
    np.testing.assert_array_equal(pair.right.get_variable("state", "n"), X)
    WAYS[way](lambda swap: swap())(pair.swap)
    np.testing.assert_array_equal(pair.left.get_variable("state", "n"), X)


def test_a_module_that_is_returned_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="it returned the scope /"):
        eqx.filter_jit(lambda module: module)(bound())

"""Idioms that code written for `flax.linen` uses: run on both libraries, with the same results bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from tests.layers.bits import assert_same_bits

linen = pytest.importorskip("flax.linen")

X = jnp.linspace(0.5, 2.0, 6).reshape(2, 3)
RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
IDIOMS: dict[str, Callable[[Any], Any]] = {}
ZERO = 0 * jnp.arange(1)[0]


def idiom(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Adds a function of a library that returns a model."""
    IDIOMS[build.__name__] = build
    return build


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom_gives_what_linen_gives(name: str) -> None:
    def results(nn: Any) -> Any:
        model = IDIOMS[name](nn)
        made, variables = model.init_with_output(RNGS, X)
        return made, variables, model.apply(variables, X, rngs=RNGS, mutable=["state"])

    assert_same_bits(results(linen_like), results(linen))


# --- a variable that is declared before a lift, and by the lifted function again ----------------------------------


def counter(mdl: Any) -> Any:
    return mdl.variable("state", "n", lambda: ZERO)


def counted(nn: Any, lifted: Callable[[Any, Any, Any], Any]) -> Any:
    """A model that counts before, within and between uses of a lift."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            n = counter(self)
            for _ in range(2):
                x = lifted(nn, self, x)
                n.value += 100
            return x, n.value

    return Model()


def add(number: int) -> Callable[[Any, Any], Any]:
    def branch(mdl: Any, x: Any) -> Any:
        mdl.variable("state", "n").value += number
        return x * number

    return branch


@idiom
def counting_in_branches(nn: Any) -> Any:
    return counted(nn, lambda nn, mdl, x: nn.cond(x.sum() > 4, add(2), add(3), mdl, x))


@idiom
def counting_in_one_of_many_branches(nn: Any) -> Any:
    return counted(nn, lambda nn, mdl, x: nn.switch(jnp.int32(x.sum()) % 3, [add(2), add(3), add(5)], mdl, x))


@idiom
def counting_in_the_body_of_a_scan(nn: Any) -> Any:
    def body(mdl: Any, carry: Any, x: Any) -> Any:
        counter(mdl).value += 1
        return carry + x, carry

    def lifted(nn: Any, mdl: Any, x: Any) -> Any:
        return nn.scan(body, variable_carry="state", split_rngs={"params": False})(mdl, jnp.zeros(3), x)[1]

    return counted(nn, lifted)


@idiom
def counting_in_a_while_loop(nn: Any) -> Any:
    def going_on(mdl: Any, x: Any) -> Any:
        return mdl.variable("state", "n").value % 100 < 4

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            counter(self)
            return nn.while_loop(going_on, add(1), self, x, carry_variables="state")

    return Model()


@idiom
def counting_at_each_depth(nn: Any) -> Any:
    def deep(mdl: Any, x: Any) -> Any:
        counter(mdl).value += 1
        return nn.remat(add(2))(mdl, x)

    return counted(nn, lambda nn, mdl, x: nn.jit(deep)(mdl, x))


@idiom
def a_parameter_seen_through_map_variables(nn: Any) -> Any:
    def body(mdl: Any, x: Any) -> Any:
        return x * mdl.param("w", nn.initializers.normal(), (3,))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            w = self.param("w", nn.initializers.normal(), (3,))
            doubled = nn.map_variables(body, "params", lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree))
            return doubled(self, x), w

    return Model()


@idiom
def a_parameter_in_a_derivative(nn: Any) -> Any:
    def body(mdl: Any, x: Any) -> Any:
        return (x * mdl.param("w", nn.initializers.normal(), (3,))).sum()

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            w = self.param("w", nn.initializers.normal(), (3,))
            y, pullback = nn.vjp(body, self, x)
            return y, pullback(1.0)[1], w

    return Model()


# --- partial constructors, and methods bound to a module, in place of classes and functions of a module ---------------


OWN: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
PARTIALS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda nn, dense: nn.vmap(dense, **OWN),
    "remat": lambda nn, dense: nn.remat(dense),
    "map_variables": lambda nn, dense: nn.map_variables(dense, "params", lambda tree: tree, init=True),
    "add_metadata_axis": lambda nn, dense: nn.add_metadata_axis(dense, variable_axes={"params": 0}),
}


@pytest.mark.parametrize("name", PARTIALS)
def test_a_partial_constructor_is_lifted_as_the_class_is(name: str) -> None:
    def results(nn: Any) -> Any:
        class Layer(nn.Module):
            features: int
            use_bias: bool = True

            @nn.compact
            def __call__(self, x: Any) -> Any:
                return nn.Dense(self.features, self.use_bias)(x)

        dense = functools.partial(functools.partial(Layer, use_bias=False), 3)
        return PARTIALS[name](nn, dense)(name="layer").init_with_output(RNGS, X)

    assert_same_bits(results(linen_like), results(linen))


def bound_methods(nn: Any, run: Callable[[Any, Any, Any], Any]) -> Any:
    """A model that gives its own methods to a lift."""

    class Model(nn.Module):
        def setup(self) -> None:
            self.dense, self.other = nn.Dense(3), nn.Dense(3)

        def both(self, x: Any) -> Any:
            return self.dense(x) + self.other(x)

        def one(self, x: Any) -> Any:
            return self.dense(x)

        def total(self, x: Any) -> Any:
            return self.both(x).sum()

        def going_on(self, carry: Any) -> Any:
            return carry[0] < 3

        def step(self, carry: Any) -> Any:
            return carry[0] + 1, self.one(carry[1])

        def __call__(self, x: Any) -> Any:
            self.both(x)
            return run(nn, self, x)

    return Model()


@idiom
def methods_as_branches_of_cond(nn: Any) -> Any:
    return bound_methods(nn, lambda nn, mdl, x: nn.cond(x.sum() > 4, mdl.both, mdl.one, mdl, x))


@idiom
def methods_as_branches_of_switch(nn: Any) -> Any:
    return bound_methods(nn, lambda nn, mdl, x: nn.switch(1, [mdl.both, mdl.one], mdl, x))


@idiom
def methods_of_a_while_loop(nn: Any) -> Any:
    return bound_methods(nn, lambda nn, mdl, x: nn.while_loop(mdl.going_on, mdl.step, mdl, (0, x)))


@idiom
def methods_in_derivatives(nn: Any) -> Any:
    def run(nn: Any, mdl: Any, x: Any) -> Any:
        y, pullback = nn.vjp(mdl.one, mdl, x)
        return y, pullback(jnp.ones_like(y)), nn.value_and_grad(mdl.total, mdl, x)

    return bound_methods(nn, run)


# --- places and small arguments ---------------------------------------------------------------------------------------


@idiom
def a_module_from_outside_that_shares_the_place_of_its_parent(nn: Any) -> Any:
    class Deep(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    class Around(nn.Module):
        child: Any

        def setup(self) -> None:
            nn.share_scope(self, self.child)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.child(x) * self.param("scale", nn.initializers.normal(), ())

    class Model(nn.Module):
        model: Any

        def __call__(self, x: Any) -> Any:
            return self.model(x)

    layers = [nn.Dense(size, kernel_init=nn.initializers.ones) for size in (3, 2)]
    return Model(Around(Deep(nn.Sequential(layers))))


@idiom
def numbers_as_flags_of_split_rngs(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            own = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": 1})(3, name="own")
            equal = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": 0})(3, name="equal")
            return own(x) + equal(x)

    return Model()

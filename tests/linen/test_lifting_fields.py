"""Modules that reach a lift as fields, arguments or attributes: adopted where they are unbound, else shared."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import TransformedMethodReturnValueError
from tests.linen.lifted import (
    KEY,
    LIFTS,
    RNGS,
    SHARED,
    SHARING,
    Block,
    X,
    assert_close,
    assert_same,
    dense_of,
    shapes,
)

lifts = pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
transparent = pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])
sharing = pytest.mark.parametrize("name", SHARING)
TIMES = {"vmap": 1, "scan": 2, "remat": 1, "jit": 1}


class Uses(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        return self.inner(x) + nn.Dense(3)(x), None


@sharing
def test_unbound_module_in_a_field_is_adopted(name: str) -> None:
    lift = SHARING[name]

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(Uses)(nn.Dense(3, parent=None), name="uses")(x, None)[0]

    variables = Model().init(KEY, X)
    assert sorted(variables["params"]["uses"]) == ["Dense_0", "inner"]
    variables = lift(Uses)(nn.Dense(3)).init(KEY, X, None)
    assert sorted(variables["params"]) == ["Dense_0", "inner"]


@sharing
def test_module_bound_elsewhere_is_shared(name: str) -> None:
    lift = SHARING[name]

    class Model(nn.Module):
        first: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            if self.first:
                x = dense(x)
            x, _ = lift(Uses)(dense, name="uses")(x, None)
            return dense(x)

    for first in (True, False):
        y, variables = Model(first).init_with_output(KEY, X)
        assert sorted(variables["params"]) == ["dense", "uses"]
        assert list(variables["params"]["uses"]) == ["Dense_0"]
        assert shapes(variables["params"]["dense"]) == {"bias": (3,), "kernel": (3, 3)}
        dense = dense_of(variables, "dense")
        own = dense_of({"params": variables["params"]["uses"]}, "Dense_0")
        x = dense(X) if first else X
        for _ in range(TIMES[name]):
            x = dense(x) + own(x)
        assert_close(y, dense(x))
        assert_close(Model(first).apply(variables, X), y)


@transparent
def test_parent_may_be_a_field_of_its_child(lift: Any) -> None:
    class Child(nn.Module):
        up: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.up.head(nn.Dense(3)(x))

    class Model(nn.Module):
        lifted: bool

        def setup(self) -> None:
            self.head = nn.Dense(3)
            self.child = (lift(Child) if self.lifted else Child)(self)

        def __call__(self, x: Any) -> Any:
            return self.child(x)

    y, variables = Model(False).init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["child", "head"]
    lifted, made = Model(True).init_with_output(KEY, X)
    assert_same(made, variables)
    assert_close(lifted, y)


@transparent
def test_gradients_of_a_shared_module_add_up(lift: Any) -> None:
    class Model(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            uses = lift(Uses) if self.lifted else Uses
            return dense(uses(dense, name="uses")(dense(x))[0])

    def loss(variables: Any, lifted: bool) -> Any:
        return Model(lifted).apply(variables, X).sum()

    variables = Model(False).init(KEY, X)
    assert_close(jax.grad(loss)(variables, True), jax.grad(loss)(variables, False))


@transparent
def test_equal_blocks_with_different_shared_modules_are_told_apart(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            one, two = nn.Dense(3, name="one"), nn.Dense(3, name="two")
            for inner in (one, two, one):
                x, _ = lift(Uses)(inner)(x)
            return x

    y, variables = Model().init_with_output(KEY, X)
    x = X
    for index, name in enumerate(("one", "two", "one")):
        own = dense_of({"params": variables["params"][f"Uses_{index}"]}, "Dense_0")
        x = dense_of(variables, name)(x) + own(x)
    assert_close(y, x)
    assert_close(Model().apply(variables, X), y)


@transparent
def test_one_module_in_two_fields_and_in_containers_stays_one(lift: Any) -> None:
    class Two(nn.Module):
        left: nn.Module
        right: Any

        def __call__(self, x: Any) -> Any:
            return self.right["b"][0](self.left(x)) + self.right["a"](x)

    class Model(nn.Module):
        lifted: bool
        bound: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            inner = nn.Dense(3) if self.bound else nn.Dense(3, parent=None)
            two = lift(Two) if self.lifted else Two
            return two(inner, {"b": [inner], "a": nn.Dense(3, parent=None)}, name="two")(x)

    for bound in (True, False):
        y, variables = Model(False, bound).init_with_output(KEY, X)
        lifted, made = Model(True, bound).init_with_output(KEY, X)
        assert_same(made, variables)
        assert_close(lifted, y)


@pytest.mark.parametrize("name", ["vmap", "remat", "jit"])
def test_modules_passed_as_arguments_keep_their_place(name: str) -> None:
    over = functools.partial(nn.vmap, in_axes=(None, 0), **SHARED) if name == "vmap" else SHARING[name]

    class Calls(nn.Module):
        @nn.compact
        def __call__(self, dense: Any, x: Any) -> Any:
            return dense(x) + nn.Dense(3)(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            x = over(lambda mdl, dense, x: dense(x))(self, dense, x)
            return dense(over(Calls)(name="calls")(dense, x))

    y, variables = Model().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["calls", "dense"]
    dense, own = dense_of(variables, "dense"), dense_of({"params": variables["params"]["calls"]}, "Dense_0")
    x = dense(X)
    assert_close(y, dense(dense(x) + own(x)))
    assert_close(Model().apply(variables, X), y)


def test_module_may_be_sliced_over_as_an_argument_that_is_broadcast() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            loop = SHARING["scan"](lambda mdl, x, dense: (dense(x), None), in_axes=nn.broadcast)
            return loop(self, dense(x), dense)[0]

    y, variables = Model().init_with_output(KEY, X)
    dense = dense_of(variables, "dense")
    assert list(variables["params"]) == ["dense"]
    assert_close(y, dense(dense(dense(X))))


@transparent
def test_modules_in_pytrees_of_keyword_arguments_keep_their_place(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layers = {"a": nn.Dense(3, name="a"), "b": [nn.Dense(3, name="b")]}
            return lift(lambda mdl, x, *, layers: layers["b"][0](layers["a"](x)))(self, x, layers=layers)

    y, variables = Model().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["a", "b"]
    assert_close(y, dense_of(variables, "b")(dense_of(variables, "a")(X)))
    assert_close(Model().apply(variables, X), y)


@transparent
def test_modules_may_be_given_twice_and_with_their_parents(lift: Any) -> None:
    class Parent(nn.Module):
        def setup(self) -> None:
            self.child = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.child(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def body(mdl: Any, parent: Any, again: Any, child: Any, itself: Any, x: Any) -> Any:
                return parent(again(child(x))) + nn.Dense(3, name="own", parent=itself)(x)

            parent = Parent(name="parent")
            return lift(body)(self, parent, parent, parent.child, self, x)

    y, variables = Model().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["own", "parent"]
    child = dense_of({"params": variables["params"]["parent"]}, "child")
    assert_close(y, child(child(child(X))) + dense_of(variables, "own")(X))


@transparent
def test_module_that_a_lifted_function_returns_is_refused(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(lambda mdl, x: nn.Dense(3))(self, x)(x)

    with pytest.raises(TransformedMethodReturnValueError, match=r"<lambda> at /\w+\(<lambda>\): it returned a Dense"):
        Model().init(KEY, X)


@lifts
def test_lists_of_lifted_modules_are_named_by_their_place(lift: Any) -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.blocks = [lift(Block)(), lift(Block)()]

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x, _ = block(x, None)
            return x

    y, variables = Model().init_with_output(RNGS, X)
    assert list(variables["params"]) == ["blocks_0", "blocks_1"]
    assert_close(Model().apply(variables, X), y)


def test_lifted_modules_work_in_sequential() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    model = nn.Sequential([nn.remat(Layer)(), nn.relu, nn.vmap(Layer, **SHARED)(), nn.jit(Layer)()])
    plain = nn.Sequential([Layer(), nn.relu, Layer(), Layer()])
    assert_same(model.init(KEY, X), plain.init(KEY, X))
    assert_close(model.apply(plain.init(KEY, X), X), plain.apply(plain.init(KEY, X), X))


def test_bound_lifted_module_may_be_looked_into() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.block = nn.remat(Setup)()

        def __call__(self, x: Any) -> Any:
            return self.block(x)

    class Setup(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    variables = Model().init(KEY, X)
    bound = Model().bind(variables)
    assert_close(bound(X), Model().apply(variables, X))
    assert_close(bound.block.dense(X), Model().apply(variables, X))
    block, own = bound.block.unbind()
    assert_close(block.apply(own, X), Model().apply(variables, X))
    assert_same(own["params"], variables["params"]["block"])


def test_lazy_init_makes_the_same_variables_through_lifts() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for lift in LIFTS.values():
                x, _ = lift(Block)()(x, None)
            return x

    shape = jax.ShapeDtypeStruct(X.shape, jnp.float32)
    assert_same(Model().lazy_init(RNGS, shape), Model().init(RNGS, X))

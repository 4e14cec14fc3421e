"""Ordinary models as type checkers and editors see them: mypy checks this file, and it runs.

An error that is expected is ignored by its code; where it is not there, mypy says that the ignore is unused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, assert_type

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn

T = TypeVar("T")
X = jnp.ones((2, 3))


class MLP(nn.Module):
    features: Sequence[int]
    act: Callable[[jax.Array], jax.Array] = nn.relu
    table: ClassVar[dict[str, int]] = {}

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        for size in self.features[:-1]:
            x = self.act(nn.Dense(size, kernel_init=nn.initializers.he_normal())(x))
            x = nn.Dropout(0.5)(x, deterministic=not train)
        return nn.Dense(self.features[-1], name="head")(x)


class Block(nn.Module):
    width: int = 3

    def setup(self) -> None:
        self.first = nn.Dense(self.width)
        self.layers = [nn.Dense(self.width) for _ in range(2)]
        self.scale = self.param("scale", nn.initializers.ones, (self.width,))
        self.count = self.variable("counter", "n", jnp.zeros, ())

    def __call__(self, x: jax.Array) -> jax.Array:
        self.count.value += 1
        for layer in self.layers:
            x = layer(self.first(x))
        self.sow("intermediates", "x", x)
        return x * self.scale

    @nn.nowrap
    def doubled(self) -> int:
        return 2 * self.width

    @nn.jit
    def compiled(self, x: jax.Array) -> jax.Array:
        return self.first(x)


class Wide(Block, kw_only=True):
    depth: int
    inner: MLP = dataclasses.field(default_factory=lambda: MLP((1,)))


class Holder(nn.Module, Generic[T]):
    value: T


def test_constructors_have_the_fields_of_the_class_and_its_bases() -> None:
    assert_type(MLP((4, 2), name="mlp").features, Sequence[int])
    assert_type(Wide(depth=3, width=4, parent=None).inner.features, Sequence[int])
    assert_type(Holder(3).value, int)
    assert_type(Block().doubled(), int)


def test_wrong_constructors_are_told_by_type_checkers_too() -> None:
    MLP(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        MLP()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        MLP((3,), featurs=2)  # type: ignore[call-arg]


def test_copies_and_bound_modules_have_the_class_of_the_module() -> None:
    model = MLP((4, 2))
    variables = model.init(jax.random.key(0), X)
    assert_type(variables, dict[str, Any])
    assert_type(model.clone(act=nn.gelu), MLP)
    assert_type(model.copy(name="other"), MLP)
    assert_type(model.bind(variables), MLP)
    assert_type(model.bind(variables)(X), jax.Array)
    assert_type(model.bind(variables).unbind()[0], MLP)
    y, _ = model.apply(variables, X, train=True, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"])
    assert y.shape == (2, 2)


def test_lifted_classes_are_made_like_their_class() -> None:
    scanned = nn.scan(Block, length=3)
    assert_type(scanned(4).width, int)
    assert_type(nn.remat(Block)(width=2), Block)
    assert_type(nn.jit(MLP)((3,)).features, Sequence[int])
    assert_type(nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}), type[MLP])


def test_layers_of_a_stack_are_modules() -> None:
    stack = nn.Stack(MLP((3,)), 4)
    bound = stack.bind(stack.init(jax.random.key(0), X))
    assert_type(bound[0], nn.Module)
    assert_type(bound[1:], nn.Stack)
    assert_type(len(bound), int)


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def body(mdl: nn.Module, carry: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return carry + 1, None

        x = nn.remat(MLP)((3,), name="mlp")(x)
        x, _ = nn.scan(body, length=3)(self, x, None)
        y: jax.Array = nn.cond(x.sum() > 0, lambda mdl, x: x, lambda mdl, x: -x, self, x)
        return y

    @nn.remat
    @nn.compact
    def other(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(x)


def test_functions_and_methods_of_modules_are_lifted() -> None:
    model = Outer()
    assert model.init_with_output(jax.random.key(0), X)[0].shape == (2, 3)
    assert model.init_with_output(jax.random.key(0), X, method=Outer.other)[0].shape == (2, 2)
    assert model.init_with_output(jax.random.key(0), X, method="other")[0].shape == (2, 2)

"""Generic modules: the lift of `Layer[int]` is `Lifted[int]`, and modules inside know what made them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn

T = TypeVar("T")
S = TypeVar("S")
KEY, X = jax.random.key(0), jnp.ones((2, 3))
SEEN: list[Any] = []


class Layer(nn.Module, Generic[T]):
    size: int = 2

    @nn.compact
    def __call__(self, x: Any) -> Any:
        SEEN.append(getattr(self, "__orig_class__", None))
        return nn.Dense(self.size)(x)


class Pair(nn.Module, Generic[T, S]):
    def setup(self) -> None:
        self.dense = nn.Dense(3)

    def __call__(self, carry: Any, x: Any) -> Any:
        return self.dense(carry), x


class Outer(nn.Module):
    make: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.make()(x)


VMAP = functools.partial(nn.vmap, variable_axes={"params": 0}, split_rngs={"params": True})
LIFTS: dict[str, Callable[[Any], Any]] = {
    "remat": nn.remat,
    "jit": nn.jit,
    "vmap": VMAP,
    "remat of jit": lambda target: nn.remat(nn.jit(target)),
    "vmap of remat": lambda target: VMAP(nn.remat(target)),
    "methods": lambda target: nn.remat(target, methods=["__call__"]),
    "remat_scan": lambda target: nn.remat_scan(target, lengths=(2,)),
    "map_variables": lambda target: nn.map_variables(target, "params", init=True),
    "named_call": nn.named_call,
    "add_metadata_axis": lambda target: nn.add_metadata_axis(target, {"params": 0}),
}


@pytest.mark.parametrize("name", LIFTS)
def test_the_lift_of_an_alias_is_an_alias_of_the_lift(name: str) -> None:
    lift = LIFTS[name]
    of_class, of_alias = lift(Layer), lift(Layer[int])
    assert get_origin(of_alias) is of_class
    assert get_args(of_alias) == (int,)
    assert of_class[int] == of_alias != lift(Layer[str])
    x = X if name != "remat_scan" else X[:, :2]
    expected = Outer(of_class).init(KEY, x)
    SEEN.clear()
    found = Outer(of_alias).init(KEY, x)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    Outer(of_alias).apply(found, x)
    assert SEEN
    assert {get_args(seen) for seen in SEEN} == {(int,)}


def test_a_scanned_class_of_two_parameters() -> None:
    options: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 2}
    lifted = nn.scan(Pair[int, str], **options)
    assert lifted == nn.scan(Pair, **options)[int, str]
    assert lifted().init(KEY, X, None)["params"]["dense"]["kernel"].shape == (2, 3, 3)
    assert get_args(nn.remat(Pair[int, T])[str]) == (int, str)


def test_subclasses_of_lifted_aliases() -> None:
    class Plain(nn.remat(Layer[int])):  # type: ignore[misc]
        more: int = 1

    class Generics(nn.jit(Layer[T]), Generic[T]):  # type: ignore[misc]
        pass

    class Lower(Layer[int]):
        pass

    for cls in (
        Plain,
        Generics,
        Generics[str],
        nn.remat(Generics[str]),
        nn.remat(Lower),
        nn.jit(nn.remat(Generics))[T],
    ):
        name = (get_origin(cls) or cls).__name__
        model = Outer(cls)
        variables = model.init(KEY, X)
        assert list(variables["params"]) == [f"{name.removeprefix('Jit').removeprefix('Remat')}_0"]
        assert model.apply(variables, X).shape == (2, 2)


def test_a_partial_of_an_alias() -> None:
    lifted = nn.remat(functools.partial(Layer[int], size=4))
    assert lifted.func == nn.remat(Layer[int])
    assert Outer(lifted).init(KEY, X)["params"]["Layer_0"]["Dense_0"]["kernel"].shape == (3, 4)


def test_copies_know_the_alias_and_compiled_code_is_not_shared_between_aliases() -> None:
    assert get_args(Layer[int](2).clone().__orig_class__) == (int,)  # type: ignore[attr-defined]

    class Typed(nn.Module, Generic[T]):
        def __call__(self, x: Any) -> Any:
            return x.astype(get_args(self.__orig_class__)[0])  # type: ignore[attr-defined]

    for kind in (jnp.int32, jnp.float32, jnp.int32):
        assert Outer(nn.jit(Typed[kind])).apply({}, X).dtype == kind  # type: ignore[valid-type]

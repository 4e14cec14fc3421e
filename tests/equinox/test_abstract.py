"""Abstract attributes, strict classes, and partial functions as modules."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
from liftcore.errors import LiftArgumentError

X = jnp.arange(3.0)


class AbstractLayer(eqx.Module):
    """A class with every kind of abstract attribute."""

    size: eqx.AbstractVar[int]
    kind: eqx.AbstractClassVar[str]

    @abc.abstractmethod
    def __call__(self, x: Any) -> Any: ...

    def twice(self, x: Any) -> Any:
        return self(self(x))


class Half(AbstractLayer):
    """A class that leaves one of them abstract."""

    kind = "half"

    def __call__(self, x: Any) -> Any:
        return x + self.size


class Field(Half):
    """The attribute is a field."""

    size: int


class Property(Half):
    """The attribute is a property."""

    @property
    def size(self) -> int:  # type: ignore[override]
        return 3


class Own(Half):
    """The attribute is a field that `__init__` sets."""

    size: int

    def __init__(self) -> None:
        self.size = 4


@pytest.mark.parametrize(
    ("cls", "names"), [(AbstractLayer, ("__call__", "kind", "size")), (Half, ("size",)), (Field, ()), (Property, ())]
)
def test_a_class_that_lacks_an_attribute_is_abstract(cls: Any, names: tuple[str, ...]) -> None:
    assert tuple(sorted(cls.__abstractmethods__)) == names
    if names:
        with pytest.raises(TypeError, match=f"abstract class {cls.__name__}.*{names[-1]}"):
            cls()


def test_an_abstract_attribute_is_no_field() -> None:
    assert [Field(2).twice(X)[0], Property().twice(X)[0], Own().twice(X)[0]] == [4, 6, 8]
    assert jax.tree.leaves([Field(2), Property(), Own()]) == [2, 4]
    assert Field(2).kind == "half"


def test_annotations_that_are_no_strings() -> None:
    cls: Any = type(eqx.Module)(
        "Made", (eqx.Module,), {"__annotations__": {"x": eqx.AbstractVar[int], "y": eqx.AbstractClassVar, "z": int}}
    )
    assert sorted(cls.__abstractmethods__) == ["x", "y"]
    assert list(cls.__dataclass_fields__) == ["z"]


# -- strict ------------------------------------------------------------------------------------------------------------


def test_a_strict_class_is_abstract_or_final() -> None:
    class Strict(Half, strict=True):
        size: int

        def other(self) -> int:
            return self.size

    assert Strict(2).other() == 2
    with pytest.raises(LiftArgumentError, match=r"Below, strict: its base Strict is not abstract, so it is final"):

        class Below(Strict, strict=True):
            pass


@pytest.mark.parametrize("name", ["twice", "__call__"])
def test_a_strict_class_overrides_only_abstract_methods(name: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"{name} of Made, strict: it overrides a method of Half"):
        type(eqx.Module)("Made", (Half,), {name: lambda self, x: x}, strict=True)
    type(eqx.Module)("Made", (Half,), {name: lambda self, x: x})


# -- Partial -----------------------------------------------------------------------------------------------------------


def scale(w: Any, x: Any, *, power: int = 1) -> Any:
    return w * x**power


CALLS: dict[str, Callable[[Any], Any]] = {
    "positional": lambda e: e.Partial(scale, X)(2.0),
    "keyword": lambda e: e.Partial(scale, X, power=2)(2.0),
    "nested": lambda e: e.Partial(e.Partial(scale, power=2), X)(3.0),
    "jitted": lambda e: e.filter_jit(e.Partial(scale, X))(2.0),
    "gradient": lambda e: e.filter_grad(lambda fn: fn(2.0).sum())(e.Partial(scale, X)).args[0],
    "mapped": lambda e: e.filter_vmap(lambda fn: fn(2.0))(e.Partial(scale, X)),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_partial_is_that_of_equinox(case: str) -> None:
    equinox = pytest.importorskip("equinox")
    np.testing.assert_array_equal(CALLS[case](eqx), CALLS[case](equinox))


def test_a_keyword_is_replaced_and_the_function_is_a_child() -> None:
    assert eqx.Partial(scale, 2, power=2)(3, power=1) == 6
    inner = eqx.Partial(scale, X)
    assert jax.tree.leaves(eqx.Partial(inner, 2.0))[1] is X

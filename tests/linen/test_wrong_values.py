"""Values that a layer can do nothing with: fields that are no numbers, inputs that are no arrays, itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import LiftArgumentError
from tests.linen.lifted import KEY, X

# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lift", [lambda cls: cls, nn.remat, nn.jit, nn.vmap], ids=["plain", "remat", "jit", "vmap"])
def test_inputs_given_to_the_constructor_are_told_to_come_in_the_call(lift: Any) -> None:
    with pytest.raises(
        LiftArgumentError, match=r"use_bias of \w*Dense: expected a bool, given a float32\[2,3\] array"
    ) as caught:
        lift(nn.Dense)(3, X)
    assert caught.value.fix.endswith("Dense(…)(x)`.")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: nn.Dense("3"), "features"),  # type: ignore[arg-type]
        (lambda: nn.Dense(3.0), "features"),  # type: ignore[arg-type]
        (lambda: nn.Dense(X), "features"),  # type: ignore[arg-type]
        (lambda: nn.Dense(3, use_bias="no"), "use_bias"),  # type: ignore[arg-type]
        (lambda: nn.Conv("3", (3,)), "features"),  # type: ignore[arg-type]
        (lambda: nn.Dropout("0.5"), "rate"),  # type: ignore[arg-type]
        (lambda: nn.LayerNorm("1e-6"), "epsilon"),  # type: ignore[arg-type]
        (lambda: nn.LSTMCell("4"), "features"),  # type: ignore[arg-type]
        (lambda: nn.DenseGeneral("4"), "features"),  # type: ignore[arg-type]
        (lambda: nn.MultiHeadDotProductAttention(num_heads="2"), "num_heads"),  # type: ignore[arg-type]
    ],
)
def test_a_field_that_is_no_number_is_told_of_where_the_layer_is_made(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"^{field} of \w+: expected an? "):
        make()


def test_fields_of_ones_own_may_hold_anything() -> None:
    class Scale(nn.Module):
        by: float
        times: int = 1

        def __call__(self, x: Any) -> Any:
            return x * self.by

    class Wide(nn.Dense):
        features: Any = "wide"

    assert Scale(X, "2").apply({}, 2.0).shape == X.shape  # type: ignore[arg-type]
    assert Wide().features == "wide"
    for features in (np.int64(3), jnp.int32(3).item(), True):
        assert nn.Dense(features).init(KEY, X)["params"]["bias"].shape == (int(features),)
    assert nn.Dropout(jnp.float32(0.5), deterministic=True).apply({}, X) is not None  # type: ignore[arg-type]


# -- inputs ------------------------------------------------------------------------------------------------------------

LAYERS: dict[str, Callable[[Any], Any]] = {
    "Dense": lambda x: nn.Dense(3).init(KEY, x),
    "Conv": lambda x: nn.Conv(3, (3,)).init(KEY, x),
    "LayerNorm": lambda x: nn.LayerNorm().init(KEY, x),
    "BatchNorm": lambda x: nn.BatchNorm(use_running_average=False).init(KEY, x),
    "Embed": lambda x: nn.Embed(3, 3).init(KEY, x),
    "Dropout": lambda x: nn.Dropout(0.5, deterministic=False).init(KEY, x),
    "LSTMCell": lambda x: nn.LSTMCell(3).init(KEY, (X, X), x),
    "RNN": lambda x: nn.RNN(nn.LSTMCell(3)).init(KEY, x),
    "MultiHeadDotProductAttention": lambda x: nn.MultiHeadDotProductAttention(1).init(KEY, x),
    "vmap(Dense)": lambda x: nn.vmap(nn.Dense, variable_axes={"params": None}, axis_size=2, in_axes=None)(3).init(
        KEY, x
    ),
}


@pytest.mark.filterwarnings("ignore:.*requires ndarray or scalar arguments:DeprecationWarning")  # JAX says so first
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("inputs", "shown", "fix"),
    [
        ("text", "'text'", "Pass an array of numbers."),
        ({"image": X}, "a dict", "['image']`."),
        (None, "None", "Pass an array of numbers."),
    ],
    ids=["text", "dict", "None"],
)
def test_inputs_that_are_no_array_are_told_of(name: str, inputs: Any, shown: str, fix: str) -> None:
    if name == "vmap(Dense)" and inputs == "text":
        pytest.skip("what is no array is passed on, and stands for no element")
    with pytest.raises(
        LiftArgumentError, match=r"expected an array (as `(inputs|x|inputs_q)`|of shape .*), given"
    ) as caught:
        LAYERS[name](inputs)
    assert f"given {shown}." in caught.value.what
    assert caught.value.fix.endswith(fix) or name == "RNN"


def test_a_dict_may_be_the_input_of_a_model_of_ones_own() -> None:
    class Pick(nn.Module):
        @nn.compact
        def __call__(self, batch: Any) -> Any:
            return nn.Dense(3)(batch["image"])

    nn.Sequential([Pick()]).init(KEY, {"image": X})
    with pytest.raises(KeyError, match="image"):
        nn.Sequential([Pick()]).init(KEY, {"label": X})


def test_the_error_of_a_method_without_a_module_name_is_kept() -> None:
    code = """
class Fails(nn.Module):
    @nn.compact
    def __call__(self, x):
        raise ValueError("mine")
"""
    names: dict[str, Any] = {"nn": nn}  # no __name__, as in code that is run by `exec`: the method has no module
    exec(code, names)
    assert names["Fails"].__call__.__module__ is None
    with pytest.raises(ValueError, match="mine"):
        names["Fails"]().init(KEY, X)


# -- itself ------------------------------------------------------------------------------------------------------------


class Holder(nn.Module):
    """Holds something in a field."""

    held: Any = None

    def setup(self) -> None:
        pass

    def __call__(self, x: Any) -> Any:
        return x


def _in_a_dict() -> Any:
    held: dict[str, Any] = {}
    held["inner"] = Holder(held)
    return held["inner"]


def _by_way_of_another() -> Any:
    held: list[Any] = []
    outer = Holder(Holder(held))
    held.append(outer)
    return outer


class Knot(nn.Module):
    """Makes itself an attribute."""

    deep: bool = False

    def setup(self) -> None:
        self.held = [nn.Dense(3), self] if self.deep else self

    def __call__(self, x: Any) -> Any:
        return self.held(x)


@pytest.mark.parametrize("make", [_in_a_dict, _by_way_of_another, Knot, lambda: Knot(deep=True)])
def test_a_module_that_contains_itself_is_told_of(make: Callable[[], Any]) -> None:
    with pytest.raises(LiftArgumentError, match=r"(Holder|Knot) .*: the module contains itself, in a field"):
        make().init(jax.random.key(0), X)

"""The text of pytrees: dtypes and shapes in place of arrays, one child in each line if they do not fit in one."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import linen_like as nn

Pair = collections.namedtuple("Pair", ["one", "two"])
KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Layer(eqx.Module):
    """A module with a default and a field that is not shown."""

    w: Any
    act: Any = jax.nn.relu
    hidden: Any = dataclasses.field(default=0, repr=False)

    def method(self) -> None:
        """Do nothing."""


class Unset(eqx.Module):
    """A module that leaves a field at the default of its class."""

    w: Any
    act: Any = jax.nn.relu

    def __init__(self) -> None:
        self.w = X


class Own(eqx.Module):
    """A module with a text of its own."""

    w: Any

    def __repr__(self) -> str:
        return "own\ntext"


@dataclasses.dataclass
class Plain:
    """A dataclass with the text that Python makes."""

    w: Any


TEXTS: dict[str, tuple[Any, str]] = {
    "module": (Layer(X), "Layer(w=float32[2,3], act=relu)"),
    "numpy": (np.zeros(2, np.int32), "int32[2]"),
    "key": (KEY, "key<fry>[]"),
    "dict": ({"w": X, 3: "text"}, "{'w': float32[2,3], 3: 'text'}"),
    "ordered dict": (collections.OrderedDict(w=X), "OrderedDict({'w': float32[2,3]})"),
    "frozen dict": (nn.FrozenDict(w={"b": X}), "FrozenDict({'w': {'b': float32[2,3]}})"),
    "list": ([X, [1.5, None]], "[float32[2,3], [1.5, None]]"),
    "tuple": ((X, ()), "(float32[2,3], ())"),
    "tuple of one": ((X,), "(float32[2,3],)"),
    "namedtuple": (Pair(X, 1), "Pair(one=float32[2,3], two=1)"),
    "partial": (functools.partial(sum, X, start=X), "partial(sum, float32[2,3], start=float32[2,3])"),
    "pytree partial": (jax.tree_util.Partial(sum, X), "Partial(sum, float32[2,3])"),
    "method": ([Layer(X).method], "[Layer(w=float32[2,3], act=relu).method]"),
    "dataclass": (Plain([X]), "Plain(w=[float32[2,3]])"),
    "default": (Unset(), "Unset(w=float32[2,3], act=relu)"),
    "shape": (jax.ShapeDtypeStruct((2,), jnp.float32), "ShapeDtypeStruct(shape=(2,), dtype=float32)"),
    "class": (Layer, "Layer"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_arrays_are_written_by_dtype_and_shape(case: str) -> None:
    tree, text = TEXTS[case]
    assert eqx.tree_pformat(tree) == text


def test_a_model_with_variables_shows_no_numbers() -> None:
    model = eqx.Applied.init(nn.Dense(2), KEY, X)
    assert repr(model) == (
        "Applied(\n  fn=Dense(features=2),\n  variables={'params': {'kernel': float32[3,2], 'bias': float32[2]}}\n)"
    )


def test_what_does_not_fit_is_written_one_child_a_line() -> None:
    tree = {"layers": [Layer(X), (X, 1)], "own": Own(X), "empty": {}}
    assert eqx.tree_pformat(tree, width=40, indent=4).splitlines() == [
        "{",
        "    'layers': [",
        "        Layer(w=float32[2,3], act=relu),",
        "        (float32[2,3], 1)",
        "    ],",
        "    'own': own",
        "    text,",
        "    'empty': {}",
        "}",
    ]


def test_a_line_is_broken_exactly_at_the_width() -> None:
    text = "{'w': float32[2,3], 'n': 1}"
    assert eqx.tree_pformat({"w": X, "n": 1}, width=len(text)) == text
    assert eqx.tree_pformat({"w": X, "n": 1}, width=len(text) - 1) == "{\n  'w': float32[2,3],\n  'n': 1\n}"


def test_options() -> None:
    assert "1., 1." in eqx.tree_pformat([X], short_arrays=False)
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert eqx.tree_pformat([shape], struct_as_array=True) == "[float32[2]]"


def test_traced_arrays_have_the_same_text() -> None:
    seen = []
    jax.jit(lambda model: seen.append(repr(model)))(Layer(X, act=None))
    assert seen == ["Layer(w=float32[2,3], act=None)"]


def test_pprint_prints(capsys: pytest.CaptureFixture[str]) -> None:
    eqx.tree_pprint({"w": X})
    assert capsys.readouterr().out == "{'w': float32[2,3]}\n"

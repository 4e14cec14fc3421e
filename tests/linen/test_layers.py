"""Layers as modules: they are their functional layers, and nothing more."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like import Module, compact, initializers
from linen_like.combinators import Sequential
from linen_like.convolution import Conv
from linen_like.embedding import Embed
from linen_like.errors import LiftArgumentError
from linen_like.linear import Dense
from linen_like.normalization import BatchNorm
from linen_like.stochastic import Dropout
from tests.layers.functional import ROWS_OF_FUNCTIONS, functional
from tests.layers.row import IMAGE, ROWS, SERIES, Layer, Row, array, everything, modular
from tests.layers.table import TABLE


def program(layer: Layer, row: Row) -> str:
    """All equations of init, apply and their gradients, which say more than numbers and need no compiler."""
    text = str(jax.make_jaxpr(functools.partial(everything, layer))(*row.args))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


@pytest.mark.parametrize("name", ROWS_OF_FUNCTIONS)
def test_module_runs_what_its_function_runs(name: str) -> None:
    row = TABLE[name]
    assert program(modular(row.module(nn), row), row) == program(functional(row), row)


class Halves(Module):
    """Multiplies or convolves with half the kernel, and learns one number."""

    of: Any

    @compact
    def __call__(self, x: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        shift = self.param("shift", initializers.ones, ())
        return self.of(x, kernel / 2, *args, **kwargs) + shift


@pytest.mark.parametrize(
    ("layer", "hook", "product", "x"),
    [
        (Dense(5, use_bias=False), "dot_general_cls", jax.lax.dot_general, ROWS),
        (Conv(5, 3, use_bias=False), "conv_general_dilated_cls", jax.lax.conv_general_dilated, SERIES),
    ],
)
def test_product_may_be_a_submodule(layer: Any, hook: str, product: Any, x: Any) -> None:
    variables = layer.init(jax.random.key(0), x)
    hooked = layer.clone(**{hook: lambda: Halves(product)})
    y, made = hooked.init_with_output(jax.random.key(0), x)
    np.testing.assert_array_equal(made["params"]["kernel"], variables["params"]["kernel"])
    assert made["params"]["Halves_0"] == {"shift": 1}
    np.testing.assert_allclose(y, layer.apply(variables, x) / 2 + 1, rtol=1e-6)


def test_embedding_is_shared_by_both_ends_of_a_model() -> None:
    class Tied(Module):
        def setup(self) -> None:
            self.words = Embed(5, 3)

        def __call__(self, tokens: Any) -> Any:
            return self.words.attend(self.words(tokens)), self.words.embedding

    (logits, table), variables = Tied().init_with_output(jax.random.key(0), jnp.array([1, 4]))
    assert jax.tree.map(jnp.shape, variables) == {"params": {"words": {"embedding": (5, 3)}}}
    np.testing.assert_array_equal(table, variables["params"]["words"]["embedding"])
    np.testing.assert_allclose(logits, table[np.array([1, 4])] @ table.T, rtol=1e-6)


def test_embedding_may_be_made_by_a_subclass() -> None:
    class Shifted(Embed):
        def setup(self) -> None:
            self.embedding = self.param("embedding", self.embedding_init, (self.num_embeddings + 2, self.features))

        def __call__(self, inputs: Any) -> Any:
            return super().__call__(inputs + 2)

    y, variables = Shifted(5, 3).init_with_output(jax.random.key(0), jnp.array([4]))
    np.testing.assert_array_equal(y, variables["params"]["embedding"][6:])


@pytest.mark.parametrize(
    ("layer", "name"), [(lambda **option: Dropout(0.5, **option), "deterministic"), (BatchNorm, "use_running_average")]
)
def test_option_is_given_once(layer: Any, name: str) -> None:
    x, rngs = array(2, 3), jax.random.key(0)
    with pytest.raises(ValueError, match=f"{name}.*neither"):
        layer().init(rngs, x)
    with pytest.raises(ValueError, match=f"{name}.*constructor.*call"):
        layer(**{name: False}).init(rngs, x, **{name: False})
    first, second = layer(**{name: True}).init(rngs, x), layer().init(rngs, x, **{name: True})
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_errors_of_layers_say_where() -> None:
    model = Sequential([Conv(3, (3,)), Conv(3, (3, 3, 3))])
    with pytest.raises(
        LiftArgumentError, match=r"conv at /layers_1: expected inputs of shape \(\*batch, 3 spatial sizes"
    ):
        model.init(jax.random.key(0), IMAGE[0, 0])


def test_sequential_passes_tuples_as_arguments_and_dicts_as_keyword_arguments() -> None:
    model = Sequential(
        [lambda x, y: (x + y, x), lambda x, y: {"low": y, "high": x}, lambda high, low: [high - low, low], sum]
    )
    assert model.apply({}, 3, y=4) == 7


def test_sequential_names_its_layers_and_lets_functions_make_modules() -> None:
    model = Sequential([Dense(2), jax.nn.relu, lambda x: Dense(x.shape[-1] + 1)(x)])
    made = jax.eval_shape(model.init, jax.random.key(0), ROWS)
    assert {name: below["kernel"].shape for name, below in made["params"].items()} == {
        "layers_0": (4, 2),
        "Dense_0": (2, 3),
    }


def test_sequential_of_nothing_and_of_no_sequence_is_refused() -> None:
    with pytest.raises(LiftArgumentError, match=r"Sequential at /: there are no layers.* Pass at least one"):
        Sequential([]).apply({}, 1)
    with pytest.raises(LiftArgumentError, match="expected a sequence of layers as `layers`, given Dense"):
        Sequential(Dense(3))


def test_zeros_and_ones_are_initializers_and_made_by_a_call() -> None:
    assert initializers.zeros_init() is initializers.zeros
    assert initializers.ones_init() is initializers.ones

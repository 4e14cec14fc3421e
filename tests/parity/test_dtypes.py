"""The dtypes that layers store, compute in and return, for all that inputs and options may be, against `flax.linen`.

Nothing is computed. The rows are those with something new (see `tests.layers.structure`) that say nothing of dtypes;
the first of each layer meets all combinations.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from liftcore.errors import LiftArgumentError
from tests.layers.row import Row, modular, sequences
from tests.layers.structure import CHOSEN, FIRST, SECONDARY
from tests.layers.table import TABLE

linen = pytest.importorskip("flax.linen")

SOME = [
    (jnp.int32, None, None),
    (jnp.float16, None, None),
    (jnp.float64, None, None),
    (jnp.float32, jnp.bfloat16, None),
    (jnp.bfloat16, None, jnp.float16),
]
"""Dtypes of the inputs, `dtype` and `param_dtype`; None where nothing is said.

Where `param_dtype` is said, statistics are not forced to `float32`.
"""

ALL = [
    *SOME,
    *((given, None, None) for given in (jnp.int8, jnp.uint32, jnp.bfloat16, jnp.float32, jnp.complex64)),
    *((jnp.float32, told, None) for told in (jnp.float16, jnp.float64)),
    *((given, None, stored) for given in (jnp.float16, jnp.float64) for stored in (jnp.bfloat16, jnp.float64)),
]

REFUSED = {"PReLU"}
"""Layers that refuse what is not floating, of which their model makes something wrong."""

KEPT = {"SpectralNorm", "WeightNorm"}
"""Layers that store a parameter as it was made, where their model stores it in the dtype that they compute in."""


def typed(row: Row, library: Any, given: Any, told: Any, stored: Any) -> tuple[Any, Any]:
    """The module and the abstract arguments for some dtypes; what is no floating-point number stays what it is."""

    def abstract(leaf: Any) -> Any:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(leaf.shape, given if floating else leaf.dtype)

    module = row.module(library)
    options = {"dtype": told, "param_dtype": stored, "force_float32_reductions": None if stored is None else False}
    fields = {field.name for field in dataclasses.fields(module)}
    said = {name: value for name, value in options.items() if value is not None and name in fields}
    return module.clone(**said), jax.tree.map(abstract, row.args)


def types(row: Row, library: Any, *dtypes: Any) -> Any:
    """The shapes and dtypes of variables, results and new state, or the kind of refusal."""
    module, args = typed(row, library, *dtypes)
    layer, rngs = modular(module, row), sequences()

    def run(*args: Any) -> Any:
        first, variables = layer.init(rngs, *args)
        return first, variables, layer.apply(variables, rngs, *args)

    try:
        return jax.eval_shape(run, *args)
    except (LiftArgumentError, TypeError, ValueError) as error:
        return error


PLAIN = {
    name: row
    for name, row in CHOSEN.items()
    if name in TABLE and "fp8" not in name and (callable(row.config) or not SECONDARY & set(row.config))
}


@pytest.mark.parametrize("name", PLAIN)
def test_dtypes_are_those_of_linen(name: str) -> None:
    row = PLAIN[name]
    with jax.enable_x64(True):
        for given, told, stored in ALL if name in FIRST else SOME:
            ours, theirs = (types(row, library, given, told, stored) for library in (linen_like, linen))
            if row.layer in KEPT and not isinstance(theirs, Exception):
                ours, theirs = ours[0], theirs[0]
            if row.layer in REFUSED and not jnp.issubdtype(given, jnp.floating):
                assert isinstance(ours, LiftArgumentError)
            elif not isinstance(theirs, Exception):
                assert ours == theirs, (given, told, stored)
            else:
                assert isinstance(ours, Exception), (given, told, stored)


def test_every_layer_is_asked() -> None:
    assert {row.layer for row in PLAIN.values()} == {row.layer for row in TABLE.values()}

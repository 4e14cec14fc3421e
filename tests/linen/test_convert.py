"""Conversion to the names of `flax.linen` and back: what is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore.serialization import to_bytes
from linen_like.convert import from_flax, to_flax
from linen_like.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Model(nn.Module):
    size: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.jit(nn.Dense)(3)(nn.Dense(self.size)(nn.remat(nn.Dense)(3)(x)))

    @nn.compact_name_scope
    def other(self, x: Any) -> Any:
        x = nn.remat(nn.Dense)(3)(x)
        return nn.Dense(3)(x)


def test_values_stay_what_they_are_and_other_collections_pass() -> None:
    variables = {**Model().init(KEY, X), "mine": {"n": 3}}
    there = to_flax(Model(), variables, X)
    assert sorted(there["params"]) == ["CheckpointDense_0", "Dense_0", "JitDense_0"]
    assert there["mine"] == {"n": 3}
    back = from_flax(Model(), there, X)
    jax.tree.map(np.testing.assert_array_equal, back, variables)
    assert all(one is other for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(variables), strict=True))


def test_another_method_may_make_the_variables() -> None:
    variables = Model().init(KEY, X, method="other")
    there = to_flax(Model(), variables, X, method="other")
    assert sorted(there["params"]["other"]) == ["CheckpointDense_0", "Dense_0"]
    jax.tree.map(np.testing.assert_array_equal, from_flax(Model(), there, X, method="other"), variables)


def test_variables_of_another_model_are_an_error_that_names_the_first_difference() -> None:
    there = to_flax(Model(), Model().init(KEY, X), X)
    missing = {"params": {name: below for name, below in there["params"].items() if name != "JitDense_0"}}
    with pytest.raises(LiftArgumentError, match=r'"params/Dense_\d/bias" of Model: the model makes it, but'):
        from_flax(Model(), missing, X)
    with pytest.raises(LiftArgumentError, match=r'"params/Extra/w" of Model: the model does not make it'):
        from_flax(Model(), {"params": {**there["params"], "Extra": {"w": X}}}, X)
    with pytest.raises(LiftArgumentError, match=r"it has shape \(3, 3\) in the variables, but \(3, 4\) in the model"):
        from_flax(Model(4), there, X)
    with pytest.raises(LiftArgumentError, match=r"but \(3, 4\) in the model"):
        to_flax(Model(4), Model().init(KEY, X), X)


@pytest.mark.parametrize("convert", [from_flax, to_flax])
@pytest.mark.parametrize(
    "wrap", [lambda v: v["params"], lambda v: {}, lambda v: {"parms": v["params"]}, lambda v: {**v, "step": 3}]
)
def test_what_is_no_collection_of_the_model_is_an_error(convert: Any, wrap: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"expected collections, as `init` makes them \(\['params'\]\), given"):
        convert(Model(), wrap(Model().init(KEY, X)), X)


def boxed() -> Any:
    return nn.remat(nn.Dense)(3, kernel_init=nn.with_partitioning(nn.initializers.ones, ("x", None)))


def test_boxes_are_those_of_the_model_whatever_the_variables_have() -> None:
    variables = boxed().init(KEY, X)
    kernel = variables["params"]["kernel"].value
    for given in (variables["params"]["kernel"], kernel, {"value": kernel}):
        found = from_flax(boxed(), {"params": {**variables["params"], "kernel": given}}, X)
        assert found["params"]["kernel"].names == ("x", None)
        assert found["params"]["kernel"].value is kernel
        bare = from_flax(nn.Dense(3), {"params": {**variables["params"], "kernel": given}}, X)
        assert bare["params"]["kernel"] is kernel
    assert to_flax(boxed(), nn.unbox(variables), X)["params"]["kernel"] is kernel


def test_containers_and_keys_come_back_from_bytes() -> None:
    class Stateful(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            pair = self.variable("state", "pair", lambda: (jnp.ones(2), [jnp.zeros(1)]))
            key = self.variable("state", "key", jax.random.key, 3)
            return x + pair.value[0].sum() + jax.random.normal(key.value)

    variables = Stateful().init(KEY, X)
    found = from_flax(Stateful(), bytearray(to_bytes(variables)), X)
    assert jax.tree.structure(found) == jax.tree.structure(variables)
    np.testing.assert_array_equal(Stateful().apply(found, X), Stateful().apply(variables, X))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (SimpleNamespace(params={}), r"given a SimpleNamespace\. Pass .*state\.params"),
        ("model.msgpack", r"given a str\. Read the bytes .*Path\(path\)\.read_bytes\(\)"),
        ([], "given a list"),
    ],
)
def test_what_is_no_tree_of_variables_is_an_error(given: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        from_flax(Model(), given, X)

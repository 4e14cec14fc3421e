"""`Module.perturb`: gradients with respect to values inside a model, through lifts too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import (
    ScopeCollectionNotFound,
    ScopeVariableNotFoundError,
    UnboundModuleError,
    UnliftedCollectionError,
)
from tests.linen.lifted import KEY, X, assert_close, assert_same


class Hidden(nn.Module):
    collection: str = "perturbations"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = self.perturb("hidden", {"h": nn.Dense(3)(x)}, self.collection)["h"]
        return nn.tanh(hidden)


def test_perturbation_is_zero_and_has_the_gradient_of_the_value() -> None:
    y, variables = Hidden().init_with_output(KEY, X)
    assert_same(variables["perturbations"], {"hidden": {"h": jnp.zeros((2, 3))}})
    params = {"params": variables["params"]}
    assert_close(Hidden().apply(params, X), y)
    grads = jax.grad(lambda p: Hidden().apply({**params, "perturbations": p}, X).sum())(variables["perturbations"])
    assert_close(grads["hidden"]["h"], 1 - y**2)


def test_perturbation_is_added_where_it_is_given_and_made_where_that_is_asked_for() -> None:
    variables = Hidden().init(KEY, X)
    moved = {"params": variables["params"], "perturbations": {"hidden": {"h": jnp.ones((2, 3))}}}
    hidden = nn.Dense(3).apply({"params": variables["params"]["Dense_0"]}, X)
    assert_close(Hidden().apply(moved, X), nn.tanh(hidden + 1))
    _, made = Hidden().apply({"params": variables["params"]}, X, mutable=["perturbations"])
    assert_same(made["perturbations"], variables["perturbations"])
    with pytest.raises(ScopeVariableNotFoundError, match=r'"perturbations/hidden" at /'):
        Hidden().apply({"params": variables["params"], "perturbations": {"other": X}}, X)
    with pytest.raises(UnboundModuleError, match=r'perturb\("hidden"\)'):
        Hidden().perturb("hidden", X)


def test_one_name_perturbs_several_values() -> None:
    class Twice(nn.Module):
        def __call__(self, x: Any) -> Any:
            return self.perturb("x", self.perturb("x", x) ** 2)

    variables = Twice().init(KEY, X)
    grads = jax.grad(lambda variables: Twice().apply(variables, X).sum())(variables)
    assert_close(grads["perturbations"]["x"], 2 * X + 1)


@pytest.mark.parametrize("lift", ["vmap", "scan"])
def test_perturbations_lie_along_an_axis_of_their_own_unless_it_is_said_which(lift: str) -> None:
    def model(collection: str = "perturbations", **axes: Any) -> Any:
        axes = {"params": 0, **axes}
        if lift == "vmap":
            return nn.vmap(Hidden, axes, {"params": True})(collection)

        class Step(nn.Module):
            @nn.compact
            def __call__(self, x: Any, _: Any) -> Any:
                return Hidden(collection, name="hidden")(x), None

        return nn.scan(Step, axes, False, False, {"params": True}, length=2)()

    def shape_of(model: Any) -> Any:
        perturbed = model.init(KEY, *args)["perturbations"]
        return [leaf.shape for leaf in jax.tree.leaves(perturbed)]

    args = (X,) if lift == "vmap" else (X[0], None)
    assert shape_of(model()) == [(2, 3)]
    assert shape_of(model(perturbations=1)) == [(3, 2)]
    with pytest.raises(
        UnliftedCollectionError, match=r'collection "shifts".*variable_axes=\{"params": 0, "shifts": 0\}'
    ):
        model("shifts").init(KEY, *args)
    assert "shifts" in model("shifts", shifts=0).init(KEY, *args)


def test_a_collection_that_is_given_without_the_perturbation_is_an_error() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.perturb("h", x)

    assert Model().apply({}, 1.0) == 1.0
    with pytest.raises(ScopeCollectionNotFound, match=r'"perturbations/h" at /: the collection .* is empty'):
        Model().apply({"perturbations": {}}, 1.0)
    with pytest.raises(ScopeVariableNotFoundError, match=r"available there: \['other'\]"):
        Model().apply({"perturbations": {"other": 1.0}}, 1.0)


@pytest.mark.parametrize("lift", [lambda cls: cls, nn.jit, nn.remat], ids=["plain", "jit", "remat"])
def test_a_collection_that_is_given_empty_is_an_error_whatever_was_compiled_before(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.perturb("h", x)

    lifted = lift(Model)
    assert lifted().apply({}, 1.0) == 1.0
    with pytest.raises(ScopeCollectionNotFound, match=r'"perturbations/h" at /'):
        lifted().apply({"perturbations": {}}, 1.0)

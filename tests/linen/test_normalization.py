"""Normalization layers as modules; most of all those that wrap a layer and change its parameters."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import meta
from linen_like.errors import LiftArgumentError, ModifyScopeVariableError, ScopeParamShapeError
from tests.layers.bits import quick
from tests.layers.row import ROWS, array

KEY = jax.random.key(0)


def initialized(module: Any, *args: Any, **kwargs: Any) -> Any:
    return quick(lambda key, args: module.init_with_output(key, *args, **kwargs))(KEY, args)


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


class Model(nn.Module):
    """A layer and a wrapped one, each made where it is used."""

    wrapper: Any

    @nn.compact
    def __call__(self, x: Any, **kwargs: Any) -> Any:
        x = nn.Dense(4)(x)
        return self.wrapper(nn.Dense(3))(x, **kwargs)


# -- WeightNorm ------------------------------------------------------------------------------------------------------


def test_weight_norm_keeps_its_scales_beside_the_layer() -> None:
    variables = jax.eval_shape(Model(nn.WeightNorm).init, KEY, ROWS)
    assert shapes(variables["params"]) == {
        "Dense_0": {"bias": (4,), "kernel": (4, 4)},
        "Dense_1": {"bias": (3,), "kernel": (4, 3)},
        "WeightNorm_0": {"Dense_1/kernel/scale": (3,)},
    }


def test_weight_norm_makes_the_length_of_each_feature_its_scale() -> None:
    params = {"layer_instance": {"kernel": array(4, 3)}, "layer_instance/kernel/scale": array(3)}
    layer = nn.WeightNorm(nn.Dense(3, use_bias=False))
    y = layer.apply({"params": params}, ROWS)
    kernel = params["layer_instance"]["kernel"]
    expected = ROWS @ (kernel / np.linalg.norm(kernel, axis=0) * params["layer_instance/kernel/scale"])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_weight_norm_stores_its_first_parameters_scaled_in_their_own_dtype() -> None:
    layer = nn.WeightNorm(nn.Dense(3, use_bias=False), dtype=jnp.bfloat16)
    y, variables = initialized(layer, ROWS.astype(jnp.bfloat16))
    kernel = variables["params"]["layer_instance"]["kernel"]
    assert (y.dtype, kernel.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=1e-2)


@pytest.mark.parametrize(
    ("chosen", "scaled"),
    [
        ("kernel", ["layers_0/kernel", "layers_1/kernel"]),
        (("bias", "layers_1"), ["layers_0/bias", "layers_1/bias", "layers_1/kernel"]),
        ((text for text in ["layers_0/"]), ["layers_0/bias", "layers_0/kernel"]),
        ("none of them", []),
    ],
)
def test_weight_norm_scales_what_its_filter_names(chosen: Any, scaled: list[str]) -> None:
    layer = nn.WeightNorm(nn.Sequential([nn.Dense(3), nn.Dense(2)]), variable_filter=chosen)
    for _ in range(2):
        params = jax.eval_shape(layer.init, KEY, ROWS)["params"]
    assert sorted(params.keys() - {"layer_instance"}) == [f"layer_instance/{name}/scale" for name in scaled]


def test_statistics_in_a_wrapped_layer_are_left_alone_and_move() -> None:
    layer = nn.WeightNorm(nn.Sequential([nn.Dense(3), nn.BatchNorm(False, momentum=0.0)]), variable_filter=None)
    _, variables = initialized(layer, ROWS)
    _, mutated = quick(lambda variables: layer.apply(variables, ROWS, mutable=["batch_stats"]))(variables)
    kernel, bias = (variables["params"]["layer_instance"]["layers_0"][name] for name in ("kernel", "bias"))
    kernel = kernel / np.linalg.norm(kernel, axis=0)
    np.testing.assert_allclose(
        mutated["batch_stats"]["layer_instance"]["layers_1"]["mean"],
        (ROWS @ kernel + bias).mean(0),
        rtol=1e-3,
        atol=1e-5,
    )


def test_weight_norm_leaves_boxes_round_parameters() -> None:
    kernel_init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
    layer = nn.WeightNorm(nn.Dense(3, kernel_init=kernel_init))
    y, variables = initialized(layer, ROWS)
    assert variables["params"]["layer_instance"]["kernel"].names == ("in", "out")
    np.testing.assert_allclose(layer.apply(variables, ROWS), y, rtol=1e-5)
    np.testing.assert_allclose(layer.apply(meta.unbox(variables), ROWS), y, rtol=1e-5)


def test_layer_that_has_parameters_already_may_be_wrapped() -> None:
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer = nn.Dense(4, use_bias=False)
            return layer(x), nn.WeightNorm(layer)(x)

    (plain, scaled), variables = initialized(Twice(), ROWS)
    kernel = variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(plain, ROWS @ kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scaled, ROWS @ (kernel / np.linalg.norm(kernel, axis=0)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(Twice().apply(variables, ROWS)[1], scaled, rtol=1e-5)


def test_weight_norm_refuses_axes_that_a_parameter_lacks() -> None:
    layer = nn.WeightNorm(nn.Dense(3), feature_axes=(0, 1), variable_filter=None)
    message = '"layer_instance/bias" in WeightNorm at /: feature_axes is (0, 1), but the parameter has shape (3,).'
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        jax.eval_shape(layer.init, KEY, ROWS)


# -- SpectralNorm ----------------------------------------------------------------------------------------------------


def test_spectral_norm_keeps_its_vectors_beside_the_layer() -> None:
    variables = jax.eval_shape(lambda key: Model(nn.SpectralNorm).init(key, ROWS, update_stats=False), KEY)
    assert shapes(variables["batch_stats"]) == {
        "SpectralNorm_0": {"Dense_1/kernel/u": (1, 3), "Dense_1/kernel/sigma": ()}
    }


def test_spectral_norm_finds_the_largest_singular_value_over_many_calls() -> None:
    layer = nn.SpectralNorm(nn.Dense(3, use_bias=False))
    _, variables = initialized(layer, ROWS, update_stats=False)
    params = {"params": {"layer_instance": {"kernel": array(4, 3)}}}
    step = quick(lambda state: layer.apply({**params, **state}, ROWS, update_stats=True, mutable=["batch_stats"]))
    state = {"batch_stats": variables["batch_stats"]}
    for _ in range(20):
        y, state = step(state)
    largest = np.linalg.svd(array(4, 3), compute_uv=False)[0]
    np.testing.assert_allclose(state["batch_stats"]["layer_instance/kernel/sigma"], largest, rtol=1e-4)
    np.testing.assert_allclose(y, ROWS @ array(4, 3) / largest, rtol=1e-3, atol=1e-5)


def test_spectral_norm_changes_nothing_unless_it_updates() -> None:
    layer = nn.SpectralNorm(nn.Dense(3))
    _, variables = initialized(layer, ROWS, update_stats=False)
    kept = quick(lambda variables: layer.apply(variables, ROWS, update_stats=False, mutable=["batch_stats"]))
    _, mutated = kept(variables)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, mutated["batch_stats"], variables["batch_stats"]))
    with pytest.raises(ModifyScopeVariableError, match=r'mutable=\["batch_stats"\]'):
        jax.eval_shape(lambda variables: layer.apply(variables, ROWS, update_stats=True), variables)


def test_spectral_norm_refuses_more_than_matrices_where_it_is_told_to() -> None:
    layer = nn.SpectralNorm(nn.Conv(3, (2,)), error_on_non_matrix=True)
    message = '"layer_instance/kernel" in SpectralNorm at /: expected a matrix, as `error_on_non_matrix` demands, given'
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        jax.eval_shape(lambda key: layer.init(key, array(1, 5, 4), update_stats=True), KEY)


def test_spectral_norm_of_zeros_is_zeros() -> None:
    layer = nn.SpectralNorm(nn.Dense(3, kernel_init=nn.initializers.zeros, use_bias=False))
    y, _ = initialized(layer, ROWS, update_stats=True)
    np.testing.assert_array_equal(y, 0)


# -- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", [nn.WeightNorm, nn.SpectralNorm])
def test_wrapper_asks_for_a_layer_that_is_made(wrapper: Any) -> None:
    kwargs = {"update_stats": True} if wrapper is nn.SpectralNorm else {}
    message = (
        f"{wrapper.__name__} at /: expected a module as `layer_instance`, given the class Dense. Make the layer first"
    )
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        wrapper(nn.Dense).init(KEY, ROWS, **kwargs)


class Counted(nn.Module):
    """A layer that tells how often it runs, and draws besides its parameters."""

    ran: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.ran(1)
        x = nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))
        return x, self.make_rng("dropout")


WRAPPERS = {
    "weight norm": (nn.WeightNorm, {}, {}),
    "weight norm, random scales": (nn.WeightNorm, {"scale_init": nn.initializers.normal()}, {}),
    "weight norm, seen in bfloat16": (nn.WeightNorm, {"dtype": jnp.bfloat16}, {}),
    "spectral norm": (nn.SpectralNorm, {}, {"update_stats": True}),
    "spectral norm, seen in bfloat16": (nn.SpectralNorm, {"dtype": jnp.bfloat16}, {"update_stats": True}),
    "two": (lambda layer: nn.WeightNorm(nn.WeightNorm(layer)), {}, {}),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_layer_runs_once_and_draws_once(name: str) -> None:
    wrapper, options, call = WRAPPERS[name]
    ran: list[int] = []
    layer = wrapper(Counted(ran.append), **options)
    rngs = {"params": KEY, "dropout": jax.random.key(1)}
    (y, drawn), variables = layer.init_with_output(rngs, ROWS, **call)
    assert len(ran) == 1
    (again, same), _ = layer.apply(variables, ROWS, **call, rngs=rngs, mutable=["batch_stats"])
    assert len(ran) == 2
    assert (again.dtype, drawn) == (y.dtype, same)
    np.testing.assert_array_equal(again == 0, y == 0)


@pytest.mark.parametrize("lift", ["jit", "remat", "scan", "vmap"])
def test_wrapped_layer_that_is_lifted_runs_once_and_draws_once(lift: str) -> None:
    ran: list[int] = []

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            layer = nn.WeightNorm(Counted(ran.append), scale_init=nn.initializers.uniform())
            return layer(x)[0] @ jnp.ones((3, 4)), None

    split = {"params": True, "dropout": True}
    lifted = {
        "jit": lambda: nn.jit(Body)(),
        "remat": lambda: nn.remat(Body)(),
        "scan": lambda: nn.scan(Body, variable_axes={"params": 0}, split_rngs=split, length=2)(),
        "vmap": lambda: nn.vmap(Body, variable_axes={"params": 0}, split_rngs=split, in_axes=(0, None))(),
    }[lift]()
    rngs = {"params": KEY, "dropout": jax.random.key(1)}
    (y, _), variables = lifted.init_with_output(rngs, ROWS, None)
    assert len(ran) == 1
    again, _ = lifted.apply(variables, ROWS, None, rngs=rngs)
    np.testing.assert_allclose(again, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "inner", [nn.jit, nn.remat, lambda cls: nn.scan(cls, {"params": 0}, split_rngs={"params": True}, length=2)]
)
def test_lifts_in_a_wrapped_layer_see_its_parameters_in_their_other_dtype(inner: Any) -> None:
    dtypes = []

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            kernel = self.param("kernel", nn.initializers.normal(), (4, 4))
            dtypes.append(kernel.dtype)
            return x @ kernel, None

    layer = nn.WeightNorm(inner(Body)(), dtype=jnp.bfloat16)
    x = ROWS.astype(jnp.bfloat16)
    (y, _), variables = layer.init_with_output(KEY, x, None)
    assert (set(dtypes), jax.tree.leaves(variables)[0].dtype) == ({jnp.dtype(jnp.bfloat16)}, jnp.float32)
    np.testing.assert_array_equal(layer.apply(variables, x, None)[0].dtype, y.dtype)


def test_wrapper_of_a_wrapper_sees_what_the_outer_one_made() -> None:
    inner = nn.WeightNorm(nn.Dense(3), scale_init=nn.initializers.constant(2.0))
    layer = nn.WeightNorm(inner, variable_filter={"layer_instance/kernel"}, use_scale=False)
    y, variables = initialized(layer, ROWS)
    np.testing.assert_allclose(layer.apply(variables, ROWS), y, rtol=1e-5)


def test_wrapper_refuses_parameters_that_one_name_stands_for() -> None:
    class Shares(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.WeightNorm(nn.Sequential([nn.Dense(4), nn.Dense(3)]))(x)

    message = 'WeightNorm at /WeightNorm_0: two parameters of Sequential have the name "kernel": it holds a module that'
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        jax.eval_shape(Shares().init, KEY, ROWS)


class Wrapped(nn.Module):
    """What a scan repeats."""

    wrapper: Any
    call: Any

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return self.wrapper(nn.Dense(4))(x, **self.call), None


def scanned(wrapper: Any, **call: Any) -> Any:
    axes = {"params": 0, "batch_stats": 0}
    return nn.scan(Wrapped, variable_axes=axes, split_rngs={"params": True}, length=3)(wrapper, call)


def test_wrapped_layers_may_be_stacked_by_a_scan() -> None:
    variables = quick(scanned(nn.WeightNorm).init)(KEY, ROWS, None)
    assert shapes(variables["params"]["WeightNorm_0"]) == {"Dense_0/kernel/scale": (3, 4)}
    np.testing.assert_allclose(np.linalg.norm(variables["params"]["Dense_0"]["kernel"], axis=1), 1, rtol=1e-5)
    made = jax.eval_shape(scanned(nn.SpectralNorm, update_stats=True).init, KEY, ROWS, None)
    assert made["batch_stats"]["SpectralNorm_0"]["Dense_0/kernel/u"].shape == (3, 1, 4)


@pytest.mark.parametrize("layer", [nn.WeightNorm(nn.Dense(3)), nn.RMSNorm(), nn.GroupNorm(1), nn.InstanceNorm()])
def test_parameters_for_inputs_of_another_size_are_refused(layer: Any) -> None:
    variables = jax.eval_shape(layer.init, KEY, array(2, 2, 4))
    with pytest.raises(ScopeParamShapeError, match="Check the sizes of the module and of its inputs"):
        jax.eval_shape(layer.apply, variables, array(2, 2, 5))

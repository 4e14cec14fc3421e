from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import LiftArgumentError, UnliftedCollectionError
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import array

KEY, X = jax.random.key(0), array(2, 5, 4)
RANDOM = nn.initializers.normal()


class Block(nn.Module):
    """Dense layers of all kinds: named, deep inside, general, and called twice."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x + nn.MultiHeadDotProductAttention(2, name="attention")(x)
        shared = nn.Dense(4, name="shared")
        return nn.LayerNorm()(shared(nn.relu(shared(x))))


BASE = jax.jit(Block().init)(jax.random.key(1), X)


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


def test_parameters_are_those_of_the_model_and_updates_lie_beside_them() -> None:
    variables = nn.LoRA(Block(), 2).init(jax.random.key(1), X)
    assert_same_bits(variables["params"], BASE["params"])
    head, out = {"a": (4, 2), "b": (2, 2, 2)}, {"a": (2, 2, 2), "b": (2, 4)}
    assert shapes(variables["lora"]) == {
        "attention": {"query": head, "key": head, "value": head, "out": out},
        "shared": {"a": (4, 2), "b": (2, 4)},
    }
    chosen, rest = filters.split(variables, "lora", ...)
    assert (set(chosen), set(rest)) == ({"lora"}, {"params"})


def test_new_update_changes_nothing_and_a_learned_one_is_merged() -> None:
    tuned = nn.LoRA(Block(), 2, alpha=1.0, b_init=RANDOM)
    fresh = nn.LoRA(Block(), 2).init(KEY, X) | {"params": BASE["params"]}
    np.testing.assert_array_equal(nn.LoRA(Block(), 2).apply(fresh, X), Block().apply(BASE, X))
    learned = tuned.init(KEY, X) | {"params": BASE["params"]}
    y = tuned.apply(learned, X)
    assert abs(y - Block().apply(BASE, X)).max() > 1e-3
    merged = nn.merge_lora(learned, alpha=1.0)
    np.testing.assert_allclose(Block().apply(merged, X), y, atol=1e-5)
    back = nn.unmerge_lora(merged, learned["lora"], alpha=1.0)
    np.testing.assert_allclose(tuned.apply(back, X), y, atol=1e-5)


def test_gradient_of_the_updates_alone() -> None:
    tuned = nn.LoRA(Block(), 1)
    variables = tuned.init(KEY, X)

    def loss(updates: Any) -> Any:
        return (tuned.apply(variables | {"lora": updates}, X) ** 3).sum()

    grads = quick(jax.grad(loss))(variables["lora"])
    assert shapes(grads) == shapes(variables["lora"])
    assert all((leaf["b"] != 0).any() for leaf in (grads["shared"], *grads["attention"].values()) if "b" in leaf)


def test_targets_are_a_filter_of_kernels() -> None:
    for targets, expected in [
        (filters.PathContains("query"), {"attention": {"query"}}),
        (filters.Any(filters.PathContains("query"), filters.PathContains("value")), {"attention": {"query", "value"}}),
        (lambda path, kernel: kernel.ndim == 2, {"shared": {"a", "b"}}),
    ]:
        made = jax.eval_shape(nn.LoRA(Block(), 1, targets=targets).init, KEY, X)
        assert {name: set(below) for name, below in made["lora"].items()} == expected


def test_lora_of_a_dense_layer_is_a_lora_dense() -> None:
    x = array(3, 4)
    one = nn.LoRA(nn.Dense(5), 2, alpha=3.0, b_init=RANDOM).init_with_output(KEY, x)
    other = nn.LoRADense(5, 2, alpha=3.0, b_init=RANDOM).init_with_output(KEY, x)
    assert_same_bits(one, other)
    kernel, (a, b) = one[1]["params"]["kernel"], (one[1]["lora"][name] for name in "ab")
    np.testing.assert_allclose(one[0], x @ (kernel + 1.5 * a @ b), rtol=1e-5)


def test_lora_dense_takes_the_name_of_what_it_stands_for() -> None:
    plain = nn.Sequential([lambda x: nn.Dense(2)(nn.Dense(3)(x))]).init(KEY, X)
    tuned = nn.Sequential([lambda x: nn.LoRADense(2, 1)(nn.LoRADense(3, 1)(x))]).init(KEY, X)
    assert_same_bits(tuned["params"], plain["params"])
    assert set(tuned["lora"]) == {"Dense_0", "Dense_1"}


@pytest.mark.parametrize("layer", [nn.LoRADense(5, 2, dtype=jnp.bfloat16), nn.LoRA(nn.Dense(5, dtype=jnp.bfloat16), 2)])
def test_update_is_used_in_the_dtype_of_its_layer(layer: Any) -> None:
    y, variables = jax.eval_shape(layer.init_with_output, KEY, X)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_lifted_layers_have_stacked_updates() -> None:
    def layers(axes: Any) -> Any:
        class Layers(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                def step(mdl: Any, x: Any, _: Any) -> Any:
                    return nn.tanh(nn.Dense(4)(x)), None

                return nn.scan(step, variable_axes=axes, split_rngs=True, length=3)(self, x, None)[0]

        return Layers()

    model = layers({("params", "lora"): 0})
    tuned = nn.LoRA(model, 2, b_init=RANDOM)
    y, variables = tuned.init_with_output(KEY, X)
    assert shapes(variables["lora"]) == {"Dense_0": {"a": (3, 4, 2), "b": (3, 2, 4)}}
    np.testing.assert_allclose(model.apply(nn.merge_lora(variables, alpha=None), X), y, atol=1e-6)
    with pytest.raises(UnliftedCollectionError, match="lora"):
        nn.LoRA(layers({"params": 0}), 2).init(KEY, X)


@pytest.mark.parametrize("lift", [nn.jit, nn.remat])
def test_compiled_and_repeated_models_have_their_updates(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(nn.Dense)(3, name="dense")(x)

    without = Model().init_with_output(KEY, X)[0]  # what is compiled for this must not serve the other
    tuned = nn.LoRA(Model(), 1, b_init=RANDOM)
    variables = tuned.init(KEY, X)
    assert shapes(variables["lora"]) == {"dense": {"a": (4, 1), "b": (1, 3)}}
    assert abs(tuned.apply(variables, X) - without).max() > 1e-3


def test_model_that_has_no_target_is_refused() -> None:
    with pytest.raises(
        LiftArgumentError,
        match=r"LoRA at /: LayerNorm has no Dense, .* or Embed that `targets` .* True: it has no.*Use such",
    ):
        nn.LoRA(nn.LayerNorm(), 2).init(KEY, X)
    listed = "its layers are params/attention/query/kernel .DenseGeneral., .* params/shared/kernel .Dense.. Write"
    with pytest.raises(LiftArgumentError, match=listed):
        jax.eval_shape(nn.LoRA(Block(), 2, targets=filters.PathContains("encoder")).init, KEY, X)
    with pytest.raises(LiftArgumentError, match="lora at /: expected a rank of 1 or more as `rank`, given 0"):
        nn.LoRADense(3, 0).init(KEY, X)


def test_models_use_lora_inside_of_others() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.tuned, self.head = nn.LoRA(nn.Dense(4), 1), nn.Dense(2)

        def __call__(self, x: Any) -> Any:
            return self.head(self.tuned(x))

    variables = Model().init(KEY, X)
    assert shapes(variables["lora"]) == {"tuned": {"a": (4, 1), "b": (1, 4)}}
    assert set(variables["params"]["tuned"]) == {"kernel", "bias"}

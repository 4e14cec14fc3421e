"""Updates of whole models: which layers, inside which lifts, in which collection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import UnliftedCollectionError
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import array

KEY, X, RANDOM = jax.random.key(0), array(2, 5, 4), nn.initializers.normal()
BOTH = ("params", "lora")
ADAPTERS = filters.Any("lora", filters.PathContains("lora_", exact=False))


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


class Block(nn.Module):
    """A step of a scan, with layers from `setup`."""

    def setup(self) -> None:
        self.attention, self.up, self.down = nn.MultiHeadDotProductAttention(2), nn.Dense(6), nn.Dense(4)

    def __call__(self, x: Any, _: Any = None) -> Any:
        x = x + self.attention(x)
        return x + self.down(nn.relu(self.up(x))), None


class Words(nn.Module):
    """A language model: tied embeddings, an equation, a convolution, and blocks under a scan of a remat."""

    lifted: Any = "params"

    def setup(self) -> None:
        self.embed = nn.Embed(7, 4)
        self.mix, self.local = nn.Einsum((2, 4, 2), "btd,ndh->btnh", use_bias=False), nn.Conv(4, 3, padding="CAUSAL")
        axes = {"variable_axes": {self.lifted: 0}, "split_rngs": {"params": True}, "length": 3}
        self.blocks = nn.scan(nn.remat(Block, prevent_cse=False), **axes)()

    def __call__(self, tokens: Any) -> Any:
        return self.embed.attend(self.encode(tokens))

    def encode(self, tokens: Any) -> Any:
        x = self.local(self.embed(tokens))
        return self.blocks(x + self.mix(x).reshape(x.shape), None)[0]


TOKENS = jnp.array([[0, 1, 6, 3]])
MODELS = {"params": Words(), "lora": Words(lifted=BOTH)}


@pytest.mark.rest
@pytest.mark.parametrize("collection", MODELS)
def test_model_of_all_kinds_of_layers_is_tuned_merged_and_told_apart(collection: str) -> None:
    model, words, options = (
        MODELS[collection],
        Words().init(KEY, TOKENS),
        {"rank": 2, "alpha": 3.0, "collection": collection},
    )
    fresh = nn.LoRA(model, **options).init(KEY, TOKENS)
    adapters, base = filters.split(fresh, ADAPTERS, ...)
    assert_same_bits(base, words)
    a, b = ("lora_a", "lora_b") if collection == "params" else ("a", "b")
    assert shapes(adapters[collection]) == {
        "embed": {a: (7, 2), b: (2, 4)},
        "mix": {a: (1, 4, 1, 2), b: (2, 1, 2, 2)},
        "local": {a: (3, 4, 2), b: (2, 4)},
        "blocks": {
            "attention": {
                **{name: {a: (3, 4, 2), b: (3, 2, 2, 2)} for name in ("query", "key", "value")},
                "out": {a: (3, 2, 2, 2), b: (3, 2, 4)},
            },
            "up": {a: (3, 4, 2), b: (3, 2, 6)},
            "down": {a: (3, 6, 2), b: (3, 2, 4)},
        },
    }
    tuned = nn.LoRA(model, **options, b_init=RANDOM)
    np.testing.assert_array_equal(quick(tuned.apply)(fresh, TOKENS), quick(model.apply)(words, TOKENS))
    learned = jax.tree.map(lambda leaf: leaf + 0.1, adapters)
    variables = filters.merge(base, learned)
    y = quick(tuned.apply)(variables, TOKENS)
    assert abs(y - quick(model.apply)(words, TOKENS)).max() > 1e-2
    merged = nn.merge_lora(variables, alpha=3.0, collection=collection)
    np.testing.assert_allclose(quick(model.apply)(merged, TOKENS), y, atol=1e-4)
    back = nn.unmerge_lora(merged, learned[collection], alpha=3.0, collection=collection)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), back, variables)


def all_shapes(jaxpr: Any) -> set[tuple[int, ...]]:
    """The shapes of all that a program computes, in what it calls too."""
    found = set()
    for equation in jaxpr.eqns:
        found |= {variable.aval.shape for variable in equation.outvars}
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            found |= all_shapes(inner) if hasattr(inner, "eqns") else set()
    return found


@pytest.mark.parametrize("collection", MODELS)
def test_gradients_are_of_the_updates_alone(collection: str) -> None:
    tuned = nn.LoRA(MODELS[collection], 2, collection=collection, targets=filters.PathContains("up"))
    adapters, base = filters.split(tuned.init(KEY, TOKENS), ADAPTERS, ...)

    def loss(adapters: Any, base: Any) -> Any:
        return (tuned.apply(filters.merge(adapters, base), TOKENS) ** 2).sum()

    grads = quick(jax.grad(loss))(adapters, base)
    assert shapes(grads) == shapes(adapters)
    assert (grads[collection]["blocks"]["up"]["lora_b" if collection == "params" else "b"] != 0).any()
    kernel = (4, 6)  # no other array of the model has these sizes
    assert kernel in all_shapes(jax.make_jaxpr(jax.grad(loss, (0, 1)))(adapters, base).jaxpr)
    assert not all_shapes(jax.make_jaxpr(jax.grad(loss))(adapters, base).jaxpr) & {kernel, kernel[::-1]}


def test_updates_of_one_model_are_many_beside_shared_parameters() -> None:
    """An ensemble of updates: under a mapping, the parameters of the base have no axis."""
    adapters = filters.All("params", filters.PathContains("lora_", exact=False))
    for collection, axes in [("lora", {"lora": 0, "params": None}), ("params", {adapters: 0, "params": None})]:
        many = nn.vmap(nn.LoRA, in_axes=None, axis_size=3, variable_axes=axes, split_rngs={"params": False})
        tuned = many(nn.Dense(6), 2, b_init=RANDOM, collection=collection)
        variables = tuned.init(KEY, X)
        assert shapes(variables["params"])["kernel"] == (4, 6)
        assert sorted(shapes(filters.split(variables, ADAPTERS, ...)[0])[collection].values()) == [(3, 2, 6), (3, 4, 2)]
        one = jax.tree.map(lambda leaf: leaf[1] if leaf.ndim > 2 else leaf, variables)
        expected = nn.LoRA(nn.Dense(6), 2, collection=collection).apply(one, X)
        np.testing.assert_allclose(tuned.apply(variables, X)[1], expected, atol=1e-6)


@pytest.mark.parametrize("lift", ["jit", "remat", "vmap"])
def test_lifts_of_layers_add_an_update_once(lift: str) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mapped = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}} if lift == "vmap" else {}
            return getattr(nn, lift)(nn.Dense, **mapped)(3)(x)

    tuned = nn.LoRA(Model(), 2, collection="params", b_init=RANDOM)
    y, variables = tuned.init_with_output(KEY, X)
    merged = nn.merge_lora(variables, alpha=None, collection="params")
    np.testing.assert_allclose(Model().apply(merged, X), y, atol=1e-5)
    np.testing.assert_allclose(tuned.apply(variables, X), y, atol=1e-5)


def test_layer_that_calls_its_base_class_has_one_update() -> None:
    class Doubled(nn.Dense):
        def __call__(self, inputs: Any) -> Any:
            return 2 * super().__call__(inputs)

    y, variables = nn.LoRA(Doubled(3), 2, b_init=RANDOM).init_with_output(KEY, X)
    np.testing.assert_allclose(Doubled(3).apply(nn.merge_lora(variables, alpha=None), X), y, atol=1e-5)


def test_other_methods_of_the_model_are_those_of_the_tuned_one() -> None:
    tuned = nn.LoRA(Words(), 2, collection="params", b_init=RANDOM)
    variables = tuned.init(KEY, TOKENS)
    z = tuned.apply(variables, TOKENS, method="encode")
    logits = Words().bind(nn.merge_lora(variables, alpha=None, collection="params")).embed.attend(z)
    np.testing.assert_allclose(tuned.apply(variables, TOKENS), logits, atol=1e-5)
    assert jnp.array_equal(tuned.apply(variables, TOKENS, method=tuned.encode), z)
    with pytest.raises(AttributeError, match='method="decode" of LoRA'):
        tuned.apply(variables, TOKENS, method="decode")


def test_module_that_is_tuned_may_be_called_again_by_any_of_its_methods() -> None:
    class Two(nn.Module):
        def setup(self) -> None:
            self.words = nn.LoRA(Words(), 2, collection="params")

        def __call__(self, tokens: Any) -> Any:
            return self.words(tokens) + self.words.encode(tokens).sum() + self.words(tokens)

    variables = jax.eval_shape(Two().init, KEY, TOKENS)
    assert shapes(variables["params"]["words"]["embed"]) == {"embedding": (7, 4), "lora_a": (7, 2), "lora_b": (2, 4)}
    assert jax.eval_shape(Two().apply, variables, TOKENS).shape == (1, 4, 7)


def test_collection_that_a_lift_does_not_take_is_told_with_the_line_of_that_lift() -> None:
    fix = r'Add `variable_axes={"params": 0, "lora": 0}`, .*'
    for tuned in (nn.LoRA(Words(), 2), nn.LoRA(Words(), 2, targets=filters.PathContains("query"))):
        with pytest.raises(UnliftedCollectionError, match=r"scan\(Block\) at /blocks takes it .*" + fix) as caught:
            jax.eval_shape(tuned.init, KEY, TOKENS)
        assert 'nn.LoRA(…, collection="params")' in caught.value.__notes__[0]
    listed = jax.eval_shape(nn.LoRA(Words(lifted=BOTH), 2).init, KEY, TOKENS)
    with pytest.raises(UnliftedCollectionError, match=r"it exists outside scan\(Block\) at /blocks, .*" + fix):
        jax.eval_shape(nn.LoRA(Words(), 2).apply, listed, TOKENS)


def test_of_nested_lifts_the_one_that_does_not_take_it_is_told() -> None:
    def nested(inner: Any, outer: Any) -> Any:
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                split = {"split_rngs": {"params": True}}
                deep = nn.scan(nn.remat(Block), variable_axes={inner: 0}, length=2, **split)
                return nn.vmap(deep, variable_axes={outer: 0}, in_axes=None, axis_size=3, **split)(name="all")(x, None)[
                    0
                ]

        return nn.LoRA(Model(), 2)

    with pytest.raises(
        UnliftedCollectionError, match=r"of scan\(Block\) at .* Add `variable_axes={\"params\": 0, \"lora"
    ):
        jax.eval_shape(nested("params", BOTH).init, KEY, X)
    with pytest.raises(UnliftedCollectionError, match=r"of vmap\(Block\) at /all takes it"):
        jax.eval_shape(nested(BOTH, "params").init, KEY, X)
    shape = jax.eval_shape(nested(BOTH, BOTH).init, KEY, X)["lora"]["all"]["up"]["a"].shape
    assert shape == (3, 2, 4, 2)


@pytest.mark.parametrize(
    ("layer", "x"), [(nn.Embed(7, 4), TOKENS), (nn.Conv(4, 3), X), (nn.Einsum((4, 6), "btd,df->btf"), X)]
)
def test_update_is_used_in_the_dtype_of_its_layer(layer: Any, x: Any) -> None:
    tuned = nn.LoRA(layer.clone(dtype=jnp.bfloat16), 2, param_dtype=jnp.float16)
    y, variables = jax.eval_shape(tuned.init_with_output, KEY, x)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables["lora"])} == {jnp.dtype("float16")}


def test_dropout_of_the_model_draws_as_before() -> None:
    model = nn.Sequential([nn.Dense(8), nn.Dropout(0.5, deterministic=False), nn.Dense(3)])
    keys = {"params": KEY, "dropout": jax.random.key(1)}
    base, tuned = model.init(keys, X), nn.LoRA(model, 2)
    y = tuned.apply(tuned.init(keys, X), X, rngs={"dropout": KEY})
    np.testing.assert_array_equal(y, model.apply(base, X, rngs={"dropout": KEY}))

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
import nnx_like as nnx
from liftcore.errors import LiftArgumentError, LiftError
from nnx_like.errors import StructureError
from nnx_like.layers.attention import dot_product_attention_weights
from nnx_like.layers.cells import modified_orthogonal

X = jnp.sin(jnp.arange(24.0)).reshape(2, 3, 4)


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


def cell(**options: Any) -> Any:
    return nnx.SimpleCell(4, 3, rngs=rngs(), **options)


def attention(**options: Any) -> Any:
    return nnx.MultiHeadAttention(2, 4, rngs=rngs(), **{"decode": False, **options})


def decoding(length: int) -> Any:
    layer = attention(decode=True)
    layer.init_cache((2, length, 4))
    return layer


MADE: dict[str, Callable[[Any], Any]] = {
    "BatchNorm": lambda r: nnx.BatchNorm(4, rngs=r),
    "LayerNorm": lambda r: nnx.LayerNorm(4, rngs=r),
    "RMSNorm": lambda r: nnx.RMSNorm(4, rngs=r),
    "GroupNorm": lambda r: nnx.GroupNorm(4, 2, rngs=r),
    "InstanceNorm": lambda r: nnx.InstanceNorm(4, rngs=r),
    "SpectralNorm": lambda r: nnx.SpectralNorm(nnx.Linear(4, 2, rngs=r), update_stats=False, rngs=r),
    "WeightNorm": lambda r: nnx.WeightNorm(nnx.Linear(4, 2, rngs=r), rngs=r),
    "MultiHeadAttention": lambda r: nnx.MultiHeadAttention(2, 4, decode=False, normalize_qk=True, rngs=r),
    "RNN": lambda r: nnx.RNN(nnx.GRUCell(4, 3, rngs=r)),
    "Bidirectional": lambda r: nnx.Bidirectional(
        nnx.RNN(nnx.LSTMCell(4, 3, rngs=r)), nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=r))
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_layer_is_split_copied_pickled_and_traced_as_itself(name: str) -> None:
    layer = MADE[name](rngs())
    others = [
        nnx.merge(*nnx.split(layer), copy=True), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)),
        jax.tree.map(lambda leaf: leaf, layer), nnx.clone(layer),
    ]  # fmt: skip
    assert nnx.graphdef(MADE[name](nnx.Rngs(1))) == nnx.graphdef(layer)
    expected = layer(X)
    for other in others[:3]:
        np.testing.assert_array_equal(other(X), expected)
    shape = nnx.eval_shape(lambda layer, x: layer(x), others[-1], X)
    assert (shape.shape, shape.dtype) == (expected.shape, expected.dtype)


LINEAR = nnx.Linear(4, 2, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nnx.LayerNorm(4, rngs=0), "LayerNorm(rngs=...): expected an Rngs"),  # type: ignore[arg-type]
        (lambda: nnx.GroupNorm(4, rngs=rngs()), "num_features is 4, which cannot be divided by num_groups=32"),
        (lambda: nnx.GroupNorm(4, 2, 2, rngs=rngs()), "expected `num_groups` or `group_size`"),
        (lambda: nnx.GroupNorm(4, None, 3, rngs=rngs()), "cannot be divided by group_size=3"),
        (lambda: nnx.SpectralNorm(jnp.tanh, rngs=rngs()), "expected a module as `layer_instance`"),  # type: ignore[arg-type]
        (
            lambda: nnx.SpectralNorm(nnx.LinearGeneral(4, (2, 3), rngs=rngs()), error_on_non_matrix=True, rngs=rngs()),
            'SpectralNorm, "kernel": expected a matrix, as `error_on_non_matrix` demands, given (4, 2, 3)',
        ),
        (lambda: nnx.WeightNorm(jnp.tanh, rngs=rngs()), "expected a module as `layer_instance`"),  # type: ignore[arg-type]
        (lambda: nnx.WeightNorm(LINEAR, feature_axes=2, rngs=rngs()), 'WeightNorm, "kernel": feature_axes is (2,)'),
        (lambda: nnx.MultiHeadAttention(3, 4, rngs=rngs()), "cannot be divided among num_heads=3"),
        (lambda: nnx.MultiHeadAttention(2, 4, num_kv_heads=4, rngs=rngs()), "cannot share num_kv_heads=4"),
        (lambda: nnx.RNN(jnp.tanh), "expected a layer, given"),
        (lambda: nnx.RNN(LINEAR), "another module with `num_feature_axes`"),
        (lambda: nnx.RNN(cell(), rngs=3), "RNN(rngs=...): expected an Rngs"),  # type: ignore[arg-type]
        (lambda: nnx.Bidirectional(nnx.RNN(cell()), 3), "Bidirectional, backward_rnn: expected a layer"),  # type: ignore[arg-type]
    ],
)
def test_layer_that_cannot_be_made_says_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: nnx.BatchNorm(4, use_running_average=None, rngs=r)(X), "`use_running_average` is None"),
        (lambda r: nnx.BatchNorm(1, rngs=r)(X), "num_features is 1, but the inputs, of shape (2, 3, 4), have 4"),
        (lambda r: nnx.BatchNorm(4, rngs=r)(X[:0]), "nothing to average over"),
        (lambda r: nnx.BatchNorm(4, rngs=r)(X, mask=X[:1, :2] > 0), "mask has shape (1, 2, 4)"),
        (lambda r: nnx.LayerNorm(3, rngs=r)(X), "num_features is 3"),
        (lambda r: nnx.LayerNorm(4, reduction_axes=3, rngs=r)(X), "reduction_axes is (3,)"),
        (lambda r: nnx.RMSNorm(4, rngs=r)(X, X[:, :2] > 0), "RMSNorm: the mask has shape (2, 2, 4)"),
        (lambda r: nnx.GroupNorm(4, 2, reduction_axes=1, rngs=r)(X), "the last axis, the features, is missing"),
        (lambda r: nnx.GroupNorm(6, 2, rngs=r)(X), "num_features is 6"),
        (lambda r: nnx.InstanceNorm(2, feature_axes=0, rngs=r)(X), "the first axis is the batch"),
        (lambda r: nnx.MultiHeadAttention(2, 4, rngs=r)(X), "`decode` is None"),
        (lambda r: attention()(X, inputs_v=X), "`inputs_v` was given without `inputs_k`"),
        (lambda r: attention()(X, X[:1]), "given (2, 3, 4), (1, 3, 4) and (1, 3, 4)"),
        (lambda r: attention(in_kv_features=3)(X), "expected a kernel of shape (4, …)"),
        (lambda r: attention()(X, mask=X > 0), "mask"),
        (lambda r: attention(dropout_rate=0.5)(X), "`deterministic` is None"),
        (lambda r: attention(dropout_rate=0.5, deterministic=False, keep_rngs=False)(X), "has no dropout stream"),
        (lambda r: attention(decode=True)(X), "Call `init_cache(input_shape)` first"),
        (lambda r: decoding(3)(X[:1]), "a key of shape (2, positions, 2, 2)"),
        (lambda r: decoding(2)(X), "room for 2 positions, but this would be number 3"),
        (lambda r: decoding(3)(X, lengths=jnp.array([1, 2])), "an index of the cache for each example"),
        (lambda r: attention()(X, lengths=jnp.array([1, 2])), "the layer does not decode"),
        (lambda r: [layer := decoding(1), layer(X[:, :1]), layer(X[:, :1])], "call `init_cache` with a shape of the"),
        (lambda r: nnx.view(attention(), decode=True, batch_size=2), "a cache needs both"),
        (lambda r: cell().initialize_carry((2, 4)), "no stream to draw a key for the first carry from"),
        (lambda r: cell().initialize_carry((2, 4), 3), "expected an Rngs or an RngStream, given 3"),
        (lambda r: cell().initialize_carry((), r), "of shape (*batch, in_features), given ()"),
        (lambda r: cell()(jnp.ones((1, 3)), X[:, 0]), "expected a carry of shape (2, 3)"),
        (lambda r: nnx.LSTMCell(4, 3, rngs=r)(jnp.ones((2, 3)), X[:, 0]), "expected a carry of shape ((2, 3), (2, 3))"),
        (lambda r: nnx.RNN(cell())(X[0, 0]), "shape (*batch, time, features), given (4,)"),
        (lambda r: nnx.RNN(cell())(X, seq_lengths=[4, 1]), "seq_lengths has 4"),
        (lambda r: nnx.RNN(cell(), rngs=False)(X), "no stream to draw a key for the first carry from"),
        (
            lambda r: nnx.Bidirectional(nnx.RNN(cell()), nnx.RNN(cell()))(X, reverse=True),
            "already runs in both directions",
        ),
        (
            lambda r: nnx.Bidirectional(nnx.RNN(cell()), nnx.RNN(cell()))(X, keep_order=False),
            "merges the outputs of both directions step by step",
        ),
        (lambda r: nnx.Bidirectional(nnx.RNN(cell()), nnx.RNN(cell()))(X, initial_carry=X), "expected a pair as"),
    ],
)
def test_call_that_does_not_fit_says_why(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        call(rngs())


# -- norms -------------------------------------------------------------------------------------------------------------


def test_running_averages_move_in_training_only_and_under_jit() -> None:
    layer = nnx.BatchNorm(4, momentum=0.5, rngs=rngs())
    nnx.jit(lambda layer, x: layer(x))(layer, X)
    np.testing.assert_allclose(layer.mean[...], X.mean((0, 1)) / 2, rtol=1e-6)
    layer.eval()
    before = nnx.to_pure_dict(nnx.state(layer))
    layer(X)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(layer)), before)


def test_batch_norm_keeps_statistics_of_several_axes() -> None:
    layer = nnx.BatchNorm(12, axis=(1, 2), momentum=0.0, rngs=rngs())
    y = layer(X)
    np.testing.assert_allclose(layer.mean[...], X.mean(0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(layer(X, use_running_average=True), y, rtol=1e-5)


def test_group_norm_takes_any_number_of_batch_axes() -> None:
    layer = nnx.GroupNorm(4, 2, reduction_axes=(-1,), rngs=rngs())
    np.testing.assert_allclose(layer(X)[1, 2], nnx.GroupNorm(4, 2, rngs=rngs())(X[1, 2:3])[0], rtol=1e-6)


def test_spectral_norm_divides_by_the_largest_singular_value() -> None:
    layer = nnx.SpectralNorm(nnx.Linear(4, 3, rngs=rngs()), n_steps=50, rngs=rngs())
    layer(X)
    singular = jnp.linalg.svd(layer.layer_instance.kernel[...], compute_uv=False)
    np.testing.assert_allclose(singular[0], 1, rtol=1e-4)


def test_scales_of_weight_norm_are_learned() -> None:
    layer = nnx.WeightNorm(nnx.Linear(4, 3, rngs=rngs()), rngs=rngs())
    slopes = nnx.grad(lambda layer: (layer(X) ** 2).sum())(layer)
    scales = [leaf for path, leaf in nnx.to_flat_state(slopes) if path[0] == "scales"]
    assert [leaf.shape for leaf in scales] == [(3,)]
    assert np.all(scales[0][...] != 0)


def test_scales_of_weight_norm_may_be_random_and_draw_nothing() -> None:
    streams, other = rngs(), rngs()
    layer = nnx.WeightNorm(
        nnx.Linear(4, 3, rngs=streams), scale_init=jax.nn.initializers.normal(), variable_filter=nnx.Param,
        feature_axes=(), param_dtype=jnp.float16, rngs=streams,
    )  # fmt: skip
    nnx.Linear(4, 3, rngs=other)
    assert layer.scales is not None
    assert {scale.dtype for scale in layer.scales.values()} == {jnp.dtype(jnp.float16)}
    assert len({float(scale[...]) for scale in layer.scales.values()}) == 2
    assert int(streams.params.count[...]) == int(other.params.count[...])


@pytest.mark.parametrize("wrapper", [nnx.SpectralNorm, nnx.WeightNorm])
def test_a_parameter_that_comes_later_is_named(wrapper: Any) -> None:
    layer = wrapper(nnx.Linear(4, 3, rngs=rngs()), rngs=rngs())
    layer.layer_instance.more = nnx.Dict(kernel=nnx.Param(jnp.ones((2, 2))))
    with pytest.raises(StructureError, match=r'a new parameter "more.kernel", which it did not have'):
        layer(X)


# -- attention ---------------------------------------------------------------------------------------------------------


def test_decoding_is_causal_attention_position_by_position() -> None:
    layer = decoding(3)
    step = nnx.jit(lambda layer, x: layer(x, is_causal=True))
    found = jnp.concatenate([step(layer, X[:, i : i + 1]) for i in range(3)], axis=1)
    np.testing.assert_allclose(found, layer(X, decode=False, is_causal=True), rtol=1e-5, atol=1e-6)
    assert np.isnan(step(layer, X[:, :1])).all()  # the cache is full, which a traced index cannot raise


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_ragged_cache_decodes_each_example_at_its_own_length(dtype: Any) -> None:
    layer = nnx.MultiHeadAttention(4, 4, num_kv_heads=2, decode=True, rngs=rngs())
    layer.init_cache((2, 4, 4), dtype, ragged=True)
    lengths = jnp.array([2, 1])
    prompt = layer(X[:, :2], lengths=lengths)
    step = layer(X[jnp.arange(2), lengths][:, None])
    expected = layer(X, decode=False, is_causal=True)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    for i, length in enumerate([2, 1]):
        np.testing.assert_allclose(prompt[i, :length], expected[i, :length], atol=tolerance)
        np.testing.assert_allclose(step[i, 0], expected[i, length], atol=tolerance)
    assert (layer.cached_key.dtype, step.dtype, list(layer.cache_index[...])) == (dtype, jnp.float32, [3, 2])


def test_a_view_may_have_a_cache_of_its_own() -> None:
    layer = attention(dtype=jnp.bfloat16)
    view = nnx.view(layer, decode=True, batch_size=2, max_length=3)
    assert view(X[:, :1]).dtype == jnp.bfloat16
    assert (layer.decode, layer.cached_key, view.cached_key.shape) == (False, None, (2, 3, 2, 2))


def test_weights_are_sown_as_intermediates() -> None:
    layer = attention()
    y, sown = nnx.capture(lambda layer, x: layer(x, sow_weights=True), nnx.Intermediate)(layer, X)
    (weights,) = jax.tree.leaves(nnx.to_pure_dict(sown))
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(y, layer(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["highest", jax.lax.Precision.HIGH, ("highest", "default"), "bfloat16_3x"])
def test_precision_reaches_the_products_of_attention(precision: Any) -> None:
    q = X[:, :, None]
    jaxpr = str(jax.make_jaxpr(lambda q: nnx.dot_product_attention(q, q, q, precision=precision))(q))
    assert "precision=None" not in jaxpr
    assert "Precision.HIGH" in jaxpr


def test_values_may_have_another_depth_than_keys() -> None:
    query, value = X[:, :, None], X[:, :, None, :2]
    weights = dot_product_attention_weights(query, query)
    np.testing.assert_allclose(
        nnx.dot_product_attention(query, query, value), jnp.einsum("bhqk,bkhd->bqhd", weights, value), rtol=1e-6
    )


# -- recurrent layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell])
def test_cells_may_have_parameters_of_half_precision(kind: Any) -> None:
    layer = nnx.RNN(kind(4, 3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=rngs()))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(layer.cell))} == {jnp.dtype(jnp.bfloat16)}
    assert layer(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_half_precision_is_rounded_from_single() -> None:
    key = jax.random.key(0)
    np.testing.assert_array_equal(
        modified_orthogonal(key, (3, 3), jnp.float16), modified_orthogonal(key, (3, 3)).astype(jnp.float16)
    )


def test_the_last_carry_of_a_sequence_without_steps_is_the_first() -> None:
    layer = nnx.RNN(cell(), return_carry=True)
    first = jnp.ones((2, 3))
    carry, y = layer(X, initial_carry=first, seq_lengths=jnp.array([0, 2]))
    np.testing.assert_array_equal(carry, [first[0], y[1, 1]])


def test_rnn_is_the_cell_step_by_step_with_several_batch_axes() -> None:
    one = cell()
    y = nnx.RNN(one, time_major=True)(jnp.stack([X, X + 1]))
    carry = jnp.zeros((2, 3, 3))
    for x, expected in zip((X, X + 1), y, strict=True):
        carry, _ = one(carry, x)
        np.testing.assert_allclose(expected, carry, rtol=1e-6)


def test_rnn_moves_statistics_of_its_cell_and_has_gradients() -> None:
    class Counting(nnx.SimpleCell):
        def __init__(self) -> None:
            super().__init__(4, 3, rngs=rngs())
            self.steps = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, carry: Any, x: Any) -> Any:
            self.steps[...] += 1
            return super().__call__(carry, x)

    layer = nnx.RNN(Counting())
    slopes = nnx.grad(lambda layer, x: layer(x).sum())(layer, X)
    assert layer.cell.steps[...] == 3
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(slopes))


def test_a_cell_that_returns_no_pair_is_named() -> None:
    class Wrong(nnx.SimpleCell):
        def __call__(self, carry: Any, x: Any) -> Any:
            return carry

    with pytest.raises(LiftArgumentError, match="Wrong: expected the cell to return a pair"):
        nnx.RNN(Wrong(4, 3, rngs=rngs()))(X)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: cell(carry_init=jax.nn.initializers.ones), "Pass it to `initialize_carry`"),
        (lambda: cell(keep_rngs=True), "keep_rngs is deprecated"),
        (lambda: [one := nnx.RNN(cell()), nnx.Bidirectional(one, one)(X)], "share their parameters"),
    ],
)
def test_what_may_not_be_meant_is_a_warning(run: Callable[[], Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        run()


@pytest.mark.filterwarnings("ignore:carry_init", "ignore:keep_rngs")
def test_a_cell_may_keep_what_makes_its_carry() -> None:
    ones = jax.nn.initializers.ones
    np.testing.assert_array_equal(cell(carry_init=ones, keep_rngs=True).initialize_carry((2, 4)), np.ones((2, 3)))


class Short(nnx.RNNCellBase):
    num_feature_axes = 1

    def __call__(self, carry: Any, x: Any) -> Any:
        return carry, jnp.sum(x)

    def initialize_carry(self, shape: Any, rngs: Any = None, carry_init: Any = None) -> Any:
        return jnp.zeros(())


class LinenShort(nn.RNNCellBase):
    num_feature_axes = 1

    def __call__(self, carry: Any, x: Any) -> Any:
        return carry, jnp.sum(x)

    @nn.nowrap
    def initialize_carry(self, rng: Any, shape: Any) -> Any:
        return jnp.zeros(())


HALF: Any = {"dtype": jnp.bfloat16}
PAIR = (jnp.ones((2, 4)),) * 2
MISTAKES: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "no time": ("SimpleCell", {}, X[0, 0], {}),
    "no array": ("SimpleCell", {}, [1.0], {}),
    "lengths of another shape": ("SimpleCell", {}, X, {"seq_lengths": jnp.ones(3, int)}),
    "lengths that are not integers": ("SimpleCell", {}, X, {"seq_lengths": jnp.ones(2)}),
    "lengths beyond the end": ("SimpleCell", {}, X, {"seq_lengths": jnp.array([1, 4])}),
    "lengths below zero": ("SimpleCell", {}, X, {"seq_lengths": jnp.array([1, -1])}),
    "lengths of another layout": ("SimpleCell", {}, X, {"seq_lengths": jnp.ones(2, int), "time_major": True}),
    "a carry of another structure": ("LSTMCell", {}, X, {"initial_carry": [*PAIR]}),
    "a carry of another dtype": ("SimpleCell", {}, X, {"initial_carry": jnp.ones((2, 4), jnp.bfloat16)}),
    "a carry of the cell of another dtype": ("SimpleCell", HALF, X.astype(jnp.bfloat16), {}),
    "outputs without the batch": ("short", {}, X, {}),
    "a carry without the batch": (
        "short",
        {},
        X,
        {"seq_lengths": jnp.ones(3, int), "time_major": True, "return_carry": True},
    ),
    "no pair of carries": ("both", {}, X, {"initial_carry": X}),
    "a reversed pair": ("both", {}, X, {"reverse": True}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_at_recurrent_layers_read_as_those_of_linen(name: str) -> None:
    kind, options, x, call = MISTAKES[name]

    def ours() -> Any:
        if kind == "both":
            return nnx.Bidirectional(*(nnx.RNN(nnx.SimpleCell(4, 4, rngs=rngs())) for _ in range(2)))(x, **call)
        one = Short() if kind == "short" else getattr(nnx, kind)(4, 4, **options, rngs=rngs())
        return nnx.RNN(one)(x, **call)

    def linen() -> Any:
        if kind == "both":
            return nn.Bidirectional(*(nn.RNN(nn.SimpleCell(4)) for _ in range(2))).init(jax.random.key(0), x, **call)
        one = LinenShort() if kind == "short" else getattr(nn, kind)(4, **options)
        return nn.RNN(one).init(jax.random.key(0), x, **call)

    told = []
    for use in (ours, linen):
        with pytest.raises(LiftError) as raised:
            use()
        text = re.sub(r"Linen(?=Short)| at /\S*(?=:)", "", str(raised.value))
        told.append(
            (type(raised.value), text, [one for one in getattr(raised.value, "__notes__", []) if "cell" in one])
        )
    assert told[0] == told[1]
    assert bool(told[0][2]) == (name == "a carry of the cell of another dtype")

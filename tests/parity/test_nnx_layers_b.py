"""Layers of `nnx_like` that normalize, attend or recur, against those of `flax.nnx`: bit for bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like
from tests.layers.bits import assert_same_bits
from tests.layers.row import array

nnx = pytest.importorskip("flax.nnx")

HALF = jnp.bfloat16
X, GRID, MASK = jnp.asarray(array(2, 5, 4)), jnp.asarray(array(2, 3, 2, 4)), array(2, 5, 1) > 0
LENGTHS = jnp.array([3, 5])
NORMAL = jax.nn.initializers.normal()
OWN = {"scale_init": NORMAL, "bias_init": NORMAL, "scale_metadata": {"tag": "s"}, "bias_metadata": {"tag": "b"}}
GIVEN = {"kernel_init": NORMAL, "bias_init": NORMAL, "kernel_metadata": {"tag": "k"}, "bias_metadata": {"tag": "b"}}
RECURRENT = {**GIVEN, "recurrent_kernel_init": NORMAL, "recurrent_kernel_metadata": {"tag": "r"}}
HALVES = {"dtype": HALF, "param_dtype": jnp.float16}


def in_half(args: Any, /, *, dtype: Any = None, **_: Any) -> Any:
    """For `promote_dtype`."""
    return tuple(None if x is None else jnp.asarray(x, HALF) for x in args)


def doubled(*args: Any, **options: Any) -> Any:
    return 2 * jax.lax.dot_general(*args, **options)


class Row(NamedTuple):
    """A layer, made by `make(library, rngs)`, and calls of it."""

    make: Callable[[Any, Any], Any]
    call: Callable[[Any, Any], Any] = lambda n, layer: layer(X)


def mapped(n: Any, layer: Any) -> Any:
    """A call for each example, with statistics over all of them."""
    return jax.vmap(lambda x: n.clone(layer)(x), axis_name="examples")(X)


def steps(n: Any, layer: Any) -> Any:
    """Decoding, position after position."""
    with pytest.raises(ValueError, match="cache"):
        layer(X[:, :1])
    layer.init_cache(X.shape)
    mask = (np.arange(5) != 1)[None, None, None]
    return [layer(X[:, :1]), layer(X[:, 1:2], mask=mask), layer(X[:, 2:3]), layer(X, decode=False)]


def evaluated(n: Any, layer: Any) -> Any:
    results = layer(X), layer(X, mask=MASK), layer(X, use_running_average=True)
    layer.eval()
    return results, layer(X), n.view(layer, use_running_average=False)(X)


NORMS: dict[str, Row] = {
    "BatchNorm": Row(lambda n, r: n.BatchNorm(4, **OWN, rngs=r), evaluated),
    "BatchNorm, dtypes": Row(lambda n, r: n.BatchNorm(4, **HALVES, momentum=0.5, epsilon=0.1, rngs=r), evaluated),
    "BatchNorm, axis": Row(
        lambda n, r: n.BatchNorm(5, axis=1, use_running_average=None, use_bias=False, use_scale=False, rngs=r),
        lambda n, layer: [layer(X, False), layer(X, True)],
    ),
    "BatchNorm, half": Row(
        lambda n, r: n.BatchNorm(4, use_fast_variance=False, promote_dtype=in_half, rngs=r), evaluated
    ),
    "BatchNorm, mapped": Row(lambda n, r: n.BatchNorm(4, axis_name="examples", rngs=r), mapped),
    "LayerNorm": Row(lambda n, r: n.LayerNorm(4, **OWN, rngs=r), lambda n, layer: [layer(X), layer(X, mask=MASK)]),
    "LayerNorm, axes": Row(
        lambda n, r: n.LayerNorm(20, reduction_axes=(1, 2), feature_axes=(-1, 1), use_fast_variance=False, rngs=r)
    ),
    "LayerNorm, dtypes": Row(lambda n, r: n.LayerNorm(4, **HALVES, use_scale=False, epsilon=0.1, rngs=r)),
    "LayerNorm, half": Row(lambda n, r: n.LayerNorm(4, promote_dtype=in_half, use_bias=False, rngs=r)),
    "RMSNorm": Row(
        lambda n, r: n.RMSNorm(4, scale_init=NORMAL, scale_metadata={"tag": "s"}, rngs=r),
        lambda n, layer: [layer(X), layer(X.astype(HALF), MASK)],
    ),
    "RMSNorm, dtypes": Row(lambda n, r: n.RMSNorm(5, **HALVES, feature_axes=1, reduction_axes=(0, 1), rngs=r)),
    "RMSNorm, none": Row(lambda n, r: n.RMSNorm(4, use_scale=False, use_fast_variance=False, rngs=r)),
    "GroupNorm": Row(lambda n, r: n.GroupNorm(4, 2, **OWN, rngs=r), lambda n, layer: layer(GRID, mask=GRID > 0)),
    "GroupNorm, size": Row(lambda n, r: n.GroupNorm(4, None, 4, **HALVES, rngs=r), lambda n, layer: layer(GRID)),
    "GroupNorm, axes": Row(lambda n, r: n.GroupNorm(4, 1, reduction_axes=(2, -1), use_fast_variance=False, rngs=r),
                           lambda n, layer: layer(GRID[:, :1])),
    "InstanceNorm": Row(lambda n, r: n.InstanceNorm(4, **OWN, rngs=r), lambda n, layer: layer(GRID, mask=GRID > 0)),
    "InstanceNorm, axes": Row(
        lambda n, r: n.InstanceNorm(12, feature_axes=(1, -1), dtype=HALF, rngs=r), lambda n, layer: layer(GRID)
    ),
    "SpectralNorm": Row(
        lambda n, r: n.SpectralNorm(n.Linear(4, 3, rngs=r), rngs=r),
        lambda n, layer: [layer(X), layer(X, update_stats=False), layer(X)],
    ),
    "SpectralNorm, dtypes": Row(
        lambda n, r: n.SpectralNorm(
            n.LinearGeneral(4, (2, 3), rngs=r), n_steps=2, epsilon=1e-3, **HALVES, update_stats=False, rngs=r
        ),
        lambda n, layer: [layer(X), layer(X, True), layer.train(), layer(X), layer.eval(), layer(X)],
    ),
    "SpectralNorm, none": Row(lambda n, r: n.SpectralNorm(n.Linear(4, 3, rngs=r), n_steps=0, rngs=r)),
}  # fmt: skip

ATTENTION: dict[str, Row] = {
    "MultiHeadAttention": Row(
        lambda n, r: n.MultiHeadAttention(2, 4, decode=False, **GIVEN, rngs=r),
        lambda n, layer: [
            layer(X), layer(X, is_causal=True), layer(X, X[:, :3], mask=MASK[:, None, :, :]), layer(X[0]),
        ],
    ),
    "MultiHeadAttention, features": Row(
        lambda n, r: n.MultiHeadAttention(
            4, 4, 8, 3, 2, 5, decode=False, normalize_qk=True, use_bias=False, out_kernel_init=NORMAL,
            query_ln_scale_metadata={"tag": "q"}, key_ln_scale_metadata={"tag": "k"}, out_kernel_metadata={"tag": "o"},
            rngs=r,
        ),
        lambda n, layer: layer(X, jnp.asarray(array(2, 3, 5)), jnp.asarray(array(2, 3, 5)), sow_weights=True),
    ),
    "MultiHeadAttention, dtypes": Row(
        lambda n, r: n.MultiHeadAttention(2, 4, decode=False, **HALVES, precision="highest", rngs=r),
        lambda n, layer: layer(X[None]),
    ),
    "MultiHeadAttention, dropout": Row(
        lambda n, r: n.MultiHeadAttention(2, 4, decode=False, dropout_rate=0.5, out_bias_init=NORMAL, rngs=r),
        lambda n, layer: [
            layer(X, deterministic=False), layer(X, deterministic=True), layer.train(), layer(X, sow_weights=True),
            layer(X, rngs=n.Rngs(3)), layer(X, rngs=n.Rngs(dropout=4).dropout), layer.eval(), layer(X),
        ],
    ),
    "MultiHeadAttention, dropout for each": Row(
        lambda n, r: n.MultiHeadAttention(
            4, 4, num_kv_heads=2, decode=False, dropout_rate=0.5, deterministic=False, broadcast_dropout=False,
            keep_rngs=False, rngs=r,
        ),
        lambda n, layer: layer(X, rngs=n.Rngs(3)),
    ),
    "MultiHeadAttention, products": Row(
        lambda n, r: n.MultiHeadAttention(
            2, 4, decode=False, qkv_promote_dtype=in_half, qkv_dot_general=doubled, out_dot_general=doubled, rngs=r
        ),
    ),
    "MultiHeadAttention, own": Row(
        lambda n, r: n.MultiHeadAttention(
            2, 4, decode=False, attention_fn=lambda q, k, v, **options: v * len(options), rngs=r
        ),
    ),
    "MultiHeadAttention, decoding": Row(
        lambda n, r: n.MultiHeadAttention(4, 4, num_kv_heads=2, decode=True, rngs=r), steps
    ),
}  # fmt: skip


def step(n: Any, cell: Any) -> Any:
    first = cell.initialize_carry(X[:, 0].shape, n.Rngs(1), NORMAL)
    carry, y = cell(first, X[:, 0])
    return first, cell(carry, X[:, 1]), y, cell.initialize_carry((4,), n.Rngs(carry=1).carry)


def cell_with_dropout(n: Any, rngs: Any) -> Any:
    class Dropping(n.GRUCell):
        def __init__(self) -> None:
            super().__init__(4, 3, rngs=rngs)
            self.drop = n.Dropout(0.5, rng_collection="noise", rngs=rngs)

        def __call__(self, carry: Any, x: Any) -> Any:
            carry, y = super().__call__(carry, x)
            return self.drop(carry), self.drop(y)

    return Dropping()


CELLS: dict[str, Row] = {
    "SimpleCell": Row(lambda n, r: n.SimpleCell(4, 3, **RECURRENT, rngs=r), step),
    "SimpleCell, options": Row(
        lambda n, r: n.SimpleCell(4, 3, residual=True, activation_fn=jax.nn.relu, dtype=HALF, rngs=r), step
    ),
    "GRUCell": Row(lambda n, r: n.GRUCell(4, 3, **RECURRENT, rngs=r), step),
    "GRUCell, options": Row(
        lambda n, r: n.GRUCell(4, 3, gate_fn=jnp.tanh, activation_fn=jnp.sin, promote_dtype=in_half, rngs=r), step
    ),
    "LSTMCell": Row(lambda n, r: n.LSTMCell(4, 3, **RECURRENT, rngs=r), step),
    "LSTMCell, dtypes": Row(lambda n, r: n.LSTMCell(4, 3, **HALVES, rngs=r), step),
    "OptimizedLSTMCell": Row(lambda n, r: n.OptimizedLSTMCell(4, 3, **RECURRENT, rngs=r), step),
    "OptimizedLSTMCell, options": Row(
        lambda n, r: n.OptimizedLSTMCell(4, 3, gate_fn=jnp.tanh, activation_fn=jnp.sin, rngs=r), step
    ),
    "RNN": Row(
        lambda n, r: n.RNN(n.LSTMCell(4, 3, rngs=r), return_carry=True, unroll=2),
        lambda n, layer: [layer(X, seq_lengths=LENGTHS), layer(X.swapaxes(0, 1), time_major=True)],
    ),
    "RNN, reverse": Row(
        lambda n, r: n.RNN(n.SimpleCell(4, 3, rngs=r), reverse=True, time_major=True, rngs=r),
        lambda n, layer: [
            layer(X.swapaxes(0, 1)),
            layer(X, time_major=False, return_carry=True, seq_lengths=LENGTHS, keep_order=True, rngs=n.Rngs(4)),
        ],
    ),
    "RNN, carry": Row(
        lambda n, r: n.RNN(n.SimpleCell(4, 3, rngs=r), rngs=False),
        lambda n, layer: [layer(X, initial_carry=jnp.ones((2, 3))), layer(X[0], rngs=n.Rngs(carry=1).carry)],
    ),
    "RNN, dropout": Row(
        lambda n, r: n.RNN(cell_with_dropout(n, r)), lambda n, layer: [layer(X), layer(X, reverse=True)]
    ),
    "RNN, the same dropout": Row(
        lambda n, r: n.RNN(
            cell_with_dropout(n, r), state_axes=n.StateAxes({n.Param: None, ...: n.Carry}), broadcast_rngs="noise"
        ),
        lambda n, layer: [layer(X), layer(X)],
    ),
    "Bidirectional": Row(
        lambda n, r: n.Bidirectional(
            n.RNN(n.SimpleCell(4, 3, rngs=r)), n.RNN(n.GRUCell(4, 3, rngs=r)), return_carry=True, time_major=True,
            rngs=r,
        ),
        lambda n, layer: layer(X, time_major=False, seq_lengths=LENGTHS),
    ),
    "Bidirectional, merged": Row(
        lambda n, r: n.Bidirectional(
            n.RNN(n.SimpleCell(4, 3, rngs=r)), n.RNN(n.SimpleCell(4, 3, rngs=r)), merge_fn=jnp.add, rngs=False
        ),
        lambda n, layer: layer(X, initial_carry=(jnp.ones((2, 3)), jnp.zeros((2, 3))), rngs=n.Rngs(1)),
    ),
}  # fmt: skip

TABLE = {**NORMS, **ATTENTION, **CELLS}

OF_NNX = ("eager_sharding", "hijax", "ref")
"""Switches that NNX keeps in the metadata of every variable."""


def variables(n: Any, layer: Any) -> dict[Any, Any]:
    """Of each variable below a layer its type, metadata and value."""
    found = {}
    for path, variable in n.to_flat_state(n.state(layer)):
        held = variable.get_value()
        held = jax.tree.map(
            lambda one: jax.random.key_data(one) if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else one, held
        )
        metadata = {key: one for key, one in variable.get_metadata().items() if key not in OF_NNX}
        found[str(path)] = (type(variable).__name__, metadata), held
    return found


@pytest.mark.filterwarnings("ignore:Using 'Module.sow", "ignore:scatter inputs have incompatible")
@pytest.mark.parametrize("name", TABLE)
def test_layer_is_that_of_nnx(name: str) -> None:
    row = TABLE[name]
    ours, theirs = (row.make(n, n.Rngs(7, noise=3)) for n in (nnx_like, nnx))
    for called in (False, True):
        mine, other = variables(nnx_like, ours), variables(nnx, theirs)
        assert {path: one[0] for path, one in mine.items()} == {path: one[0] for path, one in other.items()}
        assert_same_bits({path: one[1] for path, one in mine.items()}, {path: one[1] for path, one in other.items()})
        if not called:
            assert_same_bits(row.call(nnx_like, ours), row.call(nnx, theirs))


WEIGHT_NORMS: dict[str, dict[str, Any]] = {
    "one length for each": {},
    "one length": {"feature_axes": None, "scale_init": jax.nn.initializers.constant(3.0)},
    "no scale": {"use_scale": False, "epsilon": 0.1},
    "dtype": {"dtype": HALF},
    "all": {"variable_filter": nnx.Param, "feature_axes": (0,)},
}


@pytest.mark.parametrize("name", WEIGHT_NORMS)
def test_weight_norm_is_that_of_nnx_with_scales_that_are_parameters(name: str) -> None:
    def run(n: Any) -> Any:
        rngs, options = n.Rngs(7), WEIGHT_NORMS[name]
        if "variable_filter" in options:
            options = {**options, "variable_filter": n.Param}
        layer = n.WeightNorm(n.Linear(4, 3, rngs=rngs), **options, rngs=rngs)
        results = layer(X), layer(X)
        return n.to_pure_dict(n.state(layer)), results, rngs.params.count.get_value()

    assert_same_bits(run(nnx_like), run(nnx))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": MASK[:, None, :, :]}, {"dtype": HALF}], ids=str)
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_attention_functions_are_those_of_nnx(options: dict[str, Any], kv_heads: int) -> None:
    query, key, value = (jnp.asarray(array(2, 5, heads, 4)) for heads in (2, kv_heads, kv_heads))
    drops = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(1)}

    def computed(n: Any) -> Any:
        function = n.dot_product_attention
        weights = __import__(inspect.getmodule(function).__name__, fromlist=["_"]).dot_product_attention_weights
        return (
            function(query, key, value, **options),
            function(query, key, value, array(2, 2, 5, 5), **options, **drops),
            function(query, key, value, **options, **drops, deterministic=True, broadcast_dropout=False),
            weights(query, key, array(1, 2, 1, 5), **options, **drops, broadcast_dropout=False, precision="highest"),
            weights(query, key, promote_dtype=in_half, **options),
        )

    assert_same_bits(computed(nnx_like), computed(nnx))


@pytest.mark.skipif(not hasattr(nnx, "RoPE"), reason="flax has it since 0.12.9, which needs Python 3.12")
@pytest.mark.filterwarnings("ignore:'.value' access is now deprecated:DeprecationWarning")  # flax's own
@pytest.mark.parametrize("options", [{}, {"theta": 100.0}, {"embedding_size": 4, "max_seq_len": 9}], ids=str)
def test_rotary_positions_are_those_of_nnx(options: dict[str, Any]) -> None:
    x, positions, one = (jnp.asarray(array(*shape)) for shape in ((2, 5, 4), (5,), (2, 5, 3, 4)))

    def computed(n: Any) -> Any:
        rope = n.RoPE(**options)
        attended = n.dot_product_attention_with_rope(one, one, one, rope=rope, is_causal=True)
        return rope(x), rope(x, positions), attended, n.to_pure_dict(n.state(rope))

    assert_same_bits(computed(nnx_like), computed(nnx))


LAYERS = [
    "BatchNorm", "Bidirectional", "GRUCell", "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm", "MultiHeadAttention",
    "OptimizedLSTMCell", "RMSNorm", "RNN", "RNNCellBase", "SimpleCell", "SpectralNorm", "WeightNorm",
]  # fmt: skip


@pytest.mark.parametrize("name", [*LAYERS, "dot_product_attention"])
def test_arguments_defaults_and_methods_are_those_of_nnx(name: str) -> None:
    def described(method: Any) -> list[Any]:  # those of ragged batches and of the fused kernels are ours alone
        def default(value: Any) -> Any:
            return "callable" if callable(value) else dict(value) if hasattr(value, "items") else value

        ours = ("lengths", "ragged", "implementation", *(() if hasattr(nnx, "RoPE") else ("input_positions",)))
        found = [one for one in inspect.signature(method).parameters.values() if one.name not in ours]
        return [(one.name, one.kind, default(one.default)) for one in found]

    mine, other = getattr(nnx_like, name), getattr(nnx, name)
    if not inspect.isclass(mine):
        assert described(mine) == described(other)
        return
    methods = {key for key in dir(other) if key[0] != "_" and callable(getattr(other, key))} & set(vars(other))
    assert methods - {"merge_fn"} <= set(dir(mine))
    for method in ["__init__", "__call__", *sorted(methods - {"merge_fn"})]:
        if name != "RNNCellBase" or method != "__init__":
            assert described(getattr(mine, method)) == described(getattr(other, method)), method


@pytest.mark.parametrize("name", [name for name in TABLE if "," not in name])
def test_attributes_are_those_of_nnx(name: str) -> None:
    def attributes(n: Any) -> set[str]:
        return {key for key in vars(TABLE[name].make(n, n.Rngs(0, noise=1))) if not key.startswith("_")}

    extra = {"num_features"} if name == "GroupNorm" else set()
    assert attributes(nnx_like) - extra == attributes(nnx)

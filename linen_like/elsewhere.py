"""Names of Linen and of other libraries, and what to write here: for errors about unknown names, and for a table."""

from __future__ import annotations

from liftcore.elsewhere import KERAS, PYTORCH
from liftcore.lazy import without_links

__all__ = ["INSTEAD", "LINEN"]

LINEN = {
    "set_logical_axis_rules": "`with nn.logical_axis_rules(rules):`",
}
"""The names of Linen that are left out."""

_CONV = "Use Conv(features, (3, 3)): the length of `kernel_size` is the number of spatial axes, and channels come last"
_TRANSPOSED = "Use ConvTranspose(features, (3, 3)): the length of `kernel_size` is the number of spatial axes"
_VARIABLE = 'In a method, use self.variable("state", name, init_fn, …)'

INSTEAD = {
    **PYTORCH,
    **KERAS,
    **{name: without_links(f"Instead of flax.linen.{name}: {text}") for name, text in LINEN.items()},
    "set_axis_rules": "Instead of flax.linen.partitioning.set_axis_rules: `with partitioning.axis_rules(rules):`",
    "Linear": "Use Dense(features): it infers the number of input features",
    "LinearGeneral": "Use DenseGeneral(features, axis)",
    "LoRALinear": "Use LoRADense(features, rank)",
    "MLP": "Use Sequential([Dense(n), relu, Dense(m)])",
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D"), _CONV),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv2DTranspose"), _TRANSPOSED),
    **dict.fromkeys(("Dropout2d", "SpatialDropout2D"), "Use Dropout(rate, broadcast_dims=(1, 2))"),
    "Embedding": "Use Embed(num_embeddings, features)",
    "MultiheadAttention": "Use MultiHeadAttention(num_heads)",
    "LSTM": "Use RNN(LSTMCell(features))",
    "GRU": "Use RNN(GRUCell(features))",
    "ModuleList": "Assign a list of modules to an attribute in setup",
    "ModuleDict": "Assign a dict of modules to an attribute in setup",
    "Parameter": "In a method, use self.param(name, init_fn, shape)",
    "Param": "In a method, use self.param(name, init_fn, shape)",
    "Buffer": _VARIABLE,
    "BatchStat": _VARIABLE,
    "Cache": _VARIABLE,
    "Rngs": 'Pass keys by the names of their streams: model.init({"params": key, "dropout": other}, x)',
}

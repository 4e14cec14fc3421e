"""Names of Linen and of other libraries, and what to write here: for errors about unknown names, and for a table."""

from __future__ import annotations

from liftcore.lazy import without_links

__all__ = ["INSTEAD", "LINEN"]

LINEN = {
    "set_logical_axis_rules": "`with nn.logical_axis_rules(rules):`",
}
"""The names of Linen that are left out."""

_CONV = "Use Conv(features, (3, 3)): the length of `kernel_size` is the number of spatial axes, and channels come last"
_TRANSPOSED = "Use ConvTranspose(features, (3, 3)): the length of `kernel_size` is the number of spatial axes"
_POOL = "(x, (2, 2), strides=(2, 2)), a function: the length of the window is the number of spatial axes"
_LOSS = "Losses are functions of Optax, one loss for each example: "
_VARIABLE = 'In a method, use self.variable("state", name, init_fn, …)'

INSTEAD = {
    **{name: without_links(f"Instead of flax.linen.{name}: {text}") for name, text in LINEN.items()},
    "set_axis_rules": "Instead of flax.linen.partitioning.set_axis_rules: `with partitioning.axis_rules(rules):`",
    "Linear": "Use Dense(features): it infers the number of input features",
    "LinearGeneral": "Use DenseGeneral(features, axis)",
    "LoRALinear": "Use LoRADense(features, rank)",
    "MLP": "Use Sequential([Dense(n), relu, Dense(m)])",
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D"), _CONV),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"), _TRANSPOSED),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "Use BatchNorm: channels come last"),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), "Use InstanceNorm: channels come last"),
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d"), f"Use max_pool{_POOL}"),
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AvgPool3d"), f"Use avg_pool{_POOL}"),
    "AdaptiveAvgPool2d": "For one value per channel, use x.mean((1, 2))",
    "Dropout2d": "Use Dropout(rate, broadcast_dims=(1, 2))",
    "Embedding": "Use Embed(num_embeddings, features)",
    "MultiheadAttention": "Use MultiHeadAttention(num_heads)",
    "LSTM": "Use RNN(LSTMCell(features))",
    "GRU": "Use RNN(GRUCell(features))",
    "ReLU": "Use relu, a function",
    "GELU": "Use gelu, a function; gelu(x, approximate=False) is exact",
    "SiLU": "Use silu, a function",
    "Tanh": "Use tanh, a function",
    "Sigmoid": "Use sigmoid, a function",
    "Softmax": "Use softmax, a function",
    "LeakyReLU": "Use leaky_relu, a function",
    "Identity": "Use a function: lambda x: x",
    "Flatten": "Use x.reshape(x.shape[0], -1)",
    "ModuleList": "Assign a list of modules to an attribute in setup",
    "ModuleDict": "Assign a dict of modules to an attribute in setup",
    "Parameter": "In a method, use self.param(name, init_fn, shape)",
    "Param": "In a method, use self.param(name, init_fn, shape)",
    "Buffer": _VARIABLE,
    "BatchStat": _VARIABLE,
    "Cache": _VARIABLE,
    "Rngs": 'Pass keys by the names of their streams: model.init({"params": key, "dropout": other}, x)',
    "CrossEntropyLoss": f"{_LOSS}optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()",
    "MSELoss": f"{_LOSS}optax.squared_error(predictions, targets).mean()",
    "BCEWithLogitsLoss": f"{_LOSS}optax.sigmoid_binary_cross_entropy(logits, labels).mean()",
}

"""Names of layers in other libraries, and what to write here: for the error about an unknown name."""

from __future__ import annotations

__all__ = ["INSTEAD"]

_ATTENTION = "Use MultiHeadAttention(num_heads, in_features, rngs=rngs)"
_CONV = (
    "Use Conv(3, 8, (3, 3), rngs=rngs): the length of `kernel_size` is the number of spatial axes; channels come last"
)
_TRANSPOSED = "Use ConvTranspose(3, 8, (3, 3), rngs=rngs): the length of `kernel_size` is the number of spatial axes"
_POOL = "(x, (2, 2), strides=(2, 2)), a function: the length of the window is the number of spatial axes"
_LOSS = "Losses are functions of Optax, one loss for each example: "
_VARIABLE = "Subclass Variable, and assign Buffer(array) to an attribute: class Buffer(nnx.Variable): pass"

INSTEAD = {
    "Dense": "Use Linear(in_features, out_features, rngs=rngs)",
    "DenseGeneral": "Use LinearGeneral(in_features, out_features, rngs=rngs)",
    "LoRADense": "Use LoRALinear(in_features, out_features, lora_rank=8, rngs=rngs)",
    "MLP": "Use Sequential(Linear(3, 8, rngs=rngs), relu, Linear(8, 1, rngs=rngs))",
    **dict.fromkeys(("MultiHeadDotProductAttention", "SelfAttention", "MultiheadAttention"), _ATTENTION),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D"), _CONV),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"), _TRANSPOSED),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "Use BatchNorm: channels come last"),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), "Use InstanceNorm: channels come last"),
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d"), f"Use max_pool{_POOL}"),
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AvgPool3d"), f"Use avg_pool{_POOL}"),
    "AdaptiveAvgPool2d": "For one value per channel, use x.mean((1, 2))",
    "Dropout2d": "Use Dropout(rate, broadcast_dims=(1, 2), rngs=rngs)",
    "Embedding": "Use Embed(num_embeddings, features, rngs=rngs)",
    "LSTM": "Use RNN(LSTMCell(in_features, hidden_features, rngs=rngs))",
    "GRU": "Use RNN(GRUCell(in_features, hidden_features, rngs=rngs))",
    "ReLU": "Use relu, a function",
    "GELU": "Use gelu, a function; gelu(x, approximate=False) is exact",
    "SiLU": "Use silu, a function",
    "Tanh": "Use tanh, a function",
    "Sigmoid": "Use sigmoid, a function",
    "Softmax": "Use softmax, a function",
    "LeakyReLU": "Use leaky_relu, a function",
    "Identity": "Use a function: lambda x: x",
    "Flatten": "Use x.reshape(len(x), -1)",
    "ModuleList": "Use List([…])",
    "ModuleDict": "Use Dict(name=…)",
    "Parameter": "Use Param(array)",
    "Buffer": _VARIABLE,
    "compact": "Create the layers in __init__, and call them in __call__",
    "CrossEntropyLoss": f"{_LOSS}optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()",
    "MSELoss": f"{_LOSS}optax.squared_error(predictions, targets).mean()",
    "BCEWithLogitsLoss": f"{_LOSS}optax.sigmoid_binary_cross_entropy(logits, labels).mean()",
}

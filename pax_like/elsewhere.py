"""Names of layers in other libraries, and what to write here: for the error about an unknown name."""

from __future__ import annotations

__all__ = ["INSTEAD"]

_CONV = "Use Conv(3, 8, (3, 3), key=key): the length of `kernel_size` is the number of spatial axes"
_ADOPTED = "Use a layer of linen_like: Layer(module, key, x), with an example of its input"

INSTEAD = {
    "Dense": "Use Linear(in_features, out_features, key=key)",
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "Conv1d", "Conv2d", "Conv3d"), _CONV),
    **dict.fromkeys(("BatchNorm1D", "BatchNorm2D", "BatchNorm1d", "BatchNorm2d"), "Use BatchNorm: channels come last"),
    **dict.fromkeys(("Embed", "GroupNorm", "GRUCell", "LSTMCell", "MultiHeadAttention", "ConvTranspose"), _ADOPTED),
    "Sequential": "Assign a list of modules to an attribute, and call them one after the other",
    "ModuleList": "Assign a list of modules to an attribute",
    "Parameter": "Use self.register_parameter(name, array)",
    "State": "Use self.register_state(name, array)",
}

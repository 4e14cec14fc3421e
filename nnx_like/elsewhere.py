"""Names of NNX and of other libraries, and what to write here: for errors about unknown names, and for the tables."""

from __future__ import annotations

from liftcore.elsewhere import KERAS, PYTORCH
from liftcore.lazy import without_links

__all__ = ["ELSEWHERE", "INSTEAD", "LEFT_OUT"]

_MODE = (
    "there is one mode: objects may be shared and may change, and calls are fast",
    "remove the call; single functions have the argument `graph=`",
)
_CONTEXT = (
    "internal to NNX: it keeps track of objects in JAX functions for which NNX has no transformation",
    "use the transformation of `nnx_like`; around plain JAX functions, call `split` outside and `merge` inside",
)
_TREES = "internal to NNX's transformations", "use `StateAxes`, `StateSharding` and `DiffState` as prefixes, or `split`"
_REFS = "another model of state, with JAX references in place of variables", "use a `Variable`"
_EAGER = (
    "a global option that places arrays on devices when a variable is created",
    "use `jit` with `out_shardings`, see [sharding](objects.md#sharding-large-models)",
)
_OWN_FILE = "internal to NNX"

ELSEWHERE: dict[str, str] = {
    "abstract_with_sharding": "`as_abstract`",
    "graphlib": "`nnx_like.graph`, which has `flatten` and `unflatten`; the functions themselves in `nnx_like`",
    "helpers": "`Dict`, `List`, `Sequential` and `TrainState` in `nnx_like`",
    "module": "`Module`, `capture`, `iter_modules`, `view`, `view_info` and `with_attributes` in `nnx_like`",
    "nn": "`nnx_like.layers`; each layer is also in `nnx_like`",
    "object": "`Object`, `Pytree` and the marks in `nnx_like`",
    "pytreelib": "`Pytree`, `data`, `static`, `dataclass` and others in `nnx_like`",
    "summary": "`tabulate` in `nnx_like`",
    "training": "`nnx_like.optimizer`, `nnx_like.metrics`; `EMA` and `TrainState` in `nnx_like`",
    "transforms": "each transformation in `nnx_like`",
    "visualization": "`display` in `nnx_like`",
    "wrappers": "`nnx_like.bridge`",
}
"""Names that are here in another place, or under another name."""

LEFT_OUT: dict[str, tuple[str, str]] = {
    "MergeContext": _CONTEXT,
    "NodeStates": _TREES,
    "SplitContext": _CONTEXT,
    "UpdateContext": _CONTEXT,
    "compat": ("the functions of NNX with its older mode as the default", "use the functions of `nnx_like`"),
    "current_update_context": _CONTEXT,
    "deprecations": (_OWN_FILE, "use `warnings.deprecated` or `typing_extensions.deprecated`"),
    "extract": _TREES,
    "from_tree": _TREES,
    "ids": (_OWN_FILE, "use `id`"),
    "merge_context": _CONTEXT,
    "prefix": _TREES,
    "proxy_caller": (_OWN_FILE, "use `call` and `TrainState.apply`"),
    "reprlib": (_OWN_FILE, "use `repr`, `display` and `tabulate`"),
    "set_graph_mode": _MODE,
    "set_graph_updates": _MODE,
    "split_context": _CONTEXT,
    "to_tree": _TREES,
    "tracers": (_OWN_FILE, "use `liftcore.trace_state`"),
    "transform_metadata": (
        "each transformation that adds an axis changes the metadata",
        "use the argument `transform_metadata` of `vmap`, `scan` and `pmap`",
    ),
    "update_context": _CONTEXT,
    "use_eager_sharding": _EAGER,
    "using_eager_sharding": _EAGER,
    "vars_as": _REFS,
    "with_vars": _REFS,
}
"""Names that are left out: the reason, and what to use instead."""

_ATTENTION = "Use MultiHeadAttention(num_heads, in_features, rngs=rngs)"
_CONV = (
    "Use Conv(3, 8, (3, 3), rngs=rngs): the length of `kernel_size` is the number of spatial axes; channels come last"
)
_TRANSPOSED = "Use ConvTranspose(3, 8, (3, 3), rngs=rngs): the length of `kernel_size` is the number of spatial axes"
_VARIABLE = "Subclass Variable, and assign Buffer(array) to an attribute: class Buffer(nnx.Variable): pass"

_FILES = ("summary", "training", "transforms")
"""Files that this package has too, with other names in them."""

INSTEAD = {
    **PYTORCH,
    **KERAS,
    **{name: without_links(f"It is here as {text}") for name, text in ELSEWHERE.items() if name not in _FILES},
    **{name: without_links(f"It is left out ({reason}): {instead}") for name, (reason, instead) in LEFT_OUT.items()},
    "Dense": "Use Linear(in_features, out_features, rngs=rngs)",
    "DenseGeneral": "Use LinearGeneral(in_features, out_features, rngs=rngs)",
    "LoRADense": "Use LoRALinear(in_features, out_features, lora_rank=8, rngs=rngs)",
    "MLP": "Use Sequential(Linear(3, 8, rngs=rngs), relu, Linear(8, 1, rngs=rngs))",
    **dict.fromkeys(("MultiHeadDotProductAttention", "SelfAttention", "MultiheadAttention"), _ATTENTION),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D"), _CONV),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv2DTranspose"), _TRANSPOSED),
    **dict.fromkeys(("Dropout2d", "SpatialDropout2D"), "Use Dropout(rate, broadcast_dims=(1, 2), rngs=rngs)"),
    "Embedding": "Use Embed(num_embeddings, features, rngs=rngs)",
    "LSTM": "Use RNN(LSTMCell(in_features, hidden_features, rngs=rngs))",
    "GRU": "Use RNN(GRUCell(in_features, hidden_features, rngs=rngs))",
    "ModuleList": "Use List([…])",
    "ModuleDict": "Use Dict(name=…)",
    "Parameter": "Use Param(array)",
    "Buffer": _VARIABLE,
    "compact": "Create the layers in __init__, and call them in __call__",
}

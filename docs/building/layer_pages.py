"""The reference of layers, group by group: a page for each group, with everything that its docstrings say.

A page has the modules of `linen_like`, the objects of `nnx_like`, and the functions of `liftcore.nn`. Where the
docstring of a layer ends its summary with "see `liftcore.nn.dense`", the layer computes that function, and its entry
repeats the formula, shapes, parameters and source of the function.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
from typing import Any, NamedTuple

import liftcore.nn
import linen_like.activation
import nnx_like

__all__ = ["GROUPS", "Group", "computes", "definition", "methods", "shown_in_full", "table"]

_SEE = re.compile(r"(?:^|[;.] )[Ss]ee `liftcore\.nn\.(\w+)`\.$")
_SECTION = re.compile(r"^(?:Args|Attributes|Example|Examples|Raises|Returns):$", re.MULTILINE)


class Group(NamedTuple):
    """Layers of one kind.

    Args:
        title: the heading of the page.
        modules: names in `linen_like`.
        objects: names in `nnx_like`.
        functions: names in `liftcore.nn`.
        lines: names in `linen_like` of functions that are explained elsewhere.
    """

    title: str
    modules: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def paths(self) -> dict[str, list[str]]:
        """The full names of its layers, by package."""
        names = {"linen_like": self.modules + self.lines, "nnx_like": self.objects, "liftcore.nn": self.functions}
        return {package: [f"{package}.{name}" for name in found] for package, found in names.items()}


_NORMS = ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm", "SpectralNorm", "WeightNorm")
_CELLS = ("RNN", "Bidirectional", "LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell", "RNNCellBase")
_POOLS = ("max_pool", "min_pool", "avg_pool", "pool")

GROUPS = {
    "dense": Group(
        "Dense layers",
        modules=("Dense", "DenseGeneral", "Einsum"),
        objects=("Linear", "LinearGeneral", "Einsum"),
        functions=("dense", "dense_general", "einsum"),
    ),
    "convolution": Group(
        "Convolutions",
        modules=("Conv", "ConvTranspose", "ConvLocal"),
        objects=("Conv", "ConvTranspose"),
        functions=("conv", "conv_transpose", "conv_local"),
    ),
    "embedding": Group(
        "Embeddings",
        modules=("Embed",),
        objects=("Embed", "RoPE"),
        functions=("embedding", "Embedding", "rotary_embedding"),
    ),
    "normalization": Group(
        "Normalization",
        modules=_NORMS,
        objects=_NORMS,
        functions=("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm"),
    ),
    "attention": Group(
        "Attention",
        modules=("MultiHeadDotProductAttention", "MultiHeadAttention", "SelfAttention"),
        objects=("MultiHeadAttention",),
        functions=(
            *("dot_product_attention", "dot_product_attention_weights", "decode_cache"),
            *("make_attention_mask", "make_causal_mask", "combine_masks"),
        ),
    ),
    "recurrent": Group("Recurrent layers", modules=(*_CELLS, "MGUCell", "ConvLSTMCell"), objects=_CELLS),
    "random": Group("Random layers", modules=("Dropout",), objects=("Dropout",), functions=("dropout",)),
    "pooling": Group("Pooling", functions=_POOLS, lines=_POOLS),
    "activation": Group(
        "Activation functions",
        modules=("PReLU",),
        objects=("PReLU",),
        functions=("prelu",),
        lines=tuple(name for name in linen_like.activation.__all__ if name != "PReLU"),
    ),
    "low rank": Group(
        "Low-rank updates",
        modules=("LoRA", "LoRADense"),
        objects=("LoRA", "LoRALinear"),
        functions=("lora", "lora_einsum", "lora_conv", "lora_embedding"),
    ),
    "low precision": Group(
        "Low precision",
        modules=("Fp8DirectDotGeneralOp", "Fp8DotGeneralOp", "NANOOFp8DotGeneralOp", "Fp8Einsum"),
        functions=("fp8_dot_general", "fp8_simulated_dot_general", "fp8_einsum"),
        lines=("Fp8DotGeneral",),
    ),
    "containers": Group(
        "Containers",
        modules=("Sequential", "BatchApply", "Stack"),
        objects=("Sequential", "Dict", "List"),
    ),
}
"""The layers by the kinds that `docs/layers.md` lists."""


def computes(layer: Any) -> str | None:
    """The name of the function in `liftcore.nn` that a layer computes, where its docstring says so."""
    for paragraph in inspect.cleandoc(layer.__doc__ or "").split("\n\n")[:2]:
        found = _SEE.search(" ".join(paragraph.split()))
        if found:
            return found[1]
    return None


def definition(layer: Any) -> str | None:
    """Formula, shapes, parameters and source of the function that a layer computes, less what the layer says itself."""
    name = computes(layer)
    if name is None:
        return None
    text = _SECTION.split(inspect.cleandoc(getattr(liftcore.nn, name).__doc__))[0].strip()
    summary, _, rest = text.partition("\n\n")
    said = " ".join(summary.split()).rstrip(".") in " ".join((layer.__doc__ or "").split())
    return rest if said else text


@functools.cache
def shown_in_full() -> frozenset[str]:
    """The paths that the pages of layers explain, such as `linen_like.Dense`; a layer speaks for its function."""
    groups = [group._replace(lines=()) for group in GROUPS.values()]
    found = {path for group in groups for paths in group.paths().values() for path in paths}
    packages = {"linen_like": linen_like, "nnx_like": nnx_like}
    layers = [path.split(".") for path in found if path.partition(".")[0] in packages]
    return frozenset(found - {f"liftcore.nn.{computes(getattr(packages[home], name))}" for home, name in layers})


def methods(path: str) -> list[str]:
    """What a page shows of a layer: the methods of its own and of its bases below `Module`; of a function, nothing."""
    home, _, name = path.rpartition(".")
    layer = getattr({"linen_like": linen_like, "nnx_like": nnx_like}.get(home, liftcore.nn), name)
    if not inspect.isclass(layer):
        return []
    known = (linen_like.Module, nnx_like.Module, collections.abc.MutableSequence, collections.abc.MutableMapping)
    bases = [base for base in layer.__mro__ if not any(issubclass(one, base) for one in known)]
    found = {name: one for base in reversed(bases) for name, one in vars(base).items() if inspect.isfunction(one)}
    fields = {name for base in bases for name in vars(base).get("__annotations__", {})} | {"setup"}
    shown = [name for name, one in found.items() if one.__doc__ and name not in fields]
    return [name for name in shown if name == "__call__" or not name.startswith("_")]


def table() -> str:
    """The table in `docs/layers.md`."""
    lines = ["| kind | `linen_like` | `nnx_like` | `liftcore.nn` |", "|---|---|---|---|"]
    for kind, group in GROUPS.items():
        cells = [", ".join(f"`{path.rpartition('.')[2]}`" for path in paths) for paths in group.paths().values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

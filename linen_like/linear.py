"""Linear layers and, as in Linen, convolutional layers and `Embed`, with the names that their signatures use."""

from __future__ import annotations

from jax.lax import PrecisionLike

from liftcore.typing import Array, Dtype

from .convolution import Conv, ConvLocal, ConvTranspose
from .dense import Dense, DenseGeneral, Einsum, default_kernel_init
from .dtypes import PromoteDtypeFn, promote_dtype
from .embedding import Embed, default_embed_init
from .initializers import Initializer

__all__ = [
    "Array",
    "Conv",
    "ConvLocal",
    "ConvTranspose",
    "Dense",
    "DenseGeneral",
    "Dtype",
    "Einsum",
    "Embed",
    "Initializer",
    "PrecisionLike",
    "PromoteDtypeFn",
    "default_embed_init",
    "default_kernel_init",
    "promote_dtype",
]

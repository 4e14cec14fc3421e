"""Low-rank adaptation: the product of two small matrices, added to the result of a layer.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs
from ..variablelib.kinds import LoRAParam
from ..variablelib.variable import Variable
from .initializers import he_uniform, zeros
from .linear import Linear
from .parameters import PromoteDtypeFn, new_param, promote_dtype, value_of

__all__ = ["LoRA", "LoRALinear"]

_HE_UNIFORM = he_uniform()


class LoRA(Module):
    """Computes `x @ lora_a @ lora_b`, and adds the result of a wrapped module if there is one.

    `lora_b` is initialized with zeros, so the update is zero at first. Filter by `LoRAParam` to train only the update.
    Source: Hu et al., https://arxiv.org/abs/2106.09685.

    Shapes: `(..., in_features)` to `(..., out_features)`.
    Variables: `LoRAParam` `lora_a`, `(in_features, lora_rank)`, and `lora_b`, `(lora_rank, out_features)`.

    Example:
        >>> import nnx_like as nnx
        >>> linear = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        >>> adapted = nnx.LoRA(3, 2, 4, base_module=linear, rngs=nnx.Rngs(1))
        >>> x = jnp.ones((16, 3))
        >>> bool((adapted(x) == linear(x)).all()), adapted.lora_a.shape, adapted.lora_b.shape
        (True, (3, 2), (2, 4))

    Args:
        in_features: the size of the last axis of the inputs.
        lora_rank: the rank of the update, at least 1.
        out_features: the size of the last axis of the result.
        base_module: the module, or any function, to whose result the update is added.
        dtype: the dtype of the computation, also for the inputs of `base_module`; by default what inputs and parameters
            promote to.
        param_dtype: the dtype of the parameters.
        a_initializer: makes `lora_a`.
        b_initializer: makes `lora_b`.
        lora_param_type: the type of both variables.
        promote_dtype: converts `(inputs, lora_a, lora_b)` to one dtype.
        rngs: each of the two draws a key from `params`.
        a_metadata: the metadata of `lora_a`.
        b_metadata: the metadata of `lora_b`.

    Raises:
        LiftArgumentError: if the rank is not positive, `base_module` cannot be called, or `rngs` has no streams.
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        a_initializer: Initializer = _HE_UNIFORM,
        b_initializer: Initializer = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = MappingProxyType({}),
        b_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if lora_rank < 1:
            what = Expected("1 or more", given=lora_rank)
            raise LiftArgumentError("LoRA", what, "Pass a small one, such as 8.", option="lora_rank")
        if base_module is not None and not callable(base_module):
            raise LiftArgumentError(
                "LoRA",
                Expected("a function", given=base_module),
                "Pass the module to whose result the update is added, or leave it out.",
                option="base_module",
            )
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.base_module = base_module
        self.promote_dtype = promote_dtype
        a, b = (in_features, lora_rank), (lora_rank, out_features)
        self.lora_a = new_param("LoRA", rngs, param_dtype, a_initializer, a, a_metadata, lora_param_type)
        self.lora_b = new_param("LoRA", rngs, param_dtype, b_initializer, b, b_metadata, lora_param_type)

    def __call__(self, x: ArrayLike, **kwargs: Any) -> Array:
        """Return the low-rank update, added to the result of `base_module` if there is one.

        Args:
            x: `(..., in_features)`.
            **kwargs: the keyword arguments of `base_module`.

        Raises:
            LiftArgumentError: if the inputs have another size.
        """
        arrays = (x, value_of(self.lora_a), value_of(self.lora_b))
        x, a, b = self.promote_dtype(arrays, dtype=self.dtype)
        if jnp.shape(x)[-1:] != (self.in_features,):
            what = f"the layer expects {self.in_features} features, given inputs of shape {jnp.shape(x)}."
            fix = f"Create it with that number of features, or pass inputs of shape (..., {self.in_features})."
            expected = f"{self.in_features} features"
            raise LiftArgumentError("LoRA", what, fix, expected=expected, given=jnp.shape(x))
        y = nn.affine(nn.affine(x, a), b)
        if self.base_module is None:
            return y
        base: Array = self.base_module(x, **kwargs)
        return nn.align(y, base) + base


class LoRALinear(Linear):
    """A `Linear` with a low-rank update added: `inputs @ kernel + bias + inputs @ lora_a @ lora_b`.

    The state of a `Linear` fits it. To adapt a trained one, write `nnx.update(adapted, nnx.state(linear))`.
    Source: Hu et al., https://arxiv.org/abs/2106.09685.

    Shapes: `(..., in_features)` to `(..., out_features)`.
    Variables: those of `Linear`, and those of `LoRA` below `lora`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer.lora.lora_a.shape, layer(jnp.ones((16, 3))).shape
        ((3, 4), (3, 2), (16, 4))

    Args:
        in_features: the size of the last axis of the inputs.
        out_features: the size of the last axis of the result.
        lora_rank: the rank of the update, at least 1.
        lora_dtype: the dtype in which the update is computed; by default what inputs and parameters promote to.
        lora_param_dtype: the dtype of the parameters of the update.
        a_initializer: makes `lora_a`.
        b_initializer: makes `lora_b`.
        lora_param_type: the type of the variables of the update.
        lora_promote_dtype: converts `(inputs, lora_a, lora_b)` to one dtype.
        rngs: each parameter draws a key from `params`; the parameters of `Linear` draw first.
        a_metadata: the metadata of `lora_a`.
        b_metadata: the metadata of `lora_b`.
        **kwargs: the keyword arguments of `Linear`.

    Raises:
        LiftArgumentError: if the rank is not positive, or `rngs` has no streams.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: Dtype | None = None,
        lora_param_dtype: Dtype = jnp.float32,
        a_initializer: Initializer = _HE_UNIFORM,
        b_initializer: Initializer = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = MappingProxyType({}),
        b_metadata: Mapping[str, Any] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            dtype=lora_dtype,
            param_dtype=lora_param_dtype,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            lora_param_type=lora_param_type,
            promote_dtype=lora_promote_dtype,
            rngs=rngs,
            a_metadata=a_metadata,
            b_metadata=b_metadata,
        )

    def __call__(self, inputs: ArrayLike, out_sharding: Any = None) -> Array:
        """Map the last axis.

        Args:
            inputs: `(..., in_features)`.
            out_sharding: the sharding of the result of `Linear`, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the inputs have another size.
        """
        y = super().__call__(inputs, out_sharding)
        return y + nn.align(self.lora(inputs), y)

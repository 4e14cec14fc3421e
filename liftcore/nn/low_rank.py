"""Low-rank updates of kernels: `a @ b` beside a kernel, made and applied without computing the changed kernel.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..errors import LiftArgumentError, shown
from ..scopes.scope import Scope
from ..typing import Array, ArrayLike, Dtype, Initializer, Key, Shape
from .axes import normalize_axes, to_tuple
from .dtypes import PromoteDtypeFn, promote_dtype
from .linear import affine
from .params import check_stored, param_for

__all__ = ["LORA", "Update", "factor_names", "lora", "lora_scale"]

LORA = "lora"
"""The default collection of the updates. The filter `"lora"` matches exactly these."""

_HE_UNIFORM = initializers.he_uniform()


def factor_names(collection: str) -> tuple[str, str]:
    """Return the names of the two factors of an update; among the parameters, their names say what they are.

    Example:
        >>> factor_names("lora"), factor_names("params")
        (('a', 'b'), ('lora_a', 'lora_b'))
    """
    return ("lora_a", "lora_b") if collection == "params" else ("a", "b")


def lora_scale(alpha: float | None, rank: int) -> float:
    """Return the factor of an update: `alpha / rank`, or 1 without an alpha."""
    return 1.0 if alpha is None else alpha / rank


class Update(NamedTuple):
    """The place of an update, and the initializers of its factors.

    Attributes:
        layer: the name of the function, for errors.
        scope: the scope of the update.
        rank: the rank of the update.
        collection: the collection of the factors.
        param_dtype: the dtype of the factors.
        a_init, b_init: make the factors.
    """

    layer: str
    scope: Scope
    rank: int
    collection: str
    param_dtype: Dtype
    a_init: Initializer
    b_init: Initializer

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"{self.layer} at {self.scope.path_text}"

    def check(self) -> None:
        """Check the rank, before anything is made."""
        if not isinstance(self.rank, Integral) or self.rank < 1:
            fix = "Pass a small one: `rank=8`."
            raise LiftArgumentError(self.where, f"expected a rank of 1 or more, given {shown(self.rank)}.", fix)

    def factors(
        self, inputs: ArrayLike | None, a_shape: tuple[int, ...], b_shape: tuple[int, ...], fan_in: int
    ) -> tuple[Array, Array]:
        """Make both factors; `a_init` gets the shape of a matrix with `fan_in` rows, by which it usually divides."""
        a_name, b_name = factor_names(self.collection)
        flat = (fan_in, math.prod(a_shape) // fan_in if fan_in else self.rank)

        def new_a(key: Key, shape: Shape, dtype: Dtype) -> Any:
            made = self.a_init(key, flat, dtype)
            # Inside the metadata: outside of it, the flat value would be sharded by the names of the folded axes.
            return jax.tree.map(lambda leaf: jnp.reshape(leaf, shape), made)

        return self._factor(inputs, a_name, new_a, a_shape), self._factor(inputs, b_name, self.b_init, b_shape)

    def _factor(self, inputs: ArrayLike | None, name: str, init_fn: Initializer, shape: tuple[int, ...]) -> Array:
        scope = self.scope
        if self.collection == "params":
            made: Array = param_for(inputs, self.layer, scope, name, init_fn, shape, self.param_dtype)
            return made

        def new() -> Any:  # with the key of a parameter in the same place: the collection changes no value
            return init_fn(scope.make_rng("params"), shape, self.param_dtype)

        value: Array = scope.variable(self.collection, name, new).value
        check_stored(inputs, self.layer, scope, f"{self.collection}/{name}", value, shape)
        return value


def lora(
    scope: Scope,
    inputs: ArrayLike,
    features: int | Iterable[int],
    rank: int,
    axis: int | Iterable[int] = -1,
    batch_dims: Iterable[int] = (),
    *,
    alpha: float | None = None,
    collection: str = LORA,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    a_init: Initializer = _HE_UNIFORM,
    b_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
) -> Array:
    """Compute `(alpha / rank) * inputs @ a @ b`: the contribution of an update `(alpha / rank) * a @ b` of a kernel.

    `b` starts with zeros, so the result is zero at first. The update has `rank * (in + features)` numbers instead of
    `in * features`. Source: Hu et al., https://arxiv.org/abs/2106.09685.

    Shapes: `(..., in)` to `(..., features)`; several axes, batch dimensions and features work as in `dense_general`.
    Collection `lora`: `a`, `(*batch, *in, rank)`; `b`, `(*batch, rank, *features)`. RNG streams: `params`, for `a`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(lora)(jax.random.key(0), jnp.ones((2, 3)), 4, rank=1)
        >>> bool((y == 0).all()), jax.tree.map(jnp.shape, variables)
        (True, {'lora': {'a': (3, 1), 'b': (1, 4)}})

    Args:
        scope: the scope of the update.
        inputs: the array.
        features: the sizes of the new axes, which come last.
        rank: the rank of the update, at least 1.
        axis: the axes to sum over.
        batch_dims: the leading axes with separate updates for each index.
        alpha: the update is multiplied by `alpha / rank`; by default by 1.
        collection: the collection of the update; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        dtype: the dtype of the computation; by default, what inputs and update promote to.
        param_dtype: the dtype of the update.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        a_init: makes `a`; gets the shape `(batch * in, rank)`.
        b_init: makes `b`; gets the shape of `b`.
        promote_dtype: called as `promote_dtype(inputs, a, b, dtype=dtype)`.

    Raises:
        LiftArgumentError: if the rank is not positive, or an axis does not exist.
        ScopeParamShapeError: if the stored update is for other sizes.
    """
    update = Update("lora", scope, rank, collection, param_dtype, a_init, b_init)
    update.check()
    where, shape, features = update.where, jnp.shape(inputs), to_tuple(features)
    axes = normalize_axes(where, "axis", axis, len(shape))
    batch = normalize_axes(where, "batch_dims", batch_dims, len(shape))
    lead, summed = tuple(shape[i] for i in batch), tuple(shape[i] for i in axes)
    a, b = update.factors(inputs, (*lead, *summed, rank), (*lead, rank, *features), math.prod(lead + summed))
    x, a, b = promote_dtype(inputs, a, b, dtype=dtype)
    x = affine(x, a, axis=axes, batch_dims=batch, precision=precision, where=where) * lora_scale(alpha, rank)
    return affine(x, b, batch_dims=range(len(batch)), precision=precision, where=where)

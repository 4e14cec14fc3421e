"""Low-rank updates of kernels: `a @ b` beside a kernel, made and applied without computing the changed kernel.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import math
import string
from collections.abc import Collection, Iterable
from numbers import Integral
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..errors import Expected, LiftArgumentError
from ..scopes.scope import Scope
from ..struct import dataclass, field
from ..typing import Array, ArrayLike, Dtype, Initializer
from .equation import to_equation
from .kernels import check_groups, check_kernel_mask, convolve
from .layer import PromoteDtypeFn, check_stored, folded, normalize_axes, of_nothing, param_for, promote_dtype, to_tuple
from .linear import affine, affine_einsum
from .lookup import Embedding
from .sharding import gather, reshape
from .windows import PaddingLike, to_window

__all__ = [
    "LORA",
    "LowRankEmbedding",
    "LowRankUpdate",
    "factor_names",
    "lora",
    "lora_conv",
    "lora_einsum",
    "lora_embedding",
    "lora_scale",
]

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


class LowRankUpdate(NamedTuple):
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

    def factors(
        self, inputs: ArrayLike | None, a_shape: tuple[int, ...], b_shape: tuple[int, ...], fan_in: int
    ) -> tuple[Array, Array]:
        """Make both factors; `a_init` gets the shape of a matrix with `fan_in` rows, by which it usually divides."""
        if not isinstance(self.rank, Integral) or self.rank < 1:
            fix = "Pass a small one: `rank=8`."
            raise LiftArgumentError(self.where, Expected("a rank of 1 or more", given=self.rank), fix, option="rank")
        a_name, b_name = factor_names(self.collection)
        flat = (fan_in, math.prod(a_shape) // fan_in if fan_in else self.rank)
        a_init = folded(self.a_init, flat)
        return self._factor(inputs, a_name, a_init, a_shape), self._factor(inputs, b_name, self.b_init, b_shape)

    def _factor(self, inputs: ArrayLike | None, name: str, init_fn: Initializer, shape: tuple[int, ...]) -> Array:
        scope = self.scope
        if self.collection == "params":
            made: Array = param_for(inputs, self.where, scope, name, init_fn, shape, self.param_dtype)
            return made

        def new() -> Any:  # with the key of a parameter in the same place: the collection changes no value
            make = of_nothing(init_fn) if 0 in shape else init_fn
            return make(scope.make_rng("params"), shape, self.param_dtype)

        value: Array = scope.variable(self.collection, name, new).value
        check_stored(inputs, self.where, scope, f"{self.collection}/{name}", value, shape)
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
    update = LowRankUpdate("lora", scope, rank, collection, param_dtype, a_init, b_init)
    where, shape, features = update.where, jnp.shape(inputs), to_tuple(features)
    axes = normalize_axes(where, "axis", axis, len(shape))
    batch = normalize_axes(where, "batch_dims", batch_dims, len(shape))
    lead, summed = tuple(shape[i] for i in batch), tuple(shape[i] for i in axes)
    a, b = update.factors(inputs, (*lead, *summed, rank), (*lead, rank, *features), math.prod(lead + summed))
    x, a, b = promote_dtype(inputs, a, b, dtype=dtype)
    x = affine(x, a, axis=axes, batch_dims=batch, precision=precision, where=where) * lora_scale(alpha, rank)
    return affine(x, b, batch_dims=range(len(batch)), precision=precision, where=where)


def lora_einsum(
    scope: Scope,
    inputs: ArrayLike,
    shape: Iterable[int],
    einsum_str: str,
    rank: int,
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
    """Compute the contribution of a low-rank update of the kernel to the product of `einsum`; see `lora`.

    Both factors have one dimension for each dimension of the kernel, in its order, and the rank last. Dimensions that
    the inputs lack have size 1 in `a`; those that the result lacks have size 1 in `b`. The update is the sum of `a * b`
    over the rank.

    Example:
        >>> import jax, liftcore
        >>> heads = (4, 3, 2)  # heads, in, features
        >>> x = jnp.ones((5, 3))
        >>> y, variables = liftcore.init(lora_einsum)(jax.random.key(0), x, heads, "td,ndh->tnh", rank=1)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((5, 4, 2), {'lora': {'a': (1, 3, 1, 1), 'b': (4, 1, 2, 1)}})

    Args:
        scope: the scope of the update.
        inputs: the first operand.
        shape: the shape of the kernel, the second operand.
        einsum_str: an explicit equation with two operands, such as `"...a,ab->...b"`.
        rank: the rank of the update, at least 1.
        alpha: the update is multiplied by `alpha / rank`; by default by 1.
        collection: the collection of the update; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        dtype: the dtype of the computation; by default, what inputs and update promote to.
        param_dtype: the dtype of the update.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        a_init: makes `a`; gets the shape of a matrix with `rank` columns.
        b_init: makes `b`; gets the shape of `b`.
        promote_dtype: called as `promote_dtype(inputs, a, b, dtype=dtype)`.

    Raises:
        LiftArgumentError: if the rank is not positive, or the equation does not have this form.
        ScopeParamShapeError: if the stored update is for other sizes.
    """
    update = LowRankUpdate("lora_einsum", scope, rank, collection, param_dtype, a_init, b_init)
    shape = tuple(shape)
    labels = to_equation(update.where, einsum_str, jnp.shape(inputs), shape).right
    operands, result = einsum_str.replace(" ", "").split("->")
    left, right = operands.split(",")
    new, summed = {*result} & {*right} - {*left, "."}, {*right} - {*result, "."}
    a_shape = (*(1 if label in new else size for label, size in zip(labels, shape, strict=True)), rank)
    b_shape = (*(1 if label in summed else size for label, size in zip(labels, shape, strict=True)), rank)
    a, b = update.factors(inputs, a_shape, b_shape, math.prod(a_shape[:-1]))
    x, a, b = promote_dtype(inputs, a, b, dtype=dtype)
    a = jnp.squeeze(a, [i for i, label in enumerate(labels) if label in new])
    b = jnp.squeeze(b, [i for i, label in enumerate(labels) if label in summed])
    r = next(letter for letter in string.ascii_letters if letter not in einsum_str)
    between = _without(result, new) + r
    into, out = f"{left},{_without(right, new)}{r}->{between}", f"{between},{_without(right, summed)}{r}->{result}"
    x = affine_einsum(into, x, a, precision=precision, where=update.where) * lora_scale(alpha, rank)
    return affine_einsum(out, x, b, precision=precision, where=update.where)


def _without(term: str, letters: Collection[str]) -> str:
    return "".join(letter for letter in term if letter not in letters)


def lora_conv(
    scope: Scope,
    inputs: Array,
    features: int,
    kernel_size: int | Iterable[int],
    rank: int,
    strides: int | Iterable[int] | None = 1,
    padding: PaddingLike = "SAME",
    *,
    input_dilation: int | Iterable[int] | None = 1,
    kernel_dilation: int | Iterable[int] | None = 1,
    feature_group_count: int = 1,
    mask: Array | None = None,
    alpha: float | None = None,
    collection: str = LORA,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    a_init: Initializer = _HE_UNIFORM,
    b_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
) -> Array:
    """Compute the contribution of a low-rank update to `conv`: a convolution to `rank` channels, and a map of these.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Collection `lora`: `a`, `(*kernel_size, in / feature_group_count, rank)`; `b`, `(rank, features)`. See `lora`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(lora_conv)(jax.random.key(0), jnp.ones((1, 8, 8, 3)), 4, (3, 3), rank=2)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 8, 8, 4), {'lora': {'a': (3, 3, 3, 2), 'b': (2, 4)}})

    Args:
        scope: the scope of the update.
        inputs: an array, channels last.
        features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        rank: the rank of the update, at least 1.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: the padding, as in `conv`.
        input_dilation: the spacing of the inputs, with zeros between them.
        kernel_dilation: the spacing of the kernel's elements.
        feature_group_count: the number of groups; all have the same `a`.
        mask: multiplied with the update as well, which must then be computed.
        alpha: the update is multiplied by `alpha / rank`; by default by 1.
        collection: the collection of the update; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        dtype: the dtype of the computation; by default, what inputs and update promote to.
        param_dtype: the dtype of the update.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        a_init: makes `a`; gets the shape `(prod(kernel_size) * in / feature_group_count, rank)`.
        b_init: makes `b`; gets the shape of `b`.
        promote_dtype: called as `promote_dtype(inputs, a, b, dtype=dtype)`.

    Raises:
        LiftArgumentError: if the rank is not positive, or inputs, window, groups and mask do not match.
        ScopeParamShapeError: if the stored update is for other sizes.
    """
    update = LowRankUpdate("lora_conv", scope, rank, collection, param_dtype, a_init, b_init)
    groups, window = feature_group_count, to_window(update.where, kernel_size, strides, padding, 1, 1)
    check_groups(update.where, inputs.shape[-1], features, groups)
    lead = (*window.size, inputs.shape[-1] // groups)
    check_kernel_mask(update.where, mask, (*lead, features))
    a, b = update.factors(inputs, (*lead, rank), (rank, features), math.prod(lead))
    x, a, b = promote_dtype(inputs, a, b, dtype=dtype)
    # A masked update does not have low rank: its kernel is needed. Otherwise each group gets its own `rank` channels.
    if mask is None:
        kernel = a if groups == 1 else jnp.tile(gather(a, range(a.ndim)), groups)
    else:
        kernel = affine(a, b, precision=precision, where=update.where) * mask
    y = convolve(
        x,
        kernel,
        None,
        strides,
        padding,
        input_dilation=input_dilation,
        kernel_dilation=kernel_dilation,
        feature_group_count=groups,
        precision=precision,
        where=update.where,
    )
    y = y * lora_scale(alpha, rank)
    if mask is not None:
        return y
    if groups == 1:
        return affine(y, b, precision=precision, where=update.where)
    y, b = reshape(y, (*y.shape[:-1], groups, rank)), reshape(b, (rank, groups, features // groups))
    y = affine_einsum("...gr,rgf->...gf", y, b, precision=precision, where=update.where)
    return reshape(y, (*y.shape[:-2], features))


@dataclass
class LowRankEmbedding:
    """The contribution of a low-rank update of a table to the results of an `Embedding`.

    Example:
        >>> update = LowRankEmbedding(jnp.array([[1.0], [2.0]]), jnp.array([[0.0, 3.0]]))
        >>> update.lookup(jnp.array([1])), update.attend(jnp.array([5.0, 1.0]))
        (Array([[0., 6.]], dtype=float32), Array([3., 6.], dtype=float32))

    Attributes:
        a: `(num_embeddings, rank)`.
        b: `(rank, features)`.
        scale: the factor of `a @ b`.
        dtype: the dtype of the computation; by default what the arrays promote to.
        promote_dtype: converts arrays to one dtype.
    """

    a: Array
    b: Array
    scale: float = field(pytree_node=False, default=1.0)
    dtype: Dtype | None = field(pytree_node=False, default=None)
    promote_dtype: PromoteDtypeFn = field(pytree_node=False, default=promote_dtype)

    def lookup(self, indices: ArrayLike) -> Array:
        """Return the contribution to the vectors at integers: `(...)` to `(..., features)`.

        Args:
            indices: integers, `(...)`.
        """
        found, b = self.promote_dtype(Embedding(self.a).lookup(indices), self.b, dtype=self.dtype)
        return affine(found * self.scale, b)

    def attend(self, query: ArrayLike) -> Array:
        """Return the contribution to the products with all vectors: `(..., features)` to `(..., num_embeddings)`.

        Args:
            query: `(..., features)`.
        """
        x, a, b = self.promote_dtype(query, self.a, self.b, dtype=self.dtype)
        return affine(affine(x, b.T) * self.scale, a.T)


def lora_embedding(
    scope: Scope,
    num_embeddings: int,
    features: int,
    rank: int,
    *,
    alpha: float | None = None,
    collection: str = LORA,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    a_init: Initializer = _HE_UNIFORM,
    b_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
) -> LowRankEmbedding:
    """A low-rank update of the table of `embedding`; see `lora`.

    Collection `lora`: `a`, `(num_embeddings, rank)`; `b`, `(rank, features)`. RNG streams: `params`, for `a`.

    Example:
        >>> import jax, liftcore
        >>> def added(scope, tokens):
        ...     return lora_embedding(scope, 5, 3, rank=1).lookup(tokens)
        >>> y, variables = liftcore.init(added)(jax.random.key(0), jnp.array([[0, 4]]))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 2, 3), {'lora': {'a': (5, 1), 'b': (1, 3)}})

    Args:
        scope: the scope of the update.
        num_embeddings: the number of vectors.
        features: the size of each vector.
        rank: the rank of the update, at least 1.
        alpha: the update is multiplied by `alpha / rank`; by default by 1.
        collection: the collection of the update; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        dtype: the dtype of the computation; by default, what inputs and update promote to.
        param_dtype: the dtype of the update.
        a_init: makes `a`; gets the shape `(1, num_embeddings * rank)`, since each index uses one row.
        b_init: makes `b`; gets the shape of `b`.
        promote_dtype: called with the inputs, or the rows that were looked up, and the factors.

    Returns:
        The update, with `lookup` for indices and `attend` for vectors.

    Raises:
        LiftArgumentError: if the rank is not positive.
        ScopeParamShapeError: if the stored update has other sizes.
    """
    update = LowRankUpdate("lora_embedding", scope, rank, collection, param_dtype, a_init, b_init)
    a, b = update.factors(None, (num_embeddings, rank), (rank, features), 1)
    return LowRankEmbedding(a, b, lora_scale(alpha, rank), dtype, promote_dtype)

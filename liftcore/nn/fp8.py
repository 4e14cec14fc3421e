"""Products of numbers in 8 bits, with scales that follow from earlier steps: delayed scaling.

A number is stored as `x / scale`, rounded to one of the two formats of Micikevicius et al., "FP8 Formats for Deep
Learning", https://arxiv.org/abs/2209.05433: `e4m3` forward, and `e5m2`, with a wider range, for gradients. The scale is
chosen so that the largest number of the last steps fits. A step returns the new scale as the *gradient* of the old one:
a training loop overwrites the scale with its gradient.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike, Dtype
from .equation import Label, to_equation
from .sharding import on_auto_axes, sharding_entries, to_spec

__all__ = ["Fp8Meta", "fp8_dot_general", "fp8_einsum", "fp8_simulated_dot_general"]

DimensionNumbers = tuple[tuple[Any, Any], tuple[Any, Any]]


class Fp8Meta(NamedTuple):
    """The scale and the history of an operand, or of a gradient.

    Attributes:
        scale: the number that it is divided by, `(1,)`.
        amax_history: its largest absolute values in earlier steps, the last one first, `(length,)`.
    """

    scale: Array
    amax_history: Array


class _Product(NamedTuple):
    """The options of a product of two arrays in 8 bits.

    Attributes:
        contract, batch: axes of both operands, as in `jax.lax.dot_general`.
        operands, dtype: the dtype of both operands, and the dtype of the result.
        forward, backward: the formats.
        simulated: whether numbers are only rounded to 8 bits, and multiplied in their own dtype.
    """

    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    operands: Dtype
    dtype: Dtype
    forward: Dtype
    backward: Dtype
    simulated: bool


def fp8_dot_general(
    lhs: ArrayLike,
    rhs: Array,
    dimension_numbers: DimensionNumbers,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    *,
    lhs_meta: Fp8Meta,
    rhs_meta: Fp8Meta,
    grad_meta: Fp8Meta,
    e4m3_dtype: Dtype = jnp.float8_e4m3fn,
    e5m2_dtype: Dtype = jnp.float8_e5m2,
    out_sharding: Any = None,
) -> Array:
    """Compute `jax.lax.dot_general` with 8-bit numbers, forward and backward, directly on hardware that supports it.

    Example:
        >>> meta = Fp8Meta(jnp.ones(1), jnp.zeros(4))
        >>> def product(x, k, *metas):
        ...     names = dict(zip(("lhs_meta", "rhs_meta", "grad_meta"), metas))
        ...     return fp8_dot_general(x, k, (((0,), (0,)), ((), ())), **names)
        >>> x, k = jnp.array([1.0, 3.3]), jnp.array([2.0, 1.0])
        >>> product(x, k, meta, meta, meta)  # 3.3 has no place in 8 bits
        Array(5.25, dtype=float32)
        >>> jax.grad(product, argnums=2)(x, k, meta, meta, meta).amax_history  # the next one
        Array([3.3, 0. , 0. , 0. ], dtype=float32)

    Args:
        lhs: an array, converted to the dtype of `rhs`.
        rhs: an array of a floating dtype.
        dimension_numbers: the dimensions to sum over, and those of batches, as in `jax.lax.dot_general`:
            `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`.
        precision: must be None; the numbers have the precision of their format.
        preferred_element_type: the dtype of the result; by default that of `rhs`.
        lhs_meta: the scale and history of `lhs`.
        rhs_meta: the scale and history of `rhs`.
        grad_meta: the scale and history of the gradient of the result.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
        out_sharding: the sharding of the result, on a mesh of Explicit axes; by default it follows from the operands.

    Raises:
        LiftArgumentError: if `rhs` is not floating, or a precision is given.
    """
    where, metas = "fp8_dot_general", (lhs_meta, rhs_meta, grad_meta)
    if precision is not None:
        what = f"8-bit numbers have only one precision, given {precision!r}."
        raise LiftArgumentError(where, what, "Pass `precision=None`.", option="precision", given=precision)
    how = preferred_element_type, e4m3_dtype, e5m2_dtype, False
    return _product(where, lhs, rhs, dimension_numbers, how, metas, out_sharding)


def fp8_simulated_dot_general(
    lhs: ArrayLike,
    rhs: Array,
    dimension_numbers: DimensionNumbers,
    *,
    lhs_meta: Fp8Meta,
    rhs_meta: Fp8Meta,
    grad_meta: Fp8Meta,
    e4m3_dtype: Dtype = jnp.float8_e4m3fn,
    e5m2_dtype: Dtype = jnp.float8_e5m2,
    out_sharding: Any = None,
) -> Array:
    """Compute `jax.lax.dot_general` with numbers rounded to 8 bits and back; XLA may fuse this into an 8-bit product.

    Args:
        lhs: an array of a floating dtype.
        rhs: an array of a floating dtype.
        dimension_numbers: the dimensions to sum over, and those of batches, as in `jax.lax.dot_general`:
            `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`.
        lhs_meta: the scale and history of `lhs`.
        rhs_meta: the scale and history of `rhs`.
        grad_meta: the scale and history of the gradient of the result.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
        out_sharding: the sharding of the result, on a mesh of Explicit axes; by default it follows from the operands.

    Raises:
        LiftArgumentError: if `rhs` is not floating.
    """
    where, metas, how = (
        "fp8_simulated_dot_general",
        (lhs_meta, rhs_meta, grad_meta),
        (None, e4m3_dtype, e5m2_dtype, True),
    )
    return _product(where, lhs, rhs, dimension_numbers, how, metas, out_sharding)


def fp8_einsum(
    equation: str,
    lhs: ArrayLike,
    rhs: Array,
    preferred_element_type: Dtype | None = None,
    *,
    lhs_meta: Fp8Meta,
    rhs_meta: Fp8Meta,
    grad_meta: Fp8Meta,
    e4m3_dtype: Dtype = jnp.float8_e4m3fn,
    e5m2_dtype: Dtype = jnp.float8_e5m2,
) -> Array:
    """Compute `jax.numpy.einsum` of two operands in 8 bits, forward and backward.

    Args:
        equation: an explicit equation, such as `"...a,ab->...b"`, in which no operand has a letter twice.
        lhs: an array of a floating dtype.
        rhs: an array of a floating dtype.
        preferred_element_type: the dtype of the result.
        lhs_meta: the scale and history of `lhs`, summed over the dimensions that only it has.
        rhs_meta: the scale and history of `rhs`.
        grad_meta: the scale and history of the gradient of the result.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.

    Raises:
        LiftArgumentError: if the equation does not have this form or does not match the shapes, or `rhs` is not
            floating.
    """
    x = jnp.asarray(lhs, rhs.dtype)
    left, right, result = to_equation("fp8_einsum", equation, x.shape, rhs.shape)
    for labels in (left, right):
        if len({*labels}) < len(labels):
            raise LiftArgumentError(
                "fp8_einsum",
                f'"{equation}" has a letter twice in one operand.',
                "Take its diagonal first.",
                given=equation,
            )
    sizes = dict(zip(left, x.shape, strict=True)), dict(zip(right, rhs.shape, strict=True))
    x, left = _summed(x, sizes[0], sizes[1], result)
    rhs, right = _summed(rhs, sizes[1], sizes[0], result)
    batch = [label for label in left if label in right and label in result]
    contract = [label for label in left if label in right and label not in result]
    found = [*batch, *(label for label in (*left, *right) if (label in left) is not (label in right))]
    dimensions = _places(contract, left, right), _places(batch, left, right)
    how = preferred_element_type, e4m3_dtype, e5m2_dtype, False
    y = _product("fp8_einsum", x, rhs, dimensions, how, (lhs_meta, rhs_meta, grad_meta))
    return lax.transpose(y, [found.index(label) for label in result])


def _summed(
    x: Array, sizes: dict[Label, int], others: dict[Label, int], result: tuple[Label, ...]
) -> tuple[Array, tuple[Label, ...]]:
    """Sum an operand over dimensions that only it has, or that have size 1 and broadcast to the other operand."""
    alone = {label for label in sizes if label not in others and label not in result}
    gone = alone | {label for label, size in sizes.items() if size == 1 and others.get(label, 1) != 1}
    kept = tuple(label for label in sizes if label not in gone)
    return jnp.sum(x, [axis for axis, label in enumerate(sizes) if label in gone]) if gone else x, kept


def _places(labels: list[Label], *operands: tuple[Label, ...]) -> tuple[Any, Any]:
    left, right = ([operand.index(label) for label in labels] for operand in operands)
    return left, right


def _product(
    where: str,
    lhs: ArrayLike,
    rhs: Array,
    dimension_numbers: DimensionNumbers,
    how: tuple[Dtype | None, Dtype, Dtype, bool],
    metas: tuple[Fp8Meta, ...],
    out_sharding: Any = None,
) -> Array:
    """Compute a product; if an operand is sharded by its type, the compiler shards the values inside."""
    if not jnp.issubdtype(rhs.dtype, jnp.floating):
        what = Expected("a kernel of a floating dtype", given=rhs.dtype)
        raise LiftArgumentError(where, what, "Convert it: `kernel.astype(…)`.")
    x, (dtype, forward, backward, simulated) = jnp.asarray(lhs, rhs.dtype), how
    contract, batch = (tuple(tuple(map(int, axes)) for axes in pair) for pair in dimension_numbers)
    product = _Product(contract, batch, rhs.dtype, dtype or rhs.dtype, forward, backward, simulated)  # type: ignore[arg-type]
    left, right = sharding_entries(x), sharding_entries(rhs)
    both = [left[i] or right[j] for i, j in zip(*batch, strict=True)]
    rest = [left[i] for i in range(x.ndim) if i not in (*contract[0], *batch[0])]
    new = [right[j] for j in range(rhs.ndim) if j not in (*contract[1], *batch[1])]
    multiply, spec = functools.partial(_multiply, product), to_spec(*both, *rest, *new)
    return on_auto_axes(multiply, spec, x, rhs, *metas, out_sharding=out_sharding)


# -- one product and its derivative ------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(how: _Product, lhs: Array, rhs: Array, lhs_meta: Fp8Meta, rhs_meta: Fp8Meta, grad_meta: Fp8Meta) -> Array:
    return _forward(how, lhs, rhs, lhs_meta, rhs_meta, grad_meta)[0]


def _forward(
    how: _Product, lhs: Array, rhs: Array, lhs_meta: Fp8Meta, rhs_meta: Fp8Meta, grad_meta: Fp8Meta
) -> tuple[Array, Any]:
    lhs_meta, rhs_meta = _updated(lhs, how.forward, lhs_meta), _updated(rhs, how.forward, rhs_meta)
    q_lhs, q_rhs = (_round(how, x, how.forward, meta.scale, x.dtype) for x, meta in ((lhs, lhs_meta), (rhs, rhs_meta)))
    dimensions, dtype = (how.contract, how.batch), None if how.simulated else how.dtype
    y = lax.dot_general(q_lhs, q_rhs, dimensions, precision=lax.Precision.DEFAULT, preferred_element_type=dtype)
    return _unscaled(how, y, lhs_meta.scale, rhs_meta.scale), (q_lhs, q_rhs, lhs_meta, rhs_meta, grad_meta)


def _backward(how: _Product, kept: Any, grad: Array) -> tuple[Array, Array, Fp8Meta, Fp8Meta, Fp8Meta]:
    lhs, rhs, lhs_meta, rhs_meta, grad_meta = kept
    grad_meta = _updated(grad, how.backward, grad_meta)
    g = _round(how, grad, how.backward, grad_meta.scale, how.dtype)
    by_lhs = _unscaled(how, _cotangent(how, g, lhs.ndim, rhs, 0), rhs_meta.scale, grad_meta.scale)
    by_rhs = _unscaled(how, _cotangent(how, g, rhs.ndim, lhs, 1), lhs_meta.scale, grad_meta.scale)
    return by_lhs.astype(how.operands), by_rhs.astype(how.operands), lhs_meta, rhs_meta, grad_meta


_multiply.defvjp(_forward, _backward)


def _cotangent(how: _Product, grad: Array, ndim: int, other: Array, side: int) -> Array:
    """Return the gradient with respect to one operand: the gradient of the result times the other operand."""
    contract, batch = how.contract[side], how.batch[side]
    other_contract, other_batch = how.contract[1 - side], how.batch[1 - side]
    rest = [i for i in range(ndim) if i not in (*contract, *batch)]
    other_rest = [i for i in range(other.ndim) if i not in (*other_contract, *other_batch)]
    start = len(batch) + (len(rest) if side == 0 else 0)  # the result has batch, then the rest of lhs, then of rhs
    dimensions = (range(start, start + len(other_rest)), other_rest), (range(len(batch)), other_batch)
    y = lax.dot_general(
        grad,
        other,
        dimensions,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=None if how.simulated else how.dtype,
    )
    found = [*batch, *rest, *(axis for _, axis in sorted(zip(other_contract, contract, strict=True)))]
    return lax.transpose(y, sorted(range(ndim), key=found.__getitem__))


# -- numbers in 8 bits -------------------------------------------------------------------------------------------------


def _round(how: _Product, x: Array, q_dtype: Dtype, scale: Array, dtype: Dtype) -> Array:
    """Round numbers to 8 bits; in a simulation, convert them back."""
    largest = _largest(q_dtype).astype(dtype)
    q = jnp.clip(x / scale.astype(dtype).reshape(()), -largest, largest).astype(q_dtype)
    return _scaled(q, x.dtype, scale) if how.simulated else q


def _unscaled(how: _Product, y: Array, left: Array, right: Array) -> Array:
    """Multiply a product of two scaled operands by their scales."""
    return y if how.simulated else _scaled(y, how.dtype, left * right)


def _largest(q_dtype: Dtype) -> Any:
    return jnp.finfo(q_dtype).max  # type: ignore[no-untyped-call]


def _scaled(x: Array, dtype: Dtype, scale: Array) -> Array:
    return x.astype(dtype) * scale.astype(dtype).reshape(())


def _updated(x: Array, q_dtype: Dtype, meta: Fp8Meta) -> Fp8Meta:
    """Return the scale for this step, from earlier steps, and the history with this step."""
    amax = jnp.max(meta.amax_history, axis=0)
    inverse = 1.0 / meta.scale
    wanted = _largest(q_dtype).astype(jnp.float32) / amax
    inverse = jnp.where(jnp.isfinite(amax), jnp.where(amax > 0.0, wanted, inverse), inverse)
    now = jnp.max(jnp.abs(x), initial=0).astype(meta.amax_history.dtype)
    return Fp8Meta(1.0 / inverse, jnp.roll(meta.amax_history, shift=-1, axis=0).at[0].set(now))

"""Linear layers: products of inputs and parameters, summed over some axes; in a scope, or with given parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..errors import Expected, LiftArgumentError
from ..scopes.scope import Scope
from ..typing import Array, ArrayLike, Dtype, Initializer
from .equation import to_equation
from .layer import PromoteDtypeFn, checks_options, folded, normalize_axes, param_for, promote_dtype, to_tuple
from .sharding import (
    Labels,
    agree,
    align,
    check_out_sharding,
    is_sharded,
    is_sharding_error,
    product_sharding,
    sharding_entries,
)

__all__ = ["affine", "affine_einsum", "dense", "dense_general", "einsum"]

_LECUN_NORMAL = initializers.lecun_normal()


@checks_options
def dense(
    scope: Scope,
    inputs: ArrayLike,
    features: int,
    use_bias: bool = True,
    *,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    dot_general: Callable[..., Array] | None = None,
    out_sharding: Any = None,
) -> Array:
    """An affine map of the last axis: `inputs @ kernel + bias`.

    Shapes: `(..., in)` to `(..., features)`.
    Parameters: `kernel`, `(in, features)`; `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(dense)(jax.random.key(0), jnp.ones((2, 3)), 4)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 4), {'params': {'bias': (4,), 'kernel': (3, 4)}})

    Args:
        scope: the scope of the parameters.
        inputs: an array of one or more dimensions.
        features: the size of the last axis of the result.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.

    Raises:
        LiftArgumentError: if the inputs are a scalar.
        ScopeParamShapeError: if the stored parameters are for other sizes.
    """
    where = f"dense at {scope.path_text}"
    if jnp.ndim(inputs) == 0:
        what = Expected("inputs of shape (..., in)", given=inputs)
        raise LiftArgumentError(where, what, "Add a dimension: `inputs[None]`.")
    shape = (jnp.shape(inputs)[-1], features)
    kernel = param_for(inputs, where, scope, "kernel", kernel_init, shape, param_dtype)
    bias = scope.param("bias", bias_init, (features,), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
    options: Any = {"precision": precision, "dot_general": dot_general, "out_sharding": out_sharding}
    return affine(x, kernel, bias, **options, where=where)


@checks_options
def dense_general(
    scope: Scope,
    inputs: ArrayLike,
    features: int | Iterable[int],
    axis: int | Iterable[int] = -1,
    batch_dims: Iterable[int] = (),
    use_bias: bool = True,
    *,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    precision: lax.PrecisionLike = None,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    dot_general: Callable[..., Array] | None = None,
    out_sharding: Any = None,
) -> Array:
    """An affine map of any axes to any number of new ones, which come last. Batch axes can have separate maps.

    `y[b, r, f] = Σ_a inputs[b, r, a] * kernel[b, a, f] + bias[b, f]`, where each letter stands for any number of axes:
    `b` for `batch_dims`, `a` for `axis`, anywhere in the inputs, `r` for the rest, and `f` for `features`.

    Shapes: `(*batch, *rest and axis, in any order)` to `(*batch, *rest, *features)`.
    Parameters: `kernel`, `(*batch, *axis, *features)`; `bias`, `(*batch, *features)`. Their initializers get the shapes
    of a matrix and a vector, `(batch * axis, features)` and `(batch * features,)`, so that they see fan-in and fan-out.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.ones((2, 3, 6, 7))
        >>> y, variables = liftcore.init(dense_general)(jax.random.key(0), x, (4, 5), axis=(1, -1))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 6, 4, 5), {'params': {'bias': (4, 5), 'kernel': (3, 7, 4, 5)}})

    Args:
        scope: the scope of the parameters.
        inputs: the array.
        features: the sizes of the new axes, which come last.
        axis: the axes to sum over.
        batch_dims: the leading axes with separate parameters for each index: `()`, `(0,)`, `(0, 1)` and so on.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.

    Raises:
        LiftArgumentError: if an axis does not exist or is a batch dimension as well, or batch dimensions are not the
            leading ones.
        ScopeParamShapeError: if the stored parameters are for other sizes.
    """
    where, shape = f"dense_general at {scope.path_text}", jnp.shape(inputs)
    features = to_tuple(features)
    axes = normalize_axes(where, "axis", axis, len(shape))
    batch = normalize_axes(where, "batch_dims", batch_dims, len(shape))
    _check_axes(where, to_tuple(axis), axes, to_tuple(batch_dims), batch)
    batch_shape = tuple(shape[i] for i in batch)
    summed_shape = tuple(shape[i] for i in axes)
    n, rows, columns = math.prod(batch_shape), math.prod(summed_shape), math.prod(features)
    param = functools.partial(param_for, inputs, where, scope)
    shapes = (*batch_shape, *summed_shape, *features), (*batch_shape, *features)
    kernel = param("kernel", folded(kernel_init, (n * rows, columns)), shapes[0], param_dtype)
    bias = param("bias", folded(bias_init, (n * columns,)), shapes[1], param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
    options: Any = {"precision": precision, "dot_general": dot_general, "out_sharding": out_sharding, "where": where}
    return affine(x, kernel, bias, axes, batch, **options)


@checks_options
def einsum(
    scope: Scope,
    inputs: ArrayLike,
    shape: Iterable[int],
    einsum_str: str,
    use_bias: bool = True,
    *,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    preferred_element_type: Dtype | None = None,
    out_sharding: Any = None,
) -> Array:
    """Compute `einsum(einsum_str, inputs, kernel) + bias`; see `jax.numpy.einsum`.

    Shapes: as in the equation; `inputs` are the first operand and the kernel is the second.
    Parameters: `kernel`, `shape`; `bias`, the sizes of the result's dimensions that the kernel also has.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.ones((3, 4, 5))
        >>> y, variables = liftcore.init(einsum)(jax.random.key(0), x, (5, 6, 7), "abc,cde->abde")
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((3, 4, 6, 7), {'params': {'bias': (6, 7), 'kernel': (5, 6, 7)}})

    Args:
        scope: the scope of the parameters.
        inputs: the array.
        shape: the shape of the kernel.
        einsum_str: an explicit equation with two operands, such as `"...a,ab->...b"`. Dimensions with the same letter
            have the same size; those that `...` stands for broadcast.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.

    Raises:
        LiftArgumentError: if the equation does not have this form, or inputs and kernel do not match it.
        ScopeParamShapeError: if the stored parameters have other shapes.
    """
    where, shape = f"einsum at {scope.path_text}", tuple(shape)
    equation = to_equation(where, einsum_str, jnp.shape(inputs), shape)
    sizes = dict(zip(equation.right, shape, strict=True))
    kernel = scope.param("kernel", kernel_init, shape, param_dtype)
    bias = None
    if use_bias:
        bias_shape = tuple(sizes[label] for label in equation.result if label in sizes)
        bias = scope.param("bias", bias_init, bias_shape, param_dtype)
    x, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
    options: Any = {"precision": precision, "preferred_element_type": preferred_element_type, "where": where}
    return affine_einsum(einsum_str, x, kernel, bias, out_sharding=out_sharding, **options)


def affine(
    inputs: ArrayLike,
    kernel: ArrayLike,
    bias: ArrayLike | None = None,
    axis: int | Iterable[int] = -1,
    batch_dims: int | Iterable[int] = (),
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    dot_general: Callable[..., Array] | None = None,
    out_sharding: Any = None,
    where: str = "affine",
) -> Array:
    """Compute `inputs @ kernel + bias` over any axes, with a kernel for each index of the batch dimensions.

    Shapes: `inputs`, `(*batch, *rest and axis, in any order)`; `kernel`, `(*batch, *axis, *features)`; `bias`,
    `(*batch, *features)`; the result, `(*batch, *rest, *features)`.

    Example:
        >>> affine(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 3.0]))
        Array([1., 5.], dtype=float32)

    Args:
        inputs: the array.
        kernel: the kernel; its axes that are summed over are in the order of those of `inputs`.
        bias: added to the product.
        axis: the axes of `inputs` to sum over.
        batch_dims: the leading axes, with which `kernel` and `bias` also begin.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default. Keyword arguments that
            were not given here are not passed on, except `precision`.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: if an axis does not exist, or the kernel does not match the inputs, or the bias does not
            match both, or `out_sharding` does not match the mesh.
    """
    shape, sizes = jnp.shape(inputs), jnp.shape(kernel)
    ndim = len(shape)
    axes = normalize_axes(where, "axis", axis, ndim)
    batch = normalize_axes(where, "batch_dims", batch_dims, ndim)
    lead = (*batch, *axes)
    begin = tuple(shape[i] for i in lead)
    if sizes[: len(lead)] != begin:
        expected = f"a kernel of shape ({', '.join(map(str, begin))}, …) for inputs of shape {shape}"
        raise _mismatch(where, expected, sizes)
    batch_shape, features = begin[: len(batch)], sizes[len(lead) :]
    if bias is not None and jnp.shape(bias) != (*batch_shape, *features):
        raise _mismatch(where, f"a bias of shape {(*batch_shape, *features)}", jnp.shape(bias))
    rest, new = [i for i in range(ndim) if i not in lead], range(ndim, ndim + len(features))
    labels = range(ndim), (*lead, *new), (*batch, *rest, *new)
    operands = inputs, kernel, ((axes, tuple(range(len(batch), len(lead)))), (batch, batch))
    how = precision, preferred_element_type, out_sharding
    y = _product(where, dot_general or lax.dot_general, operands, labels, *how)
    return y if bias is None else y + align(bias, y, (*batch_shape, *(1 for _ in rest), *features))


def affine_einsum(
    einsum_str: str,
    inputs: ArrayLike,
    kernel: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    einsum_op: Callable[..., Array] | None = None,
    out_sharding: Any = None,
    where: str = "affine_einsum",
) -> Array:
    """Compute the product of an equation, and add a bias over the result's dimensions that `kernel` also has.

    Example:
        >>> y = affine_einsum("...a,ab->...b", jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.arange(4.0))
        >>> y[0]
        Array([3., 4., 5., 6.], dtype=float32)

    Args:
        einsum_str: an explicit equation with two operands, such as `"...a,ab->...b"`.
        inputs: its first operand.
        kernel: its second operand.
        bias: added to the product, with its dimensions in the order of the result.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        einsum_op: the multiplication, called like `jax.numpy.einsum`, which is the default. Keyword arguments that were
            not given here are not passed on, except `precision`.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: if the equation does not have this form, or the arrays do not match it, or `out_sharding`
            does not match the mesh.
    """
    equation = to_equation(where, einsum_str, jnp.shape(inputs), jnp.shape(kernel))
    sizes = dict(zip(equation.right, jnp.shape(kernel), strict=True))
    full = tuple(sizes.get(label, 1) for label in equation.result)
    if bias is not None and jnp.size(bias) != math.prod(full):
        raise _mismatch(where, f"a bias that can be reshaped to {full}", jnp.shape(bias))
    multiply = functools.partial(einsum_op or jnp.einsum, einsum_str)
    y = _product(where, multiply, (inputs, kernel), equation, precision, preferred_element_type, out_sharding)
    return y if bias is None else y + align(bias, y, full)


def _product(
    where: str,
    multiply: Callable[..., Array],
    operands: tuple[Any, ...],
    labels: Labels,
    precision: lax.PrecisionLike,
    preferred_element_type: Dtype | None,
    out_sharding: Any,
) -> Array:
    """Multiply operands; the first two may be sharded, and `labels` name their dimensions and those of the result."""
    inputs, kernel, *others = operands
    if out_sharding is not None or is_sharded(inputs, kernel):
        check_out_sharding(where, out_sharding)
        inputs, kernel = agree(inputs, kernel, labels)
        out_sharding = product_sharding(inputs, kernel, labels) if out_sharding is None else out_sharding
    options = {"preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    given = {name: value for name, value in options.items() if value is not None}  # a user's function may lack others
    try:
        return multiply(inputs, kernel, *others, precision=precision, **given)
    except Exception as error:
        if not is_sharding_error(error):
            raise
        sharded = {name: x for name, x in (("inputs", inputs), ("kernel", kernel)) if is_sharded(x)}
        specs = ", ".join(f"{name} P({', '.join(map(repr, sharding_entries(x)))})" for name, x in sharded.items())
        what = f"JAX has no rule for what is sharded here: {specs or 'arrays inside'} ({error})."
        fix = "Say how the result is sharded: `out_sharding=P(…)`."
        raise LiftArgumentError(where, what, fix, given=specs or None) from error


def _mismatch(where: str, expected: str, shape: tuple[int, ...]) -> LiftArgumentError:
    fix = "Check the sizes of the layer, and the shape of its inputs."
    return LiftArgumentError(where, Expected(expected, given=shape), fix)


def _check_axes(
    where: str, axis: tuple[int, ...], axes: tuple[int, ...], batch_dims: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """Check axes as they were given, and as they are counted from the front."""
    if sorted(batch_dims) != list(range(len(batch_dims))):
        what = (
            f"batch_dims are {batch_dims}, but only the leading axes, counted from the front, can be batch dimensions."
        )
        fix = f"Move them to the front, and pass `batch_dims={tuple(range(len(batch_dims)))}`."
        raise LiftArgumentError(where, what, fix, option="batch_dims", given=batch_dims)
    if len(axis) != len(axes) or {*batch} & {*axes}:
        what = f"axis is {axis} and batch_dims are {batch_dims}, which name one axis of the inputs twice."
        fix = "Give each axis of the inputs once, in `axis` or in `batch_dims`."
        raise LiftArgumentError(where, what, fix, option="axis", given=axis)

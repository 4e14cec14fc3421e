"""Attention by the fused kernel of cuDNN where it can be used, as `implementation="auto"` requests.

A program may be lowered for several platforms, so it contains both ways, and the platform decides when it is lowered.
JAX's function of the kernel has no second derivatives, and `jax.vmap` maps it only if all arguments are mapped. So its
value and its gradient are two operations here. Each has a rule for `jax.vmap`, which adds a batch axis, and its
derivative is that of the plain function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._compat import varying_axes
from ..caches import bounded
from ..errors import LiftArgumentError
from ..typing import Array, ArrayLike, Shape
from .fused_attention import fused_attention
from .sharding import is_sharded

__all__ = ["kernel_attention"]

_MAX_DEPTH = 128
"""The largest head that the kernel takes on every GPU; a newer GPU may take larger ones."""

_MIN_CAPABILITY = 8.0
"""The first CUDA compute capability that the kernel runs on."""

Plain: TypeAlias = Callable[[Array, Array, Array, ArrayLike | None, bool], Array]
"""A function of query, key, value, mask and `is_causal`."""


class Kernel(NamedTuple):
    """A fused kernel.

    Attributes:
        platform: the platform that it is for, as `jax.lax.platform_dependent` names it.
        is_here: returns whether this process has a device for it.
        compute: called with query, key and value, a boolean mask or None, and `is_causal`. Every query sees a key.
    """

    platform: str
    is_here: Callable[[], bool]
    compute: Callable[[Array, Array, Array, Array | None, bool], Array]


class _Call(NamedTuple):
    """What is static in a call."""

    kernel: Kernel
    plain: Plain
    is_causal: bool


@functools.cache
def _has_cuda() -> bool:
    """Return whether this process has GPUs, all of which the kernel runs on."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return False
    return all(float(getattr(device, "compute_capability", 0)) >= _MIN_CAPABILITY for device in devices)


def _by_cudnn(query: Array, key: Array, value: Array, mask: Array | None, is_causal: bool) -> Array:
    if mask is not None:  # the kernel broadcasts only over the batch and the heads
        mask = jnp.broadcast_to(mask, (*mask.shape[:-2], query.shape[-3], key.shape[-3]))
    return fused_attention("dot_product_attention", "cudnn", query, key, value, None, mask, is_causal)


KERNEL = Kernel("cuda", _has_cuda, _by_cudnn)
"""The kernel that is used; tests replace it."""


def kernel_attention(
    plain: Plain, query: Array, key: Array, value: Array, mask: ArrayLike | None = None, *, is_causal: bool = False
) -> Array | None:
    """Return attention by a fused kernel on its platform and by `plain` elsewhere; None if no kernel takes the inputs.

    Reverse-mode derivatives of first order use the kernel, too. Others use `plain`; a forward-mode derivative that is
    not of a reverse-mode derivative is JAX's `TypeError`.

    Example:
        >>> x = jnp.ones((4, 2, 8), jnp.bfloat16)
        >>> def plain(query, key, value, mask, is_causal): ...
        >>> kernel_attention(plain, x, x, x) is None  # on the CPU
        True

    Args:
        plain: called with the other arguments; a function of a module, so that it is the same in each call.
        query: `(*batch, queries, heads, depth)`.
        key: `(*batch, keys, kv_heads, depth)`.
        value: `(*batch, keys, kv_heads, depth)`.
        mask: of any dtype, broadcast to `(*batch, heads, queries, keys)`.
        is_causal: whether query `i` ignores keys after the `i`-th.
    """
    if not takes(KERNEL, query, key, value, mask, is_causal):
        return None
    if mask is not None:
        mask = jnp.asarray(mask, bool).reshape(_whole_shape(mask, query))
    y: Array = _attend(_Call(KERNEL, plain, is_causal), query, key, value, mask)
    return y


# -- whether -----------------------------------------------------------------------------------------------------------


def takes(
    kernel: Kernel, query: Array, key: Array, value: Array, mask: ArrayLike | None = None, is_causal: bool = False
) -> bool:
    """Return whether a kernel can be used; False also for inputs that do not fit together."""
    if not kernel.is_here():
        return False
    arrays = query, key, value
    sizes = [size for x in arrays for size in x.shape]
    if not all(type(size) is int and size > 0 for size in sizes):  # `jax.export` may have symbolic ones
        return False
    if query.ndim < 3 or query.shape[-1] > _MAX_DEPTH:
        return False
    if is_causal and query.shape[-3] != key.shape[-3]:  # libraries disagree on the diagonal
        return False
    if is_sharded(arrays, mask) or any(varying_axes(jax.typeof(x)) for x in jax.tree.leaves((arrays, mask))):
        return False
    struct: Any = jax.ShapeDtypeStruct  # untyped
    kinds = tuple([struct(x.shape, x.dtype) for x in arrays])
    return _accepts(kernel, is_causal, kinds, None if mask is None else struct(_whole_shape(mask, query), bool))


def _whole_shape(mask: ArrayLike, query: Array) -> Shape:
    """Return the shape of a mask with all dimensions of the weights."""
    shape = jnp.shape(mask)
    return (1,) * (query.ndim - len(shape)) + shape


@bounded(1024)
def _accepts(kernel: Kernel, is_causal: bool, arrays: tuple[Any, ...], mask: Any) -> bool:
    """Return whether a kernel and its gradient can be traced: then, JAX checks dtypes, sizes and cuDNN's version."""

    def both(arrays: tuple[Array, ...], mask: Array | None) -> Any:
        return _gradient(functools.partial(_seen, kernel, is_causal), (*arrays, arrays[0]), mask)

    try:
        jax.eval_shape(both, arrays, mask)
    except (LiftArgumentError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    return True


# -- two operations ----------------------------------------------------------------------------------------------------


def _value(attend: Callable[..., Array], arrays: tuple[Array, ...], mask: Array | None) -> Any:
    # as in `_gradient`, so that XLA can merge the two calls where `jax.checkpoint` puts one beside the other
    return jax.vjp(lambda *arrays: attend(*arrays, mask), *arrays)[0]


def _gradient(attend: Callable[..., Array], arrays: tuple[Array, ...], mask: Array | None) -> tuple[Array, ...]:
    *inputs, cotangent = arrays
    gradient: tuple[Array, ...] = jax.vjp(lambda *inputs: attend(*inputs, mask), *inputs)[1](cotangent)
    return gradient


def _seen(kernel: Kernel, is_causal: bool, query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    """Compute attention with a kernel; queries that see no key weigh all alike, as in the plain function."""
    if mask is None:
        return kernel.compute(query, key, value, None, is_causal)
    allowed = mask & jnp.tri(query.shape[-3], key.shape[-3], dtype=bool) if is_causal else mask
    sees = jnp.any(allowed, -1, keepdims=True)
    y = kernel.compute(query, key, value, mask | ~sees, is_causal)
    mean = jnp.repeat(jnp.mean(value, -3, keepdims=True), query.shape[-2] // key.shape[-2], -2)
    return jnp.where(jnp.swapaxes(sees, -2, -3), y, mean)


def _plainly(plain: Plain, is_causal: bool, query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return plain(query, key, value, mask, is_causal)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chosen(call: _Call, compute: Callable[..., Any], arrays: tuple[Array, ...], mask: Array | None) -> Any:
    """Apply an operation to the kernel or to the plain function, whichever the platform requires."""
    by_kernel = functools.partial(compute, functools.partial(_seen, call.kernel, call.is_causal))
    plainly = functools.partial(compute, functools.partial(_plainly, call.plain, call.is_causal))
    return lax.platform_dependent(arrays, mask, default=plainly, **{call.kernel.platform: by_kernel})


def _operation(compute: Callable[..., Any]) -> Any:
    """Return an operation whose rule for `jax.vmap` adds a batch axis, and whose derivative is that of plain code."""

    def mapped(call: _Call, arrays: tuple[Array, ...], mask: Array | None) -> Any:
        chosen = custom_vmap(functools.partial(_chosen, call, compute))

        def rule(size: int, is_mapped: Any, arrays: tuple[Array, ...], mask: Array | None) -> Any:
            pairs = zip(arrays, is_mapped[0], strict=True)
            arrays = tuple(x if is_in else jnp.broadcast_to(x, (size, *x.shape)) for x, is_in in pairs)
            y = chosen(arrays, mask if mask is None or is_mapped[1] else mask[None])
            return y, jax.tree.map(lambda _: True, y)

        chosen.def_vmap(rule)
        return chosen(arrays, mask)

    def plainly(call: _Call, arrays: tuple[Array, ...], mask: Array | None) -> Any:
        return compute(functools.partial(_plainly, call.plain, call.is_causal), arrays, mask)

    def derivative(call: _Call, primals: Any, tangents: Any) -> Any:
        return operation(call, *primals), jax.jvp(functools.partial(plainly, call), primals, tangents)[1]

    operation = jax.custom_jvp(mapped, nondiff_argnums=(0,))
    operation.defjvp(derivative)
    return operation


_values, _gradients = _operation(_value), _operation(_gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, query: Array, key: Array, value: Array, mask: Array | None) -> Any:
    return _values(call, (query, key, value), mask)


def _forward(call: _Call, query: Array, key: Array, value: Array, mask: Array | None) -> Any:
    # not the kernel's own residuals: they have other shapes on each platform, so the gradient computes them again
    return _values(call, (query, key, value), mask), (query, key, value, mask)


def _backward(call: _Call, residuals: Any, cotangent: Array) -> Any:
    *arrays, mask = residuals
    return (*_gradients(call, (*arrays, cotangent), mask), None)


_attend.defvjp(_forward, _backward)

"""Parameters of layers: made or found in a scope, checked, and converted to one dtype with the inputs.

If they do not match, the error also gives the shape of the inputs.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ..errors import Expected, LiftArgumentError, ScopeParamShapeError
from ..scopes.scope import Scope
from ..typing import ArrayLike, Dtype, Initializer, Key, Shape

__all__ = [
    "PromoteDtypeFn",
    "accumulation_dtype",
    "canonicalize_dtype",
    "check_stored",
    "folded",
    "param_for",
    "promote_dtype",
]


def param_for(
    inputs: ArrayLike | None,
    where: str,
    scope: Scope,
    name: str,
    init_fn: Initializer,
    shape: tuple[int, ...],
    dtype: Dtype,
) -> Any:
    """Return `scope.param(name, init_fn, shape, dtype)`, for a shape that depends on the inputs, if any are given.

    Inputs without features need a kernel without elements; an initializer that divides by fan-in is not called then.

    Raises:
        ScopeParamShapeError: if the stored parameter has another shape; a note gives the shape of the inputs.
    """
    try:
        return scope.param(name, _of_nothing(init_fn) if 0 in shape else init_fn, shape, dtype)
    except ScopeParamShapeError as error:
        _note(error, inputs, where)
        raise


def _of_nothing(init_fn: Initializer) -> Initializer:
    def init(key: Key, shape: Shape, dtype: Dtype) -> Any:
        try:
            return init_fn(key, shape, dtype)
        except ZeroDivisionError:
            return jnp.zeros(shape, dtype)

    return init


def folded(init_fn: Initializer, flat: Shape) -> Initializer:
    """Wrap an initializer to see a flat shape; the value is folded, inside boxed metadata if there is any."""

    def init(key: Key, shape: Shape, dtype: Dtype) -> Any:
        made = init_fn(key, flat, dtype)
        # Inside the metadata: outside of it, the flat value would be sharded by the names of the folded axes.
        return jax.tree.map(lambda leaf: jnp.reshape(leaf, shape), made)

    return init


def check_stored(
    inputs: ArrayLike | None, where: str, scope: Scope, name: str, value: ArrayLike, shape: tuple[int, ...]
) -> None:
    """Check that a variable that is not a parameter has the shape that the inputs require.

    Raises:
        ScopeParamShapeError: if it has another shape, as for a parameter.
    """
    if jnp.shape(value) != shape:
        error = ScopeParamShapeError(
            f'"{name}" at {scope.path_text}',
            Expected(f"a stored value of shape {shape}", given=jnp.shape(value)),
            "Check the sizes of the module and of its inputs, or call `init` again for this model.",
        )
        _note(error, inputs, where)
        raise error


def _note(error: Exception, inputs: ArrayLike | None, where: str) -> None:
    if inputs is not None:
        error.add_note(f"The {where} was called with inputs of shape {jnp.shape(inputs)}.")


# -- the dtype that a layer computes in --------------------------------------------------------------------------------


def accumulation_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype for sums and averages of a dtype: at least float32, which is precise enough for long sums.

    Example:
        >>> accumulation_dtype(jnp.bfloat16), accumulation_dtype(jnp.int8), accumulation_dtype(jnp.complex64)
        (dtype('float32'), dtype('float32'), dtype('complex64'))

    Args:
        dtype: the dtype of the terms. Integers become float32, as when JAX promotes them with it.
    """
    found = jnp.dtype(dtype)
    is_wide = jnp.issubdtype(found, jnp.inexact) and found.itemsize >= 4
    return found if is_wide else jnp.dtype(jnp.float32)


class PromoteDtypeFn(Protocol):
    """The type of functions that convert inputs and parameters to one dtype, such as `promote_dtype`."""

    def __call__(self, *args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> list[Any]:
        """Return the arrays in one dtype, with None for None; see `promote_dtype`."""
        ...


def canonicalize_dtype(*args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> Dtype:
    """Return the dtype to compute in.

    Example:
        >>> import jax.numpy as jnp
        >>> canonicalize_dtype(jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float32))
        dtype('float32')
        >>> canonicalize_dtype(jnp.arange(3)), canonicalize_dtype(jnp.arange(3), inexact=False)
        (dtype('float32'), dtype('int32'))

    Args:
        *args: the arrays; None is ignored.
        dtype: the dtype to use, whatever the arrays have; by default, the dtype that they promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.

    Raises:
        LiftArgumentError: if `dtype` is neither floating nor complex, and `inexact` is True.
    """
    if dtype is None:
        found = jnp.result_type(*[jnp.asarray(x) for x in args if x is not None])
        return accumulation_dtype(found) if inexact and not jnp.issubdtype(found, jnp.inexact) else found
    if inexact and not jnp.issubdtype(dtype, jnp.inexact):
        raise LiftArgumentError(
            "dtype",
            Expected("a floating or complex dtype for products, means and roots", given=jnp.dtype(dtype)),
            "Pass `dtype=jnp.float32`, or None for that of the inputs and parameters.",
            option="dtype",
        )
    return dtype


def promote_dtype(*args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> list[Any]:
    """Convert all arrays to the dtype that `canonicalize_dtype` returns for them; None stays None.

    Example:
        >>> import jax.numpy as jnp
        >>> promote_dtype(jnp.arange(2), None, 1.5)
        [Array([0., 1.], dtype=float32), None, Array(1.5, dtype=float32)]

    Args:
        *args: the arrays; None is ignored.
        dtype: the dtype to use, whatever the arrays have; by default, the dtype that they promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.
    """
    dtype = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    return [None if x is None else jnp.asarray(x, dtype) for x in args]

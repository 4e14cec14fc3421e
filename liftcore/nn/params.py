"""Parameters of layers: makes or finds them; if they do not match, the error also gives the shape of the inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import Expected, ScopeParamShapeError
from ..scopes.scope import Scope
from ..typing import ArrayLike, Dtype, Initializer, Key, Shape

__all__ = ["check_stored", "folded", "param_for"]


def param_for(
    inputs: ArrayLike | None,
    layer: str,
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
        _note(error, inputs, layer, scope)
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
    inputs: ArrayLike | None, layer: str, scope: Scope, name: str, value: ArrayLike, shape: tuple[int, ...]
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
        _note(error, inputs, layer, scope)
        raise error


def _note(error: Exception, inputs: ArrayLike | None, layer: str, scope: Scope) -> None:
    if inputs is not None:
        error.add_note(f"The {layer} at {scope.path_text} was called with inputs of shape {jnp.shape(inputs)}.")

"""Parameters of layers: made by an initializer with a key of the stream `params`, and read with their hooks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.errors import LiftArgumentError, shown
from liftcore.typing import Dtype, Initializer

from ..rnglib.streams import Rngs
from ..variablelib.kinds import Param
from ..variablelib.metadata import VariableMetadata
from ..variablelib.variable import Variable

__all__ = ["check_features", "folded", "new_param", "to_tuple", "value_of"]


def new_param(
    layer: str,
    rngs: Rngs,
    init_fn: Initializer,
    shape: tuple[int, ...],
    dtype: Dtype,
    metadata: Mapping[str, Any],
    kind: Callable[..., Variable[Any]] = Param,
) -> Any:
    """A variable with a value made by an initializer, and with metadata.

    Example:
        >>> new_param("Linear", Rngs(0), jax.nn.initializers.ones, (2,), jnp.float32, {"tag": "scale"}).tag
        'scale'

    Args:
        layer: the layer, for errors.
        rngs: its stream `params` gives one key.
        init_fn: called as `init_fn(key, shape, dtype)`; returns an array or a `VariableMetadata`.
        shape: the shape of the value. Of one without elements an initializer that divides by fan-in is not asked.
        dtype: the dtype of the value.
        metadata: the metadata of the variable; metadata of the initializer is added.
        kind: the type of the variable.

    Raises:
        LiftArgumentError: if `rngs` has no streams.
    """
    if not isinstance(rngs, Rngs) and not hasattr(rngs, "params"):
        raise LiftArgumentError(
            f"{layer}(rngs=...)",
            f"expected an Rngs, whose stream `params` gives keys for initial values, given {shown(rngs)}.",
            "Pass `rngs=nnx.Rngs(0)`.",
        )
    key = rngs.params()
    try:
        value = init_fn(key, shape, dtype)
    except ZeroDivisionError:
        if math.prod(shape):
            raise
        value = jnp.zeros(shape, dtype)
    return kind(value, **metadata)


def folded(init_fn: Initializer, flat: tuple[int, ...]) -> Initializer:
    """An initializer that asks another one for a flat shape, which says fan-in and fan-out, and folds what it makes."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
        return _reshaped(init_fn(key, flat, dtype), shape)

    return init


def _reshaped(made: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(made, VariableMetadata):  # it may hold another one
        return dataclasses.replace(made, raw_value=_reshaped(made.raw_value, shape))
    return jnp.reshape(made, shape)


def value_of(param: Any) -> Any:
    """What a parameter holds, or the array that was put in its place; None for None."""
    return None if param is None else param[...]


def to_tuple(value: int | Iterable[int]) -> tuple[int, ...]:
    """One int, or some of them, as a tuple."""
    return tuple(value) if isinstance(value, Iterable) else (value,)


def check_features(layer: str, given: tuple[int, ...], expected: int) -> None:
    """Checks that inputs of some shape have a number of features.

    Raises:
        LiftArgumentError: if they do not.
    """
    if given[-1:] != (expected,):
        raise LiftArgumentError(
            layer,
            f"the layer expects {expected} features, given inputs of shape {given}.",
            f"Create it with that number of features, or pass inputs of shape (..., {expected}).",
        )

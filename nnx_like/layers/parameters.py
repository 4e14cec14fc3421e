"""Parameters of layers: made by initializers with keys from the stream `params`, read through hooks, and promoted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from liftcore import nn
from liftcore.calls import call_user
from liftcore.errors import Expected, LiftArgumentError
from liftcore.nn import canonicalize_dtype
from liftcore.typing import ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from ..variablelib.kinds import Param
from ..variablelib.metadata import VariableMetadata
from ..variablelib.variable import Variable

__all__ = [
    "Affine",
    "PromoteDtypeFn",
    "canonicalize_dtype",
    "chosen",
    "folded",
    "new_param",
    "promote_dtype",
    "stream_of",
    "unpacked",
    "value_of",
    "wrong_rngs",
]


_Param: TypeAlias = tuple[Initializer, tuple[int, ...], Mapping[str, Any]]
"""Type: what makes a parameter, its shape and its metadata."""

PromoteDtypeFn: TypeAlias = Callable[..., Any]
"""The type of functions that convert inputs and parameters to one dtype: `fn(arrays, dtype=dtype) -> arrays`."""


def new_param(
    layer: str,
    rngs: Rngs,
    dtype: Dtype,
    init_fn: Initializer,
    shape: tuple[int, ...],
    metadata: Mapping[str, Any],
    kind: Callable[..., Variable[Any]] = Param,
) -> Any:
    """Create a variable with a value from an initializer, and with metadata.

    Example:
        >>> new_param("Linear", Rngs(0), jnp.float32, jax.nn.initializers.ones, (2,), {"tag": "scale"}).tag
        'scale'

    Args:
        layer: the layer, for errors.
        rngs: gives one key from its stream `params`.
        dtype: the dtype of the value.
        init_fn: called as `init_fn(key, shape, dtype)`; returns an array or a `VariableMetadata`.
        shape: the shape of the value. Without elements, zeros are used if the initializer divides by fan-in.
        metadata: the metadata of the variable; metadata of the initializer is added.
        kind: the type of the variable.

    Raises:
        LiftArgumentError: if `rngs` has no streams.
    """
    if not isinstance(rngs, Rngs) and not hasattr(rngs, "params"):
        raise wrong_rngs(layer, rngs, "an Rngs, whose stream `params` gives keys for initial values")
    key = rngs.params()
    try:
        value = call_user(f"initializer of {layer}", init_fn, key, shape, dtype)
    except ZeroDivisionError:
        if math.prod(shape):
            raise
        value = jnp.zeros(shape, dtype)
    return kind(value, **metadata)


class Affine(Module):
    """Base of the layers that have a kernel and, unless there is none, a bias."""

    kernel: Any
    bias: Any
    dtype: Dtype | None
    promote_dtype: PromoteDtypeFn

    def _begin(self, rngs: Rngs, param_dtype: Dtype, kernel: _Param, bias: _Param | None) -> None:
        """Make the kernel and the bias, each of which draws a key."""
        for name, param in (("kernel", kernel), ("bias", bias)):
            made = None if param is None else new_param(type(self).__name__, rngs, param_dtype, *param)
            setattr(self, name, made)

    def _promoted(self, inputs: ArrayLike, mask: ArrayLike | None = None) -> Any:
        """Return the inputs, the kernel, with a mask if there is one, and the bias, in one dtype."""
        kernel = value_of(self.kernel) if mask is None else value_of(self.kernel) * mask
        return self.promote_dtype((inputs, kernel, value_of(self.bias)), dtype=self.dtype)


def folded(init_fn: Initializer, flat: tuple[int, ...]) -> Initializer:
    """Wrap an initializer to see a flat shape with the right fan-in and fan-out; the result is reshaped."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
        return _reshaped(call_user("initializer", init_fn, key, flat, dtype), shape)

    return init


def _reshaped(made: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(made, VariableMetadata):  # its value may be another `VariableMetadata`
        return dataclasses.replace(made, raw_value=_reshaped(made.raw_value, shape))
    return jnp.reshape(made, shape)


def value_of(param: Any) -> Any:
    """Return the value of a parameter, or the array that replaced it; None for None."""
    return None if param is None else param[...]


# --- the dtype that a layer computes in -------------------------------------------------------------------------------


def chosen(layer: Any, name: str, given: bool | None) -> bool:
    """Return an option of a call, or else the one of the layer.

    Raises:
        LiftArgumentError: if both are None.
    """
    found: bool | None = getattr(layer, name) if given is None else given
    if found is None:
        more = "" if name == "decode" else ", or call `train()` or `eval()` of the model"
        fix = f"Pass `{name}=False` or `True` to the call or to the layer{more}."
        what = f"`{name}` is None both in the layer and in the call."
        raise LiftArgumentError(type(layer).__name__, what, fix, option=name)
    return found


def stream_of(layer: str, rngs: Any, name: str, expected: str = "an Rngs or an RngStream") -> RngStream | None:
    """Return the stream of a name of `Rngs`, or a stream as it was given, or None.

    Example:
        >>> stream_of("RNN", Rngs(carry=3), "carry").tag
        'carry'

    Args:
        layer: the layer, for errors.
        rngs: `Rngs`, a stream, or None.
        name: the name.
        expected: the types that it may have, for errors.

    Raises:
        LiftArgumentError: if it has another type.
    """
    if isinstance(rngs, Rngs):
        return rngs[name]
    if rngs is None or isinstance(rngs, RngStream):
        return rngs
    raise wrong_rngs(layer, rngs, expected)


def wrong_rngs(layer: str, given: Any, expected: str, fix: str = "Pass `rngs=nnx.Rngs(0)`.") -> LiftArgumentError:
    """Return the error for a value that was passed as `rngs`."""
    return LiftArgumentError(f"{layer}(rngs=...)", Expected(expected, given), fix, option="rngs")


def promote_dtype(
    args: tuple[ArrayLike | None, ...], /, *, dtype: Dtype | None = None, inexact: bool = True
) -> tuple[Any, ...]:
    """Convert all arrays of a tuple to one dtype; None stays None.

    Example:
        >>> import jax.numpy as jnp
        >>> promote_dtype((jnp.arange(2), None, 1.5))
        (Array([0., 1.], dtype=float32), None, Array(1.5, dtype=float32))

    Args:
        args: the arrays; None is ignored.
        dtype: the dtype to convert to; by default, the dtype that the arrays promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.

    Raises:
        LiftArgumentError: if `dtype` is neither floating nor complex, and `inexact` is True.
    """
    return tuple(nn.promote_dtype(*args, dtype=dtype, inexact=inexact))


def unpacked(promote_dtype: PromoteDtypeFn) -> nn.PromoteDtypeFn:
    """Wrap the function to take arrays as separate arguments, as the functions of `liftcore.nn` call it."""

    def promote(*args: ArrayLike | None, **options: Any) -> Any:
        return promote_dtype(args, **options)

    return promote

"""Windows: the places of a convolution's kernel on the spatial dimensions of its inputs.

The arguments of a layer become one checked `Window`, with an entry for each spatial dimension. Padding that `lax` does
not support is done at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array
from .layer import to_tuple
from .sharding import on_auto_axes, reshape, sharding_entries, to_spec

__all__ = [
    "SPREAD_PADDINGS",
    "PaddingLike",
    "Window",
    "batch_ndim",
    "check_padding",
    "dimension_numbers",
    "flatten_batch",
    "pad",
    "positions",
    "to_window",
]

PaddingLike: TypeAlias = str | int | Sequence[int | Sequence[int]]
"""Type: `"SAME"`, `"CAUSAL"` and the like, one int, or an int or a pair `(low, high)` for each spatial axis."""

_PADDINGS = ("SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT", "CAUSAL")
SPREAD_PADDINGS = ("SAME", "VALID", "CIRCULAR")
"""The words for padding that a transposed convolution supports."""


class Window(NamedTuple):
    """A kernel's size and steps, one entry for each spatial dimension; padding may be a word for all of them."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str | list[tuple[int, int]]
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]


def to_window(
    where: str,
    kernel_size: int | Iterable[int],
    strides: int | Iterable[int] | None,
    padding: PaddingLike,
    input_dilation: int | Iterable[int] | None,
    kernel_dilation: int | Iterable[int] | None,
    words: Sequence[str] = _PADDINGS,
) -> Window:
    """Return the window for the arguments of a layer; None counts as 1, and one int applies to every dimension.

    The padding may be one of `words`, in upper or lower case.

    Example:
        >>> to_window("conv at /", (3, 3), 2, "SAME", None, 1)  # doctest: +NORMALIZE_WHITESPACE
        Window(size=(3, 3), strides=(2, 2), padding='SAME', input_dilation=(1, 1), kernel_dilation=(1, 1))

    Raises:
        LiftArgumentError: if an argument has another number of entries than the kernel, or one below 1; if the padding
            is invalid; or if it is a word although the inputs are dilated, for which `lax` has no rule.
    """
    size = to_tuple(kernel_size)

    def each(name: str, value: int | Iterable[int] | None) -> tuple[int, ...]:
        entries = tuple(value) if isinstance(value, Iterable) else (1 if value is None else value,) * len(size)
        if len(entries) != len(size):
            raise LiftArgumentError(
                where,
                f"{name} has {len(entries)} entries, {entries}, but kernel_size has {len(size)}, {size}.",
                f"Give {name} one entry for each spatial dimension, or one int for all.",
                option=name,
                given=entries,
            )
        if any(entry < 1 for entry in entries):
            raise LiftArgumentError(
                where,
                Expected("entries of 1 or more", given=entries),
                f"Pass `{name}={(1,) * len(size)}` or more.",
                option=name,
            )
        return entries

    each("kernel_size", size)
    pads, spacing = _to_pads(where, padding, len(size), words), each("input_dilation", input_dilation)
    if isinstance(pads, str) and any(step != 1 for step in spacing):
        raise LiftArgumentError(
            where,
            f"with input_dilation={spacing} padding must be given in numbers, not as {pads!r}.",
            f"Pass `padding={[(1, 1)] * len(size)}`, for example.",
            option="padding",
            given=pads,
        )
    return Window(size, each("strides", strides), pads, spacing, each("kernel_dilation", kernel_dilation))


def batch_ndim(where: str, inputs: Array, spatial: int) -> int:
    """Return the number of batch dimensions of inputs, which come before the spatial dimensions and the features.

    Raises:
        LiftArgumentError: if the inputs have too few dimensions.
    """
    batch = jnp.ndim(inputs) - spatial - 1
    if batch < 0:
        raise LiftArgumentError(
            where,
            Expected(f"inputs of shape (*batch, {spatial} spatial sizes, features)", given=jnp.shape(inputs)),
            "Give `kernel_size` one entry for each spatial dimension of the inputs, which end with features.",
        )
    return batch


def flatten_batch(where: str, inputs: Array, spatial: int) -> tuple[Array, tuple[int, ...]]:
    """Reshape inputs to have exactly one batch dimension; return them, and the shape of their own batch dimensions.

    Raises:
        LiftArgumentError: if the inputs have too few dimensions.
    """
    batch, shape = batch_ndim(where, inputs, spatial), jnp.shape(inputs)
    if batch != 1:
        inputs = reshape(inputs, (math.prod(shape[:batch]), *shape[batch:]))
    return inputs, shape[:batch]


def pad(where: str, inputs: Array, window: Window) -> tuple[Array, Window]:
    """Pad circularly, by reflection or causally, if the window says so; then nothing is left to pad.

    Args:
        where: the layer, for the error.
        inputs: `(batch, *spatial, features)`.
        window: the window that moves over them.

    Raises:
        LiftArgumentError: if more than one dimension needs causal padding, or there is nothing to repeat.
    """
    if window.padding not in ("CIRCULAR", "REFLECT", "CAUSAL"):
        return inputs, window
    check_padding(where, window, inputs.shape[1:-1])
    reach = [size - 1 for size in _reach(window)]
    if window.padding == "CAUSAL":
        add = functools.partial(jnp.pad, pad_width=[(0, 0), (reach[0], 0), (0, 0)])
    else:
        pairs = [(0, 0), *((n // 2, (n + 1) // 2) for n in reach), (0, 0)]
        add = functools.partial(jnp.pad, pad_width=pairs, mode=_MODES[window.padding])
    padded = on_auto_axes(add, to_spec(*sharding_entries(inputs)), inputs)
    return padded, window._replace(padding="VALID")


_MODES = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


def check_padding(where: str, window: Window, spatial: Sequence[int]) -> None:
    """Check that inputs of some spatial sizes can be padded as the window says.

    Raises:
        LiftArgumentError: if more than one dimension needs causal padding, or there is nothing to repeat.
    """
    if window.padding == "CAUSAL" and len(window.size) != 1:
        what = f'padding "CAUSAL" needs one spatial dimension, but kernel_size {window.size} has {len(window.size)}.'
        fix = "Pass the pairs yourself: `padding=[(kernel_size - 1, 0), …]` for each causal dimension."
    elif window.padding in ("CIRCULAR", "REFLECT") and 0 in spatial:
        what = f'padding "{window.padding}" repeats the inputs, but of spatial sizes {tuple(spatial)} there are none.'
        fix = 'Pass `padding="SAME"`, or longer inputs.'
    else:
        return
    raise LiftArgumentError(where, what, fix, option="padding", given=window.padding)


def positions(where: str, spatial: Sequence[int], window: Window) -> tuple[int, ...]:
    """Return how many places a window takes along each spatial dimension of its inputs, after `pad`.

    Raises:
        LiftArgumentError: if there is none.
    """
    reach, pads = _reach(window), window.padding
    pads = lax.padtype_to_pads(spatial, reach, window.strides, pads) if isinstance(pads, str) else pads
    full = [
        low + (dilation * (size - 1) + 1 if size else 0) + high
        for size, dilation, (low, high) in zip(spatial, window.input_dilation, pads, strict=True)
    ]
    found = [(size - k) // step + 1 for size, k, step in zip(full, reach, window.strides, strict=True)]
    if min(found, default=1) < 1:
        raise LiftArgumentError(
            where,
            f"the kernel spans {reach}, but the padded inputs are only {(*map(int, full),)}: it does not fit.",
            "Pass larger inputs, a smaller `kernel_size` or more `padding`.",
            option="kernel_size",
            given=tuple(map(int, full)),
            expected=reach,
        )
    return tuple(map(int, found))  # older JAX pads with NumPy integers


def _reach(window: Window) -> tuple[int, ...]:
    """Return the size of the kernel along each spatial dimension, including the gaps between its elements."""
    pairs = zip(window.size, window.kernel_dilation, strict=True)
    return tuple(dilation * (size - 1) + 1 for size, dilation in pairs)


def dimension_numbers(ndim: int) -> lax.ConvDimensionNumbers:
    """Return the dimension numbers of inputs `(batch, *spatial, features)` and kernels `(*spatial, in, out)`."""
    data, kernel = (0, ndim - 1, *range(1, ndim - 1)), (ndim - 1, ndim - 2, *range(ndim - 2))
    return lax.ConvDimensionNumbers(data, kernel, data)


def _to_pads(where: str, padding: PaddingLike, spatial: int, words: Sequence[str]) -> str | list[tuple[int, int]]:
    if isinstance(padding, str):
        if padding.upper() in words:
            return padding.upper()
    else:
        entries = list(padding) if isinstance(padding, Iterable) else [padding] * spatial
        pairs = [tuple(entry) if isinstance(entry, Iterable) else (entry, entry) for entry in entries]
        if len(pairs) == spatial and all(len(pair) == 2 for pair in pairs):
            return [(low, high) for low, high in pairs]
    raise LiftArgumentError(
        where,
        Expected(
            f"{', '.join(words)}, an int, or a list with an int or a pair for each of {spatial} spatial dimensions",
            given=padding,
        ),
        f'Pass `padding="SAME"` or `padding={[(1, 1)] * spatial}`.',
        option="padding",
    )

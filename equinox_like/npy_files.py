"""Files that Equinox wrote: the leaves of a pytree in order, each in the format of `numpy.save`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from liftcore.checkpoints import Stored, match_state
from liftcore.errors import SerializationError
from liftcore.leaves import is_number
from liftcore.serialization import to_state_dict

__all__ = ["begins_with_npy", "load_npy"]

_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_FIX = "Pass the pytree whose leaves Equinox saved, or a file that is not damaged."


def begins_with_npy(file: Any) -> bool:
    """Return whether a NumPy array begins at the current position of a file, which does not move.

    Args:
        file: an open file. For one that cannot be read like this, the result is False.
    """
    magic = np.lib.format.MAGIC_PREFIX
    try:
        start = file.tell()
        found = file.read(len(magic))
        file.seek(start)
    except (AttributeError, OSError, ValueError):
        return False
    return bool(found == magic)


def load_npy(file: Any, target: Any, where: str, whole: bool) -> Any:
    """Return a pytree like `target` with the next arrays in a file.

    Args:
        file: an open binary file that can seek; afterwards, its position is after the last array.
        target: a pytree of arrays, numbers and `jax.ShapeDtypeStruct`.
        where: the name of the file, for errors.
        whole: whether the file must end after these arrays.

    Raises:
        SerializationError: if there are more or fewer arrays, if one has another shape or dtype, or if the bytes are
            not arrays.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(target)
    stored = []
    for number, leaf in enumerate(leaves):
        try:
            stored.append(_next(file, leaf))
        except (ValueError, EOFError) as error:
            what = f"expected {len(leaves)} leaves, but number {number + 1} cannot be read ({error})."
            raise SerializationError(where, what, _FIX) from error
    end = file.tell()
    if whole and file.read(1):
        raise SerializationError(where, f"expected {len(leaves)} leaves, but the file has more.", _FIX)
    made = match_state(target, to_state_dict(structure.unflatten(stored)), where=where)
    file.seek(end)
    return made


def _next(file: Any, leaf: Any) -> Any:
    """Return the next array, to be read only if it fits the leaf; if the leaf is a number, return a number."""
    header = _HEADERS.get(np.lib.format.read_magic(file))
    if header is None:
        raise ValueError("its version is unknown")
    shape, is_transposed, dtype = header(file)
    kind = np.dtype(getattr(leaf, "dtype", None) or dtype)
    if dtype.kind == "V" and dtype.itemsize == kind.itemsize:
        dtype = kind  # NumPy writes bfloat16 and similar dtypes as raw bytes
    if dtype.kind not in "biufcV" or dtype.fields is not None:
        raise ValueError(f"its dtype is {dtype}")
    start = file.tell()
    read = functools.partial(_read, file, start, shape, is_transposed, dtype)
    if shape == () and is_number(leaf):
        return read().item()
    file.seek(start + math.prod(shape) * dtype.itemsize)
    return Stored(shape, dtype, read)


def _read(file: Any, start: int, shape: tuple[int, ...], is_transposed: bool, dtype: np.dtype[Any]) -> Any:
    size = math.prod(shape) * dtype.itemsize
    file.seek(start)
    data = file.read(size)
    if len(data) < size:
        raise SerializationError("npy", f"the file ends {size - len(data)} bytes before the end of an array.", _FIX)
    flat = np.frombuffer(bytearray(data), dtype)
    return flat.reshape(shape, order="F" if is_transposed else "C")

"""Files that Equinox wrote: the leaves of a pytree in order, each as `numpy.save` writes it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from liftcore.checkpoints import Stored, match_state
from liftcore.errors import SerializationError
from liftcore.serialization import to_state_dict

__all__ = ["begins_with_npy", "load_npy"]

_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_FIX = "Give the pytree whose leaves Equinox saved, or a file that is not damaged."


def begins_with_npy(file: Any) -> bool:
    """Whether an array of NumPy begins where a file is; it stays there.

    Args:
        file: an open file. Of one that cannot be read in this way the answer is False.
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
    """A pytree like `target`, with the arrays that come next in a file.

    Args:
        file: a file that is open for binary reading, and can seek; it is left after the last array.
        target: the pytree, of arrays, numbers and `jax.ShapeDtypeStruct`.
        where: what errors call the file.
        whole: whether the file must end there.

    Raises:
        SerializationError: if there are more or fewer arrays, if one has another shape or dtype, or if the bytes are
            not those of arrays.
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
        raise SerializationError(where, f"after the {len(leaves)} leaves that were expected, more follow.", _FIX)
    made = match_state(target, to_state_dict(structure.unflatten(stored)), where=where)
    file.seek(end)
    return made


def _next(file: Any, leaf: Any) -> Any:
    """The array that comes next, which is read when it is known to fit; in the place of a number, a number."""
    header = _HEADERS.get(np.lib.format.read_magic(file))
    if header is None:
        raise ValueError("its version is unknown")
    shape, is_transposed, dtype = header(file)
    kind = np.dtype(getattr(leaf, "dtype", None) or dtype)
    if dtype.kind == "V" and dtype.itemsize == kind.itemsize:
        dtype = kind  # NumPy has no name for bfloat16 and its like
    if dtype.kind not in "biufcV" or dtype.fields is not None:
        raise ValueError(f"its dtype is {dtype}")
    start = file.tell()
    read = functools.partial(_read, file, start, shape, is_transposed, dtype)
    if shape == () and isinstance(leaf, bool | int | float | complex):
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

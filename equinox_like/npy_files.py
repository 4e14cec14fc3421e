"""Files that Equinox wrote: the leaves of a pytree in order, each in the format of `numpy.save`."""

from __future__ import annotations

import functools
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.checkpoints import Stored, match_state
from liftcore.errors import SerializationError
from liftcore.leaves import is_number
from liftcore.serialization import to_state_dict

__all__ = ["begins_with_npy", "load_npy"]

_HEADER = re.compile(
    r"\{'descr': '([<>|])(b1|[iu][1248]|f[1248]|c8|c16|V\d)', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,19}, ?){0,64}(?:\d{1,19})?)\), \} *\n"
)
"""What `numpy.save` writes. Nothing else is read: Python's parser, which NumPy calls, has errors of many kinds."""

_SOLE = {"V2": jnp.bfloat16, "f1": jnp.float8_e5m2}
"""The types that NumPy does not know, but writes as it writes no other."""

_NAMELESS = np.dtype("V1")
"""What NumPy writes for a dozen other types that it does not know, such as float8_e4m3fn and int4."""

_LENGTHS = {(1, 0): 2, (2, 0): 4}
"""How many bytes hold the length of the header, by the version of the format."""

_LONGEST = 10_000
"""The bytes of a header; the limit of NumPy."""

_AS_BYTES = (
    'Load it as bytes, with `np.zeros(shape, "V1")` in place of that leaf of `like`; if it was float8_e4m3fn, then '
    "write `leaf.view(jnp.float8_e4m3fn)`."
)
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
    start = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(start)
    stored = []
    for number, leaf in enumerate(leaves):
        try:
            stored.append(_next(file, size, leaf))
        except _NamelessError as error:
            place = jax.tree_util.keystr(jax.tree.leaves_with_path(target)[number][0])
            what = f"the leaf {place} has a type of one byte that the file does not name, such as float8_e4m3fn."
            raise SerializationError(where, what, _AS_BYTES) from error
        except (ValueError, EOFError) as error:
            what = f"expected {len(leaves)} leaves, but number {number + 1} cannot be read ({error})."
            raise SerializationError(where, what, _FIX) from error
    end = file.tell()
    if whole and file.read(1):
        raise SerializationError(where, f"expected {len(leaves)} leaves, but the file has more.", _FIX)
    try:
        made = match_state(target, to_state_dict(structure.unflatten(stored)), where=where)
    except SerializationError as error:  # its fix names options of other functions
        raise SerializationError(where, error.what, _FIX) from error.__cause__
    file.seek(end)
    return made


def _next(file: Any, size: int, leaf: Any) -> Any:
    """Return the next array, to be read only if it fits the leaf; if the leaf is a number, return a number."""
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(_LENGTHS[version]), "little") if version in _LENGTHS else _LONGEST + 1
    header = _HEADER.fullmatch(file.read(length).decode("latin-1")) if length <= _LONGEST else None
    if header is None:
        raise ValueError("its header is not one that NumPy writes for an array of numbers")
    order, code, is_transposed = header[1], header[2], header[3] == "True"
    shape = tuple(int(length) for length in header[4].replace(",", " ").split())
    dtype = _dtype(order, code, leaf)
    start = file.tell()
    end = start + math.prod(shape) * dtype.itemsize
    if end > size:
        raise ValueError(f"the file ends {end - size} bytes before the end of an array of shape {shape}")
    read = functools.partial(_read, file, start, shape, is_transposed, dtype)
    if shape == () and is_number(leaf):
        return read().item()
    file.seek(end)
    return Stored(shape, dtype, read)


class _NamelessError(Exception):
    """The type of an array is one of several, and the file does not say which."""


def _dtype(order: str, code: str, leaf: Any) -> np.dtype[Any]:
    """Return the dtype that a header names."""
    if code in _SOLE:
        return np.dtype(_SOLE[code])
    if code == "V1" and getattr(leaf, "dtype", None) != _NAMELESS:
        raise _NamelessError  # to believe the leaf would read one type as another, without an error
    if code.startswith("V") and code != "V1":
        raise ValueError(f"it is of a type that NumPy does not know, of {code[1:]} bytes")
    return np.dtype(f"{order}{code}")


def _read(file: Any, start: int, shape: tuple[int, ...], is_transposed: bool, dtype: np.dtype[Any]) -> Any:
    file.seek(start)
    flat = np.frombuffer(bytearray(file.read(math.prod(shape) * dtype.itemsize)), dtype)
    if dtype == np.bool_ and flat.view(np.uint8).max(initial=0) > 1:
        raise SerializationError("npy", "an array of dtype bool has bytes other than 0 and 1.", _FIX)
    return flat.reshape(shape, order="F" if is_transposed else "C")

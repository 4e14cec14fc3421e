"""Portions: a large state is created and restored in parts, to limit the temporary memory to that of one part."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax

__all__ = ["bytes_per_process", "portions", "return_memory"]

_COUNT, _SMALL = 32, 2**25
"""The number of portions of a large state, and the number of bytes up to which nothing is divided."""


def portions(sizes: Sequence[int]) -> list[list[int]]:
    """Return the indices of items, in order, in groups of at most 1/32 of all bytes, or of 32 MiB.

    Example:
        >>> portions([2**20] * 3), portions([2**30, 2**20, 2**20])
        ([[0, 1, 2]], [[0], [1, 2]])

    Args:
        sizes: the number of bytes of each item. An item that is larger than a portion is a group by itself.
    """
    limit = max(sum(sizes) / _COUNT, _SMALL)
    groups: list[list[int]] = [[]]
    filled = 0
    for number, size in enumerate(sizes):
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += size
    return groups


def bytes_per_process(shape: Sequence[int], dtype: Any, sharding: Any) -> int:
    """Return the bytes of an array on all devices of one process; the number is the same for each process.

    Example:
        >>> import jax, numpy as np
        >>> bytes_per_process((2, 3), np.dtype("float32"), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        24

    Args:
        shape: the shape of the whole array.
        dtype: the dtype.
        sharding: the sharding.
    """
    shard: int = math.prod(sharding.shard_shape(tuple(shape))) * int(getattr(dtype, "itemsize", 1))
    devices: int = -(-int(sharding.num_devices) // jax.process_count())
    return shard * devices


def return_memory() -> None:
    """Return unused memory to the operating system; otherwise, glibc keeps blocks below 32 MiB."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in other C libraries
        if trim is not None:
            trim(0)

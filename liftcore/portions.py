"""Large states are made and restored in portions, so that the memory needed on the way is that of one of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax

__all__ = ["bytes_per_process", "portions", "return_memory"]

_COUNT, _SMALL = 32, 2**25
"""How many portions a large state has, and the bytes below which no portion is divided."""


def portions(sizes: Sequence[int]) -> list[list[int]]:
    """The numbers of some things, in order, in groups of at most 1/32 of all bytes, or of 32 MiB.

    Example:
        >>> portions([2**20] * 3), portions([2**30, 2**20, 2**20])
        ([[0, 1, 2]], [[0], [1, 2]])

    Args:
        sizes: the bytes of each thing. One that is larger than a portion is a group of its own.
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
    """The bytes of an array on all devices of one process; the same number in each of them.

    Example:
        >>> import jax, numpy as np
        >>> bytes_per_process((2, 3), np.dtype("float32"), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        24

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        sharding: how it is sharded.
    """
    shard: int = math.prod(sharding.shard_shape(tuple(shape))) * int(getattr(dtype, "itemsize", 1))
    devices: int = -(-int(sharding.num_devices) // jax.process_count())
    return shard * devices


def return_memory() -> None:
    """Returns memory that is no longer used to the operating system; glibc otherwise keeps blocks below 32 MiB."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in other C libraries
        if trim is not None:
            trim(0)

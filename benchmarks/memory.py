"""Trees of a given size, what is done with them by hand, and how much memory anything takes at its peak.

Memory is that of a fresh process, as Linux counts it: what a C library allocates is in it, and what is only reserved
is not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["joined", "leaves", "parted", "peak_ratio"]

T = TypeVar("T")


def leaves(total_bytes: int, count: int, dtype: str = "float32", library: str = "jax") -> dict[str, dict[str, Any]]:
    """Return `count` equal arrays, ten to a layer, of that many bytes together; of `"jax"` or `"numpy"`."""
    size = total_bytes // count // jnp.dtype(dtype).itemsize
    full: Any = jnp.full if library == "jax" else np.full
    names = [divmod(index, 10) for index in range(count)]
    tree: dict[str, dict[str, Any]] = {f"layer_{layer}": {} for layer, _ in names}
    for layer, param in names:
        tree[f"layer_{layer}"][f"param_{param}"] = full((size,), layer + param, jnp.dtype(dtype))
    jax.block_until_ready(tree)
    return tree


def joined(tree: Any) -> bytes:
    """Return the bytes of all arrays, one after the other: the least that saving a tree has to do."""
    buffers: list[Any] = [np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves(tree)]
    return b"".join(buffers)


def parted(data: bytes, count: int) -> list[Any]:
    """Return `count` equal arrays, copied out of bytes: the least that restoring a tree has to do."""
    size = len(data) // count
    return [np.frombuffer(data, np.uint8, size, index * size).copy() for index in range(count)]


def peak_ratio(setup: Callable[[], T], statement: Callable[[T], Any], size: int) -> float:
    """Return the memory that `statement(setup())` takes at its peak, beyond what `setup()` left, over `size` bytes.

    What it returns is part of it, what it was given is not. Both functions are run in a process of their own, so they
    are functions of modules, or `functools.partial` of such.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_gained, setup, statement).result() / size


def _gained(setup: Callable[[], T], statement: Callable[[T], Any]) -> int:
    given = setup()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    before = _status("VmRSS")
    result = statement(given)
    gained = _status("VmHWM") - before
    del result
    return gained


def _status(name: str) -> int:
    """Return a number of bytes that Linux tells about this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kibibytes,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(kibibytes)

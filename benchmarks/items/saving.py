"""Checkpoints as bytes: the time and the memory of writing and reading them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from liftcore import serialization

from ..measure import seconds
from ..memory import joined, leaves, parted, peak_ratio
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["restoring", "saving"]

_SIZES = {
    "100 MB in 4 leaves": (100_000_000, 4),
    "100 MB in 10,000 leaves": (100_000_000, 10_000),
    "1 GB in 4 leaves": (1_000_000_000, 4),
    "1 GB in 10,000 leaves": (1_000_000_000, 10_000),
}


def saving(settings: Settings) -> Iterator[Row]:
    """`to_bytes` against joining the buffers of all arrays."""
    writers = _of_peers(settings, {"core": serialization.to_bytes}, "to_bytes")
    for what, (size, count) in _SIZES.items():
        tree = leaves(size, count)
        sides = {name: functools.partial(write, tree) for name, write in ({PURE: joined} | writers).items()}
        yield Row("save", f"to_bytes, {what}", "s", seconds(sides, _rounds(settings, size)), {"core": 1.5})
        del tree, sides
        made = functools.partial(leaves, size, count)
        peaks = {name: peak_ratio(made, write, size) for name, write in writers.items()}
        yield Row("save", f"memory of to_bytes, relative to the data, {what}", "times", peaks, {"core": 1.05})


def restoring(settings: Settings) -> Iterator[Row]:
    """`msgpack_restore`, with copies and without, against copying each array out of one buffer."""
    ways: dict[str, Callable[..., Any]] = {"core": serialization.msgpack_restore, "core, copy=False": _views}
    readers = _of_peers(settings, ways, "msgpack_restore")
    for what, (size, count) in _SIZES.items():
        data = serialization.to_bytes(leaves(size, count))
        sides = {name: functools.partial(read, data) for name, read in readers.items()}
        sides[PURE] = functools.partial(parted, data, count)
        yield Row("restore", f"msgpack_restore, {what}", "s", seconds(sides, _rounds(settings, size)), {"core": 1.5})
        del data, sides
        given = functools.partial(_written, size, count)
        peaks = {name: 1 + peak_ratio(given, functools.partial(_read, read), size) for name, read in readers.items()}
        title = f"memory of the bytes and the restored data, relative to the data, {what}"
        yield Row("restore", title, "times", peaks, {"core": 2.05, "core, copy=False": 1.05})


def _rounds(settings: Settings, size: int) -> int:
    """How often bytes of a size are written or read."""
    return max(3, settings.rounds * 10_000_000 // size)


def _of_peers(settings: Settings, ours: Mapping[str, Callable[..., Any]], name: str) -> dict[str, Callable[..., Any]]:
    if "flax" not in settings.peers:
        return dict(ours)
    from flax import serialization as peer

    return {**ours, "flax": getattr(peer, name)}


def _written(size: int, count: int) -> tuple[Any, bytes]:
    """A tree, and its bytes: the tree lives on, so that what is restored finds no place that was its own."""
    tree = leaves(size, count)
    return tree, serialization.to_bytes(tree)


def _read(read: Callable[[bytes], Any], given: tuple[Any, bytes]) -> Any:
    return read(given[1])


def _views(data: bytes) -> Any:
    return serialization.msgpack_restore(data, copy=False)

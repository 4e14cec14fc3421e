"""Measuring: the sides of a comparison run in turns in one process, so that what slows the machine slows them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["seconds"]

_SAMPLE = 2e-3
"""How many seconds one sample takes at least: a faster function is called several times for it."""


def seconds(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of one call of each side, in seconds.

    In each round every side runs once, each time another one first: the first finds the caches of the processor cold.

    Args:
        sides: functions without arguments.
        rounds: how many samples are taken of each.
    """
    names = list(sides)
    calls = {name: _calls(side) for name, side in sides.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    with _without_collection():
        for turn in range(rounds):
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                samples[name].append(_time(sides[name], calls[name]))
    return {name: statistics.median(times) for name, times in samples.items()}


def _time(side: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - begin) / calls


def _calls(side: Callable[[], object]) -> int:
    """How many calls make one sample; the first ones warm up."""
    side()
    return max(1, round(_SAMPLE / min(_time(side, 1) for _ in range(2))))


@contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

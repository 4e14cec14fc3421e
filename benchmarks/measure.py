"""Measuring: the sides of a comparison run in turns in one process, so that what slows the machine slows them all.

Peers run beside pure JAX in rounds of their own. Some take thirty times as long and leave the caches of the processor
empty, and what is told of us must not depend on which of them are installed.

Each round begins at another depth of the stack. CPython keeps frames in chunks of 16 kB, and gives the last chunk back
as soon as it is empty: a call that crosses the border takes some 10 µs more. At one depth a side would meet that border
where it calls little or where it calls most, by chance.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from .sides import PEERS, PURE

__all__ = ["first_seconds", "seconds", "without_collection"]

_FRAMES = 160
"""How many frames of `_deeper` fill a chunk, and a few more."""

_STRIDE = 67
"""How many frames further down a round begins than the one before: few rounds, too, are spread over a chunk."""

_ROUND = 0.15
"""How many seconds a round takes at least: of short calls there are more rounds, since these scatter most."""

_SAMPLE = 2e-3
"""How many seconds one sample takes at least: a faster function is called several times for it."""


def seconds(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of one call of each side, in seconds.

    In each round every side runs once, in a random order: each finds the caches of the processor as it was left by any
    of the others.

    Args:
        sides: functions without arguments.
        rounds: how many samples are taken of each, at least.
    """
    calls = {name: _calls(side) for name, side in sides.items()}
    return _apart(sides, lambda names: _medians(lambda: sides, {name: calls[name] for name in names}, rounds))


def first_seconds(makers: Mapping[str, Callable[[], Callable[[], object]]], rounds: int) -> dict[str, float]:
    """The median time of the first call of what each side makes: nothing that is kept with it was there before.

    All sides of a round are made before the first of them is called: making classes, which takes longer than most of
    these calls, leaves the caches cold for what comes after it.

    Args:
        makers: functions without arguments; each gives a new one, whose first call is timed.
        rounds: how many samples are taken of each, at least.
    """
    for make in makers.values():
        make()()

    def medians(names: Sequence[str]) -> dict[str, float]:
        return _medians(lambda: {name: makers[name]() for name in names}, dict.fromkeys(names, 1), rounds)

    return _apart(makers, medians)


def _apart(sides: Iterable[str], medians: Callable[[Sequence[str]], dict[str, float]]) -> dict[str, float]:
    """What is measured of some sides, by those that are peers and those that are not; it fits the first pure JAX."""
    peers = [name for name in sides if name in PEERS]
    found = medians([name for name in sides if name not in PEERS])
    if peers:
        beside = medians([PURE, *peers])
        found |= {name: beside[name] * found[PURE] / beside[PURE] for name in peers}
    return found


def _medians(
    sides_of_round: Callable[[], Mapping[str, Callable[[], object]]], calls: Mapping[str, int], rounds: int
) -> dict[str, float]:
    order = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with without_collection():
        for turn in _turns(rounds):
            sides = sides_of_round()
            for name in order.sample(list(calls), len(calls)):
                sampler = functools.partial(_time, sides[name], calls[name])
                samples[name].append(_deeper(sampler, turn * _STRIDE % _FRAMES))
    return {name: statistics.median(times) for name, times in samples.items()}


def _turns(rounds: int) -> Iterator[int]:
    """Count the rounds: as many as are asked for, and more while these would have taken longer."""
    end = time.perf_counter() + rounds * _ROUND
    for turn in itertools.count():
        if turn >= rounds and time.perf_counter() > end:
            return
        yield turn


def _deeper(sampler: Callable[[], float], frames: int) -> float:
    """What it returns, from as many frames further down the stack."""
    return sampler() if frames == 0 else _deeper(sampler, frames - 1)


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
def without_collection() -> Iterator[None]:
    """Collect garbage before the `with` block, and none within it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""Checkpoints on disk: how long a step of training is held up while one is saved."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np

from liftcore.checkpoints import Checkpoints, OrbaxCheckpoints

from ..memory import leaves
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["checkpointing"]

_SIZES = {"100 MB in 4 leaves": (100_000_000, 4), "100 MB in 400 leaves": (100_000_000, 400)}
_BACKGROUND = "core, OrbaxCheckpoints"


def checkpointing(settings: Settings) -> Iterator[Row]:
    """A save into a folder, and one in the background, against a copy of the arrays to the host."""
    for what, (size, count) in _SIZES.items():
        tree = leaves(size, count)
        with ExitStack() as stack:
            sides: dict[str, tuple[Callable[[int], object], Callable[[], object]]]
            sides = {PURE: (functools.partial(_copied, tree), _nothing)}
            folder = stack.enter_context(Checkpoints(_new_folder(stack), keep=1))
            sides["core, Checkpoints"] = _saves(folder, tree), _nothing
            if importlib.util.find_spec("orbax") is not None:
                background = stack.enter_context(OrbaxCheckpoints(_new_folder(stack), keep=1))
                sides[_BACKGROUND] = _saves(background, tree), background.wait
            values = _held_up(sides, max(3, settings.rounds // 4))
        targets = {_BACKGROUND: 1.0} if _BACKGROUND in values else {}
        yield Row("held_up", f"a step held up by a save, {what}", "s", values, targets)


def _new_folder(stack: ExitStack) -> str:
    return stack.enter_context(tempfile.TemporaryDirectory())


def _copied(tree: Any, step: int) -> Any:
    return jax.tree.map(np.array, tree)


def _nothing() -> None:
    """What is to be awaited of what runs in the foreground."""


def _saves(checkpoints: Any, tree: Any) -> Callable[[int], object]:
    return lambda step: checkpoints.save(step, tree)


def _held_up(sides: dict[str, tuple[Callable[[int], object], Callable[[], object]]], rounds: int) -> dict[str, float]:
    """The median time of a save; what goes on in the background is awaited after it, as a step of training would."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(rounds + 1):
        for name, (save, wait) in sides.items():
            begin = time.perf_counter()
            save(step)
            samples[name].append(time.perf_counter() - begin)
            wait()
    return {name: statistics.median(times[1:]) for name, times in samples.items()}  # the first one makes folders

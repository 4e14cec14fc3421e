"""Processes that write checkpoints and are killed: `python -m tests.checkpoints.writers kills FOLDER COUNT SEED`.

They are forked from one that has imported numpy and liftcore.checkpoints, and no layers, so that each costs a few
milliseconds. Prints what happened; anything that is wrong is an exception.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from liftcore.checkpoints import Checkpoints
from liftcore.errors import CheckpointInUseError

KEEP = 2


def tree_of(step: int) -> dict[str, Any]:
    """What is saved as a step, which it can be recognized by."""
    layers = {f"layer_{i}": {"kernel": np.full((32, 32), step + i / 8, np.float32)} for i in range(24)}
    return {"params": layers, "position": 32 * step, "stream": np.array([step, 7])}


def check(folder: Path) -> list[int]:
    """Restores every step that is there, and compares it with what was saved."""
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()
    for step in steps:
        restored = checkpoints.restore(tree_of(0), step)
        for name, layer in tree_of(step)["params"].items():
            np.testing.assert_array_equal(restored["params"][name]["kernel"], layer["kernel"])
        assert restored["position"] == 32 * step
    assert checkpoints.latest() == max(steps, default=None)
    return steps


@contextlib.contextmanager
def forked(fn: Callable[[], None]) -> Iterator[int]:
    """Another process that runs a function, and is killed in the end, if it is there still."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks: its threads are not there yet
        child = os.fork()
    if child == 0:
        try:
            fn()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def save_on(folder: Path) -> None:
    """Saves step after step."""
    checkpoints = Checkpoints(folder, KEEP)
    while True:
        step = (checkpoints.latest() or 0) + 1
        checkpoints.save(step, tree_of(step))


def kills(folder: Path, count: int, seed: int) -> None:
    """Kills so many writers at random moments, one after the other, and looks at what they leave."""
    chance, latest, interrupted = random.Random(seed), 0, 0
    for number in range(count):
        with forked(lambda: save_on(folder)):
            time.sleep(chance.uniform(0.005, 0.06))
            end = time.monotonic() + 60  # on a slow machine, the last writer gets the time to save its first step
            while number == count - 1 and not Checkpoints(folder).steps() and time.monotonic() < end:
                time.sleep(0.01)
        steps = check(folder)
        interrupted += bool(list(folder.glob(".*.tmp")))
        assert steps or not latest
        assert max(steps, default=0) >= latest
        latest = max(steps, default=0)
    with Checkpoints(folder, KEEP) as checkpoints:
        checkpoints.save(latest + 1, tree_of(latest + 1))
    assert check(folder)[-1] == latest + 1
    assert len(check(folder)) == KEEP
    assert sorted(os.listdir(folder)) == sorted([".lock", *(f"step-{step:09}.msgpack" for step in check(folder))])
    print(f"{latest} steps, {interrupted} interrupted")


def locks(folder: Path) -> None:
    """One writer at a time, and none after it was killed, also if a process that it made goes on."""
    read, write = os.pipe()

    def hold() -> None:
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, tree_of(1))
        if os.fork() == 0:
            in_use = False
            try:
                checkpoints.save(2, tree_of(2))  # it has the object, but is not the writer
            except CheckpointInUseError:
                in_use = True
            os.write(write, f"{os.getpid()} {in_use} ".encode())
        time.sleep(60)

    with forked(hold) as child:
        left, in_use = os.read(read, 100).decode().split()
        try:
            Checkpoints(folder).save(2, tree_of(2))
        except CheckpointInUseError as error:
            print(in_use, str(child) in str(error))
        assert check(folder) == [1]
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(2, tree_of(2))
    os.kill(int(left), signal.SIGKILL)
    print(check(folder))


if __name__ == "__main__":
    _, what, where, *numbers = sys.argv
    assert not [name for name in sys.modules if name.startswith(("liftcore.nn", "liftcore.lift", "linen_like"))]
    {"kills": kills, "locks": locks}[what](Path(where), *map(int, numbers))

"""The kinds of programs: each is one generator, with its reference and its way to make a program smaller.

To add a kind, write a function like `attempt` of the others, and give it a line in `KINDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax

from tests.fuzz import pytrees, runs, styles
from tests.fuzz.objects import runs as object_runs

__all__ = ["KINDS", "Kind", "Task", "attempt", "in_turn"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of programs.

    Attributes:
        attempt: runs the program of a seed: `attempt(seed, without, small)` with the features to leave out, and whether
            to look for a smaller program that fails too. It returns what is wrong, empty if nothing is, and the source.
        share: how many programs of each round are of this kind.
    """

    attempt: Callable[[int, frozenset[str], bool], tuple[str, str]]
    share: int = 1


KINDS: dict[str, Kind] = {
    "scopes": Kind(runs.attempt, 3),
    "objects": Kind(object_runs.attempt, 2),
    "pytrees": Kind(pytrees.attempt),
    "styles": Kind(styles.attempt),
}

Task = tuple[str, int, frozenset[str], bool]
"""A kind by name, and the arguments of its `attempt`."""


def in_turn(names: Sequence[str], seeds: Iterable[int]) -> list[tuple[str, int]]:
    """Each seed with the name of a kind, so that each kind gets its share of any number of programs."""
    round_ = [name for turn in range(max(kind.share for kind in KINDS.values())) for name in names if _has(name, turn)]
    return [(round_[number % len(round_)], seed) for number, seed in enumerate(seeds)]


def _has(name: str, turn: int) -> bool:
    return turn < KINDS[name].share


def attempt(task: Task) -> tuple[str, int, str, str]:
    """Runs one program, as a worker of a pool does: its kind, its seed, what is wrong, and its source."""
    name, seed, without, small = task
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if seed % 40 == 0:
        jax.clear_caches()
    return name, seed, *KINDS[name].attempt(seed, without, small)

"""One program after another, as a worker of a pool runs them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from tests.fuzz.compare import WAYS, Way, mismatches
from tests.fuzz.generate import Generator
from tests.fuzz.plain import IllegalError
from tests.fuzz.programs import Program
from tests.fuzz.pytrees import run
from tests.fuzz.shrink import shrink


def first_legal(generator: Generator, ways: Sequence[Way] = WAYS) -> tuple[Program, dict[Way, str]]:
    """A program that has a meaning, and how the library differs from it.

    Whether a loop or a branch keeps its types is known when it runs, and no sooner: rules cannot foresee it.
    """
    while True:
        program = generator.program()
        try:
            return program, mismatches(program, ways)
        except IllegalError:
            continue


def attempt(task: tuple[int, frozenset[str], bool]) -> tuple[int, str, str]:
    """Runs one program: its seed, what is wrong, and its source (or that of a smaller one that fails too)."""
    seed, without, small = task
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if seed % 40 == 0:
        jax.clear_caches()
    try:
        program, found = first_legal(Generator(seed, without))
    except Exception as error:  # a program with a meaning runs: this is a defect of the generator
        return seed, f"the plain run raises {type(error).__name__}: {error}", ""
    if found and small:
        program, found = smallest(program, found)
    return seed, "".join(f"\n  {way}: {text}" for way, text in found.items()), repr(program)


def attempt_pytrees(task: tuple[int, frozenset[str], bool]) -> tuple[int, str, str]:
    """Runs one program of pytree modules, as `attempt` does; it is not made smaller."""
    jax.config.update("jax_disable_most_optimizations", True)
    if task[0] % 40 == 0:
        jax.clear_caches()
    return task[0], run(task[0]) or "", ""


def _kind(text: str) -> str:
    """Which error a text of `mismatches` is about, and where it is raised; nothing for numbers that differ."""
    return f"{text.split(':')[0]} {text.split()[-1]}" if text.startswith("raises ") else ""


def smallest(program: Program, found: dict[Way, str]) -> tuple[Program, dict[Way, str]]:
    """A small program that fails in the same way, and how."""
    way, text = next(iter(found.items()))

    def fails(other: Program) -> bool:
        try:
            return any(_kind(each) == _kind(text) for each in mismatches(other, [way]).values())
        except Exception:
            return False

    program = shrink(program, fails)
    return program, mismatches(program)

"""One program after another, as a worker of a pool runs them."""

from __future__ import annotations

import jax

from tests.fuzz.compare import mismatches
from tests.fuzz.generate import Generator
from tests.fuzz.plain import IllegalError
from tests.fuzz.programs import Program
from tests.fuzz.shrink import shrink


def failing(program: Program) -> str:
    """What is wrong with a program: the first difference, nothing, or "illegal"."""
    try:
        found = mismatches(program)
    except IllegalError as error:
        return f"illegal: {error}"
    return "\n  ".join(found)


def attempt(task: tuple[int, frozenset[str], bool]) -> tuple[int, str, str]:
    """Runs one program: its seed, what is wrong, and a small program of which something is."""
    seed, without, small = task
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if seed % 40 == 0:
        jax.clear_caches()
    program = Generator(seed, without).program()
    try:
        found = failing(program)
        if found and not found.startswith("illegal") and small:

            def same(other: Program) -> bool:
                now = failing(other)
                return bool(now) and not now.startswith("illegal")

            program = shrink(program, same)
            found = failing(program)
    except Exception as error:
        found = f"the plain run raises {type(error).__name__}: {error}"
    return seed, found, repr(program)

"""One program after another, as a worker of a pool runs them."""

from __future__ import annotations

import jax

from tests.fuzz.compare import Way, mismatches
from tests.fuzz.generate import Generator
from tests.fuzz.plain import IllegalError
from tests.fuzz.programs import Program
from tests.fuzz.shrink import shrink


def attempt(task: tuple[int, frozenset[str], bool]) -> tuple[int, str, str]:
    """Runs one program: its seed, what is wrong, and its source (or that of a smaller one that fails too)."""
    seed, without, small = task
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if seed % 40 == 0:
        jax.clear_caches()
    program = Generator(seed, without).program()
    try:
        found = mismatches(program)
        if found and small:
            program, found = smallest(program, found)
    except IllegalError as error:
        return seed, f"illegal: {error}", repr(program)
    except Exception as error:  # a program with a meaning runs: this is a defect of the generator
        return seed, f"the plain run raises {type(error).__name__}: {error}", repr(program)
    for limit in ("`map_out` is given all mapped", "its initializer makes shape"):
        if any(limit in text for text in found.values()):  # an error that the rules of the generator do not foresee
            return seed, f"illegal: {limit}", repr(program)
    return seed, "".join(f"\n  {way}: {text}" for way, text in found.items()), repr(program)


def smallest(program: Program, found: dict[Way, str]) -> tuple[Program, dict[Way, str]]:
    """A small program that fails in the same way, and how."""
    way = next(iter(found))

    def fails(other: Program) -> bool:
        try:
            return bool(mismatches(other, [way]))
        except Exception:
            return False

    program = shrink(program, fails)
    return program, mismatches(program)

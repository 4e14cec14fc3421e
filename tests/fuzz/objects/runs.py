"""One program over objects, and a smaller one that fails as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.objects.compare import differences
from tests.fuzz.objects.programs import Body, Generator, Lift, Program

__all__ = ["attempt"]


def attempt(seed: int, without: frozenset[str], small: bool) -> tuple[str, str]:
    """Runs the program of a seed: what is wrong, and the source of it, or of a smaller one that fails too."""
    program = Generator(seed).program()
    found = _wrong(program)
    if found and small:
        program = shrunk(program, lambda other: _sort(_wrong(other)) == _sort(found))
        found = _wrong(program)
    return found and f"\n  {found}", repr(program)


def _wrong(program: Program) -> str:
    try:
        return differences(program) or ""
    except Exception as error:  # a defect of the generator, or an error where a program is made or compared
        return f"the run ends with {type(error).__name__}: {error}"


def _sort(found: str) -> str:
    """What must stay while a program gets smaller: which part differs, or which error there is."""
    return found.removeprefix("call ").lstrip("0123456789: ").partition(" ")[0].partition("(")[0]


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int = 120) -> Program:
    """A program with fewer statements, lifts and calls that fails still."""
    progress = True
    while progress:
        progress = False
        for each in smaller(program):
            if tries and len(repr(each)) < len(repr(program)):
                tries -= 1
                if fails(each):
                    program, progress = each, True
                    break
    return program


def smaller(value: Any) -> Iterator[Any]:
    """Plain data with less in one place."""
    yield from _without_a_part(value)
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from ((*value[:i], each, *value[i + 1 :]) for each in smaller(item))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            for each in smaller(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: each})


def _without_a_part(value: Any) -> Iterator[Any]:
    """One statement or call less, a lift in place of the one around it, or `jit` in place of another lift."""
    if isinstance(value, Program):
        inner = [step for step in value.lift.bodies[0].steps if isinstance(step, Lift)]
        yield from (dataclasses.replace(value, lift=step) for step in inner)
        for i in reversed(range(1, len(value.between))):
            yield dataclasses.replace(value, between=value.between[:i] + value.between[i + 1 :])
    elif isinstance(value, Lift) and value.name not in ("jit", "cond", "switch"):
        yield dataclasses.replace(value, name="jit")
    elif isinstance(value, Body):
        for i in reversed(range(len(value.steps))):
            yield dataclasses.replace(value, steps=value.steps[:i] + value.steps[i + 1 :])

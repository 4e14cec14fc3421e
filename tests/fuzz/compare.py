"""Runs a program on liftcore in several ways, and compares each with what it means."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from tests.fuzz import lifted
from tests.fuzz.plain import Path, World, run_plain
from tests.fuzz.programs import INPUTS, Program, run
from tests.lift.plain import nested
from tests.lift.quick import key

COLLECTIONS = ("params", "consts", "state", "cache", "intermediates")
MUTABLE = ("state", "cache", "intermediates")


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to run a program.

    Attributes:
        act: "init", "apply", or "fresh" (an apply that makes what is mutable).
        mutable: the collections that may be written.
        jit: whether all is one `jax.jit`.
        disabled: whether it runs under `jax.disable_jit`.
    """

    act: str
    mutable: tuple[str, ...]
    jit: bool = False
    disabled: bool = False


WAYS = (
    Way("init", COLLECTIONS),
    Way("init", COLLECTIONS, jit=True),
    Way("init", COLLECTIONS, disabled=True),
    Way("apply", MUTABLE),
    Way("apply", MUTABLE, jit=True),
    Way("apply", MUTABLE, disabled=True),
    Way("apply", ()),
    Way("apply", (), disabled=True),
    Way("apply", ("cache",), jit=True),
    Way("fresh", MUTABLE, jit=True),
)


def rngs(first: int) -> dict[str, Any]:
    return {name: key(first + number) for number, name in enumerate(("params", "dropout", "noise"))}


def mismatches(program: Program, ways: Iterable[Way] = WAYS) -> dict[Way, str]:
    """What differs, by way.

    Raises:
        IllegalError: where the program has no meaning.
    """
    found, expected = {}, meanings(program, {(way.act, way.mutable) for way in ways})
    for way in ways:
        difference = against(program, way, *expected[way.act, way.mutable])
        if difference:
            found[way] = difference
    return found


Meaning = tuple[dict[Path, Any], tuple[Any, dict[Path, Any], World]]
"""The variables that a run is given; its result, the variables after it, and the world."""


def meanings(
    program: Program, acts: Iterable[tuple[str, tuple[str, ...]]]
) -> dict[tuple[str, tuple[str, ...]], Meaning]:
    """What a program means, by act and mutable collections.

    Raises:
        IllegalError: where it has no meaning.
    """
    x = INPUTS[program.input]()
    made = run_plain(program.body, {}, rngs(0), COLLECTIONS, x)
    held = {path: value for path, value in made[1].items() if path[0] != "intermediates"}
    found: dict[tuple[str, tuple[str, ...]], Meaning] = {("init", COLLECTIONS): ({}, made)}
    for act, mutable in acts:
        if act != "init":
            given = {path: value for path, value in held.items() if act == "apply" or path[0] not in MUTABLE}
            found[act, mutable] = given, run_plain(program.body, given, rngs(7), mutable, x)
    return found


def against(program: Program, way: Way, given: dict[Path, Any], expected: tuple[Any, dict[Path, Any], World]) -> str:
    """How a run on liftcore differs from what is expected."""
    (result, variables, world), x = expected, INPUTS[program.input]()

    def model(scope: Any, x: Any) -> Any:
        return run(program.body, scope, {"x": x}, lifted.caller())[0]

    def init(x: Any) -> Any:
        return liftcore.init(model)(rngs(0), x)

    def apply(variables: Any, x: Any) -> Any:
        found = liftcore.apply(model, mutable=list(way.mutable) if way.mutable else False)(variables, x, rngs=rngs(7))
        return found if way.mutable else (found, {})

    fn, args = (init, (x,)) if way.act == "init" else (apply, (nested(given), x))
    try:
        with jax.disable_jit() if way.disabled else contextlib.nullcontext():
            ours, after = (jax.jit(fn) if way.jit else fn)(*args)
    except Exception as error:
        return f"raises {type(error).__name__}: {last_line(error)}"
    tolerance = 5e-2 if "bfloat16" in repr(program) else 1e-4
    strict = not world.loose
    kept = {path: value for path, value in variables.items() if path[0] in way.mutable}
    if (
        way.act == "apply"
    ):  # whether a `FrozenDict` that is given holds modules or is a value is known to the body alone
        kept, after = {path: thawed(value) for path, value in kept.items()}, thawed(after)
    return difference("result", ours, result, tolerance, strict) or in_variables(after, kept, tolerance, strict)


def thawed(value: Any) -> Any:
    """Variables with dicts in the place of `FrozenDict`s."""
    return {name: thawed(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def last_line(error: Exception) -> str:
    """The text of an error, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{' '.join(str(error).split())[:600]} ({frame.filename.split('/')[-1]}:{frame.lineno})"


def in_variables(ours: Any, expected: Mapping[Path, Any], tolerance: float, strict: bool, at: Path = ()) -> str:
    """How variables differ; a scope that holds nothing is as good as none."""
    for name, value in sorted(ours.items()):
        path = (*at, name)
        if path in expected:
            continue
        if not isinstance(value, Mapping):
            return f"{path} was not expected: {value!r}"
        found = in_variables(value, expected, tolerance, strict, path)
        if found:
            return found
    here = {path: value for path, value in expected.items() if path[:-1] == at}
    for path in {path[: len(at) + 1] for path in expected if path[: len(at)] == at}:
        if path[-1] not in ours:
            return f"{path} is missing"
    for path, value in here.items():
        found = difference("/".join(path), ours[path[-1]], value, tolerance, strict)
        if found:
            return found
    return ""


def difference(name: str, ours: Any, expected: Any, tolerance: float, strict: bool) -> str:
    """How two pytrees differ: in structure, types, weak types (if `strict`) or numbers."""
    if jax.tree.structure(ours) != jax.tree.structure(expected):
        return f"{name} is {jax.tree.structure(ours)}, expected {jax.tree.structure(expected)}"
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        one, two = jax.typeof(mine), jax.typeof(other)
        if (one.shape, one.dtype) != (two.shape, two.dtype) or (strict and one.weak_type != two.weak_type):
            return f"{name} is {one.str_short()}{'~' * one.weak_type}, expected {two.str_short()}{'~' * two.weak_type}"
        given, wanted = (np.asarray(jnp.asarray(leaf), np.float64) for leaf in (mine, other))
        if not np.allclose(given, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{name} is {given}, expected {wanted}"
    return ""

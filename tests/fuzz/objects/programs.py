"""Random programs over object graphs: what they are, and how one is made of a seed.

A step names what it acts on by a number, which picks among what can be reached when it runs: so each step fits each
graph, and the same program runs on objects of `nnx_like` and on plain ones.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

__all__ = ["PREFIXES", "SIZE", "STATICS", "Body", "Boom", "Generator", "Lift", "Program", "Step", "axis_of"]

SIZE = 2
MIXED = 0.25
"""The length of each axis, and of each loop."""

STATICS = (1, True, 1.0, "a", None, (1, "b"), 0, False, 2, (1, ("b",)), (True, "b"), len, int)

PREFIXES = ("zero", "none", "params", "last", "first")
"""Axes of objects by kind, see `axis_of`."""


class Boom(Exception):
    """What a body raises."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One statement: what it does, and the numbers that pick what to."""

    kind: str
    a: int
    b: int
    c: int


@dataclasses.dataclass(frozen=True)
class Body:
    """A function: its statements, and what it returns, as kinds and picks."""

    steps: tuple[Any, ...]
    result: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Lift:
    """A call under a transformation.

    Args:
        name: the transformation.
        args: kinds and picks of the arguments.
        prefix: one of `PREFIXES` for each argument, and one for the result.
        bodies: the function, or the branches.
        pick: chooses the branch.
        catches: whether `Boom` is caught around the call.
    """

    name: str
    args: tuple[tuple[str, int], ...]
    prefix: tuple[str, ...]
    bodies: tuple[Body, ...]
    pick: int = 0
    catches: bool = False


@dataclasses.dataclass(frozen=True)
class Program:
    """A lift that is called several times on a graph, and what is done to the graph in between."""

    model: int
    lift: Lift
    between: tuple[tuple[Step, ...], ...] = ((),)


def axis_of(prefix: str, kind: str) -> Any:
    """The axis of a variable, or of an array that is an attribute, by the name of its kind."""
    if prefix == "mixed" and kind not in ("", "Param"):
        return "carry"
    if prefix == "none" or (kind in ("RngKey", "RngCount") and prefix != "whole"):
        return None
    if prefix == "params":
        return 0 if kind == "Param" else None
    if prefix == "first":
        return 1 if kind == "Param" else 0
    return -1 if prefix == "last" else 0


# --- making programs

_STEPS = {
    "write": 8,
    "write_array": 3,
    "read": 5,
    "draw": 2,
    "add": 3,
    "add_node": 2,
    "add_array": 1,
    "delete": 2,
    "tie": 3,
    "untie": 1,
    "swap": 2,
    "append": 2,
    "pop": 1,
    "put": 1,
    "take": 1,
    "share": 1,
    "static": 2,
    "metadata": 2,
    "tree": 1,
    "renew": 1,
    "raise": 0.25,
}
_STILL = {
    "write": 8,
    "write_array": 3,
    "read": 4,
    "draw": 2,
    "tree": 1,
    "renew": 1,
    "raise": 0.2,
    "swap": 0.15,
    "add": 0.1,
}
_OUTSIDE = {**_STEPS, "vars": 4, "inner": 3, "raise": 0, "draw": 1}
_LIFTS = {
    "jit": 4,
    "vmap": 3,
    "scan": 3,
    "remat": 1.5,
    "cond": 2,
    "switch": 0.7,
    "fori": 1.5,
    "while": 1,
    "grad": 2,
    "checkify": 0.7,
    "named_call": 0.7,
    "split_vmap": 1.5,
    "eval_shape": 0.3,
}
_STEADY = ("fori", "while", "scan")


class Generator:
    """Makes programs of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.differentiated = 0

    def program(self) -> Program:
        lift = self.lift(self.random.choice((1, 1, 2, 2, 3)), False)
        calls = self.random.choice((1, 2, 2, 3))
        between = [self.steps(_OUTSIDE, self.random.choice((0, 1, 1, 2))) for _ in range(calls - 1)]
        return Program(self.number(), lift, ((), *between))

    def number(self) -> int:
        return self.random.randrange(1000)

    def chosen(self, weights: dict[str, float]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def steps(self, weights: dict[str, float], count: int) -> tuple[Step, ...]:
        return tuple([Step(self.chosen(weights), *[self.number() for _ in range(3)]) for _ in range(count)])

    def lift(self, depth: int, steady: bool) -> Lift:
        name = self.chosen(_LIFTS)
        if name == "while" and self.differentiated:
            name = "fori"
        self.differentiated += name == "grad"
        steady = steady or name in _STEADY
        args = [
            self.chosen({"node": 6, "var": 1, "pair": 1, "dict": 0.5}) for _ in range(self.random.choice((1, 1, 2)))
        ]
        args = args + ["array"] * self.random.choice((0, 1))
        mostly = self.chosen({"zero": 5, "none": 0.7, "params": 1.5, "last": 0.7, "first": 0.7})
        mostly = "mixed" if name == "scan" and self.random.random() < MIXED else mostly
        prefix = [mostly if self.random.random() < 0.9 else self.random.choice(PREFIXES) for _ in args]
        bodies = [self.body(depth, steady)]
        if name in ("cond", "switch"):
            bodies += [self.other(bodies[0], depth, steady) for _ in range(1 if name == "cond" else 2)]
        picks = tuple([(kind, self.number()) for kind in args])
        self.differentiated -= name == "grad"
        return Lift(name, picks, (*prefix, mostly), tuple(bodies), self.number(), self.random.random() < 0.3)

    def other(self, body: Body, depth: int, steady: bool) -> Body:
        """A branch beside another one: mostly one that does the same to the structure."""
        if self.random.random() < 0.15:
            return self.body(depth, steady)
        steps = [
            dataclasses.replace(step, c=self.number()) if isinstance(step, Step) and step.kind == "write" else step
            for step in body.steps
            if not (isinstance(step, Step) and step.kind == "write" and self.random.random() < 0.3)
        ]
        return Body(tuple(steps), body.result)

    def body(self, depth: int, steady: bool) -> Body:
        weights = _STILL if steady else _STEPS
        steps: list[Any] = list(self.steps(weights, self.random.choice((1, 2, 3, 4))))
        for _ in range(0 if depth == 1 else self.random.choice((1, 1, 2))):
            steps.insert(self.random.randrange(len(steps) + 1), self.lift(depth - 1, steady))
        kinds = {"scalar": 4, "node": 1.5, "var": 0.7, "new": 1, "list": 0.4, "none": 0.3}
        results = [(self.chosen(kinds), self.number()) for _ in range(self.random.choice((1, 1, 2)))]
        return Body(tuple(steps), tuple(results))

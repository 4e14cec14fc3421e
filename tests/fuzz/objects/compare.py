"""A program run on both kinds of objects, and what differs."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import jax
import numpy as np

from liftcore.errors import LiftError, LoopInvarianceError
from tests.fuzz.objects.bodies import Run, World, is_array, is_key, ordered, parts_of
from tests.fuzz.objects.lifted import lifted_world, model
from tests.fuzz.objects.plain import Expected, plain_of
from tests.fuzz.objects.plain_lifts import plain_world
from tests.fuzz.objects.programs import Boom, Lift, Program

__all__ = ["Outcome", "canonical", "differences"]


@dataclasses.dataclass
class Outcome:
    """What became of one call: None or the error, and all that can be seen afterwards."""

    error: Any
    before: tuple[Any, list[Any]]
    orders: list[Any]
    seen: Any
    values: list[Any]

    def unchanged(self) -> bool:
        """Whether all is as before the call."""
        seen, values = self.before
        pairs = zip(self.values, values, strict=False)
        return self.seen == seen and all(np.array_equal(a, b) or a.dtype == np.uint32 for a, b in pairs)


def canonical(world: World, originals: list[Any], value: Any) -> tuple[Any, list[Any]]:
    """The structure of a value, with objects by where they come from, and its arrays."""
    places = {id(one): number for number, one in enumerate(originals)}
    seen: dict[int, int] = {}
    arrays: list[Any] = []

    def visit(one: Any) -> Any:
        if is_array(one):
            arrays.append(jax.random.key_data(one) if is_key(one) else one)
            return "array", "key" if is_key(one) else str(one.dtype), one.shape
        if type(one) is tuple:
            return tuple, [visit(each) for each in one]
        if not isinstance(one, (world.variable, world.module, list, dict)):
            return type(one), one
        if id(one) in seen:
            return "again", seen[id(one)]
        seen[id(one)] = len(seen)
        name, was = type(one).__name__, places.get(id(one))
        if isinstance(one, (list, dict)):
            names = ordered(one) if isinstance(one, dict) else range(len(one))
            return name, was, [(key, visit(one[key])) for key in names]
        if isinstance(one, world.variable):
            metadata = [(k, type(v), v) for k, v in sorted(one.get_metadata().items())]
            return name, was, metadata, held(one.get_value())
        return name, was, [(key, visit(vars(one)[key])) for key in sorted(vars(one))]

    def held(one: Any) -> Any:
        if type(one) in (list, tuple, dict):
            names = sorted(one) if type(one) is dict else range(len(one))
            return type(one), [(name, held(one[name])) for name in names]
        return visit(one)

    return visit(value), arrays


class Side:
    """One of the two kinds of objects, while a program runs."""

    def __init__(self, world: World, root: Any) -> None:
        self.world, self.root = world, root
        self.originals = list(world.found(root))
        self.run = Run(world, [root], ())

    def prepare(self, program: Program) -> None:
        self.function = self.run.built(program.lift)

    def call(self, program: Program, steps: Any) -> Outcome:
        self.run.args, self.run.numbers = [self.root], []
        self.run.run(steps)
        self.originals = list(self.world.found(self.root))
        self.world.runs.clear()
        args = self.run.arguments(program.lift)
        before = canonical(self.world, self.originals, [self.root, None])
        orders = _orders(self.root, self.world)
        error, result = None, None
        try:
            result = self.function(*args)
        except Exception as raised:
            error = raised
        return Outcome(error, before, orders, *canonical(self.world, self.originals, [self.root, result]))


def differences(program: Program) -> str | None:
    """What differs between the two runs of a program; None where nothing does."""
    made = model(program.model)
    ours, plain = Side(lifted_world(), made), Side(plain_world(), plain_of(made, {}))
    ours.prepare(program)
    plain.prepare(program)
    met: list[Any] = []
    for number, steps in enumerate(program.between):
        one = ours.call(program, steps)
        two = plain.call(program, steps)
        counted[kind_of(two.error)] += 1
        found = _compared(program, one, two)
        if found:
            return f"call {number}: {found}"
        if one.error is not None or two.error is not None:
            plain = Side(plain_world(), plain_of(made, {}))
            plain.prepare(program)
        else:
            most = 2 if has(program.lift, "scan") else 1  # a body that writes what iterations share is traced again
            state = one.before[0], one.orders
            known = program.lift.name == "jit" and state in met
            times = [*Counter(ours.world.runs).values()]
            if any(count > (0 if known else most) for count in times):
                return f"call {number}: bodies ran {times} times"
            met.append(state)
    return None


counted: Counter[str] = Counter()


def kind_of(error: Any) -> str:
    return "fine" if error is None else f"{type(error).__name__} {error if isinstance(error, Expected) else ''}"


def _compared(program: Program, ours: Outcome, plain: Outcome) -> str | None:
    one, two = ours.error, plain.error
    if one is not None and not ours.unchanged():
        return f"{one!r} left {_first(ours.seen, ours.before[0])}"
    if _is_told_otherwise(program.lift, one, two):
        return None
    if isinstance(two, Expected):
        return None if isinstance(one, LiftError) else f"{one!r} instead of {two!r}"
    if one is not None or two is not None:
        return None if isinstance(one, Boom) and isinstance(two, Boom) else f"{one!r} instead of {two!r}"
    if ours.seen != plain.seen:
        return f"structure {_first(ours.seen, plain.seen)}"
    for number, (a, b) in enumerate(zip(ours.values, plain.values, strict=True)):
        if not np.allclose(a, b, rtol=1e-4, atol=1e-5):
            return f"value {number}: {a} instead of {b}"
    return None


def _is_told_otherwise(lift: Lift, one: Any, two: Any) -> bool:
    """Whether an error is not what the plain run can tell."""
    if isinstance(two, Expected) and str(two) == "perhaps":
        return True
    if has(lift, "cond", "switch"):  # branches are traced in another order, and what they give depends on the choice
        if isinstance(one, (Boom, LiftError)) and isinstance(two, (Boom, Expected)):
            return True
        if isinstance(one, LoopInvarianceError):
            return True
    # What happens to be the same in all iterations may depend on what they carry.
    wording = "reads it|depends on|differs between iterations"
    return isinstance(one, LoopInvarianceError) and has(lift, "scan") and bool(re.search(wording, str(one)))


def has(lift: Lift, *names: str) -> bool:
    """Whether a lift is, or has in it, one of these transformations."""
    steps = [step for body in lift.bodies for step in body.steps if isinstance(step, Lift)]
    return lift.name in names or any(has(step, *names) for step in steps)


def _first(one: Any, two: Any, path: str = "") -> str:
    """The first place where two structures differ."""
    if type(one) is type(two) and type(one) in (tuple, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        found = [_first(a, b, f"{path}/{a[0] if type(a) is tuple and a else n}") for n, (a, b) in pairs]
        return next((text for text in found if text), "")
    return "" if one == two else f"{path}: {one} instead of {two}"


def _orders(root: Any, world: World) -> list[Any]:
    """The order of attributes, and of what is in dicts, which are a part of a structure."""
    found: list[Any] = []

    seen: list[Any] = []

    def visit(value: Any) -> None:
        if not isinstance(value, (list, tuple, dict)) or any(value is one for one in seen):
            return
        seen.append(value)
        if isinstance(value, dict):
            found.append(list(value))
        for below in parts_of(value, world):
            visit(below)

    for one in world.found(root):
        if isinstance(one, world.module):
            found.append(list(vars(one)))
            visit(list(vars(one).values()))
    return found

"""Small programs over a scope, made by hypothesis: each runs lifted, and in plain Python.

A program is a tuple of statements; its `Meaning` is a body `(scope, x) -> x`. The `way` says which: "lifted" takes the
transformations of liftcore, "plain" the loops that must give the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from tests.lift.quick import uniform
from tests.lift.table import TABLE

MUTABLE = ("state", "counter", "intermediates")
"""What `apply` may be asked to give back."""


@dataclasses.dataclass(frozen=True)
class Param:
    """A parameter."""

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        return x * scope.param(name, uniform, (3,)) + 0.1


@dataclasses.dataclass(frozen=True)
class Const:
    """A variable that is never written."""

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        return x + scope.variable("consts", name, lambda: jnp.arange(3.0)).value


@dataclasses.dataclass(frozen=True)
class State:
    """A variable that is written where it may be.

    Attributes:
        source: what its initial value is made of.
    """

    source: str

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "nothing": lambda: jnp.zeros(3),
            "input": lambda: 0.5 * x,
            "params": lambda: uniform(scope.make_rng("params")),
            "dropout": lambda: uniform(scope.make_rng("dropout")),
        }
        state = scope.variable("state", name, makers[self.source])
        if scope.is_mutable_collection("state"):
            state.value = 0.5 * state.value + jnp.tanh(x)
        return x + state.value


@dataclasses.dataclass(frozen=True)
class Count:
    """A number that goes up."""

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        count = scope.variable("counter", name, lambda: jnp.zeros(()))
        if scope.is_mutable_collection("counter"):
            count.value += 1
        return x * jnp.cos(count.value)


@dataclasses.dataclass(frozen=True)
class Peek:
    """A look at what may be there, made by statements before this one or not."""

    collection: str

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        there = [f"v{index}" for index in range(int(name[1:]) + 2)]
        found = [scope.get_variable(self.collection, one) for one in there if scope.has_variable(self.collection, one)]
        return x + len(found) + sum(jnp.sum(value) for value in found) + scope.is_initializing()


@dataclasses.dataclass(frozen=True)
class Draw:
    """A draw, with its key for all to see."""

    sequence: str

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        key = scope.make_rng(self.sequence)
        scope.sow("intermediates", f"{name}_key", jax.random.key_data(key))
        return x + 0.1 * uniform(key)


@dataclasses.dataclass(frozen=True)
class Sow:
    """A captured value."""

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        scope.sow("intermediates", name, x)
        return x


@dataclasses.dataclass(frozen=True)
class Child:
    """Statements in a scope below, run once or twice over the same variables."""

    body: tuple[Any, ...]
    twice: bool

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        fn = scope.child(Meaning(self.body, way), f"child_{name}")
        return fn(fn(x)) if self.twice else fn(x)


@dataclasses.dataclass(frozen=True)
class Lift:
    """Statements under a transformation, in one scope below or in two that are equal but for their names."""

    row: str
    body: tuple[Any, ...]
    places: int = 1

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        for place in range(self.places):
            x = getattr(TABLE[self.row], way)(Meaning(self.body, way))(scope.push(f"lift{place}_{name}"), x)
        return x


@dataclasses.dataclass(frozen=True)
class Meaning:
    """The body that a program stands for: equal ones are equal functions, so that a lifted `jit` shares their traces.

    Attributes:
        program: the statements.
        way: "lifted" or "plain".
    """

    program: tuple[Any, ...]
    way: str

    def __call__(self, scope: Any, x: Any) -> Any:
        for index, statement in enumerate(self.program):
            name = f"v{index}"
            nested = isinstance(statement, Child | Lift)
            x = jnp.tanh(statement.run(self.way, scope, x, name) if nested else statement(scope, x, name))
        return x


SIMPLE = (
    Param(),
    Const(),
    *map(State, ("nothing", "input", "params", "dropout")),
    Count(),
    *map(Peek, ("params", "consts", "state", "counter")),
    *map(Draw, ("params", "dropout", "noise")),
    Sow(),
)


def programs(rows: tuple[str, ...] = tuple(TABLE), depth: int = 2, size: int = 4) -> st.SearchStrategy[Any]:
    """Programs with a lift in them, and `size` statements at each level, one of which holds the next level."""
    simple = st.lists(st.sampled_from(SIMPLE), min_size=size - 1, max_size=size - 1)

    def around(statement: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
        parts = st.tuples(simple, statement, st.integers(0, size - 1))
        return parts.map(lambda parts: (*parts[0][: parts[2]], parts[1], *parts[0][parts[2] :]))

    def lift(depth: int) -> st.SearchStrategy[Lift]:
        return st.builds(Lift, st.sampled_from(rows), body(depth - 1), st.sampled_from([1, 1, 2]))

    def body(depth: int) -> st.SearchStrategy[tuple[Any, ...]]:
        if not depth:
            return st.lists(st.sampled_from(SIMPLE), min_size=size, max_size=size).map(tuple)
        return around(lift(depth) | st.builds(Child, body(depth - 1), st.booleans()))

    return around(lift(depth))

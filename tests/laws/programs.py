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

import liftcore
from tests.lift.quick import uniform
from tests.lift.rows.row import REVERSE, SOWN
from tests.lift.table import TABLE, fitting

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
    shown: bool = True

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        key = scope.make_rng(self.sequence)
        if self.shown:
            scope.sow("intermediates", f"{name}_key", jax.random.key_data(key))
        return x + 0.1 * uniform(key)


@dataclasses.dataclass(frozen=True)
class Sow:
    """A captured value."""

    def __call__(self, scope: Any, x: Any, name: str) -> Any:
        scope.sow("intermediates", name, x)
        return x


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A product of all that stands before, whose operator reads a parameter."""

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        scope.param(name, uniform, (3,))

        def combine(scope: Any, one: Any, other: Any) -> Any:
            return one * other * scope.get_variable("params", name)

        elems = jnp.stack([x, jnp.cos(x), x + 0.5])
        if way == "lifted":
            return liftcore.associative_scan(combine)(scope, elems).sum(0)
        first = combine(scope, elems[0], elems[1])
        return elems[0] + first + combine(scope, first, elems[2])


@dataclasses.dataclass(frozen=True)
class Scale:
    """A layer in a form of its own: with a rule for what is mapped, or as a pure function of its variables.

    Attributes:
        form: "custom_vmap" or "purify".
    """

    form: str

    @property
    def refuses(self) -> frozenset[str]:
        return REVERSE if self.form == "custom_vmap" else frozenset()

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        def layer(scope: Any, x: Any) -> Any:
            return x * scope.param(name, uniform, (3,))

        if way == "plain":
            return layer(scope, x)
        if self.form == "purify":
            pure, variables = liftcore.purify(layer, scope, x)
            return pure(variables, x)
        mapped = liftcore.custom_vmap(layer)

        @mapped.def_vmap
        def rule(size: int, in_batched: Any, scope: Any, x: Any) -> Any:
            # A forward derivative may call it with the batched tangents of values that are not batched themselves.
            batched_variables, batched_x = in_batched
            return x * scope.get_variable("params", name), batched_x or batched_variables["params"][name]

        return mapped(scope, x)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Statements of which only the shape of the result is asked: they may make what they need, and nothing stays."""

    body: tuple[Any, ...]

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        below = scope.push(f"shape_{name}")
        if way == "plain" or not scope.is_initializing():
            return x + 3
        (length,) = liftcore.eval_shape(Meaning(self.body, way))(below, x).shape
        return x + length


@dataclasses.dataclass(frozen=True)
class Child:
    """Statements in a scope below, run once or twice over the same variables."""

    body: tuple[Any, ...]
    twice: bool

    @property
    def refuses(self) -> frozenset[str]:
        return refusals(self.body)

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        fn = scope.child(Meaning(self.body, way), f"child_{name}")
        return fn(fn(x)) if self.twice else fn(x)


@dataclasses.dataclass(frozen=True)
class Lift:
    """Statements under a transformation, in one scope below or in two that are equal but for their names."""

    row: str
    body: tuple[Any, ...]
    places: int = 1

    def __post_init__(self) -> None:
        if SOWN & TABLE[self.row].refuses:
            object.__setattr__(self, "body", silent(self.body))

    def run(self, way: str, scope: Any, x: Any, name: str) -> Any:
        for place in range(self.places):
            x = getattr(TABLE[self.row], way)(Meaning(self.body, way))(scope.push(f"lift{place}_{name}"), x)
        return x

    @property
    def refuses(self) -> frozenset[str]:
        return TABLE[self.row].refuses | refusals(self.body)


def refusals(program: tuple[Any, ...]) -> frozenset[str]:
    """What the rows in a program refuse, all in all."""
    found = (statement.refuses for statement in program if hasattr(statement, "refuses"))
    return frozenset().union(*found)


def silent(program: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same statements, with nothing sown."""

    def changed(statement: Any) -> Any:
        if isinstance(statement, Child | Lift | Shape):
            return dataclasses.replace(statement, body=silent(statement.body))
        return dataclasses.replace(statement, shown=False) if isinstance(statement, Draw) else statement

    return tuple(changed(statement) for statement in program if not isinstance(statement, Sow))


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
            both = hasattr(statement, "run")
            x = jnp.tanh(statement.run(self.way, scope, x, name) if both else statement(scope, x, name))
        return x


SIMPLE = (
    Param(),
    Const(),
    *map(State, ("nothing", "input", "params", "dropout")),
    Count(),
    *map(Peek, ("params", "consts", "state", "counter")),
    *map(Draw, ("params", "dropout", "noise")),
    Sow(),
    Prefix(),
    *map(Scale, ("custom_vmap", "purify")),
)


def programs(
    rows: tuple[str, ...] = tuple(TABLE), depth: int = 2, size: int = 4, needs: frozenset[str] = frozenset()
) -> st.SearchStrategy[Any]:
    """Programs with a lift in them, and `size` statements at each level, one of which holds the next level.

    Args:
        rows: the transformations to choose from.
        depth: how many levels there are.
        size: how many statements at each.
        needs: what is asked of all statements.
    """

    def simple(length: int, needs: frozenset[str]) -> st.SearchStrategy[list[Any]]:
        fits = [statement for statement in SIMPLE if not refusals((statement,)) & needs]
        return st.lists(st.sampled_from(fits), min_size=length, max_size=length)

    def around(statement: st.SearchStrategy[Any], needs: frozenset[str]) -> st.SearchStrategy[tuple[Any, ...]]:
        parts = st.tuples(simple(size - 1, needs), statement, st.integers(0, size - 1))
        return parts.map(lambda parts: (*parts[0][: parts[2]], parts[1], *parts[0][parts[2] :]))

    def lift(depth: int, needs: frozenset[str]) -> st.SearchStrategy[Any]:
        def under(row: str) -> st.SearchStrategy[Any]:
            return st.builds(Lift, st.just(row), body(depth - 1, needs | TABLE[row].needs), st.sampled_from([1, 1, 2]))

        fits = [row for row in rows if row in fitting(needs)]
        return st.sampled_from(fits).flatmap(under)

    def body(depth: int, needs: frozenset[str]) -> st.SearchStrategy[tuple[Any, ...]]:
        if not depth:
            return simple(size, needs).map(tuple)
        inner = body(depth - 1, needs)
        return around(lift(depth, needs) | st.builds(Child, inner, st.booleans()) | st.builds(Shape, inner), needs)

    return around(lift(depth, needs), needs)


def inside_a_row() -> st.SearchStrategy[tuple[str, Any]]:
    """A row, and a program that can be nested in it."""

    def under(name: str) -> st.SearchStrategy[tuple[str, Any]]:
        drawn = programs(needs=TABLE[name].needs)
        return st.tuples(st.just(name), drawn.map(silent) if SOWN & TABLE[name].refuses else drawn)

    return st.sampled_from(sorted(TABLE)).flatmap(under)

"""Programs as plain data, whose `repr` is Python source, and what their statements mean to any scope.

A body is run by `run`, over a scope of liftcore or of the plain interpreter: both have the few methods that are used
here. What a lift means is no business of this file: `run` is given a function for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import FrozenDict
from tests.lift.quick import uniform

CARRY = "carry"
"""Instead of an axis: the variable goes from one iteration to the next. None: all share it."""

Filter = str | tuple[str, str]
"""A collection; or a collection and a name, for the variables of it with that name in their path."""


@dataclasses.dataclass(frozen=True)
class Num:
    """A Python scalar."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Local:
    """A local value of this body, or of one around it."""

    name: str


@dataclasses.dataclass(frozen=True)
class Read:
    """A variable of this scope, reduced to one array if it is a tree."""

    collection: str
    name: str


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation on arrays, of those in `OPS`."""

    name: str
    args: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Key:
    """As an initial value: drawn from a stream."""

    sequence: str


@dataclasses.dataclass(frozen=True)
class Tree:
    """As an initial value: a container ("dict", "frozen" or "tuple") of values."""

    kind: str
    values: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Make:
    """A variable; a parameter, where the collection is that."""

    into: str
    collection: str
    name: str
    init: Any


@dataclasses.dataclass(frozen=True)
class Write:
    """A new value for a variable of this scope, where it may be written.

    Attributes:
        raw: whether it is the old one plus the expression, as it is; else it gets the old one's types.
    """

    collection: str
    name: str
    value: Any
    raw: bool = False


@dataclasses.dataclass(frozen=True)
class Let:
    """A local value."""

    into: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers."""

    into: str
    sequence: str


@dataclasses.dataclass(frozen=True)
class Sow:
    """A captured value."""

    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Has:
    """Whether a variable exists in this scope, as 0 or 1."""

    into: str
    collection: str
    name: str


@dataclasses.dataclass(frozen=True)
class Lift:
    """A transformation and its options.

    Attributes:
        kind: its name.
        size: how many batch elements, iterations.
        groups: for each filter an axis, None or `CARRY`, in the order in which the transformation asks them.
        splits: for each stream that is named, whether it is split.
        flags: further options.
        until: of a `while_loop`, a collection and a name: it ends early where this variable is large.
    """

    kind: str
    size: int = 0
    groups: tuple[tuple[Filter, Any], ...] = ()
    splits: tuple[tuple[str, bool], ...] = ()
    flags: tuple[str, ...] = ()
    until: tuple[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Call:
    """A lift of bodies, over this scope or (`place`) over a new one below.

    Attributes:
        args: what the bodies are given: their "x", then "y"; for branches the predicate comes first.
        times: how often it is called, each time on the result before; more than once only over a new scope.
    """

    into: str
    lift: Lift
    bodies: tuple[Body, ...]
    args: tuple[Any, ...]
    place: str | None = None
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Body:
    """Statements and a result; of a loop that stacks something, that too."""

    statements: tuple[Any, ...]
    result: Any
    stacked: Any = Num(0)


def like(value: Any, target: Any) -> Any:
    """A value with the shape and dtype of another one."""
    shape, dtype = jnp.shape(target), jnp.result_type(target)
    value = jnp.asarray(value)
    if shape == () and value.ndim:
        value = value.sum()
    if jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(value.dtype, jnp.inexact):
        value = whole(value)
    return jnp.broadcast_to(value, shape).astype(dtype)


def whole(value: Any) -> Any:
    """Numbers rounded: 0.99999994 and 1.4999999, which XLA may give for 1 and 1.5, are no other integers than those."""
    return jnp.round(value + 0.137)


def number(value: Any) -> Any:
    """A value as one array or scalar: the sum of all, where it is a container."""
    leaves = jax.tree.leaves(value)
    if jax.tree_util.all_leaves([value]):
        return value
    return sum((jnp.sum(jnp.asarray(leaf)).astype(jnp.float32) for leaf in leaves), jnp.float32(0.5))


def small(value: Any) -> Any:
    """Whether a loop goes on: the limit is no number that a variable has but for rounding."""
    return jnp.sum(jnp.asarray(number(value)).astype(jnp.float32)) < 1.2345


OPS: Mapping[str, Callable[..., Any]] = {
    "add": jnp.add,
    "mul": jnp.multiply,
    "tanh": jnp.tanh,
    "sum": lambda value: jnp.sum(jnp.asarray(value)),
    "bfloat16": lambda value: jnp.asarray(value, jnp.bfloat16),
    "float32": lambda value: jnp.asarray(value, jnp.float32),
    "int32": lambda value: jnp.asarray(whole(jnp.asarray(value, jnp.float32)), jnp.int32),
    "vector": lambda value: jnp.broadcast_to(jnp.tanh(jnp.asarray(value, jnp.float32)), (3,)),
    "positive": lambda value: jnp.sum(jnp.asarray(value)) > 0,
}


def evaluate(expr: Any, scope: Any, env: Mapping[str, Any]) -> Any:
    """The value of an expression."""
    match expr:
        case Num(value):
            return value
        case Local(name):
            return env[name]
        case Read(collection, name):
            return number(scope.get_variable(collection, name))
        case Op(name, args):
            return OPS[name](*(evaluate(arg, scope, env) for arg in args))
    raise TypeError(expr)


def make(init: Any, scope: Any, env: Mapping[str, Any], key: Any = None) -> Any:
    """An initial value."""
    match init:
        case Key(sequence):
            return uniform(scope.make_rng(sequence) if key is None else key)
        case Tree(kind, values):
            made = [make(value, scope, env, key) for value in values]
            named = dict(zip("pqr", made, strict=False))
            return {"dict": named, "frozen": FrozenDict(named), "tuple": tuple(made)}[kind]
    return evaluate(init, scope, env)


def run(body: Body, scope: Any, env: Mapping[str, Any], call: Callable[..., Any]) -> tuple[Any, Any]:
    """Runs a body: its result, and what it stacks.

    Args:
        body: the body.
        scope: where.
        env: local values.
        call: given a `Call`, a scope, the local values and the arguments, it runs the lift.
    """
    env = dict(env)
    for statement in body.statements:
        step(statement, scope, env, call)
    return evaluate(body.result, scope, env), evaluate(body.stacked, scope, env)


def step(statement: Any, scope: Any, env: dict[str, Any], call: Callable[..., Any]) -> None:
    """Runs one statement."""
    match statement:
        case Make(into, "params", name, init):
            env[into] = number(scope.param(name, lambda key: make(init, scope, env, key)))
        case Make(into, collection, name, init):
            env[into] = number(scope.variable(collection, name, lambda: make(init, scope, env)).value)
        case Write(collection, name, value, raw):
            if scope.is_mutable_collection(collection):
                write(scope, collection, name, evaluate(value, scope, env), raw)
        case Let(into, value):
            env[into] = evaluate(value, scope, env)
        case Draw(into, sequence):
            env[into] = uniform(scope.make_rng(sequence))
        case Sow(name, value):
            scope.sow("intermediates", name, evaluate(value, scope, env))
        case Has(into, collection, name):
            env[into] = int(scope.has_variable(collection, name))
        case Call(into):
            env[into] = repeated(statement, scope, env, call)


def repeated(statement: Call, scope: Any, env: Mapping[str, Any], call: Callable[..., Any]) -> Any:
    """Runs a lift as often as it is called."""
    x, *rest = [evaluate(arg, scope, env) for arg in statement.args]
    result = x
    for time in range(statement.times):
        below = scope if statement.place is None else scope.push(statement.place, reuse=time > 0)
        result = call(statement, below, env, [like(result, x) if time else x, *rest])
    return result


def write(scope: Any, collection: str, name: str, value: Any, raw: bool) -> None:
    """Writes a variable, whatever its structure."""
    old = scope.get_variable(collection, name)
    if raw:
        scope.put_variable(collection, name, jax.tree.map(lambda leaf: jnp.add(leaf, value), old))
    else:
        scope.put_variable(collection, name, jax.tree.map(lambda leaf: like(jnp.tanh(leaf) + value, leaf), old))


def spread(value: Any, size: int) -> Any:
    """What batch elements or iterations get of a value: each another number."""
    value = jnp.asarray(value)
    value = value.astype(jnp.int32) if value.dtype == bool else value
    shape = (size,) + (1,) * value.ndim
    return value[None] + jnp.arange(size).reshape(shape).astype(value.dtype)


def inner_bodies(statement: Any) -> tuple[Body, ...]:
    """The bodies in a statement."""
    return statement.bodies if isinstance(statement, Call) else ()


@dataclasses.dataclass(frozen=True)
class Program:
    """A whole program.

    Attributes:
        body: what a model does with its input "x".
        input: its kind, of those in `INPUTS`.
    """

    body: Body
    input: str = "float32"


INPUTS: Mapping[str, Callable[[], Any]] = {
    "float32": lambda: jnp.array([0.1, 0.2, -0.3]),
    "bfloat16": lambda: jnp.array([0.1, 0.2, -0.3], jnp.bfloat16),
    "int32": lambda: jnp.array([1, 2, 3], jnp.int32),
    "scalar": lambda: 0.5,
}

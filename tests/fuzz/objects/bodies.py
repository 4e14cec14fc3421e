"""How a body of a program runs, on objects of either kind."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from liftcore._compat import NUMPY_ARRAYS
from tests.fuzz.objects.programs import STATICS, Body, Boom, Lift, Step

__all__ = ["Run", "World", "is_array", "is_key", "ordered", "parts_of", "picked"]


class World:
    """What a kind of objects is made of: `nnx_like`'s, or plain ones.

    Args:
        names: `Node`, `List`, and the kinds of variables, by name.
        variable: the base of variables.
        module: the base of objects.
        array: makes an array of a numpy array.
        draw: draws a number from a stream.
        lift: makes a function of the functions of a lift, for its call: `lift(lift, functions, predicate)`.
    """

    def __init__(self, names: dict[str, Any], variable: type, module: type, array: Any, draw: Any, lift: Any) -> None:
        self.names, self.variable, self.module, self.array = names, variable, module, array
        self.draw, self.lift = draw, lift
        self.runs: list[object] = []
        """What stands for the function of each run."""

    def found(self, *values: Any) -> Iterator[Any]:
        """The objects and variables that can be reached, each once, in the order of sorted names."""
        seen: set[int] = set()

        def visit(value: Any) -> Iterator[Any]:
            if isinstance(value, (self.variable, self.module)):
                if id(value) in seen:
                    return
                seen.add(id(value))
                yield value
            for below in parts_of(value, self):
                yield from visit(below)

        for value in values:
            yield from visit(value)


def parts_of(value: Any, world: World) -> list[Any]:
    if isinstance(value, world.variable):
        return []
    if isinstance(value, world.module):
        return [vars(value)[name] for name in sorted(vars(value))]
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value[name] for name in ordered(value)] if isinstance(value, dict) else []


def ordered(names: Any) -> list[Any]:
    """Names and other keys, sorted."""
    return sorted(names, key=lambda one: (type(one).__name__, one))


def is_key(value: Any) -> bool:
    return "key" in str(getattr(value, "dtype", ""))


def is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, *NUMPY_ARRAYS))


def code(value: Any) -> float:
    """A number for a static value, by type and value."""
    text = f"{type(value).__name__} {getattr(value, '__name__', value)!r}"
    return (zlib.crc32(text.encode()) % 64) / 64


def mean(value: Any) -> Any:
    return value.astype(np.float32).mean()


class Run:
    """One run of a body.

    Args:
        world: the objects that it is about.
        args: the arguments.
        numbers: scalars of the functions around it.
    """

    def __init__(self, world: World, args: Any, numbers: tuple[Any, ...]) -> None:
        self.world, self.args, self.numbers = world, list(args), list(numbers)

    def run(self, steps: Any) -> None:
        for step in steps:
            if isinstance(step, Lift):
                self._call(step)
            else:
                getattr(self, f"_{step.kind}")(step)

    def function(self, body: Body) -> Callable[..., Any]:
        """A body as a function, which notes that it ran."""
        mark, numbers = object(), tuple(self.numbers)

        def run(*args: Any) -> Any:
            self.world.runs.append(mark)
            inner = Run(self.world, args, numbers)
            inner.run(body.steps)
            return tuple([inner.result(kind, number) for kind, number in body.result]), inner.loss()

        return run

    def loss(self) -> Any:
        numbers = [mean(one.get_value()) for one in self.variables(float_only=True)]
        return sum(numbers, self.numbers[-1] if self.numbers else np.float32(0)) * np.float32(1)

    def built(self, lift: Lift) -> Callable[..., Any]:
        return self.world.lift(lift, [self.function(body) for body in lift.bodies])

    def arguments(self, lift: Lift) -> list[Any]:
        found = [self.argument(kind, number) for kind, number in lift.args]
        return found if lift.name not in ("cond", "switch") else [self.choice(lift), *found]

    def choice(self, lift: Lift) -> Any:
        """What decides between branches: a number that may be traced."""
        known = np.float32(lift.pick % len(lift.bodies))
        return known if lift.pick % 7 < 3 else self.number(lift.pick, lift.pick) * np.float32(0) + known

    def _call(self, lift: Lift) -> None:
        try:
            result = self.built(lift)(*self.arguments(lift))
        except Boom:
            if not lift.catches:
                raise
            return
        self.keep(result)

    def keep(self, result: Any) -> None:
        """What a call returned can be reached from now on."""
        self.args.append(objects_in(result, self.world))
        self.numbers += [mean(one) for one in arrays_in(result) if not is_key(one)]

    # -- what can be picked

    def nodes(self, name: str = "") -> list[Any]:
        found = [one for one in self.world.found(*self.args) if isinstance(one, self.world.module)]
        streams = ("RngStream", "Rngs")
        return [
            one
            for one in found
            if (type(one).__name__ == name if name else type(one).__name__ not in (*streams, "List"))
        ]

    def variables(self, float_only: bool = False) -> list[Any]:
        found = [one for one in self.world.found(*self.args) if isinstance(one, self.world.variable)]
        found = [one for one in found if type(one).__name__ not in ("RngKey", "RngCount", "Tree")]
        return [one for one in found if not float_only or one.get_value().dtype == np.float32]

    def argument(self, kind: str, number: int) -> Any:
        if kind == "array":
            return self.world.array(np.arange(4.0, dtype=np.float32).reshape(2, 2) + number % 3)
        nodes, variables = self.nodes(), self.variables(float_only=True)
        if kind == "var" and variables:
            return picked(variables, number)
        nodes = nodes or [self.new(number)]
        one, other = picked(nodes, number), picked(nodes, number // 7)
        return {"pair": [one, other], "dict": {"x": one}}.get(kind, one)

    def result(self, kind: str, number: int) -> Any:
        if kind == "scalar":
            return self.number(number, number)
        if kind == "new":
            return self.new(number)
        pool = {"var": self.variables()}.get(kind, self.nodes())
        found = None if kind == "none" or not pool else picked(pool, number)
        return [found, None] if kind == "list" else found

    def number(self, a: int, c: int) -> Any:
        """A scalar: a constant, what is in a variable, an earlier scalar, or what is static, as a number."""
        way, variables, nodes = a % 5, self.variables(), self.nodes()
        if way == 1 and variables:
            return mean(picked(variables, c).get_value()) * np.float32(0.5)
        if way == 2 and self.numbers:
            return picked(self.numbers, c) * np.float32(0.5)
        if way == 3 and nodes:
            node = picked(nodes, c)
            names = [name for name in sorted(vars(node)) if not is_array(vars(node)[name])]
            values = [vars(node)[name] for name in names]
            values = [one for one in values if isinstance(one, (int, float, str, tuple, type(len), type, type(None)))]
            return np.float32(sum(map(code, values)))
        if way == 4 and variables:
            variable = picked(variables, c)
            return np.float32(code(tuple(sorted(variable.get_metadata().items()))) + code(type(variable).__name__))
        return np.float32(c % 8) / 8

    def fresh(self, number: int) -> Any:
        values = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 2, 2) * (1 + number % 3)
        return self.world.array(values)

    def new(self, number: int) -> Any:
        made = self.world.names["Node"]()
        made.v = self.world.names[("Param", "BatchStat", "Custom")[number % 3]](self.fresh(number))
        made.s = picked(STATICS, number)
        return made

    # -- statements

    def _write(self, step: Step) -> None:
        if variables := self.variables():
            variable = picked(variables, step.a)
            value = variable.get_value()
            if value.dtype == np.float32:
                value = value * np.float32(0.5) + self.number(step.b, step.c)
            else:
                value = value + np.int32(step.c % 5)
            variable.set_value(value)

    def _tree(self, step: Step) -> None:
        trees = [one for one in self.world.found(*self.args) if type(one).__name__ == "Tree"]
        if trees:
            tree = picked(trees, step.a)
            value = tree.get_value()
            number = self.number(step.b, step.c)
            tree.set_value({**value, "x": value["x"] * np.float32(0.5) + number, "s": picked("ab", step.a)})

    def _renew(self, step: Step) -> None:
        """A variable gets another array that is equal, or the very same."""
        if variables := self.variables():
            variable = picked(variables, step.a)
            variable.set_value(variable.get_value() + 0 if step.b % 2 else variable.get_value())

    def _write_array(self, step: Step) -> None:
        places = [(node, name) for node in self.nodes() for name in sorted(vars(node)) if is_array(vars(node)[name])]
        if places:
            node, name = picked(places, step.a)
            setattr(node, name, getattr(node, name) * np.float32(0.5) + self.number(step.b, step.c))

    def _read(self, step: Step) -> None:
        self.numbers.append(self.number(step.a, step.c))

    def _draw(self, step: Step) -> None:
        if streams := self.nodes("RngStream"):
            self.numbers.append(self.world.draw(picked(streams, step.a)))

    def _add(self, step: Step) -> None:
        self._set(step, self.new(step.c).v)

    def _add_node(self, step: Step) -> None:
        self._set(step, self.new(step.c))

    def _add_array(self, step: Step) -> None:
        self._set(step, self.fresh(step.c))

    def _static(self, step: Step) -> None:
        self._set(step, picked(STATICS, step.c), "s")

    def _set(self, step: Step, value: Any, names: str = "abn") -> None:
        if nodes := self.nodes():
            setattr(picked(nodes, step.a), picked(names, step.b), value)

    def _names(self, number: int) -> tuple[Any, list[str]]:
        nodes = self.nodes()
        node = picked(nodes, number) if nodes else self.new(number)
        return node, sorted(vars(node))

    def _delete(self, step: Step) -> None:
        node, names = self._names(step.a)
        if names:
            delattr(node, picked(names, step.b))

    def _tie(self, step: Step) -> None:
        found = [*self.nodes(), *self.variables()]
        if found:
            self._set(step, picked(found, step.c))

    def _untie(self, step: Step) -> None:
        if variables := self.variables():
            variable = picked(variables, step.c)
            self._set(step, type(variable)(variable.get_value(), **variable.get_metadata()))

    def _swap(self, step: Step) -> None:
        node, names = self._names(step.a)
        if names:
            one, other = picked(names, step.b), picked(names, step.c)
            first, second = getattr(node, one), getattr(node, other)
            setattr(node, one, second)
            setattr(node, other, first)

    def _lists(self) -> list[list[Any]]:
        return [value for node in self.nodes() for value in parts_of(node, self.world) if isinstance(value, list)]

    def _append(self, step: Step) -> None:
        pool = [*self._lists(), *self.nodes("List")]
        if pool:
            found = [*self.variables(), *self.nodes()]
            made = self.new(step.c)
            values = (picked(found or [made], step.c), made, made.v, self.fresh(step.c), step.c % 3)
            picked(pool, step.a).append(picked(values, step.b))

    def _pop(self, step: Step) -> None:
        if pool := [one for one in self._lists() if one]:
            picked(pool, step.a).pop(step.b % 2 - 1)

    def _put(self, step: Step) -> None:
        if pool := self._dicts():
            values = (self.new(step.c), self.fresh(step.c), step.c % 3)
            picked(pool, step.a)[picked(("x", "y", "z", 0, (1, 2)), step.b)] = picked(values, step.c)

    def _take(self, step: Step) -> None:
        if pool := [one for one in self._dicts() if one]:
            one = picked(pool, step.a)
            del one[picked(ordered(one), step.b)]

    def _dicts(self) -> list[dict[Any, Any]]:
        return [one for node in self.nodes() for one in parts_of(node, self.world) if isinstance(one, dict)]

    def _share(self, step: Step) -> None:
        """A list or a dict becomes an attribute of another object too."""
        pool = [one for node in self.nodes() for one in parts_of(node, self.world) if isinstance(one, (list, dict))]
        if pool:
            self._set(step, picked(pool, step.c), "tu")

    def _metadata(self, step: Step) -> None:
        if variables := self.variables():
            picked(variables, step.a).set_metadata(tag=picked((1, True, "a", None), step.c))

    def _raise(self, step: Step) -> None:
        raise Boom

    # -- what only callers do

    def _vars(self, step: Step) -> None:
        """An attribute is set without the object being asked."""
        if nodes := self.nodes():
            values = (picked(STATICS, step.c), self.new(step.c), self.new(step.c).v, self.fresh(step.c))
            vars(picked(nodes, step.a))[picked("abs", step.b)] = picked(values, step.b // 3)

    def _inner(self, step: Step) -> None:
        """Something in a list is replaced by another thing of the same kind."""
        if pool := [one for one in self._lists() if one]:
            picked(pool, step.a)[0] = picked((self.new(step.c), picked(STATICS, step.c), self.fresh(step.c)), step.b)


def picked(pool: Any, number: int) -> Any:
    return pool[number % len(pool)]


def objects_in(value: Any, world: World) -> list[Any]:
    """The objects that a result begins with."""
    if isinstance(value, (world.variable, world.module)):
        return [value]
    return [one for part in parts_of(value, world) for one in objects_in(part, world)]


def arrays_in(value: Any) -> list[Any]:
    """The arrays of a result that are in no object."""
    if is_array(value):
        return [value]
    parts = [value[k] for k in ordered(value)] if isinstance(value, dict) else value
    parts = parts if isinstance(parts, (list, tuple)) else ()
    return [one for part in parts for one in arrays_in(part)]

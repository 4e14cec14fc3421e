"""Keys of static values: equal by type and value all the way down, and none for what may change unseen."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import enum
import functools
import io
import itertools
import logging
import math
import random
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import liftcore
from liftcore import static_key
from liftcore.errors import NotSharedWarning
from liftcore.frozen_dict import FrozenDict
from liftcore.statics import Undescribed


@dataclasses.dataclass(frozen=True)
class Config:
    size: Any
    note: Any = dataclasses.field(default=None, compare=False)

    @functools.cached_property
    def total(self) -> Any:
        return sum(self.size)


class Named(dict[str, Any]):
    """A dict with an attribute."""

    k = 0


def with_attribute(value: Any, name: str, attribute: Any) -> Any:
    object.__setattr__(value, name, attribute)
    return value


class Hashed:
    """An object that is compared by a value, which may have no hash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


@dataclasses.dataclass
class Mutable:
    size: Any


class Plain:
    def __init__(self, size: Any) -> None:
        self.size = size

    def method(self) -> Any:
        return self.size


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    size: Any


@dataclasses.dataclass
class Unhashed:
    size: Any

    def method(self) -> Any:
        return self.size


class Compared(Plain):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared) and self.size == other.size

    def __hash__(self) -> int:
        return hash(self.size)


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Mode(enum.Enum):
    A = 1
    B = 2


class Own:
    def __static_fields__(self) -> dict[str, Any]:
        return {"size": 3}


def double(x: Any) -> Any:
    return 2 * x


def adding(number: Any) -> Callable[[Any], Any]:
    return lambda x: x + number


MESH = Mesh(np.array(jax.devices()[:1]), ("a",))

EQUAL: dict[str, Callable[[], Any]] = {
    "numbers": lambda: (1, 1.5, True, 2j, math.nan),
    "texts": lambda: ("a", b"b", None, ...),
    "lists": lambda: [1, [2.0]],
    "dicts": lambda: {"a": (1, {"b": 2})},
    "frozen dicts": lambda: FrozenDict({"a": 1}),
    "sets": lambda: {1, 2, "a"},
    "named tuples": lambda: Pair(1, [2]),
    "enums": lambda: Mode.A,
    "frozen dataclasses": lambda: Config((1, 2.0), [3]),
    "objects that say what they equal": lambda: Compared(3),
    "objects that say what stands for them": Own,
    "functions": lambda: double,
    "partials": lambda: functools.partial(double, [1], a=Config(1)),
    "bound methods": lambda: Compared(3).method,
    "classes and modules": lambda: (Plain, types, jnp.float32),
    "compiled functions": lambda: (jax.nn.relu, jax.jit, jnp.add, np.add),
    "dtypes": lambda: (np.dtype("float32"), jnp.bfloat16),
    "arrays of NumPy": lambda: np.arange(6).reshape(2, 3),
    "strided arrays": lambda: np.arange(12)[::2],
    "numbers of NumPy": lambda: np.float32(1.5),
    "filters": lambda: liftcore.filters.All("params", liftcore.filters.PathContains("a")),
    "shardings": lambda: [jax.sharding.PartitionSpec("a", None), NamedSharding(MESH, jax.sharding.PartitionSpec("a"))],
    "devices": lambda: (MESH, *jax.devices()),
}
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "zeros": (0.0, -0.0),
    "complex zeros": (0j, complex(0.0, -0.0)),
    "zeros of NumPy": (np.float32(0.0), np.float32(-0.0)),
    "zeros in arrays": (np.zeros(2), -np.zeros(2)),
    "types of NumPy": (np.float32(1), np.float64(1)),
    "shapes": (np.ones(2), np.ones((1, 2))),
    "an array and a list": (np.ones(1), [1.0]),
    "types in tuples": ((True,), (1,)),
    "list and tuple": ([1], (1,)),
    "named tuple and tuple": (Pair(1, 2), (1, 2)),
    "dict and frozen dict": ({"a": 1}, FrozenDict({"a": 1})),
    "order of dicts": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "keys of dicts": ({1: 0}, {True: 0}),
    "types in sets": ({1}, {1.0}),
    "frozen dataclasses": (Config(1), Config(1.0)),
    "what a dataclass does not compare": (Config(1, "a"), Config(1, "b")),
    "attributes that are no fields": (with_attribute(Config(1), "k", 1), with_attribute(Config(1), "k", 2)),
    "makers of missing values": (collections.defaultdict(int, a=1), collections.defaultdict(list, a=1)),
    "masks of arrays": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "deep down": ({"a": [Config((1,))]}, {"a": [Config((1.0,))]}),
    "functions": (adding(1), adding(1)),
    "partials": (functools.partial(double, 1), functools.partial(double, 1.0)),
    "bound methods": (Compared(3).method, Compared(4).method),
    "enums": (Mode.A, Mode.B),
    "a text and bytes": ("a", b"a"),
    "an ordered dict": (collections.OrderedDict(a=1), {"a": 1}),
}
NONE: dict[str, tuple[Any, str]] = {
    "an array": (jnp.ones(2), ""),
    "an iterator": (iter([1]), ""),
    "an object with state in C": (random.Random(0), ""),
    "in a list": ([1, iter([1])], "[1]"),
    "in a dict": ({"a": {"b": iter([1])}}, "['a']['b']"),
    "in a frozen dataclass": (Config([iter([1])]), ".size[0]"),
    "in an object": (Plain([Mutable(iter([1]))]), ".size[0].size"),
    "the object of a method": (Plain(iter([1])).method, ".__self__.size"),
    "an argument of a partial": (functools.partial(double, iter([1])), ".args[0]"),
    "an array of objects": (np.array([Plain(1)], dtype=object), ""),
    "an object that holds an array": (Hashed(jnp.ones(2)), ".value"),
    "an object that holds a mutable array": (Plain(jax.new_ref(jnp.ones(2))), ".size"),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_values_have_equal_keys(case: str) -> None:
    one, other = static_key(EQUAL[case]()), static_key(EQUAL[case]())
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("case", DIFFERENT)
def test_values_that_a_trace_tells_apart_have_other_keys(case: str) -> None:
    one, other = map(static_key, DIFFERENT[case])
    assert one != other


@pytest.mark.parametrize("case", NONE)
def test_what_may_change_unseen_has_no_key(case: str) -> None:
    value, place = NONE[case]
    with pytest.raises(Undescribed) as caught:
        static_key(value)
    assert caught.value.place == place


class Slots:
    __slots__ = ("__hidden", "size")

    def __init__(self, size: Any) -> None:
        self.size, self.__hidden = size, [0]

    def change(self) -> None:
        self.__hidden.append(1)


@dataclasses.dataclass(eq=False)
class Unequal:
    size: Any


class EqualBySize(Plain):
    """Defines equality, so that it has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualBySize) and self.size == other.size


def linked(size: Any) -> Plain:
    """Two objects that hold each other, and a list of both."""
    one, other = Plain(size), Plain(size)
    one.other, other.other = other, one  # type: ignore[attr-defined]
    one.both = [one, other]  # type: ignore[attr-defined]
    return one


COUNT = itertools.count()
BY_IDENTITY: dict[str, Callable[[], Any]] = {
    "an object": lambda: Plain([1]),
    "an object with slots": lambda: Slots(1),
    "objects that hold each other": lambda: linked(1),
    "a dataclass without equality": lambda: Unequal(1),
    "a marker": object,
    "a logger": lambda: logging.getLogger(f"a{next(COUNT)}"),
    "a file": io.StringIO,
    "a lock in an object": lambda: Plain(threading.Lock()),
    "a set of objects": lambda: frozenset({Plain(1)}),
    "a method of an object": lambda: Plain(1).method,
}
BY_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "a dataclass": Mutable,
    "a namespace": lambda size: types.SimpleNamespace(size=size),
    "arguments of a program": lambda size: argparse.Namespace(size=size),
    "a class that defines equality": EqualBySize,
    "a class whose hash fails": lambda size: Hashed([size]),
    "a slice": lambda size: slice(size),
}


@pytest.mark.parametrize("case", BY_IDENTITY)
def test_an_object_without_equality_is_equal_to_itself(case: str) -> None:
    value = BY_IDENTITY[case]()
    key = static_key([value])
    assert key == static_key([value])
    assert hash(key) == hash(static_key([value]))
    assert key != static_key([BY_IDENTITY[case]()])
    assert liftcore.statics.snapshot(value) == value


@pytest.mark.parametrize("case", BY_ATTRIBUTES)
def test_an_object_with_equality_but_no_hash_is_compared_by_its_attributes(case: str) -> None:
    make = BY_ATTRIBUTES[case]
    assert static_key(make(1)) == static_key(make(1))
    assert static_key(make(1)) != static_key(make(1.0))
    assert static_key(liftcore.statics.snapshot(make(1))) == static_key(make(1))


def test_a_change_of_an_object_is_seen_at_every_depth() -> None:
    slots = Slots(1)
    value = Plain({"a": [linked(1), Mutable(slots), types.SimpleNamespace(table=np.zeros(2))]})
    a, mutable, table = value.size["a"]
    changes = [
        lambda: setattr(value, "new", 1),
        lambda: value.size.update(b=1),
        lambda: setattr(a.other, "size", 2),
        lambda: setattr(mutable, "size", slots),
        slots.change,
        lambda: setattr(slots, "size", 1.0),
        lambda: table.table.__setitem__(0, 1),
    ]
    keys = [static_key(value)]
    for change in changes:
        change()
        keys.append(static_key(value))
    assert [one == other for one, other in itertools.pairwise(keys)] == [False, False, False, True, False, False, False]


def test_a_snapshot_copies_what_is_compared_by_its_attributes_alone() -> None:
    inner, marker = Mutable([1]), Plain([1])
    value = types.SimpleNamespace(inner=inner, marker=marker)
    value.itself = [value]
    kept, key = liftcore.statics.snapshot(value), static_key(value)
    inner.size.append(2)
    assert static_key(kept) == key != static_key(value)
    assert kept.itself[0] is kept is not value
    assert kept.marker is marker


def test_a_large_web_of_objects_has_a_key_at_once() -> None:
    objects = [Plain([]) for _ in range(40)]
    for one, below in zip(objects, [*objects[1:], objects], strict=True):
        one.size = [below, below]  # followed twice at each level, it would never come to an end
    assert static_key(objects) == static_key(objects)


def test_a_key_is_that_of_the_moment() -> None:
    value = {"sizes": [1, 2], "table": np.zeros(2)}
    before = static_key(value)
    value["sizes"].append(3)
    assert static_key(value) != before
    changed = static_key(value)
    value["table"][0] = 1
    assert static_key(value) != changed


def test_what_holds_itself_has_a_key() -> None:
    one: list[Any] = [1]
    other: list[Any] = [1]
    one.append(one)
    other.append(other)
    assert static_key(one) == static_key(other) != static_key([1, [1]])


# -- static arguments of a lifted jit ----------------------------------------------------------------------------------


def traces(*values: Any) -> int:
    """How often a body runs under `jit` for static arguments, one after the other."""
    runs = []

    def body(scope: Any, x: Any, value: Any) -> Any:
        runs.append(value)
        return x

    def model(scope: Any, x: Any) -> Any:
        for value in values:
            x = liftcore.jit(body, static_argnames="value")(scope, x, value)
        return x

    liftcore.apply(model)({}, 1.0)
    return len(runs)


HASHABLE = ("int and float", "int and bool", "zeros", "types in tuples", "frozen dataclasses", "partials", "enums")


@pytest.mark.parametrize("case", HASHABLE)
def test_a_static_argument_that_a_trace_tells_apart_is_traced_again(case: str) -> None:
    one, other = DIFFERENT[case]
    assert traces(one, one, other) == 2


def test_a_static_argument_is_told_by_its_value() -> None:
    lifted = liftcore.jit(lambda scope, x, value: x * value.size, static_argnames="value")
    run = liftcore.apply(lambda scope, x, value: lifted(scope, x, value))
    assert run({}, 2.0, Config(3)) == 6.0
    assert run({}, 2.0, Config(3.5)) == 7.0


def test_an_object_that_changes_is_traced_again_and_one_without_a_key_is_told_once() -> None:
    class Changing:
        size = 3.0

    config = Changing()
    assert traces(config, config) == 1
    lifted = liftcore.jit(lambda scope, x, config: x * config.size, static_argnames="config")
    run = liftcore.apply(lambda scope, x, config: lifted(scope, x, config))
    assert run({}, 2.0, config) == 6.0
    config.size = 5.0
    assert run({}, 2.0, config) == 10.0
    numbers = random.Random(0)
    numbers.size = 3.0  # type: ignore[attr-defined]
    with pytest.warns(NotSharedWarning, match=r"static argument config of jit\(.* Random .* frozen dataclass"):
        assert run({}, 2.0, numbers) == 6.0


@dataclasses.dataclass(frozen=True)
class Times:
    by: Any

    def __call__(self, scope: Any, x: Any) -> Any:
        return x * self.by


def test_functions_that_compare_by_value_are_told_apart_by_types() -> None:
    x = jnp.ones(2, int)
    found = [liftcore.apply(liftcore.jit(Times(by)))({}, x).dtype.name for by in (1, 1.0, 1)]
    assert found == ["int32", "float32", "int32"]


def test_what_is_computed_when_first_asked_for_is_no_part_of_a_key() -> None:
    one, other = Config((1, 2)), Config((1, 2))
    assert one.total == 3
    assert static_key(one) == static_key(other)


def test_a_snapshot_of_a_dict_is_as_that_was_made() -> None:
    value = with_attribute(Named(a=[1]), "k", 5)
    kept = liftcore.statics.snapshot(value)
    value["a"].append(2)
    assert (type(kept), kept, kept.k) == (Named, {"a": [1]}, 5)
    counts = collections.defaultdict(list, {"a": [1]})
    assert liftcore.statics.snapshot(counts)["b"] == []


EXTENDED: dict[type, tuple[Any, ...]] = {
    **{kind: ([[1]],) for kind in (list, tuple)},
    **{kind: ([1],) for kind in (set, frozenset)},
    **{kind: ({"a": [1]},) for kind in (dict, collections.OrderedDict)},
    collections.defaultdict: (list, {"a": [1]}),
    functools.partial: (double, [1]),
    Pair: ([1],),
    int: (1,),
    float: (1.5,),
    complex: (2j,),
    str: ("a",),
    bytes: (b"a",),
    np.ndarray: ((0,),),
}


@pytest.mark.parametrize("kind", EXTENDED, ids=lambda kind: str(kind.__name__))
def test_a_subclass_is_compared_and_copied_with_its_attributes(kind: type) -> None:
    extended = type("Extended", (kind,), {})

    def make(attribute: Any) -> Any:
        return with_attribute(extended(*copy.deepcopy(EXTENDED[kind])), "k", attribute)

    value, key = make([1]), static_key(make([1]))
    assert static_key(value) == key != static_key(make([1.0]))
    kept = liftcore.statics.snapshot(value)
    assert (type(kept), static_key(kept)) == (extended, key)
    if isinstance(value, list | tuple | dict):
        next(iter(value.values() if isinstance(value, dict) else value)).append(2)
        assert static_key(kept) == key != static_key(value)
    if isinstance(value, collections.defaultdict | functools.partial | list | dict | tuple):
        value.k.append(2)  # type: ignore[union-attr]
        assert static_key(kept) == key != static_key(value)


UNSTABLE: dict[str, Callable[[Any], Any]] = {
    "a frozen dataclass with slots": Slotted,
    "a method of an object without hash": lambda held: Unhashed(held).method,
    "a partial of such a method": lambda held: functools.partial(Unhashed(held).method),
    "a view of a dict": lambda held: types.MappingProxyType({"a": held}),
}


@pytest.mark.parametrize("case", UNSTABLE)
def test_a_snapshot_copies_what_its_key_describes(case: str) -> None:
    held = [1]
    value = UNSTABLE[case](held)
    kept, key = liftcore.statics.snapshot(value), static_key(value)
    held.append(2)
    assert static_key(kept) == key != static_key(value)


def test_a_snapshot_stays_what_it_was() -> None:
    value = {"a": [1, np.zeros(2)], "b": Config((Pair([2]),)), "c": functools.partial(double, [3])}
    kept, key = liftcore.statics.snapshot(value), static_key(value)
    value["a"].append(2)  # type: ignore[attr-defined]
    value["a"][1][0] = 5  # type: ignore[index]
    value["b"].size[0].first.append(1)  # type: ignore[attr-defined]
    value["c"].args[0].append(1)  # type: ignore[attr-defined]
    assert static_key(kept) == key != static_key(value)

"""Methods by value: `apply`, `init` and `init_with_output` of equal unbound modules are equal, and nothing else is."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import enum
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.lifecycle import methods
from linen_like.lifecycle.description import description


class Net(nn.Module):
    features: Any = 3
    act: Callable[..., Any] = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Doc of the call."""
        return self.act(nn.Dense(2)(x)) if train else nn.Dense(2)(x)


class Other(Net):
    pass


def double(x: Any) -> Any:
    return 2 * x


@dataclasses.dataclass(frozen=True)
class Config:
    size: Any
    note: Any = dataclasses.field(default=None, compare=False)


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Two(nn.Module):
    first: nn.Module
    second: nn.Module

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(x))


class Mode(enum.Enum):
    A = 1
    B = 2


def of(value: Any) -> Callable[[], nn.Module]:
    return lambda: Net(value)


def shared() -> nn.Module:
    one = nn.Dense(2)
    return Two(one, one)


def adding(value: Any) -> Callable[[Any], Any]:
    return lambda x: x + value


X, ADD = jnp.ones((1, 2)), adding(1)
EQUAL = {
    "defaults": (Net, Net),
    "fields": (lambda: Net(4, double), lambda: Net(4, double)),
    "lists": (lambda: Net([1, 2]), lambda: Net([1, 2])),
    "dicts": (lambda: Net({"a": (1, 2)}), lambda: Net({"a": (1, 2)})),
    "modules": (lambda: nn.Sequential([nn.Dense(2), nn.relu]), lambda: nn.Sequential([nn.Dense(2), nn.relu])),
    "closures of values": (lambda: nn.Dense(2), lambda: nn.Dense(2)),
    "closures of its own": (of(ADD), of(ADD)),
    "frozen dataclasses": (lambda: Net(Config((1, 2.0))), lambda: Net(Config((1, 2.0)))),
    "named tuples": (lambda: Net(Pair(1)), lambda: Net(Pair(1))),
    "enums": (of(Mode.A), of(Mode.A)),
    "dtypes": (of(jnp.float32), of(jnp.float32)),
    "compiled functions": (of(jax.nn.relu), of(jax.nn.relu)),
    "shared modules": (shared, shared),
    "names": (lambda: Net(name="a"), lambda: Net(name="a")),
}
DIFFERENT = {
    "fields": (Net, lambda: Net(4)),
    "types of fields": (lambda: Net(1), lambda: Net(1.0)),
    "bool and int": (lambda: Net(1), lambda: Net(True)),
    "list and tuple": (lambda: Net([1, 2]), lambda: Net((1, 2))),
    "functions": (Net, lambda: Net(act=double)),
    "new functions": (lambda: Net(act=lambda x: x), lambda: Net(act=lambda x: x)),
    "classes": (Net, Other),
    "names": (lambda: Net(name="a"), lambda: Net(name="b")),
    "shared modules and others": (shared, lambda: Two(nn.Dense(2), nn.Dense(2))),
    "names of modules in fields": (lambda: Two(Net(name="a"), Net()), lambda: Two(Net(name="b"), Net())),
    "types in frozen dataclasses": (of(Config(1)), of(Config(1.0))),
    "what a dataclass does not compare": (of(Config(1, "a")), of(Config(1, "b"))),
    "types in named tuples": (of(Pair(1)), of(Pair(True))),
    "zeros": (of(0.0), of(-0.0)),
    "zeros of NumPy": (of(np.float32(0.0)), of(np.float32(-0.0))),
    "types in frozen sets": (of(frozenset({1})), of(frozenset({1.0}))),
    "enums": (of(Mode.A), of(Mode.B)),
    "methods of arrays": (lambda: Net(np.ones(2).dot), lambda: Net(np.ones(2).dot)),
    "arrays": (lambda: Net(np.ones(2)), lambda: Net(np.ones(2))),
    "objects that equal none": (lambda: Net(object()), lambda: Net(object())),
}


@pytest.mark.parametrize("method", ["apply", "init", "init_with_output"])
@pytest.mark.parametrize("case", EQUAL)
def test_methods_of_equal_modules_are_equal(case: str, method: str) -> None:
    one, other = (getattr(make(), method) for make in EQUAL[case])
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("case", DIFFERENT)
def test_methods_of_other_modules_are_not(case: str) -> None:
    one, other = (make().apply for make in DIFFERENT[case])
    assert one != other


def test_different_methods_of_one_module_are_not() -> None:
    assert Net().apply != Net().init_with_output
    assert Net().apply != Net.apply


def test_an_object_that_equals_none_makes_methods_of_one_module_equal_as_in_python() -> None:
    module = Net(object())
    assert module.apply == module.apply


def test_methods_of_bound_modules_are_equal_for_the_same_module_only() -> None:
    variables = Net().init(jax.random.key(0), X)
    one, other = Net().bind(variables), Net().bind(variables)
    assert one.apply == one.apply
    assert one.apply != other.apply


def test_a_module_that_was_changed_has_another_method() -> None:
    module, features = Net([1]), [1]
    before = module.apply
    assert before == Net([1]).apply
    module.features = [1, 2]
    assert module.apply != before
    changed = Net(features)
    old = changed.apply
    hash(old)
    features.append(2)
    assert changed.apply != old


@pytest.mark.parametrize("entry", ["apply", "init"])
def test_jit_traces_once_for_equal_modules(entry: str) -> None:
    runs = []

    class Counted(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            runs.append(self.features)
            return nn.Dense(self.features)(x)

    variables = Counted(2).init(jax.random.key(0), X)
    runs.clear()
    given = jax.random.key(0) if entry == "init" else variables
    for _ in range(4):
        jax.jit(getattr(Counted(2), entry))(given, X)
    assert runs == [2]


def test_a_method_that_is_held_by_nobody_is_kept_and_only_some_of_them_are() -> None:
    for features in range(2 * methods._SIZE):
        hash(Net(features).apply)
    assert len(methods._kept) == methods._SIZE
    hash(Net(methods._SIZE).apply)  # used again, so the last to go
    hash(Net("new").apply)
    assert description(Net(methods._SIZE)) in [value[-1] for value in methods._kept]


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit, jax.custom_jvp])
def test_arrays_in_functions_are_not_kept_alive(wrap: Callable[..., Any]) -> None:
    def use() -> weakref.ref[Any]:
        array = np.ones(3)
        module = Net(act=wrap(lambda x: x + array[0]))
        hash(module.apply)
        return weakref.ref(array)

    held = use()
    gc.collect()
    assert held() is None


@pytest.mark.parametrize(
    "field",
    [
        lambda array: Pair(lambda x: x + array),
        lambda array: Config(lambda x: x + array),
        lambda array: [adding(array)],
        lambda array: array.dot,
        lambda array: Net(array).apply,
        lambda array: Net().bind({"params": {"w": array}}),
        lambda array: type("Local", (Net,), {"__qualname__": "f.<locals>.Local", "act_of": lambda self: array})(),
    ],
)
def test_arrays_in_fields_are_not_kept_alive(field: Callable[..., Any]) -> None:
    def use() -> weakref.ref[Any]:
        array = np.ones(3)
        hash(Net(field(array)).apply)
        return weakref.ref(array)

    held = use()
    gc.collect()
    assert held() is None


def test_what_goes_may_hash_another_method() -> None:
    class Last:
        def __del__(self) -> None:
            hash(Net("from a finalizer").apply)

    def holding(last: Any) -> Any:
        return lambda x: x

    for number in range(2 * methods._SIZE):
        fn = holding(Last())
        fn.last = Last()  # type: ignore[attr-defined]
        hash(Net(number, fn).apply)
    for number in range(2 * methods._SIZE):  # until none of them is left
        hash(Net(number).apply)
    assert len(methods._kept) <= methods._SIZE


def test_tracers_in_functions_do_not_leak() -> None:
    def model(x: jax.Array) -> Any:
        module = Net(act=lambda y: y + x.sum())
        variables = jax.jit(module.init)(jax.random.key(0), X)
        return jax.jit(module.apply, static_argnames="train")(variables, X, train=True)

    with jax.checking_leaks():
        jax.jit(model).lower(X)


def test_what_surrounds_a_call_tells_methods_apart() -> None:
    plain = Net().apply
    assert plain == Net().apply
    with nn.override_named_call(False):
        unnamed = Net().apply
        assert unnamed != plain
    with nn.intercept_methods(lambda next_fun, args, kwargs, context: next_fun(*args, **kwargs)):
        one, other = Net().apply, Net().apply
        assert one != plain
        assert one != other


def test_an_interceptor_need_not_be_hashable() -> None:
    class Interceptor:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
            return next_fun(*args, **kwargs)

    variables = Net().init(jax.random.key(0), X)
    with nn.intercept_methods(Interceptor()):
        assert jax.jit(Net().apply)(variables, X).shape == (1, 2)


def test_interceptors_are_seen_under_jit() -> None:
    variables, seen = Net().init(jax.random.key(0), X), []

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        seen.append(context.method_name)
        return next_fun(*args, **kwargs)

    jax.jit(Net().apply)(variables, X)
    with nn.intercept_methods(note):
        jax.jit(Net().apply)(variables, X)
    assert seen == ["__call__", "__call__"]


def test_a_method_looks_like_the_method_of_the_class() -> None:
    method = Net().apply
    assert method.__name__ == "apply"
    assert method.__doc__ == Net.apply.__doc__
    assert method.__func__ is Net.apply
    assert list(inspect.signature(method).parameters) == list(inspect.signature(Net.apply).parameters)[1:]
    assert repr(method).startswith("<bound method Module.apply of Net(")
    assert "jit_apply" in jax.jit(method).lower(Net().init(jax.random.key(0), X), X).as_text()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))])
def test_a_method_is_copied_and_pickled(again: Callable[..., Any]) -> None:
    method = Net(act=double).apply
    variables = Net().init(jax.random.key(0), X)
    assert again(method) == method
    assert (again(method)(variables, X, train=True) == method(variables, X, train=True)).all()


def test_static_arguments_are_found_by_name() -> None:
    variables = Net().init(jax.random.key(0), X)
    run = jax.jit(Net(act=double).apply, static_argnames=("train",))
    assert (run(variables, X, train=True) == 2 * run(variables, X, train=False)).all()


def test_a_class_may_write_its_own() -> None:
    class Doubled(Net):
        def apply(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().apply(*args, **kwargs)

    variables = Net().init(jax.random.key(0), X)
    assert (Doubled().apply(variables, X) == 2 * Net().apply(variables, X)).all()
    assert (Net.apply(Net(), variables, X) == Net().apply(variables, X)).all()


def test_threads_share_the_table() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda number: hash(Net(number % 40).apply), range(4000)))
    assert len(set(hashes)) == 40
    assert len(methods._kept) <= methods._SIZE

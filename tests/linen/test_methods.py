"""Methods that a module keeps: what was traced for `jax.jit(module.apply)` is found again, and never stale."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn

X = jnp.ones((1, 2))


class Net(nn.Module):
    features: Any = 3
    act: Callable[..., Any] = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Doc of the call."""
        return self.act(nn.Dense(2)(x)) if train else nn.Dense(2)(x)


def double(x: Any) -> Any:
    return 2 * x


def counted() -> tuple[type[nn.Module], list[Any]]:
    runs: list[Any] = []

    class Counted(nn.Module):
        features: Any = 2

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            runs.append(self.features)
            return nn.Dense(2)(x)

    return Counted, runs


ENTRIES = pytest.mark.parametrize("entry", ["apply", "init", "init_with_output"])


def given_to(entry: str, module: nn.Module) -> Any:
    return module.init(jax.random.key(0), X) if entry == "apply" else jax.random.key(0)


@ENTRIES
def test_jit_of_one_instance_traces_once(entry: str) -> None:
    cls, runs = counted()
    module = cls()
    given = given_to(entry, module)
    runs.clear()
    for _ in range(4):
        jax.jit(getattr(module, entry))(given, X)
        gc.collect()
    assert len(runs) == 1


@ENTRIES
@pytest.mark.parametrize("run", [jax.jit, lambda fn: lambda *args: jax.eval_shape(fn, *args)])
def test_an_equal_instance_does_not_find_what_was_traced_before(entry: str, run: Any) -> None:
    cls, runs = counted()
    given = given_to(entry, cls())
    runs.clear()
    for _ in range(3):
        run(getattr(cls(), entry))(given, X)
    assert len(runs) == 3
    assert cls().apply != cls().apply


def test_what_a_notebook_defines_anew_is_seen() -> None:
    factor = 1.0

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return x * factor

    assert float(jax.jit(Model().apply)({}, 1.0)) == 1.0
    factor = 100.0
    assert float(jax.jit(Model().apply)({}, 1.0)) == 100.0


@pytest.mark.parametrize("value", [[1], {"a": [1]}, np.ones(1)])
def test_a_field_that_was_changed_in_place_is_seen(value: Any) -> None:
    cls, runs = counted()
    module = cls(value)
    module.init(jax.random.key(0), X)
    variables = module.init(jax.random.key(0), X)
    runs.clear()
    jax.jit(module.apply)(variables, X)
    jax.jit(module.apply)(variables, X)
    assert len(runs) == 1
    if isinstance(value, dict):
        value["a"].append(2)
    elif isinstance(value, list):
        value.append(2)
    else:
        value[0] = 5
    jax.jit(module.apply)(variables, X)
    assert len(runs) == 2


def test_a_module_that_was_changed_has_another_method() -> None:
    module = Net([1])
    before = module.apply
    assert before == module.apply
    module.features = [1, 2]
    assert module.apply != before


@pytest.mark.rest
def test_what_a_module_holds_goes_with_it() -> None:
    def use() -> weakref.ref[Any]:
        array = np.ones(3)
        module = Net(act=lambda x: x + array[0])
        jax.jit(module.apply)(module.init(jax.random.key(0), X), X)
        return weakref.ref(array)

    held = use()
    jax.clear_caches()
    gc.collect()
    assert held() is None


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


def test_tracers_in_functions_do_not_leak() -> None:
    def model(x: jax.Array) -> Any:
        module = Net(act=lambda y: y + x.sum())
        variables = jax.jit(module.init)(jax.random.key(0), X)
        return jax.jit(module.apply, static_argnames="train")(variables, X, train=True)

    with jax.checking_leaks():
        jax.jit(model).lower(X)


def test_what_surrounds_a_call_tells_methods_apart() -> None:
    net = Net()
    plain = net.apply
    assert plain == net.apply
    with nn.override_named_call(False):
        unnamed = net.apply
        assert unnamed != plain
    with nn.intercept_methods(lambda next_fun, args, kwargs, context: next_fun(*args, **kwargs)):
        one, other = net.apply, net.apply
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
    net, seen = Net(), []
    variables = net.init(jax.random.key(0), X)

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        seen.append(context.method_name)
        return next_fun(*args, **kwargs)

    jax.jit(net.apply)(variables, X)
    with nn.intercept_methods(note):
        jax.jit(net.apply)(variables, X)
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

"""Functions that stand around each call of a method, and the names of calls in profiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Child(nn.Module):
    def setup(self) -> None:
        self.dense = nn.Dense(2)

    def helper(self, x: Any, scale: float = 1.0) -> Any:
        return self.dense(x) * scale

    @nn.nowrap
    def plain(self, x: Any) -> Any:
        return x

    def __call__(self, x: Any) -> Any:
        return self.helper(self.plain(x), scale=2.0)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return Child()(x)


class Seen:
    """An interceptor that notes each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, next_fun: Any, args: Any, kwargs: Any, context: nn.InterceptorContext) -> Any:
        module = context.module
        self.calls.append((type(module).__name__, module.name, context.method_name, len(args), sorted(kwargs)))
        return next_fun(*args, **kwargs)


def doubled(next_fun: Any, args: Any, kwargs: Any, context: nn.InterceptorContext) -> Any:
    y = next_fun(*args, **kwargs)
    return 2 * y if isinstance(context.module, nn.Dense) and context.method_name == "__call__" else y


def test_all_calls_are_seen_with_setup_and_without_what_is_plain() -> None:
    seen = Seen()
    with nn.intercept_methods(seen):
        Model().init(KEY, X)
    assert seen.calls == [
        ("Model", None, "__call__", 1, []),
        ("Child", "Child_0", "setup", 0, []),
        ("Child", "Child_0", "__call__", 1, []),
        ("Child", "Child_0", "helper", 1, ["scale"]),
        ("Dense", "dense", "__call__", 1, []),
    ]
    Model().init(KEY, X)
    assert len(seen.calls) == 5, "outside of the block nothing is intercepted"


def test_the_one_that_was_entered_first_is_the_outermost() -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        def interceptor(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
            order.append(f"{name} in")
            y = next_fun(*args, **kwargs)
            order.append(f"{name} out")
            return y

        return interceptor

    with nn.intercept_methods(noting("a")), nn.intercept_methods(noting("b")):
        nn.Dense(2).init(KEY, X)
    assert order == ["a in", "b in", "b out", "a out"]


def test_arguments_and_results_may_be_changed_and_are_captured_so() -> None:
    model = nn.Dense(2)
    variables = model.init(KEY, X)
    y = model.apply(variables, X)

    def changed(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        return next_fun(*(3 * arg for arg in args), **kwargs) + 1

    with nn.intercept_methods(changed):
        z, captured = model.apply(variables, X, capture_intermediates=True)
    np.testing.assert_allclose(z, 3 * y + 1, rtol=1e-6)
    np.testing.assert_array_equal(captured["intermediates"]["__call__"][0], z)


def test_a_call_may_be_left_out_or_replaced_by_the_method_without_interceptors() -> None:
    variables = Model().init(KEY, X)
    with nn.intercept_methods(lambda next_fun, args, kwargs, context: "nothing"):
        assert Model().apply(variables, X) == "nothing"

    def bare(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        return context.orig_method(*args, **kwargs)

    with nn.intercept_methods(bare), nn.intercept_methods(doubled):
        np.testing.assert_array_equal(Model().apply(variables, X), Model().apply(variables, X))
        np.testing.assert_array_equal(Model().bind(variables)(X), Model().apply(variables, X))


LIFTS: dict[str, Any] = {
    "vmap": lambda cls: nn.vmap(cls, variable_axes={"params": None}, split_rngs={"params": False}),
    "remat": nn.remat,
    "jit": nn.jit,
}


@pytest.mark.parametrize("lift", LIFTS)
def test_a_lifted_method_is_intercepted_once_where_it_runs(lift: str) -> None:
    model = LIFTS[lift](nn.Dense)(2)
    variables = model.init(KEY, X)
    y = model.apply(variables, X)
    seen = Seen()
    for _ in range(2):
        with nn.intercept_methods(doubled), nn.intercept_methods(seen):
            np.testing.assert_allclose(model.apply(variables, X), 2 * y, rtol=1e-6)
        np.testing.assert_array_equal(model.apply(variables, X), y)
    assert [call[2] for call in seen.calls] == ["__call__", "__call__"]


def test_nothing_stays_behind_when_a_call_raises() -> None:
    class Broken(nn.Module):
        def __call__(self, x: Any) -> Any:
            raise RuntimeError

    seen = Seen()
    with pytest.raises(RuntimeError), nn.intercept_methods(seen):
        Broken().apply({}, X)
    Model().init(KEY, X)
    assert len(seen.calls) == 1


def test_other_threads_are_not_intercepted() -> None:
    seen = Seen()
    with nn.intercept_methods(seen), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: Model().init(KEY, X)).result()
    assert not seen.calls


def test_an_interceptor_is_a_function() -> None:
    with pytest.raises(LiftArgumentError) as caught, nn.intercept_methods(3):  # type: ignore[arg-type]
        pass
    assert caught.value.where == "nn.intercept_methods"
    assert caught.value.what == "expected a function, given 3."


# -- names in profiles -------------------------------------------------------------------------------------------------


def is_named() -> bool:
    """Whether the operations of a module carry its name."""
    model = nn.Dense(2, name="my_head")
    variables = model.init(KEY, X)
    return "my_head" in jax.jit(lambda variables: model.apply(variables, X)).lower(variables).as_text(debug_info=True)


def test_names_in_profiles_can_be_switched_off() -> None:
    assert is_named()
    with nn.override_named_call(False):
        assert not is_named()
        with nn.override_named_call():
            assert is_named()
    assert is_named()


def test_names_in_profiles_can_be_switched_off_for_all_threads() -> None:
    nn.disable_named_call()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(is_named).result()
        with nn.override_named_call(True):
            assert is_named()
        assert not is_named()  # the override is over
    finally:
        nn.enable_named_call()
    assert is_named()

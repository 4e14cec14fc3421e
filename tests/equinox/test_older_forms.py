"""The older call forms: `default`, `fn`, `args`, `kwargs` and `out`, and `filter_grad(arg=…)`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
from liftcore.errors import LiftArgumentError

X = jnp.arange(3.0)


def told(seen: list[Any], *values: Any) -> list[str]:
    """Which values are traced, and which are static."""
    seen.append(["traced" if isinstance(one, jax.core.Tracer) else repr(one) for one in values])
    return seen[-1]


# -- filter_jit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["traced", "2.0", "3"]),
        ({"default": True}, ["traced", "traced", "traced"]),
        ({"default": eqx.is_array_like}, ["traced", "traced", "traced"]),
        ({"default": False, "args": (True,)}, ["traced", "2.0", "3"]),
        ({"default": True, "args": (True, False)}, ["traced", "2.0", "traced"]),
        ({"args": ({"x": eqx.is_array}, True)}, ["traced", "traced", "3"]),
        ({"kwargs": {"k": True}}, ["traced", "2.0", "traced"]),
        ({"kwargs": {"k": lambda leaf: leaf == 3}}, ["traced", "2.0", "traced"]),
    ],
)
def test_prefixes_tell_what_is_traced(options: dict[str, Any], expected: list[str]) -> None:
    seen: list[Any] = []
    run = eqx.filter_jit(lambda x, y, *, k: (told(seen, x["x"], y, k), x["x"] * y * k)[1], **options)
    np.testing.assert_array_equal(run({"x": X}, 2.0, k=3), X * 6)
    run({"x": X + 1}, 2.0, k=3)
    assert seen == [expected]


def test_a_number_that_is_traced_makes_no_new_trace() -> None:
    seen: list[Any] = []
    run = eqx.filter_jit(lambda y: (told(seen, y), y + 1)[1], default=True)
    assert [float(run(1.0)), float(run(2.0))] == [2.0, 3.0]
    assert len(seen) == 1


def test_fn_is_about_the_function() -> None:
    seen: list[Any] = []

    class Scaled(eqx.Module):
        factor: Any

        def __call__(self, x: Any) -> Any:
            told(seen, self.factor)
            return self.factor * x

    np.testing.assert_array_equal(eqx.filter_jit(Scaled(2.0), fn=True)(X), 2 * X)
    np.testing.assert_array_equal(eqx.filter_jit(Scaled(2.0), default=True)(X), 2 * X)
    assert seen == [["traced"], ["2.0"]]


def test_out_tells_what_comes_back_as_it_is() -> None:
    assert eqx.filter_jit(lambda x: (x, 2.0, "s"), out=eqx.is_array)(X)[1:] == (2.0, "s")
    number = eqx.filter_jit(lambda x: (x, 2.0), out=True)(X)[1]
    assert isinstance(number, jax.Array)
    number = eqx.filter_jit(lambda x: (x, 2.0), out=(True, False))(X)[1]
    assert type(number) is float


def test_what_cannot_be_traced_is_an_error_of_jax() -> None:
    with pytest.raises(TypeError, match="str"):
        eqx.filter_jit(lambda x: x, default=True)("text")


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (
            lambda: eqx.filter_jit(lambda x: x, default=False)(X),
            r"filter_jit\(<lambda>\): x is static, but is a float32.* write True",
        ),
        (
            lambda: eqx.filter_jit(lambda x: x, out=False)(X),
            "result is marked as static, but depends on traced values",
        ),
        (lambda: eqx.filter_jit(lambda x: x, args=({"y": True},))({"x": X}), "expected a pytree prefix"),
        (lambda: eqx.filter_jit(lambda x: x, args=(True, True))(X), "it has 2 entries, but 1 arguments"),
        (lambda: eqx.filter_jit(lambda x: x, args=[True]), "expected a tuple"),
        (lambda: eqx.filter_jit(lambda x: x, kwargs=(True,)), "expected a dict"),
        (lambda: eqx.filter_vmap(lambda x: x, in_axes=0, default=0), "in_axes and default are two forms"),
        (lambda: eqx.filter_pmap(lambda x: x, out_axes=0, out=0), "out_axes and out are two forms"),
        (lambda: eqx.filter_grad(lambda x: x, arg={"y": True})({"x": X}), "expected a pytree prefix"),
    ],
)
def test_misuse_says_where(run: Any, what: str) -> None:
    with pytest.raises(LiftArgumentError, match=what):
        run()


# -- filter_vmap -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"default": eqx.if_array(0)},
        {"default": None, "args": (0,)},
        {"default": False, "args": (0,)},
        {"args": (lambda leaf: 0,), "default": True},
        {"kwargs": {"k": None}, "args": (0, None)},
    ],
)
def test_prefixes_tell_axes(options: dict[str, Any]) -> None:
    run = eqx.filter_vmap(lambda x, y, *, k: x * y * k, **{"out": 0, **options})
    np.testing.assert_array_equal(run(X, 2.0, k=3), X * 6)


def test_axes_by_name_for_the_function_and_of_the_result() -> None:
    class Scaled(eqx.Module):
        factor: Any

        def __call__(self, x: Any, *, y: Any) -> Any:
            return self.factor * x + y, self.factor

    rows = jnp.arange(6.0).reshape(2, 3)
    run = eqx.filter_vmap(Scaled(X), fn=None, kwargs={"y": 1}, args=(0,), out=(1, None))
    found, factor = run(rows, y=rows.T)
    np.testing.assert_array_equal(found, (X * rows + rows).T)
    np.testing.assert_array_equal(factor, X)
    found, _ = eqx.filter_vmap(Scaled(X), default=None, fn=0, out=0)(2.0, y=1.0)
    np.testing.assert_array_equal(found, 2 * X + 1)
    found, factor = eqx.filter_vmap(Scaled(X), kwargs={"y": 1}, out=(0, None))(rows, y=rows.T)
    np.testing.assert_array_equal(found, X * rows + rows)
    np.testing.assert_array_equal(factor, X)


# -- filter_pmap -------------------------------------------------------------------------------------------------------


def test_a_pmap_traces_or_not() -> None:
    seen: list[Any] = []

    def run(x: Any, y: Any, *, k: Any) -> Any:
        told(seen, y, k)
        return x * y * k, k

    found, k = eqx.filter_pmap(run, default=0, args=(0, True), kwargs={"k": False}, out=(0, False))(X[None], 2.0, k=3)
    np.testing.assert_array_equal(found, (X * 6)[None])
    assert k == 3
    assert seen == [["traced", "3"]]


def test_a_pmap_maps_what_the_function_holds() -> None:
    class Scaled(eqx.Module):
        factor: Any
        name: str

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    for fn in (Scaled(0, None), eqx.if_array(0)):
        found = eqx.filter_pmap(Scaled(X[None], "net"), fn=fn, args=(None,), out=1)(2.0)
        np.testing.assert_array_equal(found, (2 * X)[:, None])


# -- filter_grad -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arg", "expected"),
    [
        (eqx.is_array, {"w": 2.0, "b": None}),
        ({"w": False, "b": True}, {"w": None, "b": 1.0}),
        (True, {"w": 2.0, "b": 1.0}),
    ],
)
def test_arg_tells_what_is_differentiated(arg: Any, expected: dict[str, Any]) -> None:
    def loss(model: Any) -> Any:
        return 2 * model["w"] + model["b"]

    model = {"w": jnp.float32(1), "b": 3.0}
    value, gradient = eqx.filter_value_and_grad(loss, arg=arg)(model)
    assert float(value) == 5.0
    assert jax.tree.map(float, gradient) == expected
    assert jax.tree.map(float, eqx.filter_grad(arg=arg)(loss)(model)) == expected

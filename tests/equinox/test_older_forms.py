"""The older call forms: `default`, `fn`, `args`, `kwargs` and `out`, and `filter_grad(arg=…)`."""

from __future__ import annotations

import functools
import inspect
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
        (lambda: eqx.filter_jit(lambda x: x, args=(True, True))(X), r"do not fit .* \(x\): too many positional"),
        (lambda: eqx.filter_vmap(lambda x: x, kwargs={"y": 0})(X), r"do not fit .* \(x\): .* 'y'"),
        (lambda: eqx.filter_jit(lambda x: x, args=(True,), kwargs={"x": True})(X), "multiple values for argument 'x'"),
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


class Scale(eqx.Module):
    w: Any = 1.0

    def call(self, x: Any, y: Any = 2) -> Any:
        return kinds(self.w, x, y)

    @eqx.filter_jit(kwargs={"y": True})
    def decorated(self, x: Any, y: Any = 2) -> Any:
        return kinds(self.w, x, y)


def kinds(*values: Any) -> str:
    """One letter for each value: whether it is traced or static."""
    return "".join("t" if isinstance(one, jax.core.Tracer) else "s" for one in values)


def plain(x: Any, y: Any = 2) -> Any:
    return kinds(x, y)


def many(x: Any, *args: Any, k: Any = 3, **kwargs: Any) -> Any:
    return kinds(x, *args, k, *kwargs.values())


X_AND_Y = {"kwargs": {"x": True, "y": True}}


@pytest.mark.parametrize(
    ("fun", "options", "call", "expected"),
    [
        (plain, {"kwargs": {"x": True}}, lambda f: f(1), "ts"),
        (plain, {"kwargs": {"x": True}}, lambda f: f(y=1, x=1), "ts"),
        (plain, {"kwargs": {"y": True}}, lambda f: f(1), "st"),
        (plain, {"args": (True, True)}, lambda f: f(1), "tt"),
        (plain, {"args": (False,), "default": True}, lambda f: f(x=1, y=2), "st"),
        (plain, {"default": True, **X_AND_Y}, lambda f: f(1, 2), "tt"),
        (many, {"args": (True, False, True)}, lambda f: f(1, 2, 3, 4), "tstss"),
        (many, {"args": (True, True, True)}, lambda f: f(1), "ts"),
        (many, {"kwargs": {"x": True, "k": True, "z": True}}, lambda f: f(1, 2, a=1, z=2), "tstst"),
        (many, {"default": True, "kwargs": {"k": False, "z": False}}, lambda f: f(1, z=1), "tss"),
        (Scale().call, X_AND_Y, lambda f: f(1), "stt"),
        (Scale().call, {"args": (True,), "fn": True}, lambda f: f(x=1), "tts"),
        (Scale().decorated, {"args": (True,)}, lambda f: f(1), "stt"),
        (functools.partial(plain, 1), {"kwargs": {"y": True}}, lambda f: f(), "st"),
        (functools.partial(plain, y=1), X_AND_Y, lambda f: f(1), "tt"),
        (eqx.Partial(plain, 1), {"args": (True,)}, lambda f: f(2), "st"),
        (eqx.filter_jit(plain), X_AND_Y, lambda f: f(1), "tt"),
    ],
)
def test_options_hold_for_parameters_however_they_are_passed(fun: Any, options: Any, call: Any, expected: str) -> None:
    assert call(eqx.filter_jit(fun, **options)) == expected


def test_a_method_under_a_transformation_has_the_signature_of_the_method() -> None:
    assert str(inspect.signature(Scale().decorated)) == "(x: 'Any', y: 'Any' = 2) -> 'Any'"


@pytest.mark.parametrize("transformation", [eqx.filter_vmap, eqx.filter_pmap])
@pytest.mark.parametrize(
    ("fun", "options", "call", "shape"),
    [
        (lambda x, y: x + y, {"kwargs": {"x": None}}, lambda f: f(X, X[None]), (1, 3)),
        (lambda x, y: x + y, {"kwargs": {"x": 1}}, lambda f: f(X[:, None], y=X[None]), (1, 3)),
        (lambda x, y=X: x + y, {"args": (0, None)}, lambda f: f(X[None]), (1, 3)),
        (lambda x, y=X[None]: x + y, {"args": (None,)}, lambda f: f(X), (1, 3)),
        (lambda x, *ys, k=2: (x + ys[0]) * k, {"args": (None, 0, 0, 0)}, lambda f: f(X, X[None]), (1, 3)),
    ],
)
def test_axes_hold_for_parameters_however_they_are_passed(
    transformation: Any, fun: Any, options: Any, call: Any, shape: Any
) -> None:
    assert jnp.shape(call(transformation(fun, **options))) == shape


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

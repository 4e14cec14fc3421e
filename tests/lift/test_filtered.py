"""`filtered`: any lift over arguments and results that hold any Python objects."""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import liftcore
import linen_like as nn
from liftcore import Rest, Scope, filtered, is_array
from liftcore.errors import CarryTypeError, LiftArgumentError
from tests.core.pytrees import PYTREES, Layer, same
from tests.lift.own import inline
from tests.lift.quick import assert_same, key, uniform

X = jnp.linspace(0.1, 0.6, 6).reshape(2, 3)
INPUTS = {"x": X, "act": jnp.tanh, "mode": "train", "more": [1, None]}
SHARED: dict[str, Any] = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
CARRIED: dict[str, Any] = {"variable_broadcast": "params", "split_rngs": {"params": False}}
partial = functools.partial


class Opaque(random.Random):
    """What no key stands for: its state is not in attributes."""


def layer(scope: Scope, inputs: Any) -> Any:
    """A layer whose arguments and results are not only arrays."""
    y = inputs["act"](inputs["x"] * scope.param("w", uniform, (3,)))
    return {**inputs, "x": y, "done": f"in mode {inputs['mode']}"}


def step(scope: Scope, carry: Any, xs: Any) -> Any:
    made = layer(scope, xs)
    return {**carry, "n": carry["n"] + 1}, made


def transformed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A `vmap` of a user's own."""

    def transform(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        return jax.vmap(lambda *args: body(variables, rngs, *args), out_axes=(0, None))(*args)

    return liftcore.transformation(transform, [True], [True], [True])(fn)


# -- every kind of lift ------------------------------------------------------------------------------------------------

LIFTS: dict[str, Callable[..., Any]] = {
    "jit": filtered(liftcore.jit, layer),
    "remat": filtered(liftcore.remat, layer),
    "named_call": filtered(liftcore.named_call, layer),
    "vmap": filtered(partial(liftcore.vmap, **SHARED), layer),
    "map": filtered(partial(liftcore.map, **SHARED), layer),
    "map_variables": filtered(partial(liftcore.map_variables, mapped="params", init=True), layer),
    "checkify": lambda scope, inputs: filtered(liftcore.checkify, layer)(scope, inputs)[1],
    "cond": lambda scope, inputs: filtered(liftcore.cond, layer, layer)(scope, inputs["x"].sum() > 0, inputs),
    "switch": lambda scope, inputs: filtered(lambda *fns: liftcore.switch(fns), layer, layer)(
        scope, inputs["x"].size - jnp.int32(5), inputs
    ),
    "scan": lambda scope, inputs: filtered(partial(liftcore.scan, **CARRIED), step)(
        scope, {"n": jnp.int32(0), "name": "carried"}, inputs
    )[1],
    "value_and_grad": lambda scope, inputs: filtered(
        partial(liftcore.value_and_grad, has_aux=True), lambda *args: ((made := layer(*args))["x"].sum(), made)
    )(scope, inputs)[0][1],
    "pack": filtered(inline, layer),
    "jit of vmap": filtered(liftcore.jit, filtered(partial(liftcore.vmap, **SHARED), layer)),
}


@pytest.mark.parametrize("name", LIFTS)
def test_any_objects_go_in_and_come_home(name: str) -> None:
    expected, variables = liftcore.init(layer)(key(0), INPUTS)
    made, its_variables = liftcore.init(LIFTS[name])(key(0), INPUTS)
    applied = liftcore.apply(LIFTS[name])(variables, INPUTS)
    for result in (made, applied):
        assert {name: result[name] for name in result if name != "x"} == {
            name: expected[name] for name in expected if name != "x"
        }
        assert_same(result["x"], expected["x"])
    assert_same(its_variables, variables)


def test_a_transformation_of_ones_own_is_filtered() -> None:
    _, variables = liftcore.init(layer)(key(0), INPUTS)
    result = liftcore.apply(filtered(transformed, layer))(variables, INPUTS)
    assert_same(result["x"], liftcore.apply(layer)(variables, INPUTS)["x"])
    assert result["done"] == "in mode train"


def test_eval_shape_tells_types_and_static_leaves() -> None:
    made, _ = liftcore.init(filtered(liftcore.eval_shape, layer))(key(0), INPUTS)
    assert (made["x"].shape, made["act"], made["done"]) == ((2, 3), jnp.tanh, "in mode train")


def test_loops_carry_what_is_static() -> None:
    def body(scope: Scope, i: Any, carry: Any) -> Any:
        return {**carry, "x": carry["act"](carry["x"])}

    loop = filtered(liftcore.fori_loop, body)
    result = liftcore.apply(loop, mutable=False)({}, jnp.int32(0), jnp.int32(2), INPUTS)
    assert_same(result["x"], jnp.tanh(jnp.tanh(X)))
    assert result["mode"] == "train"


def test_a_loop_that_changes_what_is_static_is_an_error() -> None:
    def body(scope: Scope, carry: Any, x: Any) -> Any:
        return {**carry, "mode": "eval"}, x

    with pytest.raises(CarryTypeError):
        liftcore.apply(filtered(liftcore.scan, body))({}, {"mode": "train"}, X)


def test_gradients_have_the_structure_of_the_arguments() -> None:
    def loss(scope: Scope, inputs: Any) -> Any:
        return inputs["act"](inputs["x"]).sum()

    _, grads = liftcore.apply(filtered(partial(liftcore.value_and_grad, argnums=1), loss))({}, INPUTS)
    assert_same(grads["x"], 1 - jnp.tanh(X) ** 2)
    assert (grads["act"], grads["mode"], grads["more"]) == (jnp.tanh, "train", [1, None])


@pytest.mark.parametrize("lift", [nn.jit, nn.remat, partial(nn.vmap, **SHARED)], ids=["jit", "remat", "vmap"])
def test_lifts_of_a_module_layer_are_filtered(lift: Any) -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, inputs: Any) -> Any:
            return {**inputs, "x": inputs["act"](nn.Dense(2)(inputs["x"]))}

    class Outer(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, inputs: Any) -> Any:
            call = filtered(lift, lambda inner, inputs: inner(inputs)) if self.lifted else lambda inner, x: inner(x)
            return call(Inner(), inputs)

    expected, variables = Outer(False).init_with_output(key(0), INPUTS)
    for result in (Outer(True).init_with_output(key(0), INPUTS)[0], Outer(True).apply(variables, INPUTS)):
        assert_same(result["x"], expected["x"])
        assert (result["act"], result["mode"]) == (jnp.tanh, "train")


# -- axes and other options --------------------------------------------------------------------------------------------


def test_axes_fit_the_arguments_as_they_are() -> None:
    axes = ({"x": 1, "act": None, "mode": None, "more": 0}, None, 0)

    def fn(scope: Scope, inputs: Any, mode: str, y: Any) -> Any:
        return inputs["x"] + y, (inputs["mode"], mode)

    mapped = filtered(partial(liftcore.vmap, in_axes=axes, out_axes=(1, None)), fn)
    y, told = liftcore.apply(mapped)({}, INPUTS, "eval", jnp.arange(3.0))
    assert_same(y, X + jnp.arange(3.0))
    assert told == ("train", "eval")


def test_keyword_arguments_may_be_anything() -> None:
    mapped = filtered(liftcore.jit, lambda scope, x, *, act, mode: (act(x), mode))
    y, mode = liftcore.apply(mapped)({}, X, act=jnp.tanh, mode="train")
    assert_same(y, jnp.tanh(X))
    assert mode == "train"


def test_donated_arguments_keep_their_numbers() -> None:
    compiled = filtered(partial(liftcore.jit, donate_argnums=2), lambda scope, mode, x: (x + 1, mode))
    given = X + 0
    y, mode = liftcore.apply(compiled)({}, "train", given)
    assert_same(y, X + 1)
    assert mode == "train"
    assert given.is_deleted()


def test_a_predicate_says_what_is_traced() -> None:
    seen = []

    def fn(scope: Scope, rate: Any, x: Any) -> Any:
        seen.append((is_array(rate), is_array(x)))
        return rate, 2.0

    compiled = filtered(liftcore.jit, fn, is_traced=lambda leaf: is_array(leaf) or isinstance(leaf, float))
    rate, two = liftcore.apply(compiled)({}, 0.5, 3)
    liftcore.apply(compiled)({}, 0.25, 3)
    assert seen == [(True, False)]
    assert (float(rate), float(two)) == (0.5, 2.0)


def test_numpy_arrays_are_traced() -> None:
    compiled = filtered(liftcore.jit, lambda scope, x: isinstance(x, jax.core.Tracer))
    assert [liftcore.apply(compiled)({}, x) for x in (np.ones(2), np.float32(1), 1.0)] == [True, True, False]


def test_several_scopes_are_lifted() -> None:
    def fn(scopes: Any, mode: str, x: Any) -> Any:
        return mode, scopes["b"].param("w", uniform, (3,)) * scopes["a"].param("w", uniform, (3,)) * x

    def model(scope: Scope, x: Any) -> Any:
        return filtered(liftcore.jit, fn)({"a": scope.push("a"), "b": scope.push("b")}, "train", x)

    (mode, _), variables = liftcore.init(model)(key(0), X)
    assert mode == "train"
    assert set(variables["params"]) == {"a", "b"}


# -- traces ------------------------------------------------------------------------------------------------------------


def counted(traces: list[Any]) -> Callable[..., Any]:
    def fn(scope: Scope, inputs: Any) -> Any:
        traces.append(inputs["mode"])
        return layer(scope, inputs)

    return fn


def test_a_second_call_finds_the_trace_and_the_static_result() -> None:
    traces: list[Any] = []
    compiled = filtered(liftcore.jit, counted(traces))
    _, variables = liftcore.init(layer)(key(0), INPUTS)
    for x in (X, X + 1):
        result = liftcore.apply(compiled)(variables, {**INPUTS, "x": x})
        assert result["done"] == "in mode train"
        assert_same(result["x"], liftcore.apply(layer)(variables, {**INPUTS, "x": x})["x"])
    assert traces == ["train"]


def test_unequal_static_leaves_are_traced_anew() -> None:
    traces: list[Any] = []
    compiled = filtered(liftcore.jit, counted(traces))
    _, variables = liftcore.init(layer)(key(0), INPUTS)
    modes = ["a", "a", "b", 1, True, 1.0, 1, 0.0, -0.0, 0.0, math.nan, float("nan"), ("a",), "a"]
    for mode in modes:
        result = liftcore.apply(compiled)(variables, {**INPUTS, "mode": mode})
        assert same(result["mode"], mode)
    assert list(map(repr, traces)) == ["'a'", "'b'", "1", "True", "1.0", "0.0", "-0.0", "nan", "('a',)"]


def test_one_made_anew_finds_the_trace_of_the_same_function() -> None:
    traces: list[Any] = []
    fn = counted(traces)
    _, variables = liftcore.init(layer)(key(0), INPUTS)
    for _ in range(3):
        liftcore.apply(filtered(liftcore.jit, fn))(variables, INPUTS)
    assert traces == ["train"]


def test_variables_are_made_inside_nested_loops_and_bodies_run_once() -> None:
    traces: list[Any] = []
    inner = filtered(partial(liftcore.vmap, variable_axes={"params": 0}, split_rngs={"params": True}), counted(traces))

    def step(scope: Scope, carry: Any, xs: Any) -> Any:
        return carry, inner(scope, xs)

    loop = filtered(partial(liftcore.scan, variable_axes={"params": 0}, split_rngs={"params": True}), step)
    inputs = {**INPUTS, "x": jnp.ones((4, 2, 3))}
    (carry, made), variables = liftcore.init(loop)(key(0), "carry", inputs)
    assert traces == ["train"]
    assert (carry, made["mode"], made["x"].shape) == ("carry", "train", (4, 2, 3))
    assert jax.tree.map(jnp.shape, variables) == {"params": {"w": (4, 2, 3)}}
    (_, again) = liftcore.apply(loop)(variables, "carry", inputs)
    assert_same(again["x"], made["x"])


# -- whatever the values are -------------------------------------------------------------------------------------------

HOME: list[Any] = []


def home(scope: Scope, tree: Any) -> Any:
    HOME.append(tree)
    return tree


@given(PYTREES)
@settings(deadline=None, max_examples=60)
def test_any_pytree_passes_as_it_is(tree: Any) -> None:
    for lift in (liftcore.jit, liftcore.remat, partial(liftcore.vmap, in_axes=None, out_axes=None, axis_size=2)):
        result = liftcore.apply(filtered(lift, home))({}, tree)
        seen = HOME.pop() if HOME else tree  # a trace that was kept runs no Python
        assert same(result, tree)
        assert jax.tree.structure(seen) == jax.tree.structure(tree)


def test_a_rest_that_the_user_gives_stays_one() -> None:
    assert liftcore.apply(filtered(liftcore.jit, home))({}, {"a": Rest("x")}) == {"a": Rest("x")}


def test_pytrees_of_the_users_own_keep_their_class() -> None:
    result = liftcore.apply(filtered(liftcore.vmap, home))({}, Layer(X, jnp.tanh))
    assert isinstance(result, Layer)
    assert result.act is jnp.tanh


# -- what the function shows, and errors -------------------------------------------------------------------------------


def test_the_lifted_function_has_the_name_and_the_signature() -> None:
    lifted = filtered(liftcore.jit, layer)
    assert (lifted.__name__, lifted.__doc__) == ("layer", layer.__doc__)
    assert inspect.signature(lifted) == inspect.signature(layer)


def test_errors_name_the_function() -> None:
    with pytest.raises(liftcore.errors.LiftError, match=r"vmap\(layer\)"):
        liftcore.apply(filtered(liftcore.vmap, layer))({"params": {"w": jnp.ones(3)}}, INPUTS)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": [Opaque()]}, r"filtered\(home\): argument 1\['a'\]\[0\] is a Opaque, which is static.*register Opaque"),
        (partial(home, jnp.ones(2)), r"argument 1\.args\[0\] is a ArrayImpl"),
    ],
)
def test_what_has_no_key_is_an_error_that_says_where_it_is(inputs: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=message):
        liftcore.apply(filtered(liftcore.jit, home))({}, inputs)


def test_a_keyword_argument_or_a_result_without_a_key_is_named() -> None:
    with pytest.raises(LiftArgumentError, match='argument "tree" is a Opaque'):
        liftcore.apply(filtered(liftcore.jit, home))({}, tree=Opaque())
    with pytest.raises(LiftArgumentError, match=r"the result\[0\] is a Opaque"):
        liftcore.apply(filtered(liftcore.jit, lambda scope, x: [Opaque()]))({}, X)


def test_a_scope_among_the_arguments_is_an_error() -> None:
    def model(scope: Scope) -> Any:
        return filtered(liftcore.jit, home)(scope, scope.push("below"))

    with pytest.raises(LiftArgumentError, match=r"argument 1 is a Scope.*Pass it first"):
        liftcore.apply(model)({})


def test_an_argument_or_a_result_that_contains_itself_is_an_error() -> None:
    items: list[Any] = [1]
    items.append(items)
    with pytest.raises(LiftArgumentError, match="list: it contains itself"):
        liftcore.apply(filtered(liftcore.jit, home))({}, items)
    with pytest.raises(LiftArgumentError, match="list: it contains itself"):
        liftcore.apply(filtered(liftcore.jit, lambda scope, x: items))({}, X)


def test_what_cannot_be_called_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="filtered: expected a function, given 3"):
        filtered(liftcore.jit, 3)  # type: ignore[arg-type]
    with pytest.raises(LiftArgumentError, match=r"expected at least one function.*filtered\(lift, fn\)"):
        filtered(liftcore.jit)

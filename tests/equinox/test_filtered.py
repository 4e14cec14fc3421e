"""Filtered transformations: static leaves by type and value, scopes among the arguments, one run of each body."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
from liftcore import Scope
from liftcore.errors import AxisSizeError, LiftArgumentError, NotSharedWarning

KEY = jax.random.key(0)
X = jnp.arange(3.0)


def layer(scope: Scope, x: Any) -> Any:
    w = scope.param("w", jax.random.normal, ())
    runs = scope.variable("state", "runs", lambda: jnp.int32(0))
    runs.value += 1
    return w * x


# -- static leaves -----------------------------------------------------------------------------------------------------


def test_a_trace_serves_equal_static_leaves_only_by_type_sign_and_value() -> None:
    seen: list[Any] = []

    @eqx.filter_jit
    def run(x: Any, static: Any) -> Any:
        seen.append(static)
        return x + 1, static

    values = [1, True, 1.0, 1, 0.0, -0.0, 0.0, "a", "a", None, (1, "b"), (1, "b"), (True, "b")]
    for value in values:
        _, home = run(X, value)
        assert repr(home) == repr(value)
    assert list(map(repr, seen)) == ["1", "True", "1.0", "0.0", "-0.0", "'a'", "None", "(1, 'b')", "(True, 'b')"]


def test_functions_made_anew_find_their_trace() -> None:
    runs = []

    def body(x: Any) -> Any:
        runs.append(x)
        return 2 * x

    for _ in range(3):
        np.testing.assert_array_equal(eqx.filter_jit(eqx.filter_vmap(body))(X), 2 * X)
        np.testing.assert_array_equal(eqx.filter_jit(eqx.filter_grad(lambda x: x**2))(jnp.float32(2)), 4)
    assert len(runs) == 1


def test_arrays_that_a_filtered_function_holds_are_traced() -> None:
    runs = []

    def call(model: Any, x: Any) -> Any:
        runs.append(model)
        return model["w"] * x

    for w in range(3):
        bound = jax.tree_util.Partial(call, {"w": jnp.float32(w)})
        np.testing.assert_array_equal(eqx.filter_jit(bound)(X), w * X)
    assert len(runs) == 1


def test_a_filtered_function_is_a_method() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Model:
        w: Any

        @eqx.filter_jit
        def __call__(self, x: Any) -> Any:
            """Scales."""
            return self.w * x

    model = Model(jnp.float32(2))
    np.testing.assert_array_equal(model(X), 2 * X)
    np.testing.assert_array_equal(eqx.filter_jit(model.__call__)(X), 2 * X)
    assert Model.__call__.__name__ == "__call__"


class Opaque:
    """Is equal only to itself."""

    def __init__(self, size: Any) -> None:
        self.size = size


@dataclasses.dataclass
class OpaqueData:
    """Is equal to others, and has no hash."""

    size: Any


def test_what_may_change_unseen_is_traced_each_time_with_a_warning() -> None:
    runs = []
    run = eqx.filter_jit(lambda x, opaque: (runs.append(opaque), opaque)[1])
    opaque = random.Random(0)
    with pytest.warns(NotSharedWarning, match=r"filter_jit\(<lambda>\): the static leaf opaque is .*Random"):
        assert run(X, opaque) is opaque
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(X, opaque) is opaque
    assert len(runs) == 2


def test_a_static_leaf_that_cannot_be_hashed_is_an_error_that_says_where_it_is() -> None:
    with pytest.raises(LiftArgumentError, match=r"filter_jit\(sum\): \S*\[0\] is static.* cannot be hashed"):
        eqx.filter_jit(sum)([bytearray(b"a")])


def test_retraces_names_the_static_leaf() -> None:
    run = eqx.filter_jit(lambda model: model["x"])
    run({"x": X, "mode": "train"})
    with liftcore.retraces() as found:
        run({"x": X, "mode": "eval"})
    (record,) = found.records
    assert [(one.before, one.now) for one in record.differences] == [("'train'", "'eval'")]
    assert "['mode']" in record.differences[0].what


# -- donation, and compilation ahead of time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("donate", "gone"),
    [("none", [0, 0]), ("all", [1, 1]), ("all-except-first", [0, 1]), ("warn-except-first", [0, 1]), ("warn", [1, 1])],
)
def test_whose_buffers_are_given_up(donate: str, gone: list[int]) -> None:
    args = [jnp.ones(3) + 1, jnp.ones(3) + 2]
    eqx.filter_jit(lambda x, y: (x + y, x - y), donate=donate)(*args)
    assert [arg.is_deleted() for arg in args] == list(map(bool, gone))


@pytest.mark.parametrize("donate", ["all", "warn"])
def test_only_warn_warns_of_buffers_that_no_result_could_take(donate: str) -> None:
    run = eqx.filter_jit(lambda x: x[0], donate=donate)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(jnp.ones(3) + 1)
    assert bool(found) == (donate == "warn")


def test_another_way_to_donate_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"expected one of .*'all-except-first'.* given 'some'"):
        eqx.filter_jit(lambda x: x, donate="some")


def test_what_is_compiled_ahead_of_time_runs_for_equal_static_leaves_only() -> None:
    compiled = eqx.filter_jit(lambda x, mode: (x + 1, mode)).lower(X, "train").compile()
    np.testing.assert_array_equal(compiled(X, "train")[0], X + 1)
    assert compiled(X, "train")[1] == "train"
    with pytest.raises(LiftArgumentError, match="compiled for values of other types"):
        compiled(X, "eval")


# -- scopes ------------------------------------------------------------------------------------------------------------

FILTERED: dict[str, Callable[[Scope, Any], Any]] = {
    "filter_jit": lambda scope, x: eqx.filter_jit(layer)(scope, x),
    "filter_checkpoint": lambda scope, x: eqx.filter_checkpoint(layer)(scope, x),
    "filter_vmap": lambda scope, x: eqx.filter_vmap(
        layer, in_axes=(None, 0), variable_axes={"params": None, "state": 0}, split_rngs=False
    )(scope, jnp.stack([x, x]))[0],
    "filter_grad": lambda scope, x: eqx.filter_grad(lambda x, scope: layer(scope, x))(x, scope),
    "filter_value_and_grad": lambda scope, x: eqx.filter_value_and_grad(lambda x, scope: layer(scope, x))(x, scope)[1],
    "filter_jacfwd": lambda scope, x: eqx.filter_jacfwd(lambda x, scope: layer(scope, x))(x, scope),
    "filter_jacrev": lambda scope, x: eqx.filter_jacrev(lambda x, scope: layer(scope, x))(x, scope),
    "filter_jvp": lambda scope, x: eqx.filter_jvp(layer, (scope, x), (None, jnp.ones_like(x)))[1],
    "filter_vjp": lambda scope, x: eqx.filter_vjp(layer, scope, x)[1](jnp.ones_like(x))[1],
}
"""Each gives the parameter, for an input of ones."""


@pytest.mark.parametrize("name", FILTERED)
@pytest.mark.parametrize("looped", [False, True])
def test_a_scope_among_the_arguments_is_lifted_and_the_body_runs_once(name: str, looped: bool) -> None:
    runs = []

    def model(scope: Scope, x: Any) -> Any:
        runs.append(x)
        return FILTERED[name](scope.push(name), x)

    one = jnp.float32(1)
    fn = model
    if looped:
        fn = liftcore.scan(
            lambda scope, carry, _: (carry, model(scope, carry)),
            2,
            variable_axes={"params": 0, "state": 0},
            split_rngs=True,
        )
    args = (one, None) if looped else (one,)
    y, variables = liftcore.init(fn)(KEY, *args)
    assert len(runs) == 1
    found = y[1] if looped else y
    np.testing.assert_allclose(found, variables["params"][name]["w"], rtol=1e-6)
    again, state = liftcore.apply(fn, mutable="state")(variables, *args)
    np.testing.assert_allclose(again[1] if looped else again, found, rtol=1e-6)
    before, after = (np.asarray(tree["state"][name]["runs"]) for tree in (variables, state))
    np.testing.assert_array_equal(after, before + 1)


def test_scopes_are_found_wherever_they_are() -> None:
    def call(model: Any, x: Any) -> Any:
        return model["act"](layer(model["scope"], x) + layer(model["others"][0], x))

    def model(scope: Scope, x: Any) -> Any:
        given = {"scope": scope.push("a"), "others": [scope.push("b")], "act": jnp.sin}
        return eqx.filter_jit(call)(given, x)

    y, variables = liftcore.init(model)(KEY, X)
    params = variables["params"]
    np.testing.assert_allclose(y, jnp.sin((params["a"]["w"] + params["b"]["w"]) * X), rtol=1e-5)


@pytest.mark.parametrize("filtered", [eqx.filter_jit, eqx.filter_vmap(axis_size=2), eqx.filter_checkpoint])
def test_a_scope_that_is_returned_is_an_error(filtered: Callable[..., Any]) -> None:
    with pytest.raises(LiftArgumentError, match=r"filter_.*returned the scope .*Return the value of a variable"):
        filtered(lambda scope: scope)(liftcore.bind({}))


def test_a_jaxpr_has_no_scopes() -> None:
    with pytest.raises(LiftArgumentError, match=r"the scope /.*liftcore\.purify"):
        eqx.filter_make_jaxpr(layer)(liftcore.bind({}), X)


# -- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["filter_jacfwd", "filter_jacrev", "filter_hessian"])
def test_a_jacobian_with_respect_to_nothing_has_none_in_the_places_of_its_arrays(name: str) -> None:
    runs: list[int] = []

    def fn(model: Any) -> Any:
        runs.append(1)
        return {"y": X, "name": "net"}, "aux"

    assert getattr(eqx, name)(fn, has_aux=True)({"steps": 5}) == ({"y": {"steps": None}, "name": None}, "aux")
    assert len(runs) == 1


def test_an_error_in_a_function_of_a_prefix_is_the_error_of_the_user() -> None:
    def axis(leaf: Any) -> int:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine"):
        eqx.filter_vmap(lambda x: x, in_axes=axis)(X)


def test_a_converted_function_takes_partial_functions_with_arrays() -> None:
    def convert(add: Any) -> Any:
        return eqx.filter_closure_convert(lambda x, add: add(x), X, add)

    added = functools.partial(jnp.add, X)
    assert (convert(added)(X, functools.partial(jnp.add, 2 * X)) == 3 * X).all()
    assert convert(added).in_struct[0][0] == jax.ShapeDtypeStruct((3,), jnp.float32)


def test_a_converted_function_says_that_an_argument_cannot_be_compared() -> None:
    buffer = memoryview(bytearray(b"net"))
    converted = eqx.filter_closure_convert(lambda x, buffer: x * len(buffer), X, buffer)
    with pytest.raises(LiftArgumentError, match=r"its argument <memory.* cannot be compared with the one"):
        converted(X, buffer)


@pytest.mark.parametrize("cotangent", [None, {}, {"y": None, "name": None}, [X]])
def test_a_pullback_names_the_structure_that_it_takes(cotangent: Any) -> None:
    _, pullback = eqx.filter_vjp(lambda x: {"y": 2 * x, "name": "net"}, X)
    with pytest.raises(LiftArgumentError, match=r"the cotangent of filter_vjp\(<lambda>\): expected the structure"):
        pullback(cotangent)


@pytest.mark.parametrize("name", ["filter_grad", "filter_value_and_grad", "filter_jacfwd", "filter_jacrev"])
def test_what_is_differentiated_is_given_by_position(name: str) -> None:
    with pytest.raises(LiftArgumentError, match="without a positional argument"):
        getattr(eqx, name)(lambda *, x: x)(x=X)


def test_arguments_of_a_mapped_function_are_given_by_position() -> None:
    with pytest.raises(LiftArgumentError, match=r"\['x'\] was passed by name"):
        eqx.filter_vmap(lambda x: x)(x=X)


def test_as_many_tangents_as_primals() -> None:
    with pytest.raises(LiftArgumentError, match="expected 2 `tangents`, given 1"):
        eqx.filter_jvp(lambda x, y: x, (X, X), (X,))


@pytest.mark.parametrize("where", [lambda tree: ((tree["a"], tree["b"]), tree["c"]), lambda tree: {"a": tree["a"]}])
def test_nodes_are_selected_in_a_flat_tuple(where: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"expected nodes of the pytree, given .*a flat tuple or list of nodes"):
        eqx.tree_at(where, {"a": 1, "b": 2, "c": 3}, (4, 5))


def test_the_same_node_cannot_be_replaced_twice() -> None:
    with pytest.raises(LiftArgumentError, match="selected a node twice"):
        eqx.tree_at(lambda tree: (tree[0], tree[0]), [1, 2], (3, 4))


# -- an ensemble -------------------------------------------------------------------------------------------------------


def test_an_ensemble_whose_members_hold_static_activations_learns_as_its_members_do() -> None:
    def make(key: Any) -> Any:
        return {"w": jax.random.normal(key, (3,)), "act": jnp.tanh}

    def loss(model: Any, x: Any) -> Any:
        return model["act"](model["w"] @ x) ** 2

    def step(model: Any, x: Any) -> Any:
        gradient = eqx.filter_grad(loss)(model, x)
        return eqx.apply_updates(model, jax.tree.map(lambda leaf: -0.1 * leaf, gradient))

    keys = jax.random.split(KEY, 4)
    ensemble = eqx.filter_vmap(make)(keys)
    assert ensemble["act"] is jnp.tanh
    members = [make(key) for key in keys]
    run = eqx.filter_jit(eqx.filter_vmap(step, in_axes=(eqx.if_array(0), None)))
    for _ in range(3):
        ensemble = run(ensemble, X)
        members = [step(member, X) for member in members]
    np.testing.assert_allclose(ensemble["w"], jnp.stack([member["w"] for member in members]), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "option", "fix"),
    [
        ("filter_jit", "donate_argnums", 'donate="all-except-first"'),
        ("filter_jit", "donate_argnames", 'donate="all"'),
        ("filter_jit", "static_argnums", "not arrays are static"),
        ("filter_jit", "static_argnames", "not arrays are static"),
        ("filter_jit", "in_shardings", "filter_shard"),
        ("filter_jit", "out_shardings", "filter_shard"),
        ("filter_jit", "abstracted_axes", "inline, keep_unused"),
        ("filter_jit", "donat", "Write `donate=…`."),
        ("filter_grad", "holomorfic", "Write `holomorphic=…`."),
        ("filter_grad", "argnums", "as the first argument"),
        ("filter_value_and_grad", "argnums", "as the first argument"),
        ("filter_jacfwd", "argnums", "as the first argument"),
        ("filter_jacrev", "argnums", "as the first argument"),
        ("filter_hessian", "argnums", "as the first argument"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(name: str, option: str, fix: str) -> None:
    with pytest.raises(LiftArgumentError, match=f"^{name}: `{option}` is not an option") as caught:
        getattr(eqx, name)(jnp.sum, **{option: 1})
    assert fix in str(caught.value)


def test_options_of_jax_that_count_nothing_are_passed_on() -> None:
    assert eqx.filter_jit(jnp.sum, inline=True, keep_unused=True)(X) == 3
    assert eqx.filter_grad(lambda x: x**2, holomorphic=True)(jnp.complex64(2)) == 4


@pytest.mark.parametrize("module", [nn.Dense(2), nn.Dense(2).bind({"params": {}}), jnp.tanh, "text"])
@pytest.mark.parametrize("name", ["filter_grad", "filter_value_and_grad", "filter_jacfwd", "filter_jacrev"])
def test_a_static_first_argument_cannot_be_differentiated(name: str, module: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"is not a pytree of arrays.*eqx\.Applied"):
        getattr(eqx, name)(lambda module: jnp.float32(0))(module)
    assert eqx.filter_grad(lambda tree: jnp.float32(0))({"module": module}) == {"module": None}


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A class that is no pytree."""

    w: Any

    def scaled(self, x: Any) -> Any:
        return self.w * x


@pytest.mark.parametrize(
    ("call", "leaf"),
    [
        (lambda: eqx.filter_jit(Fixed(X).scaled)(X), r"scaled\.__self__\.w"),
        (lambda: eqx.filter_jit(lambda x, model: x)(X, [Fixed(X)]), r"model\[0\]\.w"),
        (lambda: eqx.filter_jit(lambda x, **models: x)(X, one=Fixed(X)), r"one\.w"),
        (lambda: eqx.filter_jit(lambda *xs: xs[0])(X, {"a": Fixed(X)}), r"args\[1\]\['a'\]\.w"),
    ],
)
def test_an_array_in_a_static_leaf_is_an_error_that_names_it(call: Callable[[], Any], leaf: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf": {leaf} is static, but is a float32\[3\] array\. "):
        call()


# -- sizes of axes -----------------------------------------------------------------------------------------------------


def times(model: Any, x: Any) -> Any:
    return model["w"] * x


class Held(eqx.Module):
    """A module with a method."""

    w: Any

    def times(self, x: Any) -> Any:
        return self.w * x


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: eqx.filter_vmap(times)({"w": jnp.ones((4, 2)), "act": jnp.tanh}, jnp.ones((3, 2))),
            "filter_vmap(times): the sizes of the mapped axes disagree (model['w']: 4, x: 3).",
        ),
        (
            lambda: eqx.filter_vmap(times, in_axes=(None, -2))({"w": X}, X),
            "filter_vmap(times): x has shape (3,) and no axis -2 to map over.",
        ),
        (
            lambda: eqx.filter_vmap(times, axis_size=2)({"w": X}, X),
            "filter_vmap(times): the sizes of the mapped axes disagree (the size given: 2, model['w']: 3, x: 3).",
        ),
        (
            lambda: eqx.filter_vmap(lambda *xs, y: y, default=eqx.if_array(0))(X, y=jnp.ones(2)),
            "filter_vmap(<lambda>): the sizes of the mapped axes disagree (args[0]: 3, y: 2).",
        ),
        (
            lambda: eqx.filter_vmap(Held(jnp.ones(2)).times, fn=eqx.if_array(0))(X),
            "filter_vmap(times): the sizes of the mapped axes disagree (times.__self__.w: 2, x: 3).",
        ),
        (
            lambda: eqx.filter_pmap(times)({"w": jnp.ones((1, 2))}, jnp.ones((3, 2))),
            "filter_pmap(times): the sizes of the mapped axes disagree (model['w']: 1, x: 3).",
        ),
    ],
)
def test_an_axis_that_does_not_fit_is_named_as_the_user_wrote_it(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(AxisSizeError) as caught:
        call()
    assert str(caught.value).startswith(text)


@jax.tree_util.register_pytree_node_class
class Strict:
    """A node whose constructor refuses anything but an array."""

    def __init__(self, x: Any) -> None:
        if not hasattr(x, "shape"):
            raise TypeError(f"{x!r} is no array")
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Strict:
        return cls(*children)


@pytest.mark.parametrize(
    "call",
    [
        lambda: eqx.filter_vmap(lambda node: Strict(2 * node.x))(Strict(X)),
        lambda: eqx.filter_jit(lambda node: Strict(2 * node.x), args=(True,), out=True)(Strict(X)),
        lambda: eqx.filter_grad(lambda node: (node.x**2).sum(), arg=True)(Strict(X)),
        lambda: eqx.filter_shard(Strict(2 * X), jax.devices()[0]),
    ],
)
def test_a_node_is_built_from_arrays_only(call: Callable[[], Any]) -> None:
    np.testing.assert_array_equal(call().x, 2 * X)


def test_a_lift_has_the_name_of_the_function() -> None:
    def apply_to(x: Any, module: Any) -> Any:
        return module(x)

    module = nn.Dense(2).bind({"params": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}})
    mapped = eqx.filter_vmap(apply_to, in_axes=(0, None), variable_axes={"params": 0})
    with pytest.raises(AxisSizeError, match=r"vmap\(apply_to\) at /"):
        mapped(X, module)


def test_a_converted_function_says_which_types_it_takes() -> None:
    converted = eqx.filter_closure_convert(lambda x, name, y: x, X, "a", y=[X, 2])
    with pytest.raises(LiftArgumentError) as caught:
        converted(jnp.ones(4), "a", y=[X, 3])
    assert caught.value.what == (
        "it was converted for (float32[3], 'a', y=[float32[3], 2]), but was called with "
        "(float32[4], 'a', y=[float32[3], 3])."
    )


@pytest.mark.parametrize(
    "value", [Opaque(1), OpaqueData(1), logging.getLogger("a"), slice(None), frozenset({Opaque(1)})]
)
@pytest.mark.parametrize("place", ["static field", "leaf"])
def test_an_object_beside_arrays_is_traced_once_and_again_when_it_changes(value: Any, place: str) -> None:
    class Net(eqx.Module):
        w: Any
        config: Any = eqx.field(static=place == "static field")

    runs: list[Any] = []

    def call(net: Net) -> Any:
        runs.append(net.config)
        return net.w * getattr(net.config, "size", 1)

    net, jitted = Net(X, value), eqx.filter_jit(call)
    np.testing.assert_array_equal(jitted(net), X)
    np.testing.assert_array_equal(jitted(jax.tree.map(lambda leaf: leaf, net)), X)
    np.testing.assert_array_equal(eqx.filter_vmap(call)(net), X)
    assert len(runs) == 2
    if place == "static field":
        doubled, _ = jax.lax.scan(lambda net, _: (jax.tree.map(lambda w: 2 * w, net), None), net, None, 2)
        np.testing.assert_array_equal(doubled.w, 4 * X)
        assert doubled.config == value
    if hasattr(value, "size"):
        value.size = 3
        np.testing.assert_array_equal(jitted(net), 3 * X)
        value.size = 1


def test_a_result_holds_the_object_of_its_own_call() -> None:
    run = eqx.filter_jit(lambda x, config: (x, config))
    first, second = OpaqueData(1), OpaqueData(1)
    run(X, first)
    first.size = 5
    assert run(X, second)[1] == OpaqueData(1)
    marker = Opaque([1])
    assert run(X, marker)[1] is marker


def twice(x: Any) -> Any:
    return 2 * x


def convert(w: Any, factor: float = 2.0, steps: int = 3) -> Any:
    def call(x: Any, name: str) -> Any:
        total, _ = jax.lax.scan(lambda carry, row: (carry + row, None), 0.0, jnp.tanh(w * x) * factor, steps)
        return {"total": total, "name": name}

    return eqx.filter_closure_convert(call, X, "net")


def test_a_converted_closure_knows_the_types_of_its_arguments_and_of_its_result() -> None:
    struct, scalar = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    for converted in (convert(X), eqx.filter_closure_convert(lambda x, *, k: (x, k), X, k=3)):
        (args, kwargs), result = converted.in_struct, converted.out_struct
        assert eqx.filter_eval_shape(converted, *args, **kwargs) == result
        assert args[0] == struct
    assert convert(X).out_struct == {"total": scalar, "name": "net"}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (lambda: convert(X), lambda: convert(X + 1), True),
        (lambda: convert(X), lambda: convert(X, 3.0), False),
        (lambda: convert(X), lambda: convert(2), False),
        (lambda: eqx.filter_closure_convert(twice, X), lambda: eqx.filter_closure_convert(twice, X), True),
        (lambda: eqx.filter_closure_convert(twice, X), lambda: eqx.filter_closure_convert(twice, X[:2]), False),
        (lambda: eqx.filter_closure_convert(twice, 1), lambda: eqx.filter_closure_convert(twice, 1.0), False),
    ],
)
def test_two_conversions_have_one_structure_if_they_compute_the_same(one: Any, other: Any, equal: bool) -> None:
    assert (jax.tree.structure(one()) == jax.tree.structure(other())) is equal
    runs: list[Any] = []
    run = eqx.filter_jit(lambda converted: (runs.append(converted), 0)[1])
    run(one())
    run(other())
    assert len(runs) == 2 - equal


def test_the_structure_of_a_converted_function_keeps_no_array() -> None:
    w = X + 1
    kept, structure = weakref.ref(w), jax.tree.structure(convert(w))
    del w
    gc.collect()
    assert kept() is None
    assert structure == jax.tree.structure(convert(X))

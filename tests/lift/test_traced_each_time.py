"""What a lifted body reads of Python is read each time a model is traced or applied, whatever was traced before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as linen
from liftcore import Scope, nn
from liftcore.errors import JaxTransformError, UnliftedCollectionError

X = jnp.arange(1.0, 4.0)
KEY = jax.random.key(0)
RNGS = {"dropout": jax.random.key(1)}
SETTINGS = {"by": 1.0}


def by_setting(scope: Scope, x: Any) -> Any:
    return x * SETTINGS["by"]


def scanned(fn: Callable[..., Any]) -> Callable[..., Any]:
    def step(scope: Scope, x: Any, *slices: Any) -> tuple[Any, Any]:
        return fn(scope, x, *slices), None

    lifted = liftcore.scan(step, length=1)
    return lambda scope, x, *slices: lifted(scope, x, *slices)[0]


LIFTS: dict[str, Callable[[Any], Any]] = {
    "remat": liftcore.remat,
    "scan": scanned,
    "vmap": lambda fn: liftcore.vmap(fn, in_axes=None, out_axes=None, axis_size=1),
}
EACH = pytest.mark.parametrize("lift", LIFTS.values(), ids=list(LIFTS))
NO_LOOP = pytest.mark.parametrize("lift", [LIFTS["remat"], LIFTS["vmap"]], ids=["remat", "vmap"])
"""An eager loop keeps what it compiled, as `jax.lax.scan` does: see `test_eager.py`."""


@NO_LOOP
def test_a_global_variable_is_read_each_time(lift: Any) -> None:
    apply = liftcore.apply(lift(by_setting))
    for by in (1.0, 2.0):
        SETTINGS["by"] = by
        np.testing.assert_array_equal(apply({}, X), by * X)
        np.testing.assert_array_equal(jax.jit(lambda x: apply({}, x))(X), by * X)


@NO_LOOP
def test_a_closure_reads_its_variables_each_time(lift: Any) -> None:
    by = 2.0
    lifted = lift(lambda scope, x: by * x)
    for by in (2.0, 3.0):
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X), by * X)


@pytest.mark.parametrize("lift", [linen.remat, linen.named_call])
def test_a_method_reads_closures_attributes_and_fields_each_time(lift: Any) -> None:
    by = 2.0

    class Scale(linen.Module):
        rate: Any = 1.0
        factor = 1.0

        @linen.compact
        def __call__(self, x: Any) -> Any:
            return np.copysign(self.factor * by, self.rate) * x

    cls = lift(Scale)
    for by, Scale.factor, rate in ((2.0, 1.0, 0.0), (3.0, 1.0, 0.0), (3.0, 5.0, 0.0), (3.0, 5.0, -0.0)):
        np.testing.assert_allclose(cls(rate).apply({}, X), np.copysign(by * Scale.factor, rate) * X)


def test_interceptors_are_seen_by_modules_inside_lifts_of_functions() -> None:
    lifted = liftcore.remat(lambda scope, x: linen.Dense(3, parent=scope.push("dense"))(x))
    _, variables = liftcore.init(lifted)(KEY, X)
    plain = liftcore.apply(lifted)(variables, X)
    for _ in range(2):
        with linen.intercept_methods(lambda next_fun, args, kwargs, _: 100 * next_fun(*args, **kwargs)):
            np.testing.assert_allclose(liftcore.apply(lifted)(variables, X), 100 * plain, rtol=1e-6)
        np.testing.assert_array_equal(liftcore.apply(lifted)(variables, X), plain)


@jax.tree_util.register_pytree_node_class
class Node:
    """A pytree with something static."""

    def __init__(self, value: Any, static: Any) -> None:
        self.value, self.static = value, static

    def tree_flatten(self) -> Any:
        return (self.value,), self.static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Any:
        return cls(*children, static)


@EACH
@pytest.mark.parametrize("statics", [(0.0, -0.0), (np.ones(1), -np.ones(1)), ((1.0, 0.0), (1.0, -0.0))], ids=str)
def test_what_is_static_in_a_pytree_is_told_apart(lift: Any, statics: Any) -> None:
    def signed(scope: Scope, x: Any, node: Node) -> Any:
        return x * node.value.sum() * np.sum(np.copysign(np.float32(1), node.static))

    lifted = lift(signed)
    for static in (*statics, *statics):
        expected = X * np.sum(np.copysign(1, static))
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X, Node(jnp.ones(1), static)), expected)


def test_a_static_zero_is_told_from_a_negative_one() -> None:
    lifted = liftcore.remat(lambda scope, x, by: x * np.copysign(np.float32(1), by), static_argnums=2)
    assert [float(liftcore.apply(lifted)({}, 1.0, by)) for by in (0.0, -0.0, 0.0)] == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("transform", [liftcore.remat, liftcore.jit])
def test_a_variable_that_is_not_lifted_is_noticed_though_an_equal_call_came_before(transform: Any) -> None:
    def reading(scope: Scope, x: Any) -> Any:
        return x + scope.get_variable("stats", "mean", 0.0)

    variables = {"params": {}, "stats": {"mean": jnp.ones(3)}}
    lifted = transform(reading, variables="params")
    for _ in range(2):
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X), X)
        with pytest.raises(UnliftedCollectionError, match="stats"):
            liftcore.apply(lifted)(variables, X)
    inner = transform(reading)
    outer = liftcore.vmap(inner, variable_axes={"params": None})
    for _ in range(2):
        np.testing.assert_array_equal(liftcore.apply(outer)({}, X[None]), X[None])
        with pytest.raises(UnliftedCollectionError, match="stats"):
            liftcore.apply(outer)(variables, X[None])


@EACH
def test_a_raw_transformation_is_refused_though_the_body_was_traced_before(lift: Any) -> None:
    def noisy(scope: Scope, x: Any) -> Any:
        return nn.dropout(scope, x, 0.5, deterministic=False)

    def drawing(scope: Scope, x: Any) -> Any:
        return liftcore.remat(noisy)(scope, lift(lambda scope, x: x)(scope, x))

    liftcore.apply(drawing)({}, X, rngs=RNGS)
    with pytest.raises(JaxTransformError):
        liftcore.apply(lambda scope, x: jax.vmap(lambda x: drawing(scope, x))(x))({}, X[None], rngs=RNGS)


def test_a_reference_may_be_passed_whole_to_a_loop() -> None:
    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no references")

    def body(scope: Scope, x: Any, ref: Any) -> tuple[Any, Any]:
        ref[...] += 1.0
        return x + ref[...], None

    lifted = liftcore.scan(body, length=3, in_axes=liftcore.broadcast)

    @jax.jit
    def run(x: Any) -> Any:
        ref = jax.new_ref(jnp.float32(0))
        return liftcore.apply(lambda scope, x: lifted(scope, x, ref)[0])({}, x), ref[...]

    y, last = run(X)
    np.testing.assert_allclose(y, X + 6)
    assert last == 3

"""What a loop or a checkpoint runs is traced once for equal uses, and nothing can be told from that but the time."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as linen
from liftcore import Scope, nn
from liftcore.errors import JaxTransformError, UnliftedCollectionError, UnliftedSequenceError

X = jnp.arange(1.0, 4.0)
KEY = jax.random.key(0)
RNGS = {"dropout": jax.random.key(1)}
RUNS: list[str] = []
STACKED: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True, "dropout": True}}


def layer(scope: Scope, x: Any) -> Any:
    RUNS.append("/".join(scope.path))
    return jnp.sin(x * scope.param("w", jax.random.normal, (3,)))


def noisy(scope: Scope, x: Any) -> Any:
    RUNS.append("/".join(scope.path))
    x = scope.child(layer)(x)
    return nn.dropout(scope, x, 0.5, deterministic=False) + nn.dropout(scope, x, 0.5, deterministic=False)


def step(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
    return layer(scope, x), x.sum()


def noisy_step(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
    return noisy(scope, x), x.sum()


def looped(body: Any = step, **options: Any) -> Callable[..., Any]:
    lifted = liftcore.scan(body, length=2, **{**STACKED, **options})
    return lambda scope, x: lifted(scope, x, None)[0]


MODELS: dict[str, Any] = {
    "remat": liftcore.remat(layer),
    "noisy remat": liftcore.remat(noisy),
    "scan": looped(),
    "noisy scan": looped(noisy_step),
    "nested": looped(lambda scope, x, _: (liftcore.remat(noisy)(scope, x), None)),
}


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    jax.clear_caches()
    RUNS.clear()


def traced(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A trace of a function, as if it were new."""
    return jax.make_jaxpr(lambda *args: fn(*args, **kwargs))(*args)


# --- found again ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_body_is_not_run_again_where_an_equal_use_was_traced(name: str) -> None:
    if "remat" in name and jax.__version_info__ < (0, 10, 2):
        pytest.skip("keys cross a checkpoint as words, to a new function")
    _, variables = liftcore.init(MODELS[name])({"params": KEY, **RNGS}, X)
    RUNS.clear()
    apply = liftcore.apply(MODELS[name])
    first, runs = traced(apply, variables, X, rngs=RNGS), len(RUNS)
    assert runs
    again = traced(apply, variables, X, rngs=RNGS)
    assert len(RUNS) == runs
    assert str(again) == str(first)
    np.testing.assert_array_equal(apply(variables, X, rngs=RNGS), jax.jit(apply)(variables, X, rngs=RNGS))


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_a_new_trace(name: str) -> None:
    _, variables = liftcore.init(MODELS[name])({"params": KEY, **RNGS}, X)

    @jax.jit
    def gradient(variables: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda v: liftcore.apply(MODELS[name])(v, x, rngs=RNGS).sum())(variables)

    first = gradient(variables, X)
    gradient.clear_cache()
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(gradient(variables, X)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_apply_without_jit_traces_a_loop_once() -> None:
    model = looped()
    _, variables = liftcore.init(model)(KEY, X)
    RUNS.clear()
    for _ in range(3):
        liftcore.apply(model)(variables, X)
    assert len(RUNS) == 1


def test_modules_are_found_again_by_their_fields() -> None:
    class Layer(linen.Module):
        by: float

        @linen.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            RUNS.append(str(self.by))
            return self.by * linen.Dense(3)(x), None

    cls = linen.scan(linen.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
    variables = cls(2.0).init(KEY, X)
    RUNS.clear()
    for by in (2.0, 3.0, 2.0, 3.0):
        traced(cls(by).apply, variables, X)
    assert RUNS == ["2.0", "3.0"]


# --- not found where something differs --------------------------------------------------------------------------------


def test_a_body_sees_its_own_place() -> None:
    def where(scope: Scope, x: Any) -> Any:
        return x * len(scope.path[-1])

    lifted = liftcore.remat(where)

    def model(scope: Scope, x: Any) -> Any:
        return scope.child(lifted, "a")(x), scope.child(lifted, "abc")(x)

    np.testing.assert_array_equal(liftcore.apply(model)({}, X), (X, 3 * X))


@pytest.mark.parametrize("kind", ["remat", "scan"])
def test_draws_go_on_where_the_last_ones_ended(kind: str) -> None:
    lifted = liftcore.remat(noisy) if kind == "remat" else looped(noisy_step)

    def model(scope: Scope, x: Any) -> Any:
        child = scope.child(lifted, "a")
        return child(x), child(x), nn.dropout(scope.push("a", reuse=True), x, 0.5, deterministic=False)

    def plain(scope: Scope, x: Any) -> Any:
        child = scope.child(noisy, "a")
        return child(x), child(x), nn.dropout(scope.push("a", reuse=True), x, 0.5, deterministic=False)

    _, variables = liftcore.init(model)({"params": KEY, **RNGS}, X)
    RUNS.clear()
    first = jax.jit(liftcore.apply(model))(variables, X, rngs=RNGS)
    runs = len(RUNS)
    again = jax.jit(lambda *args, **kwargs: liftcore.apply(model)(*args, **kwargs))(variables, X, rngs=RNGS)
    assert runs
    if kind == "scan" or jax.__version_info__ >= (0, 10, 2):
        assert len(RUNS) == runs
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first[0], first[1])
    if kind == "remat":
        for one, other in zip(again, liftcore.apply(plain)(variables, X, rngs=RNGS), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_names_that_the_body_took_are_taken_after_it() -> None:
    def body(scope: Scope, x: Any) -> Any:
        return scope.child(layer)(x)

    def model(scope: Scope, x: Any) -> Any:
        x = liftcore.remat(body)(scope, x)
        return scope.child(layer)(x)

    _, variables = liftcore.init(model)(KEY, X)
    assert sorted(variables["params"]) == ["layer_0", "layer_1"]
    for _ in range(2):
        traced(liftcore.apply(model), variables, X)
    np.testing.assert_array_equal(*[liftcore.apply(model)(variables, X) for _ in range(2)])


@pytest.mark.parametrize("given", [2, 2.0, 0.0, -0.0, True, np.float32(2), np.ones(3), (1, 2.0), None, jnp.tanh])
@pytest.mark.parametrize("kind", ["remat", "scan"])
def test_what_python_sees_of_an_argument_is_seen_each_time(kind: str, given: Any) -> None:
    def body(scope: Scope, x: Any, value: Any) -> Any:
        RUNS.append(type(value).__name__)
        leaves = [leaf for leaf in jax.tree.leaves(value) if not callable(leaf)]
        return x + sum(np.copysign(1.0, leaf).sum() * (1 if isinstance(leaf, int) else 2) for leaf in leaves)

    def run(value: Any) -> str:
        if kind == "remat":
            return str(traced(liftcore.apply(lambda scope, x: rematted(scope, x, value)), {}, X))
        return str(traced(liftcore.apply(lambda scope, x: scanned(scope, x, value)[0]), {}, X))

    if kind == "remat" and isinstance(given, np.ndarray):
        pytest.skip("an array cannot be declared static")
    rematted = liftcore.remat(body, static_argnums=2)
    scanned = liftcore.scan(lambda scope, x, value: (body(scope, x, value), None), length=2, in_axes=liftcore.broadcast)
    values = (given, 0.0, -0.0, 1, 1.0, True)
    expected = {}
    for place, value in enumerate(values):
        jax.clear_caches()
        expected[place] = run(value)
    jax.clear_caches()
    assert {place: run(value) for place, value in reversed(list(enumerate(values)))} == expected
    assert {place: run(value) for place, value in enumerate(values)} == expected


def test_a_static_zero_is_told_from_a_negative_one() -> None:
    lifted = liftcore.remat(_signed, static_argnums=2)
    assert [float(jax.jit(lambda x, by=by: liftcore.apply(lifted)({}, x, by))(1.0)) for by in (0.0, -0.0)] == [
        1.0,
        -1.0,
    ]


def _signed(scope: Scope, x: Any, by: float) -> Any:
    return x * np.copysign(np.float32(1), by)


def test_whole_arguments_and_shared_variables_are_those_of_each_call() -> None:
    def body(scope: Scope, x: Any, whole: Any) -> tuple[Any, Any]:
        RUNS.append("body")
        return x * whole["by"] + scope.get_variable("consts", "shift"), None

    lifted = liftcore.scan(body, length=2, in_axes=liftcore.broadcast, variable_broadcast="consts")

    def model(scope: Scope, x: Any, by: Any) -> Any:
        return lifted(scope, x, {"by": by})[0]

    def run(shift: float, by: float) -> Any:
        apply = jax.jit(lambda variables, x, by: liftcore.apply(model)(variables, x, by))
        return apply({"consts": {"shift": jnp.float32(shift)}}, X, jnp.float32(by))

    np.testing.assert_allclose(run(1.0, 2.0), 4 * X + 3)
    np.testing.assert_allclose(run(2.0, 3.0), 9 * X + 8)
    assert RUNS == ["body"]


def test_concrete_arrays_that_are_passed_whole_stay_concrete() -> None:
    def body(scope: Scope, x: Any, whole: Any) -> tuple[Any, Any]:
        return x * (2 if float(whole) > 0 else 3), None

    lifted = liftcore.scan(body, length=1, in_axes=liftcore.broadcast)
    found = [liftcore.apply(lambda scope, w: lifted(scope, X, w)[0])({}, jnp.float32(w)) for w in (1, -1, 1)]
    np.testing.assert_array_equal(found, [2 * X, 3 * X, 2 * X])


def test_a_reference_may_be_passed_whole() -> None:
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


def test_another_filter_context_or_setting_gives_another_trace() -> None:
    def body(scope: Scope, x: Any) -> Any:
        RUNS.append("body")
        return x @ scope.param("w", jax.random.normal, (3, 3))

    lifted = liftcore.remat(body)
    _, variables = liftcore.init(lifted)(KEY, X)
    RUNS.clear()
    plain = str(traced(liftcore.apply(lifted), variables, X))
    with jax.default_matmul_precision("float32"):
        precise = str(traced(liftcore.apply(lifted), variables, X))
    assert plain != precise
    assert len(RUNS) == 2
    assert str(traced(liftcore.apply(lifted), variables, X)) == plain


def test_a_variable_that_is_not_lifted_is_noticed_though_the_trace_is_known() -> None:
    variables = {"params": {}, "stats": {"mean": jnp.ones(3)}}
    for lifted in (liftcore.remat(reading, variables="params"), liftcore.jit(reading, variables="params")):
        assert traced(liftcore.apply(lifted), {}, X)
        with pytest.raises(UnliftedCollectionError, match="stats"):
            traced(liftcore.apply(lifted), variables, X)
        assert traced(liftcore.apply(lifted), {}, X)
    inner = liftcore.remat(reading)
    outer = liftcore.vmap(lambda scope, x: inner(scope, x), variable_axes={"params": None})
    assert traced(liftcore.apply(outer), {}, X[None])
    with pytest.raises(UnliftedCollectionError, match="stats"):
        traced(liftcore.apply(outer), variables, X[None])


def reading(scope: Scope, x: Any) -> Any:
    return x + scope.get_variable("stats", "mean", 0.0)


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


def signed(scope: Scope, x: Any, node: Node) -> Any:
    return x * node.value * np.sum(np.copysign(np.float32(1), node.static))


def signed_step(scope: Scope, x: Any, node: Node) -> tuple[Any, Any]:
    return signed(scope, x, node), None


@pytest.mark.parametrize("kind", ["remat", "scan", "scan, whole"])
@pytest.mark.parametrize(
    "statics", [(0.0, -0.0), (True, 1), (np.ones(1), -np.ones(1)), ((1.0, 0.0), (1.0, -0.0))], ids=str
)
def test_what_is_static_in_a_pytree_is_told_apart(kind: str, statics: Any) -> None:
    axes = liftcore.broadcast if kind == "scan, whole" else 0
    lifted = liftcore.remat(signed) if kind == "remat" else liftcore.scan(signed_step, length=1, in_axes=axes)
    for static in (*statics, *statics):
        found = liftcore.apply(lifted)({}, X, Node(jnp.ones(1), static))
        found = found if kind == "remat" else found[0]
        np.testing.assert_array_equal(found, X * np.sum(np.copysign(1, static)))


def test_keys_of_dicts_are_told_apart() -> None:
    def body(scope: Scope, x: Any, given: dict[Any, Any]) -> Any:
        return x * given[1] if isinstance(next(iter(given)), float) else -x * given[1]

    lifted = liftcore.remat(body)
    found = [float(liftcore.apply(lifted)({}, 2.0, {key: 1.0})) for key in (1, 1.0, True, 1)]
    assert found == [-2.0, 2.0, -2.0, -2.0]


def test_defaults_of_a_function_are_not_kept() -> None:
    gone = []

    def run() -> None:
        big = jnp.ones(3)
        gone.append(weakref.ref(big))

        def body(scope: Scope, x: Any, big: Any = big) -> Any:
            return x * big.sum()

        liftcore.apply(liftcore.remat(body))({}, X)

    run()
    gc.collect()
    assert gone[0]() is None


def noised(scope: Scope, x: Any) -> Any:
    return x * jax.random.normal(scope.make_rng("noise"), (3,))


def test_what_a_raw_key_means_is_asked_each_time() -> None:
    key = jnp.arange(4, dtype=jnp.uint32)
    for impl in ("rbg", "unsafe_rbg", "rbg"):
        with jax.default_prng_impl(impl):
            plain, lifted = (liftcore.apply(fn)({}, X, rngs={"noise": key}) for fn in (noised, liftcore.remat(noised)))
            np.testing.assert_allclose(lifted, plain, rtol=1e-6)


def scaled(scope: Scope, x: Any) -> Any:
    return linen.Dense(3, parent=scope.push("dense"))(x)


@pytest.mark.parametrize("transform", [liftcore.remat, liftcore.jit])
def test_interceptors_are_seen_by_modules_inside_lifts_of_functions(transform: Any) -> None:
    lifted = transform(scaled)
    _, variables = liftcore.init(lifted)(KEY, X)
    plain = liftcore.apply(lifted)(variables, X)
    for _ in range(2):
        with linen.intercept_methods(_a_hundredfold):
            np.testing.assert_allclose(liftcore.apply(lifted)(variables, X), 100 * plain, rtol=1e-6)
        np.testing.assert_array_equal(liftcore.apply(lifted)(variables, X), plain)


def _a_hundredfold(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
    return 100 * next_fun(*args, **kwargs)


def test_a_closure_and_a_method_that_reads_one_are_traced_each_time() -> None:
    by = 2.0

    class Scale(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return by * x

    lifted = liftcore.remat(lambda scope, x: by * x)
    cls = linen.remat(Scale)
    for by in (2.0, 3.0):
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X), by * X)
        np.testing.assert_array_equal(cls().apply({}, X), by * X)


class Doubling:
    """A function with attributes of its own."""

    is_exact = True
    __exact__ = None

    def __call__(self, scope: Scope, x: Any) -> Any:
        return 2 * x


def test_an_object_is_no_exact_function_by_its_attributes() -> None:
    np.testing.assert_array_equal(liftcore.apply(liftcore.remat(Doubling()))({}, X), 2 * X)


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifted", [liftcore.remat(noisy), looped(noisy_step)], ids=["remat", "scan"])
def test_a_raw_transformation_is_refused_though_the_trace_is_known(lifted: Any) -> None:
    _, variables = liftcore.init(lifted)({"params": KEY, **RNGS}, X)
    traced(liftcore.apply(lifted), variables, X, rngs=RNGS)
    mapped = liftcore.apply(lambda scope, x: jax.vmap(lambda x: lifted(scope, x))(x))
    with pytest.raises(JaxTransformError):
        traced(mapped, variables, jnp.stack([X, X]), rngs=RNGS)


def test_a_sequence_that_is_not_lifted_is_refused_though_the_trace_is_known() -> None:
    _, variables = liftcore.init(looped(noisy_step))({"params": KEY, **RNGS}, X)
    traced(liftcore.apply(looped(noisy_step)), variables, X, rngs=RNGS)
    with pytest.raises(UnliftedSequenceError):
        traced(liftcore.apply(looped(noisy_step, split_rngs={"params": True})), variables, X, rngs=RNGS)


def test_an_error_of_the_body_comes_each_time() -> None:
    def body(scope: Scope, x: Any) -> Any:
        raise ArithmeticError("of the body")

    for _ in range(2):
        with pytest.raises(ArithmeticError, match="of the body"):
            traced(liftcore.apply(liftcore.remat(body)), {}, X)


def test_threads_that_trace_at_once_do_not_mix() -> None:
    _, variables = liftcore.init(MODELS["noisy scan"])({"params": KEY, **RNGS}, X)
    expected = str(traced(liftcore.apply(MODELS["noisy scan"]), variables, X, rngs=RNGS))
    jax.clear_caches()
    found: list[str] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        found.append(str(traced(liftcore.apply(MODELS["noisy scan"]), variables, X, rngs=RNGS)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


class Held:
    """What a closure holds."""


def test_what_a_closure_holds_may_be_forgotten() -> None:
    def run(held: Held) -> None:
        body = liftcore.remat(lambda scope, x: (held, x)[1])
        traced(
            liftcore.apply(lambda scope, x: looped(lambda scope, x, _: (body(scope, x), held)[:1] * 2)(scope, x)), {}, X
        )

    held = Held()
    run(held)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None

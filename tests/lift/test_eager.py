"""Loops that run eagerly: a body that the user holds is traced and compiled once for equal calls, and for no others."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as linen
from liftcore import Scope
from liftcore.errors import CarryTypeError, LiftArgumentError
from liftcore.filters import Not, PathContains

X = jnp.arange(1.0, 4.0)
KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
RUNS: list[str] = []
COMPILED: list[str] = []


def _listen(event: str, *_: Any, **__: Any) -> None:
    COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    return sum("backend_compile" in event for event in COMPILED)


def layer(scope: Scope, x: Any) -> Any:
    """Creates, reads, writes, draws and sows."""
    RUNS.append(scope.path_text)
    w = scope.param("w", jax.random.normal, x.shape)
    if scope.is_mutable_collection("state"):
        n = scope.variable("state", "n", lambda: 0)
        n.value += 1
    scope.sow("seen", "x", x.sum())
    return jnp.sin(x * w) + jax.random.normal(scope.make_rng("noise"), x.shape)


def step(scope: Scope, x: Any, *_: Any) -> tuple[Any, Any]:
    return layer(scope, x), x


def numbered(scope: Scope, number: Any, x: Any) -> Any:
    return layer(scope, x)


def small(scope: Scope, state: Any) -> Any:
    return state[0] < 3


def grown(scope: Scope, state: Any) -> Any:
    w = scope.variable("state", "w", lambda: jnp.ones(3))
    RUNS.append(scope.path_text)
    if scope.is_mutable_collection("state"):
        w.value = 2 * w.value
    return state[0] + 1, state[1] + w.value + jax.random.normal(scope.make_rng("noise"), (3,))


def other(scope: Scope, x: Any) -> Any:
    return x + scope.param("b", jax.random.normal, x.shape)


EACH = {"variable_axes": {"params": 0, "state": 0, "seen": 0}, "split_rngs": True}
CARRIED = {"variable_broadcast": "params", "variable_carry": "state", "split_rngs": {"params": False, "noise": True}}
Row = tuple[Callable[..., Any], Callable[..., Any]]
ROWS: dict[str, Row] = {
    "scan": (
        lambda plain: plain(liftcore.scan)(step, 4, variable_carry="state", **{**EACH, "variable_axes": {True: 0}}),
        lambda lifted, s: lifted(s, X),
    ),
    "scan over arrays": (
        lambda plain: plain(liftcore.scan)(step, reverse=True, in_axes=(0, liftcore.broadcast), **CARRIED),
        lambda lifted, s: lifted(s, X, jnp.ones((2, 3)), X),
    ),
    "fori_loop": (
        lambda plain: plain(liftcore.fori_loop)(numbered, **CARRIED),
        lambda lifted, s: lifted(s, 0, 3, X),
    ),
    "while_loop": (
        lambda plain: plain(liftcore.while_loop)(small, grown, **CARRIED),
        lambda lifted, s: lifted(s, (0, X)),
    ),
    "map": (lambda plain: plain(liftcore.map)(layer, **EACH), lambda lifted, s: lifted(s, jnp.ones((2, 3)))),
    "pmap": (lambda plain: plain(liftcore.pmap)(layer, **EACH), lambda lifted, s: lifted(s, jnp.ones((1, 3)))),
    "remat_scan": (lambda plain: plain(liftcore.remat_scan)(layer, (2, 2)), lambda lifted, s: lifted(s, X)),
    "cond": (lambda plain: plain(liftcore.cond)(layer, other), lambda lifted, s: lifted(s, True, X)),
    "switch": (lambda plain: plain(liftcore.switch)([other, layer]), lambda lifted, s: lifted(s, 1, X)),
}


def as_it_is(lift: Any) -> Any:
    return lift


def undecorated(lift: Any) -> Any:
    return lift.__wrapped__


def model(row: Row, plain: Any = as_it_is) -> Callable[..., Any]:
    """A function of a scope that lifts anew in each call, as models do."""
    make, call = row

    def run(scope: Scope) -> Any:
        before = scope.make_rng("noise")
        y = call(make(plain), scope.push("block"))
        return y, jax.random.key_data(before), jax.random.key_data(scope.push("block_1").make_rng("noise"))

    return run


def assert_same(some: Any, others: Any) -> None:
    assert jax.tree.structure(some) == jax.tree.structure(others)
    for one, two in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        assert (one.dtype, one.shape, jax.typeof(one).weak_type) == (two.dtype, two.shape, jax.typeof(two).weak_type)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ROWS)
def test_init_and_apply_are_those_of_a_loop_that_is_traced_each_time(name: str) -> None:
    expected = liftcore.init(model(ROWS[name], undecorated))(KEYS)
    for _ in range(2):
        assert_same(liftcore.init(model(ROWS[name]))(KEYS), expected)
    variables, rngs = expected[1], {"noise": KEYS["noise"]}
    for mutable in (False, ["state", "seen"]):
        expected = liftcore.apply(model(ROWS[name], undecorated), mutable=mutable)(variables, rngs=rngs)
        for _ in range(2):
            assert_same(liftcore.apply(model(ROWS[name]), mutable=mutable)(variables, rngs=rngs), expected)


@pytest.mark.parametrize("name", ROWS)
def test_an_equal_call_neither_runs_the_body_nor_compiles(name: str) -> None:
    variables = liftcore.init(model(ROWS[name]))(KEYS)[1]
    runs: list[Callable[[], Any]] = [
        lambda: liftcore.init(model(ROWS[name]))(KEYS),
        lambda: liftcore.apply(model(ROWS[name]))(variables, rngs={"noise": KEYS["noise"]}),
        lambda: liftcore.apply(model(ROWS[name]), mutable=True)(variables, rngs={"noise": KEYS["noise"]}),
    ]
    for run in runs:
        run(), run()
        RUNS.clear(), COMPILED.clear()
        run()
        assert (RUNS, compilations()) == ([], 0)


# -- what is told apart ------------------------------------------------------------------------------------------------


def signed(scope: Scope, x: Any, by: Any = 1.0, *, also: Any = None) -> tuple[Any, Any]:
    return x * np.copysign(np.float32(1), by) * (1 if also is None else np.copysign(np.float32(1), also.sign)), None


@jax.tree_util.register_pytree_node_class
class Tagged:
    """A pytree with something static."""

    def __init__(self, value: Any, sign: float) -> None:
        self.value, self.sign = value, sign

    def tree_flatten(self) -> Any:
        return (self.value,), self.sign

    @classmethod
    def tree_unflatten(cls, sign: float, children: Any) -> Any:
        return cls(*children, sign)


def scan(body: Any, *args: Any, **options: Any) -> Any:
    """One eager scan of one iteration, without variables."""
    lifted = liftcore.scan(body, length=1, in_axes=liftcore.broadcast, **options)
    return liftcore.apply(lambda scope: lifted(scope, X, *args)[0])({})


def test_zeros_of_either_sign_are_told_apart_wherever_they_are_static() -> None:
    for sign in (0.0, -0.0, 0.0):
        expected = X * np.copysign(1, sign)
        np.testing.assert_array_equal(scan(signed, sign), expected)
        np.testing.assert_array_equal(scan(functools.partial(signed, by=sign)), expected)
        lifted = liftcore.apply(liftcore.scan(signed, length=1))
        np.testing.assert_array_equal(lifted({}, X, also=Tagged(jnp.ones(1), sign))[0], expected)


def doubled(scope: Scope, x: Any, *_: Any) -> tuple[Any, Any]:
    return 2 * x, x


def test_options_and_types_are_told_apart() -> None:
    def run(x: Any = X, *args: Any, **options: Any) -> Any:
        return liftcore.apply(liftcore.scan(doubled, **options))({}, x, *args)

    assert run(length=1)[0].tolist() == [2, 4, 6]
    assert run(length=2)[0].tolist() == [4, 8, 12]
    assert run(X, X)[0].tolist() == [8, 16, 24]
    assert run(1, length=2)[0].dtype == jnp.int32
    assert run(1.0, length=2)[1].tolist() == [1.0, 2.0]
    assert run(1.0, length=2, reverse=True)[1].tolist() == [2.0, 1.0]
    assert run(X.astype(jnp.bfloat16), length=2)[0].dtype == jnp.bfloat16


def indexed_sum(scope: Scope, i: Any, x: Any) -> Any:
    RUNS.append(scope.path_text)
    return x + i


def test_bounds_that_are_arrays_are_told_apart_by_value_and_type() -> None:
    run = liftcore.apply(liftcore.fori_loop(indexed_sum))
    for _ in range(2):
        assert [int(run({}, 0, jnp.asarray(n), 0)) for n in (3, 5)] == [3, 10]
        assert int(run({}, jnp.int8(1), jnp.asarray(3), 0)) == 3  # weakly typed, as Python numbers are
        with pytest.raises(LiftArgumentError, match="integers of one type"):
            run({}, jnp.int8(1), jnp.int32(3), 0)
    RUNS.clear()
    assert (int(run({}, 0, jnp.asarray(5), 0)), RUNS) == (10, [])


def reading(scope: Scope, x: Any, *_: Any) -> tuple[Any, Any]:
    return x + scope.get_variable("params", "w", 0.0), None


def test_a_filter_that_looks_at_paths_is_asked_at_each_place() -> None:
    def body(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
        return x * scope.get_variable("params", "w"), None

    stacked = PathContains("a")
    loop = liftcore.scan(body, length=2, variable_axes={stacked: 0}, variable_broadcast=Not(stacked))

    def model(scope: Scope, x: Any) -> Any:
        return [loop(scope.push(name), x, None)[0].tolist() for name in "ab"]

    params = {name: {"w": jnp.array([2.0, 3.0])} for name in "ab"}
    assert liftcore.apply(model)({"params": params}, jnp.ones(2)) == [[6.0, 6.0], [4.0, 9.0]]


def test_options_that_change_in_place_after_the_lift_are_those_that_it_was_made_with() -> None:
    axes = {"params": 0}
    stacked = liftcore.scan(reading, length=2, variable_axes=axes)
    del axes["params"]
    without = liftcore.scan(reading, length=2, variable_axes=axes, variable_broadcast="params")
    for _ in range(2):
        assert liftcore.apply(stacked)({"params": {"w": jnp.array([1.0, 2.0])}}, 0.0)[0] == 3
        assert liftcore.apply(without)({"params": {"w": jnp.array([1.0, 2.0])}}, jnp.zeros(2))[0].tolist() == [2, 4]


def test_a_body_whose_arguments_change_in_place_is_traced_again() -> None:
    by = np.ones(3, np.float32)
    body = functools.partial(lambda by, scope, x: (by * x, None), by)
    lifted = liftcore.scan(body, length=1)
    for value in (1.0, 2.0, 1.0):
        by[:] = value
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X)[0], value * X)


# -- what cannot be kept -----------------------------------------------------------------------------------------------


def deciding(scope: Scope, x: Any, by: Any, *_: Any) -> tuple[Any, Any]:
    """Asks for values that are known in an eager call alone."""
    twice = float(scope.get_variable("params", "twice")) > 0 and int(np.asarray(by)[0]) == 1
    return (2 if twice else 1) * x, None


def test_a_body_that_asks_for_values_sees_them() -> None:
    lifted = liftcore.scan(deciding, length=1, variable_broadcast="params", in_axes=liftcore.broadcast)
    for twice in (1.0, -1.0, 1.0):
        for by in (X, np.ones(3, np.float32)):
            y, _ = liftcore.apply(lifted)({"params": {"twice": jnp.float32(twice)}}, X, by)
            np.testing.assert_array_equal(y, (2 if twice > 0 else 1) * X)


def added(scope: Scope, x: Any, y: Any) -> Any:
    return 2 * x + y


def test_donated_arguments_are_given_up_in_a_kept_call_too() -> None:
    run = liftcore.apply(liftcore.pmap(added, donate_argnums=1))
    for _ in range(2):
        x, y = jnp.ones((1, 3)), jnp.ones((1, 3))
        assert run({}, x, y).tolist() == [[3, 3, 3]]
        assert (x.is_deleted(), y.is_deleted()) == (True, False)


def counting(scope: Scope, x: Any, *_: Any) -> tuple[Any, Any]:
    RUNS.append(scope.path_text)
    return (2 if float(scope.get_variable("params", "w")) > 0 else 1) * x, None


def test_after_its_first_call_it_is_traced_by_the_loop_alone() -> None:
    run = liftcore.apply(liftcore.scan(counting, length=1, variable_broadcast="params"))
    run({"params": {"w": 1.0}}, X)
    RUNS.clear()
    assert run({"params": {"w": -1.0}}, X)[0].tolist() == X.tolist()
    assert len(RUNS) == 1


def mistaken(scope: Scope, x: Any, wrong: bool) -> tuple[Any, Any]:
    scope.param("w", lambda key: 1.0)
    return (x.sum() if wrong else x), None


def test_a_mistake_is_told_as_ever_and_a_right_call_is_kept_afterwards() -> None:
    lifted = liftcore.scan(
        mistaken, length=1, in_axes=liftcore.broadcast, variable_broadcast="params", split_rngs=False
    )

    def model(scope: Scope) -> Any:
        with pytest.raises(CarryTypeError, match=r"^scan\(mistaken\) at /: the type"):
            lifted(scope, X, True)
        return lifted(scope, X, False)

    _, variables = liftcore.init(model)(KEYS)
    assert variables == {"params": {"w": 1.0}}


class Weight(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return x * self.param("w", lambda key: 1.0)


def with_module(module: Weight, scope: Scope, x: Any, *_: Any) -> tuple[Any, Any]:
    return x * module.variables["params"]["w"], None


@pytest.mark.parametrize("lift", [liftcore.jit, functools.partial(liftcore.scan, length=1)], ids=["jit", "scan"])
def test_bound_modules_with_equal_fields_are_told_apart(lift: Any) -> None:
    for w in (1.0, 2.0):
        module = Weight().bind({"params": {"w": jnp.float32(w)}})
        assert liftcore.apply(lift(functools.partial(with_module, module)))({}, 1.0)[0] == w


def test_interceptors_and_captures_of_modules_inside_are_seen() -> None:
    dense = functools.partial(linen.Dense, 3)

    def body(scope: Scope, x: Any) -> tuple[Any, Any]:
        return dense(parent=scope.push("dense"))(x), None

    run = liftcore.apply(liftcore.scan(body, length=1, variable_broadcast="params"))
    variables = {"params": {"dense": {"kernel": jnp.eye(3), "bias": jnp.zeros(3)}}}
    for _ in range(2):
        np.testing.assert_array_equal(run(variables, X)[0], X)
        with linen.intercept_methods(lambda fun, args, kwargs, _: 5 * fun(*args, **kwargs)):
            np.testing.assert_array_equal(run(variables, X)[0], 5 * X)


def test_a_closure_is_let_go_of_with_its_lift() -> None:
    held = jnp.ones(3)
    seen = weakref.ref(held)
    lifted = liftcore.scan(lambda scope, x, held=held: (x * held, None), length=1)
    for _ in range(2):
        np.testing.assert_array_equal(liftcore.apply(lifted)({}, X)[0], X)
    del lifted, held
    gc.collect()
    assert seen() is None


def test_what_a_local_body_reads_of_its_closure_is_what_it_is_now() -> None:
    by = 2.0

    def body(scope: Any, x: Any) -> Any:
        return by * x, None

    lifted = liftcore.apply(liftcore.scan(body, length=1))
    assert lifted({}, 1.0)[0] == 2
    by = 3.0
    assert lifted({}, 1.0)[0] == 3
    assert jax.jit(lambda x: lifted({}, x)[0])(1.0) == 3


def test_modules_are_run_each_time_since_nobody_holds_their_bodies() -> None:
    factor = 2.0

    class Scale(linen.Module):
        @linen.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return factor * x, None

    run = linen.scan(Scale, length=1)()
    assert run.apply({}, 1.0, None)[0] == 2
    factor = 3.0
    assert run.apply({}, 1.0, None)[0] == 3


# -- functions that are made in each call ------------------------------------------------------------------------------


def moved(scope: Scope, x: Any, *_: Any) -> Any:
    return jnp.sin(x * scope.get_variable("params", "w"))


def sliced(scope: Scope, x: Any, *_: Any) -> Any:
    return moved(scope, x), x


def counted(scope: Scope, state: Any) -> Any:
    return state[0] + 1, moved(scope, state[1])


def indexed(scope: Scope, i: Any, x: Any) -> Any:
    return moved(scope, x)


def left(scope: Scope, x: Any, by: Any) -> Any:
    return x * by


def made(fn: Callable[..., Any], by: Any = None) -> Callable[..., Any]:
    """A function like `fn` that nobody holds. It closes over an array, if one is given."""
    if by is None:
        again = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__)
        again.__qualname__ = f"made.<locals>.{fn.__name__}"
        return again
    return lambda scope, *args: jax.tree.map(lambda y: y * by if y.shape else y, fn(scope, *args))


READ: dict[str, Any] = {"variable_broadcast": "params"}
FRESH: dict[str, Callable[..., Any]] = {
    "scan": lambda s, by, x: liftcore.scan(made(sliced, by), 2, **READ)(s, x)[0],
    "fori_loop": lambda s, by, x: liftcore.fori_loop(made(indexed, by))(s, 0, 3, x),
    "while_loop": lambda s, by, x: liftcore.while_loop(made(small), made(counted, by))(s, (0, x))[1],
    "map": lambda s, by, x: liftcore.map(made(moved, by), variable_axes={"params": None})(s, x[None])[0],
    "remat_scan": lambda s, by, x: liftcore.remat_scan(
        made(moved, by), (2,), variable_axes={}, variable_broadcast="params"
    )(s, x),
    "cond": lambda s, by, x: liftcore.cond(made(moved, by), made(left))(s, True, x, 2.0),
    "switch": lambda s, by, x: liftcore.switch([made(left), made(moved, by)])(s, 1, x, 2.0),
    "remat of scan": lambda s, by, x: liftcore.remat(lambda s, x: FRESH["scan"](s, by, x))(s, x),
    "partial": lambda s, by, x: liftcore.scan(functools.partial(lambda by, *a: sliced(*a), by), 2, **READ)(s, x)[0],
}
WRAPPED: dict[str, Callable[..., Any]] = {
    "alone": lambda run: run,
    "vmap": lambda run: lambda x: jax.vmap(run)(x[None])[0],
}


@pytest.mark.parametrize("under", WRAPPED)
@pytest.mark.parametrize("name", FRESH)
def test_a_function_that_is_made_in_each_call_is_compiled_once(name: str, under: str) -> None:
    variables = {"params": {"w": jnp.float32(0.5)}}

    def call(by: Any, x: Any = X) -> Any:
        return WRAPPED[under](lambda x: liftcore.apply(FRESH[name])(variables, by, x))(x)

    with jax.disable_jit():
        expected = [call(None), call(jnp.float32(3))]
    call(None), call(jnp.float32(2))
    COMPILED.clear()
    found = [call(None), call(jnp.float32(3))]
    assert compilations() == 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_custom_rule_does_not_hinder_that_and_is_not_kept() -> None:
    def run(w: Any, x: Any = X) -> Any:
        @jax.custom_jvp
        def ruled(x: Any) -> Any:
            return jnp.sin(x)

        ruled.defjvp(lambda primals, tangents: (ruled(*primals), w * tangents[0]))
        return liftcore.scan(lambda s, x: (ruled(x), None), 1)((), x)[0]

    w, other = jnp.ones(3), 2 * X
    kept = weakref.ref(w)
    expected = run(w)
    COMPILED.clear()
    np.testing.assert_array_equal(run(other), expected)
    assert compilations() == 0
    del w
    gc.collect()
    assert kept() is None
    for by in (2.0, 3.0):  # under a derivative, the rule is used
        np.testing.assert_array_equal(jax.jvp(functools.partial(run, by), (X,), (X,))[1], by * X)


@jax.custom_jvp
def ruled(x: Any) -> Any:
    return jnp.sin(x)


ruled.defjvp(lambda primals, tangents: (ruled(*primals), 7 * tangents[0]))
DERIVED: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
    "vmap of grad of vmap": lambda f: lambda x: jax.vmap(jax.grad(lambda x: jax.vmap(f)(x).sum()))(x[None])[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.ones_like(x)),
    "linearize of vmap": lambda f: lambda x: jax.linearize(jax.vmap(f), x)[1](jnp.ones_like(x)),
    "jvp": lambda f: lambda x: jax.jvp(jax.vmap(f), (x,), (jnp.ones_like(x),))[1],
    "vjp of checkpoint": lambda f: lambda x: jax.vjp(jax.checkpoint(jax.vmap(f)), x)[1](jnp.ones_like(x))[0],
    "diagonal of jacfwd": lambda f: lambda x: jnp.diagonal(jax.jacfwd(jax.vmap(f))(x)),
}


@pytest.mark.parametrize("derived", DERIVED)
def test_a_derivative_uses_the_rule_also_after_a_call_without_one(derived: str) -> None:
    def run(x: Any) -> Any:
        return liftcore.scan(lambda s, x: (ruled(x), None), 1)((), x)[0]

    run(X), jax.vmap(run)(X)
    np.testing.assert_allclose(DERIVED[derived](run)(X), 7 * jnp.ones(3))


def test_so_does_the_derivative_of_what_a_batched_loop_closes_over() -> None:
    def run(w: Any) -> Any:
        loop = lambda x: liftcore.scan(lambda s, x: (ruled(x * w), None), 1)((), x)[0]  # noqa: E731
        return jax.vmap(loop)(X).sum()

    run(1.0)
    np.testing.assert_allclose(jax.grad(run)(1.0), 7 * X.sum())


def test_equations_with_equal_types_and_other_numbers_or_options_are_told_apart() -> None:
    def run(by: Any, reverse: bool = False, power: int = 2) -> Any:
        return liftcore.scan(lambda s, c, x: (c + by * x**power, c), reverse=reverse)((), 0.0, X)[0].tolist()

    for _ in range(2):
        assert (run(1.0), run(2.0), run(True), run(0.0), run(1.0, power=3)) == (14, 28, 14, 0, 36)
    zeros = [liftcore.scan(lambda s, c, by=by: (by * c, None), 1)((), X)[0][0] for by in (0.0, -0.0)]
    assert [bool(jnp.signbit(zero)) for zero in zeros] == [False, True]
    with jax.default_matmul_precision("highest"):
        precise = liftcore.scan(lambda s, c: (c @ c.T, None), 1)((), jnp.ones((1, 1)))
    assert precise[0] == 1


class Times:
    """Compares by its attributes, which may change."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and self.by == other.by

    def times(self, x: Any) -> Any:
        return np.asarray(x) * self.by


def times_first(by: Any, x: Any) -> Any:
    return np.asarray(x) * by[0]


def twice(x: Any) -> Any:
    return 2 * np.asarray(x)


def call_back(fn: Callable[[Any], Any]) -> list[float]:
    back = lambda x: jax.pure_callback(fn, jax.typeof(x), x)  # noqa: E731
    found: list[float] = liftcore.scan(lambda s, x: (back(x), None), 1)((), X)[0].tolist()
    return found


def test_a_callback_that_can_change_is_the_one_that_was_given() -> None:
    changing = [2.0], np.float32([2.0]), Times(2.0)
    equal = [2.0], np.float32([2.0]), Times(2.0)

    def function(by: Any) -> Callable[[Any], Any]:
        return by.times if isinstance(by, Times) else functools.partial(times_first, by)

    def change(by: Any) -> None:
        if isinstance(by, Times):
            by.by = np.float32(3)
        else:
            by[0] = 3.0

    for by, other in zip(changing, equal, strict=True):
        assert call_back(function(by)) == [2, 4, 6]
        change(by)
        assert (call_back(function(other)), call_back(function(by))) == ([2, 4, 6], [3, 6, 9])


def test_a_callback_that_cannot_change_is_compiled_once_and_others_keep_nothing_alive() -> None:
    call_back(twice), COMPILED.clear()
    assert (call_back(twice), compilations()) == ([2, 4, 6], 0)

    def call(held: Any) -> Any:
        call_back(lambda x: held * np.asarray(x))
        return weakref.ref(held)

    seen = call(np.float32([2.0]))
    jax.clear_caches(), gc.collect()
    assert seen() is None


def test_calls_of_new_functions_keep_no_memory() -> None:
    def call() -> Any:
        return liftcore.apply(FRESH["while_loop"])({"params": {"w": jnp.float32(0.5)}}, jnp.float32(2), X)

    call(), call()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        call()
    gc.collect()
    assert len(gc.get_objects()) - before < 50

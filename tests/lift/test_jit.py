"""Lifted `jit`: its arguments, how often it traces, and that it changes no name, no value and no draw."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.pipeline import Body
from liftcore.runners.jitting import Compiled

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
X = jnp.arange(3.0)
RUNS: list[tuple[str, ...]] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    RUNS.clear()


def bare(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def block(scope: Scope, x: Any) -> Any:
    """A block without a closure, so that all uses of it are equal."""
    RUNS.append(scope.path)
    w = scope.param("w", jax.random.normal, (3,))
    return jnp.tanh(x * w + jax.random.normal(scope.make_rng("dropout"), (3,)))


def tower(scope: Scope, x: Any, lift: Callable[..., Any] = liftcore.jit) -> Any:
    for name in "abc":
        x = scope.child(lift(block), name)(x)
    return x


def same(ours: Any, theirs: Any, rtol: float = 2e-6) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), ours, theirs)


# -- how often it traces -----------------------------------------------------------------------------------------------


def test_equal_blocks_share_one_trace() -> None:
    variables = liftcore.init(tower)(RNGS, X)[1]
    assert len(RUNS) == 1, "init"
    RUNS.clear()
    liftcore.apply(tower)(variables, X, rngs=RNGS)
    assert len(RUNS) == 1, "apply"


def test_a_cached_call_runs_no_python() -> None:
    def own(scope: Scope, x: Any) -> Any:
        RUNS.append(scope.path)
        return x * scope.param("w", jax.random.normal, (3,)) + jax.random.normal(scope.make_rng("dropout"))

    lifted = liftcore.jit(own)
    variables = liftcore.init(lifted)(RNGS, X)[1]
    liftcore.apply(lifted)(variables, X, rngs=RNGS)
    RUNS.clear()
    first = liftcore.apply(lifted)(variables, X, rngs=RNGS)
    second = liftcore.apply(lifted)(variables, X, rngs={**RNGS, "dropout": jax.random.key(7)})
    liftcore.init(lifted)(RNGS, X)
    assert RUNS == []
    same(first, liftcore.apply(own)(variables, X, rngs=RNGS))
    same(second, liftcore.apply(own)(variables, X, rngs={**RNGS, "dropout": jax.random.key(7)}))


def test_other_shapes_filters_and_names_are_traced_anew() -> None:
    def own(scope: Scope, x: Any) -> Any:
        RUNS.append(scope.path)
        if scope.is_mutable_collection("state"):
            scope.put_variable("state", "s", x)
        return x * 2

    lifted = liftcore.jit(own)
    for mutable, x in [([], X), ([], jnp.ones(4)), (["state"], X), (["state"], X), ([], X)]:
        liftcore.apply(lifted, mutable=mutable)({}, x)
    assert len(RUNS) == 3


@pytest.mark.parametrize("first", ["init", "apply"])
def test_init_shares_no_trace_with_apply_of_the_same_types(first: str) -> None:
    def told(scope: Scope, x: Any) -> Any:
        return x + (1 if scope.is_initializing() else 2)

    def run(entry: str) -> float:
        if entry == "init":
            return float(liftcore.init(liftcore.jit(told))(RNGS, 0.0)[0])
        return float(liftcore.apply(liftcore.jit(told), mutable=True)({}, 0.0, rngs=RNGS)[0])

    expected = {"init": 1.0, "apply": 2.0}
    for entry in (first, *expected, first):
        assert run(entry) == expected[entry]


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_calls_that_leave_other_variables_unlifted_share_no_trace(first: int, nested: bool) -> None:
    def told(scope: Scope, x: Any) -> Any:
        try:
            scope.get_variable("stats", "mean")
        except UnliftedCollectionError:
            return x + 1
        return x + 2

    def outer(scope: Scope, x: Any) -> Any:
        return liftcore.jit(told)(scope, x)

    lifted = liftcore.remat(outer, variables="params") if nested else liftcore.jit(told, variables="params")
    cases = [({}, 2.0), ({"stats": {"mean": 0.0}}, 1.0), ({"stats": {"other": 0.0}}, 2.0)]
    for variables, expected in (cases[first], *cases, cases[first]):
        assert float(liftcore.apply(lifted)(variables, 0.0)) == expected


def test_functions_that_compare_equal_share_a_trace() -> None:
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        by: float

        def __call__(self, scope: Scope, x: Any) -> Any:
            RUNS.append(scope.path)
            return x * self.by

    for by in (2.0, 2.0, 3.0):
        assert liftcore.apply(liftcore.jit(Scaled(by)))({}, 1.0) == by
    assert len(RUNS) == 2


def test_a_closure_is_not_kept_alive() -> None:
    def model() -> weakref.ref[Any]:
        table = np.ones(3)
        liftcore.apply(liftcore.jit(lambda scope, x: x + table))({}, X)
        return weakref.ref(table)

    table = model()
    gc.collect()
    assert table() is None


def test_closures_see_their_own_values() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return [liftcore.jit(lambda scope, x, by=by: x * by)(scope, x) for by in (2.0, 3.0)]

    assert liftcore.apply(model)({}, 1.0) == [2.0, 3.0]


# -- draws -------------------------------------------------------------------------------------------------------------


def test_equal_blocks_draw_different_keys() -> None:
    (y, variables), (expected, others) = (liftcore.init(tower)(RNGS, X, lift) for lift in (liftcore.jit, bare))
    same(variables, others, rtol=0)
    same(y, expected)
    assert len(np.unique(jax.tree.leaves(variables))) == 9


def inner(scope: Scope, x: Any) -> Any:
    RUNS.append(scope.path)
    w = scope.param("w", jax.random.normal, ())
    return x * w + jax.random.normal(scope.make_rng("dropout")) + jax.random.normal(scope.make_rng("dropout"))


def outer(scope: Scope, x: Any) -> Any:
    first = liftcore.jit(inner)(scope.push("first"), x)
    return liftcore.jit(inner)(scope.push("second"), first) + jax.random.normal(scope.make_rng("dropout"))


@pytest.mark.parametrize("mutable", [False, True])
def test_jitted_blocks_inside_equal_jitted_blocks_draw_different_keys(mutable: bool) -> None:
    def model(scope: Scope, lift: Callable[..., Any]) -> Any:
        return [lift(outer)(scope.push(name), 1.0) for name in "ab"]

    ours, theirs = (liftcore.init(model)(RNGS, lift) for lift in (liftcore.jit, bare))
    same(ours, theirs)
    variables = theirs[1]
    apply = liftcore.apply(model, mutable=mutable)
    same(*(apply(variables, lift, rngs=RNGS) for lift in (liftcore.jit, bare)))


@pytest.mark.parametrize("lift", [liftcore.vmap, liftcore.remat, liftcore.jit], ids=["vmap", "remat", "jit"])
def test_other_lifts_inside_equal_jitted_blocks_draw_different_keys(lift: Callable[..., Any]) -> None:
    def draw(scope: Scope, x: Any) -> Any:
        return x + jax.random.normal(scope.make_rng("dropout"))

    def both(scope: Scope, x: Any) -> Any:
        options: dict[str, Any] = {"split_rngs": True} if lift is liftcore.vmap else {}
        return lift(draw, **options)(scope.push("inner"), x)

    def model(scope: Scope, outer: Callable[..., Any]) -> Any:
        lifted = outer(both)
        return [lifted(scope.push(name), X) for name in "ab"]

    ours, theirs = (liftcore.apply(model)({}, lift, rngs=RNGS) for lift in (liftcore.jit, bare))
    same(ours, theirs)
    assert not np.allclose(ours[0], ours[1])


def test_draws_go_on_from_those_before_it_in_the_same_scope() -> None:
    def noise(scope: Scope) -> Any:
        return jax.random.normal(scope.make_rng("dropout"))

    def model(lift: Callable[..., Any]) -> Callable[..., Any]:
        return lambda scope: [noise(scope), noise(scope), lift(noise)(scope), noise(scope)]

    drawn = liftcore.apply(model(liftcore.jit))({}, rngs=RNGS)
    assert drawn == liftcore.apply(model(lambda fn: fn))({}, rngs=RNGS)
    assert len({float(one) for one in drawn}) == 4


def test_draws_go_on_counting_over_cached_calls() -> None:
    def draw(scope: Scope) -> Any:
        return jax.random.key_data(scope.make_rng("dropout"))

    def model(scope: Scope, lift: Callable[..., Any]) -> Any:
        return [lift(draw)(scope), jax.random.key_data(scope.make_rng("dropout")), lift(draw)(scope), lift(draw)(scope)]

    ours, theirs = (liftcore.apply(model)({}, lift, rngs=RNGS) for lift in (liftcore.jit, bare))
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours, axis=0)) == 4


@pytest.mark.parametrize("times", [3, 256, 257, 300])
def test_a_body_may_draw_any_number_of_keys(times: int) -> None:
    def many(scope: Scope) -> Any:
        RUNS.append(scope.path)
        return [jax.random.key_data(scope.make_rng("dropout")) for _ in range(times)][-1]

    found = jax.jit(lambda rngs: liftcore.apply(liftcore.jit(many))({}, rngs=rngs))(RNGS)
    bound = liftcore.bind({}, RNGS)
    for _ in range(times - 1):
        bound.make_rng("dropout")
    np.testing.assert_array_equal(found, jax.random.key_data(bound.make_rng("dropout")))


@pytest.mark.parametrize("times", [3, 300])
def test_an_except_round_draws_takes_no_signal_of_the_library(times: int) -> None:
    def careful(scope: Scope) -> Any:
        drawn = []
        for _ in range(times):
            try:
                drawn.append(jax.random.key_data(scope.make_rng("dropout")))
            except Exception:
                drawn.append(jnp.zeros(2, jnp.uint32))
        return jnp.stack(drawn)

    ours, theirs = (liftcore.apply(lift(careful))({}, rngs=RNGS) for lift in (liftcore.jit, bare))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("lift", [bare, liftcore.remat, liftcore.jit], ids=["bare", "remat", "jit"])
def test_a_sequence_that_was_not_given_follows_its_rule_inside_another_lift(lift: Callable[..., Any]) -> None:
    def draw(scope: Scope, x: Any) -> Any:
        return x + jax.random.normal(scope.make_rng("dropout"))

    mapped = liftcore.vmap(lift(draw), split_rngs={"dropout": True})
    expected = liftcore.vmap(draw, split_rngs={"dropout": True})
    same(liftcore.apply(mapped)({}, X, rngs=KEY), liftcore.apply(expected)({}, X, rngs=KEY))


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_typed_and_raw_keys(key: Callable[[int], Any]) -> None:
    rngs = {"params": key(0), "dropout": key(1)}
    same(*(liftcore.init(tower)(rngs, X, lift) for lift in (liftcore.jit, bare)))


# -- arguments ---------------------------------------------------------------------------------------------------------


def chosen(scope: Scope, x: Any, times: int = 1, *, mode: str = "a") -> Any:
    RUNS.append(scope.path)
    y = x * {"a": 1, "b": -1}[mode]
    for _ in range(times):
        y = y + scope.param("w", jax.random.normal, (3,)) if times < 2 else y * 2
    return y


@pytest.mark.parametrize("options", [{"static_argnums": 2}, {"static_argnames": "times"}, {"static_argnums": -1}])
def test_static_arguments_count_in_the_users_own_signature(options: dict[str, Any]) -> None:
    def fn(scope: Scope, x: Any, times: int) -> Any:
        RUNS.append(scope.path)
        return sum(x for _ in range(times))

    lifted = liftcore.apply(liftcore.jit(fn, **options))
    assert lifted({}, 1.5, 2) == 3.0
    assert lifted({}, 2.5, 2) == 5.0
    assert len(RUNS) == 1
    assert lifted({}, 1.5, 3) == 4.5
    assert len(RUNS) == 2, "another static value is another trace"
    assert lifted({}, 1.5, times=3) == 4.5


def test_static_values_of_other_types_are_other_values() -> None:
    def fn(scope: Scope, x: Any, flag: Any) -> Any:
        return x if flag is True else x * 2

    lifted = liftcore.apply(liftcore.jit(fn, static_argnums=2))
    assert [lifted({}, 1.0, flag) for flag in (True, 1, 1.0, True)] == [1.0, 2.0, 2.0, 1.0]


def test_keyword_arguments() -> None:
    lifted = liftcore.jit(chosen, static_argnames=("times", "mode"))
    for kwargs in ({}, {"mode": "b"}, {"times": 3, "mode": "b"}, {"times": 0}):
        same(liftcore.init(lifted)(KEY, X, **kwargs), liftcore.init(chosen)(KEY, X, **kwargs))
    same(liftcore.init(lifted)(KEY, x=X), liftcore.init(chosen)(KEY, X))


CLOSED: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "grad": lambda fn: jax.grad(lambda e: fn(e)[0].sum()),
    "vmap": lambda fn: lambda e: jax.vmap(fn)(jnp.stack([e, e + 1])),
    "scan": lambda fn: lambda e: jax.lax.scan(lambda e, _: (e + 1, fn(e)), e, length=2)[1],
}


@pytest.mark.parametrize("around", CLOSED)
@pytest.mark.parametrize("entry", ["init", "apply"])
def test_a_body_may_hold_values_of_the_traces_around_it(entry: str, around: str) -> None:
    runs: list[None] = []

    def model(lift: Callable[[Any], Any], held: Any) -> Any:
        def fn(scope: Scope, x: Any) -> Any:
            runs.append(None)
            w = scope.param("w", lambda key: held * 2 + jax.random.normal(key, (3,)))
            noise = jax.random.normal(scope.make_rng("dropout"), (3,))
            scope.variable("state", "held", lambda: 0 * held).value += held
            return x * w * held.sum() + noise

        if entry == "init":
            return liftcore.init(lift(fn))(RNGS, X)
        variables = {"params": {"w": X + 1}, "state": {"held": X}}
        return liftcore.apply(lift(fn), mutable=["state"])(variables, X, rngs=RNGS)

    wrapped = {lift: CLOSED[around](functools.partial(model, lift)) for lift in (bare, liftcore.jit)}
    expected = wrapped[bare](X)
    runs.clear()
    same(wrapped[liftcore.jit](X), expected)
    assert len(runs) == 1


def test_errors_name_the_function_that_was_traced() -> None:
    def flagged(scope: Scope, flag: Any) -> Any:
        return 1 if flag else 2

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"tracing the function flagged at .*test_jit\.py"):
        liftcore.apply(liftcore.jit(flagged))({}, True)


def test_bad_arguments_say_so() -> None:
    with pytest.raises(LiftArgumentError, match="number 0 is the scope"):
        liftcore.jit(chosen, static_argnums=0)
    with pytest.raises(LiftArgumentError, match=r"^donate_argnums=\(0, 1\).*number 0 is the scope.*cannot be donated"):
        liftcore.jit(chosen, donate_argnums=(0, 1))
    with pytest.raises(
        LiftArgumentError, match=r"jit\(chosen\) at /: expected a hashable value as the static argument 'mode'"
    ):
        liftcore.init(liftcore.jit(chosen, static_argnames="mode"))(KEY, X, mode=[1])
    with pytest.raises(TypeError) as caught:
        liftcore.init(liftcore.jit(chosen))(KEY, X, mode="a")
    assert "static_argnames" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("options", [{"donate_argnums": 1}, {"donate_argnames": "x"}])
def test_donated_buffers_are_gone(options: dict[str, Any], mutable: bool) -> None:
    def fn(scope: Scope, x: Any, y: Any) -> Any:
        return x + y

    x, y = jnp.arange(4.0), jnp.ones(4)
    result = liftcore.apply(liftcore.jit(fn, **options), mutable=mutable)({}, x, y)
    np.testing.assert_array_equal(result[0] if mutable else result, [1.0, 2.0, 3.0, 4.0])
    assert x.is_deleted()
    assert not y.is_deleted()


def decode(scope: Scope, x: Any) -> Any:
    cache = scope.variable("cache", "sum", jnp.zeros, (4,))
    step = scope.child(lambda scope: scope.variable("cache", "step", jnp.ones, (4,)), "inner")()
    meta = scope.variable("cache", "meta", lambda: {"a": jnp.ones(4)})  # a value that is a mapping
    boxed = scope.variable("cache", "boxed", lambda: liftcore.meta.Partitioned(jnp.ones(4), ("axis",)))
    cache.value = cache.value + x * scope.param("w", lambda key: jnp.ones(4))
    return (cache.value + step.value + meta.value["a"] + boxed.value).sum()


def deleted(variables: Any) -> set[str]:
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, leaf in leaves if leaf.is_deleted()}


@pytest.mark.parametrize("mutable", ["cache", ["cache", "state"], True])
def test_donated_variables_are_gone_and_come_back(mutable: Any) -> None:
    donating = liftcore.jit(decode, donate_variables="cache")
    _, variables = liftcore.init(donating)(KEY, 1.0)
    for _ in range(3):
        expected = jax.tree.map(np.array, liftcore.apply(decode, mutable=mutable)(variables, 1.0))
        y, changed = liftcore.apply(donating, mutable=mutable)(variables, 1.0)
        jax.tree.map(np.testing.assert_array_equal, (y, changed), expected)
        assert deleted(variables) == {"cache/sum", "cache/inner/step", "cache/meta/a", "cache/boxed/value"}
        variables = {**variables, **changed}


def test_single_variables_are_donated_by_a_filter_of_paths() -> None:
    _, variables = liftcore.init(decode)(KEY, 1.0)
    donating = liftcore.jit(decode, donate_variables=PathContains("inner"))
    liftcore.apply(donating, mutable="cache")(variables, 1.0)
    assert deleted(variables) == {"cache/inner/step"}


def test_variables_that_may_not_be_written_are_not_donated() -> None:
    def reads(scope: Scope) -> Any:
        return 2 * scope.get_variable("cache", "sum")

    variables = {"cache": {"sum": jnp.ones(4)}}
    run = liftcore.bind(variables)
    donating = liftcore.jit(reads, donate_variables=True)
    assert donating(run).tolist() == donating(run).tolist() == [2.0] * 4
    assert not deleted(variables)


def test_a_scope_goes_on_with_what_a_donating_call_left() -> None:
    _, variables = liftcore.init(decode)(KEY, 1.0)

    def twice(scope: Scope) -> Any:
        layer, donating = scope.push("layer"), liftcore.jit(decode, donate_variables="cache")
        for _ in range(2):
            donating(layer.rewound(), 1.0)
        return layer.get_variable("cache", "sum")

    nested = {collection: {"layer": tree} for collection, tree in variables.items()}
    total, changed = liftcore.apply(twice, mutable="cache")(nested)
    assert total.tolist() == changed["cache"]["layer"]["sum"].tolist() == [3.0] * 4


def test_under_a_transformation_nothing_is_donated() -> None:
    _, variables = liftcore.init(decode)(KEY, 1.0)
    donating = liftcore.jit(decode, donate_variables="cache")
    reads = liftcore.jit(lambda scope, x: x + scope.get_variable("cache", "sum"), donate_variables=True)
    jax.jit(liftcore.apply(donating, mutable="cache"))(variables, 1.0)
    looped = liftcore.scan(
        lambda scope, carry, x: (reads(scope, carry), None), variable_broadcast=True
    )  # a variable that counted as written could not be broadcast
    liftcore.apply(looped, mutable="cache")(variables, jnp.zeros(4), jnp.ones(3))
    assert not deleted(variables)


def test_donated_variables_while_others_are_created() -> None:
    def grows(scope: Scope, x: Any) -> Any:
        total = scope.variable("cache", "sum", jnp.zeros, (4,))
        total.value = total.value + x
        return scope.variable("cache", "new", lambda: 2 * total.value).value

    variables = {"cache": {"sum": jnp.ones(4)}}
    y, changed = liftcore.apply(liftcore.jit(grows, donate_variables=True), mutable="cache")(variables, 1.0)
    assert y.tolist() == changed["cache"]["new"].tolist() == [4.0] * 4
    assert changed["cache"]["sum"].tolist() == [2.0] * 4
    assert deleted(variables) == {"cache/sum"}


def test_donated_buffers_serve_init_too() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.variable("state", "s", lambda: 2 * x).value

    x = jnp.arange(4.0)
    y, variables = liftcore.init(liftcore.jit(fn, donate_argnums=1))(KEY, x)
    assert y.tolist() == [0.0, 2.0, 8.0, 18.0]
    assert variables["state"]["s"].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert x.is_deleted()


def test_options_reach_jax() -> None:
    lifted = liftcore.jit(lambda scope, x, unused: x * 2, inline=True, keep_unused=True)
    jaxpr = jax.make_jaxpr(liftcore.apply(lifted))({}, 1.0, 2.0)
    # A newer JAX keeps the call as an equation that says so.
    assert all(eqn.primitive.name == "mul" or eqn.params["inline"] for eqn in jaxpr.eqns), "inline"
    lifted = liftcore.jit(lambda scope, x: x * 2, compiler_options={"xla_backend_optimization_level": 0})
    assert liftcore.apply(lifted)({}, 1.0) == 2.0
    with pytest.raises(Exception, match="no_such_option"):
        liftcore.apply(liftcore.jit(lambda scope, x: x * 2, compiler_options={"no_such_option": 0}))({}, 1.0)


# -- state -------------------------------------------------------------------------------------------------------------


def busy(scope: Scope, x: Any) -> Any:
    count = scope.variable("state", "n", lambda: jnp.zeros((), jnp.int32))
    start = scope.variable("state", "start", lambda: 2 * x)
    if scope.is_mutable_collection("state"):
        count.value += 1
    scope.sow("intermediates", "x", x)
    scope.push("deep").sow("intermediates", "y", {"twice": 2 * x})
    return start.value * count.value + scope.push(prefix="auto_").param("w", jax.random.normal, (3,))


def test_values_names_and_captures_are_those_of_the_function() -> None:
    def model(scope: Scope, lift: Callable[..., Any]) -> Any:
        first = scope.child(lift(busy), "a")(X)
        second = scope.child(lift(busy), "b")(first)
        return (
            lift(busy)(scope, second),
            scope.default_name("auto_"),
            scope.name_reserved("n"),
            scope.name_reserved("deep"),
        )

    ours, theirs = (liftcore.init(model)(RNGS, lift) for lift in (liftcore.jit, bare))
    assert ours[0][1:] == theirs[0][1:] == ("auto_1", True, True)
    same((ours[0][0], ours[1]), (theirs[0][0], theirs[1]))
    held = {name: found for name, found in theirs[1].items() if name != "intermediates"}
    for mutable in (["state"], ["intermediates"], True):
        apply = liftcore.apply(model, mutable=mutable)
        (ours, first), (theirs, second) = (apply(held, lift, rngs=RNGS) for lift in (liftcore.jit, bare))
        same((ours[0], first), (theirs[0], second))


def scaling(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", jax.random.normal, ())


def test_a_compiled_body_is_not_shared_by_places_that_a_filter_tells_apart() -> None:
    lifted = liftcore.jit(scaling, variables=PathContains("a"))

    def model(scope: Scope, x: Any) -> Any:
        return lifted(scope.push("b"), lifted(scope.push("a"), x))

    with pytest.raises(UnliftedCollectionError, match="/b/jit"):
        liftcore.init(model)(KEY, jnp.float32(1))


def test_it_is_transparent_under_gradients_and_an_outer_jit() -> None:
    variables = liftcore.init(tower)(RNGS, X)[1]

    def loss(variables: Any, lift: Callable[..., Any]) -> Any:
        return liftcore.apply(tower)(variables, X, lift, rngs=RNGS).sum()

    for wrap in (bare, lambda fn: jax.jit(fn, static_argnums=1)):
        same(*(wrap(jax.grad(loss))(variables, lift) for lift in (liftcore.jit, bare)), rtol=1e-5)


def test_filters_of_single_variables_go_by_the_path_of_each_call() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        for name in ("w", "lora"):
            if scope.has_variable("params", name):
                x = x * scope.get_variable("params", name)
        return x

    def model(scope: Scope, x: Any) -> Any:
        lifted = liftcore.jit(fn, variables=All("params", PathContains("lora")))
        return [lifted(scope.push(name), x) for name in ("lora", "other")]

    variables = {"params": {"lora": {"w": 2.0}, "other": {"lora": 3.0}}}
    assert liftcore.apply(model)(variables, 1.0) == [2.0, 3.0]


def test_what_is_not_lifted_is_an_error() -> None:
    with pytest.raises(UnliftedCollectionError, match=r'"params/w" at /a/jit\(block\)'):
        liftcore.init(lambda scope: liftcore.jit(block, variables="state")(scope.push("a"), X))(RNGS)
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("dropout"\) at /jit\(block\)'):
        liftcore.init(liftcore.jit(block, rngs="params"))(RNGS, X)


def test_a_body_that_raises_leaves_nothing_behind() -> None:
    def fragile(scope: Scope, x: Any, broken: bool) -> Any:
        scope.make_rng("dropout")
        scope.variable("state", "n", lambda: x)
        if broken:
            raise KeyError("broken")
        return x

    root = liftcore.bind({}, RNGS, mutable=True)
    lifted = liftcore.jit(fragile, static_argnums=2)
    with pytest.raises(KeyError, match="broken"):
        lifted(root, X, True)
    assert root.variables() == {}
    assert lifted(root, X, False).tolist() == X.tolist()
    fresh = liftcore.bind({}, RNGS)
    fresh.make_rng("dropout")
    assert root.make_rng("dropout") == fresh.make_rng("dropout")


def test_methods_and_partials_may_be_jitted() -> None:
    class Model:
        def __init__(self, by: float) -> None:
            self.by = by

        def run(self, scope: Scope, x: Any) -> Any:
            return x * self.by

    models = [Model(by) for by in (2.0, 3.0)]
    assert [liftcore.apply(liftcore.jit(model.run))({}, 1.0) for model in models] == [2.0, 3.0]
    part = functools.partial(block, x=X)
    same(liftcore.init(liftcore.jit(part))(RNGS), liftcore.init(block)(RNGS, X))


def initializing(scope: Scope, x: Any) -> Any:
    return x + scope.is_initializing()


def test_a_compiled_body_is_not_shared_by_init_and_by_an_apply_that_may_make_the_same() -> None:
    model = liftcore.jit(initializing)
    assert liftcore.init(model)(KEY, 1.0)[0] == 2
    assert liftcore.apply(model, mutable=True)({}, 1.0, rngs=KEY)[0] == 1


def asking(scope: Scope, x: Any) -> Any:
    return x + scope.get_variable("consts", "c", 1.0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_compiled_body_is_not_shared_where_a_lift_around_it_leaves_out_what_it_asks_for(depth: int) -> None:
    model = liftcore.jit(asking)
    for level in range(depth):
        model = liftcore.remat(model, variables=True if level + 1 < depth else "params")
    assert liftcore.apply(model)({}, X).tolist() == [1, 2, 3]
    with pytest.raises(UnliftedCollectionError, match="consts"):
        liftcore.apply(model)({"consts": {"c": jnp.float32(5)}}, X)


# -- calls of what is compiled already, over scopes that may be written ------------------------------------------------


def _drawing(scope: Any, x: Any) -> Any:
    """As many draws as `x` has elements; one that is shorter creates a variable as well."""
    for _ in range(x.size):
        x = x + jax.random.uniform(scope.make_rng("noise"))
    if x.size == 1:
        scope.variable("state", "made", lambda: x.sum())
    scope.variable("state", "n", lambda: 0).value += 1
    return x


def _bound() -> liftcore.Scope:
    return liftcore.bind({"state": {"n": 0}}, {"noise": KEY}, mutable="state")


def test_calls_with_other_operands_do_what_their_own_traces_do() -> None:
    sizes = (3, 3, 2, 3, 2, 1, 1, 3)
    compiled, plain = liftcore.jit(_drawing), _drawing
    found, expected = (
        [(fn(scope.rewound(), jnp.ones(size)), scope.variables()["state"], scope.make_rng("noise")) for size in sizes]
        for fn, scope in ((compiled, _bound()), (plain, _bound()))
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(*map(_number, (one, other)), rtol=1e-6), found, expected)


def _number(value: Any) -> Any:
    return jax.random.key_data(value) if jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key) else value


def test_a_call_over_a_mutable_scope_asks_for_no_trace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = Compiled._trace
    monkeypatch.setattr(Compiled, "_trace", lambda self, *operands: asked.append(1) or ask(self, *operands))
    lifted, scope = liftcore.jit(lambda scope, x: _drawing(scope, x)), _bound()
    for _ in range(4):
        lifted(scope.rewound(), jnp.ones(2))
    assert len(asked) == 1
    assert scope.variables()["state"]["n"] == 4


@pytest.mark.parametrize("lowered", [False, True])
def test_a_donating_call_asks_for_no_trace_again_unless_it_draws(
    monkeypatch: pytest.MonkeyPatch, lowered: bool
) -> None:
    asked = []
    ask = Compiled._trace
    monkeypatch.setattr(Compiled, "_trace", lambda self, *operands: asked.append(1) or ask(self, *operands))

    def step(scope: Any, x: Any) -> Any:
        for _ in range(x.ndim):
            x = x + jax.random.uniform(scope.make_rng("noise"))
        scope.variable("state", "n", lambda: 0).value += x.sum()
        return x

    def run(lifted: Any) -> Any:
        scope = liftcore.bind({"state": {"n": jnp.zeros(())}}, {"noise": KEY}, mutable=True)
        for x in (1.0, 2.0, 3.0, jnp.ones(2), jnp.ones(2), 4.0):
            y = lifted(scope.rewound(), jnp.asarray(x))
            yield np.array(y), float(scope.variables()["state"]["n"]), len(asked)  # the next call deletes it

    donating = liftcore.jit(step, donate_variables="state")
    if lowered:
        donating.lower(liftcore.bind({"state": {"n": jnp.zeros(())}}, {"noise": KEY}, mutable=True), jnp.ones(2))
    before = len(asked)
    found, expected = list(run(donating)), list(run(step))
    assert [count - before for *_, count in found] == ([1, 2, 3, 4, 5, 6] if lowered else [1, 1, 1, 2, 3, 4])
    for one, other in zip(found, expected, strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), one[:2], other[:2])


def test_many_draws_under_other_options_are_those_of_the_body() -> None:
    def many(scope: Any, x: Any) -> Any:
        keys = [scope.make_rng("noise") for _ in range(300)]
        return x + jax.random.uniform(keys[-1])

    one, other = liftcore.jit(many), liftcore.jit(many, inline=True)
    scope, plain = _bound(), _bound()
    for lifted in (one, one, other, other, one):
        np.testing.assert_allclose(lifted(scope, 1.0), many(plain, 1.0), rtol=1e-6)
    assert scope.make_rng("noise") == plain.make_rng("noise")


def test_lifts_over_a_scope_that_creates_nothing_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_split(*_: Any, **__: Any) -> Any:
        raise AssertionError("there is nothing to split off")

    monkeypatch.setattr(Body, "split", no_split)
    scope = liftcore.bind({"params": {"w": 2.0}, "state": {"n": 0}}, mutable=True, creates=False)

    def layer(scope: Any, x: Any) -> Any:
        scope.variable("state", "n", lambda: 0).value += 1
        return scope.param("w", None) * x

    value, grads = liftcore.value_and_grad(liftcore.remat(layer))(scope, 3.0)
    assert (value, grads["params"]["w"]) == (6.0, 3.0)
    assert liftcore.vmap(layer, variable_axes={...: None})(scope.rewound(), jnp.arange(2.0)).tolist() == [0.0, 2.0]
    error, value = liftcore.checkify(layer)(scope.rewound(), 4.0)
    assert (error.get(), value) == (None, 8.0)
    assert scope.variables()["state"] == {"n": 3}

"""Why something was traced again: what `retraces` records, and what `assert_max_traces` allows."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import liftcore
from liftcore import Scope
from liftcore.diagnostics.retrace import Difference, Retrace, Retraces, assert_max_traces, retraces
from liftcore.errors import LiftError, TooManyTracesError
from liftcore.filters import All, PathContains
from liftcore.training import TrainState

KEY = jax.random.key(0)
X = jnp.ones(3)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A function that compares by value."""

    features: int = 3

    def __call__(self, scope: Scope, x: Any, flag: bool = True, *, mode: str = "a") -> Any:
        w = scope.param("w", jax.random.normal, (self.features,))
        return x.sum() * w if flag else w


@functools.cache
def named(name: str) -> type[Layer]:
    """The same under a name of its own, so that no test finds what another one traced."""
    return type(name, (Layer,), {})


def lifted(name: str, features: int = 3, **options: Any) -> Callable[..., Any]:
    return liftcore.jit(named(name)(features), **options)


def stored(features: int = 3) -> Any:
    return {"params": {"w": jnp.ones(features)}}


def what(record: Retrace) -> list[str]:
    return [one.what for one in record.differences]


# -- what differs ------------------------------------------------------------------------------------------------------


def test_a_first_trace_has_nothing_to_be_compared_with_and_a_hit_leaves_no_record() -> None:
    run = liftcore.apply(lifted("first"))
    with retraces() as found:
        for _ in range(3):
            run(stored(), X)
    assert found.records == [Retrace("/jit(first)")]
    assert str(found) == "/jit(first): the first trace"
    with retraces() as found:
        run(stored(), 2 * X)
    assert (len(found), str(found)) == (0, "no traces")


def test_shapes_and_dtypes_of_arguments() -> None:
    run = liftcore.apply(lifted("argument"))
    run(stored(), X)
    with retraces() as found:
        run(stored(), jnp.ones(4))
        run(stored(), jnp.ones(4, jnp.int32))
        run(stored(), 2 * jnp.ones(4, jnp.int32))
    assert [record.differences for record in found] == [
        (Difference("argument x", "float32[3]", "float32[4]"),),
        (Difference("argument x", "float32[4]", "int32[4]"),),
    ]
    assert str(found).splitlines()[0] == "/jit(argument): argument x: float32[3] before, float32[4] now"


def test_a_static_leaf_of_an_argument_by_its_place() -> None:
    run = liftcore.apply(liftcore.filtered(liftcore.jit, lambda scope, inputs: 2 * inputs["x"]))
    run({}, {"x": X, "mode": ("train", 1)})
    with retraces() as found:
        run({}, {"x": X, "mode": ("train", 1.0)})
        run({}, {"x": X, "mode": ("eval", 1.0)})
    assert [record.differences for record in found] == [
        (Difference("argument inputs['mode'][1]", "1", "1.0"),),
        (Difference("argument inputs['mode'][0]", "'train'", "'eval'"),),
    ]


def test_a_rest_that_is_an_argument_by_its_leaves() -> None:
    run = liftcore.apply(liftcore.jit(lambda scope, x, rest: rest.join({"x": x, "mode": None})["x"]))
    for mode in ("train", "eval"):
        with retraces() as found:
            run({}, X, liftcore.split_static({"x": X, "mode": mode})[1])
    assert found.records[-1].differences == (Difference("argument rest['mode']", "'train'", "'eval'"),)


def tree(scope: Scope, x: Any, **others: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves((x, others)))


def test_arguments_by_name_and_within_pytrees() -> None:
    run = liftcore.apply(liftcore.jit(tree))
    run({}, {"a": X}, y=X)
    with retraces() as found:
        run({}, {"a": X, "b": X}, y=X)
        run({}, {"a": X}, y=jnp.float32(1.0))
        run({}, {"a": X}, y=1.0)
    assert [record.differences for record in found] == [
        (Difference("argument x['b']", None, "float32[3]"),),
        (Difference("argument y", "float32[3]", "float32[]"),),
        (Difference("argument y", "float32[]", "float32[] (weak)"),),
    ]
    assert "argument x['b']: absent before, float32[3] now" in str(found)


def test_static_arguments() -> None:
    run = liftcore.apply(lifted("static", static_argnums=2, static_argnames="mode"))
    run(stored(), X, True, mode="a")
    with retraces() as found:
        run(stored(), X, False, mode="a")
        run(stored(), X, False, mode="b")
    assert [record.differences for record in found] == [
        (Difference("static argument flag", "True", "False"),),
        (Difference("static argument mode", "'a'", "'b'"),),
    ]


def test_fields_of_the_function() -> None:
    with retraces() as found:
        for features in (3, 4, 3):
            liftcore.init(lifted("field", features))(KEY, X)
    assert [record.differences for record in found] == [(), (Difference("field.features", "3", "4"),)]


def test_filters_and_mutable_sets() -> None:
    stored_too = {**stored(), "state": {"n": X}}
    liftcore.apply(lifted("filter"))(stored_too, X)
    with retraces() as found:
        liftcore.apply(lifted("filter"), mutable="state")(stored_too, X)
        liftcore.apply(lifted("filter", variables="params"), mutable="state")(stored_too, X)
        liftcore.apply(lifted("filter", variables=All("params", PathContains("w"))))(stored(), X)
    mutable, filtered, single = found
    assert mutable.differences == (Difference("mutable", "None", "'state'"),)
    assert set(what(filtered)) == {"variables", "variable state/n", "variables not lifted"}
    assert Difference("variables", "...", "'params'") in filtered.differences
    assert next(one.now for one in single.differences if one.what == "variables") == "All('params', PathContains('w'))"


def test_init_and_apply() -> None:
    run = lifted("init")
    liftcore.init(run)(KEY, X)
    with retraces() as found:
        liftcore.apply(run)(stored(), X)
    (record,) = found
    assert {"initializing", "mutable", "variable params/w", "stream params"} <= set(what(record))
    assert Difference("initializing", "True", "False") in record.differences


def test_sequences_and_variables_that_are_given_or_not() -> None:
    run = liftcore.apply(lifted("given"))
    run(stored(), X)
    with retraces() as found:
        run(stored(), X, rngs={"dropout": KEY})
        run({**stored(), "state": {"deep": {"n": X}}}, X)
    assert what(found.records[0]) == ["streams given", "stream dropout"]
    assert found.records[1].differences == (Difference("variable state/deep/n", None, "float32[3]"),)


def test_names_that_are_taken() -> None:
    def model(scope: Scope, x: Any, name: str) -> Any:
        scope.reserve(name)
        return lifted("names")(scope, x)

    run = liftcore.apply(model)
    run(stored(), X, "a")
    with retraces() as found:
        run(stored(), X, "b")
    assert found.records[0].differences == (Difference("names taken", "['a'], numbers {}", "['b'], numbers {}"),)


def test_donated_arguments() -> None:
    liftcore.apply(lifted("donated"))(stored(), jnp.ones(3))
    with retraces() as found:
        liftcore.apply(lifted("donated", donate_argnums=1))(stored(), jnp.ones(3))
    assert found.records[0].differences == (Difference("donated arguments", "[]", "['x']"),)


def test_several_scopes_are_told_apart() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.jit(pair)([scope.push("a"), scope.push("b")], x)

    liftcore.apply(model)({"params": {"a": {"w": X}, "b": {"w": X}}}, X)
    with retraces() as found:
        liftcore.apply(model)({"params": {"a": {"w": X}, "b": {"w": 1.0}}}, X)
    assert found.records[0].differences == (
        Difference("variable of scope 1 params/w", "float32[3]", "float32[] (weak)"),
    )


def pair(scopes: list[Scope], x: Any) -> Any:
    return x * scopes[0].get_variable("params", "w") * scopes[1].get_variable("params", "w")


def test_a_setting_of_jax_shows_as_nothing() -> None:
    run = liftcore.apply(lifted("setting"))
    run(stored(), X)
    with retraces() as found, jax.default_matmul_precision("float32"):
        run(stored(), X)
    assert found.records == [Retrace("/jit(setting)", "/jit(setting)", ())]
    assert "no visible difference" in str(found)


def test_an_optimizer_made_anew_compiles_a_step_again() -> None:
    state, anew = (training_state(optax.sgd(0.1)) for _ in range(2))
    step = jax.jit(lambda state, x: state.minimize(squares, x))
    with retraces() as found:
        step(state, X)
        once = len(found)
        step(training_state(state.tx), X)
        assert len(found) == once
        step(anew, X)
    assert len(found) > once
    assert "a static value made anew, such as `tx=optax.adam(…)`" in str(found)


APPLY = liftcore.apply(lifted("training"))


def training_state(tx: Any) -> TrainState:
    return TrainState.create(apply_fn=APPLY, variables=stored(), tx=tx)


def squares(state: TrainState, x: Any) -> Any:
    y, state = state.apply(x)
    return (y**2).sum(), state


def test_closures_share_nothing() -> None:
    def model(scope: Scope, x: Any) -> Any:
        for by in (2.0, 3.0, 3.0):
            x = liftcore.jit(times(by))(scope, x)
        return x

    def times(by: float) -> Callable[..., Any]:
        return lambda scope, x: x * by

    with retraces() as found:
        liftcore.apply(model)({}, X)
    assert [what(record) for record in found] == [[], ["closure by", "wrapper"], ["wrapper"]]
    assert found.records[1].differences[0] == Difference("closure by", "2.0", "3.0")
    assert "only calls of one wrapper share compiled functions" in str(found)


def test_what_methods_partials_and_containers_hold() -> None:
    @dataclasses.dataclass(eq=False)
    class Model:
        sizes: tuple[int, ...]
        table: Any
        act: Callable[..., Any]

        def run(self, scope: Scope, x: Any, by: Any) -> Any:
            return self.act(x * by * sum(self.sizes))

    with retraces() as found:
        for sizes, act, by in (((1, 2), jnp.sin, 2), ((1, 3), jnp.sin, 2), ((1, 3), jnp.cos, 3)):
            model = Model(sizes, {"t": jnp.ones(2)}, act)
            liftcore.apply(liftcore.jit(functools.partial(model.run, by=by)))({}, X)
    assert [what(record) for record in found] == [
        [],
        ["self.sizes[1]", "wrapper"],
        ["self.act", "partial keywords['by']", "wrapper"],
    ]
    assert found.records[2].differences[0] == Difference("self.act", "sin", "cos")


# -- where, and compared with what -------------------------------------------------------------------------------------


def test_records_are_keyed_by_path_and_compared_with_the_closest() -> None:
    def model(scope: Scope, x: Any) -> None:
        for name, features in (("a", 3), ("b", 4), ("c", 3)):
            lifted("paths", features)(scope.push(name), x)

    with retraces() as found:
        variables = liftcore.init(model)(KEY, X)[1]
        liftcore.apply(model)(variables, X)
    assert list(found.by_path) == ["/a/jit(paths)", "/b/jit(paths)"]  # at /c the trace of /a serves
    first, second = found.by_path["/b/jit(paths)"]
    assert first.closest == second.closest == "/a/jit(paths)"
    assert what(second) == ["paths.features", "variable params/w"]
    assert str(first).endswith("paths.features: 3 before, 4 now (compared with /a/jit(paths))")


def test_paths_hold_the_names_of_lifts() -> None:
    def step(scope: Scope, carry: Any, _: Any) -> Any:
        return carry, lifted("lifts")(scope.push("block"), carry)

    loop = liftcore.scan(step, length=2, variable_axes={"params": 0}, split_rngs=True)
    with retraces() as found:
        liftcore.init(loop)(KEY, X, None)
    assert [record.path for record in found] == ["/scan(step)/block/jit(lifts)"]


def test_functions_of_one_name_are_not_compared() -> None:
    def make(module: str) -> Callable[..., Any]:
        def same_name(scope: Scope, x: Any) -> Any:
            return x

        same_name.__module__ = module
        return same_name

    with retraces() as found:
        for module in "ab":
            liftcore.apply(liftcore.jit(make(module)))({}, X)
    assert [record.closest for record in found] == [None, None]


# -- applied functions -------------------------------------------------------------------------------------------------


def test_an_applied_function_is_recorded_where_jax_traces_it() -> None:
    def model(scope: Scope, x: Any, mode: str = "a") -> Any:
        return x * scope.get_variable("params", "w")

    run = jax.jit(liftcore.apply(model), static_argnames="mode")
    with retraces() as found:
        liftcore.apply(model)(stored(), X)  # nothing is traced here
        run(stored(), X)
        run(stored(), X)
        run(stored(), jnp.float32(1.0))
        run(stored(), jnp.float32(1.0), mode="b")
        jax.grad(lambda variables: liftcore.apply(model)(variables, X).sum())(stored())
    assert [(record.path, what(record)) for record in found] == [
        ("model at /", []),
        ("model at /", ["argument x"]),
        ("model at /", ["argument mode"]),
        ("model at /", []),
    ]
    assert found.records[1].differences == (Difference("argument x", "float32[3]", "float32[]"),)


def test_an_applied_function_tells_variables_sequences_and_the_mutable_set() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return x * scope.param("w", jax.random.normal, x.shape)

    with retraces() as found:
        jax.jit(liftcore.init(model))(KEY, X)
        jax.jit(liftcore.apply(model))(stored(), X)
        jax.jit(liftcore.apply(model, mutable="state"))({**stored(), "state": {"n": X}}, X)
        jax.jit(liftcore.apply(model))(stored(), X, rngs={"dropout": KEY})
    assert [what(record) for record in found] == [
        [],
        ["mutable", "initializing", "variable params/w", "stream params"],
        ["mutable", "variable state/n"],
        ["stream dropout"],
    ]


# -- recorders ---------------------------------------------------------------------------------------------------------


def test_recorders_nest_and_end_with_their_block() -> None:
    run = liftcore.apply(lifted("nested"))
    with retraces() as outer:
        run(stored(), X)
        with retraces() as inner:
            run(stored(), jnp.ones(4))
        run(stored(), jnp.ones(5))
    run(stored(), jnp.ones(6))
    assert (len(outer), len(inner)) == (3, 1)
    with pytest.raises(KeyError), retraces() as outer:
        raise KeyError
    run(stored(), jnp.ones(7))
    assert len(outer) == 0


def test_other_threads_are_not_recorded() -> None:
    run = liftcore.apply(lifted("thread"))
    with retraces() as found:
        thread = threading.Thread(target=run, args=(stored(), X))
        thread.start()
        thread.join()
    assert len(found) == 0


def test_a_body_that_raises_or_draws_much_leaves_one_record_at_most() -> None:
    def fails(scope: Scope, x: Any) -> Any:
        raise KeyError

    with retraces() as found:
        with pytest.raises(KeyError):
            liftcore.apply(liftcore.jit(fails))({}, X)
        liftcore.apply(liftcore.jit(greedy))({}, X, rngs=KEY)  # runs again, with room for all its keys
    assert [record.path for record in found] == ["/jit(greedy)"]


def greedy(scope: Scope, x: Any) -> Any:
    for _ in range(300):
        scope.make_rng("params")
    return x


def test_neither_records_nor_caches_keep_arrays() -> None:
    def run() -> tuple[weakref.ref[Any], Retraces]:
        x = jnp.ones(3)
        with retraces() as found:
            liftcore.apply(lifted("arrays"))(stored(), x)
            liftcore.apply(liftcore.jit(lambda scope: x))({})
        return weakref.ref(x), found

    array, found = run()
    gc.collect()
    assert array() is None
    assert len(found) == 2


# -- a limit -----------------------------------------------------------------------------------------------------------


def test_a_limit_on_what_is_traced_within_a_block() -> None:
    run = liftcore.apply(lifted("block"))
    with assert_max_traces(1) as found:
        run(stored(), X)
        run(stored(), X)
    assert len(found) == 1
    with pytest.raises(TooManyTracesError) as caught, assert_max_traces(1):
        [run(stored(), jnp.ones(size)) for size in (4, 5)]
    assert str(caught.value) == (
        "assert_max_traces(1): there were 2 traces, at most 1 is allowed: "
        "(1) /jit(block): argument x: float32[3] before, float32[4] now. "
        "(2) /jit(block): argument x: float32[4] before, float32[5] now. "
        "Keep types, fields and static arguments the same, or allow more: `assert_max_traces(2)`."
    )
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, LiftError)
    with assert_max_traces(0):
        run(stored(), X)


def test_an_error_in_the_block_is_not_hidden() -> None:
    def fails(scope: Scope, x: Any) -> Any:
        lifted("hidden")(scope, x)
        raise KeyError

    limit = assert_max_traces(0)
    with pytest.raises(KeyError), limit:
        liftcore.apply(fails)(stored(), X)
    with limit, limit:  # it may be entered again, and within itself
        liftcore.apply(lifted("hidden"))(stored(), X)


def test_a_limit_on_the_runs_of_a_function_of_a_scope() -> None:
    @assert_max_traces(2)
    def layer(scope: Scope, x: Any) -> Any:
        """Doubles."""
        return 2 * x

    assert (layer.__name__, layer.__doc__) == ("layer", "Doubles.")
    run = liftcore.apply(liftcore.jit(layer))
    for x in (X, X, jnp.ones(4), X):
        assert run({}, x).tolist() == (2 * x).tolist()
    with pytest.raises(TooManyTracesError) as caught:
        liftcore.apply(lambda scope, x: liftcore.jit(layer)(scope.push("a"), x), mutable=["state"])({}, X)
    assert str(caught.value).startswith(
        "layer at /a/jit(layer): its Python ran 3 times, at most 2 are allowed: (1) /jit(layer): the first trace. "
        "(2) /jit(layer): argument x: float32[3] before, float32[4] now. "
        "(3) /a/jit(layer): argument scope, path: /jit(layer) before, /a/jit(layer) now; argument scope, mutable: "
        "None before, 'state' now (compared with /jit(layer)). Keep"
    )


def test_a_limit_on_any_function_and_on_a_method() -> None:
    @assert_max_traces(1)
    def loss(x: Any, mode: str) -> Any:
        return x.sum() if mode == "sum" else x.mean()

    step = jax.jit(loss, static_argnames="mode")
    step(X, mode="sum")
    step(X, mode="sum")
    with pytest.raises(TooManyTracesError, match="argument mode: 'sum' before, 'mean' now"):
        step(X, mode="mean")

    class Model:
        @assert_max_traces(1)
        def run(self, x: Any) -> Any:
            return x

    assert Model().run(1) == 1
    with pytest.raises(TooManyTracesError, match=r"Model\.run at /: its Python ran 2 times, at most 1 is allowed"):
        Model().run(2)
    assert isinstance(Model.run.__wrapped__, type(test_an_error_in_the_block_is_not_hidden))


def test_a_limit_changes_nothing_about_what_is_shared() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return [liftcore.jit(once)(scope.push(name), x) for name in "ab"]

    for _ in range(2):
        liftcore.apply(model)({}, X)

    def closed(x: Any) -> weakref.ref[Any]:
        @assert_max_traces(1)
        def layer(scope: Scope) -> Any:
            return x * 1

        liftcore.apply(liftcore.jit(layer))({})
        return weakref.ref(x)

    array = closed(jnp.ones(3))
    gc.collect()
    assert array() is None


@assert_max_traces(1)
def once(scope: Scope, x: Any) -> Any:
    return x


@jax.tree_util.register_static
class Mode:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mode) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def trace_facts(self) -> dict[str, str]:
        return {".name": self.name}


def test_a_static_node_of_another_package_tells_what_it_is() -> None:
    run = liftcore.jit(lambda scopes, mode, x: x)
    with liftcore.retraces() as found:
        run((), Mode("train"), 1.0)
        run((), Mode("eval"), 1.0)
    assert "argument mode.name: 'train' before, 'eval' now" in str(found)


def test_an_empty_side_of_a_difference_is_none() -> None:
    assert str(Difference("streams", "...", "")) == "streams: ... before, none now"
    assert str(Difference("params/w", None, "float32[2]")) == "params/w: absent before, float32[2] now"

"""`explain`: every lift with its variables and streams, and a scope that nothing is done to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import liftcore
from liftcore import In, InOut, Out, Scope
from liftcore.diagnostics.explanation import ExplainedLift, ExplainedStream, ExplainedVariable, Explanation, explain
from liftcore.diagnostics.facts import type_text
from liftcore.errors import UnliftedCollectionError
from liftcore.filters import All, PathContains, leaves_of
from tests.lift.quick import key, uniform
from tests.lift.table import SHOWN, TABLE

KEY = jax.random.key(0)
X = jnp.ones(3)


def bind(variables: Any = None, rngs: Any = KEY, mutable: Any = True) -> Scope:
    return liftcore.bind(variables or {}, rngs, mutable, initializing=not variables)


def rows(lift: ExplainedLift) -> dict[str, ExplainedVariable]:
    return {"/".join(row.path): row for row in lift.variables}


def keys(lift: ExplainedLift) -> dict[str, ExplainedStream]:
    return {row.name: row for row in lift.streams}


def told(row: ExplainedVariable) -> tuple[str | None, str, str]:
    return row.group, row.treatment, row.fate


def block(scope: Scope, x: Any) -> Any:
    w = scope.param("w", jax.random.normal, (3,))
    lora = scope.param("lora", jax.random.normal, (3,))
    count = scope.variable("state", "n", lambda: jnp.zeros(()))
    if scope.is_mutable_collection("state"):
        count.value += 1
    return x * w + lora


# -- variables ---------------------------------------------------------------------------------------------------------


def test_a_mapping_tells_axes_and_what_was_created() -> None:
    elements = liftcore.vmap(
        block, None, axis_size=5, variable_axes={"params": 0, "state": None}, split_rngs={"params": True}
    )
    explained = explain(elements)(bind(), X)
    assert explained.name == "block"
    (lift,) = explained.lifts
    assert (lift.name, lift.where, lift.lifts) == ("vmap(block)", "/", ())
    assert rows(lift) == {
        "params/lora": ExplainedVariable(
            ("params", "lora"), "float32[5,3]", "'params'", "axis 0", created=True, read=True, hoisted=True
        ),
        "params/w": ExplainedVariable(
            ("params", "w"), "float32[5,3]", "'params'", "axis 0", created=True, read=True, hoisted=True
        ),
        "state/n": ExplainedVariable(
            ("state", "n"),
            "float32[]",
            "'state'",
            "axis None, one value for all elements",
            created=True,
            read=True,
            written=True,
            hoisted=True,
        ),
    }


def test_what_exists_is_read_written_or_left_out() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", x)
        return scope.get_variable("params", "w") * scope.make_rng("params").size

    elements = liftcore.vmap(body, variable_axes={"params": None, "state": 0}, split_rngs={"params": False})
    stored = {
        "params": {"w": 1.0, "unused": 2.0},
        "state": {"n": X},
        "consts": {"c": {"deep": 3.0}},
    }
    (lift,) = explain(elements)(bind(stored, mutable=["state"]), X).lifts
    assert {name: told(row) for name, row in rows(lift).items()} == {
        "params/w": ("'params'", "axis None, one value for all elements", "read"),
        "params/unused": ("'params'", "axis None, one value for all elements", "untouched"),
        "state/n": ("'state'", "axis 0", "written"),
        "consts/c/deep": (None, "not lifted", "untouched"),
    }


def test_variables_that_only_go_in_or_out() -> None:
    def body(scope: Scope) -> None:
        scope.put_variable("out", "o", scope.get_variable("in", "i"))
        scope.put_variable("both", "b", scope.get_variable("both", "b"))
        scope.put_variable("moved", "m", scope.get_variable("moved", "m"))

    axes = {"in": In(0), "out": Out(1), "both": 0, "moved": InOut(0, 1)}
    square = jnp.ones((2, 2))
    stored = {"in": {"i": square}, "both": {"b": square}, "moved": {"m": square}}
    (lift,) = explain(liftcore.vmap(body, variable_axes=axes))(bind(stored)).lifts
    assert {name: told(row)[:2] for name, row in rows(lift).items()} == {
        "in/i": ("'in'", "axis 0, in only"),
        "out/o": ("'out'", "axis 1, out only"),
        "both/b": ("'both'", "axis 0"),
        "moved/m": ("'moved'", "in: axis 0; out: axis 1"),
    }


def step(scope: Scope, carry: Any, _: Any) -> Any:
    scope.variable("cache", "start", lambda: 2 * carry)
    return block(scope, carry), None


LOOP: dict[str, Any] = {
    "length": 4,
    "variable_broadcast": All("params", PathContains("lora")),
    "variable_carry": "state",
    "variable_axes": {"params": 0, "cache": 0},
}


def test_a_loop_tells_what_is_shared_carried_and_stacked_and_what_was_hoisted() -> None:
    loop = liftcore.scan(step, split_rngs={"params": False}, **LOOP)
    (lift,) = explain(loop)(bind(), X, None).lifts
    lora = "All('params', PathContains('lora'))"
    assert {name: told(row) for name, row in rows(lift).items()} == {
        "params/lora": (lora, "broadcast, one value for all iterations", "created, hoisted, read"),
        "params/w": ("'params'", "axis 0", "created, hoisted, read"),
        "state/n": ("'state'", "carry, from one iteration to the next", "created, hoisted, read, written"),
        "cache/start": ("'cache'", "axis 0", "created"),  # it depends on the carry, so it is made in the loop
    }


def test_why_is_this_parameter_shared() -> None:
    options = {**LOOP, "variable_broadcast": "params", "variable_axes": {All("params", PathContains("lora")): 0}}
    explained = explain(liftcore.scan(step, split_rngs={"params": False}, **options, out_axes=0))
    with pytest.raises(UnliftedCollectionError):  # `cache` has no group now
        explained(bind(), X, None)

    def no_cache(scope: Scope, carry: Any, _: Any) -> Any:
        return block(scope, carry), None

    explained = explain(liftcore.scan(no_cache, split_rngs={"params": False}, **options))
    found = explained(bind(), X, None).only(PathContains("lora"))
    assert str(found) == (
        "no_cache\n"
        "  scan(no_cache) at /\n"
        "    params/lora  float32[3]  'params': broadcast, one value for all iterations  created, hoisted, read"
    )


def test_sown_values_are_told_apart() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.push("a").sow("intermediates", "x", x)
        scope.sow("kept", "x", x)
        return x

    elements = liftcore.vmap(body, variable_axes={"kept": 1})
    (lift,) = explain(elements)(liftcore.bind({}, mutable=True), jnp.ones((2, 3))).lifts
    assert rows(lift)["intermediates/a/x"] == ExplainedVariable(
        ("intermediates", "a", "x"), "float32[2,3]", None, "sown, stacked on a new axis 0", written=True
    )
    assert rows(lift)["kept/x"].fate == "written"
    (lift,) = explain(elements)(liftcore.bind({}, mutable=["kept"]), jnp.ones((2, 3))).lifts
    assert list(rows(lift)) == ["kept/x"]


# -- streams ---------------------------------------------------------------------------------------------------------


def draws(scope: Scope, x: Any) -> Any:
    for name in ("dropout", "dropout", "noise"):
        x = x + jax.random.normal(scope.make_rng(name))
    return x + jax.random.normal(scope.push("deep").make_rng("dropout"))


def test_sequences_tell_their_rule_and_how_many_keys_were_drawn() -> None:
    elements = liftcore.vmap(draws, split_rngs={"dropout": True, ("noise", "params"): False})
    rngs = dict.fromkeys(("params", "dropout", "other"), KEY)
    (lift,) = explain(elements)(bind(rngs=rngs), X).lifts
    assert lift.streams == (
        ExplainedStream("params", "params", "('noise', 'params')", "the same keys in all elements"),
        ExplainedStream("dropout", "dropout", "'dropout'", "split between elements", 3),
        ExplainedStream("other", "other", None, "not lifted"),
        ExplainedStream("noise", "params", "('noise', 'params')", "the same keys in all elements", 1),
    )


def test_a_lift_counts_the_keys_of_lifts_inside_it_once() -> None:
    def body(scope: Scope, carry: Any, _: Any) -> Any:
        inner = liftcore.vmap(draws, split_rngs=True)
        return inner(scope.push("a"), inner(scope.push("b"), carry)), None

    explained = explain(liftcore.scan(body, length=3, split_rngs=False))(bind(), X, None)
    (lift,) = explained.lifts
    assert (keys(lift)["dropout"].drawn, keys(lift)["noise"].drawn) == (6, 2)
    assert [keys(inner)["dropout"].drawn for inner in lift.lifts] == [3, 3]


def test_a_sequence_that_an_outer_lift_left_out_is_not_lifted_further_in() -> None:
    def outer(scope: Scope, x: Any) -> Any:
        return liftcore.remat(lambda scope, x: x)(scope, x)

    (lift,) = explain(liftcore.vmap(outer, split_rngs={"params": True}))(bind(rngs={"dropout": KEY}), X).lifts
    (inner,) = lift.lifts
    assert told_key(keys(inner)["dropout"]) == told_key(keys(lift)["dropout"]) == (None, "not lifted", 0)


def told_key(row: ExplainedStream) -> tuple[str | None, str, int]:
    return row.group, row.treatment, row.drawn


# -- lifts in lifts ----------------------------------------------------------------------------------------------------


def tower(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
    def layer(scope: Scope, carry: Any, _: Any) -> Any:
        return lift(block)(scope.push("block"), carry), None

    options = {"variable_axes": {"params": 0}, "variable_carry": "state", "split_rngs": {"params": True}}
    layers = liftcore.scan(liftcore.remat(layer), length=2, **options)
    return layers(scope.push("layers"), x, None)[0]


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat])
def test_lifts_inside_are_nested_and_inherit_who_watches(lift: Callable[..., Any]) -> None:
    _, variables = liftcore.init(tower)(KEY, X, lift)
    for scope, fate in ((bind(), "created, hoisted, read"), (bind(variables), "read")):
        (scan,) = explain(tower)(scope, X, lift).lifts
        (remat,) = scan.lifts
        (inner,) = remat.lifts
        assert [one.where for one in (scan, remat, inner)] == [
            "/layers",
            "/layers/scan(layer)",
            "/layers/scan(layer)/remat(layer)/block",
        ]
        assert inner.name.endswith("(block)")
        for one, shape in ((scan, "[2,3]"), (remat, "[3]"), (inner, "[3]")):
            row = rows(one)["params/layers/block/w"]
            assert (row.type, row.fate) == (f"float32{shape}", fate), one.name
        assert rows(inner)["params/layers/block/w"].treatment == "passed through"


RUNS: list[int] = []


def counted(scope: Scope, x: Any) -> Any:
    RUNS.append(1)
    return x * scope.param("w", jax.random.normal, (3,))


def test_a_jit_that_was_compiled_is_explained_and_stays_compiled() -> None:
    lifted = liftcore.jit(counted)
    scope, stored = bind(), {"params": {"w": X}}
    liftcore.init(lifted)(KEY, X)
    liftcore.apply(lifted)(stored, X)
    for one in (scope, bind(stored, None, False)):
        RUNS.clear()
        (lift,) = explain(lifted)(one, X).lifts
        assert rows(lift)["params/w"].read
        assert len(RUNS) == 1
    RUNS.clear()
    liftcore.init(lifted)(KEY, X)
    liftcore.apply(lifted)(stored, X)
    assert RUNS == []


def test_static_arguments_of_a_jit_are_seen() -> None:
    def fn(scope: Scope, x: Any, flag: bool) -> Any:
        return x * scope.param("w" if flag else "v", jax.random.normal, ())

    (lift,) = explain(liftcore.jit(fn, static_argnums=2))(bind(), X, True).lifts
    assert list(rows(lift)) == ["params/w"]
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        explain(liftcore.jit(fn))(bind(), X, True)
    assert any("must be static" in note for note in caught.value.__notes__)


def test_a_body_that_jax_traces_twice_is_told_once() -> None:
    def scaled(scope: Scope, x: Any) -> Any:
        RUNS.append(1)
        return x * scope.param("w", jax.random.normal, ())

    def layer(scope: Scope, carry: Any, _: Any) -> Any:
        return liftcore.remat(scaled)(scope, carry), None

    RUNS.clear()
    loop = liftcore.scan(layer, length=2, variable_broadcast="params", split_rngs={"params": False})
    (lift,) = explain(loop)(bind(), 1, None).lifts  # a weak integer, which becomes a float
    assert len(RUNS) == 2
    assert len(lift.lifts) == 1
    assert keys(lift)["params"].drawn == 1


def test_branches_that_draw_the_same_place_count_once() -> None:
    def one(scope: Scope, x: Any) -> Any:
        return x + jax.random.normal(scope.make_rng("params"))

    def two(scope: Scope, x: Any) -> Any:
        return one(scope, one(scope, x)) * scope.param("w", jax.random.normal, ())

    def model(scope: Scope, x: Any) -> Any:
        return liftcore.cond(one, two)(scope, x.sum() > 0, x)

    (lift,) = explain(model)(bind(), X).lifts
    assert keys(lift)["params"].drawn == 3
    assert rows(lift)["params/w"].fate == "created, hoisted, read"


def test_a_lift_of_ones_own_is_told_too() -> None:
    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return block(scope, *args), repack_fn(scope)

    own = liftcore.pack(transform, ["params"], ["params", "state"], [True], name="own")
    (lift,) = explain(own)(bind(), X).lifts
    assert lift.name == "own"
    assert told(rows(lift)["params/w"]) == ("'params'", "lifted", "created, read")
    assert told(rows(lift)["state/n"]) == ("'state'", "lifted, out only", "created, read, written")


def test_a_variable_that_is_seen_under_another_collection_counts_as_read() -> None:
    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        ((stored,),) = variables
        scope = scope_fn([({"params": stored["other"]},)], rngs)
        return args[0] * scope.get_variable("params", "w"), repack_fn(scope)

    moved = liftcore.pack(transform, ["other"], [], [True], name="moved")
    outer = liftcore.remat(lambda scope, x: moved(scope.push("a"), x))
    scope = bind({"other": {"a": {"w": 2.0, "v": 3.0}}, "params": {"v": 1.0}})
    for lift in (explain(outer)(scope, X).lifts[0], *explain(outer)(scope, X).lifts[0].lifts):
        assert [name for name, row in rows(lift).items() if row.read] == ["other/a/w"]


def test_several_scopes_and_aliased_ones() -> None:
    def pair(scopes: Any, x: Any) -> Any:
        return block(scopes["b"], block(scopes["a"], x))

    def model(scope: Scope, x: Any) -> Any:
        a = scope.push("a")
        liftcore.remat(pair)({"a": a, "b": scope.push("b")}, x)
        return liftcore.remat(pair)({"a": a.rewound(), "b": a.push("below")}, x)

    first, second = explain(model)(bind(), X).lifts
    assert {row.path[1] for row in first.variables} == {"a", "b"}
    assert [name for name in rows(second) if name.endswith("w")] == ["params/a/below/w", "params/a/w"]
    assert rows(second)["params/a/w"].fate == "read"
    assert rows(second)["params/a/below/w"].created


# -- nothing is done to the scope --------------------------------------------------------------------------------------


def test_the_scope_is_as_before() -> None:
    scope, fresh = bind({"state": {"n": jnp.zeros(())}}), bind({"state": {"n": jnp.zeros(())}})
    explain(liftcore.remat(block))(scope, X)
    explain(draws)(scope, X)
    assert scope.variables() == {"state": {"n": 0}}
    assert scope.names() == fresh.names()
    assert scope.default_name("auto_") == "auto_0"
    assert scope.make_rng("dropout") == fresh.make_rng("dropout")
    assert type(scope) is Scope
    assert scope.tree.watch is None


def test_it_may_be_called_within_a_model() -> None:
    found: list[Explanation] = []

    def model(scope: Scope, x: Any, asking: bool) -> Any:
        inner = scope.push("inner")
        if asking:
            found.append(explain(liftcore.vmap(block, variable_axes={True: 0}, split_rngs=True))(inner, X))
        return block(inner, x)

    def looped(scope: Scope, x: Any, asking: bool) -> Any:
        def body(scope: Scope, carry: Any, _: Any) -> Any:
            return model(scope, carry, asking), None

        return liftcore.scan(body, length=2, variable_axes={True: 0}, split_rngs=True)(scope, x, None)

    for fn, where in ((model, "/inner"), (looped, "/scan(body)/inner")):
        asked, plain = (liftcore.init(fn)(KEY, X, asking) for asking in (True, False))
        assert jax.tree.all(jax.tree.map(jnp.array_equal, asked, plain))
        assert found[-1].lifts[0].where == where


def test_nothing_is_computed() -> None:
    seen: list[Any] = []

    def body(scope: Scope, x: Any) -> Any:
        io_callback(seen.append, None, x)
        return x * scope.get_variable("params", "w")

    shape = jax.ShapeDtypeStruct((3, 2), jnp.float32)
    scope = bind({"params": {"w": jax.ShapeDtypeStruct((), jnp.float32)}}, None, False)
    (lift,) = explain(liftcore.vmap(body, variable_axes={"params": None}))(scope, shape).lifts
    assert rows(lift)["params/w"].fate == "read"
    assert seen == []


def test_each_body_runs_once() -> None:
    RUNS.clear()
    loop = liftcore.scan(
        lambda scope, x, _: (liftcore.vmap(counted, variable_axes={True: 0}, split_rngs=True)(scope, x), None),
        length=2,
        variable_axes={True: 0},
        split_rngs=True,
    )
    explain(loop)(bind(), jnp.ones((4, 3)), None)
    assert len(RUNS) == 1


def test_a_body_that_raises_leaves_the_scope_as_it_was() -> None:
    scope = bind()
    with pytest.raises(UnliftedCollectionError, match=r'"state/n" at /explain\(block\)/vmap\(block\)'):
        explain(liftcore.vmap(block, variable_axes={"params": 0}, split_rngs=True))(scope, X)
    assert scope.variables() == {}
    block(scope, X)


def test_no_tracer_stays_behind() -> None:
    with jax.checking_leaks():
        explained = explain(tower)(bind(), X, liftcore.jit)
    assert dataclasses.asdict(explained)["lifts"][0]["name"] == "scan(layer)"


def test_nobody_watches_otherwise() -> None:
    def body(scope: Scope, x: Any) -> Any:
        assert type(scope) is Scope
        assert scope.tree.watch is None
        return block(scope, x)

    liftcore.init(liftcore.remat(body))(KEY, X)


# -- as text -----------------------------------------------------------------------------------------------------------


def test_the_text_is_a_tree() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.vmap(liftcore.remat(counted), variable_axes={"params": None}, split_rngs={"params": False})(
            scope.push("batch"), x
        )

    assert str(explain(model)(bind(rngs={"params": KEY, "dropout": KEY}), jnp.ones((2, 3)))) == "\n".join(
        [
            "model",
            "  vmap(counted) at /batch",
            "    params/batch/w  float32[3]  'params': axis None, one value for all elements  created, hoisted, read",
            "    rng params                  'params': the same keys in all elements          1 drawn",
            "    rng dropout                 not lifted                                       untouched",
            "    remat(counted) at /batch/vmap(counted)",
            "      params/batch/w  float32[3]  ...: passed through  created, hoisted, read",
            "      rng params                  ...: passed through  1 drawn",
            "      rng dropout                 not lifted           untouched",
        ]
    )


def test_a_function_without_lifts() -> None:
    explained = explain(block)(bind(), X)
    assert explained.lifts == ()
    assert str(explained) == "block\n  (no lifts)"


def test_a_fall_back_names_the_sequence_that_it_draws_from() -> None:
    text = str(explain(liftcore.remat(draws))(bind(), X))
    assert "rng dropout (of params)  ...: passed through  3 drawn" in text


def test_one_lift_alone_is_text_too() -> None:
    (lift,) = explain(liftcore.remat(lambda scope: 1))(bind(rngs=None)).lifts
    assert str(lift) == "remat(<lambda>) at /"


# -- every transformation ----------------------------------------------------------------------------------------------


def busy(scope: Any, x: Any) -> Any:
    w = scope.param("w", uniform, (3,))
    count = scope.variable("counter", "count", lambda: jnp.zeros(()))
    noise = scope.variable("state", "noise", lambda: uniform(scope.make_rng("dropout")))
    if scope.is_mutable_collection("counter"):
        count.value += 1
    return jnp.tanh(x * w) + 0.1 * noise.value + 0.1 * uniform(scope.make_rng("dropout"))


@pytest.mark.parametrize("name", [name for name in TABLE if SHOWN[name]])
def test_every_transformation_is_explained(name: str) -> None:
    model = TABLE[name].lifted(busy)
    rngs = {"params": key(0), "dropout": key(1)}
    _, variables = liftcore.init(model)(rngs, X)
    made = {"/".join(path): value for path, value in leaves_of(variables)}
    scope = liftcore.bind({}, rngs, True, initializing=True)
    first = explain(model)(scope, X).lifts
    assert {path for lift in first for path, row in rows(lift).items() if row.created} == set(made)
    for lift in first:
        assert all(row.type == type_text(made[path]) for path, row in rows(lift).items() if path in made)
        assert all(row.treatment for row in (*lift.variables, *lift.streams))
    again = explain(model)(liftcore.bind(variables, rngs, ["counter"]), X).lifts
    touched = [row for lift in again for row in lift.variables if row.fate != "untouched"]
    assert {"/".join(row.path) for row in touched} == set(made)
    assert not [row for row in touched if row.created]
    assert any(keys(lift)["dropout"].drawn for lift in again)
    assert scope.variables() == {}

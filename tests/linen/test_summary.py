"""What `tabulate`, `summarize` and `module_paths` tell of a model."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore.filters import All, PathContains
from liftcore.pytrees import Size
from linen_like.lifecycle.context import context
from linen_like.summary import Summary, module_paths, summarize

KEY = jax.random.key(0)
X = jax.ShapeDtypeStruct((5, 3), jnp.float32)
AXES: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def paths(summary: Summary) -> list[str]:
    return ["/".join(row.path) for row in summary.rows]


def row(summary: Summary, path: str) -> Any:
    return next(row for row in summary.rows if "/".join(row.path) == path)


class Block(nn.Module):
    features: int = 3

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        return nn.Dense(self.features, name="dense")(x), None


class Encoder(nn.Module):
    def setup(self) -> None:
        self.first, self.last = nn.Dense(4), nn.Dense(2)
        self.norm = nn.BatchNorm(use_running_average=False)

    def __call__(self, x: Any, scale: float = 1.0) -> Any:
        return self.last(self.norm(self.first(x))) * scale

    def half(self, x: Any) -> Any:
        return {"half": self.first(x)}


class Lifted(nn.Module):
    """Each kind of lift round the same block."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        nn.vmap(nn.Dense, **AXES)(2, name="elements")(x)
        x, _ = nn.scan(nn.remat(Block), length=4, **AXES)(name="layers")(x, None)
        for number in range(3):
            x, _ = nn.jit(Block)(name=f"jit_{number}")(x)
        return nn.remat(nn.Dense)(2, name="head")(x)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_each_call_has_a_row_in_the_order_of_calls() -> None:
    summary = summarize(Encoder(), KEY)(X)
    assert paths(summary) == ["", "first", "norm", "last"]
    assert [type(row.module).__name__ for row in summary.rows] == ["Encoder", "Dense", "BatchNorm", "Dense"]
    assert [row.inputs for row in summary.rows] == [X, X, f32(5, 4), f32(5, 4)]
    assert [row.outputs for row in summary.rows] == [f32(5, 2), f32(5, 4), f32(5, 4), f32(5, 2)]
    assert {row.method for row in summary.rows} == {"__call__"}


def test_rows_have_the_variables_of_their_modules() -> None:
    summary = summarize(Encoder(), KEY)(X)
    assert row(summary, "first").variables == {"params": {"bias": f32(4), "kernel": f32(3, 4)}}
    assert row(summary, "norm").variables["batch_stats"] == {"mean": f32(4), "var": f32(4)}
    assert row(summary, "norm").sizes == {"params": Size(8, 32), "batch_stats": Size(8, 32)}
    assert row(summary, "").variables == {}
    assert summary.totals == {"params": Size(34, 136), "batch_stats": Size(8, 32)}
    assert list(summary.totals) == ["params", "batch_stats"]
    assert summary.total == Size(42, 168)


def test_sizes_of_rows_add_up_at_every_depth() -> None:
    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Block(name="block")(Encoder(name="encoder")(x))

    for depth, expected in ((None, 7), (0, 1), (1, 3), (2, 7)):
        summary = summarize(Deep(), KEY, depth=depth)(X)
        assert len(summary.rows) == expected
        for name, total in summary.totals.items():
            assert sum(row.sizes[name].count for row in summary.rows) == total.count
    assert row(summarize(Deep(), KEY, depth=1)(X), "encoder").variables == {}


def test_a_module_that_is_called_again_is_counted_once() -> None:
    class Shared(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.dense(self.dense(x))

    summary = summarize(Shared(), KEY)(X)
    assert paths(summary) == ["", "dense"]
    repeated = summarize(Shared(), KEY, show_repeated=True)(X)
    assert [row.repeated for row in repeated.rows] == [False, False, True]
    assert [row.sizes["params"].count for row in repeated.rows] == [0, 12, 0]
    assert summary.totals == repeated.totals == {"params": Size(12, 48)}


def test_a_submodule_that_is_not_called_counts_for_the_module_round_it() -> None:
    class Scale(nn.Module):
        def setup(self) -> None:
            self.scale = self.param("scale", nn.initializers.ones, (3,))

    class Reader(nn.Module):
        def setup(self) -> None:
            self.below = Scale()

        def __call__(self, x: Any) -> Any:
            return x * self.below.scale

    summary = summarize(Reader(), KEY)(X)
    assert paths(summary) == [""]
    assert summary.rows[0].variables == {"params": {"below/scale": f32(3)}}


def test_a_module_below_one_that_is_not_called_is_counted_once() -> None:
    class Outer(nn.Module):
        def setup(self) -> None:
            self.encoder = Encoder()

        def __call__(self, x: Any) -> Any:
            return self.encoder.first(x)

    summary = summarize(Outer(), KEY)(X)
    assert paths(summary) == ["", "encoder/first"]
    assert [row.sizes["params"].count for row in summary.rows] == [0, 16]


def test_other_methods_have_rows() -> None:
    by_name = summarize(Encoder(), KEY, method="half")(X)
    assert [(row.method, row.outputs) for row in by_name.rows] == [
        ("half", {"half": f32(5, 4)}),
        ("__call__", f32(5, 4)),
    ]
    assert row(by_name, "").path == ()
    by_function = summarize(Encoder(), KEY, method=lambda module, x: module.first(x))(X)
    assert [(row.path, row.method) for row in by_function.rows] == [((), "<lambda>"), (("first",), "__call__")]
    assert by_function.totals == {"params": Size(16, 64)}
    assert [row.flops for row in summarize(Encoder(), KEY, method="half", compute_flops=True)(X).rows] == [140, 140]


def test_functions_and_submodules_may_be_run_as_methods() -> None:
    def half(module: Encoder, x: Any) -> Any:  # another one than the method of that name
        return module.last(module.first(x))

    summary = summarize(Encoder(), KEY, method=half, compute_flops=True)(X)
    assert [(row.method, row.flops) for row in summary.rows] == [("half", 230), ("__call__", 140), ("__call__", 90)]

    class Holder(nn.Module):
        inner: nn.Module

    summary = summarize(Holder(nn.Dense(4)), KEY, method="inner", compute_flops=True)(X)
    assert [(row.path, row.flops) for row in summary.rows] == [((), 140), (("inner",), 140)]


def test_arguments_are_told_as_they_are_given() -> None:
    class Point(NamedTuple):
        x: Any
        y: Any

    class Takes(nn.Module):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return None

    def given(*args: Any, **kwargs: Any) -> Any:
        return summarize(Takes(), KEY)(*args, **kwargs).rows[0].inputs

    assert given() == ()
    assert given(X) == X
    assert given(X, 2) == (X, 2)
    assert given(flag=True) == {"flag": True}
    assert given(X, flag=True) == (X, {"flag": True})
    assert given(jnp.ones((2,)), np.ones((2,), np.float32)) == (f32(2), f32(2))
    assert given(Point(X, None)) == Point(X, None)
    assert given(words := np.array(["a"])) is words
    assert isinstance(given(nn.Dense(2)), nn.Dense)

    class Gives(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Takes()(self.variable("state", "x", lambda: x), nn.Dense(3))

    inputs = summarize(Gives(), KEY, compute_flops=True)(X).rows[1].inputs
    assert inputs[0] == X
    assert inputs[1].scope is None


def test_concrete_arguments_stay_concrete() -> None:
    class Loop(nn.Module):
        @nn.compact
        def __call__(self, x: Any, times: Any) -> Any:
            for _ in range(int(times)):
                x = nn.Dense(3)(x)
            return x

    assert len(summarize(Loop(), KEY)(X, jnp.array(3)).rows) == 4


def test_mutable_says_which_collections_are_made() -> None:
    class Sower(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.sow("intermediates", "x", x)
            return nn.Dense(2)(x)

    assert list(summarize(Sower(), KEY)(X).totals) == ["params"]
    everything = summarize(Sower(), KEY, mutable=True)(X)
    assert everything.rows[0].variables == {"intermediates": {"x": (X,)}}
    assert everything.totals["intermediates"] == Size(15, 60)


def test_boxes_and_keys_are_told() -> None:
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))

    class Keyed(nn.Module):
        @nn.compact
        def __call__(self, x: Any, key: Any) -> Any:
            self.variable("state", "key", lambda: key)
            return nn.Dense(4, kernel_init=init)(x)

    summary = summarize(Keyed(), KEY)(X, jax.random.key(1))
    assert summary.totals["params"].count == 16
    text = str(summary)
    assert "kernel: float32[3,4] Partitioned('embed', 'mlp')" in text
    assert "key: key<fry>[]" in text


# -- nothing is computed -----------------------------------------------------------------------------------------------


def test_the_model_runs_once_and_nothing_is_computed() -> None:
    runs: list[Any] = []

    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            runs.append(x)
            jax.debug.callback(lambda: runs.append("computed"))
            return nn.Dense(2)(x)

    summarize(Noisy(), KEY)(X)
    summarize(nn.scan(nn.remat(nn.jit(Block)), length=2, **AXES)(), KEY)(X, None)
    assert len(runs) == 1
    assert isinstance(runs[0], jax.core.Tracer)


def test_nothing_is_leaked() -> None:
    with jax.checking_leaks():
        summary = summarize(Lifted(), KEY)(X)
    assert not [leaf for row in summary.rows for leaf in jax.tree.leaves(row) if isinstance(leaf, jax.core.Tracer)]


def test_threads_do_not_disturb_each_other() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: summarize(nn.Sequential([nn.Dense(number)]), KEY)(X), range(1, 9)))
    assert [[row.outputs.shape[1] for row in summary.rows] for summary in found] == [[n, n] for n in range(1, 9)]


def test_an_error_in_the_model_leaves_nothing_behind() -> None:
    class Broken(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        summarize(Broken(), KEY)(X)
    assert context.interceptors == ()
    assert context.modules == [None]
    assert context.captures == [None]


def test_interceptors_of_the_caller_are_used() -> None:
    def double(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        y = next_fun(*args, **kwargs)
        return jnp.concatenate([y, y]) if context.method_name == "__call__" else y

    with nn.intercept_methods(double):
        summary = summarize(nn.Sequential([nn.Dense(2)]), KEY)(X)
    assert row(summary, "").outputs.shape == (10, 2)


# -- lifts -------------------------------------------------------------------------------------------------------------


def test_modules_in_lifts_have_rows_with_what_they_see() -> None:
    summary = summarize(Lifted(), KEY)(X)
    names = [
        "elements",
        "layers",
        "layers/dense",
        "jit_0",
        "jit_0/dense",
        "jit_1",
        "jit_1/dense",
        "jit_2",
        "jit_2/dense",
    ]
    assert paths(summary) == ["", *names, "head"]
    assert (row(summary, "elements").inputs, row(summary, "elements").outputs) == (f32(3), f32(2))
    assert row(summary, "layers/dense").inputs == X
    assert row(summary, "layers").inputs == (X, None)
    assert type(row(summary, "layers").module) is Block


def test_variables_in_lifts_are_told_as_they_are_stored() -> None:
    summary = summarize(Lifted(), KEY)(X)
    variables = nn.init(Lifted.__call__, Lifted())(KEY, jnp.ones((5, 3)))
    assert row(summary, "elements").variables["params"]["kernel"] == f32(5, 3, 2)
    assert row(summary, "layers/dense").variables["params"] == {"bias": f32(4, 3), "kernel": f32(4, 3, 3)}
    assert summary.totals["params"].count == sum(leaf.size for leaf in jax.tree.leaves(variables))


def test_lifts_are_told_with_their_axes() -> None:
    summary = summarize(Lifted(), KEY)(X)
    assert row(summary, "elements").lifts == {"vmap(Dense)": ("'params': axis 0",)}
    assert row(summary, "layers/dense").lifts == {"scan(Block)": ("'params': axis 0",), "remat(Block)": ()}
    assert row(summary, "layers").lifts == {"scan(Block)": (), "remat(Block)": ()}
    assert row(summary, "head").lifts == {"remat(Dense)": ()}
    assert row(summary, "").lifts == {}


def test_lifted_functions_and_their_rules_are_told() -> None:
    class Ensemble(nn.Module):
        def setup(self) -> None:
            self.plain, self.lora = nn.Dense(2), nn.Dense(2)

        def __call__(self, x: Any) -> Any:
            def member(module: Any, x: Any) -> Any:
                return module.plain(x) + module.lora(x)

            axes: Any = {All("params", PathContains("lora")): 1, "params": None}
            return self.plain(nn.vmap(member, variable_axes=axes, split_rngs={"params": False})(self, x))

    summary = summarize(Ensemble(), KEY, show_repeated=True)(f32(5, 2))
    assert paths(summary) == ["", "plain", "lora", "plain"]
    (into,) = row(summary, "lora").lifts.items()
    assert into[0] == "vmap(member)"
    assert [rule.rpartition(": ")[2] for rule in into[1]] == ["axis 1"]
    assert row(summary, "plain").lifts == {"vmap(member)": ("'params': axis None, one value for all elements",)}
    assert summary.rows[-1].lifts == {}
    assert row(summary, "lora").variables["params"]["kernel"] == f32(2, 5, 2)


def test_nested_lifts_are_told_outermost_first() -> None:
    Inner = nn.vmap(nn.Dense, variable_axes={"params": 1}, split_rngs={"params": True})
    Both = nn.vmap(Inner, **AXES)
    summary = summarize(Both(2), KEY)(f32(7, 5, 3))
    assert paths(summary) == [""]
    assert summary.rows[0].inputs == f32(3)
    assert summary.rows[0].variables["params"] == {"bias": f32(7, 2, 5), "kernel": f32(7, 3, 5, 2)}
    assert type(summary.rows[0].module) is nn.Dense
    assert summary.totals["params"].count == 7 * 5 * 8


def test_a_jit_that_was_compiled_before_is_told_again() -> None:
    model = Lifted()
    model.init(KEY, jnp.ones((5, 3)))
    assert paths(summarize(model, KEY)(X)) == paths(summarize(model, KEY)(X))


def test_what_is_applied_within_a_model_is_no_part_of_it() -> None:
    class Uses(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            other = nn.Dense(2, parent=None)
            return nn.Dense(3)(x) + other.init_with_output(jax.random.key(1), x)[0].sum()

    assert paths(summarize(Uses(), KEY)(X)) == ["", "Dense_0"]


# -- every kind of lift ------------------------------------------------------------------------------------------------


def plain_call(module: Any, x: Any) -> Any:
    return module.dense(x)


def stacked_call(module: Any, x: Any) -> Any:
    return nn.vmap(plain_call, variable_axes={"params": None}, split_rngs={"params": False})(module, x)


def carried_call(module: Any, x: Any) -> Any:
    def body(module: Any, carry: Any, _: Any) -> Any:
        state = module.variable("cache", "steps", lambda: jnp.zeros(()))
        state.value += 1.0
        return module.dense(carry), None

    options: Any = {"variable_broadcast": "params", "variable_carry": "cache", "split_rngs": {"params": False}}
    return nn.scan(body, length=2, **options)(module, x, None)[0]


def repeated_call(module: Any, x: Any) -> Any:
    def body(module: Any, x: Any) -> Any:
        return module.dense(x)

    return nn.while_loop(lambda module, x: x.sum() < 0, body, module, x, split_rngs={"params": False})


def mapped_call(module: Any, x: Any) -> Any:
    options: Any = {"trans_in_fn": lambda tree: tree, "trans_out_fn": lambda tree: tree, "mutable": True}
    return nn.map_variables(plain_call, "params", init=True, **options)(module, x)


LIFTED_CALLS = {
    "vmap": stacked_call,
    "scan": carried_call,
    "while_loop": repeated_call,
    "map_variables": mapped_call,
    "remat": lambda module, x: nn.remat(plain_call)(module, x),
    "jit": lambda module, x: nn.jit(plain_call)(module, x),
    "cond": lambda module, x: nn.cond(x.sum() > 0, plain_call, lambda module, x: x, module, x),
    "switch": lambda module, x: nn.switch(1, [lambda module, x: x, plain_call], module, x),
    "grad": lambda module, x: nn.grad(lambda module, x: plain_call(module, x).sum(), module, x)[0],
    "vjp": lambda module, x: nn.vjp(plain_call, module, x)[0],
    "jvp": lambda module, x: nn.jvp(plain_call, module, (x,), (x,), {"params": {}})[0],
    "fold_rngs": lambda module, x: nn.fold_rngs(plain_call)(module, x),
    "named_call": lambda module, x: nn.named_call(plain_call)(module, x),
    "eval_shape": lambda module, x: (plain_call(module, x), nn.eval_shape(plain_call, module, x))[0],
}


class Caller(nn.Module):
    kind: str

    def setup(self) -> None:
        self.dense = nn.Dense(3)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return LIFTED_CALLS[self.kind](self, x)


@pytest.mark.parametrize("kind", LIFTED_CALLS)
@pytest.mark.parametrize("outer", [lambda cls: cls, nn.jit, nn.remat])
def test_a_call_in_any_lift_is_seen(kind: str, outer: Any) -> None:
    summary = summarize(outer(Caller)(kind), KEY)(f32(3, 3))
    assert paths(summary) == ["", "dense"]
    assert row(summary, "dense").variables == {"params": {"bias": f32(3), "kernel": f32(3, 3)}}
    assert row(summary, "dense").inputs == (f32(3) if kind == "vmap" else f32(3, 3))
    made = outer(Caller)(kind).init(KEY, jnp.ones((3, 3)))
    assert summary.totals == {name: Size.of(jax.eval_shape(lambda tree=tree: tree)) for name, tree in made.items()}


# -- costs -------------------------------------------------------------------------------------------------------------


def test_operations_are_counted() -> None:
    summary = summarize(nn.Sequential([nn.Dense(4), nn.Dense(2)]), KEY, compute_flops=True)(X)
    first, last = 2 * 5 * 3 * 4 + 5 * 4, 2 * 5 * 4 * 2 + 5 * 2
    assert [row.flops for row in summary.rows] == [first + last, first, last]
    assert [row.vjp_flops for row in summary.rows] == [None] * 3
    assert summary.costs == ("flops",)


def test_operations_of_the_pullback_are_counted() -> None:
    (only,) = summarize(nn.Dense(4, use_bias=False), KEY, compute_vjp_flops=True)(X).rows
    assert only.flops is None
    products = 3 * 2 * 5 * 3 * 4  # forward, and the cotangents of the kernel and of `x`
    assert products <= only.vjp_flops < 1.1 * products


def test_operations_in_lifts_are_those_of_one_element() -> None:
    summary = summarize(Lifted(), {"params": KEY, "dropout": KEY}, compute_flops=True, compute_vjp_flops=True)(X)
    assert row(summary, "elements").flops == 2 * 3 * 2 + 2
    assert row(summary, "layers/dense").flops == 2 * 5 * 3 * 3 + 5 * 3


class Step(nn.Module):
    """A product of 3 features with 3: 2 * 5 * 3 * 3 operations for 5 rows."""

    @nn.compact
    def __call__(self, carry: Any, _: Any = None) -> Any:
        return nn.Dense(3, use_bias=False)(carry), None


STEP = 2 * 5 * 3 * 3
SCANNED: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


class Layers(nn.Module):
    """A scan over some steps."""

    length: int
    unroll: int = 1

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.scan(Step, length=self.length, unroll=self.unroll, **SCANNED)()(x, None)[0]


class Deep(nn.Module):
    """A scan of length 4 over a scan of length 3, jitted and rematerialized, and one step more."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        inner = nn.scan(nn.remat(nn.jit(Step)), length=3, **SCANNED)
        x, _ = nn.scan(inner, length=4, **SCANNED)()(x, None)
        return Step()(x)[0]


class Branch(nn.Module):
    """A branch with a scan of length 6, and one with a single step."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        many = nn.scan(Step, length=6, **SCANNED)
        return nn.cond(True, lambda mdl, x: many(name="a")(x, None)[0], lambda mdl, x: Step(name="b")(x)[0], self, x)


def test_operations_in_a_scan_are_those_of_all_its_iterations() -> None:
    scanned = summarize(Layers(7), KEY, compute_flops=True)(X)
    assert [row.flops for row in scanned.rows] == [7 * STEP, STEP, STEP]  # the others are rows inside the lift
    deep = summarize(Deep(), KEY, compute_flops=True)(X).rows[0].flops
    assert 13 * STEP <= deep < 20 * STEP  # it splits keys in each outer iteration too
    assert 6 * STEP <= summarize(Branch(), KEY, compute_flops=True)(X).rows[0].flops < 6 * STEP + 10
    assert summarize(Layers(7, unroll=3), KEY, compute_flops=True)(X).rows[0].flops == 7 * STEP
    assert not scanned.rows[0].at_least
    assert "unknown length" not in str(scanned)


def test_operations_of_a_model_that_is_itself_lifted_are_those_of_the_whole() -> None:
    class Decorated(nn.Module):
        @functools.partial(nn.scan, length=7, **SCANNED)
        @nn.compact
        def __call__(self, carry: Any, _: Any) -> Any:
            return nn.Dense(3, use_bias=False)(carry), None

    for model in (nn.scan(Step, length=7, **SCANNED)(), Decorated()):
        summary = summarize(model, KEY, compute_flops=True)(X, None)
        assert [row.flops for row in summary.rows] == [7 * STEP, STEP]


def test_operations_of_the_pullback_of_a_scan_are_those_of_all_its_iterations() -> None:
    def pulled(length: int) -> Any:
        return summarize(Layers(length), KEY, compute_vjp_flops=True)(X).rows[0]

    one, two, ten = (pulled(length).vjp_flops for length in (1, 2, 10))
    assert ten - two == 8 * (two - one)
    assert two - one >= 3 * STEP


def test_a_scan_whose_result_is_not_used_costs_nothing() -> None:
    class Unused(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            nn.scan(Step, length=6, **SCANNED)()(x, None)
            return Step()(x)[0]

    assert summarize(Unused(), KEY, compute_flops=True)(X).rows[0].flops == STEP


def test_a_loop_of_unknown_length_says_that_one_iteration_counts() -> None:
    class Until(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            many = nn.scan(Step, length=6, **SCANNED)(name="layers")
            many(x, None)
            return nn.while_loop(lambda mdl, c: c.sum() < 9, lambda mdl, c: mdl(c, None)[0], many, x)

    summary = summarize(Until(), KEY, compute_flops=True)(X)
    assert 6 * STEP <= summary.rows[0].flops < 7 * STEP
    assert [row.at_least for row in summary.rows] == [True, False, False]
    assert f"{summary.rows[0].flops}+" in str(summary)
    assert "+: a loop of unknown length counts as one iteration" in str(summary)


def test_what_cannot_be_differentiated_has_a_pullback_of_no_cost() -> None:
    class Best(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4)(x).argmax(-1)

    summary = summarize(Best(), KEY, compute_flops=True, compute_vjp_flops=True)(X)
    assert summary.rows[0].flops > 140
    assert summary.rows[0].vjp_flops == 0 < summary.rows[1].vjp_flops


def test_a_call_that_needs_an_axis_round_it_has_no_count() -> None:
    class Mean(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(2)(jax.lax.pmean(x, "elements"))

    class Elements(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.vmap(Mean, axis_name="elements", **AXES)()(x)

    summary = summarize(Elements(), KEY, compute_flops=True)(X)
    assert [row.flops for row in summary.rows][1:] == [None, 2 * 3 * 2 + 2]
    assert "?" in str(summary)


def test_a_subclass_of_a_lifted_class_has_no_count_but_as_the_model() -> None:
    class Mine(nn.vmap(nn.Dense, **AXES)):  # type: ignore[misc]
        pass

    (only,) = summarize(Mine(2), KEY, compute_flops=True)(f32(3, 3)).rows
    assert (type(only.module), only.flops) == (Mine, 3 * (2 * 3 * 2 + 2))
    _, inner = summarize(nn.Sequential([Mine(2)]), KEY, compute_flops=True)(f32(3, 3)).rows
    assert (type(inner.module), inner.flops) == (Mine, None)


# -- module_paths ------------------------------------------------------------------------------------------------------


def test_module_paths_are_unbound_copies() -> None:
    found = module_paths(Encoder(), KEY, X)
    assert list(found) == ["", "first", "norm", "last"]
    assert all(module.scope is None for module in found.values())
    assert found["first"] == nn.Dense(4)
    kernel = found["first"].init(KEY, jnp.ones((5, 3)))["params"]["kernel"]
    assert kernel.shape == (3, 4)


def test_module_paths_take_the_arguments_of_the_call() -> None:
    assert list(module_paths(Encoder(), KEY, X, method="half")) == ["", "first"]
    assert list(module_paths(Encoder(), KEY, X, scale=2.0, show_repeated=True)) == ["", "first", "norm", "last"]
    assert list(module_paths(Lifted(), KEY, X))[:3] == ["", "elements", "layers"]
    assert module_paths(Lifted(), KEY, X)["elements"] == nn.Dense(2)

"""Lifted `shard_map`: variables in parts, keys for each shard. The tests have eight simulated devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, LoopInvarianceError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.lift.shard_map import shard_map
from tests.lift.nests import NESTS, Counted, everything
from tests.lift.quick import assert_same, compiled, key, uniform
from tests.machine import make_mesh

KEY = jax.random.key(0)
MESH = make_mesh((4, 2), "x", "y")
X = jnp.linspace(0.0, 1.0, 8)


def keys(first: int = 0) -> dict[str, Any]:
    return {"params": key(first), "dropout": key(first + 1)}


def over_x(body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A body over four shards, which all draw the same."""
    options = {"variable_specs": {...: P("x")}, "split_rngs": False, **options}
    return shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"), **options)


def elementwise(scope: Scope, x: Any) -> Any:
    """Gives the same on shards as on the whole."""
    w = scope.param("w", lambda key: 2 * x + uniform(key, ()))
    count = scope.variable("count", "n", lambda: jnp.zeros(x.shape))
    if scope.is_mutable_collection("count"):
        count.value += x
    return jnp.tanh(x * w + count.value) + uniform(scope.make_rng("dropout"), ())


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_vma", [True, False])
def test_it_equals_the_whole(check_vma: bool) -> None:
    lifted = over_x(elementwise, check_vma=check_vma)
    ours = compiled(lambda *args: everything(lifted, *args), keys(), keys(10), X)
    assert_same(ours, everything(elementwise, keys(), keys(10), X))


def layer(scope: Scope, x: Any) -> Any:
    """Makes a part of the kernel and a whole bias, counts on each shard, and draws."""
    w = scope.param("w", uniform, (3, 2))
    b = scope.variable("whole", "b", lambda: uniform(scope.make_rng("whole"), (2,))).value
    count = scope.variable("state", "n", lambda: jnp.zeros(1))
    if scope.is_mutable_collection("state"):
        count.value += x.sum()
    return x @ w + b + uniform(scope.make_rng("dropout"), (2,))


SPECS = {"params": P(None, "x"), "whole": P(), "state": P(("x", "y"))}
SPLIT = {"params": "x", "whole": False, "dropout": True}


def test_each_shard_has_its_part_and_its_keys() -> None:
    lifted = shard_map(
        layer, mesh=MESH, in_specs=P(("x", "y")), out_specs=P(("x", "y")), variable_specs=SPECS, split_rngs=SPLIT
    )
    x = jnp.arange(48.0).reshape(16, 3)
    first, later = ({"params": key(n), "dropout": key(n + 1), "whole": key(n + 2)} for n in (0, 10))
    y, variables = compiled(liftcore.init(lifted), first, x)
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {"w": (3, 8)},
        "whole": {"b": (2,)},
        "state": {"n": (8,)},
    }
    again, mutated = jax.jit(liftcore.apply(lifted, mutable=["state"]))(variables, x, rngs=later)
    unmutated = jax.jit(liftcore.apply(lifted))(variables, x, rngs=later)
    init, apply = jax.jit(liftcore.init(layer)), jax.jit(liftcore.apply(layer, mutable=["state"]))

    for shard in range(8):
        column, rows = shard // 2, slice(2 * shard, 2 * shard + 2)

        def roots(rngs: Any, shard: int = shard) -> Any:
            return {
                "params": jax.random.split(rngs["params"], 4)[shard // 2],
                "dropout": jax.random.split(rngs["dropout"], 8)[shard],
                "whole": rngs["whole"],
            }

        alone, made = init(roots(first), x[rows])
        parts = {
            "params": {"w": variables["params"]["w"][:, 2 * column : 2 * column + 2]},
            "whole": variables["whole"],
            "state": {"n": variables["state"]["n"][shard : shard + 1]},
        }
        assert_same((y[rows], parts), (alone, made))
        alone, changed = apply(parts, x[rows], rngs=roots(later))
        assert_same((again[rows], mutated["state"]["n"][shard]), (alone, changed["state"]["n"][0]))
        assert_same(unmutated[rows], alone)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize(
    ("split", "index"),
    [
        (True, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ({"params": "x"}, [[0, 0], [1, 1], [2, 2], [3, 3]]),
        ({"params": "y"}, [[0, 1]] * 4),
        ({"params": ("y", "x")}, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (("x",), [[0, 0], [1, 1], [2, 2], [3, 3]]),
        (False, None),
    ],
)
def test_sequences_are_split_over_the_axes_named(make: Callable[..., Any], split: Any, index: Any) -> None:
    def draw(scope: Scope) -> Any:
        return jax.random.bits(scope.push("a").make_rng())[None, None]

    lifted = shard_map(draw, mesh=MESH, in_specs=(), out_specs=P("x", "y"), split_rngs=split)
    found = liftcore.apply(lifted)({}, rngs=make(3))
    size = 1 if index is None else 1 + max(map(max, index))
    roots = [make(3)] if index is None else jax.random.split(make(3), size)
    alone = [int(jax.random.bits(liftcore.bind({}, root).push("a").make_rng())) for root in roots]
    expected = np.full((4, 2), alone[0]) if index is None else np.array(alone)[np.array(index)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.rest
def test_collectives_see_all_shards_with_gradients() -> None:
    def tensor_parallel(scope: Scope, x: Any) -> Any:
        w = scope.param("w", uniform, (x.shape[-1], 3))
        return jax.lax.psum(x @ w, "y")

    specs = {"params": P("y")}
    lifted = shard_map(
        tensor_parallel, mesh=MESH, in_specs=P("x", "y"), out_specs=P("x"), variable_specs=specs, split_rngs="y"
    )
    x = jnp.linspace(0, 1, 48).reshape(8, 6)
    y, variables = liftcore.init(lifted)(keys(), x)
    w = variables["params"]["w"]
    assert len(np.unique(w)) == w.size == 18
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)

    def grads(fn: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda w, x: (fn(w, x) ** 2).sum(), argnums=(0, 1)))(w, x)

    for mutable in (False, ["params"]):

        def ours(w: Any, x: Any, mutable: Any = mutable) -> Any:
            result = liftcore.apply(lifted, mutable=mutable)({"params": {"w": w}}, x)
            return result[0] if mutable else result

        with jax.check_tracer_leaks(False):  # JAX itself keeps tracers of the gradient of a `psum`
            ours_now = grads(ours)
        assert_same(ours_now, grads(lambda w, x: x @ w))


@pytest.mark.rest
def test_sown_values_have_one_entry_for_each_shard() -> None:
    def sower(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "index", jax.lax.axis_index(("x", "y")))
        scope.sow("intermediates", "sum", {"x": x.sum(), "key": scope.make_rng("dropout")})
        return x

    lifted = shard_map(sower, mesh=MESH, in_specs=P("x"), out_specs=P("x"), split_rngs=True)
    _, kept = liftcore.apply(lifted, mutable=["intermediates"])({}, X, rngs=keys())
    kept = kept["intermediates"]
    assert kept["index"][0].tolist() == list(range(8))
    np.testing.assert_allclose(kept["sum"][0]["x"], jnp.repeat(X.reshape(4, 2).sum(1), 2), rtol=1e-6)
    assert kept["sum"][0]["key"].shape == (8,)


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_specs_may_be_prefixes_and_keywords_are_the_same_on_all_shards() -> None:
    def fn(scope: Scope, batch: Any, flag: str, scale: Any, *, shift: Any, mode: str) -> Any:
        assert (flag, mode) == ("flag", "mode")
        assert [part.shape for part in batch] == [(2,), (2, 1)]
        return {"a": batch[0] * scale + shift.sum(), "b": batch[1][:, 0]}

    specs = [(P("x"), P("x", "y")), None, P()]
    lifted = shard_map(fn, mesh=MESH, in_specs=specs, out_specs=P("x"), check_vma=False)
    batch = X, jnp.ones((8, 2))
    result = liftcore.apply(lifted)({}, batch, "flag", 2.0, shift=jnp.ones(3), mode="mode")
    np.testing.assert_allclose(result["a"], 2 * X + 3, rtol=1e-6)
    assert result["b"].shape == (8,)


def test_the_mesh_may_come_from_the_context() -> None:
    lifted = shard_map(elementwise, in_specs=P("x"), out_specs=P("x"), variable_specs={...: P("x")}, split_rngs=False)
    with jax.set_mesh(MESH):
        ours = liftcore.init(lifted)(keys(), X)
    assert_same(ours, liftcore.init(elementwise)(keys(), X))


def test_a_mesh_with_explicit_axes() -> None:
    mesh = make_mesh((4, 2), "x", "y", kind=AxisType.Explicit)
    lifted = shard_map(elementwise, in_specs=P("x"), out_specs=P("x"), variable_specs={...: P("x")}, split_rngs=False)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("x")))
        ours = everything(lifted, keys(), keys(10), x)
    assert_same(ours, everything(elementwise, keys(), keys(10), X))


def test_it_may_be_manual_over_some_axes_only() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x.sum())
        return jax.lax.psum(x @ scope.param("w", uniform, (3, 4)), "y")

    specs = {"params": P("y")}
    lifted = shard_map(
        fn, mesh=MESH, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"}, variable_specs=specs, split_rngs=True
    )
    x = jnp.ones((8, 6))
    y, variables = jax.jit(liftcore.init(lifted))(keys(), x)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"w": (6, 4)}, "intermediates": {"x": ((2,),)}}
    np.testing.assert_allclose(y, x @ variables["params"]["w"], rtol=1e-5)


# -- variables ---------------------------------------------------------------------------------------------------------


def test_the_first_filter_that_matches_says_the_spec() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        base = scope.param("base", uniform, (2, 3))
        return x @ (base + scope.push("lora").param("w", uniform, (2, 3)))

    specs = {All("params", PathContains("lora")): P("x", "y"), "params": P()}
    lifted = shard_map(fn, mesh=MESH, in_specs=P("x"), out_specs=P("x", "y"), variable_specs=specs, split_rngs=False)
    x = jnp.ones((4, 2))
    _, variables = liftcore.init(lifted)(keys(), x)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"base": (2, 3), "lora": {"w": (8, 6)}}
    grads = jax.grad(lambda v: liftcore.apply(lifted)(v, x).sum())(variables)["params"]
    assert grads["base"].tolist() == [[8.0] * 3] * 2
    assert grads["lora"]["w"].tolist() == [[1.0] * 6] * 8


def test_scopes_may_be_given_twice_or_below_another() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        count = again.variable("state", "n", lambda: jnp.zeros(1))
        count.value += x.sum()
        return x * parent.param("w", uniform, ()) + child.get_variable("state", "n")

    def model(scope: Scope, x: Any) -> Any:
        child = scope.push("child")
        specs = {"params": P(), "state": P("x")}
        lifted = shard_map(fn, mesh=MESH, in_specs=P("x"), out_specs=P("x"), variable_specs=specs, split_rngs=False)
        return lifted((scope, child, child), x)

    y, variables = liftcore.init(model)(keys(), X)
    counts = X.reshape(4, 2).sum(1)
    np.testing.assert_allclose(variables["state"]["child"]["n"], counts, rtol=1e-6)
    np.testing.assert_allclose(y, X * variables["params"]["w"] + jnp.repeat(counts, 2), rtol=1e-6)


def test_names_and_draws_go_on_after_it() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.push(prefix="dense_").param("w", uniform, ())
        return x + uniform(scope.make_rng("dropout"), ())

    def model(lift: Callable[..., Any]) -> Callable[..., Any]:
        def run(scope: Scope, x: Any) -> Any:
            x = lift(fn)(scope, x)
            scope.push(prefix="dense_").param("w", uniform, ())
            return x + uniform(scope.make_rng("dropout"), ())

        return run

    ours = liftcore.init(model(lambda fn: over_x(fn, variable_specs={...: P()})))(keys(), X)
    assert sorted(ours[1]["params"]) == ["dense_0", "dense_1"]
    assert_same(ours, liftcore.init(model(lambda fn: fn))(keys(), X))


def test_names_that_were_taken_before_it_are_taken_inside() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.push(prefix="dense_").param("w", uniform, ())

    def model(scope: Scope, x: Any) -> Any:
        return over_x(fn, variable_specs={...: P()})(scope, fn(scope, x))

    assert sorted(liftcore.init(model)(keys(), X)[1]["params"]) == ["dense_0", "dense_1"]


# -- nests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("inside", [False, True])
def test_it_nests_in_others_and_others_in_it(name: str, inside: bool) -> None:
    stacked = inside and name in ("scan", "vmap")
    specs: dict[Any, Any] = {"params": P(None, "x") if stacked else P("x")}
    specs["count"] = P(None, "x") if stacked and name == "vmap" else P("x")

    def model(lift: Callable[..., Any], body: Any = elementwise) -> Callable[..., Any]:
        return lift(NESTS[name](body)) if inside else NESTS[name](lift(body))

    def sharded(body: Any) -> Any:
        return over_x(body, variable_specs=specs)

    def run(lift: Callable[..., Any]) -> Any:
        return compiled(lambda *args: everything(model(lift), *args), keys(), keys(10), X)

    assert_same(run(sharded), run(lambda body: body))
    body = Counted(elementwise)
    lifted = model(sharded, body)
    _, variables = jax.eval_shape(liftcore.init(lifted), keys(), X)
    assert body.since() == 1
    jax.eval_shape(jax.grad(lambda x, v: liftcore.apply(lifted)(v, x, rngs=keys()).sum()), X, variables)
    assert body.since() == 1


def test_the_body_runs_once() -> None:
    body = Counted(elementwise)
    lifted = over_x(body)
    variables = liftcore.init(lifted)(keys(), X)[1]
    assert body.since() == 1
    liftcore.apply(lifted)(variables, X, rngs=keys())
    assert body.since() == 1
    liftcore.apply(lifted, mutable=["count"])(variables, X, rngs=keys())
    assert body.since() == 1
    jax.grad(lambda x: liftcore.apply(lifted, mutable=["count"])(variables, x, rngs=keys())[0].sum())(X)
    assert body.since() == 1
    step = jax.jit(liftcore.apply(lifted))
    step(variables, X, rngs=keys())
    step(variables, X, rngs=keys())
    assert body.since() == 1


def test_it_nests_in_itself_over_another_axis() -> None:
    def inner(scope: Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jnp.ones((1, 1)))
        count = scope.variable("count", "n", lambda: jnp.zeros((1, 1)))
        count.value += x.sum()
        return x * w + count.value

    def outer(scope: Scope, x: Any) -> Any:
        specs = {...: P(None, "y")}
        lifted = shard_map(
            inner,
            in_specs=P(None, "y"),
            out_specs=P(None, "y"),
            axis_names={"y"},
            variable_specs=specs,
            split_rngs=False,
        )
        return lifted(scope, x)

    specs = {...: P("x")}
    lifted = shard_map(
        outer, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, variable_specs=specs, split_rngs=False
    )
    x = jnp.arange(16.0).reshape(8, 2)
    with jax.set_mesh(MESH):
        y, variables = jax.jit(liftcore.init(lifted))(keys(), x)
    counts = x.reshape(4, 2, 2).sum(1)
    np.testing.assert_array_equal(variables["count"]["n"], counts)
    np.testing.assert_array_equal(y, x + jnp.repeat(counts, 2, 0))


@pytest.mark.parametrize("inner", [lambda body: body, *NESTS.values()])
def test_a_loop_that_carries_what_the_body_made_begins_with_its_first_value(inner: Callable[..., Any]) -> None:
    def tick(scope: Scope, x: Any) -> Any:
        n = scope.variable("count", "n", lambda: jnp.zeros(2))  # alike on all shards, until it is written
        n.value = 2 * n.value + x
        return x + n.value

    def run(lift: Callable[..., Any]) -> Any:
        body = lift(inner(tick))
        loop = liftcore.scan(lambda scope, x, _: (body(scope, x), x), length=3, variable_carry="count")
        return liftcore.init(loop)

    spec = P(None, "x") if inner is NESTS["vmap"] else P("x")
    ours = compiled(run(lambda body: over_x(body, variable_specs={"count": spec})), keys(), X, None)

    def whole(body: Callable[..., Any]) -> Callable[..., Any]:
        """The same on four parts, one after the other."""
        elements = liftcore.vmap(body, variable_axes={"count": -2}, split_rngs=False)
        return lambda scope, x: elements(scope, x.reshape(4, 2)).reshape(8)

    theirs = compiled(run(whole), keys(), X, None)
    theirs = jax.tree.map(
        lambda leaf: leaf.reshape((*leaf.shape[:-2], 8)) if leaf.shape[-2:] == (4, 2) else leaf, theirs
    )
    assert_same(ours, theirs)


def test_a_loop_may_share_what_does_not_depend_on_it() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.variable("cache", "first", lambda: x)
        return x * scope.param("w", uniform, (2,))

    specs = {"params": P("x"), "cache": P("x")}
    lifted = over_x(body, variable_specs=specs, split_rngs={"params": "x"})
    loop = liftcore.scan(
        lambda scope, x, _: (lifted(scope, x), None),
        length=2,
        variable_broadcast="params",
        variable_carry="cache",
        split_rngs=False,
    )
    _, variables = liftcore.init(loop)(keys(), X, None)
    assert len(np.unique(variables["params"]["w"])) == 8
    np.testing.assert_array_equal(variables["cache"]["first"], X)


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [False, ["count"]])
def test_the_program_is_that_of_jax(mutable: Any) -> None:
    def plain(w: Any, x: Any) -> Any:
        return jax.lax.psum(x @ w, "y")

    def fn(scope: Scope, x: Any) -> Any:
        return plain(scope.get_variable("params", "w"), x)

    lifted = shard_map(fn, mesh=MESH, in_specs=P("x", "y"), out_specs=P("x"), variable_specs={"params": P("y")})
    by_hand = jax.shard_map(plain, mesh=MESH, in_specs=(P("y"), P("x", "y")), out_specs=P("x"))
    apply = liftcore.apply(lifted, mutable=mutable)
    w, x = jnp.ones((6, 3)), jnp.ones((8, 6))
    programs = [jax.jit(lambda w, x: apply({"params": {"w": w}}, x)), jax.jit(by_hand)]
    texts = [program.lower(w, x).compile().as_text() for program in programs]
    assert texts[0].count(" = ") == texts[1].count(" = ")
    (ours,) = [eqn for eqn in jax.make_jaxpr(programs[0].__wrapped__)(w, x).eqns if eqn.primitive.name == "shard_map"]
    (theirs,) = jax.make_jaxpr(by_hand)(w, x).eqns
    assert str(ours.params["jaxpr"]) == str(theirs.params["jaxpr"])


def test_no_tracer_leaks() -> None:
    spec = P(("x", "y"))
    specs = {...: spec}
    lifted = shard_map(elementwise, mesh=MESH, in_specs=spec, out_specs=spec, variable_specs=specs, split_rngs=True)
    with jax.checking_leaks():
        _, variables = jax.jit(liftcore.init(lifted))(keys(), X)
        jax.jit(liftcore.apply(lifted, mutable=["count"]))(variables, X, rngs=keys())


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_new_value_that_differs_where_its_spec_says_it_is_the_same() -> None:
    def create(scope: Scope, x: Any) -> Any:
        return x + scope.push("dense").param("w", uniform, (2,))

    def write(scope: Scope, x: Any) -> Any:
        scope.variable("state", "mean", lambda: jnp.zeros(())).value = x.mean()
        return x

    with pytest.raises(LoopInvarianceError) as caught:
        liftcore.init(
            lambda scope, x: over_x(create, variable_specs={"params": P("y")}, split_rngs="x")(scope.push("a"), x)
        )(keys(), X)
    assert caught.value.where == '"params/dense/w" in shard_map(create) at /a'
    assert "declares it the same along ['x'], but its new value differs there" in caught.value.what
    assert "`variable_specs={\"params\": P(('x', 'y'))}`, or do not split the stream" in caught.value.fix
    with pytest.raises(
        LoopInvarianceError, match=r"\"state/mean\" in shard_map\(write\) at /: .*P\('x'\).*`jax.lax.pmean`"
    ):
        liftcore.init(over_x(write, variable_specs={"state": P()}))(keys(), X)


def test_a_shared_value_may_be_written_alike() -> None:
    def write(scope: Scope, x: Any) -> Any:
        mean = scope.variable("state", "mean", lambda: jnp.zeros(()))
        mean.value = 0.5 * mean.value + jax.lax.pmean(x.mean(), "x")
        return x

    _, variables = liftcore.init(over_x(write, variable_specs={"state": P()}))(keys(), X)
    np.testing.assert_allclose(variables["state"]["mean"], X.mean(), rtol=1e-6)


def test_specs_that_do_not_fit_name_the_variable() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x + scope.variable("state", "n", lambda: jnp.zeros(())).value

    lifted = over_x(lambda scope, x: fn(scope.push("a"), x), variable_specs={"state": P("x")})
    with pytest.raises(LiftArgumentError, match=r"\"state/a/n\" in shard_map.*shape \(\) on each shard, too few axes"):
        liftcore.init(lifted)(keys(), X)
    for shape in ((), (6,)):
        with pytest.raises(LiftArgumentError, match=r"\"state/a/n\" in shard_map.*cannot partition shape") as caught:
            liftcore.apply(lifted)({"state": {"a": {"n": jnp.zeros(shape)}}}, X)
        assert "{'x': 4, 'y': 2}" in caught.value.what
    with pytest.raises(LiftArgumentError, match=r"variable_specs of shard_map\(fn\) at /: .*'z'.*\['x', 'y'\]"):
        liftcore.init(over_x(fn, variable_specs={"state": P("z")}))(keys(), X)
    with pytest.raises(
        LiftArgumentError, match=r"split_rngs of shard_map\(fn\) at /: 'z' is not an axis.*\['x', 'y'\]"
    ):
        liftcore.init(over_x(fn, split_rngs={"params": "z"}))(keys(), X)
    with pytest.raises(LiftArgumentError, match=r"shard_map\(fn\) at /, in_specs: .*not a prefix"):
        liftcore.init(shard_map(fn, mesh=MESH, in_specs=(P(), P()), out_specs=P()))(keys(), X)


@pytest.mark.parametrize(
    ("options", "where", "fix"),
    [
        ({"variable_specs": ["params"]}, "variable_specs", 'variable_specs={"params": P()}'),
        ({"variable_specs": {"params": "x"}}, "variable_specs['params']", "Write `P()`"),
        ({"variable_specs": {"params": None}}, "variable_specs['params']", "Write `P()`"),
        ({"split_rngs": {"params": 1}}, "split_rngs", '"dropout": True'),
        ({"split_rngs": {"params": ()}}, "split_rngs", '"dropout": True'),
    ],
)
def test_bad_options_are_refused_before_any_call(options: dict[str, Any], where: str, fix: str) -> None:
    with pytest.raises(LiftArgumentError) as caught:
        shard_map(elementwise, mesh=MESH, in_specs=P(), out_specs=P(), **options)
    assert caught.value.where == where
    assert fix in caught.value.fix


def test_what_is_not_lifted_says_how_to_lift_it() -> None:
    def read(scope: Scope, x: Any) -> Any:
        return x + scope.get_variable("params", "w")

    def draw(scope: Scope, x: Any) -> Any:
        return x + uniform(scope.make_rng("dropout"), ())

    with pytest.raises(UnliftedCollectionError, match=r"at /shard_map\(read\).*`variable_specs=\{\"params\": P\(\)\}`"):
        liftcore.apply(over_x(read, variable_specs={}))({"params": {"w": 1.0}}, X)
    with pytest.raises(UnliftedStreamError, match=r"at /shard_map\(draw\).*`split_rngs=\{\"dropout\": True\}`"):
        liftcore.apply(over_x(draw, split_rngs={}))({}, X, rngs=keys())


def test_a_compiled_body_is_another_one_under_other_specs() -> None:
    inner = liftcore.jit(lambda scope, x: x * scope.param("w", lambda key: jnp.ones(2)))
    for spec, shape in ((P("x"), (8,)), (P(), (2,)), (P("x"), (8,))):
        _, variables = liftcore.init(over_x(inner, variable_specs={"params": spec}))(keys(), X)
        assert variables["params"]["w"].shape == shape

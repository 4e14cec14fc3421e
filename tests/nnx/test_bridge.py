from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import (
    InvalidRngError,
    LiftArgumentError,
    ModifyScopeVariableError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
)
from nnx_like.errors import StructureError

bridge = nnx.bridge
KEY = jax.random.key(0)
X = jnp.arange(6.0).reshape(2, 3) + 1
RUNS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


@nnx.register_variable_name("counts")
class Count(nnx.Variable[Any]):
    pass


class Net(nnx.Module):
    def __init__(self, size: int = 3, *, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(size, size, rngs=rngs)
        self.norm = nnx.BatchNorm(size, rngs=rngs)
        self.layers = [nnx.Linear(size, size, rngs=rngs)]
        self.count = Count(jnp.array(0))
        self.scale = jnp.ones(())

    def __call__(self, x: Any) -> Any:
        RUNS["object"] += 1
        self.count += 1
        return self.layers[0](self.norm(self.linear(x))) * self.scale

    def encode(self, x: Any) -> Any:
        return self.linear(x)


class Noise(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.rngs = rngs

    def __call__(self) -> Any:
        return jax.random.key_data(self.rngs.noise())


def make_net(rngs: nnx.Rngs) -> Net:
    return Net(rngs=rngs)


net = bridge.object_in_scope(make_net)
STATE = ["batch_stats", "counts"]


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, nn.unbox(tree))


def equal(one: Any, other: Any) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


# -- objects in scopes -------------------------------------------------------------------------------------------------


def test_variables_are_in_the_collections_of_their_kinds_at_their_paths() -> None:
    _, variables = liftcore.init(net)(KEY, X)
    assert shapes(variables) == {
        "params": {
            "linear": {"kernel": (3, 3), "bias": (3,)},
            "norm": {"scale": (3,), "bias": (3,)},
            "layers": {"0": {"kernel": (3, 3), "bias": (3,)}},
        },
        "batch_stats": {"norm": {"mean": (3,), "var": (3,)}},
        "counts": {"count": ()},
        "constants": {"scale": ()},
    }
    assert RUNS == {"object": 1}


def test_init_makes_the_object_and_keeps_what_a_first_call_changes() -> None:
    drawn = liftcore.apply(lambda scope: scope.make_rng("params"))({}, rngs=KEY)
    plain = Net(rngs=nnx.Rngs(params=drawn))
    plain(X)
    assert equal(liftcore.init(net)(KEY, X)[1], bridge.nnx_attrs_to_linen_vars(plain))


def test_a_call_writes_what_it_changed_and_nothing_else() -> None:
    _, variables = liftcore.init(net)(KEY, X)
    variables = {**variables, "batch_stats": bridge.nnx_attrs_to_linen_vars(Net(rngs=nnx.Rngs(0)))["batch_stats"]}
    y, changed = liftcore.apply(net, mutable=STATE)(variables, X)
    plain = Net(rngs=nnx.Rngs(0))
    nnx.update(plain, nnx.restore_int_paths(bridge.linen_vars_to_nnx_attrs({"params": variables["params"]})))
    assert jnp.allclose(y, plain(X), rtol=1e-5)
    assert changed["counts"]["count"] == 2
    assert jnp.allclose(changed["batch_stats"]["norm"]["mean"], plain.norm.mean.get_value(), rtol=1e-5)
    assert variables["counts"]["count"] == 1


@pytest.mark.parametrize(
    ("given", "mutable", "error", "text"),
    [
        (["params", "batch_stats", "counts", "constants"], False, ModifyScopeVariableError, "counts"),
        (["batch_stats", "counts", "constants"], STATE, ScopeCollectionNotFound, "params/"),
        (["params", "counts", "constants"], False, ScopeCollectionNotFound, "batch_stats"),
    ],
)
def test_what_may_not_be_written_or_made_is_an_error(given: Any, mutable: Any, error: Any, text: str) -> None:
    _, variables = liftcore.init(net)(KEY, X)
    with pytest.raises(error, match=text):
        liftcore.apply(net, mutable=mutable)({name: variables[name] for name in given}, X)


def test_methods_and_parts_are_reached() -> None:
    _, variables = liftcore.init(net)(KEY, X)

    def model(scope: Any, x: Any) -> Any:
        adopted = bridge.adopt(scope, make_net)
        return adopted.encode(x), adopted.linear(x), adopted.layers[0](x), adopted.run(lambda made: made.scale + 1)

    encoded, linear, layer, two = liftcore.apply(model)(variables, X)
    assert jnp.array_equal(encoded, linear)
    assert not jnp.array_equal(encoded, layer)
    assert two == 2
    assert jnp.array_equal(liftcore.apply(net.encode)(variables, X), encoded)
    assert jnp.array_equal(liftcore.apply(net.layers[0])(variables, X), layer)


LIFTS = {
    "jit": (liftcore.jit, ()),
    "remat": (liftcore.remat, ()),
    "vmap": (
        lambda fn: liftcore.vmap(
            fn,
            in_axes=None,
            axis_size=2,
            variable_axes={"params": 0, "batch_stats": 0, "counts": 0, "constants": 0},
            split_rngs={"params": True},
        ),
        (2,),
    ),
    "vmap of remat": (
        lambda fn: liftcore.vmap(
            liftcore.remat(fn),
            in_axes=None,
            axis_size=2,
            variable_axes={"params": 0, "batch_stats": 0, ("counts", "constants"): None},
            split_rngs={"params": True},
        ),
        (2,),
    ),
}


@pytest.mark.parametrize("name", LIFTS)
def test_an_object_stands_under_any_lift(name: str) -> None:
    lift, added = LIFTS[name]
    lifted = lift(net)
    _, variables = liftcore.init(lifted)(KEY, X)
    assert RUNS == {"object": 1}
    assert variables["params"]["linear"]["kernel"].shape == (*added, 3, 3)
    y, changed = liftcore.apply(lifted, mutable=STATE)(variables, X)
    assert RUNS == {"object": 2}
    assert y.shape == (*added, 2, 3)
    assert (changed["counts"]["count"] == 2).all()
    if not added:
        assert equal(variables, liftcore.init(net)(KEY, X)[1])
    else:
        kernel = variables["params"]["linear"]["kernel"]
        assert not jnp.array_equal(kernel[0], kernel[1])


def test_grad_and_cond_take_objects() -> None:
    _, variables = liftcore.init(net)(KEY, X)
    graded = liftcore.grad(lambda scope, x: net(scope, x).sum(), wrt="params")
    gradient, changed = liftcore.apply(graded, mutable=STATE)(variables, X)
    assert RUNS == {"object": 2}
    assert shapes(gradient[0] if isinstance(gradient, tuple) else gradient)
    assert changed["counts"]["count"] == 2  # the first call was that of `init`
    branched = lambda scope, flag, x: liftcore.cond(net, lambda scope, x: x)(scope, flag, x)  # noqa: E731
    for flag in (True, False):
        assert liftcore.apply(branched, mutable=STATE)(variables, flag, X)[1]["counts"]["count"] == 1 + flag


def test_an_adopted_object_is_an_argument_of_lifts() -> None:
    def model(scope: Any, x: Any) -> Any:
        adopted = bridge.adopt(scope.push("net"), make_net)
        return eqx.filter_jit(lambda adopted, x: adopted(x))(adopted, x)

    _, variables = liftcore.init(model)(KEY, X)
    assert liftcore.apply(model, mutable=STATE)(variables, X)[1]["counts"]["net"]["count"] == 2


def test_keys_come_from_the_streams_of_the_scope() -> None:
    noise = bridge.object_in_scope(lambda rngs: Noise(rngs=rngs))
    draw = liftcore.apply(noise)
    first = draw({}, rngs={"noise": KEY})
    assert jnp.array_equal(first, draw({}, rngs={"noise": KEY}))
    assert not jnp.array_equal(first, draw({}, rngs={"noise": jax.random.key(1)}))
    both = liftcore.vmap(noise, in_axes=None, axis_size=2, split_rngs={"noise": True})
    one, other = liftcore.apply(both)({}, rngs={"noise": KEY})
    assert not jnp.array_equal(one, other)
    twice = liftcore.apply(lambda scope: [bridge.adopt(scope, lambda rngs: Noise(rngs=rngs))() for _ in range(2)])
    assert not jnp.array_equal(*twice({}, rngs={"noise": KEY}))


@pytest.mark.parametrize("lifted", [False, True])
def test_a_key_of_a_stream_that_is_not_there_is_an_error(lifted: bool) -> None:
    noise: Any = bridge.object_in_scope(lambda rngs: Noise(rngs=rngs))
    fn = liftcore.vmap(noise, in_axes=None, axis_size=2, split_rngs={"params": True}) if lifted else noise
    with pytest.raises(InvalidRngError, match="noise" if lifted else "default"):
        liftcore.apply(fn)({}, rngs={"noise": KEY, "params": KEY} if lifted else {})


def test_keys_of_any_shape_are_drawn_anew() -> None:
    class Many(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.rngs = rngs.split(3)

        def __call__(self) -> Any:
            return nnx.vmap(lambda rngs: jax.random.uniform(rngs.default()))(self.rngs)

    many = bridge.object_in_scope(Many)
    y, variables = liftcore.init(many)(KEY)
    assert variables == {}
    assert len(np.unique(y)) == 3
    assert len(np.unique(liftcore.apply(many)({}, rngs=jax.random.key(1)))) == 3


class Seen(nnx.Module):
    def __call__(self, x: Any) -> Any:
        self.sow(nnx.Intermediate, "seen", x)
        return self.perturb("h", 2 * x)


def test_sown_and_perturbed_values_are_those_of_the_scope() -> None:
    seen = bridge.object_in_scope(lambda rngs: Seen())
    _, variables = liftcore.init(seen, liftcore.DenyList("intermediates"))(KEY, X)
    assert shapes(variables) == {"perturbations": {"h": (2, 3)}}
    y = liftcore.apply(seen)(variables, X)
    assert jnp.array_equal(y, 2 * X)
    _, kept = liftcore.apply(seen, mutable=["intermediates"])(variables, X)
    assert jnp.array_equal(kept["intermediates"]["seen"][0], X)
    mapped = liftcore.vmap(seen, variable_axes={"perturbations": 0})
    assert liftcore.apply(mapped, mutable=["intermediates"])(variables, X)[1]["intermediates"]["seen"][0].shape == (
        2,
        3,
    )


# -- Linen-style modules as objects ------------------------------------------------------------------------------------


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS["linen"] += 1
        return nn.Dense(3)(x) * self.param("scale", nn.initializers.ones, ())

    def apart(self, x: Any) -> Any:
        return self(x)


class Auto(nn.Module):
    size: int = 2

    def setup(self) -> None:
        self.encoder = nn.Dense(self.size)
        self.decoder = Inner()
        self.blocks = [nn.Dense(3), nn.Dense(3)]
        self.norm = nn.BatchNorm(use_running_average=False)
        self.shift = self.param("shift", nn.initializers.zeros, ())

    def encode(self, x: Any) -> Any:
        return self.encoder(x) + self.shift

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.decoder(self.encode(x)))
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def auto() -> Any:
    return bridge.ToNNX(Auto(), X, rngs=nnx.Rngs(0))


def test_variables_are_attributes_of_the_kind_of_their_collection(auto: Any) -> None:
    assert type(auto.encoder.kernel) is nnx.Param
    assert type(auto.norm.mean) is nnx.BatchStat
    assert auto.decoder.Dense_0["kernel"] is auto.decoder.Dense_0.kernel
    paths = [path for path, _ in nnx.state(auto, nnx.Param).flat_state()]
    assert ("decoder", "Dense_0", "kernel") in paths
    assert ("shift",) in paths
    made = type(bridge.ToNNX(lambda scope: scope.variable("own", "n", lambda: 0).value, rngs=nnx.Rngs(0)).lazy_init().n)
    assert made.__name__ == "own"
    assert nnx.variable_name_from_type(made) == "own"


@pytest.mark.parametrize("how", ["call", "lazy_init", "arguments", "shapes", "function", "method"])
def test_variables_are_made_where_they_are_wanted_first(how: str) -> None:
    wrapped = bridge.ToNNX(Inner(), *[X][: how == "arguments"], rngs=nnx.Rngs(0))
    assert hasattr(wrapped, "Dense_0") == (how == "arguments")
    if how == "call":
        wrapped(X)
    elif how == "lazy_init":
        assert wrapped.lazy_init(X) is wrapped
    elif how == "shapes":
        wrapped.lazy_init(jax.ShapeDtypeStruct((2, 3), jnp.float32))
    elif how == "function":
        assert bridge.lazy_init(wrapped, X) is wrapped
    elif how == "method":
        assert bridge.lazy_init(wrapped.apart, X) is wrapped
    key = nnx.Rngs(0).fork()()
    assert equal(bridge.nnx_attrs_to_linen_vars(wrapped), Inner().init(key, X))
    RUNS.clear()
    variables = bridge.nnx_attrs_to_linen_vars(wrapped)
    assert jnp.array_equal(wrapped(X), Inner().apply(variables, X))
    assert RUNS == {"linen": 2}


@pytest.mark.parametrize("lift", [lambda call: call, nnx.jit])
def test_a_first_call_runs_the_body_once(lift: Any) -> None:
    wrapped = bridge.ToNNX(Inner(), rngs=nnx.Rngs(0))
    y = lift(lambda model, x: model(x))(wrapped, X)
    assert RUNS == {"linen": 1}
    variables = bridge.nnx_attrs_to_linen_vars(wrapped)
    assert equal(variables, Inner().init(nnx.Rngs(0).fork()(), X))
    assert jnp.allclose(y, Inner().apply(variables, X), rtol=1e-5)


@pytest.mark.parametrize(("variables", "mutable", "runs"), [({}, False, 2), ({"count": {"n": 1}}, None, 2)])
def test_a_call_that_makes_a_part_runs_twice(variables: Any, mutable: Any, runs: int) -> None:
    wrapped = bridge.ToNNX(Inner(), rngs=nnx.Rngs(0), variables=variables)
    wrapped(X, mutable=mutable)
    assert RUNS["linen"] == runs
    wrapped(X)
    assert RUNS["linen"] == runs + 1


def test_methods_submodules_fields_and_variables_are_reached_by_name(auto: Any) -> None:
    variables = bridge.nnx_attrs_to_linen_vars(auto)
    bound = Auto().bind(variables)
    hidden = bound.encode(X)
    assert jnp.array_equal(auto.encode(X), hidden)
    assert jnp.array_equal(auto.encoder(X), bound.encoder(X))
    assert jnp.array_equal(auto.decoder(hidden), bound.decoder(hidden))
    assert jnp.array_equal(auto.blocks[1](X), bound.blocks[1](X))
    assert jnp.array_equal(auto.blocks_1(X), bound.blocks[1](X))
    assert auto.size == 2
    assert auto.shift.get_value() == 0
    assert jnp.array_equal(auto(X, method="encode"), hidden)
    assert jnp.array_equal(auto(X, method=Auto.encode), hidden)
    assert not hasattr(auto, "other")
    assert not hasattr(auto, "apply")
    with pytest.raises(LiftArgumentError, match="only a method does"):
        auto.decoder.Dense_0(hidden)


def test_methods_make_what_they_need() -> None:
    wrapped = bridge.ToNNX(Auto(), rngs=nnx.Rngs(0))
    assert wrapped.encoder(X).shape == (2, 2)
    assert "decoder" not in wrapped
    kernel = wrapped.encoder.kernel.get_value()
    assert wrapped.decoder(jnp.ones((2, 2))).shape == (2, 3)
    assert wrapped(X).shape == (2, 3)
    assert wrapped.encoder.kernel.get_value() is kernel


def test_without_streams_nothing_is_made() -> None:
    variables = Auto().init(KEY, X)
    wrapped = bridge.ToNNX(Auto(), variables={"params": {"encoder": variables["params"]["encoder"]}})
    with pytest.raises(ScopeParamNotFoundError, match=r"shift.*`ToNNX\(module, rngs=nnx.Rngs\(0\)\)`"):
        wrapped(X)
    assert bridge.ToNNX(Auto(), variables=variables)(X).shape == (2, 3)
    assert bridge.ToNNX(Auto().bind(variables)).encoder.kernel.get_value() is variables["params"]["encoder"]["kernel"]


def test_a_call_changes_variables_in_the_object() -> None:
    wrapped = bridge.ToNNX(nn.BatchNorm(use_running_average=False, momentum=0.5), rngs=nnx.Rngs(0))
    kept = None
    for steps in (1, 2):
        wrapped(X)
        assert jnp.allclose(wrapped.mean.get_value(), X.mean(0) * (1 - 0.5**steps))
        assert kept is None or wrapped.mean is kept
        kept = wrapped.mean
    before = wrapped.mean.get_value()
    with pytest.raises(ModifyScopeVariableError):
        wrapped(X, mutable=False)
    assert wrapped.mean.get_value() is before
    wrapped.use_running_average = True
    assert wrapped(X).shape == (2, 3)
    assert wrapped.mean.get_value() is before


def test_intermediates_are_kept_where_they_are_asked_for() -> None:
    class Sows(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.sow("intermediates", "seen", x)
            return x

    wrapped = bridge.ToNNX(Sows(), rngs=nnx.Rngs(0))
    wrapped(X)
    assert not hasattr(wrapped, "seen")
    wrapped(X, mutable=True)
    assert type(wrapped.seen) is nnx.Intermediate
    assert len(wrapped.seen.get_value()) == 1


def test_keys_are_drawn_from_the_streams_of_the_object_or_of_the_call() -> None:
    drop = bridge.ToNNX(nn.Dropout(0.5, deterministic=False), rngs=nnx.Rngs(dropout=0))
    x = jnp.ones(64)
    one, other = drop(x), drop(x)
    assert not jnp.array_equal(one, other)
    nnx.reseed(drop, dropout=5)
    again = drop(x)
    nnx.reseed(drop, dropout=5)
    assert jnp.array_equal(drop(x), again)
    keys = [drop(x, rngs={"dropout": KEY}), drop(x, rngs={"dropout": KEY}), drop(x, rngs=nnx.Rngs(dropout=KEY))]
    assert jnp.array_equal(keys[0], keys[1])
    assert not jnp.array_equal(keys[0], keys[2])
    drop.eval()
    assert jnp.array_equal(drop(x), x)


def test_all_transformations_of_objects_take_it(auto: Any) -> None:
    gradient = nnx.grad(lambda model: model(X).sum())(auto)
    assert gradient.encoder.kernel.get_value().shape == (3, 2)

    wrapped = bridge.ToNNX(Auto(), rngs=nnx.Rngs(0))
    call = nnx.jit(lambda model, x: model(x))
    call(wrapped, X)
    mean = wrapped.norm.mean.get_value()
    call(wrapped, X)
    assert wrapped.encoder.kernel.shape == (3, 2)
    assert not jnp.array_equal(mean, wrapped.norm.mean.get_value())

    made = nnx.vmap(lambda rngs: bridge.ToNNX(Inner(), X, rngs=rngs))(nnx.Rngs(0).split(4))
    assert made.Dense_0.kernel.shape == (4, 3, 3)
    assert nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(made, X).shape == (4, 2, 3)

    @nnx.scan(in_axes=(0, nnx.Carry))
    def through(model: Any, x: Any) -> Any:
        return nnx.remat(lambda model, x: model(x))(model, x)

    RUNS.clear()
    assert nnx.scan(lambda model, x: model(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(made, X).shape == (2, 3)
    assert RUNS == {"linen": 1}


@pytest.mark.parametrize("copied", [copy.deepcopy, nnx.clone, lambda model: nnx.merge(*nnx.split(model), copy=True)])
def test_copies_are_models_of_their_own(auto: Any, copied: Any) -> None:
    other = copied(auto)
    other.encoder.kernel *= 0
    assert jnp.abs(other.encode(X)).sum() == 0 < jnp.abs(auto.encode(X)).sum()
    assert nnx.graphdef(other) == nnx.graphdef(auto)


def test_wrapped_modules_are_pickled() -> None:
    wrapped = bridge.ToNNX(nn.Dense(2), X, rngs=nnx.Rngs(0))
    assert jnp.array_equal(pickle.loads(pickle.dumps(wrapped))(X), wrapped(X))


def test_a_function_of_a_scope_is_wrapped_too() -> None:
    def dense(scope: Any, x: Any) -> Any:
        return liftcore.nn.dense(scope.push("dense"), x, 2)

    wrapped = bridge.FromLinen(dense, rngs=nnx.Rngs(0))
    assert wrapped(X).shape == (2, 2)
    assert wrapped.dense.kernel.shape == (3, 2)
    with pytest.raises(LiftArgumentError, match="function of a scope"):
        wrapped.dense(X)


def test_one_path_holds_one_variable() -> None:
    def fn(scope: Any) -> Any:
        scope.param("x", nn.initializers.ones, ())
        scope.variable("batch_stats", "x", jnp.ones, ())

    with pytest.raises(LiftArgumentError, match=r"Param and a BatchStat|BatchStat and a Param"):
        bridge.ToNNX(fn, rngs=nnx.Rngs(0)).lazy_init()


# -- objects as Linen-style modules ------------------------------------------------------------------------------------


class Embedder(nn.Module):
    def setup(self) -> None:
        self.embedding = bridge.to_linen(nnx.Embed, 4, 3)

    def __call__(self, ids: Any) -> Any:
        return self.embedding(ids)

    def attend(self, x: Any) -> Any:
        return self.embedding.attend(x), self.embedding.embedding


def test_an_object_is_a_submodule_with_its_methods_and_variables() -> None:
    y, variables = Embedder().init_with_output(KEY, jnp.array([1, 2]))
    table = variables["params"]["embedding"]["embedding"]
    assert y.shape == (2, 3)
    assert table.shape == (4, 3)
    scores, held = Embedder().apply(variables, X, method="attend")
    assert jnp.allclose(scores, X @ table.T)
    assert held is table
    embed = bridge.to_linen(nnx.Embed, 4, 3)
    below = {"params": variables["params"]["embedding"]}
    for kwargs in ({"method": "attend"}, {"nnx_method": "attend"}, {"nnx_method": nnx.Embed.attend}):
        assert jnp.array_equal(embed.apply(below, X, **kwargs), scores)
    assert jnp.array_equal(embed.bind(below).attend(X), scores)
    assert not hasattr(embed, "other")
    assert not hasattr(embed.bind(below), "other")


def test_init_of_a_module_keeps_what_a_first_call_writes() -> None:
    model = bridge.to_linen(Net, size=3)
    variables = model.init(KEY, X)
    assert equal(variables, liftcore.init(net)(KEY, X)[1])
    assert variables["counts"]["count"] == 1
    y, changed = model.apply(variables, X, mutable=STATE)
    assert changed["counts"]["count"] == 2
    assert jnp.array_equal(model.apply(variables, X), y)  # what is immutable stays as it was
    assert jnp.array_equal(
        model.bind(variables).linear(X),
        X @ variables["params"]["linear"]["kernel"] + variables["params"]["linear"]["bias"],
    )


def test_intermediates_and_new_variables_come_out_where_they_are_asked_for() -> None:
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count, self.begun = Count(jnp.array(0)), nnx.Intermediate(jnp.ones(()))

        def __call__(self) -> None:
            self.count += 1
            self.begun += 1
            self.late = Count(jnp.array(7))

    model = bridge.ToLinen(Counter)
    variables = model.init(KEY)
    assert shapes(variables) == {"counts": {"count": (), "late": ()}}
    _, changed = model.apply(variables, mutable=["counts", "intermediates"])
    assert changed == {"counts": {"count": 2, "late": 7}, "intermediates": {"begun": 2}}


@pytest.mark.parametrize("skip", [False, True])
def test_only_who_takes_streams_gets_them(skip: bool) -> None:
    class Constant(nnx.Module):
        def __init__(self, value: Any = 1.0, **kwargs: Any) -> None:
            self.value, self.given = nnx.Param(jnp.asarray(value)), sorted(kwargs)

        def __call__(self) -> Any:
            return self.given

    made = bridge.to_linen(Constant, 2.0, skip_rng=skip, name="c")
    assert made.init_with_output(KEY)[0] == ([] if skip else ["rngs"])
    assert bridge.ToLinen(lambda: Constant()).init(KEY)["params"]["value"] == 1.0


def test_metadata_becomes_a_box_and_passes_through_lifts() -> None:
    kernel_init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("in", "out"))
    model = bridge.to_linen(nnx.Linear, 3, 4, kernel_init=kernel_init)
    variables = model.init(KEY, X)
    box = variables["params"]["kernel"]
    assert type(box) is bridge.NNXMeta
    assert box.metadata["out_sharding"] == ("in", "out")
    assert nn.get_partition_spec(variables)["params"]["kernel"] == jax.sharding.PartitionSpec("in", "out")
    assert model.apply(variables, X).shape == (2, 4)
    assert (
        type(
            bridge.to_linen(nnx.Linear, 3, 4, kernel_init=kernel_init, metadata_fn=None).init(KEY, X)["params"][
                "kernel"
            ]
        )
        is not bridge.NNXMeta
    )
    stacked = nn.scan(
        bridge.ToLinen,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=2,
        metadata_params={nn.PARTITION_NAME: "layers"},
        in_axes=(),
    )

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(3, 3, kernel_init=kernel_init, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.linear(x), None

    layers = stacked(Layer)
    variables = layers.init(KEY, X)
    spec = nn.get_partition_spec(variables)["params"]["linear"]["kernel"]
    assert spec == jax.sharding.PartitionSpec("layers", "in", "out")
    wrapped = bridge.ToNNX(layers, variables=variables)
    assert wrapped.linear.kernel.out_sharding == ("layers", "in", "out")
    assert jnp.array_equal(wrapped(X)[0], layers.apply(variables, X)[0])


def test_boxes_become_metadata_and_boxes_again() -> None:
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("a", "b"), rules=(("a", "x"),))
    variables = nn.Dense(4, kernel_init=init).init(KEY, X)
    wrapped = bridge.ToNNX(nn.Dense(4, kernel_init=init), variables=variables)
    assert wrapped.kernel.out_sharding == ("a", "b")
    assert wrapped.kernel.sharding_rules == (("a", "x"),)
    again = bridge.nnx_attrs_to_linen_vars(wrapped)
    assert jax.tree.structure(again) == jax.tree.structure(variables)
    mapped = nnx.vmap(lambda w, x: w(x), in_axes=(0, None), transform_metadata={nnx.PARTITION_NAME: "m"})
    many = nnx.vmap(
        lambda rngs: bridge.ToNNX(nn.Dense(4, kernel_init=init), X, rngs=rngs),
        transform_metadata={nnx.PARTITION_NAME: "m"},
    )(nnx.Rngs(0).split(2))
    assert bridge.nnx_attrs_to_linen_vars(many)["params"]["kernel"].names == ("m", "a", "b")
    assert mapped(many, X).shape == (2, 2, 4)


# -- one in the other, to any depth ------------------------------------------------------------------------------------


class Pytree(eqx.Module):
    w: Any

    def __init__(self, key: Any, size: int) -> None:
        self.w = jax.random.normal(key, (size, size))

    def __call__(self, x: Any) -> Any:
        RUNS["pytree"] += 1
        return jnp.tanh(x @ self.w)


class Leaf(nnx.Module):
    def __init__(self, size: int, *, rngs: nnx.Rngs) -> None:
        self.linear, self.norm = nnx.Linear(size, size, rngs=rngs), nnx.BatchNorm(size, rngs=rngs)
        self.pytree = bridge.ToNNX(
            lambda scope, x: (
                eqx.adopt(scope.push("w"), Pytree, size)(x) + pax.adopt(scope.push("n"), pax_norm(size))(x)
            ),
            rngs=rngs,
        )

    def __call__(self, x: Any) -> Any:
        RUNS["leaf"] += 1
        return self.pytree(self.norm(self.linear(x)))


def pax_norm(size: int) -> Any:
    return pax.BatchNorm(size)


class Block(nn.Module):
    size: int

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        RUNS["block"] += 1
        return bridge.to_linen(Leaf, self.size, name="leaf")(nn.Dense(self.size)(x)), None


ALL = {"params": 0, "batch_stats": 0, "state": 0}
Blocks = nn.scan(nn.remat(Block), variable_axes=ALL, split_rngs={"params": True}, length=2)


class Model(nnx.Module):
    def __init__(self, size: int, *, rngs: nnx.Rngs) -> None:
        self.blocks, self.out = bridge.ToNNX(Blocks(size), rngs=rngs), nnx.Linear(size, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        RUNS["model"] += 1
        return self.out(self.blocks(x, None)[0])


ONCE = {"model": 1, "block": 1, "leaf": 1, "pytree": 1}
TREE = {
    "params": {
        "out": {"kernel": (3, 2), "bias": (2,)},
        "blocks": {
            "Dense_0": {"kernel": (2, 3, 3), "bias": (2, 3)},
            "leaf": {
                "linear": {"kernel": (2, 3, 3), "bias": (2, 3)},
                "norm": {"scale": (2, 3), "bias": (2, 3)},
                "pytree": {"w": {"w": (2, 3, 3)}, "n": {"scale": (2, 3), "offset": (2, 3)}},
            },
        },
    },
    "batch_stats": {"blocks": {"leaf": {"norm": {"mean": (2, 3), "var": (2, 3)}}}},
}


def test_an_object_in_linen_in_an_object_is_one_tree() -> None:
    model = Model(3, rngs=nnx.Rngs(0))
    bridge.lazy_init(model, X)
    assert RUNS == ONCE
    found = shapes(bridge.nnx_attrs_to_linen_vars(model))
    assert found["params"]["out"] == TREE["params"]["out"]
    assert found["params"]["blocks"]["leaf"]["pytree"]["w"] == {"w": (2, 3, 3)}
    assert found["batch_stats"] == TREE["batch_stats"]
    for fn in (lambda: model(X), lambda: nnx.grad(lambda model: model(X).sum())(model)):
        RUNS.clear()
        before = model.blocks.leaf.norm.mean.get_value()
        fn()
        assert RUNS == ONCE
        assert not jnp.array_equal(before, model.blocks.leaf.norm.mean.get_value())


def test_the_same_in_a_scope_under_lifts_runs_each_body_once() -> None:
    inside = bridge.object_in_scope(lambda rngs: Model(3, rngs=rngs))
    lifted = liftcore.vmap(
        liftcore.remat(inside), in_axes=None, axis_size=2, variable_axes=ALL, split_rngs={"params": True}
    )
    _, variables = liftcore.init(lifted)(KEY, X)
    assert RUNS == ONCE
    assert variables["params"]["blocks"]["leaf"]["linear"]["kernel"].shape == (2, 2, 3, 3)
    kernels = variables["params"]["blocks"]["leaf"]["linear"]["kernel"].reshape(4, -1)
    assert len(np.unique(kernels[:, 0])) == 4
    apply = liftcore.apply(lifted, mutable=["batch_stats", "state"])
    RUNS.clear()
    y, changed = apply(variables, X)
    assert RUNS == ONCE
    assert y.shape == (2, 2, 2)
    RUNS.clear()
    gradient = jax.grad(lambda params: apply({**variables, "params": params}, X)[0].sum())(variables["params"])
    assert RUNS == ONCE
    assert jax.tree.structure(gradient) == jax.tree.structure(variables["params"])
    assert jax.tree.structure(changed["batch_stats"]) == jax.tree.structure(variables["batch_stats"])


def test_in_and_out_of_a_scope_the_numbers_are_the_same() -> None:
    inside = bridge.object_in_scope(lambda rngs: Model(3, rngs=rngs))
    _y, variables = liftcore.init(inside)(KEY, X)
    model = Model(3, rngs=nnx.Rngs(0))
    bridge.lazy_init(model, X)
    nnx.update(model, bridge.linen_vars_to_nnx_attrs(variables))
    assert jnp.allclose(model(X), liftcore.apply(inside, mutable=["batch_stats", "state"])(variables, X)[0], rtol=1e-5)
    assert shapes(bridge.nnx_attrs_to_linen_vars(model)) == shapes(variables)


class Modes(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls, self.last, self.plain = 0, nnx.Variable(jnp.array(0)), object()

    def __call__(self, x: Any) -> Any:
        return self.dropout(x)

    def counted(self) -> None:
        self.calls += 1

    def memoized(self) -> int:
        self.found = 3  # the constructor does not make it, so each call makes it again
        return self.found

    def switched(self, x: Any, train: bool = False) -> Any:
        (self.train if train else self.eval)()
        self.calls += 1
        return self.dropout(x)

    def recorded(self, train: bool = False) -> None:
        (self.train if train else self.eval)()
        self.last[...] += 1

    def itself(self) -> dict[Any, Any]:
        self.eval()
        return {"self": self, 1: "keys that cannot be sorted"}


def test_a_call_that_only_changes_an_attribute_that_is_no_variable_is_an_error() -> None:
    def adopted(scope: liftcore.Scope) -> Any:
        return bridge.adopt(scope.push("modes"), lambda rngs: Modes(rngs=rngs))

    for lost in (
        lambda scope: adopted(scope).eval(),
        lambda scope: adopted(scope).dropout.eval(),
        lambda scope: adopted(scope).set_attributes(deterministic=True),
        lambda scope: bridge.object_in_scope(lambda rngs: Modes(rngs=rngs)).eval(scope.push("modes")),
    ):
        with pytest.raises(StructureError, match=r"`dropout.deterministic` of Modes .* set it to True"):
            liftcore.init(lost)(KEY)
    with pytest.raises(StructureError, match=r"`calls` of .* the call set it to 1"):
        liftcore.init(lambda scope: adopted(scope).counted())(KEY)
    with pytest.raises(StructureError, match="deterministic"):
        bridge.to_linen(Modes).init(KEY, nnx_method="eval")
    assert liftcore.init(lambda scope: adopted(scope).memoized())(KEY)[0] == 3


def test_a_call_that_computes_may_change_attributes() -> None:
    def adopted(scope: liftcore.Scope, x: Any, train: bool = False) -> Any:
        modes = bridge.adopt(scope, lambda rngs: Modes(rngs=rngs))
        modes.itself()
        return modes.switched(x, train=train)

    in_scope = bridge.object_in_scope(lambda rngs: Modes(rngs=rngs)).switched
    for fn in (adopted, in_scope):
        silent, variables = liftcore.init(fn)(KEY, X)
        assert (silent == X).all()
        assert (liftcore.apply(fn)(variables, X) == X).all()
        assert not (liftcore.apply(fn)(variables, X, train=True, rngs=KEY) == X).all()
        assert (jax.jit(liftcore.apply(fn))(variables, X) == X).all()
    linen = bridge.to_linen(Modes)
    silent, variables = linen.init_with_output(KEY, X, nnx_method="switched")
    assert (silent == X).all()
    assert not (linen.apply(variables, X, train=True, nnx_method="switched", rngs={"default": KEY}) == X).all()
    recorded = bridge.object_in_scope(lambda rngs: Modes(rngs=rngs)).recorded
    _, changed = liftcore.apply(recorded, mutable="Variable")(variables)
    assert changed["Variable"]["last"] == 1


def test_a_function_of_an_adopted_object_may_switch_its_mode_for_one_call() -> None:
    def quiet(model: Any, x: Any) -> Any:
        model.eval()
        return model(x)

    def fn(scope: liftcore.Scope, x: Any) -> Any:
        modes = bridge.adopt(scope, lambda rngs: Modes(rngs=rngs))
        return modes.run(quiet, x), modes(x)

    silent, noisy = liftcore.init(fn)(KEY, X)[0]
    assert (silent == X).all()
    assert not (noisy == X).all()
    assert (bridge.to_linen(Modes).init_with_output(KEY, X, nnx_method=quiet)[0] == X).all()


# -- mixed -------------------------------------------------------------------------------------------------------------


def test_an_object_is_a_pytree_for_filtered_functions() -> None:
    net = Net(rngs=nnx.Rngs(0))
    y = eqx.filter_jit(lambda model, x: model(x))(net, X)
    assert net.count.get_value() == 0  # such functions change a copy
    assert jnp.allclose(y, net(X), rtol=1e-5)
    assert jnp.allclose(liftcore.filtered(liftcore.jit, lambda _, model, x: model.encode(x))((), net, X), net.encode(X))
    assert type(eqx.filter_grad(lambda model: model.encode(X).sum())(net)) is Net


def test_a_pytree_module_is_an_attribute_of_an_object() -> None:
    class Holder(nnx.Module):
        def __init__(self) -> None:
            self.tree, self.module = Pytree(KEY, 3), pax.Linear(3, 2, key=KEY)

        def __call__(self, x: Any) -> Any:
            return self.module(self.tree(x))

    holder = Holder()
    assert jnp.allclose(nnx.jit(lambda holder, x: holder(x))(holder, X), holder(X), rtol=1e-5)
    _, variables = liftcore.init(bridge.object_in_scope(lambda rngs: Holder()))({}, X)
    assert shapes(variables) == {"params": {"tree": {"w": (3, 3)}, "module": {"kernel": (3, 2), "bias": (2,)}}}


def test_plain_dicts_of_variables_stand_on_both_sides() -> None:
    net = Net(rngs=nnx.Rngs(0))
    variables = bridge.nnx_attrs_to_linen_vars(net)
    assert type(variables["params"]["layers"]["0"]) is dict
    attributes = bridge.linen_vars_to_nnx_attrs({"params": variables["params"], "counts": {"count": 5}})
    assert type(attributes["count"]) is Count
    assert type(attributes["layers"]["0"]["bias"]) is nnx.Param
    state = bridge.functional(Net)(3).init(rngs=nnx.Rngs(1))
    made = bridge.functional(Net)(3)
    state = made.init(rngs=nnx.Rngs(1))
    _, (graphdef, after) = made.apply(state)(X)
    assert after.count.get_value() == 1
    assert nnx.merge(graphdef, after).count.get_value() == 1

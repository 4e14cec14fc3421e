from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from linen_like.errors import (
    AssignSubModuleError,
    CallUnbindOnUnboundModuleError,
    JaxTransformError,
    LiftArgumentError,
    UnhashableModuleError,
)
from linen_like.lifecycle.context import context

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class AutoEncoder(nn.Module):
    latent: int = 2

    def setup(self) -> None:
        self.encoder = nn.Dense(self.latent)
        self.decoder = nn.Dense(3)

    def __call__(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


def test_description_stays_unbound() -> None:
    inner = nn.Dense(3)
    model = nn.Sequential([inner])
    model.init(KEY, X)
    assert (model.scope, inner.scope, inner.parent, inner.name) == (None, None, None, None)
    assert model.layers == [inner]


def test_bind_gives_access_to_submodules() -> None:
    model = AutoEncoder()
    variables = model.init(KEY, X)
    bound = model.bind(variables)
    assert (bound(X) == model.apply(variables, X)).all()
    assert (bound.decoder(bound.encoder(X)) == bound(X)).all()
    assert bound.encoder.variables == {"params": variables["params"]["encoder"]}
    assert bound.encoder.parent is bound


def test_submodule_outlives_the_bound_model() -> None:
    model = AutoEncoder()
    variables = model.init(KEY, X)
    encoder = model.bind(variables).encoder
    gc.collect()
    assert encoder(X).shape == (2, 2)
    assert encoder.path == ("encoder",)


def test_bound_model_may_write_mutable_collections() -> None:
    class Counter(nn.Module):
        @nn.compact
        def __call__(self) -> None:
            self.variable("state", "count", lambda: 0).value += 1

    bound = Counter().bind({"state": {"count": 1}}, mutable=["state"])
    bound()
    bound()
    assert bound.variables == {"state": {"count": 3}}


def test_unbind_is_the_inverse_of_bind() -> None:
    model = AutoEncoder()
    variables = model.init(KEY, X)
    again, unbound = model.bind(variables).unbind()
    assert again == model
    assert unbound == variables
    encoder, variables = model.bind(variables).encoder.unbind()
    assert encoder == nn.Dense(2)
    assert encoder.apply(variables, X).shape == (2, 2)


def test_unbind_of_unbound_module_is_an_error() -> None:
    with pytest.raises(CallUnbindOnUnboundModuleError, match=r"unbind of AutoEncoder \(unbound\): .*bind\(variables\)"):
        AutoEncoder().unbind()


def test_setup_runs_once_and_late() -> None:
    ran = []

    class Lazy(nn.Module):
        def setup(self) -> None:
            ran.append(self.name)
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.dense(self.dense(x))

    class Model(nn.Module):
        def setup(self) -> None:
            self.used, self.unused = Lazy(), Lazy()

        def __call__(self, x: Any) -> Any:
            return self.used(self.used(x))

    assert set(Model().init(KEY, X)["params"]) == {"used"}
    assert ran == ["used"]


def test_setup_is_not_run_to_adopt_what_the_constructor_was_given() -> None:
    class Model(nn.Module):
        inner: Any

        def setup(self) -> None:
            raise AssertionError

    assert Model(nn.Dense(3)).bind({}).inner.path == ("inner",)


def test_setup_that_raised_runs_again() -> None:
    attempts = []

    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)
            attempts.append(None)
            if len(attempts) == 1:
                raise RuntimeError("first attempt")

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    bound = Model().bind({"params": {"dense": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}}})
    with pytest.raises(RuntimeError, match="first attempt"):
        bound(X)
    assert bound(X).shape == (2, 3)


def test_attributes_are_frozen_containers() -> None:
    class Model(nn.Module):
        given: Any

        def setup(self) -> None:
            self.made = {"a": [nn.Dense(1)]}

        def __call__(self) -> Any:
            return self.given, self.made

    given, made = Model([1, {"b": 2}]).apply({})
    assert given == (1, nn.FrozenDict({"b": 2}))
    assert isinstance(made, nn.FrozenDict)
    assert made["a"][0].name == "made_a_0"


def test_same_instance_is_one_submodule_wherever_it_is_passed() -> None:
    dense = nn.Dense(3)

    class Pair(nn.Module):
        one: Any
        other: Any

        def __call__(self, x: Any) -> Any:
            assert self.one is self.other[0]
            return self.one(self.other[0](x))

    assert set(Pair(dense, [dense]).init(KEY, X)["params"]) == {"one"}


def test_modules_made_one_after_the_other_are_not_taken_for_one() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(20):  # the unattached ones die at once, and their places in memory are used again
                x = nn.Sequential([nn.Dense(3, parent=None)])(x)
            return x

    assert len(Model().init(KEY, X)["params"]) == 20


def test_unattached_module_is_no_submodule() -> None:
    class Rows(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(2, parent=None)
            init = jax.vmap(lambda key, row: dense.init(key, row)["params"])
            params = self.param("rows", lambda key: init(jax.random.split(key, len(x)), x))
            return jax.vmap(lambda p, row: dense.apply({"params": p}, row))(params, x)

    y, variables = Rows().init_with_output(KEY, X)
    assert y.shape == (2, 2)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"rows": {"kernel": (2, 3, 2), "bias": (2, 2)}}


def test_modules_made_without_a_parent_are_no_submodules_of_the_running_one() -> None:
    made: list[nn.Module] = []

    @nn.no_parent()
    def layers() -> list[nn.Module]:
        return [nn.Dense(3), nn.Sequential([nn.Dense(2)])]

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            made.extend(layers())
            with nn.no_parent():
                one = nn.Dense(3)
                two = nn.Dense(2)
                inside = nn.Dense(3, parent=self, name="inside")(x)  # it says itself where it belongs
            return nn.Sequential([one, two, *layers()])(x) + nn.Dense(2)(inside)

    variables = Model().init(KEY, X)
    assert list(variables["params"]) == ["inside", "Sequential_0", "Dense_0"]
    assert list(variables["params"]["Sequential_0"]) == ["layers_0", "layers_1", "layers_2", "layers_3"]
    assert [(module.parent, module.scope, module.name) for module in made] == [(None, None, None)] * 2


def test_what_runs_without_a_parent_makes_submodules_of_its_own() -> None:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    class Model(nn.Module):
        def setup(self) -> None:
            with nn.no_parent():
                self.block = Block()

        def __call__(self, x: Any) -> Any:
            with nn.no_parent():
                x = nn.jit(lambda block, x: block(x))(self.block, x)
            return self.block(x)

    assert list(Model().init(KEY, X)["params"]["block"]) == ["Dense_0"]


def test_a_parent_is_found_again_after_an_error_without_one() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            with pytest.raises(ZeroDivisionError), nn.no_parent():
                raise ZeroDivisionError
            return nn.Dense(3)(x)

    assert list(Model().init(KEY, X)["params"]) == ["Dense_0"]


def test_clone_keeps_fields_and_leaves_the_place() -> None:
    model = nn.Dense(3, use_bias=False, name="a")
    assert model.clone() == model
    assert model.clone(features=4, name=None) == nn.Dense(4, use_bias=False)
    bound = nn.Sequential([model]).bind({}).layers[0]
    assert (bound.clone().scope, bound.clone().name) == (None, "layers_0")


def test_deep_clone_keeps_what_is_shared() -> None:
    dense = nn.Dense(3, name="a")
    model = nn.Sequential([dense, nn.Sequential([dense])])
    shallow, deep = model.clone(), model.clone(_deep_clone=True)
    assert shallow.layers[0] is dense
    assert deep == model
    assert deep.layers[0] is not dense
    assert deep.layers[0] is deep.layers[1].layers[0]
    assert model.clone(_deep_clone=True, _reset_names=True).layers[0].name is None


def test_copy_is_a_submodule_of_its_own() -> None:
    class Model(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.inner.copy(name="b")(self.inner.copy()(self.inner(x)))

    assert set(Model(nn.Sequential([nn.Dense(3)])).init(KEY, X)["params"]) == {"inner", "Sequential_0", "b"}


def test_module_may_be_put_on_a_scope() -> None:
    def both(scope: Any, x: Any) -> Any:
        return nn.Dense(2, parent=scope.push("a"))(AutoEncoder(parent=scope.push("b"))(x))

    y, variables = liftcore.init(both)(KEY, X)
    assert y.shape == (2, 2)
    assert {name: set(below) for name, below in variables["params"].items()} == {
        "a": {"kernel", "bias"},
        "b": {"encoder", "decoder"},
    }


def test_parent_of_another_kind_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="parent of Dense: expected a module, a scope or None, given 3"):
        nn.Dense(2, parent=3)  # type: ignore[arg-type]


def test_helper_of_an_unbound_module_makes_unattached_ones() -> None:
    class Model(nn.Module):
        def make(self) -> Any:
            return nn.Dense(2)

    assert Model().make() == nn.Dense(2)


def test_submodule_made_outside_setup_and_compact_is_an_error() -> None:
    class Model(nn.Module):
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    with pytest.raises(AssignSubModuleError, match=r"Model at /layers_0: a submodule Dense was made .*`@nn.compact`"):
        nn.Sequential([Model()]).init(KEY, X)


def test_nothing_keeps_a_model_alive_after_apply() -> None:
    seen = []

    class Inner(nn.Module):
        def setup(self) -> None:
            self.layers = [nn.Dense(3), nn.Dense(3)]

        @nn.compact
        def __call__(self, x: Any) -> Any:
            seen.append(weakref.ref(self))
            return nn.Dense(3)(self.layers[0](x))

    class Model(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            seen.append(weakref.ref(self))
            return Inner()(self.inner(x))

    model = Model(Inner())
    variables = model.init(KEY, X)
    gc.collect()
    gc.disable()
    try:
        model.apply(variables, X)
        assert [module() for module in seen] == [None] * len(seen)
    finally:
        gc.enable()


def test_errors_leave_no_context() -> None:
    class Broken(nn.Module):
        where: str

        def setup(self) -> None:
            if self.where == "setup":
                raise RuntimeError(self.where)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.Dense(3)(x)
            if self.where == "call":
                raise RuntimeError(self.where)
            return y

    for where in ("setup", "call"):
        with pytest.raises(RuntimeError, match=where):
            nn.Sequential([Broken(where)]).init(KEY, X, capture_intermediates=True)
        assert context.modules == context.captures == [None]
    assert nn.Dense(3).parent is None
    assert set(Broken("").init(KEY, X)["params"]) == {"Dense_0"}


def test_module_is_whole_after_a_call_that_raised() -> None:
    class Fragile(nn.Module):
        @nn.compact
        def __call__(self, x: Any, broken: bool) -> Any:
            y = nn.Dense(3)(x)
            if broken:
                raise RuntimeError
            return nn.Dense(3)(y)

    variables = Fragile().init(KEY, X, False)
    bound = Fragile().bind(variables)
    with pytest.raises(RuntimeError):
        bound(X, True)
    assert (bound(X, False) == Fragile().apply(variables, X, False)).all()


# --- raw transformations of bound modules -----------------------------------------------------------------------------


class Layer(nn.Module):
    """A compact module with all that may be in one that only reads."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.sow("intermediates", "x", x)
        x = nn.Dropout(0.5, deterministic=True)(nn.Dense(3)(x))
        x = nn.BatchNorm(use_running_average=not self.is_initializing())(x)
        return x * self.param("scale", nn.initializers.ones, ())


class Net(nn.Module):
    """A module whose `setup` computes a constant, around compact ones and a lifted one."""

    def setup(self) -> None:
        self.layer = Layer()
        self.mask = jnp.arange(3.0)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.remat(nn.Dense)(3)(self.layer(x) * self.mask)


RAW = {
    "vmap": lambda fn: jax.vmap(fn)(X),
    "grad": lambda fn: jax.grad(lambda x: fn(x).sum())(X),
    "checkpoint": lambda fn: jax.checkpoint(fn)(X),
    "scan": lambda fn: jax.lax.scan(lambda carry, x: (carry + 1.0, fn(x)), 0, X),
    "jit": lambda fn: jax.jit(fn)(X),
    "vmap of grad": lambda fn: jax.vmap(jax.grad(lambda x: fn(x).sum()))(X),
}


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("model", [Layer(), Net()])
def test_a_bound_module_that_only_reads_may_be_called_under_a_raw_transformation(model: Any, raw: str) -> None:
    variables = model.init(KEY, X)
    bound = model.bind(variables)
    for _ in range(2):  # what `setup` computed the first time must not belong to that trace
        found = RAW[raw](lambda x: bound(x))
        expected = RAW[raw](lambda x: model.apply(variables, x))
        jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-6), found, expected)
    np.testing.assert_array_equal(bound(X), model.apply(variables, X))


def test_a_module_that_ran_before_in_init_may_be_called_under_a_raw_transformation() -> None:
    class Around(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer = nn.Sequential([nn.Dense(3), nn.Dropout(0.5, deterministic=True)])
            return layer(x), jax.vmap(lambda row: layer(row))(x)

    (y, again), _ = Around().init_with_output(KEY, X)
    np.testing.assert_allclose(again, y, rtol=1e-6)


def test_what_writes_draws_or_makes_in_a_bound_module_names_the_lift() -> None:
    variables = Layer().init(KEY, X)

    class Acts(nn.Module):
        act: str

        @nn.compact
        def __call__(self, x: Any) -> Any:
            if self.act == "draw":
                return nn.Dropout(0.5, deterministic=False)(x)
            return nn.Dense(3)(x) if self.act == "make" else nn.BatchNorm(use_running_average=False)(x)

    given = {"params": {"BatchNorm_0": {"scale": jnp.ones(3), "bias": jnp.ones(3)}}, "batch_stats": {}}
    given["batch_stats"] = {"BatchNorm_0": {"mean": jnp.ones(3), "var": jnp.ones(3)}}
    for act, mutable in (("draw", False), ("make", True), ("write", True)):
        bound = Acts(act).bind(given, rngs={"dropout": KEY}, mutable=mutable)
        with pytest.raises(JaxTransformError, match=r"jax\.checkpoint was applied .*`nn\.checkpoint`"):
            jax.checkpoint(lambda x, bound=bound: bound(x))(X)
    with pytest.raises(UnhashableModuleError, match=r"`nn\.jit` for `jax\.jit`"):
        jax.jit(Layer().bind(variables))(X)

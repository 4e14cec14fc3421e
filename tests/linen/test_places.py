"""Modules in other places than their own: scopes that are shared, and methods with name scopes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import CallCompactUnboundModuleError, CallShareScopeOnUnboundModuleError, NameInUseError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


def shapes(variables: Any) -> Any:
    return jax.tree.map(jnp.shape, variables)


# -- share_scope -------------------------------------------------------------------------------------------------------


class LowRank(nn.Module):
    base: nn.Module

    def setup(self) -> None:
        nn.share_scope(self, self.base)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.base(x) * self.param("scale", nn.initializers.ones, (1,))


TREE = {"bias": (2,), "kernel": (3, 2), "scale": (1,)}


def test_a_field_moves_up_to_the_module_that_holds_it() -> None:
    variables = LowRank(nn.Dense(2)).init(KEY, X)
    assert shapes(variables) == {"params": TREE}
    of_base = {name: variables["params"][name] for name in ("bias", "kernel")}
    expected = nn.Dense(2).apply({"params": of_base}, X)
    np.testing.assert_array_equal(LowRank(nn.Dense(2)).apply(variables, X), expected)


def test_it_moves_to_what_is_no_submodule_of_its_own() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return LowRank(nn.Dense(2))(x)  # the Dense is a submodule of this model

    assert shapes(Model().init(KEY, X)) == {"params": {"Dense_0": TREE}}


LIFTS: dict[str, Any] = {
    "vmap": lambda cls: nn.vmap(cls, variable_axes={"params": None}, split_rngs={"params": False}),
    "remat": nn.remat,
    "jit": nn.jit,
    "map_variables": lambda cls: nn.map_variables(cls, "params", init=True),
}


@pytest.mark.parametrize("lift", LIFTS)
def test_shared_scopes_pass_through_lifts(lift: str) -> None:
    bare, lifted = LowRank(nn.Dense(2)), LIFTS[lift](LowRank)(nn.Dense(2))
    jax.tree.map(np.testing.assert_array_equal, lifted.init(KEY, X), bare.init(KEY, X))

    class Inside(nn.Module):
        base: nn.Module

        def setup(self) -> None:
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return LIFTS[lift](lambda module, x: module.base(x))(self, x) * self.param(
                "scale", nn.initializers.ones, (1,)
            )

    jax.tree.map(np.testing.assert_array_equal, Inside(nn.Dense(2)).init(KEY, X), bare.init(KEY, X))
    variables = bare.init(KEY, X)
    for model in (lifted, Inside(nn.Dense(2))):
        np.testing.assert_allclose(model.apply(variables, X), bare.apply(variables, X), rtol=1e-6)


def test_two_that_use_one_name_are_an_error_in_whatever_order_they_are_called() -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    class Model(nn.Module):
        def setup(self) -> None:
            self.a, self.b = Inner(), Inner()
            nn.share_scope(self, self.a)
            nn.share_scope(self, self.b)

        def __call__(self, x: Any, flip: bool = False) -> Any:
            return self.a(self.b(x)) if flip else self.b(self.a(self.a(x)))

    for flip in (False, True):
        with pytest.raises(NameInUseError, match=r'"Dense_0" at /: .* a scope \(or submodule\) has it'):
            Model().init(KEY, X, flip)


def test_the_name_that_is_left_is_free() -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x * self.param("inner", nn.initializers.ones, (1,))

    class Model(nn.Module):
        def setup(self) -> None:
            self.inner = Inner()
            nn.share_scope(self, self.inner)

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    model = Model()
    variables = model.init(KEY, X)
    assert shapes(variables) == {"params": {"inner": (1,)}}
    assert model.bind(variables).inner.path == ()


def test_unbound_modules_share_nothing() -> None:
    with pytest.raises(CallShareScopeOnUnboundModuleError) as caught:
        nn.share_scope(nn.Dense(2), LowRank(nn.Dense(3)))
    assert caught.value.where == "share_scope of Dense (unbound) and LowRank (unbound)"
    assert caught.value.fix.startswith("Call it in `setup`")


# -- compact_name_scope ------------------------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    lift: Any = None

    @nn.compact_name_scope
    def encode(self, x: Any) -> Any:
        def twice(module: Any, x: Any) -> Any:
            return nn.Dense(3)(nn.Dense(3)(x))

        x = nn.Dense(3)(x)
        return nn.Dense(3)(self.lift(twice)(self, x) if self.lift else twice(self, x))

    @nn.compact_name_scope
    def decode(self, x: Any) -> Any:
        return nn.Dense(3, name="out")(self.encode(x))

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(self.decode(self.encode(nn.Dense(3)(x))))


DENSE = {"bias": (3,), "kernel": (3, 3)}


def test_each_method_has_names_of_its_own_and_the_same_in_each_call() -> None:
    assert shapes(Autoencoder().init(KEY, X)["params"]) == {
        "Dense_0": DENSE,
        "encode": {f"Dense_{number}": DENSE for number in range(4)},
        "decode": {"out": DENSE},
        "Dense_1": DENSE,
    }
    assert shapes(Autoencoder().init(KEY, X, method="decode")["params"]) == {
        "decode": {"out": DENSE},
        "encode": {f"Dense_{number}": DENSE for number in range(4)},
    }


@pytest.mark.parametrize("lift", [nn.remat, nn.jit, nn.named_call])
def test_functions_lifted_in_such_a_method_go_on_with_its_names(lift: Any) -> None:
    bare = Autoencoder().init(KEY, X)
    jax.tree.map(np.testing.assert_array_equal, Autoencoder(lift).init(KEY, X), bare)
    y = Autoencoder().apply(bare, X)
    np.testing.assert_allclose(Autoencoder(lift).apply(bare, X), y, rtol=1e-6)


@pytest.mark.parametrize("lift", [nn.remat, nn.jit])
def test_such_a_method_may_be_lifted(lift: Any) -> None:
    bare = Autoencoder().init(KEY, X)
    for methods in ("encode", ["encode", "decode"], "__call__"):
        lifted = lift(Autoencoder, methods=methods)()
        jax.tree.map(np.testing.assert_array_equal, lifted.init(KEY, X), bare)
        np.testing.assert_allclose(lifted.apply(bare, X), Autoencoder().apply(bare, X), rtol=1e-6)

    class Above(nn.Module):
        @lift
        @nn.compact_name_scope
        def encode(self, x: Any) -> Any:
            return nn.Dense(3)(x)

        def __call__(self, x: Any) -> Any:
            return self.encode(self.encode(x))

    assert shapes(Above().init(KEY, X)) == {"params": {"encode": {"Dense_0": DENSE}}}


def test_its_name_may_not_be_that_of_a_submodule() -> None:
    class Model(nn.Module):
        @nn.compact_name_scope
        def up(self, x: Any) -> Any:
            return nn.Dense(3)(x)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.up(nn.Dense(3, name="up")(x))

    with pytest.raises(NameInUseError, match='"up" at /'):
        Model().init(KEY, X)


def test_it_needs_variables() -> None:
    with pytest.raises(CallCompactUnboundModuleError, match=r"Autoencoder.encode: .*method=\"encode\""):
        Autoencoder().encode(X)


def test_an_exception_leaves_no_name_scope_behind() -> None:
    class Model(nn.Module):
        @nn.compact_name_scope
        def up(self, x: Any) -> Any:
            nn.Dense(3)(x)
            raise KeyError

        @nn.compact
        def __call__(self, x: Any) -> Any:
            with pytest.raises(KeyError):
                self.up(x)
            return nn.Dense(3)(x)

    assert shapes(Model().init(KEY, X)) == {"params": {"up": {"Dense_0": DENSE}, "Dense_0": DENSE}}


def test_a_name_that_a_lift_took_is_taken_for_the_other_module() -> None:
    class Base(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> Any:
            return x * self.param("scale", jax.nn.initializers.ones, ())

    class Around(nn.Module):
        base: nn.Module

        def setup(self) -> None:
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x: jax.Array) -> Any:
            scaled = nn.jit(lambda mdl, x: x * mdl.param("scale", jax.nn.initializers.zeros, ()))(self, x)
            return scaled, self.base(x)

    with pytest.raises(NameInUseError):
        Around(Base()).init(jax.random.key(0), jnp.ones(3))


def test_submodules_that_a_module_brings_move_with_it() -> None:
    class Deep(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    class Around(nn.Module):
        child: Any

        def setup(self) -> None:
            nn.share_scope(self, self.child)

        def __call__(self, x: Any) -> Any:
            return self.child(x)

    assert shapes(Around(Deep(Deep(nn.Dense(3)))).init(KEY, X)) == {"params": {"inner": {"inner": DENSE}}}

    class Taken(Around):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.child(nn.Dense(3, name="inner")(x))

    with pytest.raises(NameInUseError, match='"inner" at /'):
        Taken(Deep(nn.Dense(3))).init(KEY, X)

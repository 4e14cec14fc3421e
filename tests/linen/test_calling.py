from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import (
    CallCompactUnboundModuleError,
    CallSetupUnboundModuleError,
    DefineVariableError,
    DescriptorAttributeError,
    JaxTransformError,
)

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class MLP(nn.Module):
    depth: int = 2

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(self.depth):
            x = nn.Dense(3)(x)
        return x


def test_methods_are_wrapped_once_and_keep_their_names() -> None:
    class Sub(MLP):
        other = MLP.__call__

        def documented(self) -> None:
            """Says so."""

    assert Sub.other is MLP.__call__
    assert (Sub.documented.__name__, Sub.documented.__doc__) == ("documented", "Says so.")
    assert not hasattr(MLP.__call__.__wrapped__, "__wrapped__")  # type: ignore[attr-defined]


def test_compact_method_of_unbound_module_is_an_error() -> None:
    text = (
        r"MLP.__call__: it is a compact method.*`variables = model.init\(key, …\)`, then call `model.apply\(variables"
    )
    with pytest.raises(CallCompactUnboundModuleError, match=text.replace("model", "module")):
        MLP()(X)


def test_plain_method_of_unbound_module_may_be_called() -> None:
    class Sizes(nn.Module):
        size: int

        def double(self) -> int:
            return 2 * self.size

    assert Sizes(3).double() == 6


def test_setup_called_by_hand_is_an_error() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            pass

    with pytest.raises(CallSetupUnboundModuleError, match=r"setup of Model \(unbound\)"):
        Model().setup()


def test_variable_defined_in_a_plain_method_is_an_error() -> None:
    class Model(nn.Module):
        def __call__(self, kind: str) -> Any:
            if kind == "param":
                return self.param("w", nn.initializers.ones, (2,))
            return self.variable("state", "w", lambda: 1)

    for kind in ("param", "variable"):
        with pytest.raises(DefineVariableError, match=rf'{kind} "w" of Model at /: .*self.w = self.{kind}\("w", …\)'):
            Model().init(KEY, kind)


def test_static_and_class_methods_stay_plain() -> None:
    class Model(nn.Module):
        @staticmethod
        def double(x: int) -> int:
            return 2 * x

        @classmethod
        def make(cls) -> Any:
            return cls()

        @functools.partial(jax.jit, static_argnums=0)
        def compiled(self, x: Any) -> Any:
            return x + 1

    assert Model.double(2) == Model.make().double(2) == 4
    assert Model().compiled(1) == 2


def test_compact_methods_may_call_each_other() -> None:
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            return nn.Dense(3)(self.other(x))

        @nn.compact
        def other(self, x: Any) -> Any:
            return nn.Dense(4)(x)

    shapes = jax.tree.map(jnp.shape, Two().init(KEY, X)["params"])
    assert {name: shape["kernel"] for name, shape in shapes.items()} == {
        "Dense_0": (3, 3),
        "Dense_1": (4, 3),
        "Dense_2": (3, 4),
    }


def test_property_may_read_what_setup_makes() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        @property
        def inner(self) -> Any:
            return self.dense

        @functools.cached_property
        def features(self) -> int:
            return int(self.inner.features)

    assert Model().bind({}).inner.name == "dense"
    assert Model().bind({}).features == 3


@pytest.mark.parametrize("kind", [property, functools.cached_property])
def test_attribute_missing_in_a_property_is_named(kind: Any) -> None:
    Model = type("Model", (nn.Module,), {"size": kind(_size)})
    with pytest.raises(DescriptorAttributeError, match=r'property "_size" of Model \(unbound\): .*"missing"'):
        _ = Model().size


def _size(self: Any) -> Any:
    return self.missing


def test_operations_carry_the_names_of_modules() -> None:
    class Outer(nn.Module):
        def setup(self) -> None:
            self.mlp = MLP()

        def encode(self, x: Any) -> Any:
            return self.mlp(x)

    variables = Outer().init(KEY, X, method="encode")
    jaxpr = jax.make_jaxpr(lambda v: Outer().apply(v, X, method="encode"))(variables)
    stacks = {str(eqn.source_info.name_stack) for eqn in jaxpr.eqns}
    assert "Outer.encode/mlp/Dense_1" in stacks


def test_operations_of_a_bound_module_carry_names_under_a_raw_transformation() -> None:
    class Outer(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(2)

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    bound = Outer().bind(Outer().init(KEY, X))
    bound(X)  # runs `setup`, which names the layer
    stacks = {str(eqn.source_info.name_stack) for eqn in jax.make_jaxpr(lambda x: bound(x))(X).eqns}
    assert "Outer/dense" in stacks


# --- raw transformations ----------------------------------------------------------------------------------------------


def raw_vmap(in_setup: bool) -> nn.Module:
    class Raw(nn.Module):
        def setup(self) -> None:
            if in_setup:
                self.dense = nn.Dense(3)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = self.dense if in_setup else None
            return jax.vmap(lambda row: (dense or nn.Dense(3))(row))(x)

    return Raw()


@pytest.mark.parametrize("in_setup", [True, False])
def test_raw_vmap_over_a_submodule_names_the_lifted_form(in_setup: bool) -> None:
    with pytest.raises(JaxTransformError, match=r"at /.*jax\.vmap was applied .* Use the lifted .*: `nn\.vmap`"):
        raw_vmap(in_setup).init(KEY, X)


# --- capturing --------------------------------------------------------------------------------------------------------


def test_capture_keeps_the_output_of_every_call() -> None:
    variables = MLP().init(KEY, X)
    y, mutated = MLP().apply(variables, X, capture_intermediates=True)
    kept = mutated["intermediates"]
    assert set(kept) == {"Dense_0", "Dense_1", "__call__"}
    assert (kept["__call__"][0] == y).all()


def test_capture_takes_a_filter() -> None:
    variables = MLP().init(KEY, X)
    only_dense = lambda module, name: isinstance(module, nn.Dense) and name == "__call__"  # noqa: E731
    _, mutated = MLP().apply(variables, X, capture_intermediates=only_dense, mutable=["state"])
    assert set(mutated["intermediates"]) == {"Dense_0", "Dense_1"}


def test_capture_ends_with_its_apply() -> None:
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            inner = MLP(parent=None)
            return inner.apply(inner.init(KEY, x), x)

    _, mutated = Outer().apply({}, X, capture_intermediates=True)
    assert set(mutated["intermediates"]) == {"__call__"}


def test_sow_is_dropped_unless_asked_for() -> None:
    class Sows(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            kept = self.sow("seen", "x", x), self.sow("seen", "x", x)
            self.sow("sums", "x", x, init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b)
            return kept

    assert Sows().apply({}, 1.0) == (False, False)
    assert Sows().apply({}, 1.0, mutable=["seen", "sums"]) == (
        (True, True),
        {"seen": {"x": (1.0, 1.0)}, "sums": {"x": 1.0}},
    )
    assert "intermediates" not in MLP().init(KEY, X, capture_intermediates=False)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_do_not_disturb_each_other() -> None:
    barrier = threading.Barrier(8)

    class Slow(nn.Module):
        number: int

        def setup(self) -> None:
            self.first = nn.Dense(3)
            barrier.wait(timeout=30)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = self.first(x)
            for _ in range(self.number):
                x = nn.Dense(3)(x)
            return x

    def run(number: int) -> set[str]:
        return set(Slow(number).init(jax.random.key(number), X)["params"])

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(run, range(8)))
    assert names == [{"first", *(f"Dense_{i}" for i in range(number))} for number in range(8)]

"""Lifted modules against `flax.linen`: the same names, initial values and draws bit for bit, the same numbers after."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from tests.layers.bits import assert_same_bits, quick

linen = pytest.importorskip("flax.linen")

RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
X = jax.random.normal(jax.random.key(2), (2, 4, 3))
OWN = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
SHARED = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
STATEFUL = {
    "variable_axes": {"params": 0, "batch_stats": 0},
    "split_rngs": {"params": True, "dropout": True},
}

MODELS: dict[str, Callable[[Any, Any], Any]] = {}


GIVEN: set[str] = set()
"""Models that are given variables, since Linen makes no shared and no carried ones in a loop."""


def model(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Adds a model, made of a library and of its `scan`."""
    MODELS[build.__name__] = build
    return build


def given(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Adds a model that is given variables."""
    GIVEN.add(build.__name__)
    return model(build)


def blocks(nn: Any) -> tuple[Any, Any]:
    """A layer with everything that a lift can split or stack, for mapping and for loops."""

    class Layer(nn.Module):
        features: int = 3

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(self.features)(x))
            return x + nn.Dropout(0.5, deterministic=False)(nn.tanh(y))

    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, x: Any) -> Any:
            carry = Layer(name="layer")(carry) + (0 if x is None else x)
            return carry, carry.mean()

    return Layer, Step


def around(nn: Any, lifted: Callable[..., Any]) -> Any:
    """A model that makes layers and draws before and after it uses a lifted module."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = lifted(nn.Dense(3)(x) + jax.random.uniform(self.make_rng("dropout")))
            return nn.Dense(2)(y[0] if isinstance(y, tuple) else y) + jax.random.uniform(self.make_rng("dropout"))

    return Model()


# --- vmap -------------------------------------------------------------------------------------------------------------


@model
def vmap_with_own_parameters(nn: Any, scan: Any) -> Any:
    return around(nn, lambda x: nn.vmap(nn.Dense, **OWN)(3)(x))


@model
def vmap_with_shared_parameters(nn: Any, scan: Any) -> Any:
    return around(nn, lambda x: nn.vmap(nn.Dense, **SHARED)(3)(x))


@model
def vmap_with_equal_parameters(nn: Any, scan: Any) -> Any:
    options = {"variable_axes": {"params": 0}, "split_rngs": {"params": False}}
    return around(nn, lambda x: nn.vmap(nn.Dense, **options)(3)(x))


@model
def vmap_along_other_axes(nn: Any, scan: Any) -> Any:
    options = {"variable_axes": {"params": 1}, "split_rngs": {"params": True}, "in_axes": 1, "out_axes": 2}
    return around(nn, lambda x: nn.vmap(nn.Dense, **options)(3, use_bias=False)(x).swapaxes(1, 2))


@model
def vmap_of_the_same_input(nn: Any, scan: Any) -> Any:
    return around(nn, lambda x: nn.vmap(nn.Dense, in_axes=None, axis_size=3, **OWN)(3)(x))


@model
def vmap_with_statistics_and_dropout(nn: Any, scan: Any) -> Any:
    layer, _ = blocks(nn)
    return around(nn, lambda x: nn.vmap(layer, **STATEFUL)()(x))


@model
def vmap_with_dropout_that_is_not_split(nn: Any, scan: Any) -> Any:
    layer, _ = blocks(nn)
    options = {**STATEFUL, "split_rngs": {"params": True, "dropout": False}}
    return around(nn, lambda x: nn.vmap(layer, **options)()(x))


@model
def vmap_with_statistics_over_all_elements(nn: Any, scan: Any) -> Any:
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, axis_name="element")(x)

    options = {"variable_axes": {"params": None, "batch_stats": None}, "split_rngs": {"params": False}}
    return around(nn, lambda x: nn.vmap(Normed, axis_name="element", **options)()(x))


@model
def vmap_of_several_arguments(nn: Any, scan: Any) -> Any:
    class Add(nn.Module):
        @nn.compact
        def __call__(self, x: Any, pair: Any) -> Any:
            return nn.Dense(3)(x) + pair["a"] * pair["b"], pair["b"]

    lifted = nn.vmap(Add, in_axes=(1, {"a": None, "b": 1}), out_axes=(1, 1), **OWN)
    return around(nn, lambda x: lifted()(x, {"a": x[:, 0], "b": x}))


@model
def vmap_of_methods(nn: Any, scan: Any) -> Any:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.encoder, self.decoder = nn.Dense(4), nn.Dense(3)
            self.scale = self.param("scale", nn.initializers.normal(), (4,))

        def encode(self, x: Any) -> Any:
            return self.encoder(x) * self.scale

        def decode(self, x: Any) -> Any:
            return self.decoder(x)

    class Coded(nn.Module):
        def setup(self) -> None:
            self.coder = nn.vmap(Coder, methods=["encode", "decode"], **OWN)()

        def __call__(self, x: Any) -> Any:
            return self.coder.decode(self.coder.encode(x))

    return around(nn, lambda x: Coded()(x))


@model
def vmap_of_a_method(nn: Any, scan: Any) -> Any:
    class Rows(nn.Module):
        @functools.partial(nn.vmap, **OWN)
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.Dense(3)(x))

    return around(nn, lambda x: Rows()(x))


@model
def vmap_of_a_function(nn: Any, scan: Any) -> Any:
    class Functions(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            lifted = nn.vmap(lambda mdl, x: nn.Dense(3)(x) * mdl.param("w", nn.initializers.normal(), (3,)), **OWN)
            x = lifted(self, x)
            return nn.vmap(lambda mdl, x: nn.Dense(3)(x), **OWN)(self, x)

    return around(nn, lambda x: Functions()(x))


@model
def vmap_of_a_vmap(nn: Any, scan: Any) -> Any:
    layer, _ = blocks(nn)
    return around(nn, lambda x: nn.vmap(nn.vmap(layer, in_axes=None, axis_size=2, **STATEFUL), **STATEFUL)()(x))


@model
def vmap_with_a_module_in_a_field(nn: Any, scan: Any) -> Any:
    class Twice(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.inner(self.inner(x)) + nn.Dense(3)(x)

    def shared(x: Any) -> Any:
        dense = nn.Dense(3, name="shared")
        y = nn.vmap(Twice, **OWN)(nn.Dense(3, parent=None))(x)
        return dense(nn.vmap(Twice, **SHARED)(dense)(y))

    return around(nn, shared)


# --- remat ------------------------------------------------------------------------------------------------------------


@model
def remat_of_a_named_layer(nn: Any, scan: Any) -> Any:
    layer, _ = blocks(nn)
    return around(nn, lambda x: nn.remat(layer)(name="second")(nn.remat(layer)(name="first")(x)))


@model
def remat_with_static_arguments(nn: Any, scan: Any) -> Any:
    class Depth(nn.Module):
        @nn.compact
        def __call__(self, x: Any, depth: int) -> Any:
            for _ in range(depth):
                x = nn.tanh(nn.Dense(3)(x))
            return x

    lifted = nn.remat(Depth, static_argnums=(2,), policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)
    return around(nn, lambda x: lifted(name="depth")(x, 2))


@model
def remat_of_methods_and_functions(nn: Any, scan: Any) -> Any:
    class Functions(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.remat(lambda mdl, x: nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x)))(self, x)
            return self.method(self.method(x))

        @nn.remat
        def method(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

    return around(nn, lambda x: Functions()(x))


# --- scan -------------------------------------------------------------------------------------------------------------


@model
def scan_with_stacked_parameters(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    return around(nn, lambda x: scan(step, length=3, **STATEFUL)()(x, None))


@given
def scan_with_shared_parameters(nn: Any, scan: Any) -> Any:
    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, x: Any) -> Any:
            return nn.tanh(nn.Dense(3)(carry) + x), carry.sum()

    options = {"variable_broadcast": "params", "split_rngs": {"params": False}}
    return around(nn, lambda x: scan(Step, **options)()(x[0], x))


@given
def scan_with_carried_statistics(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    options = {"variable_axes": {"params": 0}, "split_rngs": STATEFUL["split_rngs"]}
    return around(nn, lambda x: scan(step, variable_carry="batch_stats", **options)()(x[0], x))


@model
def scan_with_dropout_that_is_not_split(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    options = {**STATEFUL, "split_rngs": {"params": True, "dropout": False}}
    return around(nn, lambda x: scan(step, length=2, **options)()(x, None))


@model
def scan_along_other_axes_in_reverse(nn: Any, scan: Any) -> Any:
    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, x: Any, whole: Any) -> Any:
            carry = nn.tanh(nn.Dense(3, use_bias=False)(carry) + x + whole.mean())
            return carry, carry

    options = {"variable_axes": {"params": 1}, "split_rngs": {"params": True}, "in_axes": (1, nn.broadcast)}
    lifted = scan(Step, out_axes=1, reverse=True, **options)
    return around(nn, lambda x: lifted()(x[:, 0], x, x)[1])


@model
def scan_with_a_counter(nn: Any, scan: Any) -> Any:
    class Counted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("batch_stats", "count", lambda: jnp.zeros(()))
            return scan(Counted.step, variable_carry="batch_stats", length=3, **OWN)(self, x, None)

        def step(self, x: Any, _: Any) -> Any:
            count = self.get_variable("batch_stats", "count") + 1
            self.put_variable("batch_stats", "count", count)
            return nn.Dense(3)(x) * count, None

    return around(nn, lambda x: Counted()(x))


@model
def scan_of_a_method(nn: Any, scan: Any) -> Any:
    class Layers(nn.Module):
        @functools.partial(scan, length=3, **OWN)
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.tanh(nn.Dense(3)(x)), None

    return around(nn, lambda x: Layers()(x, None))


@model
def scan_of_a_function(nn: Any, scan: Any) -> Any:
    class Functions(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            lifted = scan(lambda mdl, x, _: (nn.tanh(nn.Dense(3)(x)), x.sum()), length=2, **OWN)
            x, _ = lifted(self, x, None)
            return lifted(self, x, None)

    return around(nn, lambda x: Functions()(x))


@model
def scan_that_keeps_what_was_sown(nn: Any, scan: Any) -> Any:
    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            x = nn.tanh(nn.Dense(3)(x))
            self.sow("intermediates", "mean", x.mean())
            return x, None

    axes = {"params": 0, "intermediates": 0}
    return around(nn, lambda x: scan(Step, variable_axes=axes, split_rngs={"params": True}, length=2)()(x, None))


# --- nested -----------------------------------------------------------------------------------------------------------


@model
def scan_of_remat(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    return around(nn, lambda x: scan(nn.remat(step), length=2, **STATEFUL)(name="blocks")(x, None))


@model
def remat_of_scan(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    return around(nn, lambda x: nn.remat(scan(step, length=2, **STATEFUL))(name="blocks")(x, None))


@model
def vmap_of_scan(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    return around(nn, lambda x: nn.vmap(scan(step, length=2, **STATEFUL), **STATEFUL)()(x, None))


@model
def scan_of_vmap(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    return around(nn, lambda x: scan(nn.vmap(step, **STATEFUL), length=2, **STATEFUL)()(x, None))


@given
def scan_of_scan(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)
    outer = {"variable_broadcast": "params", "variable_carry": "batch_stats", "length": 2}
    split = {"params": False, "dropout": True}
    return around(nn, lambda x: scan(scan(step, length=2, **STATEFUL), split_rngs=split, **outer)()(x, None))


@model
def ensemble_of_loops_of_remat(nn: Any, scan: Any) -> Any:
    _, step = blocks(nn)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            x, _ = scan(nn.remat(step), length=2, **STATEFUL)(name="blocks")(x, None)
            return nn.Dense(3)(x)

    return around(nn, lambda x: nn.vmap(Net, in_axes=None, axis_size=2, **STATEFUL)(name="ensemble")(x))


# --- what is compared -------------------------------------------------------------------------------------------------


def initialised(model: Any, x: Any) -> Any:
    return model.init(RNGS, x)


def applied(model: Any, variables: Any, x: Any) -> Any:
    """The output and the changed collections."""
    return model.apply(variables, x, rngs=RNGS, mutable=["batch_stats", "intermediates"])


def differentiated(model: Any, variables: Any, x: Any) -> Any:
    """These, and the gradients."""

    def loss(params: Any, x: Any) -> Any:
        y, changed = applied(model, {**variables, "params": params}, x)
        return (y**2).mean(), (y, changed)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(variables["params"], x)


GRADIENTS = {
    "vmap_with_shared_parameters",
    "vmap_with_statistics_over_all_elements",
    "remat_of_a_named_layer",
    "scan_with_stacked_parameters",
    "scan_with_shared_parameters",
    "scan_of_remat",
    "vmap_of_scan",
    "scan_of_scan",
}
"""Models that are differentiated, too: each takes some time to compile."""


@pytest.mark.parametrize("name", MODELS)
def test_lifted_model_is_that_of_linen(name: str) -> None:
    ours = MODELS[name](linen_like, linen_like.scan)
    theirs = MODELS[name](linen, functools.partial(linen.scan, check_constancy_invariants=False))
    made, expected = quick(lambda x: (initialised(ours, x), None if name in GIVEN else initialised(theirs, x)))(X)
    if name not in GIVEN:
        assert_same_bits(made, expected)
    run = differentiated if name in GRADIENTS else applied
    mine, other = quick(lambda variables, x: (run(ours, variables, x), run(theirs, variables, x)))(made, X)
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), mine, other)


@pytest.mark.parametrize("name", ["vmap", "scan", "remat", "checkpoint", "jit"])
def test_arguments_and_defaults_are_those_of_linen(name: str) -> None:
    def described(lift: Any) -> dict[str, Any]:
        parameters = inspect.signature(lift).parameters.values()
        return {one.name: one.default for one in parameters}

    ours, theirs = described(getattr(linen_like, name)), described(getattr(linen, name))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert {key: ours[key] for key in theirs} == theirs


def test_automatic_names_of_mapped_and_looped_modules_are_those_of_linen() -> None:
    def build(nn: Any, scan: Any) -> Any:
        _, step = blocks(nn)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                for _ in range(2):
                    x, _ = nn.vmap(step, **STATEFUL)()(x, None)
                    x, _ = scan(step, length=2, **STATEFUL)()(x, None)
                    x, _ = nn.vmap(scan(step, length=2, **STATEFUL), **STATEFUL)()(x, None)
                return nn.vmap(nn.Dense, **OWN)(2)(x)

        return Model()

    ours = build(linen_like, linen_like.scan)
    theirs = build(linen, functools.partial(linen.scan, check_constancy_invariants=False))
    mine, other = (jax.eval_shape(functools.partial(initialised, one), X) for one in (ours, theirs))
    assert mine == other

"""Lifted modules: what holds for every lift alike – examples, classes, names and captured values."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import JaxTransformError
from tests.linen.lifted import KEY, LIFTS, RNGS, Block, X, assert_close, assert_same, element, shapes

lifts = pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)


# --- the examples of the design note ----------------------------------------------------------------------------------


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Dense(4)(x))
        return nn.Dense(2)(x)


def test_raw_vmap_of_a_submodule_fails_and_names_the_lifted_form() -> None:
    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, xs: Any) -> Any:
            mlp = MLP()
            return jax.vmap(mlp)(xs)

    with pytest.raises(JaxTransformError, match=r"/MLP_0: jax\.vmap was applied .* `nn\.vmap`"):
        Mapped().init(KEY, X)
    alone = {"params": MLP().init(KEY, X[0])["params"]}
    whole = {"params": {"MLP_0": alone["params"]}}
    assert_close(Mapped().apply(whole, X), MLP().apply(alone, X))  # what exists is only read


def test_manual_functionalisation_needs_no_lift() -> None:
    class Manual(nn.Module):
        @nn.compact
        def __call__(self, xs: Any) -> Any:
            mlp = MLP(parent=None)

            def init_fn(key: Any, xs: Any) -> Any:
                keys = jax.random.split(key, xs.shape[0])
                return jax.vmap(mlp.init)(keys, xs)["params"]

            params = self.param("mlp", init_fn, xs)
            return jax.vmap(lambda params, x: mlp.apply({"params": params}, x))(params, xs)

    y, variables = Manual().init_with_output(KEY, X)
    dense = {"bias": (2, 4), "kernel": (2, 3, 4)}, {"bias": (2, 2), "kernel": (2, 4, 2)}
    assert shapes(variables) == {"params": {"mlp": {"Dense_0": dense[0], "Dense_1": dense[1]}}}
    assert_same(Manual().apply(variables, X), y)
    for index in range(2):
        assert_close(MLP().apply({"params": element(variables["params"]["mlp"], index)}, X[index]), y[index])


def test_vmapped_module_lies_under_its_name_with_a_leading_axis_everywhere() -> None:
    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, xs: Any) -> Any:
            mapped = nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=0)
            return mapped(name="mlp")(xs)

    y, variables = Mapped().init_with_output(KEY, X)
    dense = {"bias": (2, 4), "kernel": (2, 3, 4)}, {"bias": (2, 2), "kernel": (2, 4, 2)}
    assert shapes(variables) == {"params": {"mlp": {"Dense_0": dense[0], "Dense_1": dense[1]}}}
    kernel = variables["params"]["mlp"]["Dense_0"]["kernel"]
    assert (kernel[0] != kernel[1]).all()
    for index in range(2):
        assert_close(MLP().apply({"params": element(variables["params"]["mlp"], index)}, X[index]), y[index])


def test_vmapped_module_with_batch_norm_has_statistics_for_each_element() -> None:
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = True) -> Any:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(4)(x))
            return nn.Dense(2)(nn.relu(x))

    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, xs: Any) -> Any:
            axes = {"params": 0, "batch_stats": 0}
            return nn.vmap(Normed, variable_axes=axes, split_rngs={"params": True})(name="mlp")(xs)

    xs = jnp.stack([X, 2 * X + 1, X - 3])
    variables = Mapped().init(KEY, xs)
    assert shapes(variables["batch_stats"]) == {"mlp": {"BatchNorm_0": {"mean": (3, 4), "var": (3, 4)}}}
    y, mutated = Mapped().apply(variables, xs, mutable=["batch_stats"])
    for index in range(3):
        own = {collection: element(tree["mlp"], index) for collection, tree in variables.items()}
        one, stats = Normed().apply(own, xs[index], mutable=["batch_stats"])
        assert_close(one, y[index])
        assert_close(stats["batch_stats"], element(mutated["batch_stats"]["mlp"], index))


# --- lifted classes ---------------------------------------------------------------------------------------------------


@lifts
def test_lifted_class_keeps_docstring_and_fields(lift: Any) -> None:
    lifted = lift(Block)
    assert issubclass(lifted, Block)
    assert lifted.__doc__ == "A layer with a residual connection."
    assert lifted.__module__ == Block.__module__
    assert [field.name for field in dataclasses.fields(lifted)] == [field.name for field in dataclasses.fields(Block)]
    assert (lifted(4).features, lifted(scale=0.5).scale, lifted(name="a").name) == (4, 0.5, "a")
    assert inspect.signature(lifted.__call__) == inspect.signature(Block.__call__)
    assert lifted.__name__.endswith("Block")
    assert lifted.__name__ != "Block"
    assert lifted(4) == lifted(4) != lifted(5)


@lifts
def test_lifted_class_runs_in_init_and_apply(lift: Any) -> None:
    model = lift(Block)()
    (y, _), variables = model.init_with_output(RNGS, X, None)
    assert_close(model.apply(variables, X, None)[0], y)
    assert list(variables) == ["params"]


@lifts
def test_arguments_of_a_lifted_class_may_be_given_by_name(lift: Any) -> None:
    model = lift(Block)()
    variables = model.init(RNGS, X, None)
    assert_close(model.apply(variables, X, _=None), model.apply(variables, X, None))


@lifts
def test_subclass_of_a_lifted_class_is_lifted_and_may_have_fields_of_its_own(lift: Any) -> None:
    class Named(lift(Block)):  # type: ignore[misc]
        """Has a label."""

        label: str = "none"

        def described(self) -> str:
            return f"{self.label} of {self.features}"

    model = Named(3, label="block")
    assert model.described() == "block of 3"
    assert_same(model.init(RNGS, X, None), lift(Block)(3).init(RNGS, X, None))


@lifts
def test_subclass_of_a_lifted_class_may_override_what_the_lifted_method_calls(lift: Any) -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return self.activation(nn.Dense(3)(x)), None

        def activation(self, x: Any) -> Any:
            return x

    class Zero(lift(Layer)):  # type: ignore[misc]
        def activation(self, x: Any) -> Any:
            return 0 * x

    y, _ = Zero().init_with_output(RNGS, X, None)[0]
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])
def test_lifted_method_of_a_base_class_goes_on_with_names(lift: Any) -> None:
    def around(base: Any) -> Any:
        class Around(base):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                x, _ = super().__call__(nn.Dense(3)(x))
                return nn.Dense(3)(x)

        return Around()

    y, variables = around(Block).init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2"]
    for _ in range(2):
        lifted, made = around(lift(Block)).init_with_output(KEY, X)
        assert_same(made, variables)
        assert_close(lifted, y)


@lifts
def test_lifted_module_called_twice_uses_its_variables_twice(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            block = lift(Block)(name="block")
            return block(block(x, None)[0], None)[0]

    y, variables = Model().init_with_output(RNGS, X)
    block, own = lift(Block)(), {"params": variables["params"]["block"]}
    assert_close(y, block.apply(own, block.apply(own, X, None)[0], None)[0])


@lifts
def test_lifted_class_of_a_subclass_runs_the_methods_of_both(lift: Any) -> None:
    class Twice(Block):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            x, y = super().__call__(x)
            return 2 * x, y

    (y, _), variables = lift(Twice)().init_with_output(RNGS, X, None)
    assert list(variables["params"]) == ["Dense_0"]
    if lift in (nn.remat, nn.jit):
        assert_close(y, 2 * Block().apply(variables, X)[0])


def test_automatic_names_are_prefixed_by_vmap_and_scan_only() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x, _ = Block()(x)
            for lift in LIFTS.values():
                x, _ = lift(Block)()(x, None)
                x, _ = lift(Block)()(x, None)
            return Block()(x)[0]

    names = ["Block_0", "VmapBlock_0", "VmapBlock_1", "ScanBlock_0", "ScanBlock_1"]
    assert list(Model().init(RNGS, X)["params"]) == names + [f"Block_{index}" for index in range(1, 6)]


def test_prefixes_of_nested_lifts_add_up() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            nested = LIFTS["vmap"](nn.remat(LIFTS["scan"](Block)))
            return nested()(jnp.stack([x, x]), None)[0]

    assert list(Model().init(RNGS, X)["params"]) == ["VmapScanBlock_0"]


@lifts
def test_several_methods_of_a_class_are_lifted(lift: Any) -> None:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.encoder = nn.Dense(3)
            self.decoder = nn.Dense(3)

        def encode(self, x: Any, _: Any = None) -> Any:
            return self.encoder(x), None

        def decode(self, x: Any, _: Any = None) -> Any:
            return self.decoder(x), None

        def plain(self) -> str:
            return "plain"

        def __call__(self, x: Any, _: Any = None) -> Any:
            return self.decode(self.encode(x)[0])

    class Model(nn.Module):
        def setup(self) -> None:
            self.coder = lift(Coder, methods=["encode", "decode"])()

        def __call__(self, x: Any) -> Any:
            assert self.coder.plain() == "plain"
            return self.coder.decode(self.coder.encode(x, None)[0], None)

    (y, _), variables = Model().init_with_output(RNGS, X)
    assert list(variables["params"]["coder"]) == ["encoder", "decoder"]
    (whole, _), all_at_once = lift(Coder)().init_with_output(RNGS, X, None)
    assert shapes(all_at_once["params"]) == shapes(variables["params"]["coder"])
    if lift in (nn.remat, nn.jit):
        assert_close(Coder().apply({"params": variables["params"]["coder"]}, X)[0], y)
        assert_close(lift(Coder, methods="encode")().apply(all_at_once, X), (whole, None))


# --- captured values --------------------------------------------------------------------------------------------------


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        x = nn.Dense(3)(x)
        self.sow("intermediates", "mean", x.mean())
        return x, None


@pytest.mark.parametrize(("name", "stacked"), [("vmap", (2,)), ("scan", (2,)), ("remat", ()), ("jit", ())])
def test_sown_values_pass_through_without_being_listed(name: str, stacked: tuple[int, ...]) -> None:
    model = LIFTS[name](Sowing)()
    variables = model.init(RNGS, X, None)
    assert list(variables) == ["params"]
    plain = model.apply(variables, X, None)
    for _ in range(2):  # the second call of a jitted module is a cached one
        y, kept = model.apply(variables, X, None, mutable=["intermediates"])
        assert_close(y, plain)
        assert shapes(kept) == {"intermediates": {"mean": (stacked,)}}


@pytest.mark.parametrize(("name", "stacked"), [("vmap", (2,)), ("scan", (2,)), ("remat", ()), ("jit", ())])
def test_capture_intermediates_keeps_outputs_inside_lifts(name: str, stacked: tuple[int, ...]) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return LIFTS[name](Block)(name="block")(x, None)[0]

    variables = Model().init(RNGS, X)
    rows = () if name == "vmap" else (2,)
    for _ in range(2):
        y, kept = Model().apply(variables, X, capture_intermediates=True, mutable=["intermediates"])
        block = kept["intermediates"]["block"]
        assert shapes(block["Dense_0"]["__call__"]) == ((*stacked, *rows, 3),)
        assert shapes(block["__call__"]) == (((*stacked, *rows, 3), stacked),)
        assert_same(kept["intermediates"]["__call__"], (y,))
    assert_close(Model().apply(variables, X), y)


def test_captured_values_of_remat_and_jit_are_those_of_the_plain_module() -> None:
    variables = Sowing().init(KEY, X)
    _, plain = Sowing().apply(variables, X, capture_intermediates=True)
    for lift in (nn.remat, nn.jit):
        for _ in range(2):
            _, kept = lift(Sowing)().apply(variables, X, capture_intermediates=True)
            assert_close(kept, plain)


def test_lifted_methods_that_call_each_other_are_inside_of_one_lift() -> None:
    class Steps(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def step(self, carry: Any, _: Any) -> Any:
            return self.dense(carry), None

        def __call__(self, carry: Any, x: Any) -> Any:
            return self.step(carry, x)

    options: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 2}
    both = nn.scan(Steps, methods=["step", "__call__"], **options)()
    one = nn.scan(Steps, methods="__call__", **options)()
    variables = both.init(KEY, jnp.ones(3), None)
    assert shapes(variables) == shapes(one.init(KEY, jnp.ones(3), None))
    expected = one.apply(variables, jnp.ones(3), None)
    assert_same(both.apply(variables, jnp.ones(3), None), expected)
    assert_same(both.apply(variables, jnp.ones(3), None, method="step"), expected)


class Scaled(nn.Module):
    """A module that can be pickled: its fields are plain values."""

    size: int
    by: float = 1.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.by * x @ self.param("w", nn.initializers.normal(), (x.shape[-1], self.size))


SPREAD: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
PICKLED: dict[str, Any] = {
    "remat": lambda: nn.remat(Scaled),
    "nested": lambda: nn.jit(nn.vmap(Scaled, **SPREAD)),
    "option without a hash": lambda: nn.vmap(Scaled, **SPREAD, in_axes=[0]),
}


@pytest.mark.parametrize("lifted", PICKLED)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_modules_of_lifted_classes_are_copied_and_pickled(lifted: str, again: Any) -> None:
    module = PICKLED[lifted]()(3, by=2.0, name="layer")
    other = again(module)
    assert (type(other).__name__, other.size, other.by, other.name) == (type(module).__name__, 3, 2.0, "layer")
    assert_same(other.init(KEY, X), module.init(KEY, X))
    if lifted != "option without a hash":
        assert type(other) is type(module)
        assert other == module


def test_a_class_below_a_lifted_one_is_pickled_by_its_name() -> None:
    module = Below(2, extra=3)
    other = pickle.loads(pickle.dumps(module))
    assert type(other) is Below
    assert other == module


class Below(nn.remat(Scaled)):  # type: ignore[misc]
    """A class of the user's, made of a lifted one."""

    extra: int = 1

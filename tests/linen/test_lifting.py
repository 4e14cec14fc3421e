"""Lifted modules: what holds for every lift alike – classes, names, captured values, errors that change nothing."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like._context import context
from linen_like.errors import JaxTransformError, LiftArgumentError, UnboundModuleError
from tests.linen.lifted import KEY, LIFTS, OWN, RNGS, Block, X, assert_close, assert_same, lane, shapes

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
    with pytest.raises(JaxTransformError, match=r"/MLP_0: jax\.vmap was applied .* `nn\.vmap`"):
        Mapped().apply({"params": {"MLP_0": MLP().init(KEY, X[0])["params"]}}, X)


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
        assert_close(MLP().apply({"params": lane(variables["params"]["mlp"], index)}, X[index]), y[index])


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
        assert_close(MLP().apply({"params": lane(variables["params"]["mlp"], index)}, X[index]), y[index])


def test_vmapped_module_with_batch_norm_has_statistics_for_each_lane() -> None:
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
        own = {collection: lane(tree["mlp"], index) for collection, tree in variables.items()}
        one, stats = Normed().apply(own, xs[index], mutable=["batch_stats"])
        assert_close(one, y[index])
        assert_close(stats["batch_stats"], lane(mutated["batch_stats"]["mlp"], index))


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


# --- wrong uses -------------------------------------------------------------------------------------------------------


@lifts
def test_unbound_lifted_module_cannot_be_called(lift: Any) -> None:
    with pytest.raises(UnboundModuleError, match=r"Block \(unbound\): .* Use it within `init` or `apply`"):
        lift(Block)()(X, None)


@lifts
def test_lifting_an_instance_says_to_lift_the_class(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"given an instance of Block\. Lift the class: `nn\.\w+\(Block, …\)"):
        lift(Block())


@pytest.mark.parametrize("name", ["vmap", "scan", "remat", "jit"])
def test_message_names_the_lift_as_the_user_wrote_it(name: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"^nn\.{name}: "):
        getattr(nn, name)(Block())


@lifts
def test_lifting_what_is_neither_class_nor_function_is_an_error(lift: Any) -> None:
    for target in (None, "Dense"):
        with pytest.raises(
            LiftArgumentError, match=r"expected a Module class or a function of a module, given"
        ) as caught:
            lift(target)
        assert type(target).__name__ not in caught.value.fix  # `nn.vmap(NoneType, …)` would be no help


@lifts
def test_unknown_method_is_named_beside_those_there_are(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"Block has no method .*encod") as caught:
        lift(Block, methods=["encod"])
    assert "encod" not in caught.value.fix


@lifts
def test_methods_are_chosen_of_classes_only(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"methods: it chooses methods of a class, given a function"):
        lift(lambda mdl, x: x, methods=["a"])


class Fails(nn.Module):
    fail: bool = True

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        x = nn.Dense(3)(x)
        self.variable("state", "calls", lambda: jnp.zeros(())).value += 1
        if self.fail:
            raise RuntimeError("on purpose")
        return x, None


@lifts
def test_body_that_raises_leaves_the_model_as_it_was(lift: Any) -> None:
    class Model(nn.Module):
        fail: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            block = lift(Fails)(self.fail, name="block")
            if self.fail:
                with pytest.raises(RuntimeError, match="on purpose"):
                    block(x, None)
                assert self.variables == {}
            block = lift(Fails)(False, name="other")
            return nn.Dense(3)(block(x, None)[0])

    assert_same(Model(True).init(RNGS, X), Model(False).init(RNGS, X))
    assert context.modules == [None]
    assert context.captures == [None]


@lifts
def test_module_whose_body_raised_is_usable_again(lift: Any) -> None:
    class Once(nn.Module):
        @nn.compact
        def __call__(self, x: Any, fail: Any = None) -> Any:
            x = nn.Dense(3)(x)
            if runs.append(1) or len(runs) == 1:
                raise RuntimeError("on purpose")
            return x, None

    class Model(nn.Module):
        again: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            once = lift(Once)()
            if self.again:
                with pytest.raises(RuntimeError, match="on purpose"):
                    once(x, None)
            return once(x, None)[0]

    runs: list[int] = []
    after_failure = Model(True).init_with_output(RNGS, X)
    assert_same(after_failure, Model(False).init_with_output(RNGS, X))
    assert context.modules == [None]


@lifts
def test_exception_that_leaves_init_or_apply_leaves_the_context_clean(lift: Any) -> None:
    model = lift(Fails)()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on purpose"):
            model.init(RNGS, X, None)
        assert context.modules == [None]
        assert context.captures == [None]
    variables = lift(Fails)(False).init(RNGS, X, None)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.apply(variables, X, None, mutable=["state"])
    assert context.modules == [None]
    assert_same(lift(Fails)(False).init(RNGS, X, None), variables)


# --- raw transformations round live modules ---------------------------------------------------------------------------

RAW = {
    "vmap": lambda fn, x: jax.vmap(fn)(x),
    "scan": lambda fn, x: jax.lax.scan(lambda carry, _: (fn(carry), None), x, None, length=2)[0],
    "grad": lambda fn, x: jax.grad(lambda x: fn(x).sum())(x),
    "checkpoint": lambda fn, x: jax.checkpoint(fn)(x),
    "jit": lambda fn, x: jax.jit(fn)(x),
}


class Acts(nn.Module):
    """Does something under a raw transformation, or not."""

    act: str
    raw: str | None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = nn.Dense(3)
        state = self.variable("state", "calls", lambda: jnp.zeros(()))
        act = functools.partial(getattr(self, self.act), dense, state)
        return act(x) if self.raw is None else RAW[self.raw](act, x)

    def pass_on(self, dense: Any, state: Any, x: Any) -> Any:
        return x

    def create(self, dense: Any, state: Any, x: Any) -> Any:
        return x + self.param("late", nn.initializers.ones, ())

    def name_it(self, dense: Any, state: Any, x: Any) -> Any:
        return nn.Dense(3, name="late")(x)

    def write(self, dense: Any, state: Any, x: Any) -> Any:
        state.value += 1
        return x

    def draw(self, dense: Any, state: Any, x: Any) -> Any:
        return x + jax.random.normal(self.make_rng("params"))

    def sow_it(self, dense: Any, state: Any, x: Any) -> Any:
        self.sow("state", "kept", x)
        return x


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("act", ["create", "name_it", "write", "draw", "sow_it"])
def test_raw_transformation_round_a_live_module_is_an_error(act: str, raw: str) -> None:
    lifted = {"grad": r"jax\.grad .*pure function instead", "checkpoint": r"nn\.(checkpoint|remat)\b"}.get(
        raw, rf"nn\.{raw}\b"
    )
    with pytest.raises(JaxTransformError, match=lifted):
        Acts(act, raw).init(KEY, X)
    variables = Acts("pass_on", None).init(KEY, X)
    with pytest.raises(JaxTransformError, match=lifted):
        Acts(act, raw).apply(variables, X, rngs=KEY, mutable=True)


class Around(nn.Module):
    """Wraps a raw transformation round a submodule, or round a function that calls it."""

    raw: str
    inside: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = nn.Dense(3)
        return RAW[self.raw](lambda x: dense(x), x) if self.inside else RAW[self.raw](dense, x)


@pytest.mark.parametrize("raw", RAW)
def test_raw_transformation_of_a_submodule_itself_is_an_error_in_init(raw: str) -> None:
    lifted = {"grad": r"jax\.grad .*pure function instead", "checkpoint": r"nn\.(checkpoint|remat)\b"}.get(
        raw, rf"nn\.{raw}\b"
    )
    for inside in (True, False):
        with pytest.raises((ValueError, TypeError), match=lifted):
            Around(raw, inside).init(KEY, X)


@pytest.mark.parametrize("raw", RAW)
def test_reading_parameters_under_a_raw_transformation_is_fine(raw: str) -> None:
    params = nn.Dense(3).init(KEY, X)["params"]
    expected = RAW[raw](lambda x: nn.Dense(3).apply({"params": params}, x), X)
    assert_close(Around(raw, inside=True).apply({"params": {"Dense_0": params}}, X), expected)


@pytest.mark.parametrize("raw", ["jit", "checkpoint", "grad"])
def test_module_as_argument_of_a_raw_transformation_is_told_the_lifted_form(raw: str) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            block = Block()
            return getattr(jax, raw)(lambda block, x: block(x)[0].sum())(block, x)

    with pytest.raises(TypeError) as caught:
        Model().init(KEY, X)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert ("nn.vmap" if raw == "grad" else f"nn.{raw}") in told


def test_raw_jit_as_decorator_of_a_method_is_told_the_lifted_form() -> None:
    class Model(nn.Module):
        @jax.jit
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    with pytest.raises(TypeError) as caught:
        Model().init(KEY, X)
    assert "nn.jit" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@lifts
def test_raw_transformation_inside_a_lift_is_an_error_too(lift: Any) -> None:
    class Inside(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return jax.checkpoint(lambda x: nn.Dense(3)(x))(x), None

    with pytest.raises(JaxTransformError, match=r"\(Inside\).*nn\.(checkpoint|remat)\b"):
        lift(Inside)().init(RNGS, X, None)


@lifts
def test_raw_transformations_over_pure_functions_are_fine_inside_a_lift(lift: Any) -> None:
    class Inside(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            x = nn.Dense(3)(x)
            return jax.vmap(jnp.tanh)(jax.jit(jnp.sin)(x)), None

    assert shapes(lift(Inside)().init(RNGS, X, None)) == shapes(lift(Sowing)().init(RNGS, X, None))


@lifts
def test_live_module_round_which_a_lift_is_wrapped_is_told_to_use_the_inner_one(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            outer = nn.Dense(3)

            def inner(mdl: Any, x: Any, _: Any = None) -> Any:
                return outer(x), None

            return lift(inner)(self, x, None)[0]

    with pytest.raises(JaxTransformError) as caught:
        Model().init(RNGS, X)
    told = str(caught.value)
    assert "inner" in told
    assert "make_jaxpr" not in told
    assert "Use the lifted transformation" not in told  # that is what was done


def test_split_sequences_and_collections_that_are_not_listed_are_named() -> None:
    with pytest.raises(
        ValueError, match=r'collection "params" was created.*vmap\(Block\).*variable_axes=\{"params": 0\}'
    ):
        nn.vmap(Block, split_rngs={"params": True})().init(KEY, X)
    with pytest.raises(ValueError, match=r'make_rng\("params"\) at /vmap\(Block\).*split_rngs=\{"params": True\}'):
        nn.vmap(Block, variable_axes={"params": 0})().init(KEY, X)
    with pytest.raises(ValueError, match=r'"state/calls" at /vmap\(Fails\).*variable_axes=\{"state": 0\}'):
        nn.vmap(Fails, variable_axes={"params": 0}, split_rngs=OWN["split_rngs"])().init(KEY, X)

"""Lifted modules used wrongly: errors name place, cause and fix, and leave the model as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import linen_like as nn
from linen_like.errors import JaxTransformError, LiftArgumentError, UnboundModuleError, UnhashableModuleError
from linen_like.lifecycle.context import context
from tests.linen.lifted import KEY, LIFTS, OWN, RNGS, Block, X, assert_close, assert_same, shapes

lifts = pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)

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
    with pytest.raises(
        LiftArgumentError, match=r"methods: it selects methods of a class, but the target is a function"
    ):
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

MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
WHOLE = jax.sharding.PartitionSpec()


def raw_custom_vjp(fn: Any, x: Any) -> Any:
    custom = jax.custom_vjp(lambda x: fn(x))
    custom.defvjp(lambda x: (fn(x), None), lambda _, y: (y,))
    return custom(x)


def raw_custom_jvp(fn: Any, x: Any) -> Any:
    custom = jax.custom_jvp(lambda x: fn(x))
    custom.defjvp(lambda primals, tangents: (fn(*primals), tangents[0]))
    return custom(x)


def raw_custom_vmap(fn: Any, x: Any) -> Any:
    custom = jax.custom_batching.custom_vmap(lambda x: fn(x))
    custom.def_vmap(lambda size, batched, x: (fn(x), True))
    return custom(x)


def raw_eval_shape(fn: Any, x: Any) -> Any:
    shape = jax.eval_shape(fn, x)
    return jnp.zeros(shape.shape, shape.dtype)


RAW: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda fn, x: jax.vmap(fn)(x),
    "pmap": lambda fn, x: jax.pmap(fn)(x[None])[0],
    "shard_map": lambda fn, x: jax.shard_map(fn, mesh=MESH, in_specs=WHOLE, out_specs=WHOLE)(x),
    "map": lambda fn, x: jax.lax.map(fn, x),
    "custom_vmap": raw_custom_vmap,
    "scan": lambda fn, x: jax.lax.scan(lambda carry, _: (fn(carry), None), x, None, length=2)[0],
    "while_loop": lambda fn, x: jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, fn(c[1])), (0, x))[1],
    "fori_loop": lambda fn, x: jax.lax.fori_loop(0, 2, lambda _, x: fn(x), x),
    "associative_scan": lambda fn, x: jax.lax.associative_scan(lambda a, b: fn(a) + b, x),
    "cond": lambda fn, x: jax.lax.cond(x.sum() < 1e9, fn, lambda x: x, x),
    "switch": lambda fn, x: jax.lax.switch(jnp.int32(x.sum() < 1e9), [lambda x: x, fn], x),
    "grad": lambda fn, x: jax.grad(lambda x: fn(x).sum())(x),
    "value_and_grad": lambda fn, x: jax.value_and_grad(lambda x: fn(x).sum())(x)[1],
    "vjp": lambda fn, x: jax.vjp(fn, x)[0],
    "jvp": lambda fn, x: jax.jvp(fn, (x,), (x,))[1],
    "linearize": lambda fn, x: jax.linearize(fn, x)[0],
    "jacfwd": lambda fn, x: jax.jacfwd(fn)(x),
    "jacrev": lambda fn, x: jax.jacrev(fn)(x),
    "custom_vjp": raw_custom_vjp,
    "custom_jvp": raw_custom_jvp,
    "jit": lambda fn, x: jax.jit(fn)(x),
    "checkpoint": lambda fn, x: jax.checkpoint(fn)(x),
    "eval_shape": raw_eval_shape,
    "checkify": lambda fn, x: checkify.checkify(fn)(x)[1],
}
"""Each JAX transformation by the name of its lifted form."""


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


CROSSED = [raw for raw in RAW if raw != "associative_scan"]
"""Those that trace what they run: `associative_scan` calls its operator as it is, and nothing leaks."""

NAMES = {"pmap": "(pmap|shard_map)"}
"""What they are called, where an older JAX makes one of another."""

LATE = ("custom_jvp", "custom_vjp")
"""Those that trace it only where they are traced themselves."""


@pytest.mark.parametrize("raw", CROSSED)
@pytest.mark.parametrize("act", ["create", "name_it", "write", "draw", "sow_it"])
def test_raw_transformation_round_a_live_module_is_an_error(act: str, raw: str) -> None:
    def init(x: Any) -> Any:
        return Acts(act, raw).init(KEY, x)

    def apply(x: Any) -> Any:
        return Acts(act, raw).apply(variables, x, rngs=KEY, mutable=True)

    variables, name = Acts("pass_on", None).init(KEY, X), NAMES.get(raw, raw)
    for run in (init, apply):
        with pytest.raises(JaxTransformError, match=rf"jax\.[\w.]*\b{name} was applied.*`nn\.{name}`"):
            jax.jit(run)(X) if raw in LATE else run(X)


class Around(nn.Module):
    """Wraps a raw transformation round a submodule, or round a function that calls it."""

    raw: str
    inside: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = nn.Dense(3)
        return RAW[self.raw](lambda x: dense(x), x) if self.inside else RAW[self.raw](dense, x)


@pytest.mark.parametrize("raw", CROSSED)
def test_raw_transformation_of_a_submodule_itself_is_an_error_in_init(raw: str) -> None:
    for inside in (True, False):
        name = NAMES.get(raw, raw)
        told = rf"nn\.{name}\b|the module was passed to JAX|use the lifted one of the same name"
        with pytest.raises((JaxTransformError, UnhashableModuleError), match=told):
            jax.jit(Around(raw, inside).init)(KEY, X)


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

    with pytest.raises(JaxTransformError, match=r"Block at /Block_0: the module was passed to JAX") as caught:
        Model().init(KEY, X)
    assert f"nn.{raw}" in caught.value.fix


def test_raw_jit_as_decorator_of_a_method_is_told_the_lifted_form() -> None:
    class Model(nn.Module):
        @jax.jit
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    with pytest.raises(JaxTransformError, match=r"Model at /: the module was passed to JAX.*`nn\.jit`"):
        Model().init(KEY, X)


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

    assert shapes(lift(Inside)().init(RNGS, X, None)) == shapes(lift(Block)().init(RNGS, X, None))


@lifts
def test_live_module_round_which_a_lift_is_wrapped_is_told_to_use_the_inner_one(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            outer = [nn.Dense(3)].__iter__()  # hidden from the search in closures

            def inner(mdl: Any, x: Any, _: Any = None) -> Any:
                return next(outer)(x), None

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
    with pytest.raises(ValueError, match=r'"state/calls" at /vmap\(Fails\).*variable_axes=\{"params": 0, "state": 0\}'):
        nn.vmap(Fails, variable_axes={"params": 0}, split_rngs=OWN["split_rngs"])().init(KEY, X)


@pytest.mark.parametrize(
    ("lift", "options"),
    [
        (nn.scan, {"data_transform": lambda *groups: groups}),
        (nn.remat, {"concrete": True}),
    ],
)
def test_option_without_a_use_here_is_refused(lift: Any, options: dict[str, Any]) -> None:
    with pytest.raises(LiftArgumentError, match=rf"nn\.{lift.__name__}: {next(iter(options))}=.* is not supported"):
        lift(nn.Dense, **options)


def _with_functions(name: str, fn: Any) -> Any:
    """A model that gives a function to a lift that runs at once."""
    runs: dict[str, Callable[[Any, Any], Any]] = {
        "cond": lambda mdl, x: nn.cond(True, fn, fn, mdl, x),
        "switch": lambda mdl, x: nn.switch(0, [fn, fn], mdl, x),
        "while_loop": lambda mdl, x: nn.while_loop(lambda mdl, x: x.sum() < 1, fn, mdl, x),
        "jvp": lambda mdl, x: nn.jvp(fn, mdl, (x,), (x,), {}),
        "vjp": lambda mdl, x: nn.vjp(fn, mdl, x)[0],
        "remat": lambda mdl, x: nn.remat(fn)(mdl, x),
    }

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return runs[name](self, x)

    return Model()


@pytest.mark.parametrize("name", ["cond", "switch", "while_loop", "jvp", "vjp", "remat"])
def test_functions_of_the_signature_that_jax_asks_for_are_told_how_they_are_called(name: str) -> None:
    def of_jax(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=r"the call is `of_jax\(Model\(\), .*but `of_jax` takes `\(x\)`"):
        _with_functions(name, of_jax).init(KEY, X)


@pytest.mark.parametrize("name", ["cond", "switch", "while_loop", "jvp", "vjp"])
def test_a_module_in_the_place_of_a_function_is_told_of(name: str) -> None:
    with pytest.raises(
        LiftArgumentError, match=r"expected a function of the module, given a Dense.*`lambda mdl, …: mdl"
    ):
        _with_functions(name, nn.Dense(3, parent=None)).init(KEY, X)

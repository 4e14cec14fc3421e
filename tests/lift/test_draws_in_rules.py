"""The draws of functions with rules: a rule draws for each variable as often as its function, which creates it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as linen
from liftcore import Blueprint, Scope
from tests.lift.quick import assert_same, compiled, key, uniform

X = jnp.array([0.1, 0.2, -0.3])


def layer(scope: Scope, x: Any) -> Any:
    """Creates two variables, which both draw, and draws between and after them."""
    y = x * scope.param("w", uniform) + uniform(scope.make_rng("drop"))
    return y + scope.variable("consts", "c", lambda: uniform(scope.make_rng("drop"))).value


def noise(scope: Scope, x: Any) -> Any:
    return x + uniform(scope.make_rng("drop"))


def guarded(scope: Scope, x: Any) -> Any:
    """Creates what does not exist yet, without an initializer."""
    if scope.must_create("consts", "g"):
        scope.create_variable("consts", "g", uniform(scope.make_rng("drop")))
    return noise(scope, x * scope.get_variable("consts", "g"))


def asking(scope: Scope, x: Any) -> Any:
    """Draws where a variable, a module or a collection does not exist yet, by each way to ask, before and after."""

    def missing() -> list[bool]:
        held, inner = scope.variables(), scope.push("inner", reuse=True)
        return [
            not scope.has_variable("consts", "g"),
            not scope.has_variable("params", "inner"),
            not inner.has_variable("params", "w"),
            "g" not in held.get("consts", {}),
            "inner" not in held.get("params", {}),
            scope.is_collection_empty("consts"),
            scope.is_initializing() and scope.is_mutable_collection("params"),
        ]

    before = [uniform(scope.make_rng("drop")) for one in missing() if one]
    if not scope.has_variable("consts", "g"):
        scope.create_variable("consts", "g", uniform(scope.make_rng("params")))
    w = scope.push("inner", reuse=True).param("w", uniform)
    after = [uniform(scope.make_rng("drop")) for one in missing() if one]
    return sum([x * w * scope.get_variable("consts", "g"), *before, *after])


class Asking(linen.Module):
    """The same as a module, whose `setup` runs when its first attribute is read."""

    def setup(self) -> None:
        self.noise = 0 if self.has_variable("params", "w") else uniform(self.make_rng("drop"))
        self.w = self.param("w", uniform)
        self.c = self.variable("consts", "c", lambda: uniform(self.make_rng("drop")))

    def __call__(self, x: Any) -> Any:
        started = self.is_initializing() and not self.has_variable("consts", "c")
        return self.c.value + x * self.w + self.noise + (uniform(self.make_rng("drop")) if started else 0)


class Named(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return Asking(name="a")(x)


def built(scope: Scope, x: Any) -> Any:
    module = {"w": jnp.zeros(3), "b": jnp.ones(3)}
    blueprint = Blueprint.of(module)
    blueprint.create(scope, lambda: {**module, "w": uniform(scope.make_rng("params"))})
    return noise(scope, x * blueprint.read(scope)["w"])


def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A child that is called twice."""

    def body(scope: Scope, x: Any) -> Any:
        child = scope.child(fn, "t")
        return child(child(x))

    return body


def looped(scope: Scope, x: Any) -> Any:
    step = lambda scope, carry, _: (layer(scope, carry), None)  # noqa: E731
    loop = liftcore.scan(step, length=2, variable_broadcast=("params", "consts"), split_rngs=False)
    return loop(scope, x, None)[0]


def until(scope: Scope, x: Any) -> Any:
    """The condition creates a variable before the body, which reads another draw after it."""

    def limit(scope: Scope) -> Any:
        return scope.variable("consts", "limit", lambda: uniform(scope.make_rng("drop"), ())).value

    def going(scope: Scope, state: Any) -> Any:
        return state[0] < 2 + 0 * limit(scope)

    def step(scope: Scope, state: Any) -> Any:
        return state[0] + 1, layer(scope, state[1]) * limit(scope)

    return liftcore.while_loop(going, step, split_rngs=False)(scope, (0, x))[1]


def branched(scope: Scope, x: Any) -> Any:
    """Both branches create a variable, and only one of them another; both exist afterwards."""
    y = liftcore.cond(layer, lambda scope, x: x * scope.param("w", uniform))(scope, x[0] > 0, x)
    return noise(scope, y)


def mapped(scope: Scope, x: Any) -> Any:
    axes = {"params": None, "consts": None}
    return liftcore.vmap(layer, variable_axes=axes, split_rngs=False)(scope, x[None])[0]


def renamed(scope: Scope, x: Any) -> Any:
    return liftcore.swap_collection(layer, "params", "ema")(scope, x)


def shared(scope: Scope, x: Any) -> Any:
    """Two lifted functions of one child scope."""
    inner = scope.push("shared")
    x = liftcore.jit(layer)(inner, x)
    return liftcore.remat(layer)(inner.rewound(), x)


BODIES: dict[str, Callable[..., Any]] = {
    "once": layer,
    "a child called twice": twice(layer),
    "a child of a child": twice(twice(layer)),
    "in a Python loop": lambda scope, x: sum(map(scope.child(layer, "t"), [x, x + 1, x + 2])),
    "create_variable": twice(guarded),
    "a blueprint": twice(built),
    "what asks": twice(asking),
    "jit of what asks": twice(liftcore.jit(asking)),
    "modules that ask": twice(lambda scope, x: Named(parent=scope)(x)),
    "jit": twice(liftcore.jit(layer)),
    "remat": twice(liftcore.remat(layer)),
    "vmap": twice(mapped),
    "scan": twice(looped),
    "while_loop": twice(until),
    "cond": twice(branched),
    "swap_collection": twice(renamed),
    "two lifts of one scope": shared,
}


def forward(fn: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a function with its own derivative for a rule; `rule` is what the rule differentiates."""
    lifted = liftcore.custom_jvp(fn)
    lifted.defjvp(lambda scope, *args: liftcore.jvp(rule)(scope, *args))
    return lambda scope, x: liftcore.jvp(lifted)(scope, (x,), (x,))[0]


def backward(fn: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a function with a pullback of its own; `rule` is what the forward rule calls."""
    lifted = liftcore.custom_vjp(fn)
    lifted.defvjp(lambda scope, x: (rule(scope, x), ()), lambda _, cotangent: (None, cotangent))
    return lambda scope, x: liftcore.vjp(lifted)(scope, x)[0]


def batched(fn: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a function with a rule for `vmap` inside another one with a pullback of its own."""

    def with_rule(fn: Callable[..., Any]) -> Any:
        lifted = liftcore.custom_vmap(fn)
        lifted.def_vmap(lambda size, in_batched, scope, x: (x, True))
        return lifted

    return backward(with_rule(fn), with_rule(rule))


RULES = {"custom_jvp": forward, "custom_vjp": backward, "custom_vmap": batched}
SHARED = {"params": None, "consts": None}


def with_later(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and draws after it, here and in the child."""

    def model(scope: Scope, x: Any) -> Any:
        y = fn(scope, x)
        places = (scope, scope.push("t", reuse=True))
        return y, [uniform(place.make_rng(name)) for place in places for name in ("params", "drop")]

    return model


@pytest.mark.parametrize("ruled", RULES.values(), ids=RULES)
@pytest.mark.parametrize("fn", BODIES.values(), ids=BODIES)
def test_a_rule_draws_what_its_function_draws(fn: Callable[..., Any], ruled: Callable[..., Any]) -> None:
    def run(rngs: Any, x: Any) -> Any:
        return [liftcore.init(with_later(one))(rngs, x) for one in (ruled(fn, fn), ruled(ruled(fn, fn), fn), fn)]

    *found, expected = compiled(run, {"params": key(0)}, X)
    assert_same(found, [expected, expected])


AROUND: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "nothing": lambda fn: fn,
    "a rule": lambda fn: backward(fn, fn),
    "value_and_grad": lambda fn: (
        lambda scope, x: liftcore.value_and_grad(
            lambda scope, x: (jnp.sum(y := fn(scope, x)), y), argnums=1, has_aux=True
        )(scope, x)[0][1]
    ),
    "vmap": lambda fn: lambda scope, x: liftcore.vmap(fn, variable_axes=SHARED, split_rngs=False)(scope, x[None])[0],
    "jit": liftcore.jit,
}


@pytest.mark.parametrize("streams", [("params",), ("params", "drop")], ids=["follows params", "given"])
@pytest.mark.parametrize("ruled", [forward, backward], ids=lambda ruled: ruled.__name__)
def test_it_does_so_in_init_and_where_some_variables_exist(ruled: Callable[..., Any], streams: Any) -> None:
    bare = twice(layer)

    def outcomes(fn: Callable[..., Any], rngs: Any, held: Any, x: Any) -> Any:
        model = with_later(fn)
        some = [{name: held[name]} for name in held]
        given = [liftcore.apply(model, mutable=True)(one, x, rngs=rngs) for one in (*some, held)]
        return liftcore.init(model)(rngs, x), given

    def run(rngs: Any, x: Any) -> Any:
        held = liftcore.init(bare)(rngs, x)[1]
        each = {name: outcomes(over(ruled(bare, bare)), rngs, held, x) for name, over in AROUND.items()}
        return each, outcomes(bare, rngs, held, x)

    found, expected = compiled(run, {name: key(number) for number, name in enumerate(streams)}, X)
    assert_same(found, dict.fromkeys(AROUND, expected))


@pytest.mark.parametrize("derive", [jax.value_and_grad, jax.linearize, jax.jvp], ids=lambda fn: fn.__name__)
def test_the_derivative_of_init_draws_what_init_draws(derive: Callable[..., Any]) -> None:
    lifted = liftcore.custom_jvp(twice(layer))
    lifted.defjvp(lambda scope, *args: liftcore.jvp(twice(layer))(scope, *args))

    def run(x: Any) -> Any:
        init = lambda x: liftcore.init(with_later(lifted))({"params": key(0)}, x)[0][0].sum()  # noqa: E731
        more = {"jvp": ((x,), (x,)), "linearize": (x,)}.get(derive.__name__, (x,))
        return derive(init, *more)[0] if derive is not jax.value_and_grad else derive(init)(x)[0]

    assert_same(compiled(run, X), liftcore.init(twice(layer))({"params": key(0)}, X)[0].sum())


def test_the_trace_of_a_jitted_block_serves_no_block_whose_variables_were_given() -> None:
    """Equal blocks share a trace; one that must draw again differs from one that need not."""
    block = liftcore.jit(layer)

    def blocks(scope: Scope, x: Any) -> Any:
        return scope.child(block, "b")(scope.child(block, "a")(x))

    def run(rngs: Any, x: Any) -> Any:
        held = liftcore.init(blocks)(rngs, x)[1]
        given = {name: {"a": found["a"]} for name, found in held.items()}
        models = backward(blocks, blocks), blocks
        return [liftcore.apply(with_later(model), mutable=True)(given, x, rngs=rngs) for model in models]

    assert_same(*compiled(run, {"params": key(0)}, X))

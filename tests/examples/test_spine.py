"""`examples/spine.py` keeps the laws that it claims, and its numbers are those of the library."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore.traverse_util import flatten_dict

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "spine.py"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("spine", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spine"] = module
    spec.loader.exec_module(module)
    return module


spine = loaded()
key = jax.random.key(0)
Fn = Callable[..., Any]


def equal(ours: Any, library: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(library)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-5, atol=1e-5)), ours, library))


def ran(lib: Any, program: Callable[[Any], Fn], *args: Any) -> Any:
    """Run a program: `init`, then `apply`."""
    first, variables = lib.init(program(lib))(key, *args)
    again, changed = lib.apply(program(lib), mutable=("state",))(variables, *args, rngs={"params": key})
    flat = (lambda values: values) if lib is spine else flatten_dict
    return first, flat(variables), again, flat(changed)


def check(program: Callable[[Any], Fn], *args: Any) -> None:
    equal(*jax.jit(lambda args: [ran(lib, program, *args) for lib in (spine, liftcore)])(args))


# -- numbers -----------------------------------------------------------------------------------------------------------


def body(scope: Any, x: Any) -> Any:
    """Three kinds of variables, whose initial values read inputs and one another."""
    table = scope.variable("table", "t", lambda: jnp.arange(3.0))
    w = scope.param("w", jax.random.normal, (3,))
    n = scope.variable("state", "n", lambda: x * w)
    before = scope.variable("state", "before", lambda: n.value + table.value)
    before.value = n.value
    n.value = n.value + x
    return jnp.tanh(x * w + n.value + scope.child(dense, "dense")(x) + table.value)


def dense(scope: Any, x: Any) -> Any:
    kernel = scope.param("kernel", jax.nn.initializers.lecun_normal(), (3, 3))
    noise = jax.random.normal(scope.make_rng("params"), (3,))
    return x @ kernel + scope.param("bias", lambda key: jnp.zeros(3)) + 0.1 * noise


def mapped(lib: Any, fn: Fn) -> Fn:
    lifted = lib.vmap(fn, variable_axes={"table": None, ("params", "state"): 0}, split_rngs={"params": True})
    return lambda scope, x: lifted(scope, jnp.stack([x, -x])).mean(0)


def scanned(lib: Any, fn: Fn) -> Fn:
    lifted = lib.scan(
        lambda scope, x, offset: (fn(scope, x + offset), x),
        variable_broadcast="table",
        variable_carry="state",
        variable_axes={"params": 0},
        split_rngs={"params": True},
    )
    return lambda scope, x: lifted(scope, x, jnp.linspace(0, 1, 6).reshape(2, 3))[0]


def derived(lib: Any, fn: Fn) -> Fn:
    lifted = lib.grad(lambda scope, x: fn(scope, x).sum())
    return lambda scope, x: x + sum(leaf.sum() for leaf in jax.tree.leaves(lifted(scope, x)))


LIFTS: dict[str, Callable[[Any, Fn], Fn]] = {
    "jit": lambda lib, fn: lib.jit(fn),
    "remat": lambda lib, fn: lib.remat(fn),
    "vmap": mapped,
    "scan": scanned,
    "grad": derived,
}


def nested(*names: str) -> Callable[[Any], Fn]:
    def program(lib: Any) -> Fn:
        fn: Fn = body
        for name in reversed(names):
            fn = LIFTS[name](lib, fn)
        return fn

    return program


def test_without_a_lift_the_numbers_are_those_of_the_library() -> None:
    check(nested(), jnp.array([0.5, -1.0, 2.0]))


PAIRS = itertools.product(LIFTS, LIFTS)


@pytest.mark.parametrize("names", [("scan", "vmap", "jit"), *zip(LIFTS), *PAIRS], ids=" of ".join)
def test_the_numbers_of_lifts_are_those_of_the_library(names: tuple[str, ...]) -> None:
    check(nested(*names), jnp.array([0.5, -1.0, 2.0]))


# -- laws --------------------------------------------------------------------------------------------------------------


def linear(scope: Any, x: Any) -> Any:
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    n.value += 1
    return jnp.tanh(x @ scope.param("w", jax.random.normal, (3, 3)))


def draw(scope: Any) -> Any:
    return jax.random.key_data(scope.make_rng("params"))


def deep(fn: Fn) -> Fn:
    """Four layers with parameters of their own, each mapped over a batch, and compiled."""
    one = spine.vmap(spine.jit(fn), variable_axes={"params": None, "state": 0}, split_rngs={"params": False})
    return spine.scan(
        lambda scope, x, _: (one(scope, x), None),
        variable_carry="state",
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=4,
    )


def test_a_body_runs_once_at_any_depth() -> None:
    runs = []

    def counted(scope: Any, x: Any) -> Any:
        runs.append("run")
        return linear(scope, x)

    spine.init(lambda scope, x: spine.grad(lambda scope: deep(counted)(scope, x, None)[0].sum())(scope))(
        key, jnp.ones((2, 3))
    )
    assert runs == ["run"]


def test_it_equals_the_loop() -> None:
    x = jnp.ones((2, 3))
    (y, _), variables = spine.init(deep(linear))(key, x, None)
    for w in variables["params", "w"]:
        x = jnp.tanh(x @ w)
    assert jnp.allclose(y, x, atol=1e-6)
    assert variables["state", "n"].tolist() == [4.0, 4.0]
    assert len({w.tobytes() for w in map(jax.device_get, variables["params", "w"])}) == 4, "no key is drawn twice"


@pytest.mark.parametrize("lift", [spine.jit, spine.remat, spine.frozen])
def test_a_lift_that_only_wraps_changes_no_name_and_no_key(lift: Any) -> None:
    def model(scope: Any, x: Any, lift: Any) -> Any:
        drawn = [fn(scope) for fn in (draw, lift(draw), draw)]
        return drawn, scope.child(lift(linear), "first")(x) + scope.child(linear, "second")(x)

    plain = spine.init(model)(key, jnp.ones(3), lambda fn: fn)
    equal(spine.init(model)(key, jnp.ones(3), lift), plain)
    assert len({array.tobytes() for array in map(jax.device_get, plain[0][0])}) == 3


def test_initial_values_are_computed_outside_the_loop() -> None:
    jaxpr = jax.make_jaxpr(spine.init(deep(linear)))(key, jnp.ones((2, 3)), None)
    (loop,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert "random" in str(jaxpr)
    assert "random" not in str(loop.params["jaxpr"])


def test_what_is_passed_in_stays_as_it_was() -> None:
    variables = {("params", "w"): jnp.eye(3), ("state", "n"): jnp.zeros(())}
    before = dict(variables)
    _, after = spine.apply(spine.jit(linear), ("state",))(variables, jnp.ones(3))
    assert variables == before
    assert after == {("state", "n"): 1.0}


def test_a_lift_returns_only_what_changed() -> None:
    seen = []

    def look(body: Any, groups: Any, keys: Any, x: Any) -> Any:
        result, changes = body(groups["all"], keys["all"], x)
        seen.append((set(changes.created), set(changes.written)))
        return result, changes

    lifted = spine.transformation(look, spine.ALL, spine.ALL, "look")(linear)
    _, variables = spine.init(lifted)(key, jnp.ones(3))
    spine.apply(lifted, True)(variables, jnp.ones(3))
    assert seen == [({("params", "w"), ("state", "n")}, {("state", "n")}), (set(), {("state", "n")})]


def test_after_an_error_nothing_has_changed() -> None:
    def fails(scope: Any, x: Any) -> Any:
        linear(scope, x)
        raise ValueError("late")

    def model(scope: Any, x: Any, first: Fn | None = None) -> Any:
        if first is not None:
            with pytest.raises(ValueError, match="late"):
                first(scope, x)
        return linear(scope, x)

    equal(spine.init(model)(key, jnp.ones(3), spine.jit(fails)), spine.init(model)(key, jnp.ones(3)))


def test_frozen_variables_have_no_gradient() -> None:
    def loss(variables: Any, lift: Any) -> Any:
        return spine.apply(lift(linear), True)(variables, jnp.ones(3))[0].sum()

    variables = {("params", "w"): jnp.eye(3), ("state", "n"): jnp.zeros(())}
    assert jax.grad(loss)(variables, lambda fn: fn)["params", "w"].any()
    assert not jax.grad(loss)(variables, spine.frozen)["params", "w"].any()


def test_the_gradient_is_with_respect_to_the_variables_of_the_filter() -> None:
    def product(scope: Any) -> Any:
        a = scope.variable("a", "a", lambda: jnp.float32(2)).value
        return a * scope.param("w", lambda key: jnp.float32(3))

    a, w = ("a", "a"), ("params", "w")
    assert spine.init(spine.grad(product))(key)[0] == {w: 2}
    assert spine.init(spine.grad(product, wrt=True))(key)[0] == {a: 3, w: 2}
    assert spine.apply(spine.grad(product, wrt="a"))({a: jnp.float32(5), w: jnp.float32(7)}) == {a: 7}


def test_a_body_shares_the_variables_of_its_scope_but_not_the_children() -> None:
    def model(scope: Any, name: str) -> Any:
        w = scope.param("w", jax.random.normal, (3,))
        scope.child(linear, "linear")(w)
        lifted = spine.jit(lambda scope: (scope.param("w", jnp.ones), scope.child(linear, name)(w))[0])
        return w, lifted(scope)

    (w, same), _ = spine.init(model)(key, "other")
    assert (w == same).all()
    with pytest.raises(spine.LiftError, match=r"'linear'.* is in use"):
        spine.init(model)(key, "linear")
    with pytest.raises(spine.LiftError, match=r"'late'.* is in use"):
        spine.init(lambda scope: (spine.jit(lambda scope: model(scope, "late"))(scope), scope.child(linear, "late")))(
            key
        )


def test_a_predicate_lifts_single_variables() -> None:
    def pair(scope: Any) -> Any:
        return [scope.param(name, jax.random.normal, ()) for name in "ab"]

    alone = spine.vmap(
        pair, variable_axes={lambda path: path[-1] == "a": None, "params": 0}, split_rngs={"params": True}, axis_size=2
    )
    with pytest.raises(spine.LiftError, match="'a'"):
        spine.init(alone)(key)
    same = {("params", "a"): jnp.zeros(())}
    _, variables = spine.apply(lambda scope: alone(scope), True)(same, rngs={"params": key})
    assert jax.tree.map(jnp.shape, variables) == {("params", "a"): (), ("params", "b"): (2,)}


# -- errors ------------------------------------------------------------------------------------------------------------


def reads_the_input(scope: Any, x: Any, _: Any = None) -> Any:
    return scope.variable("state", "v", lambda: x).value, None


def writes(scope: Any, x: Any, _: Any = None) -> Any:
    linear(scope, x)
    return x, None


def twice(scope: Any) -> None:
    for _ in range(2):
        scope.param("w", jax.random.normal)


def ended(scope: Any) -> None:
    kept: list[Any] = []
    spine.jit(lambda scope: kept.append(scope))(scope)
    kept[0].make_rng("params")


def reads_a_carried_value(scope: Any, x: Any, _: Any) -> Any:
    def inner(scope: Any, x: Any) -> Any:
        a = scope.variable("state", "a", lambda: 0.0)  # the same in all elements until it is written
        scope.variable("log", "b", lambda: a.value + 1)
        a.value += x.sum()
        return x

    return spine.vmap(inner, variable_axes={("state", "log"): 0}, split_rngs={})(scope, x), None


def looped(fn: Fn, **options: Any) -> Fn:
    return lambda scope, x: spine.scan(fn, length=2, **options)(scope, x, None)


WRONG: dict[str, tuple[Fn, str]] = {
    "a name twice": (lambda scope, x: twice(scope), "in use"),
    "a scope after its lift": (lambda scope, x: ended(scope), "/jit/: this scope has ended"),
    "a stream that is not lifted": (
        spine.vmap(linear, variable_axes={"params": None, "state": 0}, split_rngs={}),
        "there is no stream 'params'",
    ),
    "a variable that is not lifted": (
        spine.vmap(linear, variable_axes={"params": None}, split_rngs={"params": False}),
        "'n'.* does not exist, and cannot be created",
    ),
    "a shared value of an element": (
        spine.vmap(reads_the_input, variable_axes={"state": None}, split_rngs={}),
        "'v'.* may only depend on what all elements share",
    ),
    "a shared key of an element": (
        spine.vmap(linear, variable_axes={"params": None, "state": 0}, split_rngs={"params": True}),
        "'w'.* may only depend on what all elements share",
    ),
    "a shared value of an iteration": (
        looped(reads_the_input, variable_broadcast="state", split_rngs={}),
        "'v'.* may only depend on what all iterations share",
    ),
    "a stacked value of the carry": (
        looped(reads_the_input, variable_axes={"state": 0}, split_rngs={}),
        "'v'.* not on the carry",
    ),
    "a stacked value of a carried one": (
        looped(reads_a_carried_value, variable_axes={"log": 0}, variable_carry="state", split_rngs={}),
        "'b'.* not on the carry",
    ),
    "a shared value that is written": (
        looped(writes, variable_broadcast=True, split_rngs={"params": False}),
        "'n'.* none can write it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_says_what_is_wrong(case: str) -> None:
    fn, message = WRONG[case]
    with pytest.raises(spine.LiftError, match=message):
        spine.init(fn)(key, jnp.ones((2, 3)))


def test_what_is_immutable_cannot_be_written() -> None:
    variables = {("params", "w"): jnp.eye(3), ("state", "n"): jnp.zeros(())}
    with pytest.raises(spine.LiftError, match=r"/jit/: .*'n'.* is immutable"):
        spine.apply(spine.jit(linear))(variables, jnp.ones(3))
    with pytest.raises(spine.LiftError, match=r"/: .*'w'.* does not exist"):
        spine.apply(linear, "state")({}, jnp.ones(3))


# -- its page ----------------------------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_the_page_shows_the_whole_file() -> None:
    source, page = FILE.read_text(encoding="utf-8"), (ROOT / "docs" / "spine.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shown = "".join(block for block in blocks if block in source)
    code = source.removeprefix('"""' + spine.__doc__ + '"""')
    assert lines(shown) == lines(code), "the code in docs/spine.md and examples/spine.py differs"


def test_the_page_shows_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    spine.main()
    assert f"```text\n{capsys.readouterr().out}```" in (ROOT / "docs" / "spine.md").read_text(encoding="utf-8")

"""Scopes and lifts against `flax.core`: the same key gives the same draws and the same variables, bit for bit.

flax has its separator fix on (see conftest.py). Programs here use what both sides' scopes have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore

flax = pytest.importorskip("flax")
core = pytest.importorskip("flax.core")
lift = pytest.importorskip("flax.core.lift")

RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
X = jnp.arange(3.0)


def assert_same_bits(ours: Any, theirs: Any) -> None:
    theirs = core.unfreeze(theirs) if isinstance(theirs, core.FrozenDict) else theirs
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, mine), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        mine, other = (jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
                       for leaf in (mine, other))  # fmt: skip
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), jax.tree_util.keystr(path)
        assert np.asarray(mine).tobytes() == np.asarray(other).tobytes(), jax.tree_util.keystr(path)


def test_the_separator_fix_is_on() -> None:
    assert flax.config.flax_fix_rng_separator


# -- keys --------------------------------------------------------------------------------------------------------------


def nested_draws(scope: Any) -> list[Any]:
    """Draws at many places: long paths, digits, names that run together without separators, counts over a byte."""
    found = [scope.make_rng("params"), scope.make_rng("dropout"), scope.make_rng("params")]
    for path in (("a", "b"), ("ab",), ("Dense_0",), ("0", "1", "10"), ("é" * 30, "x" * 70), ("a1", "b2")):
        below = scope
        for name in path:
            below = below.push(name)
        found += [below.make_rng(name) for name in ("params", "dropout", "params")]
    counted = scope.push("many")
    return [*found, *[counted.make_rng("dropout") for _ in range(260)][253:]]


@pytest.mark.parametrize(
    ("make", "impl"),
    [(jax.random.key, "threefry2x32"), (jax.random.key, "rbg"), (jax.random.PRNGKey, "threefry2x32")],
)
def test_keys_of_nested_paths(make: Callable[..., Any], impl: str) -> None:
    rngs = {"params": make(7, impl=impl), "dropout": make(8, impl=impl)}
    assert_same_bits(liftcore.apply(nested_draws)({}, rngs=rngs), core.apply(nested_draws)({}, rngs=rngs))


def rewound_draws(scope: Any) -> list[Any]:
    """The keys that a rewound scope draws, and those that the scopes draw that were there before."""
    kept = scope.push("a")
    found = [scope.make_rng("dropout"), kept.make_rng("dropout")]
    back = scope.rewound(rewind_rngs=True)
    for each in (back, back.push("a"), kept, scope, back.rewound(), back.rewound(rewind_rngs=True), back):
        found += [each.make_rng("dropout"), each.make_rng("params")]
    return found


def test_keys_of_rewound_scopes() -> None:
    assert_same_bits(liftcore.apply(rewound_draws)({}, rngs=RNGS), core.apply(rewound_draws)({}, rngs=RNGS))


def test_a_sequence_that_was_never_given() -> None:
    def draws(scope: Any) -> list[Any]:
        below = scope.push("below")
        return [one.make_rng(name) for one in (scope, below) for name in ("noise", "params", "dropout", "noise")]

    for rngs in ({"params": jax.random.key(0)}, RNGS):
        assert_same_bits(liftcore.apply(draws)({}, rngs=rngs), core.apply(draws)({}, rngs=rngs))


# -- variables ---------------------------------------------------------------------------------------------------------


def dense(scope: Any, x: Any, features: int = 3) -> Any:
    w = scope.param("w", jax.random.normal, (x.shape[-1], features))
    return jnp.tanh(x @ w + scope.param("b", jax.random.normal, (features,)))


def block(scope: Any, x: Any) -> Any:
    """Parameters, a written variable, draws, children under given and automatic names."""
    count = scope.variable("state", "n", lambda: jnp.zeros((), jnp.int32))
    count.value += 1
    x = scope.child(dense, "first")(x)
    x = scope.child(dense, prefix="auto_")(x) + scope.child(dense, prefix="auto_")(x)
    return x * jax.random.bernoulli(scope.make_rng("dropout"), 0.5, (3,))


def test_init_and_apply() -> None:
    (y, variables), (expected, others) = liftcore.init(block)(RNGS, X), core.init(block)(RNGS, X)
    assert_same_bits((y, variables), (expected, core.unfreeze(others)))
    later = {"dropout": jax.random.key(5)}
    ours = liftcore.apply(block, mutable=["state"])(variables, X, rngs=later)
    theirs = core.apply(block, mutable=["state"])(others, X, rngs=later)
    assert_same_bits(ours, (theirs[0], core.unfreeze(theirs[1])))


# -- lifts -------------------------------------------------------------------------------------------------------------


def everything(side: Any, model: Callable[..., Any]) -> Callable[[], Any]:
    """All that `init` and `apply` give, as one program."""

    def run() -> Any:
        y, variables = side.init(model)(RNGS, X)
        variables = variables if isinstance(variables, dict) else core.unfreeze(variables)
        later = {"params": jax.random.key(4), "dropout": jax.random.key(5)}
        again, mutated = side.apply(model, mutable=["state"])(variables, X, rngs=later)
        return y, variables, again, mutated if isinstance(mutated, dict) else core.unfreeze(mutated)

    return jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})


def assert_model_agrees(model: Callable[[Any], Callable[..., Any]]) -> None:
    ours, theirs = liftcore, lift
    assert_same_bits(everything(liftcore, model(ours))(), everything(core, model(theirs))())


AXES = {"params": 0, "state": 0}


@pytest.mark.parametrize(
    ("axes", "split"),
    [
        (AXES, {"params": True, "dropout": True}),
        ({"params": 1, "state": 0}, {"params": True, "dropout": False}),
        ({"params": None, "state": 0}, {"params": False, "dropout": True}),
    ],
)
def test_vmap(axes: dict[str, Any], split: dict[str, bool]) -> None:
    def model(side: Any) -> Callable[..., Any]:
        mapped = side.vmap(block, in_axes=None, axis_size=4, variable_axes=axes, split_rngs=split)

        def run(scope: Any, x: Any) -> Any:
            y = scope.child(mapped, "mapped")(x)
            return y, jax.random.key_data(scope.make_rng("dropout")), scope.child(dense, "after")(x)

        return run

    assert_model_agrees(model)


def test_vmap_in_vmap() -> None:
    def model(side: Any) -> Callable[..., Any]:
        options: dict[str, Any] = {
            "in_axes": None,
            "variable_axes": AXES,
            "split_rngs": {"params": True, "dropout": True},
        }
        inner = side.vmap(block, axis_size=2, **options)
        outer = side.vmap(lambda scope, x: scope.child(inner, "inner")(x), axis_size=3, **options)
        return lambda scope, x: scope.child(outer, "outer")(x)

    assert_model_agrees(model)


@pytest.mark.parametrize(("reverse", "axis"), [(False, 0), (True, 1)])
def test_scan(reverse: bool, axis: int) -> None:
    def step(scope: Any, x: Any, shift: Any) -> Any:
        y = scope.child(dense, "inner")(x) + shift
        noise = jax.random.normal(scope.make_rng("dropout"), (3,))
        return y + noise, jax.random.key_data(scope.make_rng("params"))

    def model(side: Any) -> Callable[..., Any]:
        options: dict[str, Any] = {"check_constancy_invariants": False} if side is lift else {}
        split = {"params": True, "dropout": True}
        loop = side.scan(step, reverse=reverse, variable_axes={"params": axis}, split_rngs=split, **options)

        def run(scope: Any, x: Any) -> Any:
            y = scope.child(loop, "loop")(x, jnp.arange(4.0))
            return y, jax.random.key_data(scope.make_rng("dropout")), scope.child(dense, "after")(x)

        return run

    assert_model_agrees(model)


def test_scan_over_shared_parameters_in_apply() -> None:
    def step(scope: Any, x: Any, shift: Any) -> Any:
        count = scope.variable("state", "n", lambda: jnp.zeros((), jnp.int32))
        count.value += 1
        return scope.child(dense, "inner")(x) + shift * count.value, scope.has_variable("params", "w")

    def model(side: Any) -> Callable[..., Any]:
        options: dict[str, Any] = {"check_constancy_invariants": False} if side is lift else {}
        kinds: dict[str, Any] = {"variable_broadcast": "params", "variable_carry": "state"}
        return side.scan(step, split_rngs={"params": False}, **kinds, **options)  # type: ignore[no-any-return]

    params = {"inner": liftcore.init(dense)(jax.random.key(0), X)[1]["params"]}
    variables = {"params": params, "state": {"n": jnp.int32(3)}}
    ours, theirs = (
        jax.jit(lambda side=side, of=of: side.apply(model(of), mutable=["state"])(variables, X, jnp.arange(4.0)))()
        for side, of in ((liftcore, liftcore), (core, lift))
    )
    assert_same_bits(ours, (theirs[0], core.unfreeze(theirs[1])))


def test_remat() -> None:
    def model(side: Any) -> Callable[..., Any]:
        def run(scope: Any, x: Any) -> Any:
            y = scope.child(side.remat(block), "first")(x)
            y = scope.child(side.remat(dense), "second")(y)
            return y, jax.random.key_data(scope.make_rng("dropout"))

        return run

    assert_model_agrees(model)


def test_remat_in_scan_in_vmap() -> None:
    def model(side: Any) -> Callable[..., Any]:
        options: dict[str, Any] = {"check_constancy_invariants": False} if side is lift else {}
        common: dict[str, Any] = {"variable_axes": AXES, "split_rngs": {"params": True, "dropout": True}}
        inner = side.remat(block)
        loop = side.scan(lambda scope, x, _: (scope.child(inner, "block")(x), None), length=3, **common, **options)
        elements = side.vmap(
            lambda scope, x: scope.child(loop, "loop")(x, None)[0], in_axes=None, axis_size=2, **common
        )
        return lambda scope, x: scope.child(elements, "elements")(x)

    assert_model_agrees(model)


def test_a_lifted_jit_is_the_unlifted_function_of_flax() -> None:
    ours = everything(liftcore, liftcore.jit(block))()
    assert_same_bits(ours, everything(core, block)())

"""A lifted `jit`, lowered and compiled ahead of time, does what a call of it does."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.arange(3.0)
VARIABLES = {"params": {"w": jnp.ones(3) * 2}, "state": {"n": jnp.zeros((), int)}}

runs: list[str] = []


def layer(scope: Scope, x: Any, times: int = 1) -> Any:
    runs.append("/".join(scope.path))
    w = scope.param("w", jax.random.normal, (3,))
    n = scope.variable("state", "n", lambda: jnp.zeros((), int))
    n.value += times
    scope.sow("seen", "x", x.sum())
    return x * w * times + jax.random.normal(scope.make_rng("dropout")) + jax.random.normal(scope.make_rng("dropout"))


@liftcore.jit
def module_level(scope: Scope, x: Any) -> Any:
    return x + 1


def bound(variables: Any = VARIABLES) -> Scope:
    return liftcore.bind(variables, {"params": KEY, "dropout": jax.random.key(1)}, mutable=["state", "seen", "params"])


def same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def both(act: Callable[[Scope, Any], Any], variables: Any = VARIABLES) -> None:
    """Checks a call and a compiled call, with what they leave in their scopes."""
    jitted = liftcore.jit(layer, static_argnames="times")
    outcomes = []
    for call in (jitted, lambda scope, *args, **kwargs: jitted.lower(scope, *args, **kwargs).compile()(scope, *args)):
        scope = bound(variables)
        outcomes.append((act(scope, call), scope.variables(), jax.random.uniform(scope.make_rng("dropout"))))
    same(*outcomes)


@pytest.mark.parametrize("variables", [VARIABLES, {}], ids=["apply", "init"])
def test_a_compiled_call_gives_draws_and_writes_what_a_call_does(variables: Any) -> None:
    both(lambda scope, call: call(scope, X), variables)


def test_it_serves_any_place_of_a_model_with_the_keys_of_that_place() -> None:
    jitted = liftcore.jit(layer)
    tree = {"params": dict.fromkeys("ab", VARIABLES["params"]), "state": dict.fromkeys("ab", VARIABLES["state"])}
    compiled = jitted.lower(bound(tree).push("a"), X).compile()
    scope, other = bound(tree), bound(tree)
    for name in "ab":
        same(compiled(scope.push(name), X), jitted(other.push(name), X))
    same(scope.variables(), other.variables())
    assert not np.array_equal(*[compiled(bound(tree).push(name), X) for name in "ab"])


def test_the_second_call_of_one_scope_draws_other_keys() -> None:
    def noise(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", scope.get_variable("state", "n") + 1)
        return x + jax.random.normal(scope.make_rng("dropout"))

    scope, other = bound(), bound()
    compiled = liftcore.jit(noise).lower(scope, X).compile()
    for _ in range(2):
        same(compiled(scope.rewound(), X), noise(other.rewound(), X))
    assert int(scope.get_variable("state", "n")) == 2


def test_lowering_runs_the_body_once_for_all_and_changes_nothing() -> None:
    scope, jitted = bound(), liftcore.jit(layer)
    before = jax.tree.map(np.asarray, scope.variables())
    runs.clear()
    lowered = jitted.lower(scope, X[None])
    jitted.lower(scope, X[None])
    jitted(scope.rewound(), X[None])
    assert len(runs) == 1
    same(jax.tree.map(np.asarray, bound().variables()), before)
    assert "stablehlo" in lowered.as_text()
    assert "HloModule" in lowered.compile().as_text()


def test_types_are_enough_to_lower_and_compile() -> None:
    compiled = liftcore.jit(layer).lower(bound(), jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    same(compiled(bound(), X), liftcore.jit(layer)(bound(), X))


def test_what_it_tells_of_costs_is_what_jax_tells() -> None:
    lowered = liftcore.jit(layer).lower(bound(), X)
    compiled = lowered.compile({"xla_embed_ir_in_executable": True})
    assert lowered.cost_analysis() == lowered.stage.cost_analysis()
    assert compiled.cost_analysis() == compiled.stage.cost_analysis()
    assert compiled.memory_analysis().argument_size_in_bytes > 0


def test_static_arguments_are_part_of_what_it_was_compiled_for() -> None:
    jitted = liftcore.jit(layer, static_argnames="times")
    compiled = jitted.lower(bound(), X, times=2).compile()
    same(compiled(bound(), X, times=2), jitted(bound(), X, times=2))
    with pytest.raises(LiftArgumentError, match=r"jit\(layer\) at /: .* static arg.* Lower it again"):
        compiled(bound(), X, times=3)


def test_a_function_that_no_key_stands_for_is_compiled_ahead_too() -> None:
    held = jnp.ones(3)
    jitted = liftcore.jit(functools.partial(lambda held, scope, x: x + held + scope.get_variable("params", "w"), held))
    same(jitted.lower(bound(), X).compile()(bound(), X), X + 3)


@pytest.mark.parametrize("wrong", ["dtype", "shape", "variables", "structure"])
def test_other_types_and_other_variables_are_an_error_that_loses_nothing(wrong: str) -> None:
    compiled = liftcore.jit(layer).lower(bound(), X).compile()
    scope = bound({"params": {"w": jnp.ones(3), "v": 1.0}} if wrong == "variables" else VARIABLES)
    x = {"dtype": jnp.arange(3), "shape": jnp.ones(4), "variables": X, "structure": (X,)}[wrong]
    with pytest.raises(LiftArgumentError, match=r"jit\(layer\) at /: it was compiled for .*`jitted\.lower\(scope, "):
        compiled(scope, x)
    assert scope.make_rng("dropout") == bound().make_rng("dropout")


def test_donated_arrays_are_gone_after_the_compiled_call_only() -> None:
    jitted = liftcore.jit(layer, donate_argnums=1, donate_variables="state")
    scope, x = bound(jax.tree.map(jnp.copy, VARIABLES)), jnp.arange(3.0)
    count = scope.get_variable("state", "n")
    compiled = jitted.lower(scope, x).compile()
    assert not x.is_deleted()
    assert not count.is_deleted()
    compiled(scope, x)
    assert x.is_deleted()
    assert count.is_deleted()
    assert int(scope.get_variable("state", "n")) == 1


def test_it_can_be_lowered_inside_another_transformation_and_over_no_scopes() -> None:
    texts = []

    def model(scope: Scope, x: Any) -> Any:
        texts.append(liftcore.jit(layer).lower(scope, x).as_text())
        return layer(scope, x)

    jax.eval_shape(liftcore.init(model), {"params": KEY, "dropout": KEY}, X)
    assert "stablehlo" in texts[0]
    plain = liftcore.jit(lambda scopes, x: x * 2)
    same(plain.lower((), X).compile()((), X), X * 2)
    assert "stablehlo" in jax.jit(lambda x: plain((), x)).lower(X).as_text()


def test_jax_does_not_take_the_method_for_its_own() -> None:
    applied = jax.jit(liftcore.apply(module_level))
    assert applied.lower({}, X).compile()({}, X).shape == (3,)


def test_it_is_a_function_to_classes_copies_and_pickles() -> None:
    class Holder:
        run = module_level

    holder = Holder()
    assert holder.run.__self__ is holder  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy(module_level) is module_level
    assert module_level.__name__ == "module_level"
    assert liftcore.static_key((module_level,)) == liftcore.static_key((module_level,))

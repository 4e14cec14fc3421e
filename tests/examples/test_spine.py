"""`examples/spine.py` keeps the laws that it claims, and its numbers are those of the library."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore.traverse_util import flatten_dict

FILE = Path(__file__).parents[2] / "examples" / "spine.py"


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


@pytest.mark.parametrize("names", [(name,) for name in LIFTS] + [*itertools.product(LIFTS, LIFTS)], ids=" of ".join)
def test_the_numbers_of_lifts_are_those_of_the_library(names: tuple[str, ...]) -> None:
    check(nested(*names), jnp.array([0.5, -1.0, 2.0]))

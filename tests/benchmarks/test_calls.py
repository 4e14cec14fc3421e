"""How many functions of Python an eager call runs, which is what it costs."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import equinox_like
import liftcore
import nnx_like
from benchmarks.items.objects import called_on
from benchmarks.measure import without_collection
from benchmarks.models import objects

OURS = tuple(str(Path(package.__file__ or "").parent) for package in (liftcore, equinox_like, nnx_like))


def calls(fn: Callable[[], Any], files: tuple[str, ...] = ("",)) -> Counter[str]:
    """How often each function of some files runs in a call, where all is done already that is done once for all."""
    for _ in range(3):
        fn()
    found: Counter[str] = Counter()
    by_hash = ("__eq__", "__hash__")  # called as the addresses of objects fall together

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(files) and frame.f_code.co_name not in by_hash:
            found[frame.f_code.co_qualname] += 1

    with without_collection():
        sys.setprofile(note)
        try:
            fn()
        finally:
            sys.setprofile(None)
    return found


def filtered(count: int) -> Callable[[], Any]:
    model = {"layers": {f"w{number}": jnp.ones(2) for number in range(count)}, "act": jnp.tanh}
    run = equinox_like.filter_jit(lambda model, x: model["act"](x * model["layers"]["w0"]))
    return lambda: run(model, jnp.ones(2))


def test_a_filtered_call_looks_at_each_array_once_and_at_nothing_else() -> None:
    few, many = (calls(filtered(count), OURS) for count in (2, 300))
    more = {name: many[name] - few[name] for name in many if many[name] != few[name]}
    assert more == {"is_traceable": 298, "is_dynamic": 298}


def over_no_scopes() -> Callable[[Any], Any]:
    run = liftcore.jit(lambda scopes, x: 2 * x)
    return lambda x: run((), x)


def over_a_scope() -> Callable[[Any], Any]:
    scope = liftcore.bind({"params": {"w": jnp.ones(())}, "state": {"n": jnp.zeros(())}}, mutable=["state"])
    run = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"))
    return lambda x: run(scope, x)


@pytest.mark.parametrize("make", [over_no_scopes, over_a_scope])
def test_arguments_of_other_types_later_are_called_as_fast(make: Callable[[], Callable[[Any], Any]]) -> None:
    run, xs = make(), [jnp.ones(size) for size in (2, 3, 4, 2)]
    found = [sum(calls(functools.partial(run, x)).values()) for x in xs]
    assert found == found[:1] * 4


def over_a_scope_that_is_read() -> Callable[[Any], Any]:
    scope = liftcore.bind({"params": {"w": jnp.full((), 2.0)}})
    run = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"))
    return lambda x: run(scope, x)


@pytest.mark.parametrize("make", [over_no_scopes, over_a_scope_that_is_read])
def test_a_call_that_only_reads_goes_through_no_stage_of_a_lift(make: Callable[[], Callable[[Any], Any]]) -> None:
    run, x = make(), jnp.ones(3)
    stages = ("dedupe", "filter_", "Body.__init__", "commit")
    assert not [name for name in calls(functools.partial(run, x)) if name in stages]
    assert jnp.array_equal(run(x), jnp.full(3, 2.0))


class Listed(nnx_like.Module):
    """Layers in a list of Python, with an optimizer for them."""

    def __init__(self, layers: int) -> None:
        self.layers = [objects.models(nnx_like).Pair() for _ in range(layers)]
        self.optimizer = nnx_like.Optimizer(self.layers[0], optax.adam(0.1), wrt=nnx_like.Param)


@pytest.mark.parametrize("make", [objects.models(nnx_like).Wide, Listed])
@pytest.mark.parametrize("what", ["reads one", "writes all"])
def test_a_call_over_objects_runs_no_python_for_each_of_them(what: str, make: Callable[[int], Any]) -> None:
    few, many = (calls(called_on(nnx_like, make(layers))[what], OURS) for layers in (1, 150))
    assert few == many
    assert few.total() < 120


def test_a_call_runs_no_python_for_each_leaf_of_a_plain_argument_or_result() -> None:
    model, run = nnx_like.Dict(w=nnx_like.Param(jnp.ones(2))), nnx_like.jit(lambda model, arrays: arrays)
    few, many = (
        calls(functools.partial(run, model, {f"w{number}": jnp.ones(2) for number in range(count)}), OURS)
        for count in (2, 300)
    )
    assert few == many

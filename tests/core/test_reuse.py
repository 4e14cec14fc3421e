"""Traces of loops and branches outside `jit`: which count as equal, and which are not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

from liftcore.pipeline import once
from liftcore.pipeline.equations import opened
from liftcore.pipeline.reuse import Equations

X = jnp.arange(3.0)


def traced(fn: Callable[..., Any], *args: Any) -> Equations:
    return Equations(opened(jax.make_jaxpr(fn)(*args)))


def looping(length: int, step: float = 1.0) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda carry, _: (carry + step, None), x, length=length)[0]


def marked(x: Any) -> Any:
    with set_xla_metadata(mark="a"):
        return x + 1.0


DIFFERENT: dict[str, tuple[Equations, Equations]] = {
    "outputs": (traced(lambda x: (x + 1, x * 2)[0], X), traced(lambda x: (x + 1, x * 2)[1], X)),
    "order of outputs": (traced(lambda x, y: (x, y), X, X), traced(lambda x, y: (y, x), X, X)),
    "inputs": (traced(lambda x, y: x - y, X, X), traced(lambda x, y: y - x, X, X)),
    "types": (traced(lambda x: x + 1, X), traced(lambda x: x + 1, X.astype(int))),
    "weak types": (traced(lambda x: x + 1, X[0]), traced(lambda x: x + 1, 1.0)),
    "zeros": (traced(lambda x: x * 0.0, X), traced(lambda x: x * -0.0, X)),
    "parameters": (traced(looping(3), X), traced(looping(4), X)),
    "bodies": (traced(looping(3, 1.0), X), traced(looping(3, 2.0), X)),
    "operations": (traced(jnp.sin, X), traced(jnp.cos, X)),
    "contexts": (traced(marked, X), traced(lambda x: x + 1.0, X)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_traces_that_compute_something_else_differ(case: str) -> None:
    one, other = DIFFERENT[case]
    assert one != other


def test_equal_equations_of_other_functions_are_equal() -> None:
    one, other = traced(looping(3), X), traced(lambda x: looping(3)(x), X)
    assert (one, hash(one)) == (other, hash(other))
    held = [traced(lambda x, y=y: x + y, X) for y in (X, 2 * X)]  # what they close over is an input
    assert held[0] == held[1]


def test_effects_are_those_of_each_call() -> None:
    seen: list[str] = []

    def telling(text: str) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            jax.debug.callback(lambda _: seen.append(text), x)
            return x

        return run

    for text in "ab":
        once(telling(text), X)
    jax.effects_barrier()
    assert seen == ["a", "b"]

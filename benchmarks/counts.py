"""Exact counts, which tests can assert: equations, operations of compiled programs, runs of a function."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core as jex

__all__ = ["Counted", "compiled", "equations", "named", "program"]


class Counted:
    """A function, and how often its Python ran."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.runs = fn, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        self.runs += 1
        return self.fn(*args, **kwargs)


def compiled(fn: Callable[..., Any], *args: Any) -> int:
    """How many programs are compiled while a function runs."""
    before = len(_compilations())
    jax.block_until_ready(fn(*args))
    return len(_compilations()) - before


@functools.cache
def _compilations() -> list[float]:
    """The seconds of each compilation since this was first called: a listener of JAX cannot be taken away alone."""
    found: list[float] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    return found


def equations(fn: Callable[..., Any], *args: Any) -> int:
    """How many equations the trace of a function has, those of inner jaxprs included."""
    return sum(1 for _ in _all(jax.make_jaxpr(fn)(*args).jaxpr))


def named(fn: Callable[..., Any], primitive: str, *args: Any) -> int:
    """How many of them are of one primitive."""
    return sum(eqn.primitive.name == primitive for eqn in _all(jax.make_jaxpr(fn)(*args).jaxpr))


def _all(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _all(value.jaxpr if isinstance(value, jex.ClosedJaxpr) else value)


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, jex.Jaxpr | jex.ClosedJaxpr)


def program(fn: Callable[..., Any], *args: Any) -> str:
    """The optimized program of a function, without what only tells where in the source it comes from."""
    compiled = jax.jit(lambda *args: fn(*args)).lower(*args).compile()  # so that all have arguments of the same names
    text = compiled.as_text() or ""
    lines = re.sub(r", metadata=\{[^}]*\}", "", text).splitlines()
    return "\n".join(line for line in lines if " = " in line)

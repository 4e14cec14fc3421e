"""What tests of wrong uses share: modules that do what a function says, and how a row of a table is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import LiftError
from linen_like.lifecycle.context import context

KEY, X = jax.random.key(0), jnp.ones((2, 3))
DENSE = nn.Dense(3).init(KEY, X)
BY_LANE: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}

Table = dict[str, tuple[Callable[[], Any], type[LiftError], str]]
"""By what is done wrong: what does it, the class of the error, and its text as `where | part of what | part of fix`."""

PRIVATE = ("Tracer", "ArrayImpl", "PRNGKeyArray", " object at 0x")
"""What JAX calls its own, and users do not know."""


class Net(nn.Module):
    """Does what a function says in a compact call."""

    act: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.act(self, x)


class Plain(nn.Module):
    """Does what a function says in a call that is not compact, after a `setup`."""

    act: Callable[..., Any]

    def setup(self) -> None:
        self.dense = nn.Dense(3)
        self.blocks = {"a": nn.Dense(3)}

    def __call__(self, x: Any) -> Any:
        return self.act(self, x)


class InSetup(nn.Module):
    """Does what a function says in `setup`."""

    act: Callable[..., Any]
    shared = nn.Dense(3)

    def setup(self) -> None:
        self.act(self, X)

    def __call__(self, x: Any) -> Any:
        return self.shared(x)


class Loop(nn.Module):
    """Does what a function says in the body of a loop."""

    act: Callable[..., Any]

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        return self.act(self, carry, x)


def compact(act: Callable[..., Any], variables: Any = None, **options: Any) -> Any:
    """Runs `init`, or `apply` where variables are given, of a module that does what a function says."""
    return Net(act).init(KEY, X) if variables is None else Net(act).apply(variables, X, **options)


def plain(act: Callable[..., Any]) -> Any:
    return Plain(act).init(KEY, X)


def scanned(act: Callable[..., Any], xs: Any = None, **options: Any) -> Any:
    return nn.scan(Loop, **{**BY_LANE, "length": 2, **options})(act).init(KEY, X, xs)


def check(row: tuple[Callable[[], Any], type[LiftError], str]) -> None:
    """Checks that a wrong use is told of as its row says, and leaves no context behind."""
    do, kind, text = row
    with pytest.raises(kind) as caught:
        do()
    error = caught.value
    where, what, fix = text.split(" | ")
    assert type(error) is kind
    assert error.where == where
    assert what in error.what
    assert fix in error.fix
    assert str(error) == f"{error.where}: {error.what} {error.fix}"
    assert error.what.endswith(".")
    assert error.fix.endswith(".")
    assert not any(name in str(error) for name in PRIVATE)
    assert context.modules == context.captures == [None]

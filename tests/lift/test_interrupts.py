"""A KeyboardInterrupt stays one; JAX turns it into a ValueError if it arrives while structures are compared."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.generation import generate
from tests.generation.models import LanguageModel

X = jnp.ones(3)
VARIABLES = {"params": {"w": X}}


class Tag:
    """A static value; it is compared, or hashed, when the user presses Ctrl-C."""

    interrupted = ""

    def __eq__(self, other: object) -> bool:
        if Tag.interrupted == "eq":
            raise KeyboardInterrupt
        return isinstance(other, Tag)

    def __hash__(self) -> int:
        if Tag.interrupted == "hash":
            raise KeyboardInterrupt
        return 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Box:
    x: Any
    tag: Any = dataclasses.field(default_factory=Tag, metadata={"static": True})


class Linen(nn.Module):
    tag: Any

    @nn.jit
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x * self.param("w", lambda key: X)


class Generating(LanguageModel):
    tag: Any = None


class Object(nnx.Module):
    def __init__(self) -> None:
        self.w, self.tag = nnx.Param(X), Tag()


class Tree(eqx.Module):
    w: Any
    tag: Any = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.w * x


class Kinds(pax.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("w", X)
        self.tag = Tag()

    def __call__(self, x: Any) -> Any:
        return self.w * x


def layer(scope: Any, box: Any) -> Any:
    return Box(box.x * scope.param("w", lambda key: X), box.tag)


def scanned(scope: Any, box: Any) -> Any:
    body = liftcore.scan(lambda scope, c, _: (layer(scope, c), None), variable_broadcast="params", length=2)
    return body(scope, box, None)


def called(lift: Callable[..., Any]) -> Callable[[], Any]:
    run = liftcore.apply(lift(layer))
    return lambda: run(VARIABLES, Box(X))


def _calls() -> dict[str, Callable[[], Any]]:
    scope, in_scope, without = liftcore.bind(VARIABLES), liftcore.jit(layer), liftcore.jit(lambda _, box: box)
    static = liftcore.jit(lambda _, tag, x: x, static_argnums=1)
    of_object, of_tree = nnx.jit(lambda m, x: m.w * x), eqx.filter_jit(lambda m, x: m(x))
    of_kinds, gradient = pax.lift(liftcore.jit, lambda m, x: m(x)), pax.value_and_grad(lambda m, x: m(x).sum())
    prompts, variables = jnp.array([[1, 2]]), LanguageModel().init(jax.random.key(0), jnp.zeros((1, 4), int))
    return {
        "jit": called(liftcore.jit),
        "remat": called(liftcore.remat),
        "scan": called(lambda _: scanned),
        "cond": called(lambda body: lambda scope, box: liftcore.cond(body, body)(scope, True, box)),
        "jit of a scope": lambda: in_scope(scope, Box(X)),
        "jit without scopes": lambda: without((), Box(X)),
        "jit, static argument": lambda: static((), Tag(), X),
        "linen jit": lambda: Linen(Tag()).apply(VARIABLES, X),
        "nnx jit": lambda: of_object(Object(), X),
        "nnx jit of a pytree": lambda: of_object(Object(), Box(X).x),
        "equinox filter_jit": lambda: of_tree(Tree(X, Tag()), X),
        "equinox filter_jit of a module": lambda: eqx.filter_jit(Tree(X, Tag()))(X),
        "pax lift": lambda: of_kinds(Kinds(), X),
        "pax value_and_grad": lambda: gradient(Kinds(), X),
        "generate": lambda: generate(Generating(decode=True, tag=Tag()), variables, prompts, max_new_tokens=2),
    }


@pytest.fixture(scope="module")
def calls() -> dict[str, Callable[[], Any]]:
    return _calls()


@pytest.mark.parametrize("name", [
    "jit", "cond", "jit of a scope", "jit without scopes", "jit, static argument", "linen jit",
    "nnx jit", "nnx jit of a pytree", "equinox filter_jit", "equinox filter_jit of a module", "pax lift",
    "pax value_and_grad", "generate",
])  # fmt: skip
def test_an_interrupt_while_static_values_are_compared_stays_one(
    calls: dict[str, Callable[[], Any]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = calls[name]
    expected = call()
    call()
    monkeypatch.setattr(Tag, "interrupted", "eq")
    with pytest.raises(KeyboardInterrupt):
        call()
    monkeypatch.setattr(Tag, "interrupted", "hash")
    with contextlib.suppress(KeyboardInterrupt):  # not every call hashes
        call()
    monkeypatch.undo()
    assert all(map(jnp.array_equal, jax.tree.leaves(call()), jax.tree.leaves(expected)))


@pytest.mark.parametrize("name", ["remat", "scan"])
@pytest.mark.parametrize("interrupted", ["eq", "hash"])
def test_a_lift_that_keeps_no_static_values_compares_none(
    calls: dict[str, Callable[[], Any]], name: str, interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = calls[name]()
    monkeypatch.setattr(Tag, "interrupted", interrupted)
    found = calls[name]()
    assert all(map(jnp.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))


def test_an_error_in_a_comparison_is_not_an_interrupt() -> None:
    class Wrong(Tag):
        __hash__ = Tag.__hash__

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

    run = liftcore.jit(lambda _, box: box.x)
    run((), Box(X, Wrong()))
    with pytest.raises((RuntimeError, ValueError)):
        run((), Box(X, Wrong()))

"""Initial values that are Python numbers: under every lift the dtypes are those of the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from tests.laws.test_laws import everything, keys
from tests.lift import plain
from tests.lift.rows.row import SOWN, Row
from tests.lift.table import TABLE

X = jnp.array([0.5, 1.0, 2.0], jnp.bfloat16)
AROUND: dict[str, Row | None] = {"alone": None, "in a scan": TABLE["scan"], "in remat": TABLE["remat"]}


def numbers(scope: Any, x: Any) -> Any:
    scale = scope.param("scale", lambda key: 1.5)
    half = scope.variable("consts", "half", lambda: 0.5)
    flag = scope.variable("consts", "flag", lambda: True)
    return jnp.where(flag.value, x * scale * half.value, x)


def counting(scope: Any, x: Any) -> Any:
    """Carries a number that begins as an integer and becomes a float, and one that takes the dtype of what is added."""
    count = scope.variable("counter", "count", lambda: 0)
    total = scope.variable("counter", "total", lambda: 0.0)
    if scope.is_mutable_collection("counter"):
        count.value = count.value + 0.5
        total.value = total.value + jnp.bfloat16(0.5)
    return x * scope.param("scale", lambda key: 2.0)


def as_given(body: Callable[..., Any]) -> Callable[..., Any]:
    """Some rows compute with numbers of their own; a loop must carry what it was given."""
    return lambda scope, x: body(scope, x).astype(x.dtype)


def dtypes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.result_type(leaf).name, tree)


def assert_same_dtypes(lifted: Callable[..., Any], unlifted: Callable[..., Any], refuses: frozenset[str]) -> None:
    args = keys(), keys(10), X
    ours = jax.eval_shape(everything(liftcore, lifted, refuses), *args)
    theirs = everything(plain, unlifted, refuses)(*args)
    assert dtypes(ours) == dtypes(theirs)


@pytest.mark.parametrize("body", [numbers, counting], ids=lambda body: body.__name__)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", TABLE)
def test_dtypes_are_those_of_the_plain_loop(name: str, around: str, body: Callable[..., Any]) -> None:
    inner, outer = TABLE[name], AROUND[around]
    if outer is not None and inner.refuses & outer.needs:
        pytest.skip("JAX cannot nest them")
    if body is counting and name in ("cond", "switch"):
        pytest.skip("a variable must have one type in all branches")
    sides = [(row.lifted, row.plain) for row in (inner, outer) if row is not None]
    ours = theirs = body
    for lifted, unlifted in sides:
        ours, theirs = as_given(lifted(ours)), as_given(unlifted(theirs))
    assert_same_dtypes(ours, theirs, inner.refuses - SOWN)


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.jit, liftcore.remat, liftcore.named_call])
def test_a_parameter_that_is_a_number_takes_the_dtype_of_what_it_scales(lift: Any) -> None:
    model = lift(lambda scope, x: x * scope.param("scale", lambda key: 1.0))
    y, variables = liftcore.init(model)(jax.random.key(0), X)
    assert y.dtype == jnp.bfloat16
    assert liftcore.apply(model)(variables, X).dtype == jnp.bfloat16


@pytest.mark.parametrize("start", [0, 0.0])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_carried_number_is_promoted_in_init_as_in_apply(start: float, depth: int) -> None:
    def body(scope: Any, carry: Any, _: Any) -> Any:
        n = scope.variable("state", "n", lambda: start)
        n.value = n.value + carry
        return carry, n.value

    for _ in range(depth):

        def body(scope: Any, carry: Any, _: Any, inner: Any = body) -> Any:
            return liftcore.remat(inner)(scope, carry, _)

    over = liftcore.scan(body, length=3, variable_carry="state")
    (_, ys), made = liftcore.init(over)(jax.random.key(0), jnp.bfloat16(0.5), None)
    (_, given), written = liftcore.apply(over, mutable=True)({"state": {"n": start}}, jnp.bfloat16(0.5), None)
    assert ys.dtype == given.dtype == made["state"]["n"].dtype == written["state"]["n"].dtype == jnp.bfloat16
    assert made == written == {"state": {"n": 1.5}}

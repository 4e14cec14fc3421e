"""Variables of an inner loop that read each other, in outer loops that take one or the other along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import liftcore

INSIDE: dict[str, Callable[..., Any]] = {
    "nothing": lambda fn: fn,
    "remat": liftcore.remat,
    "jit": liftcore.jit,
    "jit of remat": lambda fn: liftcore.jit(liftcore.remat(fn)),
    "a branch": lambda fn: lambda scope, x: liftcore.cond(fn, fn)(scope, True, x),
    "a scan of one iteration": lambda fn: repeated(fn, 1, carried=["log", "total"], stacked=[]),
}


def repeated(fn: Callable[..., Any], times: int, carried: list[str], stacked: list[str]) -> Callable[..., Any]:
    over = liftcore.scan(
        lambda scope, carry, _: (fn(scope, carry), None),
        length=times,
        variable_carry=carried,
        variable_axes=dict.fromkeys(stacked, 0),
    )
    return lambda scope, carry: over(scope, carry, None)[0]


def both(scope: Any, x: Any) -> Any:
    """The log is made from the carry, the total from the log, and the carry from the total."""
    logged = scope.variable("log", "v", lambda: x).value
    return scope.variable("total", "v", lambda: logged * 1).value + 10.0


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize(
    ("carried", "stacked", "expected"),
    [
        ("total", "log", {"log": [[1, 11], [2, 11]], "total": 1}),
        ("log", "total", {"log": [1, 11], "total": [1, 1]}),
    ],
)
def test_each_is_made_from_the_other_where_that_is_carried(
    carried: str, stacked: str, expected: dict[str, Any], inside: str
) -> None:
    inner = INSIDE[inside](repeated(both, 2, carried=["total"], stacked=["log"]))

    def iteration(scope: Any, x: Any) -> Any:
        inner(scope, x)
        return 2 * x

    made = liftcore.init(repeated(iteration, 2, carried=[carried], stacked=[stacked]))(jax.random.key(0), 1.0)[1]
    given = {name: made[name]["v"] for name in ("log", "total")}
    jax.tree.map(
        np.testing.assert_array_equal, given, jax.tree.map(np.array, expected, is_leaf=lambda x: type(x) is list)
    )

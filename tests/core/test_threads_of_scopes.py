"""One bound scope in several threads: all may read it, one may change it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftError, ThreadError

KEY, X = jax.random.key(0), jnp.ones((4, 3))
THREADS, TIMEOUT = 4, 60
VARIABLES = {"params": {"w": 2.0, "a": {"w": jnp.arange(3.0)}}, "state": {"n": 0, "a": {"n": 1}}}


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Lets Python switch between threads as often as it can, so that what depends on it shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def bound() -> Scope:
    return liftcore.bind(VARIABLES, {"params": KEY, "dropout": KEY}, mutable="state")


def at_once(run: Callable[[], Any]) -> list[Any]:
    """The results, or errors, of a function in threads that begin together and end together."""
    begins, ends = threading.Barrier(THREADS), threading.Barrier(THREADS)

    def caught(_: int) -> Any:
        begins.wait(TIMEOUT)
        try:
            return run()
        except LiftError as error:
            return error
        finally:
            ends.wait(TIMEOUT)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(caught, range(THREADS)))


def model(scope: Scope, x: Any, meet: Callable[[], Any]) -> Any:
    def layer(scope: Scope, x: Any) -> Any:
        meet()
        return x * scope.param("w", jax.random.normal, (3,))

    return liftcore.remat(lambda scope, x: scope.child(layer, "a")(x))(scope, x) * scope.get_variable("params", "w")


def test_one_bound_scope_is_read_in_many_threads_at_once() -> None:
    expected = model(bound(), X, lambda: None)
    for _ in range(10):
        root, meeting = bound(), threading.Barrier(THREADS)
        for found in at_once(lambda root=root, meeting=meeting: model(root.rewound(), X, meeting.wait)):  # type: ignore
            np.testing.assert_array_equal(found, expected)


def inside(act: Callable[[Scope], Any]) -> Callable[[Scope], Any]:
    def changed(scope: Scope) -> Any:
        act(scope)
        return 0

    return lambda scope: liftcore.remat(changed)(scope.rewound())


CHANGES: dict[str, Callable[[Scope], Any]] = {
    "drawing from": lambda scope: scope.make_rng("dropout"),
    "writing": lambda scope: scope.put_variable("state", "n", 1),
    "creating": lambda scope: scope.rewound().push("new").create_variable("state", "n", 1),
    "sowing": lambda scope: scope.sow("state", "seen", 1),
}
CHANGES |= {
    "drawing from, in a lift": inside(CHANGES["drawing from"]),
    "writing, in a lift": inside(CHANGES["writing"]),
    "writing, below": lambda scope: scope.rewound().push("a").put_variable("state", "n", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_bound_scope_that_is_changed_in_two_threads_is_an_error(change: str) -> None:
    for _ in range(50):
        root = bound()
        results = at_once(lambda root=root: CHANGES[change](root))  # type: ignore[misc]
        errors = [result for result in results if isinstance(result, ThreadError)]
        assert len(errors) == THREADS - 1
        message = "another thread uses the same bound module or scope; both may read it, but only one may change it."
        assert all(re.match(change.partition(",")[0], error.where) and error.what == message for error in errors)


def test_what_is_drawn_in_one_thread_is_as_if_there_were_no_other() -> None:
    root = bound()
    found = [result for result in at_once(root.make_rng) if not isinstance(result, ThreadError)]
    assert found == [bound().make_rng()]


def test_a_bound_scope_is_handed_on_when_the_thread_that_changed_it_has_ended() -> None:
    root, alone = bound(), bound()
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(root.make_rng).result(TIMEOUT) == alone.make_rng()


@pytest.mark.parametrize("way", ["init", "apply"])
def test_the_scope_of_a_running_function_is_changed_in_its_own_thread_only(way: str) -> None:
    def runs(scope: Scope) -> Any:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(scope.has_variable, "params", "w").result(TIMEOUT) == (way == "apply")
            with pytest.raises(ThreadError, match=r"Bind one for each thread, `liftcore\.bind"):
                pool.submit(scope.make_rng).result(TIMEOUT)
        return scope.make_rng()

    function = liftcore.init(runs) if way == "init" else lambda key: liftcore.apply(runs)(VARIABLES, rngs=key)
    assert function(KEY) is not None

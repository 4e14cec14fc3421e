"""Errors of users' functions: their tracebacks have the lines of users only."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
import nnx_like as nnx
from liftcore.calls import boundary
from liftcore.errors import CarryTypeError, LiftError
from tests.architecture.sources import PACKAGES
from tests.core.traced import KEY, STYLES, X, nested, square, wrong

ENTRIES = [pytest.param(call, id=f"{style}-{name}") for style, calls in STYLES.items() for name, call in calls.items()]


def frames(error: BaseException | None) -> list[str]:
    """The names of the modules and functions in a traceback, from the outermost to the innermost."""
    entries = [] if error is None else traceback.walk_tb(error.__traceback__)
    return [f"{frame.f_globals['__name__']}.{frame.f_code.co_name}" for frame, _ in entries]


def foreign(error: BaseException) -> list[str]:
    return [
        frame for frame in frames(error) if frame.partition(".")[0] in ("jax", "contextlib", "functools", *PACKAGES)
    ]


def raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the tests ask what it is
        call()
    return caught.value


@contextlib.contextmanager
def filtering(mode: str) -> Iterator[None]:
    config: Any = jax.config
    before = config.jax_traceback_filtering
    config.update("jax_traceback_filtering", mode)
    try:
        yield
    finally:
        config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize("call", ENTRIES)
def test_an_error_of_a_user_shows_the_lines_of_the_user_only(call: Callable[[], Any]) -> None:
    error = raised(call)
    assert isinstance(error, TypeError)
    assert "contract" in str(error)
    assert foreign(error) == []
    assert frames(error)[-1] == "tests.core.traced.wrong"
    assert len(frames(error)) > 2  # the line that called the library too


def test_the_option_of_jax_shows_all_frames() -> None:
    with filtering("off"):
        error = raised(lambda: liftcore.init(nested)(KEY, X))
    assert len(foreign(error)) > 20


@pytest.mark.parametrize("mode", ["quiet_remove_frames", "tracebackhide", "remove_frames"])
def test_the_other_options_of_jax_hide_them(mode: str) -> None:
    with filtering(mode):
        error = raised(lambda: liftcore.init(nested)(KEY, X))
    assert not {frame.partition(".")[0] for frame in frames(error)} & set(PACKAGES)
    if mode == "remove_frames":  # there, JAX keeps all frames in the cause
        assert any("liftcore" in frame for frame in frames(error.__cause__))


def test_an_error_that_says_what_to_do_ends_at_the_line_of_the_user() -> None:
    error = raised(lambda: liftcore.init(liftcore.scan(lambda scope, x: (x[:2], None), length=2))(KEY, X))
    assert isinstance(error, CarryTypeError)
    assert foreign(error) == []


def test_another_error_in_the_library_keeps_its_last_line() -> None:
    error = raised(lambda: liftcore.init(lambda scope: scope.param("w", jax.nn.initializers.ones, 3.5))(KEY))
    assert not isinstance(error, LiftError)
    assert [frame.partition(".")[0] for frame in foreign(error)] == ["liftcore"]
    assert frames(error)[-1] == foreign(error)[0]


def test_a_wrong_call_of_the_library_ends_at_the_line_of_the_user() -> None:
    call: Any = nn.cond
    error = raised(lambda: call())
    assert str(error).startswith("cond() missing")
    assert foreign(error) == []


def chained(scope: Any, x: Any) -> Any:
    try:
        return liftcore.remat(square)(scope, x)
    except TypeError as error:
        error.add_note("a note")
        raise KeyError("one of mine") from error


def test_causes_and_notes_stay() -> None:
    error = raised(lambda: liftcore.init(liftcore.jit(chained))(KEY, X))
    cause = error.__cause__
    assert isinstance(error, KeyError)
    assert isinstance(cause, TypeError)
    assert cause.__notes__[-1] == "a note"
    assert frames(error)[-1] == "tests.core.test_tracebacks.chained"
    assert frames(cause)[-1] == "tests.core.traced.wrong"
    assert foreign(cause) == []


def handled(scope: Any, x: Any) -> Any:
    try:
        return liftcore.remat(square)(scope, x)
    except TypeError:
        raise KeyError("one of mine")  # noqa: B904  # the context is what the test is about


def test_what_was_handled_stays() -> None:
    error = raised(lambda: liftcore.init(handled)(KEY, X))
    assert isinstance(error.__context__, TypeError)
    assert frames(error.__context__)[-1] == "tests.core.traced.wrong"
    assert foreign(error.__context__) == []


def test_errors_that_are_each_other_s_causes_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one

    def circular(scope: Any) -> Any:
        raise one

    assert raised(lambda: liftcore.init(circular)(KEY)) is one


def test_a_debugger_finds_the_values_of_each_line() -> None:
    def body(scope: Any, x: Any) -> Any:
        mine = "a value of the caller"
        return liftcore.remat(square)(scope, x), mine

    error = raised(lambda: liftcore.init(body)(KEY, X))
    found = {frame.f_code.co_name: frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)}
    assert found["body"]["mine"] == "a value of the caller"
    assert found["wrong"]["x"].shape == (3,)
    lines = {frame.f_code.co_name: line for frame, line in traceback.walk_tb(error.__traceback__)}
    assert lines["body"] == body.__code__.co_firstlineno + 2


def test_threads_hide_the_frames_of_their_errors_only() -> None:
    model, found, barrier = nn.Sequential([nn.Dense(3), wrong]), {}, threading.Barrier(2)

    def run(number: int) -> None:
        barrier.wait()
        found[number] = raised(lambda: model.init(KEY, X))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]
    assert [foreign(error) for error in found.values()] == [[], []]


def test_an_interrupt_shows_where_the_program_was() -> None:
    def interrupted(scope: Any, x: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        liftcore.init(liftcore.remat(interrupted))(KEY, X)
    assert any(frame.startswith("liftcore.") for frame in frames(caught.value))


def test_a_function_of_a_user_that_calls_back_is_shown_each_time() -> None:
    @boundary
    def twice(fn: Callable[[Any], Any], x: Any) -> Any:
        return fn(fn(x))

    net = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), lambda x: nnx.jit(lambda net, x: wrong(x))(net, x))
    error = raised(lambda: twice(lambda x: nnx.jit(lambda net, x: net(x))(net, x), X))
    assert [frame for frame in frames(error) if frame.endswith("test_tracebacks.<lambda>")] != []
    assert foreign(error) == []


@pytest.mark.parametrize(
    "make", [lambda: liftcore.apply(square), lambda: liftcore.grad(square), lambda: nnx.grad(square)]
)
def test_functions_keep_the_names_and_docstrings_of_their_functions(make: Callable[[], Any]) -> None:
    made = make()
    assert (made.__name__, made.__wrapped__) == ("square", square)


def test_values_pass_through() -> None:
    variables = {"params": {"w": jnp.eye(3)}}
    assert liftcore.apply(lambda scope, x: scope.param("w", None) @ x)(variables, X).tolist() == [1.0, 1.0, 1.0]

"""Threads that use modules at once do not disturb each other, and what raises leaves no context behind."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import CallCompactUnboundModuleError, ThreadError
from linen_like.lifecycle.context import context
from tests.linen.lifted import KEY, LIFTS, RNGS, SHARING, Block, X, assert_close, assert_same

THREADS = 8
TIMEOUT = 60


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads take turns far more often than usual, so that what they share is found out."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(run: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """The results of `run(0)`, `run(1)`, … in threads that begin together."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait(TIMEOUT)
        result = run(number)
        assert nothing_left()
        return result

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def nothing_left() -> bool:
    """Whether nothing of what ran in this thread is on a stack any more."""
    return (
        context.modules == context.captures == [None]
        and context.interceptors == ()
        and context.names_calls
        and nn.Dense(1).parent is None
        and nn.get_logical_axis_rules() == ()
    )


class Whole(nn.Module):
    """A bit of everything: `setup`, a shared layer, a list, state, dropout, and what a function does in the middle.

    Attributes:
        meet: called in `setup` and in the call.
    """

    meet: Callable[[], Any] = lambda: None
    features: int = 3

    def setup(self) -> None:
        self.shared = nn.Dense(self.features)
        self.meet()
        self.blocks = [Block(self.features) for _ in range(2)]
        self.drop = nn.Dropout(0.5)
        self.calls = self.variable("state", "calls", lambda: jnp.zeros((), int))

    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.calls.value += 1
        x = self.shared(x)
        self.meet()
        for block in self.blocks:
            x, _ = block(x)
        self.sow("intermediates", "hidden", x)
        x = nn.BatchNorm(use_running_average=False)(self.drop(x, deterministic=False))
        self.meet()
        return nn.Dense(self.features)(self.shared(x))


def used(model: Any, number: int, *args: Any) -> Any:
    """What `init` makes of a key of its own, and what `apply` makes of that."""
    params, dropout = jax.random.split(jax.random.key(number))
    variables = model.init({"params": params, "dropout": dropout}, X, *args)
    applied = model.apply(variables, X, *args, rngs={"dropout": params}, mutable=True, capture_intermediates=True)
    return variables, applied


# --- threads ----------------------------------------------------------------------------------------------------------


def test_one_model_in_many_threads() -> None:
    expected = [used(Whole(), number) for number in range(THREADS)]
    meeting = threading.Barrier(THREADS)
    model = Whole(lambda: meeting.wait(TIMEOUT))  # all threads stand in the same line of the same model
    for ours, alone in zip(at_once(functools.partial(used, model)), expected, strict=True):
        assert_same(ours, alone)
    assert model == Whole(model.meet)
    assert model.scope is None


@pytest.mark.parametrize("lift", LIFTS)
def test_one_lifted_model_in_many_threads(lift: str) -> None:
    def run(number: int) -> Any:
        return model.init(jax.random.key(number), X, None)

    model = LIFTS[lift](Block)()
    for ours, alone in zip(at_once(run), map(run, range(THREADS)), strict=True):
        assert_same(ours, alone)


def model_of(number: int) -> Any:
    """A model that no other thread has."""
    if number % 2:
        return nn.Sequential([nn.Dense(1 + number), Whole(features=1 + number)])
    return nn.Sequential([nn.Dense(3), nn.remat(Whole)(), nn.jit(Whole)(), nn.Dense(1 + number)])


def test_other_models_in_each_thread() -> None:
    def run(number: int) -> Any:
        return jax.eval_shape(functools.partial(used, model_of(number)), number)

    assert at_once(run) == list(map(run, range(THREADS)))


@pytest.mark.parametrize("lift", LIFTS)
def test_a_lift_that_each_thread_makes_for_itself(lift: str) -> None:
    def run(number: int) -> Any:
        class Own(nn.Module):
            size: int

            @nn.compact
            def __call__(self, x: Any, _: Any) -> Any:
                return x + self.param("scale", nn.initializers.normal(), (self.size, 1)).sum(0), None

        return jax.eval_shape(lambda: used(LIFTS[lift](Own)(number + 1), number, None))

    assert at_once(run) == list(map(run, range(THREADS)))


def test_threads_share_what_is_compiled() -> None:
    ran: list[int] = []

    class Traced(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            ran.append(1)
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

    model = nn.jit(Traced)()
    expected = [used(model, number) for number in range(THREADS)]
    alone = len(ran)
    for ours, theirs in zip(at_once(functools.partial(used, model)), expected, strict=True):
        assert_same(ours, theirs)
    assert len(ran) == alone


def test_threads_compile_the_same_at_once() -> None:
    class Traced(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

    found = at_once(functools.partial(used, nn.jit(Traced)()))  # none was compiled before
    for number, ours in enumerate(found):
        assert_same(ours, used(nn.jit(Traced)(), number))


def test_threads_get_one_class_of_one_lift() -> None:
    def lift(name: str, number: int) -> Any:
        return nn.vmap(Block, {name: 0})

    for name in "abcdefgh":
        classes = at_once(functools.partial(lift, name))
        assert len(set(classes)) == 1


def test_gradients_in_many_threads() -> None:
    model = Whole()
    variables = model.init(RNGS, X)

    def loss(params: Any, number: int) -> Any:
        rngs = {"dropout": jax.random.key(number)}
        return model.apply({**variables, "params": params}, X, rngs=rngs, mutable=True)[0].sum()

    found = at_once(functools.partial(jax.jit(jax.grad(loss)), variables["params"]))  # all at once trace it
    for number, ours in enumerate(found):
        assert_close(ours, jax.grad(loss)(variables["params"], number))


def test_each_thread_has_its_own_interceptors_captures_and_rules() -> None:
    def run(number: int) -> Any:
        def add(next_fun: Any, args: Any, kwargs: Any, call: Any) -> Any:
            return next_fun(*args, **kwargs) + number * (call.method_name == "__call__")

        def last(module: Any, method: str) -> bool:
            return bool(module.name == f"layers_{number % 2}")

        rules = (("batch", f"axis_{number}"),)
        with nn.intercept_methods(add), nn.logical_axis_rules(rules), nn.override_named_call(bool(number % 2)):
            result = model.apply({}, 0, capture_intermediates=last)
            assert nn.get_logical_axis_rules() == rules
        return result

    class Step(nn.Module):
        def __call__(self, x: int) -> int:
            return x + 1

    model = nn.Sequential([Step(), Step()])
    for number, (y, kept) in enumerate(at_once(run)):
        assert y == 2 + 3 * number
        first = 1 + number
        expected = (first, 2 * first)[number % 2]
        assert kept["intermediates"] == {f"layers_{number % 2}": {"__call__": (expected,)}}


def test_a_thread_that_fails_disturbs_no_other() -> None:
    class Half(nn.Module):
        number: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            meeting.wait(TIMEOUT)  # those that fail do so while the others are in their calls
            if self.number % 2:
                raise RuntimeError(str(self.number))
            failed.wait(TIMEOUT)
            return nn.Dense(3)(x)

    meeting, failed = threading.Barrier(THREADS), threading.Barrier(THREADS)

    def run(number: int) -> Any:
        if number % 2:
            with pytest.raises(RuntimeError, match=str(number)):
                Half(number).init(jax.random.key(number), X)
            assert nothing_left()
            failed.wait(TIMEOUT)
            return None
        return list(Half(number).init(jax.random.key(number), X)["params"])

    assert at_once(run) == [["Dense_0", "Dense_1"], None] * (THREADS // 2)


def test_a_thread_that_a_call_starts_begins_anew() -> None:
    class Starts(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def elsewhere() -> Any:
                assert nothing_left()
                with pytest.raises(CallCompactUnboundModuleError):
                    nn.Dense(3)(x)
                return nn.Dense(3).init(KEY, x)

            with ThreadPoolExecutor(1) as pool:
                made = pool.submit(elsewhere).result(TIMEOUT)
            assert nn.Dense(3, name="own").parent is self
            return nn.Dense(3)(x), made

    own, made = Starts().init_with_output(KEY, X)[1], nn.Dense(3).init(KEY, X)
    assert list(own["params"]) == ["Dense_0"]
    assert_same(Starts().apply(own, X)[1], made)


# --- one bound module -------------------------------------------------------------------------------------------------


class Reads(nn.Module):
    """What a call can only read: `setup`, a shared layer, a list, compact layers, name scopes, lifts.

    Attributes:
        meet: called in `setup` and in the call.
    """

    meet: Callable[[], Any] = lambda: None

    def setup(self) -> None:
        self.shared = nn.Dense(3)
        self.meet()
        self.blocks = [Block(3) for _ in range(2)]
        self.norm = nn.BatchNorm(use_running_average=True)

    @nn.compact_name_scope
    def named(self, x: Any) -> Any:
        return nn.Dense(3)(x)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = self.shared(x)
        self.meet()
        for block in self.blocks:
            x, _ = block(x)
        x = nn.remat(nn.Dense)(3)(self.norm(x))
        x, _ = nn.scan(Block, {"params": 0}, split_rngs={"params": True}, length=2)(3)(x)
        self.meet()
        return self.named(nn.jit(nn.Dense)(3)(nn.Dropout(0.5)(x, deterministic=True)))


READS = jax.jit(Reads().init)(KEY, X)


def test_reading_calls_of_one_bound_module_give_what_one_thread_gives() -> None:
    expected = Reads().apply(READS, X)
    for _ in range(5):
        meeting = threading.Barrier(THREADS)
        # all threads stand in the same line of one bound module, in its `setup` too
        bound = Reads(functools.partial(meeting.wait, TIMEOUT)).bind(READS)
        for found in at_once(lambda number, bound=bound: bound(X)):  # type: ignore[misc]
            assert_same(found, expected)
        assert list(bound.variables) == list(READS)


@pytest.mark.rest
def test_parts_of_one_bound_module_are_read_in_many_threads() -> None:
    reads: list[Callable[[Any], Any]] = [
        lambda model: model.shared(X),
        lambda model: model.blocks[1](X),
        lambda model: model(X),
        lambda model: model.named(X),
        lambda model: nn.vmap(lambda block, x: block(x), {"params": None}, {"params": False})(model.blocks[0], X[None]),
        lambda model: jax.jit(model.shared.__call__)(X),
        lambda model: jax.grad(lambda x: model(x).sum())(X),
        lambda model: model.variables,
    ]
    alone = Reads().bind(READS)
    expected = [read(alone) for read in reads]
    for _ in range(20):
        bound = Reads().bind(READS)  # anew, so that threads read what another one is just setting up
        for found, wanted in zip(at_once(lambda number, bound=bound: reads[number](bound)), expected, strict=True):
            assert_same(found, wanted)


class Changes(nn.Module):
    """Writes, creates or draws, when all threads are in the call."""

    act: str
    meet: Callable[[], Any] = lambda: None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        state = self.variable("state", "n", lambda: 0)
        self.meet()
        try:
            if self.act == "draw":
                return jax.random.key_data(self.make_rng("dropout"))
            if self.act == "write":
                state.value += 1
            if self.act == "sow":
                self.sow("intermediates", "x", x)
            if self.act == "lifted":
                nn.remat(Changes)("write", name="below")(x)
            if self.act == "drawn inside":
                return nn.remat(lambda mdl: jax.random.key_data(mdl.make_rng("dropout")))(self)
            if self.act == "create":
                return nn.Dense(3)(x)
        finally:
            self.meet()
        return x


@pytest.mark.parametrize("act", ["draw", "write", "sow", "create", "lifted", "drawn inside"])
def test_one_bound_module_that_is_changed_in_two_threads_at_once_is_an_error(act: str) -> None:
    variables = {"state": {"n": 0, "below": {"n": 0}}}

    def bind(meet: Callable[[], Any] = lambda: None) -> Any:
        return Changes(act, meet).bind(variables, rngs={"dropout": KEY, "params": KEY}, mutable=True)

    def run(bound: Any, number: int) -> Any:
        try:
            return bound(X)
        except ThreadError as error:
            return str(error)

    message = "another thread uses the same bound module or scope; both may read it, but only one may change it. "
    message += "Bind one for each thread, `module.bind(variables, …)`, or call `module.apply(variables, …)` in each."
    expected = bind()(X)
    for _ in range(10):
        meeting = threading.Barrier(THREADS)
        bound = bind(functools.partial(meeting.wait, TIMEOUT))
        results = at_once(functools.partial(run, bound))
        (found,) = [result for result in results if not isinstance(result, str)]  # one of them has it
        assert sum(message in result for result in results if isinstance(result, str)) == THREADS - 1
        assert_same(found, expected)
        assert bound.variables.get("state", {}).get("n") == (act == "write")


def test_a_bound_module_is_handed_from_one_thread_to_the_next() -> None:
    bound = Changes("draw").bind({"state": {"n": 0}}, rngs={"dropout": KEY})
    alone = Changes("draw").bind({"state": {"n": 0}}, rngs={"dropout": KEY})
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert_same(pool.submit(bound, X).result(TIMEOUT), alone(X))
        assert_same(bound(X), alone(X))


def test_a_thread_that_a_call_starts_reads_the_module_that_is_running() -> None:
    class Starts(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3)
            y = dense(x)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(dense, [x] * 4))
            return [y, *found]

    variables = Starts().init(KEY, X)
    for model in (functools.partial(Starts().apply, variables), Starts().bind(variables)):
        y, *found = model(X)
        for one in found:
            assert_same(one, y)


def test_one_jitted_apply_in_many_threads() -> None:
    ran: list[int] = []

    def run(variables: Any, x: Any) -> Any:
        ran.append(1)
        return Reads().apply(variables, x)

    jitted = jax.jit(run)
    expected = jax.jit(Reads().apply)(READS, X)
    for found in at_once(lambda number: jitted(READS, X)):
        assert_same(found, expected)


# --- what raises ------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Raised on purpose: an exception that nobody catches by accident."""


def stop(*args: Any, **kwargs: Any) -> Any:
    raise Stop


class Stops(nn.Module):
    """Raises somewhere, with a submodule, a parameter and a state made before."""

    place: str = "call"

    def setup(self) -> None:
        self.first = nn.Dense(3)
        if self.place == "setup":
            stop()

    @property
    def size(self) -> int:
        return stop() if self.place == "property" else 3

    @nn.nowrap
    def plain(self) -> Any:
        return stop() if self.place == "nowrap" else None

    def method(self, x: Any) -> Any:
        return stop() if self.place == "method" else self.first(x)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = self.method(nn.Dense(self.size)(x))
        self.plain()
        if self.place == "call":
            stop()
        if self.place == "init_fn":
            self.param("w", stop)
        if self.place == "variable":
            self.variable("state", "n", stop)
        if self.place == "sow":
            self.sow("seen", "x", x, reduce_fn=stop)
        if self.place == "submodule":
            return Stops()(x)
        if self.place == "field":
            return nn.Sequential([nn.Dense(3), stop])(x)
        return self.lifted(x)

    def lifted(self, x: Any) -> Any:
        return LIFTED[self.place](self, x) if self.place in LIFTED else x


def keep(mdl: Any, x: Any) -> Any:
    return x


def stop_inside(lift: str, mdl: Any, x: Any) -> Any:
    return SHARING[lift](lambda mdl, x, _: stop())(mdl, x, None)


LIFTED: dict[str, Callable[[Any, Any], Any]] = {
    **{lift: functools.partial(stop_inside, lift) for lift in SHARING},
    "cond": lambda mdl, x: nn.cond(x.sum() > 0, stop, keep, mdl, x),
    "switch": lambda mdl, x: nn.switch(0, [keep, stop], mdl, x),
    "while_loop": lambda mdl, x: nn.while_loop(lambda mdl, x: x.sum() > 0, stop, mdl, x),
    "while_loop, its condition": lambda mdl, x: nn.while_loop(stop, keep, mdl, x),
    "fori_loop": lambda mdl, x: nn.fori_loop(0, 2, stop, mdl, x),
    "grad": lambda mdl, x: nn.grad(stop, mdl, x),
    "vjp": lambda mdl, x: nn.vjp(stop, mdl, x),
    "jvp": lambda mdl, x: nn.jvp(stop, mdl, (x,), (x,), {}),
    "jacrev": lambda mdl, x: nn.jacrev(stop, mdl, x),
    "eval_shape": lambda mdl, x: nn.eval_shape(stop, mdl, x),
    "custom_vjp": lambda mdl, x: nn.custom_vjp(stop, forward_fn=stop, backward_fn=stop)(mdl, x),
    "map_variables": lambda mdl, x: nn.map_variables(Stops, "params", stop, mutable=True)("none")(x),
    "a class in two lifts": lambda mdl, x: nn.jit(SHARING["vmap"](Stops))()(x),
}
"""What raises inside of a lift."""

PLACES = (
    *("setup", "call", "property", "nowrap", "method", "init_fn", "variable", "sow", "submodule", "field"),
    *LIFTED,
)

WAYS: dict[str, Callable[[Any], Any]] = {
    "init": lambda model: model.init(KEY, X),
    "lazy_init": lambda model: model.lazy_init(KEY, X),
    "apply": lambda model: model.apply({}, X, rngs=KEY, mutable=True, capture_intermediates=True),
    "bind": lambda model: model.bind({}, rngs=KEY, mutable=True)(X),
    "explain": lambda model: nn.explain(model, KEY)(X),
    "jit": lambda model: jax.jit(model.init)(KEY, X),
    "eval_shape": lambda model: jax.eval_shape(model.init, KEY, X),
    "vmap": lambda model: jax.vmap(model.init, (None, 0))(KEY, X[None]),
}
"""Each way into a model."""


@pytest.mark.parametrize("place", PLACES)
def test_exception_leaves_no_context_behind(place: str) -> None:
    for way in WAYS.values():
        with pytest.raises(Stop):
            way(Stops(place))
        assert nothing_left()
    assert set(Stops("none").init(KEY, X)["params"]) == {"first", "Dense_0"}


@pytest.mark.parametrize("place", PLACES)
def test_exception_in_an_intercepted_call_leaves_no_context_behind(place: str) -> None:
    def passes(next_fun: Any, args: Any, kwargs: Any, call: Any) -> Any:
        return next_fun(*args, **kwargs)

    with pytest.raises(Stop), nn.intercept_methods(passes), nn.override_named_call(False):
        Stops(place).init(KEY, X, capture_intermediates=True)
    assert nothing_left()


CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "intercept_methods": lambda: nn.intercept_methods(stop),
    "override_named_call": lambda: nn.override_named_call(False),
    "logical_axis_rules": lambda: nn.logical_axis_rules((("batch", "data"),)),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_exception_ends_a_context(name: str) -> None:
    with pytest.raises(Stop), CONTEXTS[name]():
        Stops().init(KEY, X)
    assert nothing_left()


def test_exception_of_a_capture_filter_leaves_no_context_behind() -> None:
    with pytest.raises(Stop):
        Stops("none").apply({}, X, rngs=KEY, mutable=True, capture_intermediates=stop)
    assert nothing_left()


def test_caught_exception_leaves_the_outer_call_as_it_was() -> None:
    class Tries(nn.Module):
        place: str

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            with pytest.raises(Stop):
                Stops(self.place, name="stops")(x)
            assert context.modules == [None, self]
            return nn.Dense(3)(x)

    for place in PLACES:
        params = Tries(place).init(KEY, X)["params"]
        assert [name for name in params if name != "stops"] == ["Dense_0", "Dense_1"], place
        assert nothing_left()


def test_exceptions_in_many_threads_leave_no_context_behind() -> None:
    def run(number: int) -> None:
        for place in PLACES[number::THREADS]:
            with pytest.raises(Stop):
                Stops(place).init(jax.random.key(number), X)
            assert nothing_left()

    at_once(run)


def test_a_class_may_lift_others_while_it_is_lifted() -> None:
    class Lifts(nn.Module):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.inner = nn.jit(nn.Dense)  # type: ignore[attr-defined]

    thread = threading.Thread(target=nn.jit, args=(Lifts,), daemon=True)
    thread.start()
    thread.join(TIMEOUT / 10)
    assert not thread.is_alive()

"""What the body of a `remat` reads, wherever it is, belongs to the key of its shared trace."""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import dataclasses
import functools
import gc
import io
import logging
import operator
import os
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import nnx_like as nnx
from tests.nnx.test_shared_traces import rematerialized

RATE = 1.0
RATES = [1.0]
X = jnp.linspace(-1, 1, 3)
settings: Any = types.ModuleType("settings_of_a_test")
settings.RATE = 1.0
sys.modules["settings_of_a_test"] = settings

Place = tuple[Callable[[], Any], Callable[[float], Any]]


class Block(nnx.Module):
    def __init__(self, seed: int) -> None:
        self.weight = nnx.Param(jnp.full(3, 1.0 + seed / 8))

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.weight * x)


def rate() -> Any:
    return RATE


def put(value: float) -> None:
    global RATE
    RATE = value


# --- ways to a function that reads a global variable ------------------------------------------------------------------


class Helper:
    def method(self) -> Any:
        return rate()

    __call__ = method
    property = property(method)

    def __getattr__(self, name: str) -> Any:
        if name == "missing":
            return rate()
        raise AttributeError(name)

    @classmethod
    def of_class(cls) -> Any:
        return rate()

    def with_argument(self, _: int) -> Any:
        return rate()

    partial = functools.partialmethod(with_argument, 1)


class Below(Helper):
    def method(self) -> Any:
        return super().method()


class Meta(type):
    def __call__(cls) -> Any:
        return rate()


class OfMeta(metaclass=Meta):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    width: int = 1
    both: ClassVar[float] = 1.0

    def method(self) -> Any:
        return rate()


class Decorator:
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self) -> Any:
        return self.fn()


@functools.singledispatch
def dispatched(_: Any) -> Any:
    return 0.0


@dispatched.register
def _(_: int) -> Any:
    return rate()


@contextlib.contextmanager
def managed() -> Iterator[Any]:
    yield rate()


def entered() -> Any:
    with managed() as value:
        return value


def holder() -> None: ...


holder.rate = rate  # type: ignore[attr-defined]
custom: Any = jax.custom_jvp(lambda x: x * rate())
custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0] * rate()))
HELPER, BELOW, FROZEN, DECORATED = Helper(), Below(), Frozen(), Decorator(rate)
IN_LIST, IN_DICT, PARTIAL = [rate], {"a": (1, rate)}, functools.partial(rate)

WAYS: dict[str, Callable[[], Any]] = {
    "a list": lambda: IN_LIST[0](),
    "a dict": lambda: IN_DICT["a"][1](),  # type: ignore[index, operator]
    "a partial": lambda: PARTIAL(),
    "a bound method": HELPER.method,
    "a method": lambda: HELPER.method(),
    "a callable object": lambda: HELPER(),
    "a property": lambda: HELPER.property,
    "getattr": lambda: HELPER.missing,
    "a class method": lambda: Helper.of_class(),
    "a partial method": lambda: HELPER.partial(),
    "super": lambda: BELOW.method(),
    "a metaclass": lambda: OfMeta(),
    "a frozen dataclass": lambda: FROZEN.method(),
    "a decorator": lambda: DECORATED(),
    "single dispatch": lambda: dispatched(1),
    "a context manager": lambda: entered(),
    "an attribute of a function": lambda: holder.rate(),  # type: ignore[attr-defined]
    "a custom rule": lambda: custom(1.0),
    "vmap": lambda: jax.vmap(lambda x: x * rate())(X),
    "globals": lambda: globals()["RATE"],
    "a computed name": lambda: getattr(sys.modules[__name__], "RA" + "TE".upper()),
}

# --- places of values -------------------------------------------------------------------------------------------------


def an_attribute_of_a_module(read: Callable[[], Any]) -> Place:
    return read, functools.partial(setattr, settings, "RATE")


def imported() -> Any:
    import settings_of_a_test  # type: ignore[import-not-found]

    return settings_of_a_test.RATE


def imported_from() -> Any:
    from settings_of_a_test import RATE

    return RATE


MODULES, SPACE = [settings], types.SimpleNamespace(module=settings)


def an_attribute_of_a_class() -> Place:
    class Config:
        __rate__ = rate = 1.0

    held = [Config()]
    return lambda: held[0].rate, functools.partial(setattr, Config, "rate")


def a_special_attribute_of_a_class() -> Place:
    class Config:
        __rate__ = 1.0

    return lambda: Config.__rate__, functools.partial(setattr, Config, "__rate__")


def a_class_variable_of_a_frozen_dataclass() -> Place:
    return lambda: FROZEN.both, functools.partial(setattr, Frozen, "both")


def an_object_that_equals_itself() -> Place:
    class Named:
        rate = 1.0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 0

    named = Named()
    return lambda: named.rate, functools.partial(setattr, named, "rate")


def a_partial_in_a_class() -> Place:
    class Config:
        rate = staticmethod(functools.partial(max, 1.0))

    return lambda: Config.rate(0.0), lambda value: setattr(Config, "rate", staticmethod(functools.partial(max, value)))


def a_callable_in_a_class() -> Place:
    class Config:
        __call__ = functools.partialmethod(lambda self, value: value, 1.0)

    config: Any = Config()
    new = functools.partialmethod
    return lambda: config(), lambda value: setattr(Config, "__call__", new(lambda self, value: value, value))


def an_attribute_of_a_metaclass() -> Place:
    class Kind(type):
        rate = 1.0

    class Config(metaclass=Kind):
        pass

    return lambda: Config.rate, functools.partial(setattr, Kind, "rate")


def a_cached_property() -> Place:
    class Config:
        @functools.cached_property
        def rate(self) -> float:
            return 1.0

    config = Config()
    return lambda: config.rate, lambda value: vars(config).update(rate=value)


def a_missing_key() -> Place:
    class Rates(dict[str, float]):
        def __missing__(self, key: str) -> float:
            return RATES[0]

    rates = Rates()
    return lambda: rates["a"], functools.partial(operator.setitem, RATES, 0)


def a_made_dataclass() -> Place:
    config: Any = dataclasses.make_dataclass("Config", ["width"], namespace={"rate": lambda self: RATES[0]})(1)
    return lambda: config.rate(), functools.partial(operator.setitem, RATES, 0)


def a_pytree() -> Place:
    class Config(eqx.Module):
        fn: Any

        def rate(self) -> Any:
            return self.fn()

    config = Config(lambda: RATES[0])
    return lambda: config.rate(), functools.partial(operator.setitem, RATES, 0)


def a_default_factory() -> Place:
    @dataclasses.dataclass
    class Config:
        rate: float = dataclasses.field(default_factory=lambda: RATES[0])

    return lambda: Config().rate, functools.partial(operator.setitem, RATES, 0)


def an_operator() -> Place:
    class Number:
        def __mul__(self, other: Any) -> Any:
            return RATES[0] * other

    number = Number()
    return lambda: number * 1.0, functools.partial(operator.setitem, RATES, 0)


def a_constructor() -> Place:
    class Number:
        def __init__(self) -> None:
            self.rate = RATES[0]

    return lambda: Number().rate, functools.partial(operator.setitem, RATES, 0)


def a_mapping() -> Place:
    held = collections.ChainMap({}, {"rate": 1.0})
    return lambda: held["rate"], lambda value: held.maps[1].update(rate=value)


def code() -> Place:
    def one() -> float:
        return 1.0

    def two() -> float:
        return 2.0

    first = one.__code__
    return lambda: one(), lambda value: setattr(one, "__code__", first if value == 1 else two.__code__)


def a_default_of_a_helper() -> Place:
    def helper(value: float = 1.0) -> float:
        return value

    return lambda: helper(), lambda value: setattr(helper, "__defaults__", (value,))


def a_virtual_subclass() -> Place:
    class Kind(abc.ABC):  # noqa: B024
        pass

    return lambda: 1.0 + isinstance("text", Kind), lambda value: value == 2 and Kind.register(str)


def another_class_of_an_object() -> Place:
    class One:
        rate = 1.0

    class Two:
        rate = 2.0

    held: Any = One()
    return lambda: held.rate, lambda value: setattr(held, "__class__", One if value == 1 else Two)


def a_builtin(name: str = "a_rate_of_a_test") -> Place:
    setattr(builtins, name, 1.0)
    return lambda: a_rate_of_a_test, functools.partial(setattr, builtins, name)  # type: ignore[name-defined]  # noqa: F821


def a_file() -> Place:
    file = Path(os.environ["PYTEST_FILE_OF_RATES"])
    return lambda: float(file.read_text()), lambda value: file.write_text(str(value))


def a_memory_view() -> Place:
    data = bytearray(8)
    view = memoryview(data)
    return lambda: view[0], lambda value: operator.setitem(data, 0, int(value))


def the_generator_of_jax() -> Place:
    return lambda: jax.random.uniform(jax.random.key(0)), lambda value: jax.config.update(
        "jax_default_prng_impl", "threefry2x32" if value == 1 else "rbg"
    )


def settings_of_numpy() -> Place:
    return lambda: len(np.geterr()["over"]), lambda value: np.seterr(over="warn" if value == 1 else "ignore")


PLACES: dict[str, Callable[[], Place]] = {
    **{way: functools.partial(lambda read: (read, put), read) for way, read in WAYS.items()},
    "a module in a list": lambda: an_attribute_of_a_module(lambda: MODULES[0].RATE),
    "a module in an object": lambda: an_attribute_of_a_module(lambda: SPACE.module.RATE),
    "an import": lambda: an_attribute_of_a_module(imported),
    "an import of a name": lambda: an_attribute_of_a_module(imported_from),
    "getattr of a module": lambda: an_attribute_of_a_module(lambda: getattr(settings, "RATE")),  # noqa: B009
    "the dict of a module": lambda: an_attribute_of_a_module(lambda: vars(settings)["RATE"]),
    "attrgetter": lambda: an_attribute_of_a_module(lambda: operator.attrgetter("RATE")(settings)),
    "format": lambda: an_attribute_of_a_module(lambda: float(f"{settings.RATE}")),
    **{
        place.__name__: place
        for place in (
            an_attribute_of_a_class, a_special_attribute_of_a_class, a_class_variable_of_a_frozen_dataclass,
            an_object_that_equals_itself, a_partial_in_a_class, a_callable_in_a_class, an_attribute_of_a_metaclass,
            a_cached_property, a_missing_key, a_made_dataclass, a_pytree, a_default_factory,
            an_operator, a_constructor, a_mapping, code, a_default_of_a_helper,
            a_virtual_subclass, another_class_of_an_object, a_builtin, a_file, a_memory_view, the_generator_of_jax,
            settings_of_numpy,
        )
    },
}  # fmt: skip


def result(place: Callable[[], Place], remat: Any) -> Any:
    read, change = place()
    run = remat(lambda block, x: block(x) * read())

    @nnx.jit
    def model(layers: Any, x: Any) -> Any:
        for value, block in zip((1.0, 2.0, 1.0, 2.0), layers, strict=True):
            change(value)
            x = run(block, x)
        change(1.0)
        return x

    return model(nnx.List([Block(seed) for seed in range(4)]), X)


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
def test_no_block_computes_with_what_another_one_read(
    place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTEST_FILE_OF_RATES", str(tmp_path / "rates"))
    np.testing.assert_allclose(result(place, nnx.remat), result(place, lambda fn: fn), rtol=1e-5)


# --- effects ----------------------------------------------------------------------------------------------------------


def traces(body: Callable[..., Any]) -> int:
    """The number of different jaxprs of three equal blocks."""
    run = nnx.remat(body)
    model = nnx.jit(lambda layers, x: functools.reduce(lambda x, block: run(block, x), layers, x))
    layers = nnx.List([Block(seed) for seed in range(3)])
    return len({id(jaxpr) for jaxpr in rematerialized(nnx.make_jaxpr(model)(layers, X).jaxpr)})


LOG = logging.getLogger(__name__)
EFFECTS: list[Callable[[], Any]] = [
    lambda: print(end=""),
    lambda: LOG.debug("running"),
    lambda: sys.stdout.write(""),
    lambda: warnings.warn("running", stacklevel=1) if RATE == 3 else None,
    lambda: time.time(),
    lambda: os.urandom(1),
    lambda: open(os.devnull).close(),
    lambda: eval("RATE"),
    lambda: id(object()),
]


@pytest.mark.parametrize("effect", EFFECTS, ids=range(len(EFFECTS)))
def test_a_body_with_other_effects_runs_for_each_block(effect: Callable[[], Any]) -> None:
    assert traces(lambda block, x: (effect(), block(x))[1]) == 3


def test_a_body_that_changes_what_it_reads_runs_for_each_block() -> None:
    global RATE
    seen: list[Any] = []
    space = types.SimpleNamespace(shape=None)

    def body(block: Any, x: Any) -> Any:
        global RATE
        RATE, space.shape = 5.0, x.shape
        return block(x)

    run = nnx.remat(body)

    @nnx.jit
    def model(layers: Any, x: Any) -> Any:
        global RATE
        for block in layers:
            RATE, space.shape = 1.0, None
            x = run(block, x)
            seen.append((RATE, space.shape))
        RATE = 1.0
        return x

    model(nnx.List([Block(seed) for seed in range(3)]), X)
    assert seen == [(5.0, (3,))] * 3


# --- what remains shared ----------------------------------------------------------------------------------------------

ONES, SCALE, ACT = np.ones(3), 0.5, nnx.relu
STREAM = io.StringIO()


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    act: Any = nnx.gelu


def normal(x: Any, epsilon: float = 1e-6) -> Any:
    return x * jax.lax.rsqrt((x * x).mean() + epsilon)


class Writing(Block):
    def write(self) -> None:
        STREAM.write("not called")


CONFIG, NORMAL = Config(), functools.partial(normal, epsilon=1e-5)
SHARED: list[Callable[..., Any]] = [
    lambda block, x: block(x) * ONES * SCALE,
    lambda block, x: ACT(NORMAL(block(x))),
    lambda block, x: CONFIG.act(block(x)) if CONFIG.width == 3 else Writing(0)(x),
    lambda block, x: jax.vmap(lambda row: normal(row))(jnp.stack([block(x), x])).sum(0),
    lambda block, x: block(x) + jax.random.normal(jax.random.key(0), x.shape) * np.sqrt(2),
    lambda block, x: nnx.remat(lambda block, x: block(x))(block, jax.tree.map(jnp.sin, {"x": x})["x"]),
    lambda block, x: jax.lax.cond(x.sum() > 0, normal, lambda x: -x, block(x)),
    lambda block, x: getattr(block, "weight").get_value() * x if isinstance(x, jax.Array) else x,  # noqa: B009
]


@pytest.mark.parametrize("body", SHARED, ids=range(len(SHARED)))
def test_a_body_that_reads_the_same_runs_once(body: Callable[..., Any]) -> None:
    assert traces(body) == 1


class Rates:
    rate = 2.0


def test_nothing_of_a_trace_lives_when_it_has_ended() -> None:
    held = [Rates()]
    run = nnx.remat(lambda block, x: held[0].rate * block(x))
    nnx.jit(lambda block, x: run(block, run(block, x)))(Block(0), X)
    space = weakref.ref(held[0])
    held[0] = Rates()
    gc.collect()
    assert space() is None

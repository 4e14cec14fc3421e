from __future__ import annotations

import gc
import threading
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnx_like as nnx
from nnx_like.errors import AliasError
from tests.fuzz.objects.compare import differences
from tests.fuzz.objects.programs import Body, Generator, Lift, Program, Step


@pytest.mark.parametrize("seed", [*range(36)])
def test_programs_do_what_plain_python_does(seed: int) -> None:
    assert differences(Generator(seed).program()) is None


def _call(name: str, arg: tuple[str, int], *steps: Any, prefix: str = "zero", result: Any = ("none", 0)) -> Lift:
    return Lift(name, (arg,), ("zero", prefix), (Body(steps, (result,)),))


ROOT = ("node", 0)
READ = _call("jit", ROOT, Step("read", 3, 0, 0))

CASES = {
    "a variable is written, and held by another object than the one that is given": Program(
        2,
        _call(
            "named_call",
            ("node", 740),
            Step("add_array", 419, 383, 146),
            Step("tie", 647, 172, 695),
            _call(
                "named_call",
                ("node", 107),
                Step("untie", 94, 351, 432),
                _call("named_call", ("node", 697), Step("write", 335, 424, 921)),
                Step("tie", 544, 568, 395),
            ),
        ),
    ),
    "an array that is added goes out on two axes": Program(
        0, _call("vmap", ("dict", 43), Step("add_array", 426, 974, 623), prefix="params", result=("node", 897))
    ),
    "a list in an object is changed between calls": Program(
        3, READ, ((), (Step("inner", 0, 0, 1),), (Step("append", 0, 1, 1),))
    ),
    "an attribute is set without the object being asked": Program(
        1, READ, ((), *[(Step("vars", 0, 2, number),) for number in range(3)])
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_once_failed(case: str) -> None:
    assert differences(CASES[case]) is None


# --- what is kept from call to call


class Scaled(nnx.Module):
    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.ones(()))
        self.factor = 1.0

    def at(self, x: Any) -> Any:
        return x * self.scale * self.factor


MODEL = Scaled()


def of_global(x: Any) -> Any:
    return MODEL.at(x)


def _held(model: Scaled) -> dict[str, Any]:
    def f(x: Any) -> Any:
        return model.at(x)

    def step(i: Any, x: Any) -> Any:
        return f(x)

    def more(value: Any) -> Any:
        return value[0] + 1, f(value[1])

    def below(value: Any) -> Any:
        return value[0] < 1

    scanned, mapped = nnx.scan(f, in_axes=0, out_axes=0), nnx.batched_map(f)
    again = nnx.scan(nnx.remat(f), in_axes=0, out_axes=0)
    return {
        "cond": lambda x: nnx.cond(True, f, f, x),
        "switch": lambda x: nnx.switch(0, [f, f], x),
        "fori_loop": lambda x: nnx.fori_loop(0, 1, step, x),
        "while_loop": lambda x: nnx.while_loop(below, more, (0, x))[1],
        "scan": scanned,
        "scan of remat": again,
        "batched_map": mapped,
        "vmap": nnx.vmap(f),
    }


@pytest.mark.parametrize("name", _held(MODEL))
def test_a_function_that_holds_a_model_sees_it_as_it_is_now(name: str) -> None:
    model, x = Scaled(), jnp.array([1.0, 2.0])
    run = _held(model)[name]
    assert run(x).tolist() == [1, 2]
    model.scale.set_value(jnp.array(10.0))
    assert run(x).tolist() == [10, 20]
    model.factor = 2.0
    assert run(x).tolist() == [20, 40]


def test_a_function_that_reads_a_global_model_sees_it_as_it_is_now() -> None:
    before = nnx.cond(True, of_global, of_global, jnp.ones(()))
    MODEL.scale.set_value(MODEL.scale.get_value() * 3)
    assert nnx.cond(True, of_global, of_global, jnp.ones(())) == 3 * before


class Settings:
    model = Scaled()


SETTINGS: Any = types.ModuleType("settings")
SETTINGS.model = Settings.model


@pytest.mark.parametrize("run", [lambda x: Settings.model.at(x), lambda x: SETTINGS.model.at(x)])
def test_an_attribute_of_a_module_or_a_class_is_seen_as_it_is_now(run: Any) -> None:
    before = nnx.cond(True, run, run, jnp.ones(()))
    Settings.model.scale *= 2
    assert nnx.cond(True, run, run, jnp.ones(())) == 2 * before


def test_a_loop_of_a_function_that_holds_no_objects_is_kept() -> None:
    runs = []

    def body(x: Any) -> Any:
        return x + nnx.relu(STEP)

    def counted(x: Any) -> Any:
        runs.append(x)
        return body(x)

    kept = nnx.scan(body, in_axes=0, out_axes=0)
    assert [kept(jnp.ones(2)).tolist() for _ in range(2)] == [[2, 2], [2, 2]]
    anew = nnx.scan(counted, in_axes=0, out_axes=0)
    assert [anew(jnp.ones(2)).tolist() for _ in range(2)] == [[2, 2], [2, 2]]
    assert len(runs) == 2


STEP = 1.0


def _uses() -> dict[str, Any]:
    def write(model: Scaled) -> None:
        model.scale += 1

    def raising(model: Scaled) -> None:
        with pytest.raises(ZeroDivisionError):
            nnx.jit(lambda model: 1 / 0)(model)

    written = nnx.jit(write)
    return {
        "jit": written,
        "cond": lambda model: nnx.cond(True, write, lambda model: None, model),
        "cond by closure": lambda model: nnx.cond(True, model.at.__func__, lambda m, x: x, model, 1.0),
        "branches that hold it": lambda model: nnx.cond(True, lambda x: model.at(x), lambda x: x, 1.0),
        "loops that hold it": lambda model: nnx.fori_loop(0, 2, lambda i, x: model.at(x), jnp.ones(())),
        "an error": raising,
    }


@pytest.mark.parametrize("use", _uses())
def test_nothing_keeps_a_model_alive(use: str) -> None:
    model = Scaled()
    model.me = model
    known = weakref.ref(model), weakref.ref(model.scale)
    _uses()[use](model)
    del model
    gc.collect()
    assert [one() for one in known] == [None, None]


def test_threads_call_one_compiled_function_on_their_own_models() -> None:
    @nnx.jit
    def add(model: Scaled, x: Any) -> Any:
        model.scale += x
        model.calls = getattr(model, "calls", 0) + 1
        return model.scale.get_value()

    models, errors = [Scaled() for _ in range(4)], []

    def work(model: Scaled) -> None:
        try:
            for _ in range(5):
                add(model, 1.0)
                model.calls = 0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [float(model.scale) for model in models] == [6.0] * 4


# --- what a body takes out


def test_what_a_body_writes_and_takes_out_is_written() -> None:
    @nnx.jit
    def replace(model: Scaled) -> None:
        model.scale += 1
        model.scale = nnx.Param(jnp.zeros(()))

    model = Scaled()
    scale = model.scale
    replace(model)
    assert (float(scale), float(model.scale)) == (2.0, 0.0)

    @nnx.vmap
    def drop(model: nnx.Dict[Any]) -> None:
        model.inner.name = "written"
        model.inner.w *= 2
        del model.inner

    inner = nnx.Dict(w=nnx.Param(jnp.ones(3)))
    drop(nnx.Dict(inner=inner, v=nnx.Param(jnp.ones(3))))
    assert (inner.name, inner.w.tolist()) == ("written", [2, 2, 2])


def test_an_array_that_is_an_attribute_has_one_axis() -> None:
    model = nnx.Dict(x=jnp.ones((2, 2)))
    with pytest.raises(AliasError, match="is also"):
        nnx.vmap(lambda one, other: one.x + other.x, in_axes=(0, None))(model, model)
    assert nnx.jit(lambda one, other: one.x + other.x)(model, model).shape == (2, 2)
    assert jax.tree.leaves(model)[0].shape == (2, 2)

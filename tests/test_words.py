"""The words of errors where styles are mixed: those of the innermost style that is running."""

import concurrent.futures
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import liftcore
import linen_like
import nnx_like as nnx
from liftcore.errors import AxisSizeError, LiftArgumentError, LiftError, words

Run = Callable[[Callable[[], Any]], Any]
X = jnp.ones(2)


class Runs(linen_like.Module):
    body: Callable[[], Any]

    def __call__(self) -> Any:
        return self.body()


class Holds(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(()))


def in_core(body: Callable[[], Any]) -> Any:
    return liftcore.apply(lambda scope: body())({})


def in_linen(body: Callable[[], Any]) -> Any:
    return Runs(body, parent=None).apply({})


def in_nnx(body: Callable[[], Any]) -> Any:
    return nnx.jit(lambda model: body())(Holds())


STYLES: dict[str, Run] = {"scope": in_core, "self": in_linen, "objects": in_nnx}


def spoken() -> str:
    found = words()
    option = found.option("shard_map", "variable_specs")
    if found.first == "":
        assert (found.scope, found.function("vmap"), option) == ("scope", "liftcore.vmap", "in_specs")
        return "objects"
    call = {"scope": "liftcore.vmap", "self": "nn.vmap"}[found.scope]
    assert (found.function("vmap"), option, found.aside(" (x)")) == (call, "variable_specs", " (x)")
    return found.scope


@pytest.mark.parametrize("outer", STYLES)
@pytest.mark.parametrize("middle", STYLES)
@pytest.mark.parametrize("inner", STYLES)
def test_the_innermost_style_speaks(outer: str, middle: str, inner: str) -> None:
    heard: list[str] = []

    def innermost() -> None:
        heard.append(spoken())

    def around() -> None:
        heard.append(spoken())
        STYLES[inner](innermost)
        heard.append(spoken())

    STYLES[outer](lambda: STYLES[middle](around))
    assert heard == [middle, inner, middle]
    assert spoken() == "scope"


def test_an_exception_leaves_the_words_of_the_style_around_it() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    def around() -> str:
        for run in STYLES.values():
            with pytest.raises(ZeroDivisionError):
                run(fails)
        return spoken()

    assert in_linen(around) == "self"
    assert spoken() == "scope"


def test_each_thread_has_its_own_words() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert in_linen(lambda: pool.submit(spoken).result()) == "scope"
        assert in_linen(lambda: pool.submit(in_linen, spoken).result()) == "self"


@pytest.mark.parametrize(("first", "second"), [("nnx_like", "linen_like"), ("linen_like", "nnx_like")])
def test_the_order_of_imports_does_not_matter(first: str, second: str) -> None:
    code = f"""
        import {first}, jax, jax.numpy as jnp
        if "{first}" == "nnx_like":
            {first}.jit(lambda m: 1)({first}.Param(jnp.ones(())))
        else:
            {first}.Dense(1).init(jax.random.key(0), jnp.ones((1, 1)))
        import {second}
        from tests.test_words import in_linen, in_nnx, spoken
        seen = []
        in_linen(lambda: in_nnx(lambda: seen.append(spoken())))
        in_nnx(lambda: in_linen(lambda: seen.append(spoken())))
        assert seen == ["objects", "self"], seen
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        run, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 0, done.stderr


# --- errors -----------------------------------------------------------------------------------------------------------


def caught(body: Callable[[], Any], run: Run = lambda body: body()) -> LiftError:
    with pytest.raises(LiftError) as error:
        run(body)
    return error.value


class Parted(linen_like.Module):
    @linen_like.compact
    def __call__(self) -> Any:
        self.param("w", lambda key: jnp.ones(()))
        lifted = linen_like.shard_map(
            lambda module, x: x, mesh=MESH, in_specs=P("d"), out_specs=P("d"), variable_specs={"params": P("d")}
        )
        return lifted(self, X)


P = PartitionSpec
MESH = Mesh(np.array(jax.devices()[:1]), ("d",))


def parted_objects() -> Any:
    specs = nnx.StateSharding({...: P("d")}), P("d")
    return nnx.shard_map(lambda model, x: x, mesh=MESH, in_specs=specs, out_specs=P("d"))(Holds(), X)


@pytest.mark.parametrize("run", STYLES.values(), ids=STYLES)
def test_the_option_is_that_of_the_style_whose_lift_fails(run: Run) -> None:
    error = caught(lambda: Parted(parent=None).init(jax.random.key(0)), run)
    assert error.option == "variable_specs"
    assert "in `variable_specs`" in error.fix
    error = caught(parted_objects, run)
    assert error.option == "in_specs"
    assert "in `in_specs`" in error.fix


@pytest.mark.parametrize("run", STYLES.values(), ids=STYLES)
def test_a_function_of_a_scope_is_advised_about_its_scope(run: Run) -> None:
    def mapped(scope: liftcore.Scope) -> Any:
        scope.param("w", lambda key: jnp.ones(3))
        lifted = liftcore.vmap(lambda scope, x: x, variable_axes={"params": 0}, in_axes=0)
        return lifted(scope, X)

    error = caught(lambda: liftcore.init(mapped)(jax.random.key(0)), run)
    assert isinstance(error, AxisSizeError)
    assert "nnx" not in str(error)
    assert "at /" in error.where
    assert error.variable == "params/w"

    read = caught(lambda: liftcore.apply(lambda scope: scope.param("w", None))({"params": {}}), run)
    assert "self." not in str(read)


def test_whether_variables_have_the_axis_can_be_set() -> None:
    error = AxisSizeError("here", "wrong.", "Mend it.")
    assert not error.has_variables
    error.has_variables = True
    assert error.has_variables
    assert AxisSizeError("here", "wrong.", "Mend it.", variable="params/w").has_variables


def test_a_fact_names_the_option_as_the_style_does() -> None:
    def body() -> LiftArgumentError:
        return LiftArgumentError('"s/a" in while_loop(f) at /', "wrong.", "Mend it.", option="variable_carry")

    assert [run(body).option for run in (in_core, in_linen)] == ["variable_carry", "carry_variables"]

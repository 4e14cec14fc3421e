"""What holds for every lifted transformation alike, over functions of a module; see `rows`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import JaxTransformError, LiftArgumentError
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes
from tests.linen.rows import ROWS, STACKED, UNCHANGED

rows = pytest.mark.parametrize("row", ROWS)
unchanged = pytest.mark.parametrize("row", UNCHANGED)
stacked = pytest.mark.parametrize("row", STACKED)

RULES = ("custom_vjp", "custom_jvp")
"""Rows with a rule, which is traced too."""

READERS = ("custom_vmap",)
"""Rows whose function writes nothing."""

FORWARD = ("custom_vmap", "while_loop")
"""Rows without a derivative in reverse, in JAX too."""

RUNS: list[str] = []


class Block(nn.Module):
    """Makes a submodule and variables, draws, and writes."""

    writes: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS.append("block")
        scale = self.param("scale", nn.initializers.normal(), (3,))
        offset = self.variable("consts", "offset", lambda: jnp.full((), 0.5))
        seen = self.variable("state", "seen", lambda: jnp.zeros(()))
        if self.writes and self.is_mutable_collection("state"):
            seen.value += 1
        return jnp.tanh(nn.Dense(3)(x) * (1 + scale)) + offset.value


class Model(nn.Module):
    """Runs a block under rows, the outermost first, between layers of its own."""

    rows: tuple[str, ...] = ()
    writes: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        fn: Any = Block.__call__
        for row in reversed(self.rows):
            fn = functools.partial(ROWS[row], fn)
        return nn.Dense(3)(fn(Block(self.writes, name="block"), nn.Dense(3)(x)))


def models(row: str) -> tuple[Model, Model]:
    """A model with a row, and the same without."""
    writes = row not in READERS
    return Model((row,), writes), Model((), writes)


def runs(fn: Any, *args: Any) -> int:
    """How often the body runs."""
    RUNS.clear()
    fn(*args)
    return len(RUNS)


def loss(model: Any, params: Any, rest: Any, x: Any) -> Any:
    y, mutated = model.apply({**rest, "params": params}, x, mutable=["state"])
    return (y**2).sum(), mutated


def parts(variables: Any) -> tuple[Any, Any]:
    """Parameters and other variables."""
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}


@unchanged
def test_variables_are_those_of_the_function_itself(row: str) -> None:
    model, plain = models(row)
    y, variables = model.init_with_output(KEY, X)
    expected_y, expected = plain.init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)


@unchanged
def test_values_writes_and_gradients_are_those_of_the_function_itself(row: str) -> None:
    model, plain = models(row)
    variables = plain.init(KEY, X)
    run = loss if row in FORWARD else jax.value_and_grad(loss, (1, 3), has_aux=True)
    assert_close(run(model, *parts(variables), X), run(plain, *parts(variables), X))


@stacked
def test_variables_are_made_along_new_axes(row: str) -> None:
    axes = (2, 2) if row == "remat_scan" else (2,)
    model, plain = models(row)
    variables, expected = model.init(KEY, X), plain.init(KEY, X)
    for collection in ("params", "state"):
        inside = expected[collection]["block"]
        assert shapes(variables[collection]["block"]) == jax.tree.map(lambda leaf: (*axes, *leaf.shape), inside)
    kernels = np.reshape(variables["params"]["block"]["Dense_0"]["kernel"], (-1, 3, 3))
    assert all((kernels[0] != other).all() for other in kernels[1:])


@rows
def test_body_runs_once_in_init_apply_and_gradient(row: str) -> None:
    model, _ = models(row)
    once = 2 if row in RULES else 1
    variables = model.init(KEY, X)
    assert runs(model.init, KEY, 2 * X) in (once, 0)  # 0 is a cached call of `jit`
    assert runs(loss, model, *parts(variables), X) in ((once, 0) if row == "jit" else (once,))
    if row not in FORWARD:
        assert runs(jax.grad(loss, 1, has_aux=True), model, *parts(variables), X) in (once, 0)


# --- nested -----------------------------------------------------------------------------------------------------------


def steps(fn: Any, mdl: Any, x: Any) -> Any:
    """A loop that carries the state, which its body makes and writes."""
    shared = {"variable_broadcast": ["params", "consts"], "variable_carry": "state", "split_rngs": False}
    return nn.scan(lambda mdl, x, _: (fn(mdl, x), None), length=3, **shared)(mdl, x, None)[0]


class Nested(Model):
    """A block under two rows, the outer one being `steps` where its name says so."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        fn: Any = Block.__call__
        for row in reversed(self.rows):
            fn = functools.partial({**ROWS, "steps": steps}[row], fn)
        return fn(Block(self.writes, name="block"), x)


@pytest.mark.parametrize("outer", ["steps", "vmap_shared", "remat"])
@unchanged
def test_rows_nest_in_loops_mappings_and_remat(outer: str, row: str) -> None:
    model, plain = (Nested(some, row not in READERS) for some in ((outer, row), (outer,)))
    y, variables = model.init_with_output(KEY, X)
    expected_y, expected = plain.init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    once = 2 if row in RULES or (row, outer) == ("custom_vmap", "vmap_shared") else 1
    assert runs(loss, model, *parts(variables), X) in ((once, 0) if row == "jit" else (once,))
    assert_close(loss(model, *parts(variables), X), loss(plain, *parts(variables), X))


@pytest.mark.parametrize("inner", ["steps", "jit"])
@unchanged
def test_loops_and_jit_nest_in_rows(inner: str, row: str) -> None:
    model, plain = (Nested(some, row not in READERS) for some in ((row, inner), (inner,)))
    y, variables = model.init_with_output(KEY, X)
    expected_y, expected = plain.init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    assert_close(loss(model, *parts(variables), X), loss(plain, *parts(variables), X))


# --- captured values --------------------------------------------------------------------------------------------------

AXES = {
    **dict.fromkeys(ROWS, ()),
    "vmap": (2,),
    "vmap_shared": (2,),
    "map": (2,),
    "map_shared": (3,),
    "pmap": (1,),
    "shard_map": (1,),
    "scan": (2,),
    "scan_shared": (1,),
    "remat_scan": (2, 2),
    "fori_loop": (1,),
}
"""The axes that captured values gain."""


UNKNOWN = r"number of iterations is unknown, so that values cannot be stacked"


class Watched(nn.Module):
    """Sows, and perturbs."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = self.perturb("h", nn.Dense(3)(x))
        self.sow("intermediates", "mean", h.mean())
        return jnp.tanh(h)


class Watching(nn.Module):
    row: str | None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        watched = Watched(name="watched")
        return watched(x) if self.row is None else ROWS[self.row](Watched.__call__, watched, x)


@rows
def test_sown_values_pass_through(row: str) -> None:
    model = Watching(row)
    variables = {"params": model.init(KEY, X)["params"]}
    y = model.apply(variables, X)
    if row == "while_loop":
        with pytest.raises(
            LiftArgumentError, match=r"number of iterations is unknown, so that values cannot be stacked"
        ):
            model.apply(variables, X, mutable=["intermediates"])
        return
    kept_y, kept = model.apply(variables, X, mutable=["intermediates"])
    assert_close(kept_y, y)
    assert shapes(kept) == {"intermediates": {"watched": {"mean": (AXES[row],)}}}


@rows
def test_outputs_are_captured_inside(row: str) -> None:
    model = Watching(row)
    variables = {"params": model.init(KEY, X)["params"]}
    if row == "while_loop":
        with pytest.raises(
            LiftArgumentError, match=r"number of iterations is unknown, so that values cannot be stacked"
        ):
            model.apply(variables, X, capture_intermediates=True)
        return
    y, kept = model.apply(variables, X, capture_intermediates=True)
    assert_close(y, model.apply(variables, X))
    found = kept["intermediates"]["watched"]
    assert shapes(found["Dense_0"]["__call__"]) == shapes(found["__call__"]) == ((*AXES[row], *X.shape),)


@pytest.mark.parametrize("row", [name for name in ROWS if name not in (*FORWARD, *RULES)])
def test_perturbations_pass_through(row: str) -> None:
    def loss(perturbations: Any, row: str | None) -> Any:
        return (Watching(row).apply({"params": params, "perturbations": perturbations}, X) ** 2).sum()

    variables = Watching(row).init(KEY, X)
    params, perturbations = variables["params"], variables["perturbations"]
    axes = () if row in ("fori_loop", "shard_map") else AXES[row]  # they are shared there
    assert shapes(perturbations) == {"watched": {"h": (*axes, *X.shape)}}
    grads = jax.grad(loss)(perturbations, row)["watched"]["h"]
    assert (grads != 0).any()
    if row in UNCHANGED:
        plain = jax.grad(loss)({"watched": {"h": jnp.zeros_like(X)}}, None)["watched"]["h"]
        assert_close(grads.sum(tuple(range(len(axes)))), plain)
    assert_close(Watching(row).apply({"params": params}, X), Watching(row).apply(variables, X))


# --- raw transformations inside ---------------------------------------------------------------------------------------


@rows
def test_raw_transformation_inside_a_row_is_an_error(row: str) -> None:
    class Raw(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def fn(mdl: Any, x: Any) -> Any:
                return jax.checkpoint(lambda x: mdl(x))(x)

            return ROWS[row](fn, nn.Dense(3), x)

    with pytest.raises(JaxTransformError, match=r"jax\.checkpoint was applied .* `nn\.checkpoint`"):
        Raw().init(KEY, X)

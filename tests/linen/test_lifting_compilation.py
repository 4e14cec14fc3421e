"""`nn.named_call`, `nn.checkify`, `nn.eval_shape` and `nn.purify`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.checkify import check, float_checks

import linen_like as nn
from linen_like.errors import LiftArgumentError
from tests.linen.lifted import KEY, RNGS, Block, X, assert_close, assert_same, dense_of, shapes

# --- named_call -------------------------------------------------------------------------------------------------------


def text(fn: Any, *args: Any) -> str:
    return jax.jit(fn).lower(*args).as_text(debug_info=True)


def test_named_call_changes_no_name_and_no_value() -> None:
    class Model(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x, _ = self.lift(Block)()(x)
            x = self.lift(lambda mdl, x: nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x)))(self, x)
            return nn.Dense(3)(x)

    y, variables = Model(nn.named_call).init_with_output(RNGS, X)
    plain_y, plain = Model(lambda fn: fn).init_with_output(RNGS, X)
    assert_same(variables, plain)
    assert_close(y, plain_y)
    assert sorted(variables["params"]) == ["Block_0", "Dense_0", "Dense_1"]


def test_named_call_names_functions_in_profiles() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.attend(nn.named_call(lambda mdl, x: mdl.dense(x), force=False)(self, x))

        @nn.named_call
        def attend(self, x: Any) -> Any:
            return jnp.sin(x)

    variables = Model().init(KEY, X)
    assert "attend" in text(Model().apply, variables, X)
    assert nn.named_call(nn.Dense).__name__ == "Named_callDense"
    with pytest.raises(LiftArgumentError, match=r"nn\.named_call: expected a Module class or a function"):
        nn.named_call(nn.Dense(3))


# --- jit --------------------------------------------------------------------------------------------------------------


def test_calls_of_one_module_share_a_trace_however_much_was_drawn() -> None:
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            runs.append(1)
            return x + jax.random.normal(self.make_rng("noise"))

    class Model(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            noisy = self.lift(Noisy)(name="noisy")
            return noisy(x), noisy(x), nn.Dense(3)(x), noisy(x)

    runs: list[int] = []
    rngs = {"params": KEY, "noise": KEY}
    lifted, plain = Model(nn.jit), Model(lambda cls: cls)
    variables = plain.init(rngs, X)
    runs.clear()
    y = lifted.apply(variables, X, rngs=rngs)
    assert len(runs) == 1
    assert_close(y, plain.apply(variables, X, rngs=rngs))


# --- checkify ---------------------------------------------------------------------------------------------------------


class Root(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, ())
        calls = self.variable("state", "calls", lambda: jnp.zeros(()))
        calls.value += 1
        check(x >= 0, "{x} has no root", x=x)
        return scale * jnp.sqrt(x)

    def log(self, x: Any) -> Any:
        return jnp.log(x)


def test_checks_of_a_class_become_a_value_and_state_is_written() -> None:
    Checked = nn.checkify(Root)
    (error, _), variables = Checked().init_with_output(KEY, jnp.float32(-1))
    assert error.get() == "-1.0 has no root (`check` failed)"
    assert variables == {"params": {"scale": 1}, "state": {"calls": 1}}
    for x, told in ((4.0, None), (-4.0, "-4.0 has no root (`check` failed)")):
        (error, _), mutated = jax.jit(lambda x: Checked().apply(variables, x, mutable="state"))(jnp.float32(x))
        assert error.get() == told
        assert mutated["state"] == {"calls": 2}
    assert_close(jax.grad(lambda x: Checked().apply(variables, x, mutable="state")[0][1])(4.0), 0.25)


def test_checks_of_functions_methods_and_in_other_lifts() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            roots = nn.checkify(lambda mdl, x: nn.Dense(1)(x[None]))
            return nn.vmap(roots, {"params": None}, False)(self, x)

    error, y = Model().init_with_output(KEY, X[0])[0]
    assert error.get() is None
    assert y.shape == (3, 1)
    error, _ = nn.checkify(Root, float_checks, methods="log")().apply({}, -1.0, method="log")
    assert "nan" in error.get()


# --- eval_shape -------------------------------------------------------------------------------------------------------


def test_eval_shape_leaves_the_module_as_it_was() -> None:
    class Model(nn.Module):
        look: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            if self.look:

                def body(mdl: Any, x: Any, *, flag: str) -> Any:
                    mdl.variable("state", "late", lambda: jnp.zeros(()))
                    mdl.sow("intermediates", "kept", x)
                    return {flag: nn.Dense(3)(x) + jax.random.normal(mdl.make_rng("params"))}

                shape = nn.eval_shape(body, self, jax.ShapeDtypeStruct((5, 3), x.dtype), flag="y")
                assert shape == {"y": jax.ShapeDtypeStruct((5, 3), jnp.float32)}
            return nn.Dense(3)(x)

    for kwargs in ({}, {"mutable": True}):
        assert_same(Model(True).init(KEY, X, **kwargs), Model(False).init(KEY, X, **kwargs))
    variables = Model(True).init(KEY, X)
    applied = (Model(look).apply(variables, X, rngs=KEY, mutable=["state", "intermediates"]) for look in (True, False))
    assert_same(*applied)


# --- purify -----------------------------------------------------------------------------------------------------------


class Field(nn.Module):
    """A vector field, integrated by code that knows pure functions only."""

    noisy: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = nn.Dense(3, name="scale")

        def field(mdl: Any, x: Any, t: Any) -> Any:
            x = nn.Dense(3, name="field")(x) * scale(x)
            return x + jax.random.normal(mdl.make_rng("noise")) if self.noisy else t * x

        pure, variables = nn.purify(field, self, x, 0.0)
        rngs = {"noise": KEY} if self.noisy else None
        return jax.lax.fori_loop(0, 4, lambda i, x: x + 0.1 * pure(variables, x, 0.1 * i, rngs=rngs), x)


def test_purify_makes_variables_once_and_serves_raw_transformations() -> None:
    y, variables = Field().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["field", "scale"]
    field, scale = dense_of(variables, "field"), dense_of(variables, "scale")
    x = X
    for i in range(4):
        x = x + 0.1 * 0.1 * i * field(x) * scale(x)
    assert_close(y, x)
    assert_close(Field().apply(variables, X), x)
    grads = jax.grad(lambda variables: Field().apply(variables, X).sum())(variables)
    assert all(jnp.any(leaf) for leaf in jax.tree.leaves(grads))


def test_purified_function_outlives_its_module_and_writes_where_it_is_asked_to() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def count(mdl: Any, x: Any) -> Any:
                calls = mdl.variable("state", "calls", lambda: jnp.zeros(()))
                if calls.is_mutable():
                    calls.value += 1
                return nn.Dense(3)(x)

            kept.append(nn.purify(count, self, x))
            return x

    kept: list[Any] = []
    variables = Model().init(KEY, X)
    ((pure, own),) = kept
    assert_same(own, variables)
    y, mutated = pure(own, X, mutable=["state"])
    assert mutated == {"state": {"calls": 1}}
    assert_close(y, dense_of(own, "Dense_0")(X))
    assert_close(jax.vmap(lambda x: pure(own, x))(X), y)
    assert shapes(jax.grad(lambda own: pure(own, X).sum())(own)["params"]) == shapes(own["params"])


def test_purified_function_draws_from_sequences_by_name() -> None:
    y = Field(noisy=True).init_with_output(RNGS, X)[0]
    assert jnp.isfinite(y).all()

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import InvalidRngError, LazyInitError, ModifyScopeVariableError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Model(nn.Module):
    """One of everything that a module can do with variables."""

    size: int = 4

    @nn.compact
    def __call__(self, x: Any, scale: float = 1.0) -> Any:
        count = self.variable("state", "count", lambda start: jnp.array(start), 0)
        if not self.is_initializing() and self.is_mutable_collection("state"):
            count.value += 1
        w = self.param("w", nn.initializers.ones, (x.shape[-1], self.size))
        self.sow("intermediates", "x", x)
        return scale * self.head(x @ w)

    def head(self, x: Any) -> Any:
        return nn.Dense(2)(x)

    def probe(self) -> Any:
        return self.has_variable("state", "count"), self.get_variable("state", "other", 7), self.has_rng("noise")


VARIABLES = Model().init(KEY, X)


def test_init_makes_all_but_intermediates() -> None:
    assert jax.tree.map(jnp.shape, VARIABLES) == {
        "params": {"Dense_0": {"kernel": (4, 2), "bias": (2,)}, "w": (3, 4)},
        "state": {"count": ()},
    }
    assert set(Model().init(KEY, X, mutable=["params", "intermediates", "state"])) == {
        "params",
        "state",
        "intermediates",
    }


def test_init_takes_keyword_arguments_and_methods() -> None:
    y, variables = Model().init_with_output({"params": KEY}, x=X, scale=2.0)
    assert (y == Model().apply(variables, X, scale=2.0)).all()

    class Other(nn.Module):
        @nn.compact
        def run(self, *, x: Any) -> Any:
            return nn.Dense(2)(x)

    for method in ("run", Other.run, Other().run, lambda module, x: module.run(x=x)):
        assert set(Other().init(KEY, x=X, method=method)["params"]) == {"Dense_0"}


def test_lazy_init_needs_no_numbers() -> None:
    shaped = jax.ShapeDtypeStruct(X.shape, X.dtype)
    lazy = Model().lazy_init(KEY, shaped)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), lazy, VARIABLES))

    class FromData(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> None:
            self.param("mean", lambda key: x.mean())

    with pytest.raises(LazyInitError):
        FromData().lazy_init(KEY, shaped)


def test_apply_returns_what_it_wrote_where_asked() -> None:
    y = Model().apply(VARIABLES, X)
    also, mutated = Model().apply(VARIABLES, X, mutable=["state"])
    assert (y == also).all()
    assert mutated == {"state": {"count": 1}}
    assert VARIABLES["state"]["count"] == 0
    assert set(Model().apply(VARIABLES, X, mutable=nn.DenyList("params"))[1]) == {"state", "intermediates"}


@pytest.mark.parametrize("method", ["probe", Model.probe, Model().probe, lambda model: model.probe()])
def test_apply_runs_any_method(method: Any) -> None:
    assert Model().apply(VARIABLES, method=method) == (True, 7, False)


def test_one_key_is_the_sequence_of_params() -> None:
    class Draw(nn.Module):
        def __call__(self, name: str) -> Any:
            return jax.random.key_data(self.make_rng(name))

    alone, named = Draw().apply({}, "params", rngs=KEY), Draw().apply({}, "params", rngs={"params": KEY})
    assert (alone == named).all()
    assert (Draw().apply({}, "noise", rngs={"noise": KEY}) == alone).all()
    with pytest.raises(InvalidRngError, match=r'make_rng\("noise"\) at /: .*rngs=\{"noise"'):
        Draw().apply({}, "noise")
    with pytest.raises(InvalidRngError, match=r'rngs\["params"\]: expected one PRNG key, given 3'):
        Draw().apply({}, "params", rngs=3)  # type: ignore[arg-type]


def test_variables_and_paths_of_a_submodule() -> None:
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            inner = Model(name="inner")
            inner(x)
            inner.put_variable("state", "extra", 3)
            return inner.variables, inner.path

    (variables, path), made = Outer().init_with_output(KEY, X, mutable=["params", "state"])
    assert path == ("inner",)
    assert variables["state"] == made["state"]["inner"] == {"count": 0, "extra": 3}


def test_write_of_an_immutable_collection_is_an_error() -> None:
    class Writes(nn.Module):
        def __call__(self) -> None:
            self.put_variable("state", "n", 1)

    with pytest.raises(ModifyScopeVariableError, match=r'"state/n" at /: .*mutable=\["state"\]'):
        Writes().apply({"state": {"n": 0}})


def test_functions_of_a_module_become_pure() -> None:
    def twice(model: Any, x: Any) -> Any:
        return model(x) + model(x)

    y, variables = nn.init_with_output(twice, Model())(KEY, X)
    assert jax.tree.structure(nn.init(twice, Model())(KEY, X)) == jax.tree.structure(variables)
    assert (nn.apply(twice, Model())(variables, X) == y).all()
    _, mutated = nn.apply(twice, Model(), mutable=["state"], capture_intermediates=True)(variables, X)
    assert mutated["state"]["count"] == 2
    assert len(mutated["intermediates"]["__call__"]) == 2


def test_apply_composes_with_jax() -> None:
    params, state = VARIABLES["params"], VARIABLES["state"]

    @jax.jit
    def loss(params: Any, x: Any) -> Any:
        return Model().apply({"params": params, "state": state}, x).sum()

    assert jax.tree.map(jnp.shape, jax.grad(loss)(params, X)) == jax.tree.map(jnp.shape, params)
    assert jax.vmap(loss, (None, 0))(params, jnp.ones((5, 2, 3))).shape == (5,)
    assert jax.eval_shape(Model().init, KEY, X)["params"]["w"].shape == (3, 4)


def test_merge_param_wants_exactly_one_value() -> None:
    assert nn.merge_param("train", False, None) is False
    assert nn.merge_param("train", None, 0) == 0
    for values in ((None, None), (1, 1)):
        with pytest.raises(ValueError, match='"train": it was given'):
            nn.merge_param("train", *values)


def test_modules_are_listed_by_dir() -> None:
    class Net(nn.Module):
        def setup(self) -> None:
            self.head = nn.Dense(2)

    assert "head" in dir(Net().bind({}))
    assert "head" not in dir(Net())

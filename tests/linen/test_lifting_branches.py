"""`nn.cond` and `nn.switch`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import LiftArgumentError, UnboundModuleError, UnliftedCollectionError
from tests.linen.lifted import KEY, RNGS, X, assert_close, assert_same, dense_of, shapes


class Gate(nn.Module):
    """One of two layers, with names of their own."""

    @nn.compact
    def __call__(self, x: Any, deep: Any) -> Any:
        def one(mdl: Any, x: Any) -> Any:
            return nn.Dense(3, name="one")(x)

        def two(mdl: Any, x: Any) -> Any:
            mdl.sow("intermediates", "mean", x.mean())
            return nn.Dense(3, name="b")(nn.tanh(nn.Dense(3, name="a")(x)))

        return nn.cond(deep, two, one, self, x)


def test_both_branches_own_their_parameters_and_one_runs() -> None:
    made = [Gate().init(KEY, X, deep) for deep in (True, False)]
    assert_same(*made)
    variables = made[0]
    assert sorted(variables["params"]) == ["a", "b", "one"]
    a, b, one = (dense_of(variables, name) for name in ("a", "b", "one"))
    assert_close(Gate().apply(variables, X, False), one(X))
    assert_close(Gate().apply(variables, X, True), b(nn.tanh(a(X))))
    assert_close(jax.jit(Gate().apply)(variables, X, True), b(nn.tanh(a(X))))


def test_gradients_are_those_of_the_branch_that_runs() -> None:
    variables = Gate().init(KEY, X, True)
    grads = jax.grad(lambda variables: Gate().apply(variables, X, False).sum())(variables)["params"]
    np.testing.assert_allclose(grads["one"]["bias"], [2.0, 2.0, 2.0])
    assert not any(jnp.any(leaf) for leaf in jax.tree.leaves({"a": grads["a"], "b": grads["b"]}))


def test_values_sown_in_a_branch_that_does_not_run_are_zero() -> None:
    variables = Gate().init(KEY, X, True)
    for deep in (True, False):
        _, kept = Gate().apply(variables, X, deep, mutable=["intermediates"])
        (mean,) = kept["intermediates"]["mean"]
        np.testing.assert_allclose(mean, X.mean() if deep else 0.0)


def test_automatic_names_are_shared_by_branches_and_go_on_after_the_longer_one() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            layers = [
                lambda mdl, x: x,
                lambda mdl, x: nn.Dense(3)(x),
                lambda mdl, x: nn.Dense(3)(nn.Dense(3)(x)),
            ]
            x = nn.switch(1, layers, self, x)
            return nn.Dense(3)(x)

    y, variables = Model().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2", "Dense_3"]
    first, second, last = (dense_of(variables, name) for name in ("Dense_0", "Dense_1", "Dense_3"))
    assert_close(y, last(second(first(X))))


def test_draws_of_branches_begin_where_the_call_found_them() -> None:
    class Model(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            def draw(mdl: Any, x: Any) -> Any:
                return x + jax.random.normal(mdl.make_rng("dropout"))

            y = draw(self, x)
            y = nn.cond(True, draw, lambda mdl, x: x, self, y) if self.lifted else draw(self, y)
            return draw(self, y)

    assert_close(Model(True).apply({}, X, rngs=RNGS), Model(False).apply({}, X, rngs=RNGS))


def test_a_branch_writes_and_another_leaves_as_it_was() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, index: Any) -> Any:
            count = self.variable("state", "count", lambda: jnp.float32(1))

            def double(mdl: Any, x: Any) -> Any:
                count.value *= 2
                return x

            def add(mdl: Any, x: Any) -> Any:
                count.value += 10
                return x

            return nn.switch(index, [double, lambda mdl, x: x, add], self, x)

    for index, expected in ((-3, 2), (0, 2), (1, 1), (2, 11), (9, 11)):  # an index out of range is clamped
        _, mutated = Model().apply({"state": {"count": jnp.float32(1)}}, X, index, mutable=["state"])
        assert mutated["state"]["count"] == expected


def test_methods_may_be_branches_and_modules_operands() -> None:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.encoder, self.decoder = nn.Dense(3), nn.Dense(3)

        def encode(self, x: Any, scale: Any) -> Any:
            return self.encoder(x) * scale

        def decode(self, x: Any, scale: Any) -> Any:
            return self.decoder(x)

        def __call__(self, x: Any, encode: Any) -> Any:
            return nn.cond(encode, Coder.encode, Coder.decode, self, x, 2.0)

    variables = Coder().init(KEY, X, True)
    assert sorted(variables["params"]) == ["decoder", "encoder"]
    assert_close(Coder().apply(variables, X, True), 2 * dense_of(variables, "encoder")(X))
    assert_close(Coder().apply(variables, X, False), dense_of(variables, "decoder")(X))


def test_filters_say_what_is_lifted_down_to_single_variables() -> None:
    class Model(nn.Module):
        variables_: Any = True
        rngs: Any = True

        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.param("kernel", nn.initializers.ones, (3,))
            self.param("lora", nn.initializers.ones, (3,))

            def body(mdl: Any, x: Any) -> Any:
                return x * mdl.get_variable("params", "lora")

            def other(mdl: Any, x: Any) -> Any:
                return x * mdl.get_variable("params", "kernel")

            branch = functools.partial(nn.cond, x.sum() > 0, body, variables=self.variables_, rngs=self.rngs)
            return branch(other, self, x) if self.variables_ is True else branch(lambda mdl, x: x, self, x)

    variables = Model().init(KEY, X)
    lora = filters.All("params", filters.PathContains("lora"))
    assert_close(Model(lora).apply(variables, X), X)
    with pytest.raises(UnliftedCollectionError, match=r'"params/lora" at /cond\(body\).*to `variables`'):
        Model(filters.PathContains("kernel")).apply(variables, X)


def test_branches_must_agree_about_a_variable() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            make = [lambda mdl, x, n=n: x * mdl.param("w", nn.initializers.ones, (n,)).sum() for n in (1, 2)]
            return nn.switch(0, make, self, x)

    with pytest.raises(LiftArgumentError, match=r'"params/w" in switch\(<lambda>\) at /: branch 1 creates it as'):
        Model().init(KEY, X)


def test_wrong_uses_are_told() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.switch(0, [], self, x)

    with pytest.raises(LiftArgumentError, match=r"nn\.switch: expected at least one function, given \[\]"):
        Model().init(KEY, X)
    with pytest.raises(LiftArgumentError, match=r"nn\.cond: expected a module as the first argument, given a float32"):
        nn.cond(True, lambda mdl, x: x, lambda mdl, x: x, X)
    with pytest.raises(UnboundModuleError, match=r"Dense \(unbound\)"):
        nn.cond(True, lambda mdl, x: x, lambda mdl, x: x, nn.Dense(3), X)


def test_loops_of_branches_keep_what_these_write() -> None:
    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            def count(mdl: Any, x: Any) -> Any:
                even = mdl.variable("state", "seen", lambda: jnp.zeros((), int))
                even.value += 1
                return nn.Dense(3, name="even")(x)

            step = self.variable("state", "step", lambda: jnp.zeros((), int))
            step.value += 1
            return nn.cond(step.value % 2 == 0, count, lambda mdl, x: nn.Dense(3, name="odd")(x), self, x), None

    Loop = nn.scan(Step, {"params": 0}, False, "state", {"params": True}, length=5)
    (y, _), variables = Loop().init_with_output(KEY, X, None)
    assert variables["state"] == {"seen": 2, "step": 5}
    assert shapes(variables["params"]["even"]) == {"bias": (5, 3), "kernel": (5, 3, 3)}
    x = X
    for index in range(5):
        name = "odd" if index % 2 == 0 else "even"
        x = nn.Dense(3).apply({"params": jax.tree.map(lambda leaf, i=index: leaf[i], variables["params"][name])}, x)
    assert_close(y, x)


def test_methods_of_the_module_and_of_submodules_are_branches() -> None:
    """They need no module as an argument; one that asks for it is given it."""

    class Model(nn.Module):
        def setup(self) -> None:
            self.deep, self.wide = nn.Dense(3), nn.Dense(3)

        def own(self, x: Any) -> Any:
            return 2 * self.deep(x)

        def asking(self, mdl: Any, x: Any) -> Any:
            return 2 * mdl.wide(x)

        def __call__(self, x: Any, index: Any, lifted: bool = True) -> Any:
            if lifted:
                return nn.switch(index, [self.own, self.asking, self.deep.__call__], self, x)
            return [self.own(x), self.asking(self, x), self.deep(x)][index]

    variables = Model().init(KEY, X, 0)
    assert sorted(variables["params"]) == ["deep", "wide"]
    for index in range(3):
        assert_close(Model().apply(variables, X, index), Model().apply(variables, X, index, lifted=False))


def test_a_bound_method_lifted_by_itself_is_called_on_the_module_inside() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def one(self, x: Any) -> Any:
            return self.dense(x)

        def __call__(self, x: Any) -> Any:
            return nn.vmap(self.one, variable_axes={"params": None}, split_rngs={"params": False})(self, x)

    y, variables = Model().init_with_output(KEY, X)
    assert_close(y, nn.Dense(3).apply({"params": variables["params"]["dense"]}, X))

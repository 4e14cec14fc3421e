"""Modules and variables that reach a lift otherwise than as its module: in closures, as operands, in tuples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import JaxTransformError, LiftArgumentError, UnboundModuleError
from linen_like.rebuilding.splitting import closed_over, with_closed_over
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes
from tests.linen.rows import ROWS, STACKED, UNCHANGED

FORWARD = ("custom_vmap", "while_loop")
"""Rows without a derivative in reverse."""

unchanged = pytest.mark.parametrize("row", UNCHANGED)
writing = pytest.mark.parametrize("row", [row for row in UNCHANGED if row != "custom_vmap"])

Build = Callable[[Any, Any, Callable[..., Any]], Any]


class Model(nn.Module):
    """Builds something with modules, where `run(fn, mdl, x)` runs a function under a row or as it is."""

    build: Build
    row: str | None = None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        plain = self.row is None
        return self.build(self, x, (lambda fn, mdl, x: fn(mdl, x)) if plain else functools.partial(ROWS[self.row]))


def loss(params: Any, rest: Any, x: Any, model: Any) -> Any:
    y, mutated = model.apply({**rest, "params": params}, x, mutable=["state"])
    return (y**2).sum(), mutated


def check_like_plain(build: Build, row: str) -> None:
    """Variables, values, writes and gradients are those of the same model without the row."""
    model, plain = Model(build, row), Model(build)
    y, variables = model.init_with_output(KEY, X)
    expected_y, expected = plain.init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    rest = {name: tree for name, tree in variables.items() if name != "params"}
    run = loss if row in FORWARD else jax.value_and_grad(loss, (0, 2), has_aux=True)
    assert_close(run(variables["params"], rest, X, model), run(variables["params"], rest, X, plain))


# --- closures ---------------------------------------------------------------------------------------------------------


def children_and_variable(self: Any, x: Any, run: Any) -> Any:
    own, other = nn.Dense(3, name="own"), nn.Dense(3, name="other")
    count = self.variable("state", "count", lambda: jnp.zeros(()))

    def body(mdl: Any, x: Any) -> Any:
        if count.is_mutable():
            count.value += 1
        return own(x) + other(x) * count.value

    return other(run(body, self, x))


@writing
def test_children_and_variables_in_a_closure_are_lifted_too(row: str) -> None:
    check_like_plain(children_and_variable, row)


def itself_and_its_children(self: Any, x: Any, run: Any) -> Any:
    first = nn.Dense(3)
    x = run(lambda mdl, x: first(x) + self.param("w", nn.initializers.normal(), (3,)) * nn.Dense(3)(x), self, x)
    return nn.Dense(3)(first(x))


@unchanged
def test_module_itself_in_a_closure_is_the_one_that_is_given(row: str) -> None:
    check_like_plain(itself_and_its_children, row)


def through_functions(self: Any, x: Any, run: Any) -> Any:
    dense = nn.Dense(3, name="dense")

    def inner(x: Any, depth: int) -> Any:
        return dense(x) if depth == 0 else inner(jnp.tanh(x), depth - 1)

    def with_default(x: Any, *, layers: Any = {"a": [dense]}) -> Any:  # noqa: B006
        return layers["a"][0](x)

    half = functools.partial(lambda layer, by, x: layer(by * x), dense, 0.5)
    method = dense.__call__

    def body(mdl: Any, x: Any) -> Any:
        return inner(x, 2) + with_default(x) + half(x) + method(x)

    return run(body, self, x)


@unchanged
def test_functions_in_a_closure_are_looked_into(row: str) -> None:
    check_like_plain(through_functions, row)


class Setup(nn.Module):
    row: str | None

    def setup(self) -> None:
        self.first, self.second = nn.Dense(3), nn.Dense(3)
        self.steps = self.variable("state", "steps", lambda: jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        def body(mdl: Any, x: Any) -> Any:
            if self.steps.is_mutable():
                self.steps.value += 1
            return self.helper(x) + mdl.second(x)

        x = self.first(x)
        return self.second(body(self, x) if self.row is None else ROWS[self.row](body, self, x))

    def helper(self, x: Any) -> Any:
        return self.first(x) * self.steps.value


@writing
def test_closures_of_setup_modules(row: str) -> None:
    y, variables = Setup(row).init_with_output(KEY, X)
    expected_y, expected = Setup(None).init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    assert_close(Setup(row).apply(variables, X, mutable="state"), Setup(None).apply(variables, X, mutable="state"))


@pytest.mark.parametrize("row", STACKED)
def test_child_in_a_closure_is_stacked_as_the_module_itself(row: str) -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            child = nn.Dense(3, name="child")
            return ROWS[row](lambda mdl, x: child(x) + nn.Dense(3, name="own")(x), self, x)

    y, variables = Inner().init_with_output(KEY, X)
    assert shapes(variables["params"]["own"]) == shapes(variables["params"]["child"])
    assert variables["params"]["own"]["bias"].ndim > 1
    assert_close(Inner().apply(variables, X), y)


# --- closures over what lies elsewhere --------------------------------------------------------------------------------


class Elsewhere(nn.Module):
    """A lifted child whose function holds its parent, and a sibling."""

    row: str | None
    use: str
    scale: float = 2.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        sibling, child = nn.Dense(3, name="sibling"), nn.Dense(3, name="child")
        sibling(x)
        seen = self.variable("state", "seen", lambda: jnp.zeros(()))
        x = nn.Dense(3)(x)

        def body(child: Any, x: Any) -> Any:
            y = child(x) * self.scale
            if self.use == "read":
                return y + sibling(x) * seen.value
            if self.use == "write":
                seen.value += 1
            if self.use == "make":
                self.param("late", nn.initializers.ones, ())
            return y

        return body(child, x) if self.row is None else ROWS[self.row](body, child, x)


@pytest.mark.parametrize("use", ["fields", "read"])
@unchanged
def test_fields_and_variables_of_modules_elsewhere_may_be_read(row: str, use: str) -> None:
    model, plain = Elsewhere(row, use), Elsewhere(None, use)
    variables = plain.init(KEY, X)
    if use == "fields":
        assert_same(model.init(KEY, X), variables)
    assert_close(model.apply(variables, X), plain.apply(variables, X))


@pytest.mark.parametrize("use", ["write", "make"])
@pytest.mark.parametrize("row", [row for row in (*UNCHANGED, *STACKED) if row != "named_call"])  # which is no lift
def test_modules_elsewhere_are_neither_written_nor_extended(row: str, use: str) -> None:
    with pytest.raises(JaxTransformError, match=r"^\w+.* at /: it belongs outside .*as arguments or fields"):
        Elsewhere(row, use).init(KEY, X)


def test_gradients_take_closures_for_constants() -> None:
    def build(self: Any, x: Any, run: Any) -> Any:
        other = nn.Dense(3, name="other")
        other(x)
        return nn.grad(lambda mdl, x: (mdl(x) * other(x)).sum(), nn.Dense(3, name="own"), x, wrt="params")

    grads, variables = Model(build).init_with_output(KEY, X)
    other = nn.Dense(3).apply({"params": variables["params"]["other"]}, X)
    assert_close(grads, {"params": {"bias": other.sum(0), "kernel": X.T @ other}})


def test_what_is_not_found_in_a_closure_is_an_error_where_it_defines() -> None:
    class Holder:
        def __init__(self, module: Any) -> None:
            self.module = module

    def build(self: Any, x: Any, run: Any) -> Any:
        holder = Holder(nn.Dense(3))
        return nn.remat(lambda mdl, x: holder.module(x))(self, x)

    with pytest.raises(JaxTransformError, match=r"it belongs outside remat\(<lambda>\).*as arguments or fields"):
        Model(build).init(KEY, X)


def test_cells_without_modules_stay_the_ones_that_nonlocal_writes() -> None:
    def build(self: Any, x: Any, run: Any) -> Any:
        dense, calls = nn.Dense(3), 0

        def body(mdl: Any, x: Any) -> Any:
            nonlocal calls
            calls += 1
            return dense(x)

        y = nn.remat(body)(self, x)
        assert calls == 1
        return y

    Model(build).init(KEY, X)


def test_held_and_holding_find_each_once_and_rebuild_what_holds() -> None:
    first, second = nn.Dense(1), nn.Dense(2)

    def one(x: Any) -> Any:
        return first, x

    def two(x: Any) -> Any:
        return one(x), second, two

    assert closed_over(two) == [first, second] or closed_over(two) == [second, first]
    assert closed_over(len) == closed_over(functools.partial(len)) == []
    made = with_closed_over(two, lambda module: module.features)
    assert made(0)[:2] == ((1, 0), 2)
    assert made(0)[2] is made
    assert two(0)[1] is second
    assert (made.__name__, made.__qualname__, made.__doc__) == (two.__name__, two.__qualname__, two.__doc__)
    assert with_closed_over(len, lambda module: None) is len


# --- operands ---------------------------------------------------------------------------------------------------------

OPERANDS: dict[str, Callable[..., Any]] = {
    "vmap": lambda fn, mdl, *args: nn.vmap(
        fn, {"params": None, "state": None}, False, in_axes=None, out_axes=None, axis_size=2
    )(mdl, *args),
    "scan": lambda fn, mdl, *args: nn.scan(
        lambda mdl, x, *args: (fn(mdl, *args[:-1], x), None),
        {},
        ["params"],
        "state",
        False,
        in_axes=nn.broadcast,
        length=1,
    )(mdl, args[-1], *args)[0],
    "cond": lambda fn, mdl, *args: nn.cond(jnp.bool_(True), fn, lambda mdl, *args: args[-1], mdl, *args),
    "switch": lambda fn, mdl, *args: nn.switch(jnp.int32(0), [fn, lambda mdl, *args: args[-1]], mdl, *args),
    "value_and_grad": lambda fn, mdl, *args: nn.value_and_grad(
        lambda mdl, *args: (0.0, fn(mdl, *args)), mdl, *args, has_aux=True
    )[0][1],
    "vjp": lambda fn, mdl, *args: nn.vjp(fn, mdl, *args, multi_scope=True)[0],
    "jvp": lambda fn, mdl, *args: nn.jvp(fn, mdl, args, args, None)[0],
    "linearize": lambda fn, mdl, *args: nn.linearize(fn, mdl, *args)[0],
    "jit": lambda fn, mdl, *args: nn.jit(fn)(mdl, *args),
    "remat": lambda fn, mdl, *args: nn.remat(fn)(mdl, *args),
    "checkify": lambda fn, mdl, *args: nn.checkify(fn)(mdl, *args)[1],
    "map_variables": lambda fn, mdl, *args: nn.map_variables(fn, "params", init=True)(mdl, *args),
    "with_rngs": lambda fn, mdl, *args: nn.with_rngs(fn, {"noise": jax.random.key(0)})(mdl, *args),
    "custom_vjp": lambda fn, mdl, *args: nn.custom_vjp(
        fn, lambda mdl, *args: nn.vjp(fn, mdl, *args), lambda pullback, cotangent: pullback(cotangent)
    )(mdl, *args),
}
"""Rows that take further arguments, as `run(fn, mdl, *args)`."""


class Operands(nn.Module):
    row: str | None
    bound: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = nn.Dense(3, name="dense")
        count = self.variable("state", "count", lambda: jnp.zeros(()))

        def body(mdl: Any, layers: Any, count: Any, again: Any, x: Any) -> Any:
            assert layers["a"][0] is again
            if count.is_mutable():
                count.value += 1
            return again(x) + count.value + nn.Dense(3)(x)

        args = {"a": [dense]}, count, dense, x
        return dense(body(self, *args) if self.row is None else OPERANDS[self.row](body, self, *args))


@pytest.mark.parametrize("row", OPERANDS)
def test_modules_and_variables_among_operands_are_lifted_once_each(row: str) -> None:
    y, variables = Operands(row).init_with_output(KEY, X)
    expected_y, expected = Operands(None).init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    assert_close(
        Operands(row).apply(variables, X, mutable="state"), Operands(None).apply(variables, X, mutable="state")
    )


def test_variable_may_be_a_field() -> None:
    class Counts(nn.Module):
        count: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.count.value += 1
            return nn.Dense(3)(x)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            count = self.variable("state", "count", lambda: jnp.zeros(()))
            for lift in (nn.remat, nn.jit):
                x = lift(Counts)(count)(x)
            return x

    variables = Outer().init(KEY, X)
    assert variables["state"] == {"count": 2}
    assert Outer().apply(variables, X, mutable="state")[1]["state"] == {"count": 4}


# --- several modules --------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    row: str | None
    nested: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        a, b = nn.Dense(3, name="a"), nn.Dense(3, name="b")

        def body(modules: Any, x: Any) -> Any:
            return modules["one"](x) * modules["two"][0](jnp.tanh(modules["two"][1](x)))

        modules = {"one": a, "two": [b, a]}
        if self.row is None:
            return body(modules, x)
        if self.nested:
            return nn.remat(functools.partial(ROWS[self.row], body))(modules, x)
        return ROWS[self.row](body, modules, x)


NESTED = ("vmap_shared", "scan_shared", "cond", "vjp", "custom_vjp", "jit")


@pytest.mark.parametrize(("row", "nested"), [*((row, False) for row in UNCHANGED), *((row, True) for row in NESTED)])
def test_module_may_be_a_pytree_of_modules(row: str, nested: bool) -> None:
    y, variables = Pair(row, nested).init_with_output(KEY, X)
    expected_y, expected = Pair(None, nested).init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    assert_close(Pair(row, nested).apply(variables, X), y)


class Family(nn.Module):
    row: str | None

    def setup(self) -> None:
        self.child = nn.Dense(3)

    def __call__(self, x: Any) -> Any:
        def body(modules: Any, x: Any) -> Any:
            parent, child, again = modules
            return parent.child(x) * child(x) + again(x)

        modules = self, self.child, self.child
        return body(modules, x) if self.row is None else ROWS[self.row](body, modules, x)


@unchanged
def test_parent_with_its_child_given_twice(row: str) -> None:
    y, variables = Family(row).init_with_output(KEY, X)
    expected_y, expected = Family(None).init_with_output(KEY, X)
    assert_same(variables, expected)
    assert_close(y, expected_y)
    run = loss if row in FORWARD else jax.value_and_grad(loss, has_aux=True)
    assert_close(run(variables["params"], {}, X, Family(row)), run(variables["params"], {}, X, Family(None)))


def test_tuples_with_anything_but_bound_modules_are_refused() -> None:
    def build(self: Any, x: Any, run: Any) -> Any:
        return nn.cond(True, lambda mdl, x: x, lambda mdl, x: x, self.row, x)

    with pytest.raises(LiftArgumentError, match=r"nn\.cond: expected a module as the first argument, given '"):
        Model(build, "cond").init(KEY, X)

    def unbound(self: Any, x: Any, run: Any) -> Any:
        return nn.cond(True, lambda mdl, x: x, lambda mdl, x: x, (self, nn.Dense(3, parent=None)), x)

    with pytest.raises(UnboundModuleError, match=r"nn\.cond of Dense \(unbound\)"):
        Model(unbound).init(KEY, X)

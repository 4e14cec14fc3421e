"""The fix of an error is the line that its user writes: of scopes in a function of a scope, of modules in a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import LiftError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Net(nn.Module):
    """Does what a function says."""

    act: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.act(self, x)


def jitted(fn: Any) -> Any:
    """A lift from inside, with one equation: nobody can tell what it creates from the rest."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        def inner(variables: Any, rngs: Any, *args: Any) -> Any:
            scope = scope_fn(variables, rngs)
            return fn(scope, *args), repack_fn(scope)

        return jax.jit(inner)(variables, rngs, *args)

    return liftcore.pack(transform, [True], [True], [True], name="jitted")


def count(place: Any, x: Any) -> Any:
    place.variable("state", "n", lambda: 0).value += 1
    return x


def double(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, variables)


def in_one_branch(place: Any, x: Any) -> Any:
    place.put_variable("state", "n", x)
    return x


def with_rule(lifted: Any) -> Any:
    lifted.defjvp(count)
    return lifted


USES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, str]] = {
    "a raw transformation": (
        lambda scope, x: jax.vmap(lambda x: scope.param("w", lambda key: x))(x),
        lambda mdl, x: jax.vmap(lambda x: mdl.param("w", lambda key: x))(x),
        "Use the lifted transformation: `liftcore.vmap`.",
        "Use the lifted transformation: `nn.vmap`.",
    ),
    "a raw transformation without a lifted form": (
        lambda scope, x: jax.make_jaxpr(lambda x: scope.make_rng("params"))(x),
        lambda mdl, x: jax.make_jaxpr(lambda x: mdl.make_rng("params"))(x),
        "Transform a pure function instead, for example one made by `liftcore.purify`.",
        "Transform a pure function instead, for example one made by `nn.purify`.",
    ),
    "a parameter without a text as its name": (
        lambda scope, x: scope.param(3, jax.nn.initializers.ones, ()),
        lambda mdl, x: mdl.param(3, jax.nn.initializers.ones, ()),
        "Write `scope.param(name, init_fn)`.",
        "Write `self.param(name, init_fn)`.",
    ),
    "a collection of no name": (
        lambda scope, x: scope.variable(3, "n", lambda: 0),
        lambda mdl, x: mdl.variable(3, "n", lambda: 0),
        'Write `scope.variable(collection, name, init_fn)`, with a collection such as "state".',
        'Write `self.variable(collection, name, init_fn)`, with a collection such as "state".',
    ),
    "a variable without an initializer": (
        lambda scope, x: scope.variable("state", "n"),
        lambda mdl, x: mdl.variable("state", "n"),
        'Pass one: `scope.variable("state", "n", init_fn)`.',
        'Pass one: `self.variable("state", "n", init_fn)`.',
    ),
    "a variable that a branch alone writes": (
        lambda scope, x: liftcore.cond(in_one_branch, lambda scope, x: x)(scope, True, x),
        lambda mdl, x: nn.cond(True, in_one_branch, lambda mdl, x: x, mdl, x),
        "Create it first, `scope.variable(collection, name, init_fn)`, in the branch or before it.",
        "Create it first, `self.variable(collection, name, init_fn)`, in the branch or before it.",
    ),
    "a variable that an operator makes": (
        lambda scope, x: liftcore.associative_scan(lambda scope, a, b: count(scope, a + b))(scope, x),
        lambda mdl, x: nn.associative_scan(lambda mdl, a, b: count(mdl, a + b), mdl, x),
        "Create it before the scan, and read it here: `scope.get_variable(…)`.",
        "Create it before the scan, and read it here: `self.get_variable(…)`.",
    ),
    "a loop that writes what it shares": (
        lambda scope, x: liftcore.while_loop(lambda s, x: x.sum() < 9, lambda s, x: count(s, x + 1))(scope, x),
        lambda mdl, x: nn.while_loop(lambda m, x: x.sum() < 9, lambda m, x: count(m, x + 1), mdl, x),
        'Carry it: `variable_carry="state"`.',
        'Carry it: `carry_variables="state"`.',
    ),
    "a loop of known length that writes what it shares": (
        lambda scope, x: liftcore.fori_loop(lambda s, i, x: count(s, x))(scope, 0, 2, x),
        lambda mdl, x: nn.fori_loop(0, 2, lambda mdl, i, x: count(mdl, x), mdl, x),
        'Carry it: `variable_carry="state"`.',
        'Carry it: `carry_variables="state"`.',
    ),
    "a scan that writes what it shares": (
        lambda scope, x: liftcore.scan(lambda s, c, _: (count(s, c), None), 2, variable_broadcast="state")(
            scope, x, None
        ),
        lambda mdl, x: nn.scan(lambda m, c, _: (count(m, c), None), length=2, variable_broadcast="state")(mdl, x, None),
        'Carry it: `variable_carry="state"`.',
        'Carry it: `variable_carry="state"`.',
    ),
    "a loop that takes no variables": (
        lambda scope, x: liftcore.while_loop(lambda s, x: x.sum() < 9, count, variable_broadcast=False)(scope, x),
        lambda mdl, x: nn.while_loop(lambda m, x: x.sum() < 9, count, mdl, x, broadcast_variables=False),
        'Add `variable_carry="state"` or `variable_broadcast="state"`.',
        'Add `carry_variables="state"` or `broadcast_variables="state"`.',
    ),
    "a scan in a loop that takes no variables": (
        lambda scope, x: liftcore.while_loop(
            lambda s, x: x.sum() < 9,
            lambda s, x: liftcore.scan(lambda s, x, _: (count(s, x), None), 2)(s, x, None)[0],
        )(scope, x),
        lambda mdl, x: nn.while_loop(
            lambda m, x: x.sum() < 9,
            lambda m, x: nn.scan(lambda m, x, _: (count(m, x), None), length=2)(m, x, None)[0],
            mdl,
            x,
        ),
        'Add `variable_axes={"state": 0}`, `variable_broadcast="state"` or `variable_carry="state"`.',
        'Add `variable_axes={"state": 0}`, `variable_broadcast="state"` or `variable_carry="state"`.',
    ),
    "a lift of one equation in a loop": (
        lambda scope, x: liftcore.scan(lambda s, x, _: (jitted(count)(s, x), None), 2, variable_carry="state")(
            scope, x, None
        ),
        lambda mdl, x: nn.scan(
            lambda m, x, _: (nn.lift_with(jitted, lambda m, x: count(m, x))(m, x), None),
            length=2,
            variable_carry="state",
        )(mdl, x, None),
        "Write the lift that creates it with `liftcore.transformation` and `liftcore.outline` (or `liftcore.Loop`, "
        "or `body.split`), which compute initial values outside, or create it before that lift.",
        "Write the lift that creates it with `nn.transformation` and `liftcore.outline` (or `liftcore.Loop`, "
        "or `body.split`), which compute initial values outside, or create it before that lift.",
    ),
    "a map of variables that is not undone": (
        lambda scope, x: liftcore.map_variables(
            lambda s, x: s.param("w", lambda key: x), "params", lambda v: {"params": {"v": v}}, init=True
        )(scope, x),
        lambda mdl, x: nn.map_variables(
            lambda m, x: m.param("w", lambda key: x), "params", lambda v: {"params": {"v": v}}, init=True
        )(mdl, x),
        "Make `map_in` undo what `map_out` does to names, shapes and dtypes.",
        "Make `trans_in_fn` undo what `trans_out_fn` does to names, shapes and dtypes.",
    ),
    "a write of a variable that a map only shows": (
        lambda scope, x: liftcore.map_variables(count, "state", lambda v: v, init=True)(scope, x),
        lambda mdl, x: nn.map_variables(count, "state", lambda v: v, init=True)(mdl, x),
        "To write them through `map_out`, add `mutable=True`.",
        "To write them through `trans_out_fn`, add `mutable=True`.",
    ),
    "a tangent of a variable that is not there": (
        lambda scope, x: liftcore.jvp(count)(scope, (x,), (x,), {"params": {"w": x}}),
        lambda mdl, x: nn.jvp(count, mdl, (x,), (x,), {"params": {"w": x}}),
        'Choose the variables with `wrt`, such as `wrt="params"`.',
        "Pass tangents of existing variables only.",
    ),
    "a rule without a derivative for the scope": (
        lambda scope, x: with_rule(liftcore.custom_jvp(count, nondiff_argnums=(0,)))(scope, x),
        lambda mdl, x: nn.custom_jvp(count, count, nondiff_argnums=(0,))(mdl, x),
        "Count from 1; choose its variables with `wrt`.",
        "Count from 1; choose its variables with `grad_vars`.",
    ),
}


def fix_of(fn: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(LiftError) as caught:
        fn(*args)
    assert str(caught.value).endswith(caught.value.fix)
    assert caught.value.args == (caught.value.where, caught.value.what, caught.value.fix)
    return caught.value.fix


@pytest.mark.parametrize("use", USES)
def test_the_fix_is_what_the_user_of_each_layer_writes(use: str) -> None:
    of_scope, of_module, core, module = USES[use]
    assert fix_of(liftcore.init(of_scope), KEY, X) == core
    assert fix_of(Net(of_module).init, KEY, X) == module


def test_a_rule_that_runs_after_the_method_speaks_of_modules() -> None:
    def scale(mdl: Any, x: Any) -> Any:
        return x * mdl.param("w", lambda key: jnp.ones(()))

    def ruled(mdl: Any, x: Any) -> Any:
        forward, backward = lambda mdl, x: (scale(mdl, x), None), lambda _, y: ({"params": {"v": 1.0}}, y)
        return nn.custom_vjp(scale, forward, backward)(mdl, x)

    variables = Net(ruled).init(KEY, X)
    fix = fix_of(jax.grad(lambda variables: Net(ruled).apply(variables, X).sum()), variables)
    assert fix == 'Choose the variables with `grad_vars`, such as `grad_vars="params"`.'


@pytest.mark.parametrize("lifted", ["while_loop", "fori_loop"])
def test_options_in_the_fix_of_a_loop_do_what_they_say(lifted: str) -> None:
    def loop(mdl: Any, x: Any, **options: Any) -> Any:
        if lifted == "fori_loop":
            return nn.fori_loop(0, 3, lambda mdl, i, x: count(mdl, x), mdl, x, **options)
        return nn.while_loop(lambda m, x: x.sum() < 24, lambda m, x: count(m, x + 1), mdl, x, **options)

    with pytest.raises(LiftError) as caught:
        Net(loop).init(KEY, X)
    assert "(broadcast_variables)" in caught.value.what
    option, _, collection = caught.value.fix.partition("`")[2].rstrip(".`").partition("=")
    variables = Net(lambda mdl, x: loop(mdl, x, **{option: collection.strip('"')})).init(KEY, X)
    assert variables["state"] == {"n": 3}


def test_a_lift_of_a_bound_module_speaks_of_modules_and_scopes_beside_it_do_not() -> None:
    def body(mdl: Any, x: Any) -> Any:
        mdl.put_variable("state", "n", x)
        return x + 1

    bound = nn.Dense(3).bind({"state": {"n": X}}, mutable="state")
    told = fix_of(nn.while_loop, lambda m, x: x.sum() < 9, body, bound, X)
    assert told == 'Carry it: `carry_variables="state"`.'
    scope = liftcore.bind({}, KEY, mutable=True)
    told = fix_of(lambda: scope.variable("state", "n"))
    assert told == 'Pass one: `scope.variable("state", "n", init_fn)`.'


def test_an_error_keeps_its_words_when_it_is_made_again() -> None:
    def act(mdl: Any, x: Any) -> Any:
        with pytest.raises(LiftError) as caught:
            mdl.variable("state", "n")
        error = caught.value
        assert str(type(error)(error.where, error.what, error.fix)) == str(error)
        return x

    Net(act).init(KEY, X)

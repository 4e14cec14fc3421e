"""Law 11: an initial value may read anything made before it in the body, alone and inside every other lift.

The body is asked of every row of the table of transformations, alone, in a loop that carries what it reads, in one that
stacks it, and in a mapping; it must give what the plain loop gives, in `init`, in `apply` and in derivatives.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore.filters import PathContains, to_predicate
from tests.laws.test_laws import assert_equals_the_loop
from tests.lift.own import inline
from tests.lift.quick import uniform
from tests.lift.rows.row import Row, unchanged
from tests.lift.rows.views import seen_greater
from tests.lift.table import TABLE, refused

ROWS: dict[str, Row] = {
    **TABLE,
    "a lift of one's own": unchanged(inline),
    "map_variables, all": seen_greater("params", "state", "counter"),
    "map_variables, all but one": seen_greater("params", "state"),
    "map_variables, what is read": seen_greater("counter"),
}
AROUND = {
    "alone": (),
    "in a scan that carries": ("scan",),
    "in a scan that stacks": ("scan, shared",),
    "in a vmap": ("vmap",),
}
MIXED = ("scan", "remat", "scan, shared", "jit", "vmap", "cond", "fori_loop", "map_variables, all", "vjp")


def derived(scope: Any, x: Any) -> Any:
    """Makes variables whose initial values read an input, a key and each other; some are written before others read."""
    n = scope.variable("counter", "n", lambda: jnp.zeros(()))
    from_input = scope.variable("state", "from_input", lambda: 2 * x)
    from_variable = scope.variable("state", "from_variable", lambda: n.value + jnp.arange(3.0))
    from_key = scope.variable("state", "from_key", lambda: uniform(scope.make_rng("dropout")))
    written(scope, "counter", n, n.value + 1)
    written(scope, "state", from_key, from_key.value * x)
    last = scope.variable("state", "last", lambda: from_variable.value * n.value + from_key.value)
    written(scope, "state", from_variable, from_variable.value + 0.5 * n.value)
    values = [one.value for one in (from_input, from_variable, from_key, last)]
    return jnp.tanh(x * scope.param("w", uniform, (3,)) + sum(jnp.sin((at + 1) * one) for at, one in enumerate(values)))


def written(scope: Any, collection: str, variable: Any, value: Any) -> None:
    if scope.is_mutable_collection(collection):
        variable.value = value


def fits(name: str, around: tuple[str, ...]) -> bool:
    return not any(ROWS[name].refuses & ROWS[outer].needs for outer in around)


def nested(names: tuple[str, ...], way: str) -> Callable[..., Any]:
    """The body under some rows, the first of them innermost."""
    return wrapped(derived, names, way)


def wrapped(body: Callable[..., Any], names: tuple[str, ...], way: str) -> Callable[..., Any]:
    for name in names:
        body = getattr(ROWS[name], way)(body)
    return body


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ROWS)
def test_law_11_an_initial_value_reads_what_was_made_before_it(name: str, around: str) -> None:
    if not fits(name, AROUND[around]):
        pytest.skip("JAX cannot nest them")
    names = (name, *AROUND[around])
    assert_equals_the_loop(nested(names, "lifted"), nested(names, "plain"), refused(set(names) & TABLE.keys()))


@pytest.mark.rest
@pytest.mark.parametrize("inner", MIXED)
@pytest.mark.parametrize("outer", ["scan", "scan, shared"])
def test_law_11_two_deep_in_a_scan(inner: str, outer: str) -> None:
    for middle in ("remat", "scan", "vmap"):
        names = (inner, middle, outer)
        refuses = refused(set(names) & TABLE.keys())
        if not any(refuses & ROWS[name].needs for name in names):
            assert_equals_the_loop(nested(names, "lifted"), nested(names, "plain"), refuses)


def chained(scope: Any, x: Any) -> Any:
    """Makes variables of one collection and of others that read each other, all before any is written."""
    draws = scope.is_initializing()
    n = scope.variable("counter", "n", lambda: jnp.zeros(()))
    first = scope.variable("state", "first", lambda: n.value + jnp.arange(3.0))
    second = scope.variable("state", "second", lambda: (first.value[::-1] + x, uniform(scope.make_rng("dropout"))))
    w = scope.variable("state", "w", lambda: second.value[0] * scope.param("u", uniform, (3,))).value
    last = scope.variable("state", "last", lambda: second.value[1] + first.value + w)
    written(scope, "counter", n, n.value + 1)
    written(scope, "state", first, first.value + n.value)
    return jnp.tanh(x * w + first.value + second.value[0] * second.value[1] + jnp.sin(last.value)) + draws


VIEWS = ("map_variables", *(name for name in ROWS if name.startswith("map_variables, ")))


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", VIEWS)
def test_law_11_a_mapped_variable_reads_others_as_the_body_sees_them(name: str, around: str) -> None:
    ways = functools.partial(wrapped, chained, (name, *AROUND[around]))
    assert_equals_the_loop(ways("lifted"), ways("plain"), refused(AROUND[around]))


@pytest.mark.parametrize(
    "inner", ["vmap", "scan, shared", "cond", "jit", "map_variables", "map_variables, all but one"]
)
def test_law_11_what_a_lift_makes_inside_is_read_as_maps_around_it_show_it(inner: str) -> None:
    ways = functools.partial(wrapped, chained, (inner, "map_variables, all"))
    assert_equals_the_loop(ways("lifted"), ways("plain"), refused({inner} & TABLE.keys()))


# -- the cases that the law was found with -----------------------------------------------------------------------------

KEY = jax.random.key(0)


def counted(plus: bool) -> Callable[..., Any]:
    def body(scope: Any, c: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        scope.variable("log", "w", (lambda: n.value + c) if plus else (lambda: n.value))
        n.value = n.value + 1
        return c * 1.0

    return body


@pytest.mark.parametrize("plus", [False, True])
def test_a_variable_is_read_as_it_stands_in_each_iteration(plus: bool) -> None:
    body = counted(plus)
    for lift in (lambda fn: fn, liftcore.remat, liftcore.jit, liftcore.checkify, inline):

        def step(scope: Any, c: Any, _: Any, lift: Any = lift) -> Any:
            lift(body)(scope, c)
            return c, None

        over = liftcore.scan(step, length=3, variable_axes={"log": 0}, variable_carry="state")
        _, made = liftcore.init(over)(KEY, 10.0, None)
        _, given = liftcore.apply(over, mutable=True)({"state": {"n": jnp.zeros(())}}, 10.0, None)
        assert made["log"]["w"].tolist() == given["log"]["w"].tolist() == [10.0 * plus + at for at in range(3)]


def test_what_a_later_branch_derives_it_derives_from_the_value_that_stays() -> None:
    def first(scope: Any) -> Any:
        return scope.variable("state", "w", lambda: jnp.float32(1)).value

    def second(scope: Any) -> Any:
        w = scope.variable("state", "w", lambda: jnp.float32(5))
        return scope.variable("state", "v", lambda: 10 * w.value).value

    for lift in (lambda fn: fn, liftcore.remat, liftcore.jit):
        for branch in (True, False):
            model = lift(lambda scope, branch=branch: liftcore.cond(first, second)(scope, branch))
            assert liftcore.init(model)(KEY)[1] == {"state": {"w": 1.0, "v": 10.0}}


@pytest.mark.parametrize("given", [False, True])
def test_an_output_that_reads_a_carried_variable_is_not_the_same_in_all_iterations(given: bool) -> None:
    def body(scope: Any, c: Any, _: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        n.value += 1
        return c, n.value

    over = liftcore.scan(body, length=3, variable_carry="state", out_axes=liftcore.broadcast)
    run = liftcore.apply(over, mutable=True) if given else liftcore.init(over)
    with pytest.raises(liftcore.errors.LoopInvarianceError, match="broadcast"):
        run({"state": {"n": jnp.zeros(())}} if given else KEY, 0.0, None)


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat])
def test_what_all_elements_share_may_not_read_what_each_of_them_has(lift: Any) -> None:
    def body(scope: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        return scope.variable("log", "w", lambda: n.value + 1).value

    model = lift(liftcore.vmap(body, axis_size=3, variable_axes={"state": 0, "log": None}))
    with pytest.raises(
        liftcore.errors.LoopInvarianceError, match=r"\['log/w'\] is shared .* `variable_axes=\{\"log\": 0\}`"
    ):
        liftcore.init(model)(KEY)
    with pytest.raises(liftcore.errors.LoopInvarianceError, match=r"\['log/w'\]"):
        liftcore.apply(model, mutable=True)({"state": {"n": jnp.zeros(3)}})


def test_a_mapped_variable_reads_one_that_is_not_mapped() -> None:
    def body(scope: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(2))
        w = scope.variable("params", "w", lambda: n.value + jnp.arange(2.0))
        n.value = n.value + 1
        return scope.variable("log", "v", lambda: 10 * w.value + n.value).value

    def transposed(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[::-1], tree)

    mapped = liftcore.map_variables(body, "params", transposed, transposed, init=True)
    over = liftcore.scan(
        lambda scope, c, _: (c, mapped(scope)), length=2, variable_axes={"params": 0, "log": 0}, variable_carry="state"
    )
    (_, ys), made = liftcore.init(over)(KEY, 0.0, None)
    assert made["params"]["w"].tolist() == [[1.0, 0.0], [2.0, 1.0]]
    assert ys.tolist() == made["log"]["v"].tolist() == [[1.0, 11.0], [12.0, 22.0]]


@pytest.mark.parametrize(
    "mapped", [("state", "log"), "state", ("log", PathContains("n")), (PathContains("ten"), "log")]
)
def test_what_reads_a_carried_variable_through_a_map_differs_between_iterations(mapped: Any) -> None:
    def body(scope: Any) -> None:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        w = scope.variable("log", "w", lambda: n.value + 1)
        scope.variable("state", "ten", lambda: 10 * w.value)
        n.value += 1

    def negated(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: -leaf, tree)

    lifted = liftcore.map_variables(body, mapped, negated, negated, mutable=True)
    loop = liftcore.scan(
        lambda scope, c, _: (c, lifted(scope)),
        length=3,
        variable_axes={"log": 0, PathContains("ten"): 0},
        variable_carry=PathContains("n"),
    )
    expected = {("state", "n"): 3.0, ("log", "w"): [1.0, 2.0, 3.0], ("state", "ten"): [10.0, 20.0, 30.0]}
    for (collection, name), value in expected.items():
        sign = -1 if to_predicate(mapped)((collection, name), None) else 1
        for model in (loop, liftcore.jit(loop), liftcore.remat(loop)):
            made = liftcore.init(model)(KEY, 0.0, None)[1]
            assert (sign * made[collection][name]).tolist() == value


# -- one way to make them ----------------------------------------------------------------------------------------------


def uses(tree: ast.AST, names: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                yield called


@pytest.mark.always
def test_initial_values_are_made_by_a_prologue_alone() -> None:
    """Lifts cut equations and run them in `splitting` alone, and tag what they make by `make`.

    `sharded_init` is no lift: it cuts a whole `init` in portions. Nor is `generate`, which cuts a model after its last
    attention.
    """
    root = pathlib.Path(liftcore.__file__).parent
    cutting = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if set(uses(ast.parse(path.read_text()), frozenset({"cut", "needed", "jaxpr_as_fun"})))
    }
    lifting = {f"pipeline/{name}.py" for name in ("equations", "narrowing", "splitting")}
    assert cutting == lifting | {"generation/positions.py", "sharded_init.py"}
    made = {
        path.relative_to(root).as_posix(): set(uses(ast.parse(path.read_text()), frozenset({"Prologue", "make"})))
        for path in root.rglob("*.py")
    }
    assert not {name for name, calls in made.items() if "Prologue" in calls and "make" not in calls}

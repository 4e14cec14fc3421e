"""The table of docs/styles.md: for each row, what is trained, which changes are kept, and what is shared."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from tests.test_styles import KEY, InKinds, InThing, InTree, Kinds, Plain, Thing, Tree, X, scoped

bridge = nnx.bridge
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "styles.md"
Use = Callable[[Any, Any], Any]


def lines_of_table() -> list[tuple[str, str]]:
    """Return what is inside and what is outside in each line of the table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(line.split(" | ")[0].removeprefix("| "), line.split(" | ")[1]) for line in lines[1:]]


def counts(variables: Any) -> list[float]:
    """Return the states of parts, which are their only scalars."""
    return [float(leaf) for leaf in jax.tree.leaves(variables) if eqx.is_array(leaf) and leaf.shape == ()]


def in_scopes(use: Use, change: int = 1) -> None:
    """Check a part in a function of a scope, and in a Linen-style module: both use it twice in one scope.

    Args:
        use: uses the part in a scope.
        change: what a call adds to the state of the part.
    """

    def twice(scope: Any, x: Any) -> Any:
        inner = scope.push("part")
        return use(inner.rewound(), use(inner, x))

    class Holder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return twice(self.scope, x)

    for model in (twice, lambda scope, x: Holder(parent=scope, name="holder")(x)):
        _, variables = liftcore.init(model)(KEY, X)
        assert [leaf.shape for leaf in jax.tree.leaves(variables["params"])] == [
            (3, 3)
        ]  # trained; one scope is one part

        def loss(params: Any, variables: Any = variables, model: Any = model) -> Any:
            y, changed = liftcore.apply(model, mutable=True)({**variables, "params": params}, X)
            return y.sum(), changed

        gradient, changed = jax.grad(loss, has_aux=True)(variables["params"])
        assert all(leaf.any() for leaf in jax.tree.leaves(gradient))
        assert counts(changed) == [2 * one for one in counts(variables)] == ([4 * change] if change else [])


def a_pytree_module_in_scopes() -> None:
    in_scopes(lambda scope, x: eqx.adopt(scope, Tree)(x), 0)


def a_module_with_kinds_in_scopes() -> None:
    in_scopes(lambda scope, x: pax.adopt(scope, Kinds())(x))
    in_scopes(lambda scope, x: pax.adopt(scope, Kinds)(x))


def pytrees_in_each_other() -> None:
    for outer, inner in ((InTree, Kinds), (InTree, Tree), (InKinds, Tree), (InKinds, Kinds)):
        model = outer([inner(), inner()])
        assert jax.tree.leaves(eqx.trainable(model)).count(True) == 2
        _, gradient = eqx.filter_value_and_grad(lambda model: sum(jnp.sum(part(X)) for part in model.part))(model)
        assert [leaf.shape for leaf in jax.tree.leaves(eqx.filter(gradient, eqx.is_inexact_array))][:1] == [(3, 3)]
        for jit in (eqx.filter_jit, *[jax.jit] * (inner is Kinds)):  # a tree holds an activation
            changed = jit(lambda model, x: (model.part[0](x), model)[1])(model, X)
            assert (counts(model), counts(changed)) == (([0, 0], [1, 0]) if inner is Kinds else ([], []))
    part = Kinds()
    with pytest.raises(pax.errors.SharedModuleError):
        InKinds([part, part]).copy()
    first, second = eqx.filter_jit(lambda model: model)(InTree([part, part])).part
    assert first is not second


def scopes_in_filtered_functions() -> None:
    call = eqx.filter_jit(lambda part, x: part(x))

    class Holder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            part = Plain(name="part")
            return call(part, call(part, x))

    variables = Holder().init(KEY, X)
    _, changed = Holder().apply(variables, X, mutable=["batch_stats"])
    assert (counts(variables), counts(changed), list(variables["params"])) == ([2], [4], ["part"])

    def model(scope: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))

        def add(value: Any) -> None:
            value.value += 1

        eqx.filter_jit(add)(n)
        eqx.filter_checkpoint(lambda scope: scope.put_variable("state", "n", scope.get_variable("state", "n") + 1))(
            scope
        )

    assert counts(liftcore.init(model)(KEY)[1]) == [2]


def models_of_scopes_in_pytrees() -> None:
    for fn in (scoped, Plain()):
        part = eqx.Applied.init(fn, KEY, X)
        model = InTree([part, part])
        assert jax.tree.leaves(eqx.trainable(model)).count(True) == 2
        _, changed = part(X, mutable=["batch_stats"])
        assert (counts(part), counts(changed)) == ([1], [2])
        first, second = eqx.filter_jit(lambda model: model)(model).part
        assert first is not second


def models_of_scopes_in_modules_with_kinds() -> None:
    for fn in (scoped, Plain()):
        model = InKinds(pax.Layer(fn, KEY, X))
        assert [leaf.shape for leaf in jax.tree.leaves(model.parameters())] == [(3, 3)]
        model(X)
        with pytest.raises(liftcore.errors.ModifyScopeVariableError):
            model.eval()(X)
        assert model.part.n == 2
        with pytest.raises(pax.errors.SharedModuleError):
            InKinds([model.part, model.part]).copy()


def a_function_of_a_scope_in_linen() -> None:
    in_scopes(scoped)


def linen_in_functions_of_scopes() -> None:
    in_scopes(lambda scope, x: Plain().clone(parent=scope)(x))
    variables = Plain().init(KEY, X)
    y, _ = liftcore.apply(lambda scope, x: Plain().bind(variables, mutable=True)(x), mutable=True)({}, X)
    assert y.shape == X.shape


def an_object_in_scopes() -> None:
    in_scopes(lambda scope, x: bridge.adopt(scope, Thing)(x))
    in_scopes(bridge.object_in_scope(Thing))

    class Marked(Thing):
        def __call__(self, x: Any) -> Any:
            assert not hasattr(self, "mark")
            self.mark = "called"
            return super().__call__(x)

    in_scopes(bridge.object_in_scope(Marked))


def an_object_as_a_submodule() -> None:
    in_scopes(lambda scope, x: bridge.to_linen(Thing).clone(parent=scope)(x))
    model = bridge.to_linen(Thing)
    assert model.apply(model.init(KEY, X), X).shape == X.shape  # what is immutable keeps its values


def an_object_as_a_pytree() -> None:
    for outer in (InTree, InKinds):
        model = outer([Thing(), Thing()])
        assert jax.tree.leaves(eqx.trainable(model)).count(True) == 2
        for jit in (eqx.filter_jit, jax.jit):
            changed = jit(lambda model, x: (model.part[0](x), model)[1])(model, X)
            assert (counts(model), counts(changed)) == ([0, 0], [1, 0])
    part = Thing()
    for jit in (eqx.filter_jit, jax.jit):
        assert (counts(jit(lambda part, x: (part(x), part)[1])(part, X)), counts(part)) == ([1], [0])
        first, second = jit(lambda *parts: parts)(part, part)
        assert first is not second


def models_of_scopes_in_objects() -> None:
    for fn in (scoped, Plain()):
        part = bridge.ToNNX(fn, X, rngs=nnx.Rngs(0))
        model = nnx.List([part, part])
        assert [value.shape for _, value in nnx.state(model, nnx.Param).flat_state()] == [(3, 3)]
        nnx.jit(lambda model, x: model[1](model[0](x)))(model, X)
        assert part.n.get_value() == 3
        copied = nnx.clone(model)
        assert copied[0] is copied[1]


def pytrees_in_objects() -> None:
    for inner in (Tree, Kinds):
        part = inner()
        model = nnx.List([InThing(part), InThing(part)])
        assert len(nnx.state(model, nnx.Param).flat_state()) == 2
        nnx.jit(lambda model, x: jnp.sum(model[0](x)))(model, X)
        if inner is Kinds:
            assert model[0].part.n == 1
        copied = nnx.clone(model)
        assert copied[0].part is not copied[1].part
    model = bridge.ToNNX(lambda scope, x: eqx.adopt(scope, Tree)(x), rngs=nnx.Rngs(0))
    model(X)
    assert [path for path, _ in nnx.state(model, nnx.Param).flat_state()] == [("w",)]
    model = bridge.ToNNX(lambda scope, x: pax.adopt(scope, Kinds)(x), X, rngs=nnx.Rngs(0))
    model(X)
    assert model.n.get_value() == 2


def same(body: Any, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
    return body(variable_groups, rng_groups, *args)


def a_lift_of_your_own() -> None:
    lift = liftcore.transformation(same, [True], [True, liftcore.Captured(all=True)], [True])
    in_scopes(lift(scoped))
    in_scopes(lambda scope, x: nn.lift_with(lift, Plain)(parent=scope)(x))
    in_scopes(lambda scope, x: eqx.adopt(scope, Tree)(liftcore.filtered(lift, lambda scope, x: x)(scope, x)), 0)
    kinds, thing = Kinds(), Thing()
    changed, y = pax.lift(lift, Kinds.__call__)(kinds, X)
    assert (kinds.n, changed.n, (y == X).all()) == (0, 1, True)
    assert jnp.array_equal(nnx.lift(lift, Thing.__call__)(thing, X), X)
    assert thing.n.get_value() == 1


SCOPES, MODELS = "a function of a scope, a Linen-style module", "a function of a scope"
LINES: dict[tuple[str, str], Callable[[], None]] = {
    ("a pytree module", SCOPES): a_pytree_module_in_scopes,
    ("a module with kinds", SCOPES): a_module_with_kinds_in_scopes,
    (
        "a module with kinds, a pytree module",
        "each other; a filtered function; any JAX function",
    ): pytrees_in_each_other,
    ("a scope, a variable, a bound Linen-style module", "a filtered function"): scopes_in_filtered_functions,
    (SCOPES, "a pytree module"): models_of_scopes_in_pytrees,
    (SCOPES, "a module with kinds"): models_of_scopes_in_modules_with_kinds,
    (MODELS, "a Linen-style module"): a_function_of_a_scope_in_linen,
    ("a Linen-style module", MODELS): linen_in_functions_of_scopes,
    ("an object", SCOPES): an_object_in_scopes,
    ("an object", "a Linen-style module"): an_object_as_a_submodule,
    (
        "an object",
        "a filtered function; any JAX function; a pytree module; a module with kinds",
    ): an_object_as_a_pytree,
    (SCOPES, "an object"): models_of_scopes_in_objects,
    ("a pytree module, a module with kinds", "an object"): pytrees_in_objects,
    ("your own lift", "all styles"): a_lift_of_your_own,
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[0]} in {line[1]}")
def test_a_line_of_the_table_is_true(line: tuple[str, str]) -> None:
    LINES[line]()


def test_each_line_of_the_table_has_its_test() -> None:
    assert lines_of_table() == list(LINES)

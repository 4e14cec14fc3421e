"""Functions of objects with rules of their own: `custom_vjp`, `custom_jvp`, `custom_vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from nnx_like.errors import AliasError

X = jnp.array([3.0, 4.0])
XS = jnp.ones((5, 2))


def model() -> Any:
    return nnx.Dict(
        w=nnx.Param(jnp.array([1.0, 2.0])), seen=nnx.BatchStat(jnp.array(0.0)), calls=nnx.Variable(jnp.array(0))
    )


def close(one: Any, other: Any) -> bool:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(np.allclose(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def layer(model: Any, x: Any) -> Any:
    model.calls[...] += 1
    model.seen[...] += 2 * jnp.sum(model.w)
    return jnp.sin(model.w) * x


def backward(residuals: Any, cotangents: Any) -> Any:
    (model, x), ((updates, _), y) = residuals, cotangents
    w = jnp.cos(model.w) * x * y + 2 * updates.seen
    return nnx.State({"w": w}), jnp.sin(model.w) * y


def rule(primals: Any, tangents: Any) -> Any:
    (model, x), (along, dx) = primals, tangents
    dy = jnp.cos(model.w) * along.w * x + jnp.sin(model.w) * dx
    return layer(model, x), dy


def by_vjp() -> Any:
    f = nnx.custom_vjp(layer)
    f.defvjp(lambda model, x: (f(model, x), (model, x)), backward)
    return f


def by_jvp() -> Any:
    f = nnx.custom_jvp(layer)
    f.defjvp(rule)
    return f


def scanned(f: Any) -> Any:
    axes = nnx.StateAxes({nnx.Param: None, ...: nnx.Carry})
    step = nnx.scan(lambda c, model, x: (c, f(model, x)), in_axes=(nnx.Carry, axes, 0), out_axes=(nnx.Carry, 0))
    return lambda model, x: step(0.0, model, x)[1]


def vmapped(f: Any) -> Any:
    return nnx.vmap(f, in_axes=(None, 0))


def loss(f: Any) -> Any:
    return lambda model, x: jnp.sum(f(model, x))


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "call": (lambda f: f, X),
    "grad": (lambda f: nnx.grad(loss(f), argnums=(0, 1)), X),
    "jit_grad": (lambda f: nnx.jit(nnx.grad(loss(f))), X),
    "grad_jit": (lambda f: nnx.grad(nnx.jit(loss(f))), X),
    "grad_remat": (lambda f: nnx.grad(nnx.remat(loss(f))), X),
    "vmap_grad": (lambda f: vmapped(nnx.grad(loss(f))), XS),
    "grad_vmap": (lambda f: nnx.grad(loss(vmapped(f))), XS),
    "grad_scan": (lambda f: nnx.grad(loss(scanned(f))), XS),
    "grad_grad": (lambda f: nnx.grad(lambda m, x: jnp.sum(nnx.grad(loss(f))(m, x).w * x)), X),
}


@pytest.mark.parametrize("custom", [by_vjp, by_jvp])
@pytest.mark.parametrize(("program", "x"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_right_rule_changes_nothing_under_any_transformation(custom: Any, program: Any, x: Any) -> None:
    given, expected = model(), model()
    assert close(program(custom())(given, x), program(layer)(expected, x))
    assert close(nnx.state(given), nnx.state(expected))


def test_the_rule_gets_cotangents_of_what_objects_hold_afterwards() -> None:
    f = by_vjp()
    given = model()
    grads = nnx.grad(lambda model: jnp.sum(f(model, X)) + 3 * model.seen + jnp.sum(5 * model.w))(given)
    assert close(grads.w[...], jnp.cos(given.w) * X + 3 * 2 + 5)


def test_the_rule_is_used_for_derivatives_and_not_in_itself() -> None:
    runs = []

    @nnx.custom_vjp
    def f(model: Any, x: Any) -> Any:
        runs.append("function")
        return model.w * x

    def fwd(model: Any, x: Any) -> Any:
        runs.append("forward")
        return f(model, x), None

    f.defvjp(fwd, lambda residuals, cotangents: ({"w": 10 * X}, None))
    grads, x = nnx.grad(loss(f), argnums=(0, 1))(model(), X)
    assert close(grads.w[...], 10 * X)  # a dict does as well as a state
    assert close(x, 0 * X)  # None stands for zero
    assert runs == ["function", "forward", "function"]


def test_structure_changes_as_in_the_function() -> None:
    seen = []

    @nnx.custom_vjp
    def f(model: Any, x: Any) -> Any:
        model.size += 1
        model.new = nnx.Param(model.w * 2)
        return jnp.sum(model.w * x), nnx.Dict(q=nnx.Param(model.w * 3)), model

    def bwd(residuals: Any, cotangents: Any) -> Any:
        (updates, none), (y, made, same) = cotangents
        seen.append((list(updates), none, float(y), list(made), same))
        return nnx.State({"w": residuals * y + 2 * updates.new + 3 * made.q}), None

    f.defvjp(lambda model, x: (f(model, x), x), bwd)

    def total(model: Any, x: Any) -> Any:
        y, made, same = f(model, x)
        assert same is model
        return y + jnp.sum(model.new) + 10 * jnp.sum(made.q)

    given = nnx.Dict(w=nnx.Param(X), size=0)
    assert close(nnx.grad(total)(given, X).w[...], X + 2 + 30)
    assert seen == [(["new", "w"], None, 1.0, ["q"], nnx.State({}))]
    assert given.size == 1
    assert close(given.new[...], 2 * X)


def test_residuals_hold_objects_by_value() -> None:
    def bwd(residuals: Any, cotangents: Any) -> Any:
        model, (same, text, none, number) = residuals
        assert same is model
        assert (text, none, int(number)) == ("text", None, 3)
        assert model.name == "name"
        model.w.value = model.w * 100  # of nobody else
        return ({"w": model.w * cotangents[1]},)

    f = nnx.custom_vjp(lambda model: jnp.sum(model.w))
    f.defvjp(lambda model: (f(model), (model, (model, "text", None, 3))), bwd)
    given = nnx.Dict(w=nnx.Param(X), name="name")
    grads = nnx.grad(f)(given)
    assert close(grads.w[...], 100 * X)
    assert close(given.w[...], X)


def test_the_same_variable_in_two_arguments_has_one_cotangent() -> None:
    f = nnx.custom_vjp(lambda one, other: one.w * other.w)
    f.defvjp(lambda one, other: (f(one, other), one), lambda one, ct: ({"w": 2 * one.w * ct[1]}, ct[0][1]))
    given = nnx.Dict(w=nnx.Param(3.0))
    assert nnx.grad(lambda model: f(model, model))(given).w.get_value() == 6


# --- arguments that are not differentiated ----------------------------------------------------------------------------


def test_arguments_that_are_not_differentiated_go_to_the_pullback() -> None:
    @nnx.custom_vjp(nondiff_argnums=(0, 3, 4))
    def f(mode: Any, model: Any, x: Any, other: Any, arrays: Any) -> Any:
        assert mode == "sum"
        other.calls[...] += 1
        return jnp.sum(model.w * x) * arrays["a"]

    def bwd(mode: Any, other: Any, arrays: Any, residuals: Any, cotangents: Any) -> Any:
        assert (mode, arrays["b"]) == ("sum", len)
        updates, y = cotangents
        assert len(updates) == 2
        return nnx.State({"w": other.w * y * arrays["a"]}), None

    f.defvjp(lambda *args: (f(*args), None), bwd)
    other = model()
    arrays = {"a": jnp.ones(()), "b": len}
    grads = nnx.jit(nnx.grad(lambda model, other: f("sum", model, X, other, arrays)))(model(), other)
    assert close(grads.w[...], other.w[...])
    assert other.calls[...] == 1


def test_diff_state_says_which_variables_have_cotangents() -> None:
    class Pair(nnx.Module):
        def __init__(self) -> None:
            self.x, self.y = nnx.Param(jnp.float32(1)), nnx.Param(jnp.float32(2))

    chosen = nnx.DiffState(0, nnx.PathContains("x"))

    @nnx.custom_vjp(nondiff_argnums=(chosen,))
    def f(model: Any) -> Any:
        return model.x * model.y

    def bwd(model: Any, cotangents: Any) -> Any:
        (updates,), y = cotangents
        assert list(updates) == ["x", "y"]
        updates.x[...] = y * 10
        if not model.keep.get_value():
            del updates["y"]
        return (updates,)

    f.defvjp(lambda model: (f(model), nnx.Dict(keep=nnx.Variable(keep))), bwd)
    keep = False
    assert nnx.grad(f, argnums=chosen)(Pair()).x.get_value() == 10
    assert nnx.grad(f)(Pair()).y.get_value() == 0  # nothing flows through the others
    assert nnx.grad(lambda model: f(model) + 5 * model.x)(Pair()).x.get_value() == 15
    keep = True
    with pytest.raises(LiftArgumentError, match=r"cotangents for \[0\].y, which no `DiffState`"):
        nnx.grad(f)(Pair())


def test_defaults_and_keywords_are_given_by_position() -> None:
    @nnx.custom_vjp
    def f(model: Any, x: Any = 2.0, *, name: str = "default") -> Any:
        return jnp.sum(model.w * x)

    f.defvjp(lambda model, x: (f(model, x), x), lambda x, ct: ({"w": jnp.full(2, x)}, None))
    assert close(nnx.grad(lambda model: f(model))(model()).w[...], jnp.full(2, 2.0))
    assert close(nnx.grad(lambda model: f(x=3.0, model=model))(model()).w[...], jnp.full(2, 3.0))
    with pytest.raises(LiftArgumentError, match="name is keyword-only"):
        f(model(), name="other")


def test_methods_have_rules() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(X)
            self.unseen = Unseen()

        @nnx.custom_vjp
        def __call__(self, x: Any) -> Any:
            """A product."""
            return self.unseen.twice(self.w * x)

        __call__.defvjp(lambda self, x: (self(x), x), lambda x, ct: ({"w": 7 * x * ct[1]}, None))

    class Unseen:
        """Something that may change unseen, which is no reason to warn where nothing is kept."""

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def twice(self, x: Any) -> Any:
            return 2 * x

    assert close(Model()(X), 2 * X**2)
    assert close(nnx.grad(lambda model: jnp.sum(model(X)))(Model()).w[...], 7 * X)
    assert Model.__call__.__doc__ == "A product."


# --- custom_jvp -------------------------------------------------------------------------------------------------------


def test_the_tangent_of_a_new_object_is_a_state() -> None:
    @nnx.custom_jvp
    def f(model: Any) -> Any:
        return nnx.Dict(q=nnx.Param(model.w * 2), r=nnx.Param(model.w * 3), n=nnx.Variable(jnp.array(1)))

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return f(*primals), nnx.State({"q": 10 * tangents[0].w})

    grads = nnx.grad(lambda model: jnp.sum(f(model).q * f(model).r))(model())
    assert close(grads.w[...], 10 * 3 * model().w)


def test_a_rule_may_be_a_sum_over_arguments() -> None:
    f = nnx.custom_jvp(lambda model, x: model.w * x)
    f.defjvps(lambda along, y, model, x: 2 * along.w * x, None)
    grads = nnx.grad(loss(f), argnums=(0, 1))(model(), X)
    assert close(grads[0].w[...], 2 * X)
    assert close(grads[1], 0 * X)


def test_custom_jvp_has_arguments_that_are_not_differentiated() -> None:
    f = nnx.custom_jvp(lambda mode, model, x: model.w * x, nondiff_argnums=(0,))

    @f.defjvp
    def _(mode: Any, primals: Any, tangents: Any) -> Any:
        assert mode == "mode"
        return f(mode, *primals), tangents[1] * 5

    grads = nnx.grad(lambda model, x: jnp.sum(f("mode", model, x)), argnums=(0, 1))(model(), X)
    assert close(grads[0].w[...], 0 * X)
    assert close(grads[1], jnp.full(2, 5.0))


# --- custom_vmap ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "batched", "calls"),
    [
        (None, {"w": False, "calls": False}, ()),
        (nnx.StateAxes({nnx.Param: 0, ...: None}), {"w": True, "calls": False}, ()),
        (0, {"w": True, "calls": True}, (5,)),
    ],
)
def test_custom_vmap_sees_what_is_batched(axes: Any, batched: Any, calls: Any) -> None:
    seen = []

    @nnx.custom_vmap
    def f(model: Any, x: Any) -> Any:
        model.calls[...] += 1
        return model.w * x, nnx.Dict(q=nnx.Param(model.w * 2), x=nnx.Param(x))

    @f.def_vmap
    def _(axis_size: int, in_batched: Any, model: Any, x: Any) -> Any:
        seen.append((axis_size, in_batched[0].to_pure_dict(), in_batched[1], x.shape))
        model.calls[...] += 1
        made = nnx.Dict(q=nnx.Param(model.w * 2), x=nnx.Param(x))
        return (model.w * x, made), (True, nnx.State({"q": in_batched[0].w, "x": True}))

    w = jnp.ones((5, 2)) if batched["w"] else jnp.ones(2)
    given = nnx.Dict(w=nnx.Param(w), calls=nnx.Variable(jnp.zeros(calls, int)))
    y, made = nnx.vmap(f, in_axes=(axes, 0))(given, XS)
    assert seen == [(5, batched, True, (5, 2))]
    assert y.shape == made.q.shape == made.x.shape == (5, 2)
    assert close(given.calls[...], jnp.ones(calls, int))


# --- errors -----------------------------------------------------------------------------------------------------------


def ruled(fwd: Any = None, bwd: Any = lambda residuals, ct: (None, None), **options: Any) -> Any:
    f = nnx.custom_vjp(layer, **options)
    f.defvjp(fwd or (lambda model, x: (f(model, x), None)), bwd)
    return lambda: nnx.grad(loss(f))(model(), X)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nnx.custom_vjp(layer)(model(), X), r"custom_vjp\(layer\): it has no rule yet"),
        (lambda: nnx.custom_jvp(layer)(model(), X), r"custom_jvp\(layer\): it has no rule yet"),
        (lambda: nnx.custom_vmap(layer)(model(), X), "Define one first: `@f.def_vmap`"),
        (lambda: nnx.custom_vjp(nnx.Linear(2, 3, rngs=nnx.Rngs(0)).__call__), "it is a method bound to one Linear"),
        (ruled(lambda model, x: x), "expected a pair"),
        (ruled(lambda model, x: (model.w * x, None)), r"it writes \[\], but the function writes"),
        (ruled(lambda model, x: ((layer(model, x), x), None)), "a different structure from the function"),
        (ruled(bwd=lambda residuals, ct: (None,)), "expected a tuple of 2"),
        (ruled(bwd=lambda residuals, ct: None), "given NoneType"),
        (ruled(bwd=lambda residuals, ct: (X, None)), "cotangents of Dict are of type"),
        (ruled(bwd=lambda residuals, ct: ({"v": X}, None)), "the cotangents have unknown paths, v"),
        (ruled(bwd=lambda residuals, ct: ({"w": XS}, None)), r"has shape \(5, 2\), not \(2,\)"),
        (ruled(nondiff_argnums=(2,)), "no argument 2; the function takes 2"),
    ],
)
def test_errors_say_what_to_do(call: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        call()


def test_a_variable_is_differentiated_in_all_arguments_or_in_none() -> None:
    f = nnx.custom_vjp(lambda one, other: one.w * other.w, nondiff_argnums=(1,))
    f.defvjp(lambda one, other: (f(one, other), None), lambda other, residuals, ct: (None,))
    given = model()
    with pytest.raises(AliasError, match="it is also"):
        f(given, given)


def test_nothing_changes_where_a_rule_raises() -> None:
    def bwd(residuals: Any, cotangents: Any) -> Any:
        raise RuntimeError("wrong")

    f = nnx.custom_vjp(layer)
    f.defvjp(lambda model, x: (f(model, x), None), bwd)
    given = model()
    with pytest.raises(RuntimeError, match="wrong"):
        nnx.grad(loss(f))(given, X)
    assert given.calls[...] == 0


def test_functions_with_rules_have_rules_again() -> None:
    f = by_jvp()
    g = nnx.custom_vjp(f)
    assert close(f(model(), X), layer(model(), X))
    with pytest.raises(LiftArgumentError, match=r"custom_vjp\(layer\): it has no rule yet"):
        g(model(), X)
    g.defvjp(lambda model, x: (g(model, x), None), lambda residuals, ct: ({"w": 10 * X}, None))
    assert close(nnx.grad(loss(g))(model(), X).w[...], 10 * X)

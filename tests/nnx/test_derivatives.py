"""Derivatives over objects: `grad`, `value_and_grad`, `vjp`, `jvp`, `linearize` and Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from nnx_like.errors import AliasError, TraceContextError

X = jnp.array([3.0, 4.0])


class Line(nnx.Module):
    """A model that counts its calls."""

    runs = 0

    def __init__(self) -> None:
        self.w = nnx.Param(jnp.array([1.0, 2.0]), note="slope")
        self.seen = nnx.BatchStat(jnp.array(0.0))
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x: Any) -> Any:
        Line.runs += 1
        self.calls[...] += 1
        self.seen[...] += jnp.sum(self.w * x)
        return self.w**3 * x


def loss(model: Any, x: Any) -> Any:
    return jnp.sum(model(x))


def pure(state: Any) -> Any:
    return jax.tree.map(np.asarray, state.to_pure_dict())


def close(one: Any, other: Any) -> bool:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(np.allclose(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# --- what is differentiated, and what comes out -----------------------------------------------------------------------


def test_gradients_are_a_state_of_the_same_kinds_and_metadata() -> None:
    grads = nnx.grad(loss)(Line(), X)
    assert isinstance(grads, nnx.State)
    assert close(pure(grads), {"w": 3 * np.array([1.0, 4.0]) * X})
    assert type(grads.w) is nnx.Param
    assert grads.w.note == "slope"
    grads.w.value = X  # it may be changed here


def wide() -> Any:
    return nnx.Dict(
        a=nnx.Param(X),
        raw=nnx.data(X * 2),
        many=nnx.List([nnx.BatchStat(X), nnx.Param({"p": X, "n": "name"})]),
        count=nnx.Param(jnp.array(3)),
        key=nnx.RngKey(jax.random.key(0)),
        text=nnx.Param("text"),
    )


def total(model: Any, x: Any = X) -> Any:
    return jnp.sum(model.a * model.raw * model.many[0] * model.many[1]["p"] * x) * model.count


@pytest.mark.parametrize(
    ("argnums", "paths"),
    [
        (0, [("a",), ("many", 1)]),
        (nnx.DiffState(0, nnx.BatchStat), [("many", 0)]),
        (nnx.DiffState(0, nnx.PathContains("many")), [("many", 0), ("many", 1)]),
        (nnx.DiffState(0, ...), [("a",), ("many", 0), ("many", 1), ("raw",)]),
        (nnx.DiffState(0, lambda path, value: path == ("raw",)), [("raw",)]),
        (nnx.DiffState(-2, nnx.Cache), []),
    ],
)
def test_filters_choose_floating_variables_and_arrays(argnums: Any, paths: list[Any]) -> None:
    grads = nnx.grad(total, argnums=argnums)(wide(), X)
    assert list(grads.flat_state().paths) == paths
    leaves = [leaf for path, leaf in grads.flat_state() if path in (("a",), ("many", 0))]
    assert all(close(leaf.get_value(), 3 * 2 * X**4) for leaf in leaves)


def test_a_gradient_of_a_pytree_is_one() -> None:
    grads = nnx.grad(total)(wide())
    assert grads.many[1].get_value()["n"] == "name"
    assert close(grads.many[1].get_value()["p"], 3 * 2 * X**4)


def test_integers_have_gradients_where_these_are_asked_for() -> None:
    model = nnx.Dict(w=nnx.Param(X), n=nnx.Param(jnp.array(2)), key=nnx.Param(jax.random.key(0)))
    grads = nnx.grad(lambda model: jnp.sum(model.w) * model.n, allow_int=True)(model)
    assert list(grads) == ["n", "w"]
    assert grads.n.get_value().dtype == jax.dtypes.float0


def test_arguments_are_pytrees_of_objects_and_arrays() -> None:
    shared = nnx.Param(2.0)
    args = {"models": [Line(), nnx.Dict(s=shared)], "x": X, "s": shared, "v": nnx.BatchStat(3.0)}

    def f(args: Any) -> Any:
        line, other = args["models"]
        return jnp.sum(line.w * args["x"]) * other.s * args["s"] * args["v"]

    grads = nnx.grad(f)(args)
    assert close(pure(grads["models"][0]), {"w": 12 * X})
    assert grads["models"][1].s.get_value() == 2 * 2 * 11 * 3  # of a shared variable, once, at the first path
    assert grads["s"] == nnx.State({})
    assert type(grads["v"]) is nnx.BatchStat  # a variable that is an argument itself
    assert grads["v"].get_value() == 11 * 4
    assert close(grads["x"], args["models"][0].w * 12)


@pytest.mark.parametrize(
    ("argnums", "kinds"),
    [
        (0, nnx.State),
        ([0], (nnx.State,)),
        ((0, 1), (nnx.State, jax.Array)),
        ((-1, nnx.DiffState(0, ...)), (jax.Array, nnx.State)),
        (np.int32(1), jax.Array),
    ],
)
def test_several_arguments_have_a_tuple_of_gradients(argnums: Any, kinds: Any) -> None:
    grads = nnx.grad(loss, argnums=argnums)(Line(), X)
    if isinstance(kinds, tuple):
        assert isinstance(grads, tuple)
        assert all(map(isinstance, grads, kinds))
    else:
        assert isinstance(grads, kinds)


def test_keyword_arguments_count_where_the_signature_has_them() -> None:
    def f(model: Any, x: Any = 2.0, *, scale: Any) -> Any:
        return jnp.sum(model.w * x) * scale["model"].w.sum()

    model, scale = Line(), {"model": Line()}
    assert close(pure(nnx.grad(f)(model=model, scale=scale)), {"w": np.array([6.0, 6.0])})
    assert close(nnx.grad(f, argnums=1)(model, x=X, scale=scale), 3 * model.w[...])


def test_shared_variables_have_one_gradient_at_the_first_path() -> None:
    model = nnx.Dict(b=nnx.Param(2.0))
    model.a = model.c = model.b
    grads = nnx.grad(lambda model: model.a * model.b * model.c)(model)
    assert pure(grads) == {"a": 12.0}
    both = nnx.grad(lambda one, other: one.a * other.b, argnums=(0, 1))(model, model)
    assert pure(both[0]) == {"a": 4.0}
    assert both[1] == nnx.State({})


# --- what the function does to objects --------------------------------------------------------------------------------


def derivatives() -> dict[str, Callable[..., Any]]:
    tangents = (None, jnp.ones(2))
    return {
        "grad": lambda f: lambda m, x: nnx.grad(summed(f), has_aux=True)(m, x)[1],
        "value_and_grad": lambda f: lambda m, x: nnx.value_and_grad(summed(f), has_aux=True)(m, x)[0][1],
        "vjp": lambda f: lambda m, x: nnx.vjp(f, m, x, has_aux=True)[2],
        "jvp": lambda f: lambda m, x: nnx.jvp(f, (m, x), tangents, has_aux=True)[2],
        "linearize": lambda f: lambda m, x: nnx.linearize(f, m, x, has_aux=True)[2],
        "jacfwd": lambda f: lambda m, x: nnx.jacfwd(f, has_aux=True)(m, x)[1],
        "jacrev": lambda f: lambda m, x: nnx.jacrev(f, has_aux=True)(m, x)[1],
        "hessian": lambda f: lambda m, x: nnx.hessian(f, has_aux=True)(m, x)[1],
    }


def summed(f: Any) -> Any:
    def body(model: Any, x: Any) -> Any:
        y, aux = f(model, x)
        return jnp.sum(y), aux

    return body


EACH = pytest.mark.parametrize("derive", derivatives().values(), ids=derivatives())


@EACH
def test_objects_change_as_in_the_function_itself(derive: Any) -> None:
    def f(model: Any, x: Any) -> Any:
        y = model(x)
        model.tied = model.w
        model.old, model.seen = model.seen, nnx.BatchStat(model.seen * 2)
        model.made = nnx.Dict(v=nnx.Param(y), n=7)
        model.history = [x, "text"]
        del model.calls
        return y, (model, model.made, "aux", None, {"w": model.w, "x": x})

    model, expected = Line(), Line()
    w, seen = model.w, model.seen
    f(expected, X)
    Line.runs = 0
    found, made, text, none, rest = derive(f)(model, X)
    assert Line.runs == 1
    assert found is model
    assert made is model.made
    assert rest["w"] is w is model.tied
    assert model.old is seen
    assert (text, none) == ("aux", None)
    assert nnx.graphdef(model) == nnx.graphdef(expected)
    assert close(pure(nnx.state(model)), pure(nnx.state(expected)))


@EACH
def test_nothing_changes_where_the_body_raises(derive: Any) -> None:
    def f(model: Any, x: Any) -> Any:
        model(x)
        model.new = nnx.Param(x)
        raise RuntimeError("wrong")

    model = Line()
    before = {name: (value, value.get_value()) for name, value in vars(model).items()}
    with pytest.raises(RuntimeError, match="wrong"):
        derive(f)(model, X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is one and one.get_value() is value for name, (one, value) in before.items())


def test_gradients_flow_through_what_is_written_in_the_function_alone() -> None:
    model = Line()
    assert close(pure(nnx.grad(lambda model, x: jnp.sum(model(x)) * 0 + model.seen[...])(model, X)), {"w": X})
    assert model.seen[...] == 11
    assert close(pure(nnx.grad(lambda model, x: jnp.sum(model(x)) * 0)(model, X)), {"w": X * 0})

    def second(model: Any, x: Any) -> Any:
        nnx.grad(loss)(model, x)
        return model.seen[...]

    assert close(pure(nnx.grad(second)(Line(), X)), {"w": X})


def test_random_streams_go_on() -> None:
    rngs, expected = nnx.Rngs(0), nnx.Rngs(0)
    drawn = nnx.grad(lambda w, rngs: jnp.sum(w * jax.random.normal(rngs(), (2,))))(X, rngs)
    assert close(drawn, jax.random.normal(expected(), (2,)))
    assert close(rngs.default.count.get_value(), jnp.uint32(1))


def test_derivatives_nest_at_any_depth_and_run_the_body_once() -> None:
    def cubed(model: Any, x: Any) -> Any:
        return jnp.sum(model(x))

    def again(f: Any) -> Any:
        return lambda model, x: jnp.sum(nnx.grad(f)(model, x).w[...])

    first, second, third = again(cubed), again(again(cubed)), again(again(again(cubed)))
    for f, expected in [(first, 3 * np.array([1.0, 4.0]) * X), (second, 6 * np.array([1.0, 2.0]) * X), (third, 6 * X)]:
        model = Line()
        Line.runs = 0
        assert close(f(model, X), np.sum(expected))
        assert Line.runs == 1
        assert model.calls[...] == 1
        assert model.seen[...] == 11


def test_derivatives_go_with_jit_vmap_and_scan() -> None:
    per_example = nnx.vmap(nnx.grad(loss), in_axes=(nnx.StateAxes({nnx.Param: None, ...: 0}), 0))

    @nnx.jit
    @nnx.grad
    def f(model: Any, xs: Any) -> Any:
        _, grads = nnx.scan(
            lambda carry, model, x: (carry, per_example(model, x).w[...]),
            in_axes=(nnx.Carry, nnx.StateAxes({nnx.Param: None, ...: nnx.Carry}), 0),
            out_axes=(nnx.Carry, 0),
        )(0.0, model, xs)
        return jnp.sum(grads)

    model = Line()
    model.seen.value, model.calls.value = jnp.zeros(3), jnp.zeros(3, int)
    xs = jnp.ones((4, 3, 2))
    Line.runs = 0
    for call in (1, 2):
        assert close(pure(f(model, xs)), {"w": 12 * 6 * np.array([1.0, 2.0])})
        assert Line.runs == 1
        assert close(model.calls[...], jnp.full(3, 4 * call))


# --- decorators -------------------------------------------------------------------------------------------------------


def test_decorators_have_options_or_none_and_decorate_methods() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(X)

        @nnx.grad
        def plain(self, x: Any) -> Any:
            """A sum."""
            return jnp.sum(self.w * x)

        @nnx.value_and_grad(argnums=1, has_aux=True)
        def options(self, x: Any) -> Any:
            return jnp.sum(self.w * x), self

        @nnx.vjp
        def pulled(self, x: Any) -> Any:
            return self.w * x

        @nnx.jvp(has_aux=True)
        def pushed(self, x: Any) -> Any:
            return self.w * x, "aux"

        @nnx.linearize(has_aux=True)
        def linear(self, x: Any) -> Any:
            return self.w * x, "aux"

        @nnx.jacrev(argnums=1)
        def jacobian(self, x: Any) -> Any:
            return self.w * x

        @nnx.hessian
        def second(self, x: Any) -> Any:
            return jnp.sum(self.w**2 * x)

    model = Model()
    assert close(pure(model.plain(X)), {"w": np.asarray(X)})
    assert Model.plain.__doc__ == "A sum."
    (value, same), grads = model.options(X)
    assert value == 25
    assert same is model
    assert close(grads, X)
    y, back = model.pulled(x=X)
    assert close(y, X**2)
    assert close(back(jnp.ones(2))[1], X)
    assert close(Model.pushed((model, X), (nnx.State({"w": X}), X * 0))[:2], (X**2, X**2))
    y, along, aux = model.linear(X)
    assert aux == "aux"
    assert close(along(None, X), X**2)
    assert close(model.jacobian(X), jnp.diag(X))
    assert close(model.second(X).w.w[...], jnp.diag(2 * X))


# --- vjp, jvp, linearize ----------------------------------------------------------------------------------------------


def test_vjp_gives_cotangents_of_all_that_is_floating() -> None:
    y, back = nnx.vjp(total, wide(), X)
    grads, x = back(jnp.float32(2))
    assert list(grads.flat_state().paths) == [("a",), ("many", 0), ("many", 1), ("raw",)]
    assert close(x, 2 * 3 * 2 * X**4)
    assert close(y, jnp.sum(3 * 2 * X**5))


def test_what_vjp_and_linearize_give_may_cross_a_jit() -> None:
    _, back = nnx.vjp(lambda model, x: model.w * x, Line(), X)
    grads, _ = nnx.jit(lambda back, y: back(y))(back, jnp.ones(2))
    assert close(grads.w[...], X)
    _, along = nnx.linearize(lambda model, x: model.w * x, Line(), X)
    assert close(nnx.jit(lambda along, w: along({"w": w}, X))(along, jnp.ones(2)), X + Line().w * X)


@pytest.mark.parametrize(
    ("tangent", "expected"),
    [
        (lambda model: nnx.State({"w": X}), 1.0),
        (lambda model: {"w": X}, 1.0),
        (lambda model: nnx.State({"w": nnx.Param(X)}), 1.0),
        (lambda model: nnx.State({"w": X}).flat_state(), 1.0),
        (lambda model: jax.tree.map(lambda leaf: leaf * 0 + 1, model), None),
        (lambda model: nnx.state(model), None),
        (lambda model: None, 0.0),
        (lambda model: nnx.State({}), 0.0),
    ],
)
def test_tangents_of_objects_are_states_or_objects(tangent: Any, expected: Any) -> None:
    model = Line()
    along = tangent(model)
    expected = X if expected == 1.0 else jnp.zeros(2) if expected == 0.0 else _value(along.w)
    _, dy = nnx.jvp(lambda model, x: model.w * x, (model, X), (along, jnp.ones(2)))
    assert close(dy, expected * X + model.w)
    _, linear = nnx.linearize(lambda model, x: model.w * x, model, X)
    assert close(linear(along, jnp.ones(2)), dy)


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


# --- Jacobians --------------------------------------------------------------------------------------------------------


def test_jacobians_have_the_structure_of_the_result_and_of_the_arguments() -> None:
    def f(model: Any, x: Any) -> Any:
        return {"y": model.w**2 * x, "s": jnp.sum(model.seen * x)}

    model = Line()
    for jacobian in (nnx.jacfwd, nnx.jacrev):
        found = jacobian(f, argnums=(nnx.DiffState(0, ...), 1))(model, X)
        state, x = found["y"]
        assert close(pure(state), {"w": np.diag(2 * model.w * X), "seen": np.zeros(2)})
        assert close(x, jnp.diag(model.w**2))
        assert close(pure(found["s"][0]), {"w": np.zeros(2), "seen": np.float32(7)})
        assert type(state.w) is nnx.Param
        assert state.w.get_metadata() == {}  # it would speak of other axes


def test_hessians_are_states_of_states() -> None:
    model = nnx.Dict(a=nnx.Param(X), b=nnx.Param(jnp.ones(3)))
    found = nnx.hessian(lambda model: jnp.sum(model.a) ** 2 * jnp.sum(model.b))(model)
    assert close(found.a.a[...], jnp.full((2, 2), 6.0))
    assert close(found.a.b[...], jnp.full((2, 3), 14.0))
    assert close(found.b.b[...], jnp.zeros((3, 3)))
    both = nnx.hessian(lambda model, x: jnp.sum(model.a * x), argnums=(0, 1))(model, X)
    assert close(both[0].a[1], jnp.eye(2))
    assert close(both[1][0].a[...], jnp.eye(2))
    assert both[1][1].shape == (2, 2)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: nnx.grad(loss, argnums=2)(m, X), "no argument 2; the call has 2 positional arguments"),
        (lambda m: nnx.grad(loss, argnums=(0, -2))(m, X), "argument -2 is named twice"),
        (lambda m: nnx.grad(loss, argnums=()), "no argument is selected"),
        (lambda m: nnx.grad(loss, argnums=m), "Line is not an argument number"),
        (lambda m: nnx.grad(loss, reduce_axes=("batch",)), "no longer supports `reduce_axes`"),
        (lambda m: nnx.grad(lambda m: m.w)(m), "contains a Param. Return its value"),
        (
            lambda m: nnx.grad(lambda m: m.w.sum(), has_aux=True)(m),
            "the function to return a pair, as `has_aux` demands",
        ),
        (lambda m: nnx.grad(m), "it is a method bound to one Line"),
        (lambda m: nnx.vjp(m.__call__, X), "it is a method bound to one Line"),
        (lambda m: nnx.vjp(lambda m: m, m), "contains a Line"),
        (lambda m: nnx.jvp(loss, (m, X), (None,)), "do not have the structure"),
        (lambda m: nnx.jvp(loss, (m, X), (None, None)), "expected a tangent for each array, given None"),
        (lambda m: nnx.jvp(loss, (m, X), (X, X)), "the tangents of Line are of type"),
        (lambda m: nnx.jvp(loss, (m, X), ({"v": X}, X)), "the tangents have unknown paths, v; Line"),
        (lambda m: nnx.linearize(loss, m, X)[1]({"v": X}, X), r"linearize\(loss\): the tangents have unknown paths, v"),
    ],
)
def test_errors_say_what_to_do(call: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        call(Line())


def test_a_variable_is_differentiated_in_all_arguments_or_in_none() -> None:
    model = Line()
    with pytest.raises(AliasError, match=r"the Param at \[1\].w: it is also \[0\].w"):
        nnx.grad(lambda one, other: jnp.sum(one.w * other.w))(model, model)
    with pytest.raises(AliasError, match=r"the Param at \[1\]: it is also \[0\], which"):
        nnx.grad(lambda one, other: jnp.sum(one * other))(model.w, model.w)
    # That of which nothing is differentiated anywhere may be anywhere.
    other = nnx.Dict(seen=model.seen)
    assert close(pure(nnx.grad(lambda one, other: jnp.sum(one.w) * other.seen)(model, other)), {"w": np.zeros(2)})


def test_objects_by_closure_may_be_read_and_nothing_else() -> None:
    def run(body: Any) -> Any:
        return nnx.jit(lambda model, x: nnx.grad(lambda x: body(model, x), has_aux=True)(x))

    model = Line()
    assert close(run(lambda model, x: (jnp.sum(model.w * x), 1))(model, X)[0], model.w[...])
    for body in (lambda model, x: (model(x).sum(), 1), lambda model, x: (x.sum(), model)):
        with pytest.raises(TraceContextError, match="Pass the"):
            run(body)(model, X)

"""Derivatives of functions of objects give what those of `flax.nnx` give, and change objects as they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like

nnx = pytest.importorskip("flax.nnx")

Program = Callable[[Any], Any]
X = jnp.array([3.0, 4.0])


def plain(value: Any) -> Any:
    """States, variables and arrays as lists and names, which are compared."""
    for package in (nnx, nnx_like):
        if isinstance(value, package.State):
            return [(path, plain(leaf)) for path, leaf in package.to_flat_state(value)]
    if isinstance(value, (nnx.Variable, nnx_like.Variable)):
        note = value.get_metadata().get("note")
        return type(value).__name__, note, plain(value.get_value())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if not hasattr(value, "dtype"):
        return value
    return "float0" if value.dtype == jax.dtypes.float0 else (np.asarray(value).tolist(), str(value.dtype))


def model(nnx: Any) -> Any:
    """A model with shared, static and integer parts."""
    made = nnx.Dict(
        w=nnx.Param(jnp.array([1.0, 2.0]), note="slope"),
        seen=nnx.BatchStat(jnp.array(0.5)),
        count=nnx.Variable(jnp.array(2)),
        raw=nnx.data(jnp.array([2.0, 3.0])),
        many=nnx.List([nnx.Param(jnp.array(3.0)), nnx.Dict(b=nnx.Param(jnp.array(5.0)))]),
        size=7,
    )
    made.tied = made.many[0]
    return made


def output(model: Any, x: Any) -> Any:
    """What the function gives: it also writes, and changes the structure."""
    model.count[...] += 1
    model.seen[...] = model.seen * 2
    model.size += 1
    model.added = model.w
    y = model.w**2 * model.raw * x * model.tied * model.many[1].b
    return y * model.seen * model.count


def loss(model: Any, x: Any) -> Any:
    return jnp.sum(output(model, x))


def changed(nnx: Any, run: Callable[[Any], Any]) -> Any:
    """What a run gives, and the model after it."""
    made = model(nnx)
    found = run(made)
    return found, nnx.state(made), made.size, made.added is made.w


def grads(**options: Any) -> Program:
    return lambda nnx: changed(nnx, lambda made: nnx.grad(loss, **options)(made, X))


def with_state(number: int, chosen: Callable[[Any], Any]) -> Program:
    def program(nnx: Any) -> Any:
        state = nnx.DiffState(number, chosen(nnx))
        return changed(nnx, lambda made: nnx.grad(loss, argnums=state)(made, X))

    return program


def value_and_aux(nnx: Any) -> Any:
    def f(model: Any, x: Any) -> Any:
        return loss(model, x), {"made": nnx.Dict(v=nnx.Param(x)), "model": model, "text": "text"}

    def run(made: Any) -> Any:
        (value, aux), grads = nnx.value_and_grad(f, argnums=(0, 1), has_aux=True)(made, X)
        return value, nnx.state(aux["made"]), aux["model"] is made, aux["text"], grads

    return changed(nnx, run)


def pytrees(nnx: Any) -> Any:
    shared = nnx.Param(jnp.array(2.0))
    args = {"a": [shared, model(nnx)], "b": shared, "x": X, "v": nnx.BatchStat(jnp.array(3.0))}

    def f(args: Any) -> Any:
        return jnp.sum(args["a"][0] * args["b"] * args["x"] * args["v"] * args["a"][1].w)

    found = nnx.grad(f)(args)
    return found["a"], found["b"], found["x"], found["v"]


def states(nnx: Any) -> Any:
    graphdef, chosen, rest = nnx.split(model(nnx), nnx.BatchStat, ...)
    return nnx.grad(lambda chosen, rest: loss(nnx.merge(graphdef, chosen, rest), X))(chosen, rest)


def keywords(nnx: Any) -> Any:
    return changed(nnx, lambda made: nnx.grad(loss)(x=X, model=made))


def methods(nnx: Any) -> Any:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(X)

        @nnx.grad
        def plain(self, x: Any) -> Any:
            return jnp.sum(self.w**2 * x)

        @nnx.value_and_grad(argnums=1)
        def options(self, x: Any) -> Any:
            return jnp.sum(self.w**2 * x)

    return Model().plain(X), Model().options(X)


def raising(nnx: Any) -> Any:
    made = model(nnx)

    def f(model: Any) -> Any:
        loss(model, X)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        nnx.grad(f)(made)
    return nnx.state(made), made.size, hasattr(made, "added")


def under(lift: str, **options: Any) -> Program:
    def program(nnx: Any) -> Any:
        lifted = getattr(nnx, lift)(nnx.grad(loss), **options)
        return changed(nnx, lambda made: lifted(made, X))

    return program


def twice(nnx: Any) -> Any:
    """A gradient of a gradient; the structure changes in one that is called once."""

    def second(model: Any) -> Any:
        return jnp.sum(nnx.grad(lambda model: jnp.sum(model.w**3 * model.tied))(model).w * X)

    return nnx.grad(second)(model(nnx))


PROGRAMS: dict[str, Program] = {
    "params": grads(),
    "array": grads(argnums=1),
    "both": grads(argnums=(0, 1)),
    "list": grads(argnums=[1]),
    "type": with_state(0, lambda nnx: nnx.BatchStat),
    "path": with_state(0, lambda nnx: nnx.PathContains("many")),
    "floats": with_state(0, lambda nnx: nnx.Not(lambda path, value: path[0] == "count")),
    "none": with_state(0, lambda nnx: nnx.Cache),
    "value_and_aux": value_and_aux,
    "pytrees": pytrees,
    "states": states,
    "keywords": keywords,
    "methods": methods,
    "raising": raising,
    "jit": under("jit"),
    "remat": under("remat"),
    "twice": twice,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients(program: Program) -> None:
    assert plain(program(nnx_like)) == plain(program(nnx))


# --- custom_vjp -------------------------------------------------------------------------------------------------------


def rule(nnx: Any, seen: list[Any], function: Any = None, nondiff: Any = (), gone: Any = ()) -> Any:
    """A function with a rule, which notes what its pullback gets."""

    @nnx.custom_vjp(nondiff_argnums=nondiff)
    def f(model: Any, x: Any) -> Any:
        if function is not None:
            return function(model, x)
        model.size += 1
        model.seen[...] = model.seen * 3
        return jnp.sum(model.w * x)

    def fwd(model: Any, x: Any) -> Any:
        return f(model, x), (model, x)

    def bwd(*args: Any) -> Any:
        *held, (residual, x), (updates, y) = args
        seen.append((held, nnx.state(residual), residual.size, x, updates, y))
        (found, *arrays) = updates
        found["w"].set_value(found["w"].get_value() + 10 * x)
        for name in gone:
            del found[name]
        return (found, *[7 * x for _ in arrays])

    f.defvjp(fwd, bwd)
    return f


def small(nnx: Any) -> Any:
    return nnx.Dict(
        w=nnx.Param(jnp.array([1.0, 2.0])), seen=nnx.BatchStat(jnp.array(0.5)), n=nnx.Variable(jnp.array(2)), size=1
    )


def ruled(
    call: Callable[[Any], Any] = lambda f: f,
    argnums: Any = 0,
    function: Any = None,
    nondiff: Any = lambda nnx: (),
    gone: Any = (),
) -> Program:
    def program(nnx: Any) -> Any:
        seen: list[Any] = []
        f = rule(nnx, seen, function and function(nnx), nondiff(nnx), gone)
        made = small(nnx)
        found = nnx.grad(call(f), argnums=argnums)(made, X)
        return found, seen, nnx.state(made), made.size

    return program


def new_objects(nnx: Any) -> Any:
    def function(model: Any, x: Any) -> Any:
        model.new = nnx.Param(model.w * 2)
        return jnp.sum(model.w * x), nnx.Dict(q=nnx.Param(model.w * 3)), {"seen": model.seen}

    return function


def sum_of_all(f: Any) -> Any:
    def call(model: Any, x: Any) -> Any:
        y, made, _ = f(model, x)
        return y + 3 * jnp.sum(made.q) + 5 * jnp.sum(model.new)

    return call


RULES: dict[str, Program] = {
    "plain": ruled(),
    "array": ruled(argnums=(0, 1)),
    "updates": ruled(lambda f: lambda model, x: f(model, x) + 3 * model.seen),
    "objects": ruled(sum_of_all, function=new_objects, gone=("new",)),
    "nondiff": ruled(nondiff=lambda nnx: (1,)),
    "diff_state": ruled(nondiff=lambda nnx: (nnx.DiffState(0, nnx.Param),), gone=("n", "seen")),
}


@pytest.mark.parametrize("program", RULES.values(), ids=RULES)
def test_rules(program: Program) -> None:
    assert plain(program(nnx_like)) == plain(program(nnx))


# --- vjp and jvp, which `flax.nnx` has without changes of structure ---------------------------------------------------


def once(model: Any, x: Any) -> Any:
    model.seen[...] = model.seen * 2
    return model.w**2 * x * model.seen


def test_vjp_and_jvp() -> None:
    def run(nnx: Any, **options: Any) -> Any:
        made = nnx.Dict(w=nnx.Param(X, note="slope"), seen=nnx.BatchStat(jnp.array(0.5)))
        y, back = nnx.vjp(once, made, X, **options)
        grads, x = back(jnp.ones(2))
        along = jax.tree.map(lambda leaf: leaf * 3, made)
        return y, nnx.state(grads), x, nnx.jvp(once, (made, X), (along, X), **options), nnx.state(made)

    assert plain(run(nnx_like)) == plain(run(nnx, graph_updates=False))

"""`graph=` and `graph_updates=`: True changes nothing, and False forbids what only the graph mode of NNX can do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from nnx_like.errors import AliasError, StructureError

X = jnp.ones((1, 2))


def linear() -> Any:
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def called(model: Any, x: Any) -> Any:
    return model(x)


TREES: dict[str, Callable[..., Any]] = {
    "as_abstract": nnx.as_abstract,
    "clone": nnx.clone,
    "graphdef": nnx.graphdef,
    "map": lambda model, **mode: nnx.map(lambda _, leaf: leaf, model, **mode),
    "split": nnx.split,
    "state": nnx.state,
    "variables": nnx.variables,
    "flatten": nnx.flatten,
    "unpack": nnx.unpack,
    "iter_children": lambda model, **mode: list(nnx.iter_children(model, **mode)),
    "iter_graph": lambda model, **mode: list(nnx.iter_graph(model, **mode)),
    "recursive_map": lambda model, **mode: nnx.recursive_map(lambda _, leaf: leaf, model, **mode),
    "iter_modules": lambda model, **mode: list(nnx.iter_modules(model, **mode)),
    "iter_module_children": lambda model, **mode: list(nnx.iter_module_children(model, **mode)),
    "view": nnx.view,
    "view_info": nnx.view_info,
    "with_attributes": lambda model, **mode: nnx.with_attributes(model, raise_if_not_found=False, n=1, **mode),
    "reseed": lambda model, **mode: nnx.reseed(model, default=1, **mode),
    "set_attributes": lambda model, **mode: model.set_attributes(raise_if_not_found=False, n=1, **mode),
    "EMA": lambda model, **mode: nnx.EMA(model, 0.9, **mode),
    "GraphDef.apply": lambda model, **mode: nnx.graphdef(model).apply(nnx.state(model), **mode),
}

TRANSFORMATIONS: dict[str, Callable[..., Any]] = {
    "jit": lambda model, **mode: nnx.jit(called, **mode)(model, X),
    "jit of a partial": lambda model, **mode: nnx.jit(functools.partial(called, x=X), **mode)(model),
    "jit as a decorator": lambda model, **mode: nnx.jit(**mode)(called)(model, X),
    "grad": lambda model, **mode: nnx.grad(lambda model: model(X).sum(), **mode)(model),
    "value_and_grad": lambda model, **mode: nnx.value_and_grad(lambda model: model(X).sum(), **mode)(model),
    "vmap": lambda model, **mode: nnx.vmap(called, in_axes=(None, 0), **mode)(model, X),
    "scan": lambda model, **mode: nnx.scan(
        lambda model, c, x: (model(c), x), in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0), **mode
    )(model, X, X),
    "remat": lambda model, **mode: nnx.remat(called, **mode)(model, X),
    "cond": lambda model, **mode: nnx.cond(True, called, lambda model, x: x, model, X, **mode),
    "switch": lambda model, **mode: nnx.switch(0, [called, lambda model, x: x], model, X, **mode),
    "while_loop": lambda model, **mode: nnx.while_loop(
        lambda s: s[1].sum() < -9, lambda s: (s[0], s[0](s[1])), (model, X), **mode
    ),
    "fori_loop": lambda model, **mode: nnx.fori_loop(0, 2, lambda _, s: (s[0], s[0](s[1])), (model, X), **mode),
    "vjp": lambda model, **mode: nnx.vjp(called, model, X, **mode)[0],
    "eval_shape": lambda model, **mode: nnx.eval_shape(called, model, X, **mode),
    "make_jaxpr": lambda model, **mode: nnx.make_jaxpr(called, **mode)(model, X),
    "checkify": lambda model, **mode: nnx.checkify(called, **mode)(model, X),
    "jit_partial": lambda model, **mode: nnx.jit_partial(called, model, **mode)(X),
    "cached_partial": lambda model, **mode: nnx.cached_partial(nnx.jit(called, **mode), model, **mode)(X),
}

EVERYWHERE = {**TREES, **TRANSFORMATIONS}


class Twice(nnx.Module):
    def __init__(self, shared: bool) -> None:
        self.first = linear()
        self.second = self.first if shared else linear()
        self.n = 0

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_shared_variables_are_an_error_only_without_graph(name: str) -> None:
    use = EVERYWHERE[name]
    if name in ("jit", "vmap", "cond", "eval_shape", "jit_partial", *TREES):
        use(Twice(True), graph=True)
        use(Twice(False), graph=False)
    with pytest.raises(AliasError, match=r"first and .*second are the same Linear, which `graph=False` forbids"):
        use(Twice(True), graph=False)
    if name in TRANSFORMATIONS:
        use(Twice(True), graph_updates=False)


@pytest.mark.parametrize("name", ["clone", "split", "iter_graph", "jit", "eval_shape"])
def test_circular_references_are_an_error_without_graph(name: str) -> None:
    node = Twice(False)
    node.parent = nnx.Dict(of=node)
    with pytest.raises(AliasError, match=r" and .*parent.of are the same Twice"):
        EVERYWHERE[name](node, graph=False)


def test_shared_values_without_variables_are_no_matter() -> None:
    config, x = nnx.Dict(rate=0.5), jnp.ones(2)
    nnx.jit(lambda model: model.a.rate, graph=False)(nnx.Dict(a=config, b=config, x=x, y=x))


MODES = [{"graph": False}, {"graph_updates": False}, {"graph": True, "graph_updates": False}]


@pytest.mark.parametrize("mode", MODES)
def test_a_function_may_not_change_the_structure(mode: dict[str, Any]) -> None:
    def adds(model: Any) -> None:
        model.more = nnx.Param(X)

    def counts(model: Any) -> None:
        model.n += 1

    def returns(model: Any) -> Any:
        return model.first.kernel

    def writes(model: Any) -> None:
        model.first.bias.value = jnp.ones(2)

    def adds_to(_: int, model: Any) -> None:
        adds(model)

    for change in (adds, counts):
        model = Twice(False)
        with pytest.raises(StructureError, match=rf"jit\({change.__name__}\): the function changed the structure"):
            nnx.jit(change, **mode)(model)
        assert (model.n, hasattr(model, "more")) == (0, False)  # as before
        nnx.jit(change, graph=True, graph_updates=True)(model)
        assert (model.n, hasattr(model, "more")) != (0, False)
    with pytest.raises(StructureError, match="the function changed the structure"):
        nnx.jit(functools.partial(adds_to, 2), **mode)(Twice(False))
    with pytest.raises(AliasError, match=r"(result and args\[0\]|which `graph_updates=False` forbids.*return a copy)"):
        nnx.jit(returns, **mode)(model)
    nnx.jit(writes, **mode)(model)
    assert model.first.bias.value.tolist() == [1, 1]


def test_new_objects_may_share_and_what_was_given_may_not_be_returned() -> None:
    assert (made := nnx.eval_shape(lambda: Twice(True), graph_updates=False)).first is made.second
    with pytest.raises(AliasError, match=r"result.first and args\[0\] are the same Linear.*return a copy: `nnx.clone"):
        nnx.jit(lambda part: nnx.Dict(first=part), graph_updates=False)(linear())
    nnx.jit(lambda part: nnx.Dict(first=nnx.clone(part)), graph_updates=False)(linear())


def test_modes_are_keywords_that_help_explains() -> None:
    for fn in (nnx.jit, nnx.split, nnx.cond, nnx.view, nnx.eval_shape):
        assert inspect.signature(fn).parameters["graph"].kind is inspect.Parameter.KEYWORD_ONLY
        assert "\n    graph: True" in (fn.__doc__ or "")
    assert list(inspect.signature(nnx.view).parameters)[-2:] == ["graph", "kwargs"]


def test_partial_functions_change_their_arguments() -> None:
    model = nnx.Dict(n=nnx.Variable(jnp.array(0)))

    def count(model: Any, x: Any) -> Any:
        model.n.value += x
        return model.n.value

    for step in (nnx.jit_partial(count, model), nnx.cached_partial(nnx.jit(count), model)):
        before = int(model.n.value)
        assert (int(step(2)), int(step(3)), int(model.n.value)) == (before + 2, before + 5, before + 5)


def test_there_is_one_model_of_state() -> None:
    assert dict(nnx.var_defaults()) == {"hijax": False, "ref": False}
    with nnx.var_defaults(hijax=False, ref=False):
        assert nnx.var_defaults(hijax=False)(lambda x: nnx.Param(x).value)(1) == 1
    with pytest.raises(LiftArgumentError, match=r"var_defaults\(ref=True\): this model of state is not supported"):
        nnx.var_defaults(ref=True)
    assert jax.tree.leaves([nnx.A, nnx.M]) == [nnx.A, nnx.M]

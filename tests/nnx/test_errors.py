"""Errors of transformations say where, what and what to write, in terms of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnx_like as nnx
from liftcore.errors import LiftError


class Model(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(2))
        self.n = nnx.BatchStat(jnp.zeros(()))


def mesh() -> Any:
    return jax.sharding.Mesh(jax.devices()[:1], ("data",))


def also(result: Any, *_: Any) -> Any:
    return result


UNEVEN = nnx.Dict(w=nnx.Param(jnp.ones((3, 2))), v=nnx.Param(jnp.ones((4, 2))))
STACKED = nnx.StateAxes({nnx.Param: 0, ...: nnx.Carry})
X = jnp.ones(3)

WRONG: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "shared_value_differs": (
        lambda: nnx.vmap(lambda model, x: model.n.set_value(x), in_axes=(None, 0))(Model(), X),
        ["vmap(", "[0].n", "axis None", "nnx.StateAxes"],
    ),
    "sizes_disagree": (lambda: nnx.vmap(lambda model: model.w * 1)(UNEVEN), ["[0].v: 4", "[0].w: 3"]),
    "no_axis_to_map": (lambda: nnx.vmap(lambda model: model.n * 1)(Model()), ["[0].n", "shape ()"]),
    "result_differs": (lambda: nnx.vmap(lambda x: x, out_axes=None)(X), ["`out_axes`", "None", "a result", "differs between elements"]),
    "prefix_does_not_fit": (lambda: nnx.vmap(lambda a, b: a, in_axes=(0,))(X, X), ["in_axes"]),
    "object_as_prefix": (lambda: nnx.vmap(lambda a: a, in_axes=(Model(),))(X), ["a Model", "StateAxes"]),
    "variable_without_filter": (
        lambda: nnx.vmap(lambda model: model, in_axes=(nnx.StateAxes({nnx.Param: None}),), axis_size=2)(Model()),
        ["BatchStat at n", "`...`"],
    ),
    "filters_over_a_list": (
        lambda: nnx.vmap(lambda models: 0, in_axes=(nnx.StateAxes({...: None}),), axis_size=2)([Model(), Model()]),
        ["in_axes", "list of objects", "one for each"],
    ),
    "text_as_argument": (
        lambda: nnx.jit(lambda model, mode: 0)(Model(), "a"),
        ["jit(", "argument 1", "static_argnums=1"],
    ),
    "array_in_static": (
        lambda: nnx.jit(lambda x, sizes: x, static_argnums=1)(X, [X]),
        ["static argument 1", "holds an array"],
    ),
    "method_of_an_instance": (lambda: nnx.jit(nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__), ["jit(Linear.__call__)"]),
    "no_function": (lambda: nnx.jit(3), ["jit", "expected a function"]),
    "shardings_for_another_number": (
        lambda: nnx.jit(lambda a, b: a, in_shardings=(None,))(X, X),
        ["in_shardings", "1 arguments", "2 that are not static"],
    ),
    "carried_variable_changes_type": (
        lambda: nnx.scan(lambda model, x: also((model, x), model.n.set_value(jnp.ones(2))))(Model(), X),
        ["scan(", "[0].n", "float32[] in, float32[2] out"],
    ),
    "carry_changes_structure": (
        lambda: nnx.scan(lambda model, x: ((model, 1), x))(Model(), X),
        ["carry Model", "(Model, *)"],
    ),
    "carry_on_one_side": (lambda: nnx.scan(lambda c, x: x, out_axes=0)(X, X), ["`Carry` must be in both"]),
    "two_carries": (lambda: nnx.scan(lambda c, d: (c, d), in_axes=(nnx.Carry,) * 2), ["in_axes", "2 carries"]),
    "result_is_no_pair": (lambda: nnx.scan(lambda c, x: c)(1.0, X), ["out_axes=(Carry, 0)", "tuple"]),
    "no_length": (
        lambda: nnx.scan(lambda m: m, in_axes=nnx.Carry, out_axes=nnx.Carry)(Model()),
        ["size of the axis is unknown", "length="],
    ),
    "carried_variable_is_made": (
        lambda: nnx.scan(
            lambda model, x: also(x, setattr(model, "z", nnx.Variable(x))), in_axes=(STACKED, 0), out_axes=0
        )(nnx.Dict(w=nnx.Param(X)), X),
        ["made in the loop", "before the loop"],
    ),
    "condition_writes": (
        lambda: nnx.while_loop(lambda model: also(False, model.n.set_value(1.0)), lambda model: model, Model()),
        ["value.n", "the condition writes it"],
    ),
    "condition_changes_structure": (
        lambda: nnx.while_loop(lambda model: also(False, setattr(model, "q", 1)), lambda model: model, Model()),
        ["q was added"],
    ),
    "loop_gives_nothing_back": (lambda: nnx.fori_loop(0, 2, lambda i, model: None, Model()), ["carry Model", "None"]),
    "branches_return_other_types": (
        lambda: nnx.cond(True, lambda m: m.n.get_value(), lambda m: m.w.get_value(), Model()),
        ["cond(", "float32[]", "float32[2]"],
    ),
    "branches_return_other_objects": (
        lambda: nnx.cond(True, lambda m: m, lambda m: m.w, Model()),
        ["same structure", "object 0", "object 2"],
    ),
    "branches_write_other_types": (
        lambda: nnx.cond(True, lambda m: m.n.set_value(jnp.ones(2)), lambda m: None, Model()),
        ["[0].n", "float32[2]"],
    ),
    "spec_is_none": (
        lambda: nnx.shard_map(lambda m: m, mesh=mesh(), in_specs=(0,), out_specs=0),
        ["shard_map(", "in_specs", "PartitionSpec"],
    ),
    "operator_writes": (
        lambda: nnx.associative_scan(lambda m, a, b: also(a + b, m.n.set_value(1.0)))(Model(), X),
        ["associative_scan(", "changed an object"],
    ),
    "no_lengths": (lambda: nnx.remat_scan(lambda m, x: x, lengths=()), ["lengths"]),
    "value_is_missing": (lambda: nnx.merge(nnx.graphdef(Model()), {"w": 1}), ["missing: n"]),
    "value_of_another_graph": (lambda: nnx.merge(*nnx.split(Model()), {"q": 1}), ["not of the graph: q"]),
    "only_by_name": (lambda: nnx.vmap(lambda x, *, k: x)(X, k=1), ["k can only be given by name"]),
}


@pytest.mark.parametrize(("call", "facts"), WRONG.values(), ids=WRONG)
def test_it_says_where_what_and_what_to_write(call: Any, facts: list[str]) -> None:
    with pytest.raises(LiftError) as caught:
        call()
    text = str(caught.value)
    assert [fact for fact in facts if fact not in text] == [], text
    assert not [word for word in ("variable_axes", "scope", "PyTreeDef", " at /", "collection") if word in text], text

"""Errors of transformations say where, what and what to write, in terms of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
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


class Count(nnx.Variable):
    pass


P = jax.sharding.PartitionSpec
MODEL = Model()
NESTED = nnx.Dict(linear=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
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
    "result_differs": (
        lambda: nnx.vmap(lambda x: x, out_axes=None)(X),
        ["a result with None in `out_axes` differs"],
    ),
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
        ["in_shardings", "is 1", "2 arguments are not static"],
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
        ["in the loop", "before the loop"],
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
        ["same structure", "true_fun", "what is at [0],", "false_fun", "what is at [0].w."],
    ),
    "branches_write_other_types": (
        lambda: nnx.cond(True, lambda m: m.n.set_value(jnp.ones(2)), lambda m: None, Model()),
        ["[0].n", "float32[2]"],
    ),
    "spec_is_none": (
        lambda: nnx.shard_map(lambda m: m, mesh=mesh(), in_specs=(0,), out_specs=0),
        ["shard_map(", "in_specs", "PartitionSpec"],
    ),
    "new_value_has_too_few_axes_for_its_spec": (
        lambda: nnx.shard_map(lambda m: m.n.set_value(0.0), mesh=mesh(), in_specs=P("data"), out_specs=P())(
            nnx.Dict(n=nnx.Param(X))
        ),
        ["[0].n in shard_map(<lambda>): ", "in `in_specs`, or"],
    ),
    "new_value_differs_between_shards": (
        lambda: nnx.shard_map(
            lambda m, x: m.w.set_value(m.w + x.sum()), mesh=mesh(), in_specs=(P(), P("data")), out_specs=P()
        )(Model(), X),
        ["[0].w in shard_map(<lambda>): ", "`nnx.StateSharding({nnx.Param: P('data'), ...: P()})`"],
    ),
    "operator_writes": (
        lambda: nnx.associative_scan(lambda m, a, b: also(a + b, m.n.set_value(1.0)))(Model(), X),
        ["associative_scan(", "changed an object"],
    ),
    "no_lengths": (lambda: nnx.remat_scan(lambda m, x: x, lengths=()), ["lengths"]),
    "value_is_missing": (lambda: nnx.merge(nnx.graphdef(Model()), {"w": 1}), ["missing: n"]),
    "value_of_another_graph": (lambda: nnx.merge(*nnx.split(Model()), {"q": 1}), ["not in the graph: q"]),
    "only_by_name": (lambda: nnx.vmap(lambda x, *, k: x)(X, k=1), ["vmap(<lambda>)", "can be passed only by name"]),
    "donated_and_kept": (
        lambda: nnx.jit(lambda a, b: 0, donate_argnums=0)(MODEL, MODEL),
        ["BatchStat at [1].n", "also [0].n, which is donated; here it is not donated", "jnp.copy"],
    ),
    "donated_and_kept_by_name": (
        lambda: nnx.jit(lambda a, b: 0, donate_argnames="b")(MODEL, b=MODEL),
        ["BatchStat at b.n", "[0].n", "donated", "not donated"],
    ),
    "differentiated_and_not": (
        lambda: nnx.grad(lambda a, b: 0.0)(MODEL, MODEL),
        ["Param at [1].w", "[0].w", "differentiated", "not differentiated"],
    ),
    "differentiated_and_not_by_name": (
        lambda: nnx.grad(lambda a, *, b: 0.0)(MODEL, b=MODEL),
        ["Param at b.w", "[0].w", "differentiated", "not differentiated"],
    ),
    "two_axes": (
        lambda: nnx.vmap(lambda a, b: 0, in_axes=(0, 1))(UNEVEN, UNEVEN),
        ["[1].v", "[0].v", "on axis 0", "on axis 1", "nnx.clone"],
    ),
    "two_specs": (
        lambda: nnx.shard_map(lambda a, b: 0, mesh=mesh(), in_specs=(P(), P("data")), out_specs=P())(MODEL, MODEL),
        ["[1].n", "[0].n", f"sharded as {P()}", f"sharded as {P('data')}"],
    ),
    "carry_is_an_output_too": (
        lambda: nnx.scan(lambda c, x: (c, c))(Model(), X),
        ["result[1].n", "[0].n", "in the carry", "on axis 0", "nnx.clone"],
    ),
    "carry_is_an_output_too_in_another_order": (
        lambda: nnx.scan(lambda c, x: (x, c, c), out_axes=(0, nnx.Carry, 0))(Model(), X),
        ["result[2].n", "[0].n", "in the carry"],
    ),
    "input_and_output_on_two_axes": (
        lambda: nnx.vmap(lambda m: also(nnx.Dict(m=m)), in_axes=1)(nnx.Dict(a=nnx.Param(jnp.ones((2, 2))))),
        ["Param at result.m.a", "[0].a", "on axis 1", "on axis 0"],
    ),
    "shared_param_differs": (
        lambda: nnx.vmap(lambda m, x: m.w.set_value(m.w * x), in_axes=(None, 0))(Model(), X),
        ["vmap(<lambda>): [0].w", "nnx.StateAxes({nnx.Param: 0, ...: None})"],
    ),
    "shared_kind_of_the_user_differs": (
        lambda: nnx.vmap(lambda c, x: c.n.set_value(x), in_axes=(None, 0))(nnx.Dict(n=Count(0.0)), X),
        ["vmap(<lambda>): [0].n", "nnx.StateAxes({Count: 0, ...: None})"],
    ),
    "shared_variables_of_two_kinds_differ": (
        lambda: nnx.vmap(lambda m, x: (m.w.set_value(m.w * x), m.n.set_value(x))[2:], in_axes=(None, 0))(Model(), X),
        ["[0].", "nnx.Param", "nnx.BatchStat", ": 0, ...: None})"],
    ),
    "shared_by_iterations_and_written": (
        lambda: nnx.scan(lambda m, x: m.w.set_value(m.w * x), in_axes=(None, 0), out_axes=0)(Model(), X),
        ["scan(<lambda>): [0].w", "nnx.StateAxes({nnx.Param: nnx.Carry, ...: None})"],
    ),
    "result_of_iterations_differs": (
        lambda: nnx.scan(lambda x: x, in_axes=0, out_axes=None)(X),
        ["None in `out_axes`"],
    ),
    "prefix_of_a_loop_does_not_fit": (
        lambda: nnx.scan(lambda c, x: (c, x), in_axes=(nnx.Carry, 0, None))(Model(), X),
        ["(Carry, 0, None)", "(Model, array)"],
    ),
    "new_variable_of_what_is_shared": (
        lambda: nnx.vmap(lambda m, x: setattr(m, "z", nnx.Param(x)), in_axes=(None, 0))(Model(), X),
        ["vmap(", "a new variable of [0]", "None in `in_axes`"],
    ),
    "new_variable_of_what_iterations_share": (
        lambda: nnx.scan(lambda m, x: setattr(m, "z", nnx.Param(x)), in_axes=(None, 0), out_axes=0)(Model(), X),
        ["scan(", "a new variable of [0]", "None in `in_axes`"],
    ),
    "outer_variable_by_closure": (
        lambda: nnx.jit(lambda x: nnx.jit(lambda m: m.n.set_value(x))(MODEL))(1.0),
        ["BatchStat at [0].n", "jit(<lambda>) changed it", "outer function"],
    ),
    "outer_object_by_closure": (
        lambda: nnx.jit(lambda x: nnx.jit(lambda m: setattr(m.linear, "z", 1))(NESTED))(1.0),
        ["Linear at [0].linear", "jit(<lambda>) changed it"],
    ),
    "branches_return_another_object": (
        lambda: nnx.cond(True, lambda m: m, lambda m: nnx.Dict(a=1), Model()),
        ["true_fun returns what is at [0]", "false_fun a new Dict"],
    ),
    "branches_leave_other_attributes": (
        lambda: nnx.cond(True, lambda m: None, lambda m: setattr(m, "z", 3), Model()),
        ["in true_fun nothing", "in false_fun [0].z was added"],
    ),
    "third_branch_leaves_other_attributes": (
        lambda: nnx.switch(0, [lambda m: None, lambda m: None, lambda m: delattr(m, "n")], Model()),
        ["in branch 0 nothing", "in branch 2 [0].n was deleted"],
    ),
    "branches_set_an_attribute_to_other_values": (
        lambda: nnx.cond(True, lambda m: setattr(m, "z", 1), lambda m: setattr(m, "z", 2), Model()),
        ["from true_fun to false_fun", "[0].z was 1 and is 2"],
    ),
    "no_mesh": (
        lambda: nnx.shard_map(lambda x: x, mesh=None, in_specs=P(), out_specs=P()),
        ["shard_map(", "`mesh`", "given None", "jax.make_mesh"],
    ),
    "no_optimizer": (lambda: nnx.Optimizer(Model(), None, wrt=nnx.Param), ["`tx`", "`init` and `update`", "None"]),
    "no_state": (lambda: nnx.to_pure_dict(3), ["expected a `State`, given 3", "nnx.state"]),
    "arguments_that_are_no_tuple": (
        lambda: nnx.bridge.ToLinen(nnx.Linear, 2, 2).init(jax.random.key(0), X),
        ["ToLinen(Linear)", "given 2 and 2", "to_linen(Linear, 2, 2)"],
    ),
}

OF_THE_CORE = (
    "variable_",
    "broadcast",
    "scope",
    "PyTreeDef",
    " at /",
    "collection",
    "donated[",
    "others[",
    "[[",
    "group",
)
"""What one who writes objects does not know of."""


@pytest.mark.parametrize(("call", "facts"), WRONG.values(), ids=WRONG)
def test_it_says_where_what_and_what_to_write(call: Any, facts: list[str]) -> None:
    with pytest.raises(LiftError) as caught:
        call()
    text = str(caught.value)
    assert [fact for fact in facts if fact not in text] == [], text
    assert not [word for word in OF_THE_CORE if word in text], text


def marked(is_marked: bool) -> Model:
    model = Model()
    if is_marked:
        model.z = 1
    return model


def test_a_retrace_names_arguments_as_the_function_does() -> None:
    def step(model: Any, x: Any, *rest: Any, head: Any) -> Any:
        return x

    run = nnx.jit(step, donate_argnames="head")
    with liftcore.retraces() as found:
        for changed in [(), ("model",), ("model", "head"), ("model", "head", "rest")]:
            run(marked("model" in changed), 1.0, marked("rest" in changed), head=marked("head" in changed))
    told = [str(one) for one in found][1:]
    expected = ["argument model.z", "argument head.z", "argument rest_0.z"]
    assert [one for one, name in zip(told, expected, strict=True) if f"{name}: absent before, 1 now" not in one] == []


def test_arguments_are_found_whatever_they_are_called() -> None:
    def total(x: Any, /, **others: Any) -> Any:
        return x + sum(others.values())

    values = {"x": 2.0, "two words": jnp.ones(2)}
    assert nnx.jit(total, donate_argnames="two words")(1.0, **values).tolist() == [4.0, 4.0]


def test_a_graphdef_shows_its_parts() -> None:
    model = nnx.Dict(w=nnx.Param(jnp.ones(2), axes=("a",)), layers=[nnx.Dict(size=3)])
    model.z = model.w
    lines = repr(nnx.graphdef(model)).splitlines()
    assert [line.strip() for line in lines] == [
        "GraphDef(Dict, 1 values,",
        "layers: list",
        "layers[0]: Dict",
        "layers[0].size: 3",
        "w: Param",
        "w.axes: ('a',)",
        "z: w again",
        ")",
    ]

"""Behavior that was found wrong once, beside what NNX does."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_like as nnx
from liftcore.errors import LiftArgumentError, UnmatchedFilterError
from nnx_like.crossing.groups import Groups
from tests.machine import make_mesh


class Counter(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.arange(3.0))
        self.n = nnx.Variable(jnp.array(0))


@pytest.fixture
def mesh():
    return make_mesh((3,), "a")


# --- scan


def test_scan_draws_the_same_key_of_a_shared_stream_and_another_one_in_the_next_call():
    rngs = nnx.Rngs(dropout=1)
    draw = nnx.scan(lambda rngs: rngs.dropout(), in_axes=None, out_axes=0, length=3)
    first, second = (jax.random.key_data(draw(rngs)).tolist() for _ in range(2))
    assert first[0] == first[1] == first[2] != second[0]


def test_scan_splits_a_stream_that_an_earlier_filter_takes():
    rngs = nnx.Rngs(params=jax.random.split(jax.random.key(0), 3), dropout=1)
    axes = nnx.StateAxes({"params": 0, ...: None})
    params, dropout = nnx.scan(lambda rngs: (rngs.params(), rngs.dropout()), in_axes=(axes,), out_axes=0)(rngs)
    assert len(set(map(str, jax.random.key_data(params)))) == 3
    assert len(set(map(str, jax.random.key_data(dropout)))) == 1


def test_a_loop_returns_the_objects_that_it_was_given():
    counter = nnx.Dict(n=nnx.Variable(jnp.array(0)))

    def more(counter):
        counter.n += 1
        return counter

    loops = [
        nnx.scan(more, in_axes=nnx.Carry, out_axes=nnx.Carry, length=2),
        lambda c: nnx.while_loop(lambda c: c.n < 4, more, c),
        lambda c: nnx.fori_loop(0, 2, lambda i, c: more(c), c),
    ]
    assert all(loop(counter) is counter for loop in loops)
    assert counter.n[...] == 6


def test_a_variable_added_to_one_object_is_no_change_of_the_carry():
    class Model(nnx.Module):
        def step(self, state):
            self.sow(nnx.Intermediate, "seen", state.x[...])
            state.x += 1
            return state

    model, state = Model(), nnx.Dict(x=nnx.Variable(jnp.array(0)))
    axes = nnx.StateAxes({nnx.Intermediate: 0, ...: nnx.Carry})
    out = nnx.scan(Model.step, in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, length=3)(model, state)
    assert out is state
    assert (state.x[...], model.seen[...][0].tolist()) == (3, [0, 1, 2])


# --- prefixes


def test_axes_and_shardings_may_be_a_state():
    model = Counter()
    axes = nnx.state(model)
    axes["w"], axes["n"] = 0, None
    axes = nnx.StateAxes(axes)
    assert [axes.map_prefix((name,), None) for name in "wn"] == [0, None]
    nnx.vmap(lambda model: None, in_axes=(axes,))(model)
    with pytest.raises(UnmatchedFilterError, match="no filter matches it"):
        axes.map_prefix(("other",), None)
    assert nnx.StateSharding(nnx.State({"a": {"b": P("x")}})).map_prefix(("a", "b"), None) == P("x")


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_jit_refuses_objects_as_shardings_at_once(option):
    with pytest.raises(LiftArgumentError, match="cannot be a prefix"):
        nnx.jit(lambda x: x, **{option: nnx.Dict()})


def test_shard_map_takes_none_for_no_result(mesh):
    model = Counter()

    def f(model):
        model.n += 1

    nnx.shard_map(f, mesh=mesh, in_specs=(nnx.StateSharding({nnx.Param: P("a"), ...: P()}),), out_specs=None)(model)
    assert model.n[...] == 1


def test_two_shardings_that_print_alike_are_two_groups(mesh):
    groups, other = Groups("test", "sharding"), Mesh(mesh.devices[::-1], ("a",))
    one, two = NamedSharding(mesh, P("a")), NamedSharding(other, P("a"))
    names = [groups.group(sharding).name for sharding in (one, two, one)]
    assert str(one) == str(two)
    assert names[0] == names[2] != names[1]
    assert [groups.specs[name] == sharding for name, sharding in zip(names, (one, two, one), strict=True)] == [True] * 3


def test_variables_stay_where_shardings_moved_them(mesh):
    def lies():
        return [isinstance(leaf.get_value().sharding, NamedSharding) for leaf in (model.w, model.n)]

    def read(model):
        return model.w.sum()

    def fail(model):
        raise KeyError

    placed = nnx.StateSharding({nnx.Param: NamedSharding(mesh, P("a")), ...: None})
    model = Counter()
    with pytest.raises(KeyError):
        nnx.jit(fail, in_shardings=(placed,))(model)
    assert lies() == [False, False]
    assert nnx.jit(read, in_shardings=(placed,))(model) == 3.0
    assert lies() == [True, False]
    model = Counter()
    nnx.shard_map(read, mesh=mesh, in_specs=(P(),), out_specs=P())(model)
    assert lies() == [True, True]


def test_a_model_of_another_trace_is_not_moved(mesh):
    model = Counter()
    read = nnx.jit(lambda model: model.w.sum(), in_shardings=(NamedSharding(mesh, P()),))
    assert jax.jit(lambda x: x * read(model))(2.0) == 6.0
    assert not isinstance(model.w.get_value().sharding, NamedSharding)


def test_a_type_with_its_own_add_axis_is_told_of_axes_without_metadata():
    told = []

    class Told(nnx.Param):
        def add_axis(self, index, name):
            told.append(("add", index, name))

        def remove_axis(self, index, name):
            told.append(("remove", index, name))

    options = {"transform_metadata": {nnx.PARTITION_NAME: "layers"}}
    model = nnx.vmap(lambda x: nnx.Dict(w=Told(x)), **options)(jnp.ones(2))
    assert told == [("add", 0, "layers")]
    nnx.vmap(lambda model: None, **options)(model)
    assert told[1:] == [("remove", 0, "layers"), ("add", 0, "layers")]


# --- graphs


def test_pop_takes_variables_and_arrays_out_of_lists_and_dicts():
    shared = nnx.Param(jnp.array(1))
    inner = {"b": jnp.array(1), "c": shared, "d": jnp.array(3)}
    items = [jnp.array(1), jnp.array(5), shared, (shared, 4)]
    node = {"a": inner, "l": items, "m": nnx.Dict(w=shared, n=nnx.List([jnp.array(0), jnp.array(7)]))}
    popped = nnx.pop(node, (nnx.Param, lambda _, leaf: leaf < 2))
    assert popped["a"]["c"] is shared
    assert set(popped["a"]) == {"b", "c"}
    assert node["a"] is inner
    assert list(inner) == ["d"]
    assert node["l"] is items
    assert items == [5, (4,)]
    assert list(node["m"].n) == [7]
    assert not hasattr(node["m"], "w")


def test_pop_changes_nothing_where_it_raises():
    model = nnx.Dict(a=nnx.Param(1.0), inner=nnx.Dict(b=nnx.Param(2.0)))

    @jax.jit
    def f():
        own = nnx.Dict(own=nnx.Param(3.0), model=model)
        with pytest.raises(nnx.errors.TraceContextError):
            nnx.pop(own, nnx.Param)
        assert hasattr(own, "own")

    f()
    assert hasattr(model, "a")


def test_split_of_one_variable_takes_filters():
    variable = nnx.Param(1)
    graphdef, stats, params, rest = nnx.split(variable, nnx.BatchStat, nnx.Param, ...)
    assert params is variable
    assert len(stats) == len(rest) == 0
    assert nnx.merge(graphdef, stats, params, rest) is variable
    assert nnx.state(variable) is variable
    with pytest.raises(UnmatchedFilterError):
        nnx.split(variable, nnx.BatchStat)


def test_values_become_attributes_where_variables_are_not_recreated():
    model = nnx.Dict(w=nnx.Param(1.0))
    graphdef, _ = nnx.split(model)
    assert nnx.map(lambda path, leaf: 0, model, recreate_variables=False).w == 0
    assert isinstance(nnx.map(lambda path, leaf: 0, model).w, nnx.Param)
    assert nnx.merge(graphdef, {"w": 5}, recreate_variables=False).w == 5


def test_merge_of_graph_states_takes_those_of_one_graph():
    one, other = nnx.unpack(nnx.Dict(w=nnx.Param(1.0), n=nnx.Variable(0)), nnx.Param, ...)
    assert nnx.merge(one, other).n[...] == 0
    for wrong in (nnx.state(nnx.Dict(w=nnx.Param(1.0))), nnx.unpack(nnx.Dict())):
        with pytest.raises(LiftArgumentError, match="not a GraphState of the same graph"):
            nnx.merge(one, wrong)


def test_flatten_gives_a_list_without_paths():
    model = nnx.Dict(w=nnx.Param(1.0))
    graphdef, leaves = nnx.flatten(model, with_paths=False)
    assert leaves == [model.w]
    assert nnx.unflatten(graphdef, leaves).w is model.w
    assert nnx.PureState[nnx.Dict]


def test_a_sequence_of_no_layers_returns_its_arguments():
    call = nnx.Sequential()
    assert [call(), call(1), call(1, 2), call(k=2), call(1, k=2)] == [None, 1, (1, 2), {"k": 2}, 1]


# --- abstract values


class Mixed(nnx.Module):
    def __init__(self):
        self.w, self.nested = nnx.Param(jnp.arange(3.0)), nnx.Param({"a": jnp.ones(3)})
        self.array, self.listed = jnp.ones(3), [jnp.ones(3)]

    def __call__(self, x):
        return x * self.w * self.array + self.listed[0] + self.nested.get_value()["a"]


def test_an_abstract_object_is_one_in_all_its_arrays():
    model, abstract = Mixed(), nnx.eval_shape(Mixed)
    assert "array=float32[3]" in repr(abstract)
    assert nnx.state(abstract).flat_state().paths == nnx.state(model).flat_state().paths
    assert nnx.eval_shape(lambda model, x: model(x), abstract, 2.0).shape == (3,)
    compiled = nnx.jit(lambda model, x: model(x)).lower(abstract, jax.ShapeDtypeStruct((), "float32")).compile()
    assert compiled(model, 2.0).tolist() == [2, 4, 6]
    assert nnx.merge(nnx.graphdef(abstract), nnx.state(model))(2.0).tolist() == [2, 4, 6]
    nnx.update(abstract, nnx.state(model))
    assert abstract(2.0).tolist() == [2, 4, 6]


# --- programs written for NNX


def test_an_optimizer_trains_arrays_that_are_attributes():
    model = nnx.Dict(w=jnp.ones(2), blocks=nnx.List([jnp.ones(2), nnx.Param(jnp.ones(2))]), n=jnp.array(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=lambda path, leaf: "n" not in path)

    @nnx.jit
    def step(model, optimizer):
        wrt = nnx.DiffState(0, optimizer.wrt)
        grads = nnx.grad(lambda model: jnp.sum(model.w + model.blocks[0] + 2 * model.blocks[1]), argnums=wrt)(model)
        optimizer.update(model, grads)

    step(model, optimizer)
    assert [float(leaf[0]) for leaf in (model.w, model.blocks[0], model.blocks[1].value)] == [0.5, 0.5, 0]


def test_update_changes_arrays_of_a_state():
    state = nnx.State({"a": {"b": jnp.ones(2)}})
    nnx.update(state, {"a": {"b": 5, "c": 6}, "d": 7})
    assert nnx.to_pure_dict(state) == {"a": {"b": 5, "c": 6}, "d": 7}


@dataclasses.dataclass
class Settings:
    rate: float = 2.0
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1])


class Options:
    __slots__ = ("rate", "sizes")

    def __init__(self):
        self.rate, self.sizes = 2.0, [1, {"inner": Settings()}]


@pytest.mark.parametrize("kind", [Settings, Options])
def test_a_mutable_configuration_is_compiled_once_and_its_changes_are_seen(kind):
    traced = []

    @nnx.jit
    def run(model):
        traced.append(1)
        return model.w * model.config.rate * len(model.config.sizes)

    config = kind()
    model = nnx.Dict(w=nnx.Param(jnp.ones(())), config=config)
    expected = 2 * len(config.sizes)
    assert [run(each) for each in (model, model, nnx.clone(model))] == [expected] * 3
    assert len(traced) == 1
    config.rate = 3.0
    assert [run(model), run(model)] == [expected * 1.5] * 2
    config.sizes.append(5)
    assert run(model) == expected * 1.5 + 3
    assert len(traced) == 3


def test_a_configuration_with_a_configuration_inside_is_seen_too():
    config = Options()
    model = nnx.Dict(w=nnx.Param(jnp.ones(())), config=config)
    run = nnx.jit(lambda model: model.w * model.config.sizes[1]["inner"].rate)
    assert run(model) == 2
    config.sizes[1]["inner"].rate = 4.0
    assert run(model) == 4

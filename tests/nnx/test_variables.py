"""Variables: values, operators, metadata, hooks, kinds, and what JAX and Python see of them."""

import copy
import math
import operator
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore import trace_state
from liftcore.errors import LiftArgumentError
from nnx_like.errors import AliasError, StructureError, TraceContextError
from nnx_like.variablelib.kinds import (
    BatchStat,
    Cache,
    Param,
    RngCount,
    RngKey,
    RngState,
    VariableState,
    register_variable_name,
    variable_name_from_type,
    variable_type_from_name,
)
from nnx_like.variablelib.metadata import VariableMetadata, with_metadata, with_partitioning
from nnx_like.variablelib.variable import Variable


class Doubled(Variable):
    """Hooks as methods."""

    def on_get_value(self, value):
        return value * 2

    def on_set_value(self, value):
        return value + 100

    def on_create_value(self, value):
        return value + 1000


def _same(left, right):
    np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


# --- values


@pytest.mark.parametrize("value", [None, "text", 3, 2.5, True, (1, 2), {"a": [1]}, print, np.ones(2), jnp.ones(2)])
def test_anything_is_a_value_and_is_given_back_itself(value):
    variable = Variable(value)
    assert variable.value is value
    assert variable[...] is value
    assert variable.get_value() is value
    assert variable.raw_value is value
    assert variable.get_raw_value() is value


@pytest.mark.parametrize(
    "assign",
    [
        lambda variable, value: setattr(variable, "value", value),
        lambda variable, value: setattr(variable, "raw_value", value),
        lambda variable, value: variable.set_value(value),
        lambda variable, value: variable.set_raw_value(value),
        lambda variable, value: operator.setitem(variable, ..., value),
    ],
)
def test_the_very_object_is_assigned(assign):
    variable, value = Variable(jnp.zeros(2)), jnp.ones(2)
    assign(variable, value)
    assert variable._value is value


def test_a_variable_as_a_value_gives_its_value():
    inner, outer = Param(jnp.ones(2), on_get_value=lambda _, value: value * 3), Variable(0)
    _same(Variable(inner).value, [3, 3])
    outer.value = inner
    _same(outer.value, [3, 3])
    outer[...] = Param(jnp.zeros(2))
    _same(outer.value, [0, 0])


def test_items_are_read_and_assigned_without_changing_the_old_value():
    old = np.arange(3.0)
    variable = Variable(old)
    variable[0] = 5.0
    assert old[0] == 0
    assert variable[0] == 5
    assert type(variable.value) is np.ndarray
    table = {"a": 1}
    variable = Variable(table)
    variable["b"] = 2
    del variable["a"]
    assert table == {"a": 1}
    assert variable.value == {"b": 2}
    variable = Variable(jnp.zeros((2, 2)))
    variable[0] += 1
    variable.set_value(7, index=(1, 1))
    _same(variable.value, [[1, 1], [0, 7]])
    _same(variable.get_value(index=0), [1, 1])


def test_a_whole_array_is_broadcast_and_cast():
    variable = Variable(jnp.zeros((2, 3), jnp.bfloat16))
    for item in (1, 2.5, jnp.ones(3, jnp.bfloat16), jnp.ones((2, 3), jnp.int8)):
        variable[...] = item
        assert variable.value.shape == (2, 3)
        assert variable.value.dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="broadcast"):
        variable[...] = jnp.ones(4, jnp.bfloat16)


def test_a_traced_item_goes_into_a_numpy_array():
    def write(x):
        variable = Variable(np.zeros(2, np.float32))
        variable[0] = x
        return variable.value

    _same(jax.jit(write)(3.0), [3, 0])


def test_assigning_all_of_an_array_adds_no_operation():
    def double(x):
        variable = Param(x)
        variable[...] = variable[...] * 2
        return variable[...]

    assert len(jax.make_jaxpr(double)(jnp.ones(2)).eqns) == 1


# --- operators

_BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
_WHOLE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, divmod]


@pytest.mark.parametrize("operation", _BINARY + _WHOLE)
def test_binary_operators_are_those_of_values(operation):
    left, right = np.array([7, 3, 2]), np.array([2, 3, 1])
    expected = operation(left, right)
    for result in (
        operation(Variable(left), right),
        operation(left, Variable(right)),
        operation(Variable(left), Param(right)),
        operation(Variable(jnp.asarray(left)), Param(right)),
    ):
        assert not isinstance(result, Variable)
        _same(result, expected)


def test_matmul_and_numpy_on_the_left():
    x, variable = np.eye(2, dtype=np.float32), Variable(jnp.ones((2, 2)))
    for result in (x @ variable, variable @ x, variable @ variable / 2, x * 0 + variable, jnp.zeros((2, 2)) + variable):
        assert isinstance(result, jax.Array)
        _same(result, np.ones((2, 2)))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"]
)
def test_in_place_operators_assign_the_value(name):
    dtype = np.int32 if name in ("and", "or", "xor", "lshift", "rshift") else np.float32
    left, right = np.array([[7, 3], [2, 1]], dtype), np.array([[2, 3], [1, 2]], dtype)
    before = left.copy()
    variable = same = Param(left, tag="x")
    variable = getattr(operator, f"i{name}")(variable, Param(right))
    assert variable is same
    assert variable.tag == "x"
    plain = getattr(operator, name if name not in ("and", "or") else f"{name}_")
    _same(variable.value, plain(before, right))
    _same(left, before)  # the array that it held is another's as well


def test_in_place_operators_call_hooks():
    variable = Doubled(1)
    variable += 1
    assert variable.raw_value == 1001 * 2 + 1 + 100


def test_unary_operators_and_conversions_are_those_of_values():
    assert (-Variable(3), +Variable(3), abs(Variable(-3)), ~Variable(3)) == (-3, 3, 3, -4)
    assert (int(Variable(3.5)), float(Variable(3)), complex(Variable(3)), operator.index(Variable(3))) == (3, 3.0, 3, 3)
    assert (math.floor(Variable(2.5)), math.ceil(Variable(2.5)), math.trunc(Variable(2.5))) == (2, 3, 2)
    assert (round(Variable(2.755), 1), round(Variable(2.7)), f"{Variable(2.755):.1f}") == (2.8, 3.0, "2.8")
    assert (len(Variable([1, 2])), list(Variable([1, 2])), list(reversed(Variable([1, 2])))) == (2, [1, 2], [2, 1])
    assert 1 in Variable([1, 2])
    assert Variable(lambda x: x + 1)(2) == 3
    assert [bool(Variable(value)) for value in (0, 1, "", None, jnp.array(False), jnp.zeros(2))] == [0, 1, 0, 0, 0, 1]


def test_jax_and_numpy_take_a_variable_as_an_array():
    for value in (jnp.ones(2), np.ones(2, np.float32)):
        variable = Param(value)
        _same(jnp.sin(variable), jnp.sin(value))
        _same(np.sin(variable), np.sin(value))
        assert np.asarray(variable, np.int32).dtype == np.int32
        copied = np.array(variable)
        copied[0] = 5
        _same(variable.value, [1, 1])
    assert jnp.asarray(Variable(3)).shape == ()
    assert np.asarray(Variable(3)) == 3


def test_variables_compare_by_value_and_have_no_hash():
    assert Variable(3) == Param(3, tag=1) == 3 != Variable(4)
    assert Variable("a") == "a"
    assert operator.eq(Variable(None), None)
    assert operator.ne(Variable(jnp.ones(2)), None)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Variable(3))
    assert weakref.ref(variable := Variable(3))() is variable


def test_attributes_are_those_of_the_value():
    variable = Variable(jnp.ones((2, 3)))
    assert (variable.shape, variable.dtype, variable.ndim, variable.size) == ((2, 3), jnp.float32, 2, 6)
    _same(variable.at[0].set(0).sum(), 3)
    assert variable.sharding == variable.value.sharding
    assert not hasattr(variable, "nothing")
    assert not hasattr(Variable(3), "shape")
    assert not hasattr(Variable(3), "sharding")


# --- metadata


def test_metadata_is_read_as_attributes_and_by_name():
    variable = Variable(1, tag="x", axis=None)
    assert variable.tag == "x"
    assert variable.axis is None
    assert variable.get_metadata() == {"tag": "x", "axis": None}
    assert variable.get_metadata("tag") == "x"
    assert variable.get_metadata("other", 3) == 3
    assert variable.has_metadata("tag")
    assert not variable.has_metadata("other")
    with pytest.raises(KeyError, match="other"):
        variable.get_metadata("other")
    with pytest.raises(KeyError, match="other"):
        variable.del_metadata("other")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda variable: variable.set_metadata(b=2), {"a": 1, "b": 2}),
        (lambda variable: variable.set_metadata("b", 2), {"a": 1, "b": 2}),
        (lambda variable: variable.set_metadata({"b": 2}), {"b": 2}),
        (lambda variable: variable.set_metadata(sharding=("x",)), {"a": 1, "out_sharding": ("x",)}),
        (lambda variable: variable.set_metadata("sharding", ("x",)), {"a": 1, "out_sharding": ("x",)}),
        (lambda variable: variable.del_metadata("a"), {}),
    ],
)
def test_a_change_of_metadata_replaces_the_dict(change, expected):
    variable = Variable(1, a=1)
    kept = variable._metadata
    change(variable)
    assert variable.get_metadata() == expected
    assert kept == {"a": 1}


@pytest.mark.parametrize("args", [(), ("a", 1, 2)])
def test_set_metadata_of_another_form_is_an_error(args):
    with pytest.raises(TypeError, match="set_metadata"):
        Variable(1).set_metadata(*args)
    with pytest.raises(TypeError, match="not both"):
        Variable(1).set_metadata({}, a=1)


@pytest.mark.parametrize("name", ["sharding", "sharding_names", "out_sharding"])
def test_all_names_of_sharding_mean_the_same(name):
    variable = Param(jnp.ones(2), **{name: ("x",)})
    assert variable.get_metadata() == {"out_sharding": ("x",)}
    for read in ("sharding", "sharding_names", "out_sharding"):
        assert getattr(variable, read) == ("x",)
        assert variable.has_metadata(read)
        assert variable.get_metadata(read, None) == ("x",)
    variable.del_metadata(name)
    assert variable.sharding == variable.value.sharding
    assert variable.sharding_names is None
    assert variable.copy(**{name: ("y",)}).sharding == ("y",)


def test_sharding_names_are_kept_under_a_mesh_and_do_not_move_the_value():
    value = jnp.ones(2)
    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        variable = Param(value, sharding=("x",))
    assert variable.sharding == ("x",)
    assert variable.value is value


def test_attributes_cannot_be_set():
    variable = Variable(1, tag="x")
    with pytest.raises(AttributeError, match=r"set_metadata\(tag="):
        variable.tag = "y"
    with pytest.raises(AttributeError, match="del_metadata"):
        del variable.tag


# --- hooks


def test_hooks_see_each_reading_and_writing():
    seen = []

    def hook(what):
        return lambda variable, value: (seen.append((what, type(variable), value)), value + 1)[1]

    variable = Param(1, on_create_value=hook("create"), on_get_value=hook("get"), on_set_value=hook("set"))
    assert variable.raw_value == 2
    assert variable.value == 3
    variable.value = 10
    assert variable.raw_value == 11
    variable.raw_value = 20
    assert seen == [("create", Param, 1), ("get", Param, 2), ("set", Param, 10)]
    seen.clear()
    copies = [variable.copy(), copy.copy(variable), jax.tree.map(lambda leaf: leaf, variable)]
    variable.update_from_state(variable.replace())
    assert [one.raw_value for one in copies] == [20] * 3
    assert variable.raw_value == 20
    assert not seen


def test_hooks_of_items_see_items():
    variable = Variable(jnp.zeros(2), on_set_value=lambda _, value: value + 1, on_get_value=lambda _, value: value * 10)
    variable[0] = 5
    _same(variable.raw_value, [6, 0])
    assert variable[0] == 60


def test_hooks_may_be_methods_or_several_functions():
    variable = Doubled(1)
    assert (variable.raw_value, variable.value, variable.create_value(5)) == (1001, 2002, 5)
    variable.value = 3
    assert variable.raw_value == 103
    assert Doubled(1, on_get_value=lambda _, value: -value).value == -1001
    assert Variable(1, on_get_value=[lambda _, value: value + 1, lambda _, value: value * 10]).value == 20


def test_a_subclass_may_override_reading_and_writing():
    class Halved(Variable):
        def get_value(self, **index):
            return super().get_value(**index) / 2

        def set_value(self, value, **index):
            super().set_value(value * 2, **index)

    variable = Halved(jnp.ones(2))
    assert variable[0] == 0.5
    variable += 1
    variable[1] = 5
    _same(variable.raw_value, [3, 10])
    for read in (variable.value, variable[...], variable + 0, jnp.asarray(variable), list(variable)):
        _same(read, [1.5, 5])
    variable.value = jnp.zeros(2)
    _same(variable.raw_value, [0, 0])


def test_axis_hooks_are_called():
    seen = []
    variable = Variable(
        1, on_add_axis=lambda *args: seen.append(args), on_remove_axis=[lambda *args: seen.append(args)]
    )
    variable.add_axis(0, "x")
    variable.remove_axis(1, None)
    Variable(1).add_axis(0, "x")
    assert [(one is variable, axis, name) for one, axis, name in seen] == [(True, 0, "x"), (True, 1, None)]


def test_an_initializer_tells_metadata():
    init = with_metadata(lambda: 1, on_create_value=[lambda _, v: v + 1, lambda _, v: v * 10], sharding=("x",), a=1)
    variable = Param(init(), a=2, b=3)
    assert isinstance(init(), VariableMetadata)
    assert variable.value == 20
    assert (variable.sharding, variable.a, variable.b) == (("x",), 1, 3)
    assert Param(init(), on_create_value=lambda _, value: value).value == 1
    nested = Param(with_partitioning(with_metadata(lambda: 1, a=1, b=1), ("x",), a=2)())
    assert nested.get_metadata() == {"a": 2, "b": 1, "out_sharding": ("x",)}
    assert nested.value == 1
    assert with_metadata(jax.nn.initializers.zeros, a=1).__name__ == jax.nn.initializers.zeros.__name__


# --- copies


@pytest.mark.parametrize(
    "twin", [lambda v: v.copy(), copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_copies_are_independent(twin):
    variable = Param({"a": jnp.ones(2)}, names=["x"], tag="t")
    other = twin(variable)
    assert type(other) is Param
    assert other.get_metadata() == variable.get_metadata()
    other.value["a"] = 0
    other.set_metadata(tag="u")
    _same(variable.value["a"], [1, 1])
    assert variable.tag == "t"


def test_a_copy_shares_arrays_and_a_deep_copy_does_not():
    variable = Param(np.ones(2))
    assert copy.copy(variable).value is variable.value
    assert copy.deepcopy(variable).value is not variable.value
    one, two = copy.deepcopy([variable, variable])
    assert one is two


def test_replace_and_update_take_value_and_metadata():
    variable = Param(1, a=1)
    assert variable.replace(2).get_metadata() == {"a": 1}
    assert variable.replace(value=2, b=3).b == 3
    assert variable.replace(Param(5, c=1)).get_metadata() == {"a": 1}
    assert variable.replace(BatchStat(5)).value == 5
    assert variable.to_state().value == 1
    variable.update_from_state(BatchStat(3, z=1))
    assert (variable.value, variable.get_metadata()) == (3, {"z": 1})
    variable.copy_from(Param(4))
    assert (variable.value, variable.get_metadata()) == (4, {})
    with pytest.raises(LiftArgumentError, match="expected a variable of the same kind, given a BatchStat"):
        variable.copy_from(BatchStat(1))


def test_made_and_from_metadata_call_no_hooks():
    metadata = {"on_create_value": lambda _, value: value + 1}
    assert Param.made(1, metadata, trace_state()).raw_value == 1
    assert Param.made(1, metadata, trace_state())._metadata is metadata
    variable = Param.from_metadata(1, {**metadata, "sharding": ("x",)})
    assert variable.raw_value == 1
    assert variable.sharding == ("x",)
    assert Doubled.from_metadata(1, {}).value == 1


# --- traces

_CHANGES = {
    "value": lambda variable: setattr(variable, "value", 0),
    "raw_value": lambda variable: setattr(variable, "raw_value", 0),
    "item": lambda variable: operator.setitem(variable, 0, 0),
    "delete": lambda variable: operator.delitem(variable, 0),
    "in_place": lambda variable: operator.iadd(variable, 1),
    "set_metadata": lambda variable: variable.set_metadata(a=1),
    "del_metadata": lambda variable: variable.del_metadata("tag"),
    "copy_from": lambda variable: variable.copy_from(Param(0)),
    "update_from_state": lambda variable: variable.update_from_state(Param(0)),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_a_change_from_another_trace_is_an_error_and_changes_nothing(change):
    value = jnp.ones(2)
    variable = Param(value, tag="x")
    with pytest.raises(TraceContextError, match=r"a Param of float32\[2\]: it is changed under a different JAX trace"):
        jax.make_jaxpr(lambda: change(variable))()
    assert variable.value is value
    assert variable.get_metadata() == {"tag": "x"}


def test_reading_and_copying_work_in_any_trace():
    outside = Param(jnp.ones(2), tag="x")

    def inside():
        twins = [outside.copy(), copy.copy(outside), copy.deepcopy(outside), jax.tree.map(lambda leaf: leaf, outside)]
        for twin in twins:
            twin += 1
        return [twin.value + outside for twin in twins]

    for result in jax.jit(inside)():
        _same(result, [3, 3])


def test_errors_are_argument_errors():
    for error in (TraceContextError, AliasError, StructureError):
        assert issubclass(error, LiftArgumentError)
        assert issubclass(error, ValueError)


# --- pytrees


def test_the_value_is_the_child_of_a_pytree():
    variable = Param({"a": jnp.ones(2)}, tag="x")
    ((path, leaf),) = jax.tree_util.tree_flatten_with_path(variable)[0]
    assert jax.tree_util.keystr(path) == ".value['a']"
    assert leaf is variable.value["a"]
    doubled = jax.tree.map(lambda leaf: leaf * 2, variable)
    assert type(doubled) is Param
    assert doubled.tag == "x"
    _same(doubled.value["a"], [2, 2])
    assert jax.tree.map(lambda leaf: None, Variable(3)).value is None
    assert jax.tree.leaves([Variable(None), Variable("s")]) == ["s"]


def test_kinds_of_the_user_are_pytrees():
    class Mine(Param): ...

    assert type(jax.jit(lambda mine: mine)(Mine(jnp.ones(2), tags=["x"]))) is Mine


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": (1, [2])}, {"a": (1, [2])}, True),
        ({"a": (1, [2])}, {"a": (True, [2])}, False),
        ({"a": [1]}, {"a": (1,)}, False),
        ({"a": {"x": {1}}}, {"a": {"x": {1}}}, True),
        ({"a": np.ones(2)}, {"a": np.ones(2)}, True),
        ({"a": np.ones(2)}, {"a": np.zeros(2)}, False),
        ({"a": bytearray(b"x")}, {"a": bytearray(b"x")}, True),
        ({"a": print}, {"a": print}, True),
        ({"a": 1}, {}, False),
    ],
)
def test_metadata_is_static_and_tells_types_apart(left, right, same):
    left, right = (jax.tree.structure(Param(1, **metadata)) for metadata in (left, right))
    assert (left == right) is same
    assert not same or hash(left) == hash(right)


def test_metadata_that_are_arrays_of_jax_are_compared_by_identity():
    array = jnp.ones(2)
    same, again, other = (jax.tree.structure(Param(1, mask=mask)) for mask in (array, array, jnp.ones(2)))
    assert same == again != other


def test_another_type_of_metadata_is_another_trace():
    kind = jax.jit(lambda variable: variable.value * (2 if variable.flag is True else 3))
    assert (kind(Param(1, flag=1)), kind(Param(1, flag=True))) == (3, 2)


# --- kinds and names


def test_state_of_random_streams_has_one_base():
    assert issubclass(RngKey, RngState)
    assert issubclass(RngCount, RngState)
    assert Param(1).type is Param
    assert Param(1).var_type is Param


def test_variable_state_makes_a_variable_and_knows_all():
    state = VariableState(type=Param, value=3, tag="x")
    assert type(state) is Param
    assert state.type is Param
    assert (state.value, state.tag) == (3, "x")
    assert VariableState(Doubled, 3).raw_value == 3
    assert isinstance(BatchStat(1), VariableState)
    assert issubclass(Param, VariableState)
    assert not isinstance(1, VariableState)


def test_names_and_kinds_know_each_other():
    class NamedKind(Variable): ...

    assert (variable_type_from_name("params"), variable_name_from_type(BatchStat)) == (Param, "batch_stats")
    for unknown in (lambda: variable_type_from_name("no_kind"), lambda: variable_name_from_type(NamedKind)):
        with pytest.raises(LiftArgumentError, match="allow_register=True"):
            unknown()
    assert variable_name_from_type(NamedKind, allow_register=True) == "NamedKind"
    assert variable_type_from_name("NamedKind") is NamedKind
    made = variable_type_from_name("made_kinds", base=Cache, allow_register=True)
    assert made.__name__ == "made_kinds"
    assert issubclass(made, Cache)
    assert variable_type_from_name("made_kinds") is made
    with pytest.raises(LiftArgumentError, match="already registered for Param"):
        register_variable_name("params", NamedKind)
    assert register_variable_name("made_kinds", NamedKind, overwrite=True) is NamedKind


# --- text


def test_a_variable_is_shown_with_its_size_value_and_metadata():
    assert repr(Param(jnp.ones(3), tag="x")) == (
        "Param( # 3 (12 B)\n  value=Array([1., 1., 1.], dtype=float32),\n  tag='x'\n)"
    )
    assert str(Variable(None)) == f"{Variable(None)}" == "Variable(\n  value=None\n)"
    assert repr(Variable(jax.ShapeDtypeStruct((1000, 10), jnp.float32))).startswith("Variable( # 10,000 (40.0 KB)")
    assert jax.jit(lambda x: repr(Param(x)))  # a traced value has a size as well


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of treescope, on some releases of JAX
def test_treescope_shows_a_variable():
    treescope = pytest.importorskip("treescope")
    assert "Param" in treescope.render_to_text(Param(1, tag="x"))


@pytest.mark.parametrize("option", ["hijax", "ref", "eager_sharding"])
def test_options_of_other_models_of_state_have_to_be_off(option: str) -> None:
    assert Param(1, **{option: False}).get_metadata() == {}
    with pytest.raises(LiftArgumentError, match=rf"Param\({option}=True\): this option is not supported"):
        Param(1, **{option: True})

"""Variables against flax.nnx: one program for both, and what it gives must be the same."""

import copy
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like

flax_nnx = pytest.importorskip("flax.nnx")

# flax warns of `.value`, `.sharding_names` and hooks.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Variable hooks")
_DEFAULTS = ("hijax", "ref", "eager_sharding")


@pytest.fixture(autouse=True)
def _without_eager_sharding():
    with flax_nnx.use_eager_sharding(False):
        yield


def _plain(result):
    """What a program gave, in what can be compared: variables as kind, value and metadata."""
    if isinstance(result, (nnx_like.Variable, flax_nnx.Variable)):
        return type(result).__name__, _plain(result.get_raw_value()), _plain(result.get_metadata())
    if isinstance(result, dict):
        told = {key: value for key, value in result.items() if (key, value) != ("mesh", None)}  # which says nothing
        return {key: _plain(value) for key, value in told.items() if key not in _DEFAULTS}
    if isinstance(result, (tuple, list)):
        return [_plain(item) for item in result]
    if isinstance(result, (jax.Array, np.ndarray)):
        return "array", str(result.dtype), result.shape, result.tolist()
    if isinstance(result, type):
        return result.__name__
    return result


def _outcome(program, nnx):
    try:
        return _plain(program(nnx))
    except Exception as error:
        kinds = (AttributeError, KeyError, TypeError, nnx_like.errors.TraceContextError, ValueError)
        flax_error = type(error).__name__ == "TraceContextError"
        return "TraceContextError" if flax_error else next(kind.__name__ for kind in kinds if isinstance(error, kind))


def _param(nnx, **metadata):
    return nnx.Param(jnp.arange(3.0), **metadata)


def _after(variable, *changes):
    for change in changes:
        change(variable)
    return variable


def _doubled(nnx):
    class Doubled(nnx.Variable):
        def on_get_value(self, value):
            return value * 2

        def on_set_value(self, value):
            return value + 100

        def on_create_value(self, value):
            return value + 1000

    return Doubled


def _hooked(nnx):
    return nnx.Param(
        1,
        on_get_value=lambda _, value: value + 1,
        on_set_value=lambda _, value: value + 10,
        on_create_value=lambda _, value: value + 100,
    )


def _from_another_trace(change):
    def program(nnx):
        variable = _param(nnx, tag="x")
        jax.make_jaxpr(lambda: change(nnx, variable))()

    return program


_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "eq"]
_WHOLE = ["and_", "or_", "xor", "lshift", "rshift"]

PROGRAMS = {
    **{
        f"{name} {side}": lambda nnx, name=name, side=side, dtype=dtype: getattr(operator, name)(
            *{
                "left": (nnx.Param(jnp.array([7, 2], dtype)), jnp.array([3, 1], dtype)),
                "right": (np.array([7, 2], dtype), nnx.Param(jnp.array([3, 1], dtype))),
                "both": (nnx.Param(jnp.array([7, 2], dtype)), nnx.BatchStat(jnp.array([3, 1], dtype))),
            }[side]
        )
        for names, dtype in ((_OPERATORS, np.float32), (_WHOLE, np.int32))
        for name in names
        for side in ("left", "right", "both")
    },
    "unary": lambda nnx: [f(_param(nnx)) for f in (operator.neg, operator.pos, abs, round, len, list, bool)],
    "invert": lambda nnx: ~nnx.Param(jnp.array([True, False])),
    "numbers": lambda nnx: [
        int(nnx.Param(3.5)),
        float(nnx.Param(3)),
        operator.index(nnx.Param(3)),
        round(nnx.Param(2.7)),
    ],
    "equal": lambda nnx: [nnx.Param(3) == 3, nnx.Param(3) == nnx.BatchStat(3, a=1), operator.eq(nnx.Param(None), None)],
    "equal to what is not": lambda nnx: [
        _param(nnx) == "a",
        operator.eq(_param(nnx), None),
        operator.ne(_param(nnx), None),
    ],
    "hash": lambda nnx: hash(nnx.Param(3)),
    "contains": lambda nnx: [1.0 in _param(nnx), "a" in nnx.Param({"a": 1}), 7 in _param(nnx)],
    "call": lambda nnx: nnx.Param(lambda x: x + 1)(2),
    "array": lambda nnx: [jnp.sin(_param(nnx)), np.sin(_param(nnx)), np.asarray(_param(nnx)), jnp.sin(nnx.Param(3))],
    "attributes": lambda nnx: [_param(nnx).shape, _param(nnx).T, _param(nnx).at[0].set(5), nnx.Param({"a": 1}).copy()],
    "no attribute": lambda nnx: _param(nnx).nothing,
    "no shape": lambda nnx: nnx.Param(3).shape,
    "set attribute": lambda nnx: setattr(_param(nnx, tag=1), "tag", 2),
    "delete attribute": lambda nnx: delattr(_param(nnx, tag=1), "tag"),
    "items": lambda nnx: [_param(nnx)[0], _param(nnx)[1:], _param(nnx)[...], nnx.Param([1, 2])[0]],
    "set item": lambda nnx: _after(_param(nnx), lambda v: operator.setitem(v, 0, 7)),
    "set all": lambda nnx: [
        _after(_param(nnx), lambda v, x=x: operator.setitem(v, ..., x))
        for x in (1, np.ones(3, np.float32), jnp.ones(1))
    ],
    "set all wrong": lambda nnx: operator.setitem(_param(nnx), ..., jnp.ones(4)),
    "set an item of a dict": lambda nnx: _after(nnx.Param({"a": 1}), lambda v: operator.setitem(v, "b", 2)),
    "delete an item": lambda nnx: _after(nnx.Param({"a": 1}), lambda v: operator.delitem(v, "a")),
    "add to all": lambda nnx: _after(_param(nnx), lambda v: operator.setitem(v, ..., v[...] + 1)),
    "index": lambda nnx: [
        _param(nnx).get_value(index=1),
        _after(_param(nnx), lambda v: v.set_value(3.0, index=0)),
    ],
    "values": lambda nnx: [nnx.Param(x) for x in (None, "s", 3, [1, {"a": 2}], (1,))],
    "metadata": lambda nnx: [
        _param(nnx, tag="x", axis=None).get_metadata(),
        _param(nnx, tag="x").get_metadata("tag"),
        _param(nnx).get_metadata("other", 5),
        _param(nnx, tag="x").tag,
        _param(nnx, tag="x").has_metadata("tag"),
    ],
    "no metadata": lambda nnx: _param(nnx).get_metadata("other"),
    "delete no metadata": lambda nnx: _param(nnx).del_metadata("other"),
    "set metadata": lambda nnx: [
        _after(_param(nnx, a=1), lambda v: v.set_metadata(b=2)),
        _after(_param(nnx, a=1), lambda v: v.set_metadata("b", 2)),
        _after(_param(nnx, a=1), lambda v: v.set_metadata({"b": 2, **dict.fromkeys(_DEFAULTS, False)})),
        _after(_param(nnx, a=1), lambda v: v.del_metadata("a")),
    ],
    "set metadata both": lambda nnx: _param(nnx).set_metadata({"b": 2}, a=1),
    "set metadata none": lambda nnx: _param(nnx).set_metadata(),
    "set metadata three": lambda nnx: _param(nnx).set_metadata("a", 1, 2),
    "sharding": lambda nnx: [
        [v.get_metadata(), v.sharding_names, v.out_sharding]
        for v in (_param(nnx, **{name: ("a",)}) for name in ("sharding", "sharding_names", "out_sharding"))
    ],
    "set sharding": lambda nnx: _after(_param(nnx), lambda v: v.set_metadata(sharding=("b",))),
    "no sharding": lambda nnx: [_param(nnx).sharding_names, _param(nnx).sharding == _param(nnx).get_value().sharding],
    "partitioning": lambda nnx: nnx.Param(nnx.with_partitioning(lambda n: jnp.ones(n), ("a",), tag=1)(2)),
    "initializer": lambda nnx: nnx.Param(
        nnx.with_metadata(lambda n: jnp.ones(n), sharding=("a",), tag=1)(2), tag=2, b=3
    ),
    "metadata of an initializer": lambda nnx: [
        (m := nnx.with_metadata(lambda: 1, sharding=("a",), tag=1)()).raw_value,
        m.metadata,
        m.on_get_value,
        m == nnx.VariableMetadata(1, metadata={"sharding": ("a",), "tag": 1}),
    ],
    "hooks": lambda nnx: [
        (v := _hooked(nnx)).get_raw_value(),
        v.get_value(),
        v + 1,
        _after(v, lambda v: v.set_value(5)).get_raw_value(),
    ],
    "hooks and raw": lambda nnx: _after(_hooked(nnx), lambda v: v.set_raw_value(5)).get_raw_value(),
    "hook methods": lambda nnx: [
        (v := _doubled(nnx)(1)).get_raw_value(),
        v.get_value(),
        v.create_value(5),
        sorted(v.get_metadata().keys() - set(_DEFAULTS)),
        _after(v, lambda v: v.set_value(3)).get_raw_value(),
    ],
    "hooks of initializers": lambda nnx: nnx.Param(
        nnx.with_metadata(lambda: 1, on_create_value=[lambda _, v: v + 1, lambda _, v: v * 10])()
    ).get_value(),
    "which hook wins": lambda nnx: nnx.Param(
        nnx.with_metadata(lambda: 1, on_create_value=lambda _, v: v + 1)(), on_create_value=lambda _, v: v * 10
    ).get_value(),
    "copies": lambda nnx: [_param(nnx, a=1).copy(), _param(nnx, a=1).copy(jnp.ones(1), b=2), _param(nnx).to_state()],
    "replace": lambda nnx: [
        _param(nnx, a=1).replace(3),
        _param(nnx, a=1).replace(value=3, b=2),
        _param(nnx, a=1).replace(),
    ],
    "copy from": lambda nnx: _after(_param(nnx, a=1), lambda v: v.copy_from(nnx.Param(3, b=2))),
    "copy from another kind": lambda nnx: _param(nnx).copy_from(nnx.BatchStat(3)),
    "copy from no variable": lambda nnx: _param(nnx).copy_from(3),
    "update from": lambda nnx: _after(_param(nnx, a=1), lambda v: v.update_from_state(nnx.BatchStat(3, b=2))),
    "from metadata": lambda nnx: nnx.Param.from_metadata(3, {"a": 1, **dict.fromkeys(_DEFAULTS, False)}),
    "pickle": lambda nnx: pickle.loads(pickle.dumps(_param(nnx, a=[1]))),
    "copy": lambda nnx: copy.copy(nnx.Param({"a": 1}, b=2)),
    "types": lambda nnx: [_param(nnx).type, _param(nnx).var_type],
    "tree": lambda nnx: [
        jax.tree.map(lambda x: x + 1, nnx.Param({"a": 1}, b=2)),
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(nnx.Param({"a": 1}))[0]],
        jax.tree.leaves([nnx.Param(None), nnx.Param("s")]),
        jax.jit(lambda v: v)(_param(nnx, tag="x")),
        jax.tree.map(lambda x: None, nnx.Param(3)),
    ],
    "registered": lambda nnx: [
        nnx.variable_type_from_name(name)
        for name in ("params", "batch_stats", "cache", "intermediates", "perturbations")
    ],
    "names": lambda nnx: [
        nnx.variable_name_from_type(kind)
        for kind in (nnx.Param, nnx.BatchStat, nnx.Cache, nnx.Intermediate, nnx.Perturbation)
    ],
    "unknown name": lambda nnx: nnx.variable_type_from_name("unknown"),
    "unknown kind": lambda nnx: nnx.variable_name_from_type(type("Unknown", (nnx.Variable,), {})),
    "new name": lambda nnx: [
        (kind := nnx.variable_type_from_name("new_kinds", base=nnx.Cache, allow_register=True)),
        issubclass(kind, nnx.Cache),
        nnx.variable_name_from_type(kind),
        nnx.variable_type_from_name("new_kinds", base=nnx.Param) is kind,
    ],
    "new kind": lambda nnx: [
        nnx.variable_name_from_type(kind := type("NewKind", (nnx.Variable,), {}), allow_register=True),
        nnx.register_variable_name("another_name", kind),
        nnx.variable_name_from_type(kind),
    ],
    "taken name": lambda nnx: nnx.register_variable_name("params", nnx.Cache),
    "taken class name": lambda nnx: [
        nnx.variable_name_from_type(type("Twice", (nnx.Variable,), {}), allow_register=True) for _ in range(2)
    ],
    "decorator": lambda nnx: nnx.variable_name_from_type(
        nnx.register_variable_name("decorated", overwrite=True)(type("Decorated", (nnx.Variable,), {}))
    ),
    "bases": lambda nnx: [
        [issubclass(kind, base) for base in (nnx.Variable, nnx.Param, nnx.Intermediate, nnx.RngState)]
        for kind in (nnx.LoRAParam, nnx.Perturbation, nnx.RngKey, nnx.RngCount, nnx.Cache, nnx.BatchStat)
    ],
    "trace value": _from_another_trace(lambda nnx, v: v.set_value(1)),
    "trace raw": _from_another_trace(lambda nnx, v: v.set_raw_value(1)),
    "trace item": _from_another_trace(lambda nnx, v: operator.setitem(v, 0, 1)),
    "trace metadata": _from_another_trace(lambda nnx, v: v.set_metadata(a=1)),
    "trace copy": _from_another_trace(lambda nnx, v: v.copy_from(nnx.Param(1))),
    "trace update": _from_another_trace(lambda nnx, v: v.update_from_state(nnx.Param(1))),
    "trace read": _from_another_trace(lambda nnx, v: [v[...], v.copy(), v + 1, v.get_metadata()]),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_variables_do_what_those_of_flax_do(program):
    assert _outcome(program, nnx_like) == _outcome(program, flax_nnx)


def test_a_variable_has_the_public_names_of_flax():
    left_out = {"hijax", "ref"}  # other state models
    public = {name for name in dir(flax_nnx.Variable) if not name.startswith("_")} - left_out
    assert public <= set(dir(nnx_like.Variable))


@pytest.mark.parametrize("value", [jnp.arange(3.0), None, "s", 3])
def test_a_variable_looks_as_in_flax(value):
    theirs = repr(flax_nnx.Param(value, tag="x")).replace(",\n  eager_sharding=False", "")
    assert repr(nnx_like.Param(value, tag="x")) == theirs

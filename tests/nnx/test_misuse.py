from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import jax.numpy as jnp
import pytest

import nnx_like as nnx
from liftcore.errors import LiftError


class Layer(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones((2, 2)))
        self.mean = nnx.BatchStat(jnp.zeros(2))

    @nnx.jit
    def __call__(self, x: Any) -> Any:
        return x @ self.w.get_value()


def nothing(*args: Any) -> None: ...


def deep() -> Any:
    first = last = nnx.Dict()
    for _ in range(2000):
        last.next = nnx.Dict()
        last = last.next
    return first


class Theirs:
    """A stand-in for a variable of another library, such as flax."""

    raw_value = 1.0


AXES = nnx.StateAxes({...: 0})

MISUSES: dict[str, tuple[Any, str]] = {
    "too few axes": (
        lambda: nnx.vmap(nothing, in_axes=(0,))(Layer(), 1),
        r"vmap\(nothing\): `in_axes` is \(0,\) where the pytree is \(Layer, int\)\. Give one for each",
    ),
    "too few axes in a dict": (
        lambda: nnx.vmap(nothing, in_axes=({"a": 0, "b": None},))({"a": Layer()}),
        r"`in_axes`\[0\] is \{'a': 0, 'b': None\} where the pytree is \{'a': Layer\}",
    ),
    "too many axes of results": (
        lambda: nnx.vmap(lambda layer: (1, 2), out_axes=(0, 0, 0))(Layer()),
        r"`out_axes` is \(0, 0, 0\) where the pytree is \(int, int\)",
    ),
    "an axis that is a text": (
        lambda: nnx.vmap(nothing, in_axes="0"),
        r"vmap\(nothing\): '0' in `in_axes` or `out_axes` is not an axis",
    ),
    "an axis that is a number": (
        lambda: nnx.scan(nothing, in_axes=(nnx.Carry, 0.5)),
        "0.5 in `in_axes` or `out_axes` is not an axis",
    ),
    "filters where an array is": (
        lambda: nnx.vmap(nothing, in_axes=(0, AXES))(Layer(), jnp.ones(2)),
        r"`in_axes` has filters of variables here, but expects an object for them; given an array\. Give one axis",
    ),
    "filters where an array comes out": (
        lambda: nnx.vmap(lambda layer: layer.mean + 1, out_axes=AXES)(Layer()),
        "`out_axes` has filters of variables here, but expects an object",
    ),
    "filters where several objects are": (
        lambda: nnx.vmap(nothing, in_axes=AXES)(Layer(), Layer()),
        "a tuple of objects; they apply to one object",
    ),
    "a filter that misses": (
        lambda: nnx.vmap(nothing, in_axes=(nnx.StateAxes({nnx.Param: 0}),))(Layer()),
        r"the BatchStat at .*mean: no filter matches it .*Add one for the remaining variables: `\.\.\.`",
    ),
    "a filter after the last": (
        lambda: nnx.vmap(nothing, in_axes=nnx.StateAxes({...: 0, nnx.Param: None})),
        r"Param comes after \.\.\., which matches everything",
    ),
    "a static argument that is not there": (
        lambda: nnx.jit(lambda layer: 1, static_argnames="train"),
        r"there is no argument 'train'; the function takes \(layer\)",
    ),
    "a donated argument that is not there": (
        lambda: nnx.jit(lambda layer: 1, donate_argnums=3),
        r"donated arguments: there is no argument 3",
    ),
    "a static argument of remat": (lambda: nnx.remat(lambda x: x, static_argnums=-2), "there is no argument -2"),
    "a variable in a list of another class": (
        lambda: nnx.jit(nothing)(nnx.Dict(x=type("Items", (list,), {})([nnx.Param(1.0)]))),
        r"x\[0\]: a Param is in a place where only static values are allowed, in a Items\. Keep it in an attribute",
    ),
    "objects in objects in objects": (
        lambda: nnx.jit(nothing)(deep()),
        "objects are nested deeper than Python's recursion limit",
    ),
    "a state of another library": (
        lambda: nnx.update(Layer(), {"w": Theirs()}),
        r"update: the value for w is a variable of another library, .*\.Theirs\. .*flax\.nnx\.to_pure_dict\(state\)",
    ),
    "a graph from a state of another library": (
        lambda: nnx.merge(nnx.graphdef(Layer()), {"w": Theirs(), "mean": 0}),
        r"merge: the value for w is a variable of another library, .*\.Theirs\.",
    ),
    "no branches": (lambda: nnx.switch(0, [], Layer()), "switch: expected at least one function, given"),
}


@pytest.mark.usefixtures("usual_depth")
@pytest.mark.parametrize("misuse", MISUSES)
def test_it_says_where_and_what(misuse: str) -> None:
    call, text = MISUSES[misuse]
    with pytest.raises(LiftError) as raised:
        call()
    assert re.search(text, str(raised.value)), str(raised.value)


def test_what_was_compiled_takes_objects_of_the_same_structure() -> None:
    layer: Any = Layer()
    compiled = nnx.jit(lambda layer: layer.w.sum()).lower(layer).compile()
    assert compiled(layer) == 4
    layer.name = "first"
    with pytest.raises(LiftError, match=r"`jitted\.lower\(…\)\.compile\(\)`"):
        compiled(layer)


def test_what_takes_more_arguments_may_have_any_of_them() -> None:
    assert nnx.jit(lambda *args, **flags: 2, static_argnums=5, static_argnames="train")(Layer(), train=True) == 2


def test_an_object_may_pass_on_what_is_asked_of_it() -> None:
    class Wrapper(nnx.Module):
        def __init__(self, module: Any) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(self.module, name)

    wrapper = Wrapper(Layer())
    run = nnx.jit(lambda wrapper: wrapper.w.sum())
    assert [run(wrapper), run(wrapper)] == [4, 4]
    assert nnx.clone(wrapper).module is not wrapper.module


def test_a_class_with_slots_is_refused() -> None:
    with pytest.raises(LiftError, match="w would be lost: only attributes in the `__dict__` of an object are found"):
        type("Slotted", (nnx.Module,), {"__slots__": ("w",)})


def test_a_list_may_hold_itself() -> None:
    @nnx.jit
    def more(layer: Any) -> None:
        layer.items.append(layer.items[0])

    layer: Any = Layer()
    layer.items = items = []
    items.append(items)
    more(layer)
    assert layer.items is items
    assert items[0] is items[1] is items


def test_a_compiled_method_is_a_value_like_any_function() -> None:
    layer: Any = Layer()
    layer.call = Layer.__call__
    assert pickle.loads(pickle.dumps(layer)).call is Layer.__call__
    assert copy.deepcopy(layer).call is Layer.__call__
    assert nnx.graphdef(layer) == nnx.graphdef(nnx.clone(layer))
    assert layer(jnp.ones(2)).tolist() == [2, 2]  # without a warning

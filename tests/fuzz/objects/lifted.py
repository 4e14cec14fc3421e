"""The world of `nnx_like`: its objects, and its transformations of the functions of a program."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import nnx_like as nnx
from tests.fuzz.objects.bodies import World, picked
from tests.fuzz.objects.programs import SIZE, Lift

__all__ = ["Custom", "Node", "Tree", "axes", "flat_grads", "lifted_world", "model"]


class Custom(nnx.Variable):
    pass


class Tree(nnx.Variable):
    pass


class Node(nnx.Module):
    pass


AXES = {
    "none": None,
    "zero": nnx.StateAxes({nnx.RngState: None, ...: 0}),
    "params": nnx.StateAxes({nnx.Param: 0, ...: None}),
    "last": nnx.StateAxes({nnx.RngState: None, ...: -1}),
    "first": nnx.StateAxes({nnx.RngState: None, nnx.Param: 1, ...: 0}),
    "mixed": nnx.StateAxes({nnx.Param: 0, nnx.Variable: nnx.Carry, ...: 0}),
    "whole": 0,
}


def axes(prefix: str, kind: str) -> Any:
    """The prefix of an argument or a result of some kind."""
    if kind in ("array", "scalar", "none"):
        return None if prefix == "none" and kind == "array" else 0
    one = AXES[prefix]
    return {"pair": [one, one], "dict": {"x": one}, "list": [one, 0]}.get(kind, one)


def flat_grads(grads: Any, path: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Gradients by path."""
    if isinstance(grads, nnx.Variable):
        return {str(path): grads.get_value()}
    if isinstance(grads, (Mapping, list)):
        items = enumerate(grads) if isinstance(grads, list) else grads.items()
        return {key: value for name, one in items for key, value in flat_grads(one, (*path, name)).items()}
    return {str(path): grads}


def _prefixes(lift: Lift) -> tuple[tuple[Any, ...], Any]:
    names = ["whole"] * len(lift.prefix) if lift.name == "split_vmap" else lift.prefix
    out = tuple([axes(names[-1], kind) for kind, _ in lift.bodies[0].result])
    return tuple([axes(name, kind) for name, (kind, _) in zip(names, lift.args, strict=False)]), (out, 0)


def _lift(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    name, function = lift.name, functions[0]
    if name in ("jit", "remat", "named_call"):
        return getattr(nnx, name)(function)
    if name in ("vmap", "split_vmap"):
        ins, outs = _prefixes(lift)
        mapped = nnx.vmap(function, in_axes=ins, out_axes=outs, axis_size=SIZE)
        return nnx.split_rngs(splits=SIZE)(mapped) if name == "split_vmap" else mapped
    return _OTHERS[name](lift, functions)


def _scan(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    ins, outs = _prefixes(lift)

    def step(carry: Any, *xs: Any) -> Any:
        return carry, functions[0](carry, *xs)

    scanned = nnx.scan(step, length=SIZE, in_axes=(nnx.Carry, *ins[1:]), out_axes=(nnx.Carry, outs))
    return lambda *args: scanned(*args)[1]


def _cond(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda choice, *args: nnx.cond(choice > 0, functions[1], functions[0], *args)


def _switch(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda choice, *args: nnx.switch(jnp.asarray(choice).astype(jnp.int32), functions, *args)


def _fori(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    def step(i: Any, args: Any) -> Any:
        functions[0](*args)
        return args

    def run(*args: Any) -> Any:
        nnx.fori_loop(0, SIZE, step, args)
        return ()

    return run


def _while(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    def step(value: Any) -> Any:
        i, args = value
        functions[0](*args)
        return i + 1, args

    def run(*args: Any) -> Any:
        nnx.while_loop(lambda value: value[0] < SIZE, step, (jnp.int32(0), args))
        return ()

    return run


def _grad(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        result, value = functions[0](*args)
        return value, result

    graded = nnx.value_and_grad(loss, has_aux=True)

    def run(*args: Any) -> Any:
        both, grads = graded(*args)
        return both, flat_grads(grads)

    return run


def _checkify(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    checked = nnx.checkify(functions[0])
    return lambda *args: checked(*args)[1]


def _eval_shape(lift: Lift, functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        nnx.eval_shape(functions[0], *args)
        return ()

    return run


_OTHERS = {
    "scan": _scan,
    "cond": _cond,
    "switch": _switch,
    "fori": _fori,
    "while": _while,
    "grad": _grad,
    "checkify": _checkify,
    "eval_shape": _eval_shape,
}


def lifted_world() -> World:
    names = {"Node": Node, "List": nnx.List, "Custom": Custom, "Tree": Tree}
    names |= {"Param": nnx.Param, "BatchStat": nnx.BatchStat}
    return World(names, nnx.Variable, nnx.Pytree, jnp.asarray, lambda stream: stream.uniform(), _lift)


def model(number: int) -> Node:
    """A graph of objects."""

    def array(k: int) -> Any:
        return jnp.asarray(np.arange(8, dtype=np.float32).reshape(2, 2, 2) / 8 + k)

    made = Node()
    made.a = Node()
    made.a.v = nnx.Param(array(number % 2))
    made.a.s = 1
    made.b = nnx.BatchStat(array(2))
    made.n = Custom(jnp.arange(8).reshape(2, 2, 2))
    if number % 2:
        made.c = made.a if number % 4 == 1 else made.a.v
    if number % 3 == 0:
        made.items = [made.b, Node(), 3, "x"] if number % 6 else [nnx.Param(array(3))]
    if number % 5 < 2:
        made.arr = array(1)
    if number % 7 < 2:
        made.named = {"x": array(0), "y": made.b if number % 7 else 1}
    _add_more(made, number, array)
    made.s = picked((1, True, None, "a"), number)
    return made


def _add_more(made: Node, number: int, array: Any) -> None:
    if number % 4 > 1:
        made.rngs = nnx.Rngs(number % 3)
    if number % 11 < 3:
        made.tree = Tree({"x": array(1), "s": "a", "t": (array(0), None)})
    if number % 8 > 5:
        made.list = nnx.List([nnx.Param(array(4)), made.a])
    if number % 9 == 0:
        made.me = made
    if 4 < number % 13 < 10:
        made.keyed = keyed(number, array(5), made)
        if number % 2:
            made.same = made.keyed


def keyed(number: int, array: Any, made: Node) -> dict[Any, Any]:
    """A dict whose keys are not all strings."""
    kind = (dict, OrderedDict, lambda items: defaultdict(list, items))[number % 3]
    return kind({(1, 2): nnx.Param(array), "k": [Node(), made.b], 0: picked((3, made.a, array + 1), number)})

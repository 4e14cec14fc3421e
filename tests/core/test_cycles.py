"""What contains itself meets an error of ours, before JAX recurses into it; after it the process works as before."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import LiftArgumentError
from liftcore.pytrees import check_acyclic


class Node(nnx.Module):
    pass


class Layer(eqx.Module):
    held: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Kinds(pax.Module):
    def __init__(self) -> None:
        self.register_parameter("w", jnp.ones(2))

    def __call__(self, x: Any) -> Any:
        return x * self.w


def a_list() -> Any:
    items = [jnp.ones(2)]
    items.append(items)  # type: ignore[arg-type]
    return items


def a_dict() -> Any:
    items: dict[str, Any] = {"x": jnp.ones(2)}
    items["again"] = [(items,)]
    return items


def a_dataclass() -> Any:
    pair = Pair(jnp.ones(2), [])
    pair.right.append(pair)
    return pair


def a_frozen_module() -> Any:
    items = [jnp.ones(2)]
    layer = Layer((Layer(items),))
    items.append(layer)  # type: ignore[arg-type]
    return layer


def parent_and_child() -> Any:
    node = Node()
    node.w, node.child = nnx.Param(jnp.ones(2)), Node()
    node.child.parent = node
    return node


def by_a_dataclass() -> Any:
    node = Node()
    node.w, node.held = nnx.Param(jnp.ones(2)), Pair({"node": node}, 1)
    return node


def by_a_list() -> Any:
    node = Node()
    node.w, node.items = nnx.Param(jnp.ones(2)), [1]
    node.items.append(node.items)
    return node


def a_chain() -> Any:
    nodes = [Node() for _ in range(60)]
    for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        one.next, one.w = other, nnx.Param(1.0)
    return nodes[0]


def in_a_variable() -> Any:
    node = Node()
    node.w = nnx.Param(1.0)
    node.w.set_raw_value(a_list())
    return node


def a_dataclass_in_an_object() -> Any:
    node = Node()
    node.w, node.pair = nnx.Param(jnp.ones(2)), a_dataclass()
    return node


PYTREES = (a_list, a_dict, a_dataclass, a_frozen_module)
GRAPHS = (parent_and_child, by_a_dataclass, by_a_list, a_chain)
BROKEN = (in_a_variable, a_dataclass_in_an_object)


def same(x: Any) -> Any:
    return x


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "nnx.jit": lambda x: nnx.jit(lambda x: 1.0)(x),
    "nnx.vmap": lambda x: nnx.vmap(lambda x: 1.0, in_axes=0)(x),
    "nnx.grad": lambda x: nnx.grad(lambda x: 1.0)(x),
    "nnx.cond": lambda x: nnx.cond(True, lambda x: 1.0, lambda x: 1.0, x),
    "nnx.scan": lambda x: nnx.scan(same, in_axes=nnx.Carry, out_axes=nnx.Carry, length=1)(x),
}
TREES: dict[str, Callable[[Any], Any]] = {
    "as_pure": nnx.as_pure,
    "eqx.partition": lambda x: eqx.partition(x, eqx.is_array),
    "eqx.combine": lambda x: eqx.combine(x, x),
    "eqx.filter_jit": lambda x: eqx.filter_jit(lambda x: 1.0)(x),
    "eqx.filter_grad": lambda x: eqx.filter_grad(lambda x: 1.0)(x),
    "eqx.filter_vmap": lambda x: eqx.filter_vmap(lambda x: 1.0, axis_size=2)(x),
    "eqx.tree_at": lambda x: eqx.tree_at(lambda tree: tree[0], x, 3),
    "eqx.tree_equal": lambda x: eqx.tree_equal(x, x),
    "eqx.inference_mode": eqx.inference_mode,
    "eqx.filter_shard": lambda x: eqx.filter_shard(x, None),
    "eqx.filter_closure_convert": lambda x: eqx.filter_closure_convert(lambda x: 1.0, x),
}
JAX: dict[str, Callable[[Any], Any]] = {
    "jax.tree.leaves": jax.tree.leaves,
    "jax.tree.map": lambda x: jax.tree.map(same, x),
    "jax.jit": lambda x: jax.jit(lambda x: 1.0)(x),
    "leaves with paths": jax.tree_util.tree_leaves_with_path,
}
OF_GRAPHS: dict[str, Callable[[Any], Any]] = {
    "split": nnx.split,
    "state": nnx.state,
    "merge": lambda x: nnx.merge(*nnx.split(x)),
    "clone": nnx.clone,
    "update": lambda x: nnx.update(x, nnx.state(x)),
    "iter_graph": lambda x: list(nnx.iter_graph(x)),
    "recursive_map": lambda x: nnx.recursive_map(lambda _, one: one, x),
    "find_duplicates": nnx.find_duplicates,
    "check_pytree": nnx.check_pytree,
    "repr": repr,
    "pop": lambda x: nnx.pop(x, nnx.Param),
}


def refused(function: Callable[[Any], Any], value: Any) -> None:
    for _ in range(2):
        with pytest.raises(LiftArgumentError, match="contains itself"):
            function(value)

    def deeper(n: int) -> int:
        return n and deeper(n - 1)

    assert deeper(300) == 0  # JAX's own error leaves no room for this


@pytest.mark.parametrize("function", FUNCTIONS | TREES)
def test_a_pytree_that_contains_itself_is_refused(function: str) -> None:
    for make in PYTREES:
        refused((FUNCTIONS | TREES)[function], make())


@pytest.mark.parametrize("function", JAX | TREES)
def test_an_object_that_contains_itself_is_no_pytree(function: str) -> None:
    for make in (*GRAPHS, *BROKEN[1:]):
        refused((JAX | TREES)[function], make())
    if function in JAX:
        refused(JAX[function], a_frozen_module())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_may_not_hold_a_pytree_that_contains_itself(function: str) -> None:
    for make in BROKEN:
        refused(FUNCTIONS[function], make())


@pytest.mark.parametrize("function", OF_GRAPHS)
def test_a_cycle_of_objects_is_a_graph(function: str) -> None:
    for make in GRAPHS:
        if (function, make) != ("pop", by_a_dataclass):
            OF_GRAPHS[function](make())


def test_a_body_gets_a_cycle_of_objects() -> None:
    for make in (parent_and_child, a_chain, by_a_list):
        node = make()
        nnx.jit(lambda node: node.w.set_value(5.0))(node)
        assert float(node.w) == 5


def test_what_is_shared_is_finite() -> None:
    tree: Any = [jnp.ones(1)]
    for _ in range(40):
        tree = [tree, tree] if len(tree) < 2 or isinstance(tree[0], list) else tree
    check_acyclic(tree)
    node = nnx.Dict(inner=nnx.Dict(w=nnx.Param(1.0)))
    assert len(jax.tree.leaves([node, node, {"a": nnx.Dict(x=node, y=[node])}])) == 4


def test_the_error_names_the_way_and_what_to_use() -> None:
    with pytest.raises(LiftArgumentError, match=r"Node: it contains itself, Node > Node > Node.*Use .*`nnx\.jit`"):
        jax.tree.leaves(parent_and_child())
    with pytest.raises(
        LiftArgumentError, match=r"list: it contains itself, list > list, so .* Leave out the reference"
    ):
        nnx.jit(same)(a_list())


def test_a_tree_that_is_too_deep_says_so() -> None:
    tree: Any = []
    for _ in range(2 * sys.getrecursionlimit()):
        tree = [tree]
    with pytest.raises(LiftArgumentError, match="deeper than Python's recursion limit"):
        check_acyclic(tree)


def test_a_pass_that_ends_early_hides_no_later_cycle() -> None:
    node = nnx.Dict(a=nnx.Dict(w=nnx.Param(1.0)), b=nnx.Dict(w=nnx.Param(1.0)))
    jax.tree.leaves(node, is_leaf=lambda one: one is node.a or one is node.b)
    node.a.other, node.b.other = node.b, node.a
    refused(jax.tree.leaves, node.a)
    refused(jax.tree.leaves, node)


def test_threads_check_on_their_own() -> None:
    errors: list[Any] = []

    def work() -> None:
        try:
            for _ in range(5):
                refused(jax.tree.leaves, parent_and_child())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def unchanged(scope: Any, x: Any) -> Any:
    return x


def second(scope: Any, _: Any, x: Any) -> Any:
    return x


LIFTED: dict[str, Callable[..., Any]] = {
    "jit": liftcore.jit(unchanged),
    "remat": liftcore.remat(unchanged),
    "vmap": liftcore.vmap(unchanged),
    "vjp": liftcore.vjp(unchanged),
    "scan": lambda scope, x: liftcore.scan(lambda scope, c, x: (c, x))(scope, 0, x),
    "fori_loop": lambda scope, x: liftcore.fori_loop(lambda scope, i, x: x)(scope, 0, 2, x),
    "fori_loop of a function of a module": lambda scope, x: liftcore.fori_loop(second)(scope, 0, 2, x),
    "bound": lambda scope, x: liftcore.fori_loop(second)(scope, x, 2, 1.0),
    "donated": lambda scope, x: liftcore.pmap(second, donate_argnums=1)(scope, jnp.ones((1, 2)), x),
    "cond": lambda scope, x: liftcore.cond(unchanged, unchanged)(scope, True, x),
    "scopes": lambda scope, x: liftcore.jit(unchanged)([scope, x], 1.0),
}


@pytest.mark.parametrize("name", LIFTED)
def test_an_argument_of_a_lift_that_contains_itself_is_an_error(name: str) -> None:
    run = liftcore.apply(LIFTED[name])
    if name == "jit":  # a call after the first one takes a shorter way
        run({}, [jnp.ones(2)])
    with pytest.raises(LiftArgumentError, match="list > list, so as a pytree it has no end"):
        run({}, a_list())


def kinds_in_itself() -> Any:
    module = Kinds()
    module.child = module
    return module


def kinds_by_a_list() -> Any:
    module = Kinds()
    module.children = [Kinds()]
    module.children.append({"again": module})
    return module


def kinds_by_a_child() -> Any:
    module = Kinds()
    module.child = Kinds()
    module.child.parent = module
    return module


def kinds_with_a_list() -> Any:
    module = Kinds()
    module.children = [Kinds()]
    module.children.append(module.children)
    return module


def kinds_with_a_setting() -> Any:
    module = Kinds()
    module.setting = [1]
    module.setting.append(module.setting)
    return module


KINDS = (kinds_in_itself, kinds_by_a_list, kinds_by_a_child, kinds_with_a_list, kinds_with_a_setting)
OF_KINDS: dict[str, Callable[[Any], Any]] = {
    "parameters": lambda x: x.parameters(),
    "eval": lambda x: x.eval(),
    "freeze": lambda x: x.freeze(),
    "copy": lambda x: x.copy(),
    "update": lambda x: Kinds().update(x),
    "summary": lambda x: x.summary(),
    "pure": lambda x: pax.pure(lambda x: 1.0)(x),
    "pure of a list": lambda x: pax.pure(lambda x: 1.0)([x]),
    "module_and_value": lambda x: pax.module_and_value(x)(1.0),
    "value_and_grad": lambda x: pax.value_and_grad(lambda m: m(1.0).sum())(x),
    "lift": lambda x: pax.lift(liftcore.jit, lambda m: 1.0)(x),
    "adopt": lambda x: liftcore.init(lambda scope: pax.adopt(scope, x)(1.0))(jax.random.key(0)),
    "adopt in apply": lambda x: liftcore.apply(lambda scope: pax.adopt(scope, x)(1.0))({"params": {"w": jnp.ones(2)}}),
    "as a child": lambda x: jax.tree.leaves(_with_child(x)),
    "in an eqx module": lambda x: jax.tree.leaves(Layer(x)),
    "an argument of a lift": lambda x: liftcore.apply(liftcore.jit(lambda scope, x: 1.0))({}, x),
    "jax.grad": lambda x: jax.grad(lambda m: 1.0, allow_int=True)(x),
    "jax.vmap": lambda x: jax.vmap(lambda m: 1.0)(x),
    "jax.eval_shape": lambda x: jax.eval_shape(lambda m: 1.0, x),
}


def _with_child(child: Any) -> Any:
    module = Kinds()
    module.child = child
    return module


@pytest.mark.parametrize("function", JAX | OF_KINDS)
def test_a_module_with_kinds_that_contains_itself_is_refused(function: str) -> None:
    for make in KINDS:
        refused((JAX | OF_KINDS)[function], make())


def test_its_text_ends() -> None:
    for make in KINDS:
        assert "..." in repr(make())


def test_a_check_sees_what_other_threads_add_or_leaves_it() -> None:
    held: dict[int, Any] = {number: [number] for number in range(50)}
    errors: list[BaseException] = []
    ended = threading.Event()

    def change() -> None:
        number = 50
        while not ended.is_set():
            held[number] = [number]
            held.pop(number - 50, None)
            number += 1

    def check() -> None:
        try:
            for _ in range(1000):
                check_acyclic(held)
        except BaseException as error:
            errors.append(error)

    writer, readers = threading.Thread(target=change), [threading.Thread(target=check) for _ in range(2)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    ended.set()
    writer.join()
    assert errors == []

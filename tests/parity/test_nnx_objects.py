"""Objects of nnx_like do what those of `flax.nnx` do: one program, run with both."""

from __future__ import annotations

import abc
import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like

nnx = pytest.importorskip("flax.nnx")

pytestmark = [  # what ours keeps
    pytest.mark.filterwarnings(r"ignore:\s*(Using|The 'm\.iter_|'(Data|Static)' is):DeprecationWarning"),
]

Program = Callable[[Any], Any]


class Models:
    """The same classes for each library."""

    def __init__(self, lib: Any) -> None:
        class Layer(lib.Module):
            def __init__(self, size: int = 3) -> None:
                self.w = lib.Param(jnp.ones((2, size)))
                self.mean = lib.BatchStat(jnp.zeros(size))
                self.size = size
                self.act = jax.nn.relu
                self.deterministic = False
                self.rate = 0.5

            def __call__(self, x: Any) -> Any:
                self.sow(lib.Intermediate, "seen", x)
                return self.helper(self.perturb("p", x) * self.w)

            def helper(self, x: Any) -> Any:
                return x + 1

            def set_view(self, deterministic: bool | None = None) -> None:
                """Sets the mode.

                Args:
                  deterministic: whether it is the same
                    each time.
                """
                if deterministic is not None:
                    self.deterministic = deterministic

        class Model(lib.Module):
            def __init__(self) -> None:
                self.rows = lib.List([Layer(), Layer()])
                self.named = lib.Dict(b=Layer(), a=lib.Param(1.0))
                self.shared = self.named.b
                self.seq = lib.Sequential(jnp.sin, Layer())
                self.array = jnp.arange(3.0)
                self.plain = [1, "x"]
                self.nothing = None

            def __call__(self, x: Any) -> Any:
                return self.rows[1](self.rows[0](x))

        self.layer, self.model = Layer, Model


def both(program: Program) -> tuple[Any, Any]:
    return tuple(shown(program, lib) for lib in (nnx_like, nnx))  # type: ignore[return-value]


def shown(program: Program, lib: Any) -> Any:
    try:
        return plain(program(lib))
    except Exception as error:  # which one it is, is compared
        if type(error).__name__ == "TraceContextError":
            return "TraceContextError"
        return next(kind for kind in KINDS if isinstance(error, kind))


KINDS = (KeyError, IndexError, AttributeError, TypeError, ValueError, Exception)


def plain(value: Any) -> Any:
    """A value in terms that both libraries share."""
    if isinstance(value, nnx.Variable | nnx_like.Variable):
        return type(value).__name__, plain(value.get_value())
    if isinstance(value, nnx.State | nnx_like.State | dict):
        return {name: plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, nnx.Pytree | nnx_like.Pytree):
        return type(value).__name__
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, jax.Array | np.ndarray):
        return np.asarray(value).tolist()
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def tree_paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]


def walked(pairs: Any) -> Any:
    """Paths and types, without what NNX keeps in attributes of its own."""
    own = ("_pytree__nodes", "_pytree__state", "_length")
    return [(path, type(value).__name__) for path, value in pairs if not path or path[-1] not in own]


def changed(value: Any, *changes: Callable[[Any], Any]) -> Any:
    """What a value is after some changes, with what these return."""
    results = [change(value) for change in changes]
    return results, list(value.items()) if hasattr(value, "items") else list(value)


def with_model(program: Callable[[Any, Any], Any]) -> Program:
    return lambda lib: program(lib, Models(lib).model())


def with_layer(program: Callable[[Any, Any], Any]) -> Program:
    return lambda lib: program(lib, Models(lib).layer())


class Marked:
    def __init__(self, lib: Any, dataclass: Any) -> None:
        @dataclass
        class Point(lib.Pytree):
            x: lib.Param
            n: int
            size: int = lib.static(default=3)
            count: int = lib.data(default=0, kw_only=True)

        self.point = Point


def abstract(lib: Any) -> Any:
    class Base(lib.Module):
        @abc.abstractmethod
        def run(self) -> None: ...

    return Base()


def typed(lib: Any) -> Any:
    class Counter(lib.Pytree):
        __annotations__ = {"a": lib.Data[int], "b": lib.Static[int]}  # those of this file are texts
        c = lib.data()

        def __init__(self) -> None:
            self.a, self.b, self.c, self.d = 1, 2, 3, lib.data(4)

    return jax.tree.leaves(Counter())


def changed_outside(lib: Any) -> Any:
    layer = Models(lib).layer()

    @jax.jit
    def run() -> None:
        layer.size = 4

    return run()


def cyclic(lib: Any) -> Any:
    node = lib.Dict()
    node.me = node
    return walked(lib.iter_graph(node))


def mapped(lib: Any) -> Any:
    w = lib.Param(1.0)
    node = lib.Dict(a=w, b=lib.Dict(w=w, n=1))
    made = lib.recursive_map(lambda path, value: value + 1 if type(value) is int else value, node)
    return made.a is made.b.w, made.b.n, node.b.n, made.b is node.b


def copies(copy_of: Callable[[Any], Any]) -> Program:
    def run(lib: Any) -> Any:
        inner = lib.Dict(w=lib.Param(1.0))
        made = copy_of(lib.Dict(a=inner, b=inner))
        return made.a is made.b, made.a is inner, made.a.w is inner.w, made.a.w

    return run


def captured(*names: str, method: str = "__call__", **options: Any) -> Program:
    def run(lib: Any) -> Any:
        node = lib.Dict(x=Models(lib).layer(1))
        fn = lambda node, x: getattr(node.x, method)(x)  # noqa: E731
        kinds = [getattr(lib, name) for name in names]
        given = {name: getattr(lib, kind) for name, kind in options.items()}
        return lib.capture(fn, *kinds, **given)(node, 2.0)

    return run


def captured_before(lib: Any) -> Any:
    layer = Models(lib).layer(1)
    layer(1.0)
    return lib.capture(layer, lib.Intermediate)(2.0), layer.seen


def captured_gradient(lib: Any) -> Any:
    layer = Models(lib).layer(1)
    _, zeros = lib.capture(layer, lib.Perturbation)(2.0)
    return lib.capture(layer, lib.Intermediate, init=jax.tree.map(lambda leaf: leaf + 3, zeros))(2.0)


def viewed(**options: Any) -> Program:
    def run(lib: Any) -> Any:
        model = Models(lib).model()
        made = lib.view(model, **options)
        modes = [one.named.b.deterministic for one in (made, model)]
        return modes, made.named.b.w is model.named.b.w, made.shared is made.named.b, made.rows is model.rows

    return run


PROGRAMS: dict[str, Program] = {
    # objects as pytrees
    "tree paths": with_model(lambda lib, model: tree_paths(model)),
    "tree paths in a dict": with_model(lambda lib, model: tree_paths({"a": [model]})),
    "tree map": with_layer(lambda lib, layer: jax.tree.map(lambda leaf: leaf + 1, layer).w),
    "tree map keeps static": with_layer(lambda lib, layer: vars(jax.tree.map(lambda leaf: leaf, layer))["size"]),
    "no arguments": lambda lib: lib.Module(1),
    "equal": lambda lib: (lib.Module() == lib.Module(), lib.Dict(a=1) == lib.Dict(a=1), lib.List([1]) == lib.List([1])),
    "list equals list": lambda lib: lib.List([1]) == [1],
    "hash of a list": lambda lib: hash(lib.List([1])) and 0,
    "hash of a module": lambda lib: hash(lib.Module()) and 0,
    "abstract": abstract,
    "changed outside": changed_outside,
    "a variable is replaced": with_layer(
        lambda lib, layer: [setattr(layer, "w", jnp.ones(1)), type(layer.w).__name__][1:]
    ),
    # marks
    "is data": lambda lib: [
        lib.is_data(one) for one in (1, "a", None, jnp.ones(1), lib.Param(1), lib.Dict(), [lib.Param(1)])
    ],
    "has data": lambda lib: lib.has_data({"a": [lib.Param(1), 2], "b": (jnp.ones(1), "x")}),
    "annotations": typed,
    "dataclass": lambda lib: jax.tree.leaves(Marked(lib, lib.dataclass).point(lib.Param(1.0), 5, count=2)),
    "plain dataclass": lambda lib: jax.tree.leaves(Marked(lib, dataclasses.dataclass).point(lib.Param(1.0), 5)),
    "static data": lambda lib: setattr(lib.Dict(), "x", lib.static(jnp.ones(1))),
    # containers
    "list items": lambda lib: (lambda one: (one[0], one[-1], one[1:], len(one), 2 in one))(lib.List([1, 2, 3])),
    "list insert": lambda lib: changed(lib.List([1, 2]), lambda one: one.insert(0, 3), lambda one: one.insert(-1, 4)),
    "list pop": lambda lib: changed(lib.List([1, 2, 3]), lambda one: one.pop(), lambda one: one.pop(0)),
    "list delete": lambda lib: changed(lib.List([1, 2, 3]), lambda one: one.__delitem__(slice(0, 2))),
    "list reverse": lambda lib: changed(lib.List([1, 2, 3]), lambda one: one.reverse(), lambda one: one.remove(2)),
    "list extend": lambda lib: changed(lib.List([1]), lambda one: one.extend([2, 3]), lambda one: one.append(4)),
    "list index error": lambda lib: lib.List([1])[1],
    "list text": lambda lib: lib.List([1])["0"],
    "list arguments": lambda lib: lib.List(1, 2),
    "dict items": lambda lib: (lambda one: (one.a, one["b"], len(one), list(one)))(lib.Dict({"a": 1}, b=2)),
    "dict changes": lambda lib: changed(lib.Dict(a=1, b=2), lambda one: one.pop("a"), lambda one: one.update(c=3)),
    "dict key error": lambda lib: lib.Dict()["a"],
    "dict attribute error": lambda lib: lib.Dict().a,
    "sequential": lambda lib: lib.Sequential(lambda x: (x, 2), lambda a, b: {"a": a, "b": b}, lambda a, b: a - b)(5),
    "sequential keywords": lambda lib: lib.Sequential(lambda x, y: x + y)(1, y=2),
    "sequential rngs": lambda lib: lib.Sequential(lambda x, rngs: rngs, lambda x: x)(1, rngs=4),
    "sequential nothing": lambda lib: (lib.Sequential()(1), lib.Sequential()(1, 2)),
    "sequential error": lambda lib: lib.Sequential(1)(1),
    # copies
    "deepcopy": copies(copy.deepcopy),
    "copy": copies(copy.copy),
    "pickle": copies(lambda node: pickle.loads(pickle.dumps(node))),
    # what is stored
    "sow": with_layer(
        lambda lib, layer: (layer.sow(lib.Intermediate, "h", 1), layer.sow(lib.Intermediate, "h", 2), layer.h)
    ),
    "sow by name": with_layer(lambda lib, layer: (layer.sow("intermediates", "h", 1), layer.h)),
    "sow reduced": with_layer(
        lambda lib, layer: (layer.sow(lib.Intermediate, "h", 3, lambda a, b: a + b, lambda: 1), layer.h)
    ),
    "sow another type": with_layer(lambda lib, layer: layer.sow(lib.Intermediate, "w", 1)),
    "perturb": with_layer(lambda lib, layer: (layer.perturb("p", jnp.ones(2)), layer.p)),
    "perturb another type": with_layer(lambda lib, layer: layer.perturb("w", 1.0)),
    "capture": captured("Intermediate"),
    "capture two": captured("Intermediate", "Perturbation"),
    "capture nothing": captured(),
    "capture a method": captured("Intermediate", method="helper"),
    "capture results": captured("Intermediate", method_outputs="Intermediate"),
    "capture beside": captured_before,
    "capture with values": captured_gradient,
    # attributes of modules
    "eval": with_model(lambda lib, model: (model.eval(rate=0.1), model.rows[0].deterministic, model.named.b.rate)),
    "train": with_model(lambda lib, model: (model.train(), model.rows[0].deterministic)),
    "set attributes": with_model(
        lambda lib, model: (
            model.set_attributes(lib.PathContains("rows"), rate=1),
            model.rows[0].rate,
            model.shared.rate,
        )
    ),
    "set no attributes": with_model(lambda lib, model: model.set_attributes(zz=1)),
    "set attributes if there": with_model(lambda lib, model: model.set_attributes(zz=1, raise_if_not_found=False)),
    "view": viewed(deterministic=True),
    "view some": lambda lib: viewed(only=lib.PathContains("rows"), deterministic=True)(lib),
    "view none": viewed(zz=1),
    "view info": with_model(lambda lib, model: lib.view_info(model)),
    "with attributes": with_model(lambda lib, model: lib.with_attributes(model, rate=1).rows[0].rate),
    "with no attributes": with_model(lambda lib, model: lib.with_attributes(model, zz=1)),
    # ways through a graph
    "iter graph": with_model(lambda lib, model: walked(lib.iter_graph([model, model.rows, (1, None, None)]))),
    "iter a cycle": cyclic,
    "iter modules": with_model(lambda lib, model: walked(lib.iter_modules(model))),
    "iter modules of a list": with_model(lambda lib, model: walked(lib.iter_modules([model, 3]))),
    "iter modules as a method": with_model(lambda lib, model: walked(model.iter_modules())),
    "iter children": with_model(lambda lib, model: [name for name, _ in lib.iter_children(model)]),
    "iter no children": lambda lib: list(lib.iter_children(3)),
    "iter module children": with_model(lambda lib, model: [name for name, _ in lib.iter_module_children(model.named)]),
    "iter children as a method": with_model(lambda lib, model: [name for name, _ in model.iter_children()]),
    "find duplicates": with_model(lambda lib, model: lib.find_duplicates(model)),
    "find some duplicates": lambda lib: (
        lambda w: lib.find_duplicates(lib.Dict(a=w, b=w, c=lib.Dict(w=w)), only=lib.Param)
    )(lib.Param(1)),
    "recursive map": mapped,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_does_the_same(name: str) -> None:
    ours, theirs = both(PROGRAMS[name])
    assert ours == theirs


def test_rows_of_a_table_are_the_same() -> None:
    def table(lib: Any) -> list[list[str]]:
        options = {"console_kwargs": {"force_terminal": False, "width": 200}}
        node = lib.Sequential(lib.Linear(2, 3, rngs=lib.Rngs(0)), lib.relu, lib.BatchNorm(3, rngs=lib.Rngs(0)))
        text = lib.tabulate(node, jnp.ones((1, 2)), compute_flops=True, compute_vjp_flops=True, **options)
        return [[cell.strip() for cell in line.split("│")] for line in text.splitlines() if "│" in line]

    assert table(nnx_like) == table(nnx)


def test_what_nnx_refuses_is_seen_from_the_value() -> None:
    node = nnx_like.Dict(n=3)
    node.n = jnp.ones(2)
    node.rows = [nnx_like.Param(1.0), "text"]
    assert tree_paths(node) == [".n", ".rows[0].value"]
    assert jax.tree.structure(nnx_like.Dict(x=1)) != jax.tree.structure(nnx_like.Dict(x=True))

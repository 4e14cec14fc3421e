"""The plain world: each transformation as the loop, the branch or the call that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.objects.bodies import World, is_array, ordered
from tests.fuzz.objects.plain import (
    NAMES,
    Expected,
    Module,
    Variable,
    copied,
    each_leaf,
    fill,
    is_container,
    is_node,
    items_of,
    nodes_of,
    ordered_items,
    restoring,
    settled,
    shape_of,
)
from tests.fuzz.objects.programs import SIZE, Lift, axis_of

__all__ = ["plain_world"]


def _same(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with restoring(args):
            return functions[0](*args)

    return run


def _cond(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(choice: Any, *args: Any) -> Any:
        shapes = []
        for function in functions:
            memo: dict[int, Any] = {}
            others = copied(args, memo)
            back = {id(memo[id(one)]): id(one) for one in nodes_of(args)}
            shapes.append(_relative(shape_of((others, function(*others), tuple(memo.values()))), back))
        if any(shape != shapes[0] for shape in shapes):
            raise Expected("branches differ")
        with restoring(args):
            return functions[int(choice)](*args)

    return run


def _relative(shape: Any, back: dict[int, int]) -> Any:
    """A shape with new objects by the order in which they are met."""
    fresh: dict[int, int] = {}

    def visit(one: Any) -> Any:
        if type(one) is tuple:
            return tuple(map(visit, one))
        if type(one) is int and one > 2**20:
            return back[one] if one in back else -fresh.setdefault(one, len(fresh) + 1)
        return one

    return visit(shape)


def _loop(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        before = shape_of(args)
        with restoring(args):
            for _ in range(SIZE):
                functions[0](*args)
                if shape_of(args) != before:
                    raise Expected("the carry is another")
        return ()

    return run


def _eval_shape(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        functions[0](*copied(args, {}))
        return ()

    return run


def _grad(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        found = list(_paths(args[0], ()))
        chosen = [(path, one) for path, one in found if type(one).__name__ == "Param" or path == ()]
        chosen = [(path, one) for path, one in chosen if _floats(one)]
        others = {id(one) for one in WORLD.found(args[1:])}
        if any(id(one) in others for _, one in chosen):
            raise Expected("differentiated, and not")
        kept: list[Any] = []
        all_before = nodes_of(args)

        def loss(values: Any) -> Any:
            for (_, one), value in zip(chosen, values, strict=True):
                one._value = value
            result, value = functions[0](*args)
            leaves: list[Any] = []
            each_leaf((args, result, *all_before), lambda array, _: leaves.append(array) or array, set())
            kept.append(result)
            return value, (value, leaves)

        with restoring(args):
            both = jax.value_and_grad(loss, has_aux=True)([one._value for _, one in chosen])
        (_, (value, leaves)), grads = both
        leaves = iter(map(settled, leaves))
        filled = each_leaf((args, kept[-1], *all_before), lambda array, _: next(leaves), set())
        return (settled(value), filled[1]), {str(p): settled(g) for (p, _), g in zip(chosen, grads, strict=True)}

    return run


def _floats(one: Variable) -> bool:
    return is_array(one._value) and one._value.dtype == np.float32


def _paths(value: Any, path: tuple[Any, ...], seen: Any = None) -> Iterator[tuple[Any, Variable]]:
    seen = set() if seen is None else seen
    if isinstance(value, (Variable, Module)):
        if id(value) in seen:
            return
        seen.add(id(value))
    if isinstance(value, Variable):
        yield path, value
    elif isinstance(value, (Module, dict)):
        held = value if isinstance(value, dict) else vars(value)
        for name in ordered(held):
            yield from _paths(held[name], (*path, int(name) if type(value).__name__ == "List" else name), seen)
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _paths(one, (*path, number), seen)


def _split(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        streams = [one for one in WORLD.found(args) if type(one).__name__ == "RngStream"]
        split: dict[int, Any] = {}
        for stream in streams:
            if id(stream.key) not in split:
                if stream.key._value.shape:
                    raise Expected("split already")
                drawn = _next(stream)
                split[id(stream.key)] = stream, stream.key._value, stream.count._value
                stream.key._value, stream.count._value = jax.random.split(drawn, SIZE), np.zeros(SIZE, np.uint32)
        try:
            return _mapped(lift, functions)(*args)
        finally:
            for stream, key, count in split.values():
                stream.key._value, stream.count._value = key, count

    return run


def _next(stream: Any) -> Any:
    if stream.key._value.shape:
        raise Expected("a draw from several keys")
    key = jax.random.fold_in(stream.key._value, stream.count._value)
    stream.count._value = stream.count._value + np.uint32(1)
    return key


def _mapped(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    names = ["whole"] * len(lift.prefix) if lift.name == "split_vmap" else list(lift.prefix)
    carries = lift.name == "scan"
    kinds = [kind for kind, _ in lift.bodies[0].result]
    ins = [
        "zero" if kind == "array" and name != "none" else name
        for name, (kind, _) in zip(names, lift.args, strict=False)
    ]
    ins = ["carry", *ins[1:]] if carries else ins

    def run(*args: Any) -> Any:
        merge = Merge()
        for one, prefix in zip(args, ins, strict=True):
            merge.place(one, prefix)
        originals = {id(one): nodes_of(one) for one in args}
        given = [one for one, prefix in zip(args, ins, strict=True) if prefix == "carry"]
        before, runs, memos = shape_of(given), [], []
        with restoring(args):
            for i in range(SIZE):
                memo = {id(one): one for one in nodes_of(*given)}
                copies = copied(list(args), memo)
                merge.slice(copies, ins, i)
                merge.go_on(nodes_of(*args), memo, memos)
                result = functions[0](*copies)
                if shape_of(given) != before:
                    raise Expected("the carry is another")
                runs.append((copies, result))
                memos.append(memo)
                if i == 0:
                    merge.known = {id(memo[id(one)]): one for one in nodes_of(*args)}
            merge.checked.clear()
            pairs = [[one[0][k] for one in runs] for k in range(len(args))]
            for copies, prefix in zip(pairs, ins, strict=True):
                merge.join(copies, prefix)
            for one, prefix in zip(args, ins, strict=True):  # what no argument holds any more
                for node in originals[id(one)]:
                    merge.join([memo[id(node)] for memo in memos], prefix)
            value = merge.join([loss for _, (_, loss) in runs], "zero")
            results = [[one[1][0][k] for one in runs] for k in range(len(kinds))]
            outs = ["zero" if kind == "scalar" else names[-1] for kind in kinds]
            return tuple([merge.join(each, out) for each, out in zip(results, outs, strict=True)]), value

    return run


class Merge:
    """Brings the objects of several runs together in those that were given."""

    def __init__(self) -> None:
        self.groups: dict[Any, Any] = {}
        self.known: dict[int, Any] = {}
        self.done: dict[int, Any] = {}
        self.checked: set[Any] = set()

    def place(self, value: Any, prefix: str) -> None:
        """Notes the axis of each variable, and of each object for its arrays."""
        self._visit(value, prefix, lambda one, axis: self._agree(self.groups, one, axis))

    def _agree(self, groups: dict[Any, Any], one: Any, axis: Any) -> None:
        if groups.setdefault(one, axis) != axis:
            raise Expected("two axes")

    def _visit(self, value: Any, prefix: str, tell: Callable[[Any, Any], None], owner: Any = None) -> None:
        if is_array(value) and owner is not None:
            tell(owner, _axis(prefix, ""))
        elif type(value) is tuple:
            for number, one in enumerate(value):
                self._visit(one, prefix, tell, None if owner is None else (*owner, number))
        elif isinstance(value, Variable):
            tell(id(value), _axis(prefix, type(value).__name__))
        elif is_node(value) and (id(value), prefix) not in self.checked:
            self.checked.add((id(value), prefix))
            for name, one in ordered_items(value):
                self._visit(one, prefix, tell, (id(value), name))

    def slice(self, copies: list[Any], prefixes: list[str], i: int) -> None:
        seen: set[int] = set()
        for number, (one, prefix) in enumerate(zip(copies, prefixes, strict=True)):
            if prefix != "carry":
                copies[number] = each_leaf(one, lambda array, kind, p=prefix: sliced(array, _axis(p, kind), i), seen)

    def go_on(self, nodes: list[Any], memo: dict[int, Any], memos: list[dict[int, Any]]) -> None:
        """Gives what is carried the values of the last iteration."""
        for one in nodes if memos else ():
            if self.groups.get(id(one)) == "carry":
                memo[id(one)]._value = memos[-1][id(one)]._value

    def join(self, values: list[Any], prefix: str) -> Any:
        first = values[0]
        if is_array(first):
            return stacked(values, _axis(prefix, ""))
        if type(first) is tuple:
            return tuple([self.join(list(each), prefix) for each in zip(*values, strict=True)])
        if not is_node(first):
            return first
        self._check(first, prefix)
        if id(first) in self.done:
            return self.done[id(first)]
        target = self.done[id(first)] = self.known.get(id(first), first)
        if isinstance(first, Variable):
            axis = _axis(prefix, type(first).__name__)
            target._metadata = first._metadata
            target._value = _in_parallel([one._value for one in values], axis)
        else:
            names = list(items_of(first))
            fill(target, {name: self.join([items_of(one)[name] for one in values], prefix) for name in names})
        return target

    def _check(self, first: Any, prefix: str) -> None:
        """A variable goes out on the axis that it came in with; a new one has one axis."""

        def tell(one: Any, axis: Any) -> None:
            if type(one) is int:
                known = self.known.get(one)
                if known is None and axis == "carry":
                    raise Expected("new in the carry")
                self._agree(self.groups, one if known is None else id(known), axis)
            else:
                self._agree(self.out, one, axis)

        self._visit(first, prefix, tell)

    @property
    def out(self) -> dict[Any, Any]:
        return self.__dict__.setdefault("_out", {})


def _axis(prefix: str, kind: str) -> Any:
    return "carry" if prefix == "carry" else axis_of(prefix, kind)


def _in_parallel(values: list[Any], axis: Any) -> Any:
    first = values[0]
    if type(first) is dict:
        return {name: _in_parallel([one[name] for one in values], axis) for name in first}
    if is_container(first):
        return type(first)([_in_parallel(list(each), axis) for each in zip(*values, strict=True)])
    return stacked(values, axis) if is_array(first) else first


def sliced(array: Any, axis: Any, i: int) -> Any:
    if axis is None or axis == "carry":
        return array
    if array.ndim < (1 if axis < 0 else axis + 1):
        raise Expected("no such axis")
    if array.shape[axis] != SIZE:
        raise Expected("another size")
    return array[(slice(None),) * (axis % array.ndim) + (i,)]


def stacked(values: list[Any], axis: Any) -> Any:
    if axis == "carry":
        return values[-1]
    if any(one.shape != values[0].shape for one in values):
        raise Expected("shapes differ")
    if axis is None:
        if any(one is not values[0] and not _equal(one, values[0]) for one in values):
            raise Expected("differs between elements")
        return values[-1]
    if axis > values[0].ndim:
        raise Expected("no such axis")
    known = all(isinstance(one, (np.ndarray, np.generic)) for one in values)
    return (np if known else jnp).stack(values, axis)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer):
        raise Expected("perhaps")
    return bool((one == other).all())


def _plain_lift(lift: Lift, functions: list[Any]) -> Callable[..., Any]:
    return _LIFTS[lift.name](lift, functions)


_LIFTS = {
    **dict.fromkeys(("jit", "remat", "named_call", "checkify"), _same),
    **dict.fromkeys(("cond", "switch"), _cond),
    **dict.fromkeys(("fori", "while"), _loop),
    **dict.fromkeys(("vmap", "scan"), _mapped),
    "split_vmap": _split,
    "eval_shape": _eval_shape,
    "grad": _grad,
}

WORLD = World(
    NAMES, Variable, Module, lambda array: array, lambda stream: settled(jax.random.uniform(_next(stream))), _plain_lift
)


def plain_world() -> World:
    return WORLD

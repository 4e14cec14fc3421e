"""What a program means without the library: dicts, and Python's own loops, branches and calls.

A `World` is the state of a run. A lift runs its body on worlds made from slices of the one around it, and puts what was
made or written back. Only derivatives are taken by JAX, of a pure function of plain values.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tests.fuzz.lifted import floating, negated, total
from tests.fuzz.programs import CARRY, Body, Call, Filter, Lift, like, run, small, spread

Path = tuple[str, ...]
GIVEN = ("params", "dropout", "noise")
"""The streams that a run is given. Draws from others are draws from `params`."""


class IllegalError(Exception):
    """The program breaks a documented rule, so that it has no meaning."""


@dataclasses.dataclass
class World:
    """The state of a run.

    Attributes:
        values: from `(collection, *modules, name)` to a value.
        roots: the root keys of the streams.
        mutable: the collections that may be written.
        counts: how many keys were drawn, by path and stream.
        pending: what exists as soon as the body has declared it: made by an iteration or branch before.
        first: what was made here, as it was then.
        changed: the paths that were made or written.
        sown: captured values by path, inside a lift.
        inside: whether this is inside a lift.
        loose: shared by all worlds of a run; holds something where JAX decides weak types by itself.
    """

    values: dict[Path, Any]
    roots: Mapping[str, Any]
    mutable: frozenset[str]
    counts: dict[tuple[Path, str], int] = dataclasses.field(default_factory=dict)
    pending: dict[Path, Any] = dataclasses.field(default_factory=dict)
    first: dict[Path, Any] = dataclasses.field(default_factory=dict)
    changed: dict[Path, None] = dataclasses.field(default_factory=dict)
    sown: dict[Path, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    inside: bool = False
    loose: list[str] = dataclasses.field(default_factory=list)

    def within(self, values: dict[Path, Any], pending: dict[Path, Any], roots: Mapping[str, Any]) -> World:
        """A world for one run of a body in a lift."""
        return World(values, roots, self.mutable, dict(self.counts), pending, {}, {}, {}, inside=True, loose=self.loose)

    def after(self, values: Mapping[Path, Any], first: Mapping[Path, Any]) -> None:
        """Takes over what a lift made or wrote."""
        self.values.update(values)
        self.changed.update(dict.fromkeys(values))
        for path, value in first.items():
            self.first.setdefault(path, value)

    def sow(self, path: Path, values: tuple[Any, ...]) -> None:
        """Captures values."""
        self.sown[path] = (*self.sown.get(path, ()), *values)


class Plain:
    """A scope."""

    def __init__(self, world: World, path: Path = ()) -> None:
        self.world, self.path = world, path

    def push(self, name: str, reuse: bool = False) -> Plain:
        return Plain(self.world, (*self.path, name))

    def has_variable(self, collection: str, name: str) -> bool:
        return (collection, *self.path, name) in self.world.values

    def is_mutable_collection(self, collection: str) -> bool:
        return collection in self.world.mutable

    def get_variable(self, collection: str, name: str) -> Any:
        return self.world.values[collection, *self.path, name]

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        path = (collection, *self.path, name)
        self.world.values[path] = value
        self.world.changed[path] = None

    def make_rng(self, sequence: str) -> Any:
        counted = sequence if sequence in GIVEN else "params"
        count = self.world.counts.get((self.path, counted), 0) + 1
        self.world.counts[self.path, counted] = count
        data = b"".join(b"\0" + name.encode() for name in self.path) + b"\0" + bytes([count])
        return jax.random.fold_in(self.world.roots[counted], int.from_bytes(hashlib.sha1(data).digest()[:4], "big"))

    def variable(self, collection: str, name: str, init_fn: Callable[[], Any]) -> Value:
        path = (collection, *self.path, name)
        if path not in self.world.values:
            if collection not in self.world.mutable:
                raise IllegalError(f"{path} does not exist")
            made = init_fn()
            self.put_variable(collection, name, self.world.pending.get(path, made))
            self.world.first[path] = self.world.values[path]
        return Value(self.world.values[path])

    def param(self, name: str, init_fn: Callable[[Any], Any]) -> Any:
        return self.variable("params", name, lambda: init_fn(self.make_rng("params"))).value

    def sow(self, collection: str, name: str, value: Any) -> None:
        if collection in self.world.mutable:
            self.world.sow((collection, *self.path, name), (value,))


@dataclasses.dataclass
class Value:
    """A variable that is only read."""

    value: Any


def call(statement: Call, scope: Plain, env: Mapping[str, Any], args: list[Any]) -> Any:
    """Runs a lift."""

    def body(index: int, world: World, **given: Any) -> tuple[Any, Any]:
        return run(statement.bodies[index], Plain(world, scope.path), {**env, **given}, call)

    return KINDS[statement.lift.kind](statement, scope, body, *args)


def takes(found: Filter, path: Path) -> bool:
    """Whether a filter takes a variable."""
    return path[0] == found if isinstance(found, str) else path[0] == found[0] and found[1] in path


def treatment(lift: Lift, path: Path) -> Any:
    """The axis of a variable, None, `CARRY`, or "unlifted"."""
    return next((axis for found, axis in lift.groups if takes(found, path)), "unlifted")


def sliced(lift: Lift, values: Mapping[Path, Any], below: Path, i: int) -> dict[Path, Any]:
    """What one batch element or iteration sees of variables: those at the scope or below it that are lifted."""
    here = {path: value for path, value in values.items() if path[1 : len(below) + 1] == below}
    seen = {path: treatment(lift, path) for path in here}
    return {
        path: jax.tree.map(lambda leaf, axis=seen[path]: jnp.take(leaf, i, axis), value)
        if isinstance(seen[path], int)
        else value
        for path, value in here.items()
        if seen[path] != "unlifted"
    }


def stack(values: list[Any], axis: int = 0) -> Any:
    """Pytrees of one structure as one; Python numbers stay weakly typed."""

    def array(leaf: Any) -> Any:
        return jnp.add(leaf, 0) if type(leaf) in (int, float) else jnp.asarray(leaf)

    return jax.tree.map(lambda *leaves: jnp.stack([*map(array, leaves)], axis), *values)


def joined(lift: Lift, worlds: list[World], of: Callable[[World], dict[Path, Any]]) -> dict[Path, Any]:
    """Stacks what has an axis; of what has none it takes the first."""
    found: dict[Path, Any] = {}
    for path in dict.fromkeys(path for world in worlds for path in of(world)):  # elements may take other branches
        axis = treatment(lift, path)
        if axis == "unlifted":
            raise IllegalError(f"{path} is not lifted")
        parts = [of(world).get(path, world.values[path]) for world in worlds]
        found[path] = stack(parts, axis) if isinstance(axis, int) else parts[0]
    return found


def written(world: World) -> dict[Path, Any]:
    return {path: world.values[path] for path in world.changed}


def split_roots(lift: Lift, roots: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The root keys of one batch element or iteration."""
    split = dict(lift.splits)
    return {name: jax.random.split(root, lift.size)[i] if split[name] else root for name, root in roots.items()}


def all_sown(outer: World, worlds: list[World]) -> None:
    """Stacks captured values on a new axis 0."""
    for path in worlds[0].sown:
        outer.sow(path, stack([world.sown[path] for world in worlds]))


def _vmap(statement: Call, scope: Plain, body: Any, x: Any, y: Any = 0) -> Any:
    lift, outer = statement.lift, scope.world
    xs, worlds, results = spread(x, lift.size), [], []
    for i in range(lift.size):
        values, pending = (sliced(lift, held, scope.path, i) for held in (outer.values, outer.pending))
        worlds.append(outer.within(values, pending, split_roots(lift, outer.roots, i)))
        results.append(body(0, worlds[-1], x=xs[i], y=y)[0])
    outer.after(joined(lift, worlds, written), joined(lift, worlds, lambda world: world.first))
    outer.counts = worlds[0].counts
    all_sown(outer, worlds)
    return jnp.sum(stack(results), 0)


Iteration = Callable[[int, World, Any], tuple[Any, Any]]


def loop(lift: Lift, scope: Plain, start: Any, order: Iterable[int], roots: Any, iteration: Iteration) -> Any:
    """Runs a loop: its last carry, and what it stacks in order.

    Args:
        lift: its options.
        scope: where.
        start: the first carry.
        order: the numbers of the iterations, as they come one after another.
        roots: from the number of an iteration to its root keys.
        iteration: given a number, a world and the carry, it runs the body.
    """
    outer, carry = scope.world, start
    carried = {p: v for p, v in sliced(lift, outer.values, scope.path, 0).items() if treatment(lift, p) == CARRY}
    pending = {p: v for p, v in sliced(lift, outer.pending, scope.path, 0).items() if treatment(lift, p) == CARRY}
    worlds, stacked, rounds = [], [], list(order)
    for i in rounds:
        values, waiting = (sliced(lift, held, scope.path, i) for held in (outer.values, outer.pending))
        if lift.until and not small({**values, **carried}[lift.until[0], *scope.path, lift.until[1]]):
            break
        world = outer.within({**values, **carried}, {**waiting, **pending}, roots(i))
        known, begins = {**waiting, **pending, **values, **carried}, start
        carry, more = iteration(i, world, start)
        start = again(world, begins, carry)
        after = {
            path: again(world, known.get(path, world.first.get(path, value)), value)
            for path, value in world.values.items()
            if treatment(lift, path) == CARRY
        }
        carried = {path: after[path] for path in carried}
        pending = {**pending, **{path: value for path, value in after.items() if path not in carried}}
        worlds.append(world)
        stacked.append(more)
    if not worlds:
        return idle(lift, scope, start, roots, iteration), None
    rounds = rounds[: len(worlds)]
    by_number = [world for _, world in sorted(zip(rounds, worlds, strict=True), key=lambda pair: pair[0])]
    last, first = joined(lift, by_number, written), joined(lift, by_number, lambda world: world.first)
    for path in last:
        if treatment(lift, path) == CARRY:
            last[path] = worlds[-1].values[path]
    for path in first:
        if treatment(lift, path) == CARRY:
            first[path] = worlds[0].first[path]
    outer.after(last, first)
    outer.counts = worlds[0].counts
    all_sown(outer, by_number)
    return carry, stack([more for _, more in sorted(zip(rounds, stacked, strict=True), key=lambda pair: pair[0])])


def idle(lift: Lift, scope: Plain, start: Any, roots: Any, iteration: Iteration) -> Any:
    """A loop of no iterations: there is what the first one would make, and it counts the keys that it would draw."""
    outer = scope.world
    values, pending = (sliced(lift, held, scope.path, 0) for held in (outer.values, outer.pending))
    trial = outer.within(dict(values), pending, roots(0))
    carry, _ = iteration(0, trial, start)
    known = {**trial.first, **values}
    before, after = types((start, known)), types((carry, {path: trial.values[path] for path in known}))
    if [kind[:2] for kind in before] != [kind[:2] for kind in after]:
        raise IllegalError("JAX promotes what a loop of no iterations carries")
    if before != after:
        outer.loose.append("JAX decides what becomes of weak types")
    outer.after(trial.first, trial.first)
    outer.counts = trial.counts
    return start


def types(tree: Any) -> list[Any]:
    """The types of all leaves, weak or not."""
    return [(kind.shape, kind.dtype, kind.weak_type) for kind in map(jax.typeof, jax.tree.leaves(tree))]


def again(world: World, old: Any, new: Any) -> Any:
    """What the next iteration gets of a carry: it keeps its types, weak ones too, unless JAX must promote it."""
    if types(old) == types(new):
        return new
    world.loose.append("JAX decides what becomes of weak types")
    if len(world.first) > 1 and [kind[1] for kind in types(old)] != [kind[1] for kind in types(new)]:
        raise IllegalError("JAX promotes a carry before the loop: what is made from it has another type")
    return jax.tree.map(again_leaf, old, new)


def again_leaf(old: Any, new: Any) -> Any:
    one, other = jax.typeof(old), jax.typeof(new)
    promoted = one.weak_type and jnp.promote_types(one.dtype, other.dtype) == other.dtype
    if one.shape != other.shape or not (one.dtype == other.dtype or promoted):
        raise IllegalError(f"the type of a carry changes: {one}, {other}")
    if one.dtype != other.dtype or one.weak_type == other.weak_type:
        return new
    return jax.lax.convert_element_type_p.bind(new, new_dtype=one.dtype, weak_type=one.weak_type, sharding=None)


def _scan(statement: Call, scope: Plain, body: Any, x: Any, y: Any = 0) -> Any:
    lift, roots = statement.lift, scope.world.roots
    ys = spread(y, lift.size)

    def iteration(i: int, world: World, carry: Any) -> tuple[Any, Any]:
        result, more = body(0, world, x=carry, y=ys[i])
        return like(result, carry), more

    order = range(lift.size)[:: -1 if "reverse" in lift.flags else 1]
    carry, stacked = loop(lift, scope, x, order, lambda i: split_roots(lift, roots, i), iteration)
    return jnp.add(carry, jnp.sum(stacked, 0))


def _counted(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    """`fori_loop` and `while_loop`."""
    lift, outer = statement.lift, scope.world
    split = dict(lift.splits)

    def roots(i: int) -> dict[str, Any]:
        return {name: jax.random.fold_in(root, 2 * i) if split[name] else root for name, root in outer.roots.items()}

    def iteration(i: int, world: World, value: Any) -> tuple[Any, Any]:
        return like(body(0, world, x=value, y=jnp.int32(i))[0], value), 0

    return loop(lift, scope, x, range(lift.size), roots, iteration)[0]


def _one(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    """A transformation that changes nothing is a call."""
    return body(0, scope.world, x=x)[0]


def _ruled(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    """A rule that gives what there is without it changes nothing."""
    x = floating(x)
    return like(body(0, scope.world, x=x)[0], x)


def _map_variables(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    lift, outer = statement.lift, scope.world

    def seen(values: Mapping[Path, Any]) -> dict[Path, Any]:
        return {
            path: negated(value) if treatment(lift, path) != "unlifted" else value for path, value in values.items()
        }

    world = outer.within(seen(outer.values), seen(outer.pending), outer.roots)
    result = body(0, world, x=x)[0]
    outer.after(seen(written(world)), seen(world.first))
    outer.counts = world.counts
    for path, values in world.sown.items():
        outer.sow(path, values)
    return result


def _branches(statement: Call, scope: Plain, body: Any, pred: Any, x: Any) -> Any:
    """All branches make what they make, the first of those that make it; the chosen one writes."""
    outer, lift = scope.world, statement.lift
    count = len(statement.bodies)
    chosen = (0 if pred else 1) if lift.kind == "cond" else min(max(int(pred), 0), count - 1)
    made: dict[Path, Any] = {}
    worlds, results = [], []
    for index in range(count):
        world = outer.within(dict(outer.values), {**made, **outer.pending}, outer.roots)
        results.append(like(body(index, world, x=x)[0], x))
        for path, value in world.first.items():
            if path in made and types(made[path]) != types(value):
                raise IllegalError(f"{path} has two types")
            made.setdefault(path, value)
        worlds.append(world)
    ran = worlds[chosen]
    for path in {path for world in worlds for path in world.changed}:
        kinds = [types(world.values.get(path, made.get(path))) for world in worlds]
        if any([kind[:2] for kind in kind_] != [kind[:2] for kind in kinds[0]] for kind_ in kinds):
            raise IllegalError(f"{path} has two types after branches")
        if any(kind_ != kinds[0] for kind_ in kinds):
            outer.loose.append("branches")
    outer.after({**made, **written(ran)}, made)
    after_branches(outer, worlds, chosen)
    return results[chosen]


def after_branches(outer: World, worlds: list[World], chosen: int) -> None:
    """Captured values, which are zeros of the branches that do not run, and the counts of the longest."""
    if any(world.sown for world in worlds):
        outer.loose.append("zeros where nothing was sown")
    for index, world in enumerate(worlds):
        for path, values in world.sown.items():
            outer.sow(path, values if index == chosen else jax.tree.map(jnp.zeros_like, values))
        for place, counted in world.counts.items():
            outer.counts[place] = max(counted, outer.counts.get(place, 0))


def _differentiated(scope: Plain, body: Body | Any, x: Any, derive: Callable[..., Any]) -> Any:
    """Runs a body under a derivative: what it makes is made before, and is a constant or what one differentiates by."""
    outer = scope.world
    trial = outer.within(dict(outer.values), dict(outer.pending), outer.roots)
    body(0, trial, x=x)
    here = {**outer.values, **trial.first}
    by = {
        path: value
        for path, value in here.items()
        if path[0] == "params" and path[1 : len(scope.path) + 1] == scope.path
    }

    def pure(params: dict[Path, Any], x: Any) -> Any:
        values = {path: params.get(path, value) for path, value in outer.values.items()}
        pending = {**outer.pending, **trial.first, **{p: v for p, v in params.items() if p not in values}}
        world = outer.within(values, pending, outer.roots)
        result = body(0, world, x=x)[0]
        return result, (written(world), world.sown)

    result, (values, sown) = derive(pure, by, x)
    outer.after({path: by.get(path, value) for path, value in values.items()}, trial.first)
    outer.counts = trial.counts
    for path, captured in sown.items():
        outer.sow(path, captured)
    return result


def _vjp(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    def derive(pure: Any, params: Any, x: Any) -> Any:
        y, pullback, more = jax.vjp(lambda params, x: shaped(pure, params, x, x), params, x, has_aux=True)
        variables, dx = pullback(jnp.ones_like(y))
        return y + dx + total(variables), more

    return _differentiated(scope, body, floating(x), derive)


def _grad(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    def derive(pure: Any, params: Any, x: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            return shaped(pure, params, x, x.sum())

        (y, more), (variables, dx) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)
        return y + dx + total(variables), more

    return _differentiated(scope, body, floating(x), derive)


def _jvp(statement: Call, scope: Plain, body: Any, x: Any) -> Any:
    def derive(pure: Any, params: Any, x: Any) -> Any:
        y, dy, more = jax.jvp(lambda x: shaped(pure, params, x, x), (x,), (jnp.ones_like(x),), has_aux=True)
        return y + dy, more

    return _differentiated(scope, body, floating(x), derive)


def shaped(pure: Any, params: Any, x: Any, target: Any) -> Any:
    """A function whose result has a type that can be differentiated."""
    result, more = pure(params, x)
    return like(result, target), more


KINDS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("call", "remat", "jit", "named_call", "pack"), _one),
    **dict.fromkeys(("custom_vjp", "custom_jvp", "custom_vmap"), _ruled),
    **dict.fromkeys(("cond", "switch"), _branches),
    **dict.fromkeys(("fori_loop", "while_loop"), _counted),
    "vmap": _vmap,
    "scan": _scan,
    "map_variables": _map_variables,
    "vjp": _vjp,
    "grad": _grad,
    "jvp": _jvp,
}


def run_plain(
    body: Body, variables: Mapping[Path, Any], rngs: Mapping[str, Any], mutable: Iterable[str], x: Any
) -> Any:
    """A run of a whole program: its result, the variables afterwards in one flat dict, and the world."""
    world = World(dict(variables), rngs, frozenset(mutable))
    result, _ = run(body, Plain(world), {"x": x}, call)
    return result, {**world.values, **world.sown}, world

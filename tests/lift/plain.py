"""What the laws compare with: a scope in plain Python, and each transformation as a loop over it.

Nothing here is lifted, traced or shared with liftcore. `World` is the state of one run, in flat dicts; `Plain` has the
methods of `Scope` that the programs of these tests use; `elements` and `iterations` slice a world, run a function on
each slice and put the results back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Path = tuple[str, ...]
Body = Callable[[Any, Any], Any]

CARRY = "carry"
"""Instead of an axis: the value goes from one iteration to the next."""

PART = "part"
"""Instead of an axis: each element has a part of the value, along its axis 0."""

SAME = "same"
"""Instead of an axis: all elements see the value from before, and write the same."""


@dataclasses.dataclass
class World:
    """The state of one run.

    Attributes:
        values: from `(collection, *modules, name)` to a value.
        root: from the name of a stream to the root key that it draws from here.
        given: the names of the streams that the run was given.
        mutable: whether a collection may be written.
        initializing: whether the run is an `init`.
        taken: the collections that the transformation around gives back; None where there is none.
        counts: how many keys were drawn, by path, stream and where counting began.
        pending: what earlier iterations created: it exists again once this iteration has created it too.
        starts: of a stream that began anew, how much of a path its keys do not depend on.
        changed: what was created or written.
        sown: captured values that the transformation around does not list.
        first: the first value of what was created.
        seen: from a path and what is made there to what the body has of it.
    """

    values: dict[Path, Any]
    root: Callable[[str], Any]
    given: frozenset[str]
    mutable: Callable[[str], bool]
    initializing: bool = False
    taken: frozenset[str] | None = None
    counts: dict[tuple[Path, str, object], int] = dataclasses.field(default_factory=dict)
    pending: dict[Path, Any] = dataclasses.field(default_factory=dict)
    starts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    changed: dict[Path, None] = dataclasses.field(default_factory=dict)
    sown: list[tuple[Path, str, str, Any]] = dataclasses.field(default_factory=list)
    first: dict[Path, Any] = dataclasses.field(default_factory=dict)
    seen: Callable[[Path, Any], Any] = lambda path, made: made

    def put(self, path: Path, value: Any) -> None:
        assert self.mutable(path[0]), path
        assert self.taken is None or path[0] in self.taken, path
        self.values[path] = value
        self.changed[path] = None

    def inside(self, values: dict[Path, Any], root: Callable[[str], Any], taken: Iterable[str]) -> World:
        """The world of one element or iteration."""
        here = World(values, root, self.given, self.mutable, self.initializing, frozenset(taken))
        here.counts, here.starts, here.seen = dict(self.counts), self.starts, self.seen
        return here

    @contextlib.contextmanager
    def anew(self, roots: Mapping[str, Any], start: int) -> Iterator[None]:
        """Within it, some streams begin anew, from roots of their own."""
        before = self.root, self.given, self.starts, self.counts
        outer, given = self.root, self.given | roots.keys()
        self.given, self.starts = given, {**self.starts, **dict.fromkeys(roots, start)}
        self.root = lambda name: roots[name] if name in roots else roots["params"] if fallen(name) else outer(name)
        self.counts = {place: count for place, count in self.counts.items() if place[1] not in roots}

        def fallen(name: str) -> bool:
            return name not in given and "params" in roots

        yield
        kept = {place: count for place, count in before[3].items() if place[1] in roots}
        counts = {place: count for place, count in self.counts.items() if place[1] not in roots} | kept
        self.root, self.given, self.starts, self.counts = *before[:3], counts

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives collections other names."""

        def renamed(paths: Mapping[Path, Any]) -> dict[Path, Any]:
            return {(names.get(path[0], path[0]), *path[1:]): value for path, value in paths.items()}

        self.values, self.pending = renamed(self.values), renamed(self.pending)
        self.changed, self.first = renamed(self.changed), renamed(self.first)
        mutable, taken = self.mutable, self.taken
        self.mutable = lambda collection: mutable(names.get(collection, collection))
        self.taken = None if taken is None else frozenset(names.get(name, name) for name in taken)

    def copy(self) -> World:
        """The same state, in dicts of its own."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        held = ("values", "counts", "pending", "changed", "sown", "first")
        return World(**{name: value.copy() if name in held else value for name, value in fields.items()})


@dataclasses.dataclass
class Held:
    """A variable of a plain scope."""

    world: World
    path: Path

    @property
    def value(self) -> Any:
        return self.world.values[self.path]

    @value.setter
    def value(self, value: Any) -> None:
        self.world.put(self.path, value)


class Plain:
    """A scope without liftcore."""

    def __init__(self, world: World, path: Path = (), names: Iterable[str] = (), origin: object = None) -> None:
        self.world, self.path, self.names = world, path, set(names)
        self.origin = origin  # where it began to count its draws

    def push(self, name: str | None = None, prefix: str = "") -> Plain:
        if name is None:
            name = next(f"{prefix}{i}" for i in range(99) if f"{prefix}{i}" not in self.names)
        assert name not in self.names
        self.names.add(name)
        return self.below(name)

    def rewound(self, rewind_rngs: bool = False) -> Plain:
        return Plain(self.world, self.path, origin=object() if rewind_rngs else self.origin)

    def below(self, name: str) -> Plain:
        return Plain(self.world, (*self.path, name), origin=self.origin)

    def child(self, fn: Callable[..., Any], name: str | None = None, prefix: str = "") -> Callable[..., Any]:
        below = self.push(name, prefix)
        return lambda *args: fn(below.rewound(), *args)

    def make_rng(self, name: str = "params") -> Any:
        counted = name if name in self.world.given else "params"
        place = self.path, counted, self.origin
        count = self.world.counts[place] = self.world.counts.get(place, 0) + 1
        path = self.path[self.world.starts.get(counted, 0) :]
        text = b"".join(b"\0" + item.encode() for item in path) + b"\0" + count.to_bytes(1 + (count > 255), "big")
        word = int.from_bytes(hashlib.sha1(text).digest()[:4], "big")
        return jax.random.fold_in(self.world.root(name), jnp.uint32(word))

    def variable(self, collection: str, name: str, init_fn: Callable[..., Any], *args: Any) -> Held:
        self.names.add(name)
        path = (collection, *self.path, name)
        if path not in self.world.values:
            made = self.world.seen(path, jax.tree.map(jnp.asarray, init_fn(*args)))
            self.world.put(path, self.world.pending.get(path, made))
            self.world.first[path] = self.world.values[path]
        return Held(self.world, path)

    def param(self, name: str, init_fn: Callable[..., Any], *args: Any) -> Any:
        return self.variable("params", name, lambda: init_fn(self.make_rng(), *args)).value

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        return self.world.values.get((collection, *self.path, name), default)

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        self.world.put((collection, *self.path, name), value)

    def has_variable(self, collection: str, name: str) -> bool:
        return (collection, *self.path, name) in self.world.values

    def is_initializing(self) -> bool:
        return self.world.initializing

    def is_mutable_collection(self, collection: str) -> bool:
        return self.world.mutable(collection) and (self.world.taken is None or collection in self.world.taken)

    def sow(self, collection: str, name: str, value: Any) -> None:
        if not self.world.mutable(collection):
            return
        if self.world.taken is not None and collection not in self.world.taken:
            self.world.sown.append((self.path, collection, name, value))
            return
        path = (collection, *self.path, name)
        self.world.put(path, (*self.world.values.get(path, ()), value))


class Rule(NamedTuple):
    """How a transformation treats state.

    Attributes:
        axes: for each collection its axis, None (shared), `CARRY`, `PART` or `SAME`; what is not listed is not lifted.
        split: for each stream whether it is split.
        size: how many elements or iterations there are.
        reverse: whether the last slice comes first.
        folds: whether the keys of a split stream are folded, as in loops that do not know how often they run.
    """

    axes: Mapping[str, Any]
    split: Mapping[str, bool]
    size: int
    reverse: bool = False
    folds: bool = False

    def root(self, outer: Callable[[str], Any], index: int) -> Callable[[str], Any]:
        def find(name: str) -> Any:
            rule = name if name in self.split else "params"
            if self.split[rule] and self.folds:
                return jax.random.fold_in(outer(name), 2 * index)
            return jax.random.split(outer(name), self.size)[index] if self.split[rule] else outer(name)

        return find

    def run(self, scope: Plain, one: Callable[[Plain, int], Any]) -> list[Any]:
        """Calls `one(scope, index)` for each slice, in order, and puts what it did to its scope back."""
        outer = scope.world
        carried: dict[Path, Any] = {}
        worlds: dict[int, World] = {}
        results: dict[int, Any] = {}
        names = set(scope.names)
        for index in reversed(range(self.size)) if self.reverse else range(self.size):
            values = self._slices(outer.values, index, scope.path)
            here = outer.inside(values, self.root(outer.root, index), self.axes)
            here.pending = self._slices(outer.pending, index, scope.path)
            for path, value in carried.items():
                (here.values if path in values else here.pending)[path] = value
            inner = Plain(here, scope.path, names, scope.origin)
            results[index] = one(inner, index)
            carried |= {path: here.values[path] for path in here.changed if self.axes[path[0]] in (None, CARRY)}
            worlds[index], scope.names = here, inner.names
        firsts = worlds[self.size - 1 if self.reverse else 0].first
        self._put_back(scope, [worlds[index] for index in range(self.size)], carried, firsts)
        return [results[index] for index in range(self.size)]

    def _slices(self, values: Mapping[Path, Any], index: int, below: Path) -> dict[Path, Any]:
        slices = {}
        for path, value in values.items():
            if path[0] in self.axes and path[1 : 1 + len(below)] == below:
                slices[path] = jax.tree.map(self._slicing(self.axes[path[0]], index), value)
        return slices

    def _slicing(self, axis: Any, index: int) -> Callable[[Any], Any]:
        if axis == PART:
            return lambda leaf: jnp.split(leaf, self.size)[index]
        return (lambda leaf: jnp.take(leaf, index, axis)) if isinstance(axis, int) else lambda leaf: leaf

    def _put_back(self, scope: Plain, worlds: list[World], carried: dict[Path, Any], firsts: dict[Path, Any]) -> None:
        for path in worlds[0].changed:
            values = [carried.get(path, world.values[path]) for world in worlds]
            scope.world.put(path, _joined(values, self.axes[path[0]]))
        for path, value in firsts.items():
            axis = self.axes[path[0]]
            whole = axis in (None, CARRY)
            scope.world.first[path] = value if whole else _joined([world.first[path] for world in worlds], axis)
        scope.world.counts = worlds[0].counts
        for place, (path, collection, name, _) in enumerate(worlds[0].sown):
            values = _joined([world.sown[place][3] for world in worlds], 0)
            Plain(scope.world, path).sow(collection, name, values)


def again(scope: Plain, body: Body, x: Any) -> tuple[Any, Callable[[dict[Path, Any], Any], Any], dict[Path, Any]]:
    """Runs a body, and makes a pure function of its parameters and its argument out of it.

    Returns:
        What it gave; the function, which finds all that the body created; and the parameters.
    """
    before, names = scope.world.copy(), set(scope.names)
    y = body(scope, x)
    made = {path: value for path, value in scope.world.first.items() if path not in before.first}

    def run(params: dict[Path, Any], x: Any) -> Any:
        here = before.copy()
        here.pending |= made
        for path, value in params.items():
            (here.values if path in before.values else here.pending)[path] = value
        return body(Plain(here, scope.path, names, scope.origin), x)

    def is_param(path: Path) -> bool:
        return path[0] == "params" and path[1 : 1 + len(scope.path)] == scope.path

    return y, run, {path: value for path, value in {**before.values, **made}.items() if is_param(path)}


def opaque(scope: Plain, body: Body, x: Any) -> Any:
    """Runs a body so that gradients flow through its parameters and its argument only."""
    world = scope.world
    before = dict(world.values)
    for path, value in before.items():
        if path[0] != "params":
            world.values[path] = jax.tree.map(jax.lax.stop_gradient, value)
    seen, sown = dict(world.values), len(world.sown)
    y = body(scope, x)
    for path, value in world.values.items():
        if path in seen and value is seen[path]:
            world.values[path] = before[path]
        else:
            world.values[path] = jax.tree.map(jax.lax.stop_gradient, value)
    world.sown[sown:] = [(*rest, jax.tree.map(jax.lax.stop_gradient, value)) for *rest, value in world.sown[sown:]]
    return y


def _joined(trees: list[Any], axis: Any) -> Any:
    if axis == PART:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis), *trees) if isinstance(axis, int) else trees[0]


def flat(variables: Mapping[str, Any], path: Path = ()) -> dict[Path, Any]:
    """`{(collection, *modules, name): value}` of nested dicts."""
    leaves: dict[Path, Any] = {}
    for name, value in variables.items():
        leaves |= flat(value, (*path, name)) if isinstance(value, Mapping) else {(*path, name): value}
    return leaves


def nested(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    variables: dict[str, Any] = {}
    for path, value in leaves.items():
        inner = variables
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return variables


def init(fn: Body) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """`liftcore.init`, plainly."""

    def initialized(rngs: Mapping[str, Any], *args: Any) -> tuple[Any, dict[str, Any]]:
        return _run(fn, {}, rngs, args, lambda collection: True, initializing=True)

    return initialized


def apply(fn: Body, mutable: Iterable[str] = ()) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """`liftcore.apply`, plainly; it always returns what was mutated too."""

    def applied(variables: Mapping[str, Any], *args: Any, rngs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return _run(fn, variables, rngs, args, frozenset(mutable).__contains__)

    return applied


def _run(
    fn: Body,
    variables: Mapping[str, Any],
    rngs: Mapping[str, Any],
    args: tuple[Any, ...],
    mutable: Callable[[str], bool],
    initializing: bool = False,
) -> tuple[Any, dict[str, Any]]:
    def root(name: str) -> Any:
        return rngs.get(name, rngs.get("params"))

    world = World(flat(variables), root, frozenset(rngs), mutable, initializing)
    result = fn(Plain(world), *args)
    return result, nested({path: value for path, value in world.values.items() if mutable(path[0])})

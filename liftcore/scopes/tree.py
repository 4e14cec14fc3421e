"""The state that scopes share: a `Node` and a `Counter` for each path, a `Tree` for each `init`, `apply` or lift."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import rng
from .._compat import trace_state
from ..filters import Everything, Nothing, decide
from ..typing import Path, Predicate
from .lifts import Lift

if TYPE_CHECKING:
    from .observers import BodyObserver
    from .scope import Scope

__all__ = ["ANYBODY", "Counter", "Names", "Node", "Sown", "Surroundings", "Tree", "plain_data"]

ANYBODY = 0
"""The thread of a tree that no thread owns; no thread has this identifier."""

_LOCK = threading.Lock()


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """The variables that all scopes at one path of a tree share.

    Attributes:
        children: the nodes below, by name.
        dicts: the variables of each collection that was used.
        owned: the collections whose dict is a copy that may be written.
    """

    children: dict[str, Node] = field(default_factory=dict)
    dicts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    owned: tuple[str, ...] = ()

    def child(self, name: str) -> Node:
        """Return a child node; create it if there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Node()
        return found

    def forget(self, collection: str | None = None) -> None:
        """Drop the dicts here and below, or those of one collection."""
        left = [self]
        for node in left:
            if collection is None:
                node.dicts.clear()
                node.owned = ()
            else:
                node.dicts.pop(collection, None)
                node.owned = tuple(name for name in node.owned if name != collection)
            left.extend(node.children.values())


class Counter:
    """Counts the keys that were drawn at one path of a tree. A scope that is rewound begins with a counter of its own.

    Attributes:
        children: the counters below, by name.
        counts: how many keys were drawn from each stream.
        began: `counts` when the counter was created. A counter inside a lift is a copy of one outside, and cannot read
            that later: another thread may have drawn in the meantime.
        origin: an object that identifies where counting began: the counters below and the copies in lifts have the
            same, a counter after a rewind has another.
    """

    __slots__ = ("began", "children", "counts", "origin")

    def __init__(self, origin: object | None = None, counts: dict[str, int] | None = None) -> None:
        self.children: dict[str, Counter] = {}
        self.counts = {} if counts is None else counts
        self.began: Mapping[str, int] = dict(self.counts)
        self.origin = object() if origin is None else origin

    def child(self, name: str) -> Counter:
        """Return a child counter; create it if there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Counter(self.origin)
        return found

    def copy(self, restarted: Container[str] = ()) -> Counter:
        """Return a copy of this counter and those below; the counts of `restarted` streams begin anew.

        Another thread may draw in the meantime, so each dict is copied in one step before it is iterated.
        """
        counts = {name: count for name, count in dict(self.counts).items() if name not in restarted}
        copy = Counter(self.origin, counts)
        copy.children = {name: child.copy(restarted) for name, child in dict(self.children).items()}
        return copy

    def drawn(self, path: Path = ()) -> Iterator[tuple[Path, str, int]]:
        """Yield how many keys were drawn here and below since the counters were created.

        Args:
            path: the path of this counter.
        """
        for name, count in self.counts.items():
            if count > self.began.get(name, 0):
                yield path, name, count - self.began.get(name, 0)
        for name, child in self.children.items():
            yield from child.drawn((*path, name))


class Names(NamedTuple):
    """The names of one scope.

    Attributes:
        taken: the names that must not be taken again, each with the collection of its variable, or None for a scope.
        numbers: how many automatic names of each prefix were given out.
        owners: the names that adopted values use here and below, as `(*modules, name, collection)`, with the owner of
            each.
    """

    taken: frozenset[tuple[str, str | None]] = frozenset()
    numbers: tuple[tuple[str, int], ...] = ()
    owners: tuple[tuple[tuple[Any, ...], Any], ...] = ()


class Sown(NamedTuple):
    """A captured value that no group of a lift takes; it is sown again in the scope outside the lift."""

    path: Path
    collection: str
    name: str
    init_fn: Callable[[], Any]
    reduce_fn: Callable[[Any, Any], Any]


class Surroundings(NamedTuple):
    """All that a lifted body can see of the tree outside, except its variables; equal ones give equal traces.

    Attributes:
        kind: the class of the scopes.
        mutable: the filter of the mutable variables.
        initializing: the value that `is_initializing` returns.
        changes: whether anything may change at all, and whether variables may be created.
        rngs: the names of the streams.
        rules: the filters of the names that draw from another stream if they were not given.
        given: the names of the streams that `init` or `apply` was given.
        created: how the body sees variables that are created.
        unlifted: the paths of the variables that the surrounding lifts did not pass in.
        empty: the collections that were given empty.
    """

    kind: type
    mutable: Predicate
    initializing: bool
    changes: tuple[bool, bool]
    rngs: tuple[str, ...]
    rules: tuple[Predicate, ...]
    given: tuple[str, ...]
    created: tuple[Any, ...]
    unlifted: tuple[Path, ...]
    empty: tuple[str, ...]


def plain_data(path: Path, name: str, count: int, origin: object) -> Any:
    """Return the fold-in data of a draw from its path and count; it does not matter where counting began."""
    return rng.fold_in_data((*path, count))


@dataclass(slots=True, eq=False, repr=False)
class Tree:
    """The state that all scopes of one `init`, `apply` or lift share.

    Paths begin at the root, except those in `created`, `written` and `unsplit`, which begin at `base`.

    Attributes:
        variables: the variables by collection.
        rngs: the root keys of the streams.
        mutable: the filter of the variables that may be written.
        base: the path of the lift.
        root: the node of the outermost scope.
        counter: counts the draws.
        fallbacks: the filters of names that were not given as streams, with the keys that these draw from.
        initializing: what `is_initializing` returns.
        lift: the lift whose body the scopes belong to.
        outer: the scope outside that lift.
        tags: whether values created here are tagged, so that a split can recognize them.
        unlifted: the variables that the surrounding lifts did not pass in, relative to the lifted scope.
        fold_in_data: makes the fold-in data of a draw from its path, stream, count and `Counter.origin`.
        given: the names of the streams that `init` or `apply` was given, lifted here or not.
        watch: is told what a body does.
        redrawn: variables that exist, but that an equal body created before: this body counts their draws like that.
        made_again: those of them that this body has declared; see `must_redraw`.
        casts: the dtypes for the leaves of variables that a surrounding loop carries, if they begin as weakly typed
            numbers and become something else; None keeps the initial dtype.
        sight: maps the path and the value of a created variable to the value that the body sees; outside, the variable
            keeps the value as created.
        trace: the trace in which the tree was made.
        alive: whether the `init`, `apply` or lift is still running.
        created: the variables that scopes here created, with their first values.
        written: those that they wrote.
        sown: captured values.
        unsplit: variables that a lift which does not hoist created.
        owners: for each path, the names that adopted values use, with the owner of each.
        lifts: the running lifts by thread: their names, and functions that return the scopes at their entry.
        thread: the thread that owns the tree, which runs the `init`, `apply` or lift. No thread owns a bound tree,
            except while a method of a module runs (`claim`).
        writer: without modules, the first thread that changed a scope.
        reads: True in a tree for another thread, which may only read.
        creates: whether scopes may create variables.
        writes: whether they may change at all.
    """

    variables: dict[str, Any]
    rngs: Mapping[str, Any]
    mutable: Predicate
    _: KW_ONLY
    base: Path = ()
    root: Node = field(default_factory=Node)
    counter: Counter = field(default_factory=Counter)
    fallbacks: Sequence[tuple[Predicate, Any]] = ()
    initializing: bool = False
    lift: Lift | None = None
    outer: Scope | None = None
    tags: bool = False
    unlifted: tuple[Path, ...] = ()
    fold_in_data: Callable[[Path, str, int, object], Any] = plain_data
    given: tuple[str, ...] = ()
    watch: BodyObserver | None = None
    redrawn: frozenset[Path] = frozenset()
    made_again: set[Path] = field(default_factory=set)
    casts: Mapping[Path, tuple[Any, ...]] = field(default_factory=dict)
    sight: Callable[[Path, Any], Any] | None = None
    trace: Any = field(default_factory=trace_state)
    alive: bool = True
    created: dict[Path, Any] = field(default_factory=dict)
    written: dict[Path, None] = field(default_factory=dict)
    sown: list[tuple[Sown, Any]] = field(default_factory=list)
    unsplit: set[Path] = field(default_factory=set)
    owners: dict[Path, dict[tuple[str, str | None], Any]] = field(default_factory=dict)
    lifts: dict[int, list[tuple[str, Callable[[], Sequence[Scope]]]]] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)
    writer: int = ANYBODY
    reads: bool = False
    creates: bool = True
    writes: bool = False
    _above: str | None = None
    _fallen_back: dict[str, tuple[str, Any] | None] = field(default_factory=dict)
    _writable: dict[str, bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writes = type(self.mutable) is not Nothing
        if self.outer is None:
            self.given = tuple(self.rngs)
            self.fallbacks = [(Everything(), self.rngs[rng.DEFAULT])] if rng.DEFAULT in self.rngs else []
        else:
            outer = self.outer.tree
            self.given, self.sight, self.reads, self.creates = outer.given, outer.sight, outer.reads, outer.creates
            self.writes |= outer.writes and self.lift is not None and self.lift.captures is not None

    def end(self) -> None:
        """End all scopes of the tree and drop their contents: values of a trace must not outlive it."""
        self.alive = False
        self.variables, self.rngs, self.fallbacks, self.fold_in_data = {}, {}, [], plain_data
        self.created, self.sown, self._fallen_back = {}, [], {}
        self.root.forget()

    @property
    def running_lift(self) -> str | None:
        """The name of the innermost lift of the tree that runs in this thread."""
        held = self.lifts.get(threading.get_ident()) if self.lifts else None
        return held[-1][0] if held else None

    def entered(self, path: Path) -> Scope | None:
        """Return the scope at the entry of the innermost running lift that holds a path, or None."""
        held = self.lifts.get(threading.get_ident()) if self.lifts else None
        roots = held[-1][1]() if held else ()
        return next((root for root in roots if _is_around(root, self, path)), None)

    def claim(self) -> bool:
        """Give the tree to this thread, until `thread` is ANYBODY again. Return False if a thread already owns it."""
        with _LOCK:
            free = self.thread == ANYBODY
            if free:
                self.thread = threading.get_ident()
        return free

    def may_change(self) -> bool:
        """Whether this thread may write, create and draw: no other thread owns the tree, or has changed it."""
        here = threading.get_ident()
        if self.reads or self.thread != ANYBODY:
            return not self.reads and self.thread == here
        with _LOCK:
            if self.writer != here and not any(thread.ident == self.writer for thread in threading.enumerate()):
                self.writer = here
        return self.writer == here

    def reader(self) -> Tree:
        """Return a tree of the same variables that another thread may read but not change."""
        tree = copy.copy(self)
        tree.thread, tree.reads = threading.get_ident(), True
        tree.root, tree.counter = Node(), Counter()
        tree.variables, tree.lifts, tree.created, tree.written = dict(self.variables), {}, {}, {}
        tree.sown, tree.unsplit, tree.owners, tree.made_again = [], set(), {}, set(self.made_again)
        return tree

    def writable(self, collection: str) -> bool | None:
        """Whether all of a collection may be written; None if that depends on the variable."""
        if collection not in self._writable:
            self._writable[collection] = decide(self.mutable, (collection,))
        return self._writable[collection]

    def stream(self, name: str) -> tuple[str, Any] | None:
        """Return the name under which draws from a stream are counted, and the root key that they come from."""
        if name in self.rngs:
            return name, self.rngs[name]
        if name not in self._fallen_back:
            fallbacks = () if name in self.given else self.fallbacks
            found = ((rng.DEFAULT, root) for rule, root in fallbacks if rule((name,), None))
            self._fallen_back[name] = next(found, None)
        return self._fallen_back[name]

    def must_redraw(self, path: Path) -> bool:
        """Whether a variable exists, but an equal body created it, and this one has not declared it yet.

        Code that reads the variable finds it. Code that would create it must draw the same keys again, once.
        """
        return path in self.redrawn and path not in self.made_again

    def exists(self, path: Path, held: Any) -> bool:
        """Whether a variable, or anything below a module, existed before an equal body created it.

        Args:
            path: the path of the variable or module.
            held: its value, or the dict of the module.
        """
        if not self.redrawn or not isinstance(held, Mapping):
            return not self.must_redraw(path)
        return any(self.exists((*path, name), below) for name, below in held.items())

    def surroundings(self, kind: type, at: Path) -> Surroundings:
        """Return all that a lifted body can see of this tree, except its variables.

        Args:
            kind: the class of the scopes.
            at: the path of the outermost scope of the body.
        """
        below = len(at) + 1
        redrawn = [(path[0], *path[below:]) for path in self.redrawn - self.made_again if path[1:below] == at]
        return Surroundings(
            kind,
            self.mutable,
            self.initializing,
            (self.writes, self.creates),
            tuple(self.rngs),
            tuple([rule for rule, _ in self.fallbacks]),
            self.given,
            (frozenset(redrawn), tuple(self.casts.items()), self.sight),
            self.unlifted,
            tuple([name for name, found in self.outermost().variables.items() if not found]),
        )

    @property
    def above(self) -> str:
        """The path of the lift around the tree, for error messages: `/encoder/vmap(block)`."""
        if self._above is None:
            above = "" if self.outer is None else self.outer.path_text.rstrip("/")
            self._above = f"{above}/{self.lift.name}" if self.lift is not None and self.lift.shown else above
        return self._above

    def captures(self, path: Path, value: Any) -> bool:
        """Whether a sown value leaves the lift in its last group, because no other group takes it all the way out."""
        tree = self
        captures = None if tree.lift is None else tree.lift.captures
        if tree.lift is None or (tree.mutable(path, value) and not (captures and captures.all)):
            return False
        while tree.outer is not None and tree.lift is not None and tree.lift.captures:
            tree = tree.outer.tree
        return tree.mutable(path, value)

    def without_stream(self, name: str) -> Tree | None:
        """Return the tree inside the outermost lift that does not pass a stream in; None if there is no such lift.

        The lifts further in cannot pass in what does not reach them, whatever their filters are.
        """
        tree = self
        while tree.outer is not None:
            outer = tree.outer.tree
            if outer.stream(name) is not None:
                return tree
            tree = outer
        return None

    def without_output(self, path: Path, value: Any) -> Tree | None:
        """Return the tree inside the outermost lift that does not pass a changed variable out; None if all pass it out.

        A lift may also make a variable immutable that it passes out (see `scope_fn` of `liftcore.pack`).
        """
        tree, found = self, None
        while tree.outer is not None and tree.lift is not None:
            outer = tree.outer.tree
            taken = tree.lift.taken(path, value)
            if not taken or (outer.mutable(path, value) and not tree.mutable(path, value)):
                found = tree
            tree = outer
        return found

    def outermost(self) -> Tree:
        """Return the tree that `init` or `apply` created, outside all lifts."""
        tree = self
        while tree.outer is not None:
            tree = tree.outer.tree
        return tree


def _is_around(root: Scope, outside: Tree, path: Path) -> bool:
    """Whether a scope at the entry of a lift stands for one of the tree outside, at or above a path."""
    outer = root.tree.outer
    return outer is not None and outer.tree is outside and path[: len(root.path)] == root.path

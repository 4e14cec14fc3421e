"""What scopes share: a `Node` for all scopes at one path, a `Tree` for all scopes of one `init`, `apply` or lift."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import rng
from .._compat import trace_state
from ..filters import Everything, Nothing, matches_collection
from ..typing import Path, Predicate
from .lifts import Lift

if TYPE_CHECKING:
    from .observers import BodyObserver
    from .scope import Scope

__all__ = ["Lift", "Names", "Node", "Sown", "Surroundings", "Tree", "plain_data"]

_ANYBODY = 0
"""Stands for the thread of a tree that no thread has to itself; no thread has that number."""

_LOCK = threading.Lock()


class Node:
    """What all scopes at one path of a tree share: their dicts, and how many keys were drawn there.

    Attributes:
        children: the nodes below, by name.
        counts: how many keys were drawn of each stream, since it was last rewound.
        rewinds: for each time that this node was rewound, the streams that went on as they were.
        began: `counts` and `rewinds` when the node was made. The node outside of a lift, which it is a copy of, does
            not tell them: another thread may draw there meanwhile.
        dicts: the variables of each collection that was asked for.
        owned: the collections of which the dict is a copy that may be written.
    """

    __slots__ = ("began", "children", "counts", "dicts", "owned", "rewinds")

    def __init__(self, counts: dict[str, int] | None = None, rewinds: tuple[frozenset[str], ...] = ()) -> None:
        self.children: dict[str, Node] = {}
        self.counts = {} if counts is None else counts
        self.rewinds = rewinds
        self.began: tuple[Mapping[str, int], tuple[frozenset[str], ...]] = (dict(self.counts), rewinds)
        self.dicts: dict[str, Mapping[str, Any]] = {}
        self.owned: tuple[str, ...] = ()

    def child(self, name: str) -> Node:
        """The node below, made where there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Node(rewinds=self.rewinds)
        return found

    def rewind(self, kept: frozenset[str] = frozenset()) -> None:
        """Counts draws here and below from nothing again, but for those from the streams in `kept`."""
        self.rewinds = (*self.rewinds, kept)
        for name in [name for name in self.counts if name not in kept]:
            del self.counts[name]
        for child in self.children.values():
            child.rewind(kept)

    def times_rewound(self, name: str) -> int:
        """How often the draws from a stream began to count anew: what was counted before counts no more."""
        return sum(name not in kept for kept in self.rewinds)

    def copy_counts(self, restarted: Container[str] = ()) -> Node:
        """A new node, and new nodes below it, that go on counting where these stand; `restarted` streams begin anew.

        Another thread may draw meanwhile: a dict is copied in one go, and the copy is gone through.
        """
        copy = Node({name: count for name, count in dict(self.counts).items() if name not in restarted}, self.rewinds)
        copy.children = {name: child.copy_counts(restarted) for name, child in dict(self.children).items()}
        return copy

    def forget(self, collection: str | None = None) -> None:
        """Lets go of the dicts here and below, or of those of one collection."""
        left = [self]
        for node in left:
            if collection is None:
                node.dicts.clear()
                node.owned = ()
            else:
                node.dicts.pop(collection, None)
                node.owned = tuple(name for name in node.owned if name != collection)
            left.extend(node.children.values())


class Names(NamedTuple):
    """The names of one scope.

    Attributes:
        taken: the names that may not be taken again, each with the collection of the variable that has it, or None for
            that of a scope.
        numbers: how many automatic names of each prefix were given out.
    """

    taken: frozenset[tuple[str, str | None]] = frozenset()
    numbers: tuple[tuple[str, int], ...] = ()


class Sown(NamedTuple):
    """A captured value that no group of a lift lists: it is sown again outside, on the other side of the lift."""

    path: Path
    collection: str
    name: str
    init_fn: Callable[[], Any]
    reduce_fn: Callable[[Any, Any], Any]


class Surroundings(NamedTuple):
    """What a lifted body can see of the tree outside, beside its variables: equal ones give equal traces.

    Attributes:
        kind: the class of its scopes.
        mutable: the filter of what may be written.
        initializing: what `is_initializing` answers.
        changes: whether anything may change at all, and whether variables may be created.
        rngs: the names of the streams.
        rules: which names that were never given draw from another stream.
        given: the names of the streams that `init` or `apply` was given.
        created: how variables that are created are seen.
        unlifted: the paths of variables that the lifts around left outside.
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


def plain_data(path: Path, name: str, count: int, rewound: int) -> Any:
    """The fold-in data of a draw, from its path and count; how often its stream was rewound does not matter."""
    return rng.fold_in_data((*path, count))


@dataclass(slots=True, eq=False, repr=False)
class Tree:
    """What every scope of one `init`, `apply` or lift shares.

    `given` are the names of the streams that `init` or `apply` were given, lifted here or not; `marks` says whether
    values created here are marked, so that a split can tell them; `unlifted` are the paths of variables that
    the lifts around it left outside, each from the scope that is lifted; `casts` are the dtypes of the leaves of
    variables that a loop around it carries, which begin as weakly typed numbers and become something else (None: as
    they begin); `sight`, if there is one, says how the body sees a variable that it creates, from its path and its
    value, which is kept and handed outside as it was made; `rewound` says whether any scope was rewound together with
    its draws; `fold_in_data` makes the fold-in data of a draw from path, stream, count and `Node.times_rewound`.

    `thread` is the one that has the tree to itself: that of the `init`, `apply` or lift. A tree that is bound is
    nobody's but while a method of a module runs (`claim`); of scopes alone, the first thread that changes one is the
    `writer`.
    `creates` says whether scopes may create variables, and `writes` whether they may change at all.
    `lifts` has for each thread the names of the lifts of the tree that run.
    """

    variables: dict[str, Any]
    rngs: Mapping[str, Any]
    mutable: Predicate
    _: KW_ONLY
    base: Path = ()
    root: Node = field(default_factory=Node)
    fallbacks: Sequence[tuple[Predicate, Any]] = ()
    initializing: bool = False
    lift: Lift | None = None
    outer: Scope | None = None
    marks: bool = False
    unlifted: tuple[Path, ...] = ()
    fold_in_data: Callable[[Path, str, int, int], Any] = plain_data
    given: tuple[str, ...] = ()
    watch: BodyObserver | None = None
    redrawn: frozenset[Path] = frozenset()
    casts: Mapping[Path, tuple[Any, ...]] = field(default_factory=dict)
    sight: Callable[[Path, Any], Any] | None = None
    rewound: bool = False
    trace: Any = field(default_factory=trace_state)
    alive: bool = True
    created: dict[Path, Any] = field(default_factory=dict)
    written: dict[Path, None] = field(default_factory=dict)
    sown: list[tuple[Sown, Any]] = field(default_factory=list)
    unsplit: set[Path] = field(default_factory=set)
    lifts: dict[int, list[str]] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)
    writer: int = _ANYBODY
    reads: bool = False
    creates: bool = True
    writes: bool = False
    _above: str | None = None
    _resolved: dict[str, tuple[str, Any] | None] = field(default_factory=dict)
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
        """Ends all scopes of the tree, and lets go of what they held: values of a trace must not outlive it."""
        self.alive = False
        self.variables, self.rngs, self.fallbacks, self.fold_in_data = {}, {}, [], plain_data
        self.created, self.sown, self._resolved = {}, [], {}
        self.root.forget()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Lets its scopes change while lifts run: for what a lift calls on this side of it, such as `map_out`."""
        here = threading.get_ident()
        lifts = self.lifts.pop(here, None)
        try:
            yield
        finally:
            if lifts is not None:
                self.lifts[here] = lifts

    def enter_lift(self, name: str) -> None:
        """Notes that the body of a lift begins to run in this thread."""
        self.lifts.setdefault(threading.get_ident(), []).append(name)

    def leave_lift(self) -> None:
        """Notes that it ended."""
        here = threading.get_ident()
        self.lifts[here].pop()
        if not self.lifts[here]:
            del self.lifts[here]

    @property
    def running_lift(self) -> str | None:
        """The name of the innermost lift of the tree that runs in this thread."""
        held = self.lifts.get(threading.get_ident()) if self.lifts else None
        return held[-1] if held else None

    def open(self) -> Tree:
        """The tree, which any thread may use from now on, one at a time."""
        self.thread = _ANYBODY
        return self

    def claim(self) -> bool:
        """Takes the tree for this thread, until `open` is called, unless another one has it."""
        with _LOCK:
            free = self.thread == _ANYBODY
            if free:
                self.thread = threading.get_ident()
        return free

    def may_change(self) -> bool:
        """Whether this thread may write, create and draw: no other one has the tree, or has changed it."""
        here = threading.get_ident()
        if self.reads or self.thread != _ANYBODY:
            return not self.reads and self.thread == here
        with _LOCK:
            if self.writer != here and not any(thread.ident == self.writer for thread in threading.enumerate()):
                self.writer = here
        return self.writer == here

    def reader(self) -> Tree:
        """A tree of the same variables for another thread, that may read them only."""
        tree = copy.copy(self)
        tree.thread, tree.reads, tree.root = threading.get_ident(), True, Node()
        tree.variables, tree.lifts, tree.created, tree.written = dict(self.variables), {}, {}, {}
        tree.sown, tree.unsplit = [], set()
        return tree

    @property
    def changed(self) -> bool:
        """Whether anything was created, written or captured."""
        return bool(self.created or self.written or self.sown)

    def writable(self, collection: str) -> bool | None:
        """Whether a collection may be written: all of it, none of it, or (None) as single variables tell."""
        if collection not in self._writable:
            self._writable[collection] = matches_collection(self.mutable, collection)
        return self._writable[collection]

    def stream(self, name: str) -> tuple[str, Any] | None:
        """The name that draws under a name are counted under, and the root key of the stream that they come from."""
        if name not in self._resolved:
            self._resolved[name] = self._resolve(name)
        return self._resolved[name]

    def _resolve(self, name: str) -> tuple[str, Any] | None:
        if name in self.rngs:
            return name, self.rngs[name]
        if name in self.given:
            return None
        return next(((rng.DEFAULT, found) for rule, found in self.fallbacks if rule((name,), None)), None)

    def surroundings(self, kind: type) -> Surroundings:
        """What a lifted body can see of this tree beside its variables; `kind` is the class of its scopes."""
        return Surroundings(
            kind,
            self.mutable,
            self.initializing,
            (self.writes, self.creates),
            tuple(self.rngs),
            tuple([rule for rule, _ in self.fallbacks]),
            self.given,
            (self.redrawn, tuple(self.casts.items()), self.sight),
            self.unlifted,
            tuple([name for name, found in self.outermost().variables.items() if not found]),
        )

    @property
    def above(self) -> str:
        """The path of the lift that the tree is inside of, for the text of errors: `/encoder/vmap(block)`."""
        if self._above is None:
            above = "" if self.outer is None else self.outer.path_text.rstrip("/")
            self._above = f"{above}/{self.lift.name}" if self.lift is not None and self.lift.shown else above
        return self._above

    def captures(self, path: Path, value: Any) -> bool:
        """Whether a sown value leaves the lift in its last group, since no other group takes it all the way out."""
        tree = self
        captures = None if tree.lift is None else tree.lift.captures
        if tree.lift is None or (tree.mutable(path, value) and not (captures and captures.all)):
            return False
        while tree.outer is not None and tree.lift is not None and tree.lift.captures:
            tree = tree.outer.tree
        return tree.mutable(path, value)

    def without_stream(self, name: str) -> Tree | None:
        """The tree inside the lift that keeps a stream out, of this tree and those around it; None if none does.

        Lifts further in cannot pass in what does not reach them, whatever their rules say.
        """
        tree = self
        while tree.outer is not None:
            outer = tree.outer.tree
            if outer.stream(name) is not None:
                return tree
            tree = outer
        return None

    def without_output(self, path: Path, value: Any) -> Tree | None:
        """The tree inside the outermost lift that does not let a changed variable out; None if all let it out.

        A lift may also make variables immutable that it lets out (see `scope_fn` of `liftcore.pack`).
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
        """The tree that `init` or `apply` made, outside all lifts."""
        tree = self
        while tree.outer is not None:
            tree = tree.outer.tree
        return tree

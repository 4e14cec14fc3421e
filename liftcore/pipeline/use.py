"""One use of a lift, and the bodies that run in it: functions of scopes, as pure functions of groups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from .. import filters
from .._compat import tag, trace_state
from ..errors import LiftArgumentError, misfit, no_function
from ..scopes import problems
from ..scopes.scope import Scope
from ..scopes.tree import Sown
from ..scopes.variable import Variable
from ..typing import Filter, Path, PyTree
from .changes import Changes, Record, record_of, without_created
from .checks import check_given, checked_output
from .previews import tag_previews
from .splitting import Split, trace
from .stages import Layout, is_scope, reconstruct, repack

__all__ = ["Body", "Use", "Via", "call_inside"]


class Run(NamedTuple):
    """One run of a body, on scopes that were made for it.

    Attributes:
        roots: the outermost of these.
        given: those that stand for the scopes that the lifted function was given.
        packed: the same in the structure that it was given; what the body is called with.
        restarted: the streams that began anew.
        inline: whether what it creates is bound as it is made.
    """

    roots: Sequence[Scope]
    given: Sequence[Scope]
    packed: PyTree
    restarted: frozenset[str]
    inline: bool


class Use:
    """One use of a lift: the scopes outside, those that were made inside, and what the bodies did.

    Attributes:
        layout: all that is static about it.
        outers: the outermost distinct scopes outside.
        given: the scopes that the lifted function was given.
        records: what each body that ran did beside computing, see `Record`; the last one last.
        observer: what looks on, if anything does (see `explain`).
    """

    def __init__(self, layout: Layout, outers: Sequence[Scope], given: Sequence[Scope]) -> None:
        self.layout, self.outers, self.given = layout, outers, given
        self.records: list[Record] = []
        # By id, and with the array itself: an id is given out again once its array is gone.
        self._bound: dict[int, Any] = {}
        self._splits = 0
        watches = [outer.tree.watch for outer in outers if outer.tree.watch is not None]
        self.observer = watches[0].lift(self) if watches else None
        self._live = self._at_level_outside()
        self._runs: list[Run] = []
        self._unchanged: tuple[Any, ...] | None = None

    @functools.cached_property
    def where(self) -> str:
        """The place, for the text of an error: `scan(block) at /decoder`."""
        return f"{self.layout.lift.name} at {self.place}"

    @property
    def place(self) -> str:
        """The path of the first scope outside; over no scopes, that of a root."""
        return self.outers[0].path_text if self.outers else "/"

    def _at_level_outside(self) -> bool:
        """Whether no transformation lies between here and the scopes outside."""
        return [outer.tree.trace for outer in self.outers] == [trace_state()] * len(self.outers)

    @property
    def writes(self) -> bool:
        """Whether a body may create, write or sow anything at all."""
        return True in [outer.tree.writes for outer in self.outers]

    @property
    def unchanged(self) -> tuple[Any, ...]:
        """The output groups of a body that leaves the scopes as they were: always the same object."""
        if self._unchanged is None:
            nothing: PyTree = ({},) * len(self.outers)
            groups: tuple[Any, ...] = (Changes(nothing, nothing),) * len(self.layout.lift.out)
            self._unchanged = (*groups, ([],) * len(self.outers)) if self.layout.lift.captures else groups
        return self._unchanged

    def is_unchanged(self, groups: Sequence[PyTree]) -> bool:
        """Whether output groups are those that `unchanged` gave.

        Args:
            groups: output groups.
        """
        return groups is self._unchanged

    @property
    def nested(self) -> bool:
        """Whether a trace around is split too: of a lift outside (`Tree.marks`), or of this use (`being_split`).

        What is made here must then be marked there, see `bind`.
        """
        return self._splits > 0 or True in [outer.tree.marks for outer in self.outers]

    @contextlib.contextmanager
    def being_split(self) -> Iterator[None]:
        """While a body is traced to be split: what another split of it makes meanwhile is bound in that trace."""
        self._splits += 1
        try:
            yield
        finally:
            self._splits -= 1

    def bind(self, value: PyTree) -> PyTree:
        """An initial value as the scopes outside will hold it; what is computed from it must use this one."""
        if not self.nested:
            return value
        value = tag(value)
        self._note_bound(value)
        return value

    def preview(self, group: PyTree) -> PyTree:
        """Initial values that are read before they are bound; see `previews`.

        Args:
            group: one tree of variables for each outermost scope; None in place of the others.
        """
        trees = [tag_previews(tree, outer.path) for outer, tree in zip(self.outers, group, strict=True)]
        return tuple(trees)

    def _note_bound(self, value: PyTree) -> None:
        self._bound |= {id(leaf): leaf for leaf in jax.tree.leaves(value)}

    def is_bound(self, value: PyTree) -> bool:
        """Whether a value is one that was bound, and not another one computed from that: the very same arrays."""
        return all(id(leaf) in self._bound for leaf in jax.tree.leaves(value))

    def made(self, created: Sequence[PyTree]) -> None:
        """Tells those who watch which initial values were made outside of the lift; the others are None."""
        if self.observer is not None:
            self.observer.made(created)

    def scope_fn(
        self,
        variable_groups: Any,
        rng_groups: Any,
        mutable: Filter = True,
        *,
        marked: bool = False,
        fold_in_data: Callable[[int], Any] | None = None,
        restarted: frozenset[str] = frozenset(),
        redrawn: frozenset[Path] = frozenset(),
        casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({}),
    ) -> PyTree:
        """Scopes from groups, of the structure that the lifted function was given.

        Args:
            variable_groups: the groups of variables.
            rng_groups: those of RNG streams.
            mutable: a filter for the variables that may be written, of those that an output group takes.
            marked: whether created values are marked, so that a split can tell them.
            fold_in_data: what the scopes below each outermost scope ask for the fold-in data of their draws.
            restarted: the names of streams that begin anew: their keys depend on the path and the count below each
                outermost scope only, and their draws are not counted outside.
            redrawn: variables, by their paths from the root, that exist and whose initializers run all the same: for
                the keys that these draw, so that the draws that follow are those of a body that creates them.
            casts: the dtypes of the leaves of carried variables that begin as weakly typed numbers, see `Tree`.
        """
        check_given(self, variable_groups, rng_groups)
        # Where the body runs in the trace around, without a JAX transformation between, nothing has to be hoisted: what
        # it creates is bound as it is made, for the split of that trace.
        inline = self.nested and not marked and self._at_level_outside()
        marks = marked or inline
        roots = reconstruct(self.layout, self.outers, variable_groups, rng_groups, mutable, marks, restarted)
        watch = None if self.observer is None else self.observer.body()
        for index, (root, outer) in enumerate(zip(roots, self.outers, strict=True)):
            root.tree.watch = watch
            if fold_in_data is not None:
                root.tree.fold_in_data = fold_in_data(index)
            root.tree.redrawn = outer.tree.redrawn | redrawn
            root.tree.casts = {**outer.tree.casts, **casts} if casts else outer.tree.casts
            if not self._live:  # a raw transformation lies between: its scopes may be read, no more
                root.tree.trace = outer.tree.trace
        scopes = [roots[index].below(route).rewound() for index, route in self.layout.routes]
        for scope, names in zip(scopes, self.layout.names, strict=True):
            scope.enter_names(names)
        packed = jax.tree.unflatten(self.layout.scopes, scopes)
        self._runs.append(Run(roots, scopes, packed, restarted, inline))
        return packed

    def run(self, fn: Callable[..., Any], scopes: PyTree, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a function of the user's returns for scopes that `scope_fn` made."""
        result = _call(lambda: self.where, fn, scopes, args, kwargs)
        for leaf in jax.tree.leaves(result):
            if isinstance(leaf, Scope | Variable):
                raise problems.returned(self.where, fn, "Scope" if isinstance(leaf, Scope) else "Variable")
        return result

    def repack_fn(self, scopes: PyTree) -> tuple[PyTree, ...]:
        """The output groups of scopes that `scope_fn` made."""
        # Never `unchanged`, of which there is one for all: who calls this may change the groups in place.
        run = self._run_on(scopes)
        return self._end(run, *repack(self.layout, run.roots))

    def repacked(self, scopes: PyTree) -> tuple[PyTree, ...]:
        """The same for who leaves the groups as they are: `unchanged`, where that is what they would tell."""
        run = self._run_on(scopes)
        if True in [root.tree.changed for root in run.roots]:
            return self._end(run, *repack(self.layout, run.roots))
        return self._end(run, self.unchanged, ((),) * len(run.roots))

    def _run_on(self, scopes: PyTree) -> Run:
        """The run on what `scope_fn` returned."""
        for run in self._runs:
            if run.packed is scopes:
                for root in run.roots:
                    root.check_valid()
                return run
        raise LiftArgumentError(
            f"repack_fn of {self.where}",
            f"expected what `scope_fn` returned, given {type(scopes).__name__}.",
            "Write `scope = scope_fn(variable_groups, rng_groups)`, and later `repack_fn(scope)`.",
        )

    def _end(self, run: Run, groups: tuple[PyTree, ...], sown: tuple[tuple[Sown, ...], ...]) -> tuple[PyTree, ...]:
        self.records.append(record_of(run.roots, run.given, sown, run.restarted))
        for root in run.roots:
            if run.inline:
                self._note_bound(list(root.tree.created.values()))
            root.invalidate()
        return groups

    @property
    def record(self) -> Record:
        """That of the last body that ran."""
        return self.records[-1]

    def take_record(self) -> Record:
        """The same, which then counts for nothing, unless it is given to `replay`."""
        return self.records.pop()

    def replay(self, record: Record) -> None:
        """Draws, names and sows outside what a record says, as if that body had run now."""
        self.records.append(record)

    def forget(self) -> None:
        """Lets go of the values that were bound, which must not outlive their trace."""
        self._bound = {}

    def enter(self) -> None:
        """Tells the scopes outside that the body begins to run."""
        for outer in self.outers:
            outer.tree.enter_lift(self.layout.lift.name)

    def leave(self) -> None:
        """Tells them that it ended; the scopes that were made inside end too."""
        for outer in self.outers:
            outer.tree.leave_lift()
        for run in self._runs:
            for root in run.roots:
                if root.tree.alive:
                    root.invalidate()


Via = Callable[..., tuple[Any, Any]]
"""A function of a body and of operands, that returns the result of the body and its output groups."""


class Body:
    """A function of scopes made pure: `(variable_groups, rng_groups, *args, **kwargs) -> (result, output groups)`.

    Attributes:
        fn: the function of scopes.
        use: the use of the lift that it belongs to.
        prepared: what the transformation worked out for the function when it was lifted.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        use: Use,
        prepared: Any = None,
        *,
        marked: bool = False,
        redrawn: frozenset[Path] = frozenset(),
        casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({}),
    ) -> None:
        self.fn, self.use, self.prepared = fn, use, prepared
        self._marked, self._redrawn, self._casts = marked, redrawn, casts

    def __call__(self, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Runs the function on scopes that are made of the groups.

        What it drew, named and sown is appended to `use.records` while it is traced, since it can go through no JAX
        transformation; `commit` reads it there.

        Args:
            variable_groups: one group for each filter of variables.
            rng_groups: one group for each filter of streams.
            *args: positional arguments of the function, after the scopes.
            **kwargs: its keyword arguments.
        """
        scopes = self.use.scope_fn(
            variable_groups, rng_groups, marked=self._marked, redrawn=self._redrawn, casts=self._casts
        )
        result = self.use.run(self.fn, scopes, args, kwargs)
        return result, self.use.repacked(scopes)

    @property
    def where(self) -> str:
        """See `Use.where`."""
        return self.use.where

    @property
    def writes(self) -> bool:
        """Whether the body may create, write or sow anything; if not, its output groups are `unchanged`."""
        return self.use.writes

    @property
    def creates(self) -> bool:
        """Whether the body may create variables; if not, there are no initial values to split off."""
        return self.use.writes and True in [outer.tree.creates for outer in self.use.outers]

    @property
    def unchanged(self) -> tuple[Any, ...]:
        """See `Use.unchanged`."""
        return self.use.unchanged

    @property
    def nested(self) -> bool:
        """See `Use.nested`."""
        return self.use.nested

    @property
    def scope_fn(self) -> Callable[..., PyTree]:
        """Makes scopes from groups, see `Use.scope_fn`; the body calls it, then `fn`, then `repack_fn`."""
        return self.use.scope_fn

    @property
    def repack_fn(self) -> Callable[[PyTree], tuple[PyTree, ...]]:
        """See `Use.repack_fn`."""
        return self.use.repack_fn

    def split(self, *operands: PyTree, via: Via | None = None, axes: Sequence[tuple[Any, int]] = ()) -> Split:
        """Traces the body once, and parts what makes its initial values from the rest of it.

        Args:
            *operands: what it is called with: the groups of variables, those of streams, and arguments; pytrees of
                arrays, or of what stands for their types.
            via: called as `via(body, *operands)` instead of the body, where the operands are others; returns the
                result and the output groups.
            axes: the names and sizes of the mapped axes that the body may ask for.
        """
        marked = self.marked()

        def run(*operands: PyTree) -> Any:
            output = marked(*operands) if via is None else via(marked, *operands)
            return without_created(*checked_output(self.use, output, "Return the groups that the body gave."))

        return trace(run, *operands, axes=axes, use=self.use).with_effects()

    def marked(self, casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({})) -> Body:
        """The same, with created values marked, so that a split can tell them; `casts` as in `Tree`."""
        return Body(self.fn, self.use, self.prepared, marked=True, casts=casts)

    def of(self, fn: Callable[..., Any], created: Sequence[PyTree] = ()) -> Body:
        """Another function of the same scopes, for a transformation that takes several.

        Args:
            fn: the function.
            created: groups of variables that the first function created and that this one finds: it draws no other
                keys than the first for all that.
        """
        if not callable(fn):
            raise no_function(self.where, fn)
        outers = self.use.outers
        paths = [
            (path[0], *outer.path, *path[1:])
            for group in created
            for outer, tree in zip(outers, group, strict=False)
            for path, _ in filters.leaves_of(tree)
        ]
        return Body(fn, self.use, self.prepared, marked=self._marked, redrawn=frozenset(paths), casts=self._casts)

    def forget(self) -> None:
        """Lets what the body drew, named and sown so far count for nothing."""
        self.use.records.clear()

    def capture(self, sown: Sequence[tuple[Sown, ...]]) -> None:
        """Tells what the captured values of the last output group are, where these are not those of one body."""
        self.use.records.append(Record(sown=tuple(sown)))


def call_inside(fn: Callable[..., Any], scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of the user's from another one that a lift made of it, which is called with scopes inside.

    Args:
        fn: the function of scopes.
        scopes: the scopes inside.
        *args: its positional arguments.
        **kwargs: its keyword arguments.

    Raises:
        LiftArgumentError: where the function cannot take what it is called with.
    """

    def where() -> str:
        scope = next(leaf for leaf in jax.tree.leaves(scopes, is_leaf=is_scope) if is_scope(leaf))
        return f"{scope.tree.lift.name} at {scope.tree.outer.path_text}"

    return _call(where, fn, scopes, args, kwargs)


def _call(
    where: Callable[[], str], fn: Callable[..., Any], scopes: PyTree, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return fn(scopes, *args, **kwargs)
    except TypeError as error:
        taken = misfit(error, fn, (scopes, *args), kwargs)
        if taken is None:
            raise
        raise problems.wrong_function(where(), fn, taken, args, kwargs) from error

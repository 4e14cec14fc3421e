"""Bodies: functions of scopes as pure functions of groups, in one call of a lifted function."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from .._compat import release, trace_state
from ..calls import note_call
from ..errors import Expected, LiftArgumentError, no_function, words
from ..filters import to_predicate, union
from ..filters.trees import by_place, under
from ..scopes import problems
from ..scopes.scope import Scope
from ..scopes.scoped import is_scoped, scopes_in
from ..scopes.tree import Counter, Sown
from ..typing import Filter, Path, Predicate, PyTree
from ..values import tag, tag_previews
from .checks import no_groups
from .splitting import Split, trace
from .stages import Changes, Layout, Record, checked_output, reconstruct, record_of, repack, without_created

__all__ = ["Body", "Via", "call_inside"]


class Run(NamedTuple):
    """One run of a body, on scopes that were created for it.

    Attributes:
        roots: the outermost of these scopes.
        given: those that correspond to the scopes that the lifted function received.
        packed: the same in the structure of the argument; the body is called with it.
        restarted: the streams that started again.
        inline: whether created values are tagged as they are created, for a surrounding split.
    """

    roots: Sequence[Scope]
    given: Sequence[Scope]
    packed: PyTree
    restarted: frozenset[str]
    inline: bool


Via = Callable[..., tuple[Any, Any]]
"""A function of a body and of operands that returns the result of the body and its output groups."""


class Body:
    """A function of scopes made pure: `(variable_groups, rng_groups, *args, **kwargs) -> (result, output groups)`.

    A transformation of your own uses:

    - `body(variable_groups, rng_groups, *args, **kwargs)`, which runs the function, or `scope_fn` and `repack_fn`, the
      two halves of such a call;
    - `split`, which separates the initial values from the rest;
    - `of`, the body of another function; `seeing`, the same body with other values of created variables; and
      `writing_locally`, the same body with writes that end with it;
    - `is_initializing`, `creates` and `writes`, which tell `init` from `apply`, and one `apply` from another;
    - `where`, `path_text` and `path`, for errors.

    The lifts of liftcore use the other methods and attributes; they may change in any release.

    A body belongs to one call of a lifted function. All bodies of a call share the scopes outside, the scopes that were
    created inside, and the effects.

    Attributes:
        fn: the function of scopes; None under `pack`, where the transformation calls its function itself.
        layout: everything that is static about the call.
        outers: the outermost distinct scopes outside.
        given: the scopes that the lifted function received.
        prepared: the data that the transformation computed for the function when it was lifted.
        writes: whether the body may create, write or sow anything; if not, its output groups are `unchanged`.
        creates: whether it may create variables; if not, there are no initial values to split off. It is True in
            `init`, and also in an `apply` with mutable collections: to tell the two apart, use `is_initializing`.
        unchanged: the output groups of a body that changes nothing: always the same object.
        records: the `Record` of each body that ran, the latest last. `commit` applies what is there then: without its
            record, a body has no effect, and with one of another run it has the effects of that.
        observer: the observer, if there is one (see `explain`).
    """

    def __init__(
        self, fn: Any, layout: Layout, outers: Sequence[Scope], given: Sequence[Scope], prepared: Any = None
    ) -> None:
        self.fn, self.layout, self.outers, self.given, self.prepared = fn, layout, outers, given, prepared
        self.writes = True in [outer.tree.writes for outer in outers]
        self.creates = self.writes and True in [outer.tree.creates for outer in outers]
        self._tags = False
        self._sight: Callable[[Path, Any], Any] | None = None
        self._casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({})
        self._redrawn: frozenset[Path] = frozenset()
        self._declared: frozenset[Path] = frozenset()
        self._local: Predicate | None = None
        # All bodies of the call share what follows; so it is only ever changed in place.
        nothing: PyTree = ({},) * len(outers)
        groups: tuple[Any, ...] = (Changes(nothing, nothing),) * len(layout.lift.out)
        self.unchanged = (*groups, ([],) * len(outers)) if layout.lift.captures else groups
        self.records: list[Record] = []
        self._runs: list[Run] = []
        # The bodies that `trace` is tracing, to be split: other splits inside tag their values in that trace.
        self.splitting: list[Body] = []
        # The counters outside as the bodies find them, once `commit` counts the draws of the call there: a rule of a
        # derivative may run its body after the call.
        self.counters: list[Counter] = []
        # By id, together with the array: Python reuses an id after its object is gone.
        self.tagged: dict[int, Any] = {}
        self._level = trace_state()
        self._levels: list[Any] = []  # in the bodies
        self._live = [outer.tree.trace for outer in outers] == [self._level] * len(outers)
        watches = [outer.tree.watch for outer in outers if outer.tree.watch is not None]
        self.observer = watches[0].lift(self) if watches else None

    def __call__(self, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Run the function on scopes that are created from the groups.

        Its draws, names and sown values are appended to `records` during tracing, since they cannot pass through a
        JAX transformation; `commit` reads them there.

        Args:
            variable_groups: one group for each filter of variables.
            rng_groups: one group for each filter of streams.
            *args: positional arguments of the function, after the scopes.
            **kwargs: keyword arguments of the function.
        """
        scopes = self.scope_fn(variable_groups, rng_groups)
        result = self.run(self.fn, scopes, args, kwargs)
        return result, self.repacked(scopes)

    def split(self, *operands: PyTree, via: Via | None = None, axes: Sequence[tuple[Any, int]] = ()) -> Split:
        """Trace the body once, and separate the computation of its initial values from the rest.

        Args:
            *operands: the arguments of the body: groups of variables, groups of streams, and others; pytrees of arrays
                or of their types.
            via: if given, called as `via(body, *operands)` in place of the body, when the operands are others; returns
                the result and the output groups.
            axes: the names and sizes of the mapped axes that the body may use.
        """
        tagging = self.tagging()

        def run(*operands: PyTree) -> Any:
            output = tagging(*operands) if via is None else via(tagging, *operands)
            return without_created(*checked_output(self, output, "Return the groups that the body gave."))

        return trace(run, *operands, axes=axes, body=self).with_effects()

    def of(self, fn: Callable[..., Any], created: Sequence[PyTree] = ()) -> Body:
        """Return a body for another function of the same scopes, for a transformation of several functions.

        Args:
            fn: the function.
            created: groups of variables that the first function created and that exist for this one. Their initializers
                still draw their keys, so both functions draw the same keys.
        """
        if not callable(fn):
            raise no_function(self.where, fn)
        other = self.redrawing([place for group in created for place in by_place(group)])
        other.fn = fn
        return other

    def tagging(self, casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({})) -> Body:
        """Return the same body, but with created values tagged for a split; `casts` as in `Tree`."""
        other = copy.copy(self)
        other._tags, other._casts = True, casts
        return other

    def seeing(self, sight: Callable[[Path, Any], Any]) -> Body:
        """Return the same body, but with other values for created variables; `sight` as in `Tree`."""
        other = copy.copy(self)
        other._sight = sight
        return other

    def writing_locally(self, local: Filter) -> Body:
        """Return the same body, which may write variables that are immutable outside; what it writes ends with it.

        Code after a write, in the body, reads the new value. The output groups lack it, so outside nothing changes.
        Variables that the body creates are returned as always, with their initial values.

        Args:
            local: a filter of these variables; the lift must take them in.
        """
        other = copy.copy(self)
        other._local = to_predicate(local) if self._local is None else union(self._local, local)
        return other

    def redrawing(self, redrawn: Iterable[tuple[int, Path]] = (), declared: Iterable[tuple[int, Path]] = ()) -> Body:
        """Return the same body, which draws again for other variables than the scopes outside; see `Tree.must_redraw`.

        Args:
            redrawn: variables that exist and whose initializers run nevertheless, once, as in `Record.redrawn`. They
                draw keys, so later draws are the same as in a body that creates the variables.
            declared: variables whose initializers do not run, because a body before it has declared them.
        """
        other = copy.copy(self)
        other._redrawn = self._redrawn.union(itertools.starmap(self.from_root, redrawn))
        other._declared = self._declared.union(itertools.starmap(self.from_root, declared))
        return other

    def is_initializing(self) -> bool:
        """Whether this is an `init`, which creates variables, rather than an `apply`, which receives them."""
        return True in [outer.tree.initializing for outer in self.outers]

    def from_root(self, index: int, path: Path) -> Path:
        """Return the path of a variable from the root, for its place: an outermost scope and the path below it."""
        return under(self.outers[index].path, path)

    @property
    def use(self) -> Body:
        """Deprecated: the body itself."""
        text = "`body.use` is now the body itself, and leaves in 0.4. Write `body` in its place."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self

    def marked(self, casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({})) -> Body:
        """Deprecated: the former name of `tagging`."""
        text = "`body.marked` is now named `tagging`, and leaves in 0.4. Write `body.tagging()`."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.tagging(casts)

    @property
    def place(self) -> str:
        """Deprecated: the former name of `path_text`."""
        text = "`body.place` is now named `path_text`, and leaves in 0.4. Write `body.path_text`."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.path_text

    @functools.cached_property
    def where(self) -> str:
        """The place for an error message: `scan(block) at /decoder`."""
        return words().place(self.layout.lift.name, self.path_text)

    @property
    def path_text(self) -> str:
        """The path of the first scope outside; without scopes, the path of a root."""
        return self.outers[0].path_text if self.outers else "/"

    def path(self, place: Sequence[Any]) -> Path:
        """Return the path of a variable, from the root, for its place in a group: a path of JAX."""
        outer = self.outers[place[0].idx]
        collection, *names = (str(getattr(key, "key", key)) for key in place[1:])
        return collection, *outer.path, *names

    @property
    def nested(self) -> bool:
        """Whether a surrounding trace is split too: of an outer lift (`Tree.tags`), or of this call (`splitting`).

        Values that are created here must then be tagged there; see `tag_outside`.
        """
        return bool(self.splitting) or True in [outer.tree.tags for outer in self.outers]

    def scope_fn(
        self,
        variable_groups: Any,
        rng_groups: Any,
        mutable: Filter = True,
        *,
        fold_in_data_of: Callable[[int], Any] | None = None,
        restarted: frozenset[str] = frozenset(),
    ) -> PyTree:
        """Create scopes from groups, in the structure of the scopes that the lifted function received.

        Args:
            variable_groups: the groups of variables.
            rng_groups: the groups of RNG streams.
            mutable: a filter for the variables that may be written, among those that an output group takes.
            fold_in_data_of: maps the index of an outermost scope to the function that makes the data of its draws.
            restarted: the names of streams that start again: their keys depend only on the path and the count below
                each outermost scope, and their draws do not count outside.
        """
        level, streams = trace_state(), len(self.layout.lift.rngs)
        self._levels.append(level)
        if not self._are_groups(variable_groups):
            raise no_groups(self, "groups of variables", variable_groups)
        if not self._are_groups(rng_groups) or len(rng_groups) != streams:
            raise no_groups(self, f"the {streams} groups of RNG streams", rng_groups)
        # If no JAX transformation is between this body and the surrounding trace, nothing has to be hoisted: created
        # values are tagged as they are created, for the split of that trace.
        outside = [outer.tree.trace for outer in self.outers]
        inline = self.nested and not self._tags and outside == [level] * len(outside)
        tags = self._tags or inline
        counters = self.counters or [outer.counter for outer in self.outers]
        roots = reconstruct(
            self.layout, self.outers, variable_groups, rng_groups, mutable, tags, restarted, counters, self._local
        )
        watch = None if self.observer is None else self.observer.body()
        for index, (root, outer) in enumerate(zip(roots, self.outers, strict=True)):
            root.tree.watch = watch
            if fold_in_data_of is not None:
                root.tree.fold_in_data = fold_in_data_of(index)
            root.tree.redrawn = (outer.tree.redrawn - outer.tree.made_again - self._declared) | self._redrawn
            root.tree.casts = {**outer.tree.casts, **self._casts} if self._casts else outer.tree.casts
            if self._sight is not None:
                root.view(self._sight)
            if not self._live:  # a raw transformation is in between: its scopes may only be read
                root.tree.trace = outer.tree.trace
        routes = zip(self.layout.routes, self.layout.names, strict=True)
        scopes = [roots[index].below(route).entering(names) for (index, route), names in routes]
        packed = jax.tree.unflatten(self.layout.scopes, scopes)
        self._runs.append(Run(roots, scopes, packed, restarted, inline))
        return packed

    def run(self, fn: Callable[..., Any], scopes: PyTree, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a user's function for scopes that `scope_fn` created."""
        try:
            result = fn(scopes, *args, **kwargs)
        except TypeError as error:
            note_call(error, self.where, fn, (scopes, *args), kwargs)
            raise
        for leaf in jax.tree.leaves(result):
            if not isinstance(leaf, jax.Array) and is_scoped(leaf):
                raise problems.returned(self.where, fn, "Scope" if isinstance(leaf, Scope) else type(leaf).__name__)
        return result

    def repack_fn(self, scopes: PyTree) -> tuple[PyTree, ...]:
        """Return the output groups of scopes that `scope_fn` created.

        Args:
            scopes: what `scope_fn` returned.
        """
        # Never the shared object `unchanged`, because the caller may modify the groups in place.
        return self.repacked(scopes, shared=False)

    def repacked(self, scopes: PyTree, shared: bool = True) -> tuple[PyTree, ...]:
        """Return the output groups of scopes, and end these; if nothing changed and `shared`, they are `unchanged`."""
        run = next((run for run in self._runs if run.packed is scopes), None)
        if run is None:
            raise LiftArgumentError(
                f"repack_fn of {self.where}",
                Expected("the scopes that `scope_fn` returned", given=type(scopes).__name__),
                "Write `scope = scope_fn(variable_groups, rng_groups)`, and later `repack_fn(scope)`.",
            )
        for root in run.roots:
            root.check_valid()
        sown: tuple[tuple[Sown, ...], ...]
        groups, sown = self.unchanged, ((),) * len(run.roots)
        if not shared or any(root.tree.created or root.tree.written or root.tree.sown for root in run.roots):
            groups, sown = repack(self.layout, run.roots, self._local)
        self.records.append(record_of(run.roots, run.given, sown, run.restarted))
        for root in run.roots:
            if run.inline:
                self.note_tagged(list(root.tree.created.values()))
            root.invalidate()
        return groups

    def tag_outside(self, value: PyTree) -> PyTree:
        """Return an initial value as the scopes outside will hold it; computations from it must use this value."""
        if not self.nested:
            return value
        value = tag(value)
        self.note_tagged(value)
        return value

    def preview(self, group: PyTree) -> PyTree:
        """Return initial values that are read before they are tagged outside, as previews; see `values`.

        Args:
            group: one tree of variables for each outermost scope; None for values that are not read.
        """
        return tuple([tag_previews(tree, outer.path) for outer, tree in zip(self.outers, group, strict=True)])

    def note_tagged(self, value: PyTree) -> None:
        """Note initial values that are tagged in the surrounding trace; `commit` then does not tag them again."""
        self.tagged.update({id(leaf): leaf for leaf in jax.tree.leaves(value)})

    def capture(self, sown: Sequence[tuple[Sown, ...]]) -> None:
        """Set the captured values of the last output group, if they are not those of one body."""
        self.records.append(Record(sown=tuple(sown)))

    def forget(self) -> None:
        """Discard the draws, names and sown values of the body so far."""
        self.records.clear()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context in which scopes outside refuse changes, with the name of this lift. At the end, scopes inside end.

        Raises:
            LiftArgumentError: if a body wrote to scopes whose changes `repack_fn` did not return.
        """
        here = get_ident()
        for outer in self.outers:
            outer.tree.lifts.setdefault(here, []).append((self.layout.lift.name, self._inside))
        try:
            yield
            self._check_repacked()
        finally:
            for outer in self.outers:
                outer.tree.lifts[here].pop()
                if not outer.tree.lifts[here]:
                    del outer.tree.lifts[here]
            for root in [root for run in self._runs for root in run.roots if root.tree.alive]:
                root.invalidate()

    def _inside(self) -> Sequence[Scope]:
        """Return the outermost scopes of the body that is running: those that were created last and have not ended."""
        return next((run.roots for run in reversed(self._runs) if all(root.tree.alive for root in run.roots)), ())

    def _check_repacked(self) -> None:
        """Check that no body wrote to scopes whose changes `repack_fn` did not return."""
        for run in self._runs:
            trees = [root.tree for root in run.roots if root.tree.alive]
            for path in [path for tree in trees for path in (*tree.created, *tree.written)]:
                raise LiftArgumentError(
                    self.where,
                    f'"{"/".join(path)}" was written in scopes that `repack_fn` did not receive; it would be lost.',
                    "Pass the same scopes: `scope = scope_fn(variable_groups, rng_groups)`, `result = fn(scope, …)`, "
                    "`repack_fn(scope)`. To discard changes, create the scopes with `mutable=False`.",
                    variable="/".join(path),
                    option="mutable",
                )

    def release(self) -> None:
        """Let the traces that an error ended keep nothing alive."""
        for level in self._levels:
            release(level, self._level)

    def _are_groups(self, groups: Any) -> bool:
        """Whether a value consists of groups, each with one tree for each outermost scope."""
        if not isinstance(groups, tuple | list):
            return False
        each = len(self.outers)
        return False not in [isinstance(group, tuple | list) and len(group) == each for group in groups]


def call_inside(fn: Callable[..., Any], scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Call a user's function from a wrapper that a lift made of it, and that was called with scopes inside.

    Args:
        fn: the function of scopes.
        scopes: the scopes inside.
        *args: positional arguments of the function.
        **kwargs: keyword arguments of the function.
    """
    try:
        return fn(scopes, *args, **kwargs)
    except TypeError as error:
        scope: Any = scopes_in(scopes)[0]
        where = words().place(scope.tree.lift.name, scope.tree.outer.path_text)
        note_call(error, where, fn, (scopes, *args), kwargs)
        raise

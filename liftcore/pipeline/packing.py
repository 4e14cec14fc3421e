"""`pack`: lifts a function of scopes through any JAX transformation, in six stages.

    dedupe       the given scopes -> the outermost distinct ones, and the route from these to each given scope
    filter_      their variables and PRNG sequences -> groups; the first filter that matches takes one
    (transform)  the caller's JAX transformation, over pure functions of the groups
    reconstruct  inside: groups -> live scopes at the same paths
    repack       inside: what those scopes created or wrote -> output groups
    commit       outside: output groups -> the original scopes

A *group* is a tuple with one tree of variables `{collection: {module: {name: value}}}` for each outermost scope (for
PRNG sequences: with one dict from names to root keys), so a transformation may map over it as over any pytree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax

from .. import filters, rng
from .._compat import tag, trace_state
from ..errors import LiftArgumentError, UnliftedCollectionError, misfit, name_of, no_function, shown
from ..scopes import problems
from ..scopes.groups import Advice, Captured, Groups
from ..scopes.scope import Scope
from ..scopes.tree import Lift, Node, Sown, Tree
from ..scopes.variable import Variable
from ..typing import Filter, Path, Predicate, PyTree
from .committing import commit
from .layout import Changes, Layout, Record
from .sequences import group_sequences, inner_sequences

if TYPE_CHECKING:
    from .hoist import Prologue

__all__ = ["PLAIN_ADVICE", "Crossing", "call_inside", "lift_across", "name_of", "pack"]


def pack(
    fn: Callable[..., tuple[Any, Sequence[PyTree]]],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
) -> Callable[..., Any]:
    """Makes a lifted function out of a transformation over groups of variables and PRNG sequences.

    Example:
        >>> import liftcore
        >>> def with_zeros(fn):  # a lift under which `fn` sees all its parameters as zeros
        ...     def transform(scope_fn, repack_fn, variable_groups, rng_groups, *args):
        ...         scope = scope_fn(jax.tree.map(lambda x: x * 0, variable_groups), rng_groups)
        ...         return fn(scope, *args), repack_fn(scope)
        ...     return pack(transform, ["params"], [], [True])
        >>> def linear(scope, x):
        ...     return x * scope.param("w", lambda key: 2.0)
        >>> liftcore.apply(with_zeros(linear))({"params": {"w": 2.0}}, 21.0)
        0.0

    Args:
        fn: called as `fn(scope_fn, repack_fn, variable_groups, rng_groups, *args, **kwargs)`; returns the result and
            the output groups. `scope_fn(variable_groups, rng_groups, mutable=True)` makes scopes from groups, of
            the structure that the lifted function was given; `repack_fn(scopes)` returns their output groups, one
            `Changes` for each output filter.
        in_variable_filters: the filters of the groups that go in; what none of them takes is not lifted.
        out_variable_filters: the filters of the groups that come out. With a last `Captured()`, sown values that no
            other filter takes come out in a last group.
        rng_filters: the filters of the groups of PRNG sequences.
        name: how the lift shows in the paths of errors.

    Returns:
        `lifted(scopes, *args, **kwargs)`, where `scopes` is a scope or a pytree of scopes.

    Raises:
        LiftArgumentError: where `fn` cannot be called.
    """
    if not callable(fn):
        raise no_function("pack", fn)

    def across(crossing: Crossing, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        output = fn(crossing.scope_fn, crossing.repack_fn, variable_groups, rng_groups, *args, **kwargs)
        return _check_output(crossing, output)

    groups = Groups.of(in_variable_filters, out_variable_filters, rng_filters, PLAIN_ADVICE)
    return lift_across(across, groups, name or name_of(fn))


PLAIN_ADVICE = Advice('"{}" to `in_variable_filters` and `out_variable_filters`', '"{}" to `rng_filters`')
"""How a lift of a user's own takes more."""


class Crossing:
    """One use of a lift: the scopes outside, and those that were made inside."""

    def __init__(self, layout: Layout, outers: Sequence[Scope], given: Sequence[Scope]) -> None:
        self.layout, self.outers, self.given = layout, outers, given
        self.records: list[Record] = []
        self._bound: dict[int, Any] = {}
        self._inline: list[Scope] = []
        watches = [outer.tree.watch for outer in outers if outer.tree.watch is not None]
        self.watched = watches[0].lift(self) if watches else None
        self._live = self._at_level_outside()
        self._made: list[tuple[list[Scope], list[Scope], PyTree]] = []
        self._unchanged: tuple[Any, ...] | None = None
        self._fresh: frozenset[str] = frozenset()

    @functools.cached_property
    def where(self) -> str:
        """The place, for the text of an error: `scan(block) at /decoder`."""
        return f"{self.layout.name} at {self.outers[0].path_text}"

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
            groups: tuple[Any, ...] = (Changes(nothing, nothing),) * len(self.layout.groups.out)
            self._unchanged = (*groups, ([],) * len(self.outers)) if self.layout.groups.captures else groups
        return self._unchanged

    def is_unchanged(self, groups: Sequence[PyTree]) -> bool:
        """Whether output groups are those that `unchanged` gave."""
        return groups is self._unchanged

    @property
    def nested(self) -> bool:
        """Whether the lift is used inside another one that cuts initial values out of its body."""
        return True in [outer.tree.hoisted for outer in self.outers]

    def make(
        self,
        prologue: Prologue,
        picks: Sequence[bool] | None = None,
        axes: Sequence[Any] | None = None,
        form: Callable[[int, Any], Any] | None = None,
    ) -> None:
        """Makes initial values as the scopes outside will hold them, each after those that it reads.

        Args:
            prologue: what makes them.
            picks: for each of them whether it is made; None for all.
            axes: see `Prologue.make`.
            form: from the number of an initial value, and that value, to what it is outside.
        """
        picks = prologue.traced.all(picks)
        if not self.nested and not prologue.traced.mixes(axes):
            prologue.make(picks, axes, form)
            return

        def bind(number: int, value: Any) -> Any:
            return self.bind(value if form is None else form(number, value))

        # The lift outside cuts as well. To it, what one equation makes depends on all that the equation reads, so those
        # that depend on the same are made by themselves; and what reads another one has to read its bound form. In a
        # batch, too, what is shared by all elements must read a mapped one as it will be there in `apply`: batched.
        for level in prologue.traced.levels(picks):
            for part in prologue.traced.alike(level):
                prologue.make(part, axes, bind)

    def bind(self, value: PyTree) -> PyTree:
        """An initial value as the scopes outside will hold it; what is computed from it must use this one."""
        if not self.nested:
            return value
        value = tag(value)
        self._note_bound(value)
        return value

    def _note_bound(self, value: PyTree) -> None:
        self._bound |= {id(leaf): leaf for leaf in jax.tree.leaves(value)}

    def is_bound(self, value: PyTree) -> bool:
        """Whether a value is one that was bound, and not another one computed from that: the very same arrays."""
        return all(id(leaf) in self._bound for leaf in jax.tree.leaves(value))

    def made(self, created: Sequence[PyTree]) -> None:
        """Tells those who watch which initial values were made outside of the lift; the others are None."""
        if self.watched is not None:
            self.watched.settle(created)

    def scope_fn(
        self,
        variable_groups: Any,
        rng_groups: Any,
        mutable: Filter = True,
        *,
        hoisted: bool = False,
        words: Callable[[int], Any] | None = None,
        fresh: frozenset[str] = frozenset(),
        remade: frozenset[Path] = frozenset(),
        casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({}),
    ) -> PyTree:
        """Scopes from groups, of the structure that the lifted function was given.

        Args:
            variable_groups: the groups of variables.
            rng_groups: those of PRNG sequences.
            mutable: a filter for the variables that may be written, of those that an output group takes.
            hoisted: whether created values are marked so that `hoist` can cut them out.
            words: what the scopes below each outermost scope ask for the words of their draws.
            fresh: the names of sequences that begin anew: their keys depend on the path and the count below each
                outermost scope only, and their draws are not counted outside.
            remade: variables, by their paths from the root, that exist and whose initializers run all the same: for the
                keys that these draw, so that the draws that follow are those of a body that creates them.
            casts: see `Tree`.
        """
        # What a body creates at the level of the scopes outside is bound as it is made: no one has to cut it out.
        inline = self.nested and not hoisted and self._at_level_outside()
        roots = reconstruct(self.layout, self.outers, variable_groups, rng_groups, mutable, hoisted or inline, fresh)
        if inline:
            self._inline += roots
        self._fresh = fresh
        watch = None if self.watched is None else self.watched.body()
        for index, (root, outer) in enumerate(zip(roots, self.outers, strict=True)):
            root.tree.watch = watch
            if words is not None:
                root.tree.word = words(index)
            root.tree.remade = outer.tree.remade | remade
            root.tree.casts = {**outer.tree.casts, **casts} if casts else outer.tree.casts
            if not self._live:  # a raw transformation lies between: its scopes may be read, no more
                root.tree.trace = outer.tree.trace
        scopes = [roots[index].below(route).rewound() for index, route in self.layout.routes]
        for scope, names in zip(scopes, self.layout.names, strict=True):
            scope.enter_names(names)
        packed = jax.tree.unflatten(self.layout.scopes, scopes)
        self._made.append((roots, scopes, packed))
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
        roots, given = self._made_as(scopes)
        return self._end(roots, given, *repack(self.layout, roots))

    def repacked(self, scopes: PyTree) -> tuple[PyTree, ...]:
        """The same for who leaves the groups as they are: `unchanged`, where that is what they would tell."""
        roots, given = self._made_as(scopes)
        if True in [root.tree.changed for root in roots]:
            return self._end(roots, given, *repack(self.layout, roots))
        return self._end(roots, given, self.unchanged, ((),) * len(roots))

    def _made_as(self, scopes: PyTree) -> tuple[list[Scope], list[Scope]]:
        """The outermost scopes and the given ones, of what `scope_fn` returned."""
        for roots, given, packed in self._made:
            if packed is scopes:
                for root in roots:
                    root.check_valid()
                return roots, given
        raise LiftArgumentError(
            f"repack_fn of {self.where}",
            f"expected what `scope_fn` returned, given {type(scopes).__name__}.",
            "Write `scope = scope_fn(variable_groups, rng_groups)`, and later `repack_fn(scope)`.",
        )

    def _end(
        self,
        roots: Sequence[Scope],
        scopes: Sequence[Scope],
        groups: tuple[PyTree, ...],
        sown: tuple[tuple[Sown, ...], ...],
    ) -> tuple[PyTree, ...]:
        self.records.append(self.record(roots, scopes, sown))
        for root in roots:
            if root in self._inline:
                self._note_bound(list(root.tree.created.values()))
            root.invalidate()
        return groups

    def record(self, roots: Sequence[Scope], scopes: Sequence[Scope], sown: tuple[tuple[Sown, ...], ...]) -> Record:
        """What was drawn, named and sown under scopes made inside."""
        draws = {
            (index, path, name): count
            for index, root in enumerate(roots)
            for path, name, count in _advances(root.node)
            if name not in self._fresh
        }
        names = tuple([inner.names() for inner in scopes])
        mixed = frozenset([(index, path) for index, root in enumerate(roots) for path in root.tree.mixed])
        rewound = tuple(
            (index, path, tuple(kept | self._fresh for kept in each))
            for index, root in enumerate(roots)
            if root.tree.rewound
            for path, each in _rewinds(root.node)
        )
        return Record(tuple(draws.items()), names, sown, mixed, rewound)

    def forget(self) -> None:
        """Lets go of the values that were bound, which must not outlive their trace."""
        self._bound, self._inline = {}, []

    def enter(self) -> None:
        """Tells the scopes outside that the body begins to run."""
        for outer in self.outers:
            outer.tree.enter_lift(self.layout.name)

    def leave(self) -> None:
        """Tells them that it ended; the scopes that were made inside end too."""
        for outer in self.outers:
            outer.tree.leave_lift()
        for roots, _, _ in self._made:
            for root in roots:
                if root.tree.alive:
                    root.invalidate()


def call_inside(fn: Callable[..., Any], scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of the user's from another one that a lift made of it, which is called with scopes inside.

    Raises:
        LiftArgumentError: where the function cannot take what it is called with.
    """

    def where() -> str:
        scope = next(leaf for leaf in jax.tree.leaves(scopes, is_leaf=_is_scope) if _is_scope(leaf))
        return f"{scope.tree.lift.name} at {scope.tree.lift.outer.path_text}"

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


def lift_across(across: Callable[..., Any], groups: Groups, name: str, shown: bool = True) -> Callable[..., Any]:
    """The lifted function.

    Args:
        across: called as `across(crossing, variable_groups, rng_groups, *args, **kwargs)`; returns the result and the
            output groups.
        groups: what it takes in and lets out.
        name: how it shows in the paths of errors.
        shown: whether it does so in those of scopes inside.
    """

    def lifted(scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        outers, given, routes, structure = dedupe(scopes)
        variable_groups, rng_groups, left = filter_(outers, groups.into, groups.keys)
        surroundings = tuple([(type(outer), *outer.tree.surroundings) for outer in outers])
        names = tuple([scope.names() for scope in given])
        layout = Layout(name, groups, structure, routes, surroundings, names, left, shown)
        crossing = Crossing(layout, outers, given)
        crossing.enter()
        try:
            result, changes = across(crossing, variable_groups, rng_groups, *args, **kwargs)
        finally:
            crossing.leave()
        commit(crossing, changes)
        crossing.forget()
        if crossing.watched is not None:
            crossing.watched.close(crossing)
        return result

    lifted.__name__ = lifted.__qualname__ = name
    return lifted


def _check_output(crossing: Crossing, output: Any) -> tuple[Any, Sequence[PyTree]]:
    """Checks what a transformation of the user's own returned."""
    wanted, captures = len(crossing.layout.groups.out), crossing.layout.groups.captures
    result, groups = output if isinstance(output, tuple) and len(output) == 2 else (None, ())
    right = isinstance(groups, tuple | list) and len(groups) == wanted + (captures is not None)
    if not right or not isinstance(output, tuple) or not all(isinstance(group, Changes) for group in groups[:wanted]):
        raise LiftArgumentError(
            crossing.where,
            f"a transformation returns the result and the output groups, one `Changes` for each of its {wanted} output "
            f"filters{' and the captured values' if captures else ''}; given {jax.tree.structure(output)}.",
            "Write `return result, repack_fn(scope)`.",
        )
    return result, groups


def dedupe(scopes: PyTree) -> tuple[list[Scope], list[Scope], tuple[tuple[int, Path], ...], Any]:
    """Finds the outermost distinct scopes.

    Returns:
        Those; the given scopes as a list; for each of these, the index of its outermost scope and the route from there;
        and the pytree structure of the given scopes.
    """
    given, structure = jax.tree.flatten(scopes, is_leaf=_is_scope)
    for scope in given:
        if not isinstance(scope, Scope):
            raise LiftArgumentError(
                "the first argument of a lifted function",
                f"expected a scope, or a pytree of scopes, given {shown(scope)}.",
                "Pass the scope whose variables are lifted; modules have lifts of their own, under the same names.",
            )
        scope.check_valid()
    if len(given) == 1:  # as most lifts are given
        return given, given, ((0, ()),), structure

    def holds(outer: Scope, inner: Scope) -> bool:
        return outer.tree is inner.tree and inner.path[: len(outer.path)] == outer.path

    outers: list[Scope] = []
    routes: list[tuple[int, Path]] = []
    for scope in given:
        outermost = min((other for other in given if holds(other, scope)), key=lambda other: len(other.path))
        same = (index for index, outer in enumerate(outers) if holds(outer, outermost))
        index = next(same, len(outers))
        if index == len(outers):
            outers.append(outermost)
        routes.append((index, scope.path[len(outers[index].path) :]))
    return outers, given, tuple(routes), structure


def filter_(
    outers: Sequence[Scope], in_filters: Sequence[Predicate], rng_filters: Sequence[Predicate]
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], tuple[tuple[Path, ...], ...]]:
    """Groups the variables and the PRNG sequences of scopes; what no filter takes is in no group.

    Returns:
        The groups of variables, those of sequences, and for each scope the paths of the variables in no group.
    """
    parts = [filters.partition(outer.collections_below(), in_filters, outer.path, empty=True) for outer in outers]
    keys = [[dict(group_sequences(outer.tree, rng_filters, i)) for i in range(len(rng_filters))] for outer in outers]
    left = tuple([tuple(path for path, _ in filters.leaves_of(rest)) if rest else () for _, rest in parts])
    return tuple(zip(*[taken for taken, _ in parts], strict=True)), tuple(zip(*keys, strict=True)), left


def reconstruct(
    layout: Layout,
    outers: Sequence[Scope],
    variable_groups: Sequence[PyTree],
    rng_groups: Sequence[PyTree],
    mutable: Filter = True,
    hoisted: bool = False,
    fresh: Container[str] = (),
) -> list[Scope]:
    """Makes live scopes inside, at the paths of those outside."""
    roots = []
    for index, outer in enumerate(outers):
        variables = filters.merge(*[group[index] for group in variable_groups])
        keys = [group[index] for group in rng_groups]
        rngs, fallbacks = inner_sequences(outer.tree, layout.groups.keys, keys, fresh)
        writable, taken = outer.tree.mutable, layout.groups.taken
        if (type(writable), writable) != (type(taken), taken):  # inside an equal lift they are the same already
            writable = filters.intersect(writable, taken)
        tree = Tree(
            variables,
            rngs,
            writable if mutable is True else filters.intersect(writable, mutable),
            base=outer.path,
            root=outer.node.copy_counts(fresh),
            fallbacks=fallbacks,
            initializing=outer.tree.initializing,
            lift=Lift(outer, layout.name if layout.shown else "", layout.groups, hoisted),
            left=(*layout.left[index], *outer.tree.left),
            word=functools.partial(_word, outer, fresh) if fresh else outer.tree.word,
        )
        roots.append(outer.at(tree, tree.root, outer.path, None))
    return roots


def repack(layout: Layout, roots: Sequence[Scope]) -> tuple[tuple[PyTree, ...], tuple[tuple[Sown, ...], ...]]:
    """Groups what scopes inside created or wrote; what they only read is left out.

    Returns:
        The output groups, and what is static about the captured values in the last of them.
    """
    values, created = [], []
    for root in roots:
        tree = root.tree
        values.append(_classed(layout, root, {path: root.value_at(path) for path in tree.written}))
        created.append(_classed(layout, root, tree.created))
    groups: list[Any] = list(map(Changes, zip(*values, strict=True), zip(*created, strict=True)))
    if layout.groups.captures:
        groups.append(tuple([value for _, value in root.tree.sown] for root in roots))
    return tuple(groups), tuple(tuple(sown for sown, _ in root.tree.sown) for root in roots)


def _is_scope(value: Any) -> bool:
    return isinstance(value, Scope)


def _classed(layout: Layout, root: Scope, changed: Mapping[Path, Any]) -> list[PyTree]:
    """The trees of changed variables, one for each output filter."""
    if not changed:
        return [{} for _ in layout.groups.out]
    nested: dict[str, Any] = {}
    for path, value in changed.items():
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    parts, rest = filters.partition(nested, layout.groups.out, root.path)
    if rest:
        names = sorted("/".join(path) for path, _ in filters.leaves_of(rest))
        raise UnliftedCollectionError(
            root.path_text,
            f"{names} was written, but no output group takes it.",
            "Add a filter for it to the variables that the lift takes.",
        )
    return parts


def _word(outer: Scope, fresh: Container[str], path: Path, name: str, count: int, rewound: int) -> Any:
    """The word of a draw; that of a fresh sequence depends on nothing above the scope where it began."""
    if name in fresh:
        return rng.word((*path[len(outer.path) :], count))
    return outer.tree.word(path, name, count, rewound)


def _advances(node: Node, path: Path = ()) -> Iterator[tuple[Path, str, int]]:
    """How many keys were drawn at and below a node since it was made, or since it was rewound."""
    counts, rewinds = node.began
    earlier = len(rewinds)
    for name, count in node.counts.items():
        went_on = all(name in kept for kept in node.rewinds[earlier:])
        drawn = count - (counts.get(name, 0) if went_on else 0)
        if drawn > 0:
            yield path, name, drawn
    for name, child in node.children.items():
        yield from _advances(child, (*path, name))


def _rewinds(node: Node, path: Path = ()) -> Iterator[tuple[Path, tuple[frozenset[str], ...]]]:
    """Where scopes were rewound, at and below a node; what is below one of these was rewound with it."""
    _, rewinds = node.began
    if len(node.rewinds) > len(rewinds):
        yield path, node.rewinds[len(rewinds) :]
        return
    for name, child in node.children.items():
        yield from _rewinds(child, (*path, name))

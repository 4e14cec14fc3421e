"""The caller's side of the crossing: objects become refs, and the body's changes are applied to them afterwards.

The core speaks of collections, which are groups here, and of its own options. While a transformation runs, its errors
name paths, axes and `StateAxes` instead.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

import liftcore
from liftcore import Scope, trace_state
from liftcore.errors import Words, wording
from liftcore.pytrees import check_acyclic, too_deep

from ..errors import StructureError, TraceContextError
from ..graph.definition import path_of, path_text, static
from ..graph.walk import SINGLE, Builder, Walk, value_of
from ..objects.markers import NATIVE, children_with_path
from ..objects.pytree import Pytree
from ..variablelib.kinds import RngState
from ..variablelib.variable import Variable
from .groups import Change, Group, Groups, Name, Ref, Still, Values, holds_objects, is_ref, parts_of, refs_in
from .inside import check_no_filters, encode_part
from .kept import Used, find, keep

__all__ = ["Outside", "crossed", "decoded", "still"]


# --- errors of the core, in terms of objects --------------------------------------------------------------------------

_running: contextvars.ContextVar[tuple[Groups, Any] | None] = contextvars.ContextVar("running", default=None)

_SPLIT = (
    "Give each element keys of its own: pass `rngs.split(…)`, or split during the call, "
    "`nnx.split_rngs(splits=…)(nnx.{}(…))`."
)
"""The fix for streams that are mapped over without having been split."""


@contextlib.contextmanager
def in_terms_of(groups: Groups, walk: Any) -> Iterator[None]:
    """Let errors of the core speak of objects while the block runs.

    Args:
        groups: the groups of the transformation.
        walk: the walk over the arguments; its `holders` are the variables by group and key.
    """
    before = _running.set((groups, walk))
    try:
        yield
    finally:
        _running.reset(before)


@wording
def _of_objects(words: Words) -> Words:
    """Return the words for users of objects, if a transformation is running: paths, axes and `StateAxes`."""
    running = _running.get()
    if running is None:
        return words
    named = _Named(*running)
    return words._replace(
        first="",
        broadcast="None",
        aside=lambda text: "",
        place=lambda lift, path: lift if path == "/" else words.place(lift, path),
        option=lambda lift, name: "in_specs" if name == "variable_specs" else words.option(lift, name),
        path=named.path,
        setting=named.setting,
        sharing=named.sharing,
    )


class _Named:
    """Names the variables of a crossing. Paths and code for other variables remain as they are."""

    def __init__(self, groups: Groups, walk: Any) -> None:
        self._groups = groups
        self._holders: Mapping[str, Mapping[Any, Any]] = walk.holders

    def _is_ours(self, path: str) -> bool:
        return path.partition("/")[0] in self._groups.specs

    def path(self, path: str) -> str:
        """Return the path of a variable. The key of a variable that is itself an argument ends with a dot."""
        return path.partition("/")[2].removesuffix(".") if self._is_ours(path) else path

    def setting(self, code: str, option: str, value: str, paths: Sequence[str]) -> str:
        """Return the code that treats variables of some kinds apart from the others."""
        if not self._is_ours(paths[0]):
            return code
        if option == "variable_specs":
            return self._by_kind("StateSharding", paths, value, "P()")
        return self._by_kind("StateAxes", paths, "nnx.Carry" if option == "variable_carry" else value, "None")

    def sharing(self, sentence: str, code: str, paths: Sequence[str]) -> str:
        """Return the advice for variables of another size: for streams, to split them."""
        if paths and not self._is_ours(paths[0]):
            return sentence.format(code)
        if any(isinstance(self._holder(path), RngState) for path in paths):
            return _SPLIT.format(self._groups.where.partition("(")[0])
        return sentence.format(self._by_kind("StateAxes", paths[:1], "None", "0")) if code else sentence

    def _by_kind(self, name: str, paths: Sequence[str], spec: str, others: str) -> str:
        holders = [type(one) for one in map(self._holder, paths) if isinstance(one, Variable)]
        kinds = dict.fromkeys([f"{'nnx.' * _is_here(kind)}{kind.__name__}" for kind in holders])
        named = f"({', '.join(kinds)})" if len(kinds) > 1 else "".join(kinds)
        return f"`nnx.{name}({{{named}: {spec}, ...: {others}}})`" if kinds else f"`nnx.{name}({{...: {spec}}})`"

    def _holder(self, path: str) -> Any:
        group, _, key = path.partition("/")
        holders = self._holders.get(group, {})
        found = [holder for name, (holder, _) in holders.items() if f"{key}/".startswith(f"{name}/")]
        return found[0] if found else None


def _is_here(kind: type) -> bool:
    return kind.__module__.startswith("nnx_like.")


# --- the caller's side ------------------------------------------------------------------------------------------------


class Outside:
    """The caller's side of one call.

    Args:
        groups: the groups of the transformation.
        args: a pytree that may hold objects.
        prefix: the encoded groups of what is in it; a pytree prefix.
        what: the name of that prefix in errors.
        cached: whether a trace may be reused. If so, an object that may change unnoticed is different in each call.
        name: the name of the pytree in errors, or a function that names its parts.
        packs: whether the values are `Values`, which are read-only.

    Attributes:
        args: the pytree with a `Ref` for each object.
        walk: the walk over it.
        values: its values, by group and key.
    """

    def __init__(
        self,
        groups: Groups,
        args: Any,
        prefix: Any,
        what: str = "in_axes",
        cached: bool = True,
        name: Name = "",
        packs: bool = False,
    ) -> None:
        self._groups, self._packs = groups, packs
        self.walk: Walk | Used
        try:
            self.walk, self.args = crossed(groups, args, prefix, what, object() if cached else None, name)
        except RecursionError:
            raise too_deep(groups.where, "objects are", StructureError) from None
        self.values: Mapping[str, Mapping[str, Any]]
        if not packs:
            self.values = self.walk.values
        elif isinstance(self.walk, Used):
            self.values = self.walk.packed
        else:
            found = self.walk.values.items()
            self.values = {group: Values(Still(tuple(held)), list(held.values())) for group, held in found}

    @contextlib.contextmanager
    def scope(self, mutable: Any = False) -> Iterator[Scope]:
        """Return a scope over the values, in which nothing can be created; it ends with the `with` block.

        Args:
            mutable: a filter for the groups that may be written in it.
        """
        bound = liftcore.bind(self.values, mutable=mutable, creates=False)
        with in_terms_of(self._groups, self.walk), bound.temporary() as scope:
            yield scope

    def call(self, lifted: Callable[..., Any], *args: Any, mutable: Any = False, **kwargs: Any) -> Any:
        """Call a lifted function whose body returns the result of `Inside.encode`, and then calls `leave`.

        Args:
            lifted: called as `lifted(scope, *args, **kwargs)`.
            args: the arguments, with refs in them.
            mutable: a filter for the groups that may be written.
            kwargs: the keyword arguments, with refs in them.
        """
        with self.scope(mutable) as scope:
            return self.leave(scope, *lifted(scope, *args, **kwargs))

    def leave(self, scope: Scope, result: Any, home: Any, change: Change) -> Any:
        """Apply the changes of the objects inside to the caller's objects: all of them or none.

        Args:
            scope: the scope that was lifted.
            result: the result of the body, with refs.
            home: new and written values, by group; see `Inside.encode`.
            change: the change of the structure.

        Returns:
            The result with objects.

        Raises:
            TraceContextError: if an object that would have to change belongs to another trace.
        """
        now = scope.collections_below()

        def read(group: str, key: Any) -> Any:
            if type(key) is not str:
                return home[group][0][key]
            written = home[group][1] if group in home else {}
            return written[key] if key in written else now[group][key]

        if change.definitions is None:
            self._write(now, home)
            if not _holds_ref(result):
                return result
        nodes = self.walk.nodes
        existing = {index: nodes[place] for index, place in enumerate(change.was) if place is not None}
        rebuilder = Rebuilder(read, existing, self._other_trace)
        rebuilder.table = dict(existing) if change.definitions is None else {}
        for definition in change.definitions or ():
            rebuilder.build(definition)
        result = decoded(rebuilder, result)
        rebuilder.commit()
        return result

    def abstract(self, result: Any, home: Any, change: Change) -> Any:
        """Return the result of a body that was only traced. All its objects are new, and no object changes."""
        if not _holds_ref(result):
            return result
        written = {(group, key): value for group, (_, values) in home.items() for key, value in values.items()}

        def read(group: str, key: Any) -> Any:
            if type(key) is not str:
                return home[group][0][key]
            found = written.get((group, key), self.walk.values.get(group, {}).get(key))
            return jax.tree.map(_shape, found)

        builder = Builder(read)
        for definition in change.definitions or [ref.definition for ref in refs_in(self.args)]:
            builder.build(definition)
        return decoded(builder, result)

    def finish(self, scope: Scope, carry: Any) -> Any:
        """`leave` for a lift that changes no structure and whose values all passed through the scope.

        Args:
            scope: the scope that was lifted.
            carry: a part of `args`, as the lift returned it.
        """
        self.leave(scope, (), {}, Change(None, tuple(range(len(self.walk.nodes)))))
        return self.given(carry)

    def given(self, carry: Any) -> Any:
        """Return a pytree with objects in place of refs of `args`."""

        def one(leaf: Any) -> Any:
            return self.walk.nodes[leaf.definition.number] if type(leaf) is Ref else leaf

        return jax.tree.map(one, carry, is_leaf=is_ref)

    def place(self, shardings: Mapping[str, Any]) -> None:
        """Move arrays to the shardings that the lift expects; `leave` stores them in variables that were not written.

        Then the next call has nothing to move. A variable of another trace, which may not change, keeps its value.

        Args:
            shardings: a `jax.sharding.Sharding` for each group.
        """
        trace, holders = trace_state(), self.walk.holders
        moved: dict[str, dict[str, Any]] = {}
        for group, sharding in shardings.items():
            for key, value in self.values.get(group, {}).items():
                holder, form = holders[group][key]
                owner = holder[0] if type(holder) is tuple else holder
                if form is None and owner._trace == trace and _is_elsewhere(value, sharding):
                    moved.setdefault(group, {})[key] = jax.device_put(value, sharding)
        if moved:
            self.values = {
                **self.values,
                **{group: {**self.values[group], **arrays} for group, arrays in moved.items()},
            }

    def _write(self, now: Mapping[str, Any], home: Mapping[str, Any]) -> None:
        """Write the values that changed, in the scope or in what the body returned, where they came from."""
        news = {group: written for group, (_, written) in home.items() if written}
        for group, old in (self.values if self._packs else self.walk.values).items():
            if now[group] is not old:  # a collection that was not written is the one that was given
                changed = {key: new for key, new in now[group].items() if new is not old[key]}
                if changed:
                    news[group] = {**changed, **news.get(group, {})}
        trace = trace_state()
        if not news or (isinstance(self.walk, Used) and self.walk.write(news, trace)):
            return
        holders, writes = self.walk.holders, []
        for group, key, new in [(group, *pair) for group, values in news.items() for pair in values.items()]:
            holder, form = holders[group][key]
            owner = holder[0] if type(holder) is tuple else holder
            if owner._trace != trace:
                raise self._other_trace(owner)
            writes.append((holder, new if form is None else value_of(new, form)))
        for holder, new in writes:
            if type(holder) is tuple:
                _replace(holder, new)
            else:
                _put_value(holder, new)

    def _other_trace(self, owner: Pytree | Variable) -> TraceContextError:
        """Return the error for an object, or a variable, of another trace that would have to change."""
        number = next((number for number, node in enumerate(self.walk.nodes) if node is owner), -1)
        paths = [path_of(ref.definition, number, (ref.base.removesuffix("."),)) for ref in refs_in(self.args)]
        place = next((f"the {type(owner).__name__} at {path_text(path)}" for path in paths if path), None)
        return TraceContextError(
            place or f"a {type(owner).__name__}",
            f"{self._groups.where} changed it, but it was created outside the transformation that makes the call.",
            "Pass it as an argument of the outer function too, instead of using it by closure.",
            given=type(owner).__name__,
        )


_put_value = Variable.__dict__["_value"].__set__


def crossed(
    groups: Groups, args: Any, prefix: Any, what: str, unknown: object = None, name: Name = ""
) -> tuple[Walk | Used, Any]:
    """Return a walk over a pytree, and the pytree with a `Ref` for each object.

    If the objects are the same as in an earlier call, a kept walk is used. No walk is kept for an object in a list or
    another container, or if a filter decides the groups.
    """
    parts, structure = parts_of(groups, args, prefix, name, what)
    roots = [(base, group, part) for base, group, part in parts if isinstance(part, Pytree)]
    others = [part for _, _, part in parts if not isinstance(part, Pytree) and type(part) not in SINGLE]
    if others:
        check_acyclic(others)
    may_keep = bool(roots) and all(type(group) is Group for _, group, _ in roots)
    may_keep = may_keep and not (others and holds_objects(others))
    objects, key = [part for _, _, part in roots], tuple([(base, group.name) for base, group, _ in roots if may_keep])
    walk: Walk | Used | None = find(key, objects) if may_keep else None
    if isinstance(walk, Used):
        refs = iter(walk.refs)
        encoded = [next(refs) if isinstance(part, Pytree) else part for _, _, part in parts]
        for _, group, part in parts:
            if not group.many:
                check_no_filters(groups, part, what)
    else:
        walk = new = Walk(unknown, groups.alias_error)
        encoded = [encode_part(new, groups, part, group, base, what) for base, group, part in parts]
        if may_keep:
            keep(key, objects, new, [one for one in encoded if type(one) is Ref])
    return walk, encoded[0] if structure is None else jax.tree.unflatten(structure, encoded)


class Rebuilder(Builder):
    """A builder that can also change existing objects, when `commit` is called."""

    __slots__ = ("changes", "error", "owner")

    def __init__(self, read: Callable[[str, Any], Any], existing: Any, error: Callable[[Any], Exception]) -> None:
        super().__init__(read, existing)
        self.error = error
        self.changes: list[Callable[[], None]] = []
        self.owner: Any = None

    def _object(self, definition: Any) -> Any:
        around, self.owner = self.owner, self.existing.get(definition.number)
        try:
            return super()._object(definition)
        finally:
            self.owner = around

    def _change_container(self, made: Any, items: Any) -> None:
        self._plan(self.owner, lambda: _same_items(made, items), super()._change_container, made, items)

    def _change_object(self, made: Any, attributes: dict[str, Any]) -> None:
        self._plan(made, lambda: _same_items(vars(made), attributes), super()._change_object, made, attributes)

    def _change_variable(self, made: Any, value: Any, metadata: dict[str, Any]) -> None:
        def is_same() -> bool:
            return made._value is value and bool(made._metadata == metadata)

        self._plan(made, is_same, super()._change_variable, made, value, metadata)

    def _plan(self, owner: Any, is_same: Callable[[], bool], change: Callable[..., None], *args: Any) -> None:
        """Plan a change for `commit`. An object of another trace may only stay the same."""
        if owner is None or owner._trace == self.trace:
            self.changes.append(functools.partial(change, *args))
        elif not is_same():
            raise self.error(owner)

    def commit(self) -> None:
        """Change the objects."""
        for change in self.changes:
            change()


def _same_items(made: Any, items: Any) -> bool:
    if isinstance(made, dict):
        return list(made) == list(items) and _same_items([*made.values()], [*items.values()])
    if isinstance(made, set):
        return bool(made == items)
    return len(made) == len(items) and all(map(operator.is_, made, items))


def _is_elsewhere(value: Any, sharding: jax.sharding.Sharding) -> bool:
    """Return whether an array is placed differently from a sharding. False if the sharding does not fit the array."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return False
    try:
        sharding.shard_shape(value.shape)
    except ValueError:
        return False
    now = value.sharding
    return not now.is_equivalent_to(sharding, value.ndim)


def _shape(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)


def decoded(builder: Builder, result: Any) -> Any:
    """Return a pytree with an object in place of each `Ref`, and with the static values in it.

    Args:
        builder: makes the objects.
        result: the pytree.
    """

    def one(leaf: Any) -> Any:
        return builder.build(leaf.definition) if is_ref(leaf) else leaf

    return jax.tree.map(one, result, is_leaf=is_ref)


def _holds_ref(tree: Any) -> bool:
    return any(map(is_ref, jax.tree.leaves(tree, is_leaf=is_ref)))


def still(value: Any, where: str) -> Still:
    """Return a static argument as a pytree node without leaves."""
    return Still(static(value, (where,), object()))


def _replace(place: tuple[Any, ...], new: Any) -> None:
    """Replace an array in an attribute, or in a container that is an attribute."""
    owner, name, *path = place
    held = vars(owner)
    held[str(name)] = _replaced(held[str(name)], path, new)


def _replaced(container: Any, path: list[Any], new: Any) -> Any:
    if not path:
        return new
    step, *rest = path
    if type(container) in NATIVE:
        container[step] = _replaced(container[step], rest, new)
        return container
    if type(container) is tuple:
        return (*container[:step], _replaced(container[step], rest, new), *container[step + 1 :])
    pairs, structure = children_with_path(container)
    children = [child for _, child in pairs]
    children[step] = _replaced(children[step], rest, new)
    return jax.tree.unflatten(structure, children)

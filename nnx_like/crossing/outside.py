"""Outside: the caller's side of the crossing. Objects become refs; what a body did to them is done to them at last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

import liftcore
from liftcore import Scope, trace_state

from ..errors import TraceContextError
from ..graph.build import Builder, value_of
from ..graph.definition import static
from ..graph.walk import Walk
from ..objects.pytree import Pytree
from ..variables.variable import Variable
from .groups import Groups
from .inside import encode
from .ref import Change, Ref, Still

__all__ = ["Outside", "still"]


class Outside:
    """The caller's side of one call.

    Args:
        groups: the groups of the transformation.
        args: a pytree that may hold objects.
        prefix: the groups of what is in it, encoded; a pytree prefix.
        what: what errors call that prefix.

    Attributes:
        args: the pytree with a `Ref` for each object.
        walk: what was met in it.
    """

    def __init__(self, groups: Groups, args: Any, prefix: Any, what: str = "in_axes") -> None:
        self.walk = Walk(unknown=object())
        self.args = encode(self.walk, groups, args, prefix, "", what)

    @contextlib.contextmanager
    def scope(self, mutable: Any = False) -> Iterator[Scope]:
        """A scope over the values, in which nothing can be created; it ends with the `with` block.

        Args:
            mutable: a filter of the groups that may be written in it.
        """
        with liftcore.bind(self.walk.values, mutable=mutable, creates=False).temporary() as scope:
            yield scope

    def call(self, lifted: Callable[..., Any], *args: Any, mutable: Any = False, **kwargs: Any) -> Any:
        """Calls a lifted function whose body returns what `Inside.encode` gave, and leaves.

        Args:
            lifted: called as `lifted(scope, *args, **kwargs)`.
            args: the arguments, with refs in them.
            mutable: a filter of the groups that may be written.
            kwargs: likewise.
        """
        with self.scope(mutable) as scope:
            return self.leave(scope, *lifted(scope, *args, **kwargs))

    def leave(self, scope: Scope, result: Any, home: Any, change: Change) -> Any:
        """Does to the objects what was done to those inside, all of it or nothing.

        Args:
            scope: the scope that was lifted.
            result: the result of the body, with refs.
            home: new values, and written ones, by group; see `Inside.encode`.
            change: what became of the structure.

        Returns:
            The result with objects.

        Raises:
            TraceContextError: where an object belongs to another trace, and would have to change.
        """
        now = scope.collections_below()
        written = {group: values for group, (_, values) in home.items() if values}
        if written:
            now = {**now, **{group: {**now.get(group, {}), **values} for group, values in written.items()}}

        def read(group: str, key: Any) -> Any:
            return now[group][key] if type(key) is str else home[group][0][key]

        if change.definitions is None:
            nodes = self.walk.nodes
            known = [None if place is None else nodes[place] for place in change.was]
            self._write(now)
            if not _holds_ref(result):
                return result
            builder = Builder(read)
            builder.table = {index: node for index, node in enumerate(known) if node is not None}
            return _decoded(builder, result)
        builder = Rebuilder(read, [None if place is None else self.walk.nodes[place] for place in change.was])
        for definition in change.definitions:
            builder.build(definition)
        result = _decoded(builder, result)
        builder.commit()
        return result

    def abstract(self, result: Any, home: Any, change: Change) -> Any:
        """The result of a body that did not really run, with objects that are all new; no object changes."""
        written = {(group, key): value for group, (_, values) in home.items() for key, value in values.items()}

        def read(group: str, key: Any) -> Any:
            if type(key) is not str:
                return home[group][0][key]
            found = written.get((group, key), self.walk.values.get(group, {}).get(key))
            return jax.tree.map(_shape, found)

        builder = Builder(read)
        refs = [leaf for leaf in jax.tree.leaves(self.args, is_leaf=_is_ref) if type(leaf) is Ref]
        for definition in change.definitions or [ref.definition for ref in refs]:
            builder.build(definition)
        return _decoded(builder, result)

    def finish(self, scope: Scope, result: Any) -> Any:
        """`leave` for a lift that changes no structure and brings no value home: all went through the scope."""
        return self.leave(scope, result, {}, Change(None, tuple(range(len(self.walk.nodes)))))

    def _write(self, now: Any) -> None:
        """Writes the values that changed into the variables, and in the places, that they came from."""
        changed = []
        trace = trace_state()
        for group, key, holder, old, form, _ in self.walk.leaves:
            new = now[group][key]
            if new is not old:
                owner = holder[0] if type(holder) is tuple else holder
                if owner._trace != trace:
                    raise _other_trace(owner)
                changed.append((holder, new if form is None else value_of(new, form)))
        for holder, new in changed:
            if type(holder) is tuple:
                _replace(holder, new)
            else:
                object.__setattr__(holder, "_value", new)


class Rebuilder(Builder):
    """A builder that changes the objects which stand for an index already, when it is told to."""

    __slots__ = ("changes",)

    def __init__(self, read: Callable[[str, Any], Any], existing: Any) -> None:
        super().__init__(read, existing)
        self.changes: list[Callable[[], None]] = []

    def _change_object(self, made: Any, attributes: dict[str, Any]) -> None:
        held = vars(made)
        if made._trace != self.trace:
            if held.keys() != attributes.keys() or any(held[name] is not attributes[name] for name in held):
                raise _other_trace(made)
            return

        def change() -> None:
            held.clear()
            held.update(attributes)

        self.changes.append(change)

    def _change_variable(self, made: Any, value: Any, metadata: dict[str, Any]) -> None:
        if made._trace != self.trace:
            if made._value is not value or made._metadata != metadata:
                raise _other_trace(made)
            return

        def change() -> None:
            object.__setattr__(made, "_value", value)
            object.__setattr__(made, "_metadata", metadata)

        self.changes.append(change)

    def commit(self) -> None:
        """Changes the objects."""
        for change in self.changes:
            change()


def _other_trace(owner: Pytree | Variable) -> TraceContextError:
    return TraceContextError(
        f"a {type(owner).__name__}",
        "a transformed function changed it, and it was made outside of the transformation around the call.",
        "Pass it as an argument to the outer function too, instead of using it there by closure.",
    )


def _shape(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)


def _decoded(builder: Builder, result: Any) -> Any:
    def one(leaf: Any) -> Any:
        return builder.build(leaf.definition) if type(leaf) is Ref else leaf

    return jax.tree.map(one, result, is_leaf=_is_ref)


def _is_ref(value: Any) -> bool:
    return type(value) is Ref


def _holds_ref(tree: Any) -> bool:
    return type(tree) is Ref or any(type(leaf) is Ref for leaf in jax.tree.leaves(tree, is_leaf=_is_ref))


def still(value: Any, where: str) -> Still:
    """A static argument, as a pytree node without leaves."""
    return Still(static(value, (where,), object()))


def _replace(place: tuple[Any, ...], new: Any) -> None:
    """Puts an array where another one was: in an attribute, or in a container that is one."""
    owner, name, *path = place
    held = vars(owner)
    held[str(name)] = _replaced(held[str(name)], path, new)


def _replaced(container: Any, path: list[Any], new: Any) -> Any:
    if not path:
        return new
    step, *rest = path
    if isinstance(container, (list, dict)):
        container[step] = _replaced(container[step], rest, new)
        return container
    if type(container) is tuple:
        return (*container[:step], _replaced(container[step], rest, new), *container[step + 1 :])
    leaves, structure = jax.tree.flatten(container, is_leaf=lambda one: isinstance(one, (Pytree, Variable)))
    leaves[step] = _replaced(leaves[step], rest, new)
    return jax.tree.unflatten(structure, leaves)

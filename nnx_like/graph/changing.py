"""Graphs changed in place by states and filters: `update`, `pop`, `set_metadata`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import jax

from liftcore.errors import Expected, LiftArgumentError
from liftcore.owners import is_owner

from ..filterlib import Filter
from ..objects.markers import NATIVE, children_with_path, items_of, step_of
from ..objects.pytree import Pytree, attributes_of, check_live
from ..statelib.state import State
from ..variablelib.variable import Variable
from .definition import path_text
from .functions import Path, at_known_paths, grouped, listed, pairs_of_states
from .walk import is_object

__all__ = ["pop", "set_metadata", "update"]


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Write states into the variables of a graph, in place.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0))
        >>> nnx.update(model, {"w": 3.0})
        >>> model.w.get_value(), model.n.get_value()
        (3.0, 0)

    Args:
        node: an object, or a pytree that holds objects.
        state: a state or a nested mapping, which may cover only a part of the graph. A leaf that is a variable gives
            value and metadata; any other leaf gives a value. If the graph lacks a path, an attribute is created there.
        states: more states.

    Raises:
        LiftArgumentError: if a path leads to something that cannot hold variables, or a leaf is a variable of another
            library.
        TraceContextError: inside a transformation to which the graph was not passed.
    """
    here = dict(listed(node)[1])
    leaves = at_known_paths(pairs_of_states("update", (state, *states)), here)
    writes = [(path, leaf, here.get(path)) for path, leaf in leaves.items()]
    for path, _, found in writes:
        if isinstance(found, Variable):
            found.check_live()
        elif path:
            owner, _ = _owner(node, path)
            if isinstance(owner, Pytree):
                check_live(owner, str(path[-1]))
    for path, leaf, found in writes:
        if not isinstance(found, Variable):
            owner, below = _owner(node, path)
            if len(below) > 1:  # modules of other styles are values, so the owner gets a changed copy
                leaf = _replaced(_part(owner, below[0]), below[1:], leaf)
            _put(owner, below[0], leaf)
        elif isinstance(leaf, Variable):
            if leaf is not found:
                found.update_from_state(leaf)
        else:
            found.set_raw_value(leaf)


def _owner(node: Any, path: Path) -> tuple[Any, Path]:
    """Return the container of the attribute or item at a path, and the rest of the path from there.

    If the path enters a module of another style, it is the container that holds this module.
    """
    for number, name in enumerate(path[:-1]):
        try:
            part = _part(node, name)
        except (KeyError, IndexError, TypeError) as error:
            place = path_text(path[: number + 1])
            what = f"the graph has nothing at {place}."
            raise LiftArgumentError("update", what, "Create it first.", variable=place) from error
        if is_owner(part) and not isinstance(part, Pytree):
            return node, path[number:]
        node = part
    return node, path[-1:]


def _part(node: Any, name: Any) -> Any:
    if isinstance(node, jax.tree_util.Partial):
        return (node.args, node.keywords)[name]
    return vars(node)[str(name)] if isinstance(node, Pytree) else node[name]


def _replaced(part: Any, path: Path, leaf: Any) -> Any:
    """Return a copy of a pytree with another leaf at a path."""
    found, definition = jax.tree_util.tree_flatten_with_path(part, is_leaf=is_object)
    leaves = [leaf if tuple(map(step_of, keys)) == path else held for keys, held in found]
    return jax.tree.unflatten(definition, leaves)


def _put(owner: Any, name: Any, leaf: Any) -> None:
    if isinstance(owner, Pytree):
        setattr(owner, str(name), leaf)
    elif isinstance(owner, (list, MutableMapping)):
        owner[name] = leaf
    else:
        raise _unchangeable("update", owner, repr(name))


def _unchangeable(where: str, holder: Any, what: str) -> LiftArgumentError:
    return LiftArgumentError(
        where,
        f"a {type(holder).__name__} holds {what}, and cannot be changed in place.",
        "Keep the value in a `Variable`, a `List` or a list.",
        given=type(holder).__name__,
    )


def pop(node: Any, *filters: Filter) -> Any:
    """Remove the variables and arrays that filters match from a graph, at all their paths, and return them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), seen=nnx.Intermediate(1.0))
        >>> nnx.pop(model, nnx.Intermediate).to_pure_dict(), list(vars(model))
        ({'seen': 1.0}, ['w'])

    Args:
        node: an object, or a list or dict that holds objects.
        filters: one filter for each state; at least one.

    Returns:
        One `State`; for several filters a tuple of them.

    Raises:
        LiftArgumentError: if there is no filter, a filter asks for a name and matches nothing, or a variable is inside
            a value that cannot be changed.
        TraceContextError: inside a transformation to which the graph was not passed; then nothing is removed.
    """
    if not filters:
        what = Expected("a filter", given="none", words="none")
        raise LiftArgumentError("pop", what, "Write `pop(model, nnx.Intermediate)`.")
    groups = grouped(node, filters, where="pop")[1]
    found = [State.from_flat_path(pairs) for pairs in groups]
    removal = _Removal([pair for pairs in groups for pair in pairs])
    removal.visit(node, (), None)
    removal.commit()
    return found[0] if len(found) == 1 else tuple(found)


_GONE: Any = object()


class _Removal:
    """The changes that remove variables and arrays from a graph. Variables are removed at all their paths.

    Args:
        pairs: the variables and arrays, by path.
    """

    def __init__(self, pairs: list[tuple[Path, Any]]) -> None:
        self.gone = {id(leaf) for _, leaf in pairs if isinstance(leaf, Variable)}
        self.paths = {path for path, leaf in pairs if not isinstance(leaf, Variable)}
        self.seen: set[int] = set()
        self.changes: list[tuple[Any, dict[Any, Any]]] = []

    def visit(self, part: Any, path: Path, owner: Pytree | None) -> Any:
        """Return the replacement for a part of the graph: usually the part itself, `_GONE` if it is removed.

        Args:
            part: the part.
            path: the path to it.
            owner: the object that holds it.
        """
        if id(part) in self.gone or path in self.paths:
            return _GONE
        if isinstance(part, Variable) or id(part) in self.seen:
            return part
        if isinstance(part, Pytree):
            self.seen.add(id(part))
            self._visit_all(part, dict(attributes_of(part)), path, part)
        elif type(part) in NATIVE:
            self.seen.add(id(part))
            self._visit_all(part, dict(items_of(part)), path, owner)
        elif type(part) is tuple:
            now = [self.visit(one, (*path, number), owner) for number, one in enumerate(part)]
            if any(one is not before for one, before in zip(now, part, strict=True)):
                return tuple([one for one in now if one is not _GONE])
        elif not jax.tree_util.all_leaves((part,)):  # such as a partial function, which may hold objects
            for keys, child in children_with_path(part)[0]:
                if self.visit(child, (*path, *map(step_of, keys)), owner) is not child:
                    raise _unchangeable("pop", part, path_text(path))
        return part

    def _visit_all(self, holder: Any, parts: dict[Any, Any], path: Path, owner: Pytree | None) -> None:
        now = {name: self.visit(one, (*path, name), owner) for name, one in parts.items()}
        changed = {name: one for name, one in now.items() if one is not parts[name]}
        if changed:
            if owner is not None:
                check_live(owner, str(next(iter(changed))))
            self.changes.append((holder, changed))

    def commit(self) -> None:
        """Make the changes. Removes the last items of a list first, since later items move up."""
        for holder, changed in self.changes:
            for name, one in reversed(changed.items()):
                if one is not _GONE:
                    _put(holder, name, one)
                elif isinstance(holder, Pytree) and not isinstance(name, int):
                    delattr(holder, str(name))
                else:  # as in a list, the later items of a `List` move up
                    del holder[name]


def set_metadata(node: Any, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Set metadata of all variables of a graph that a filter matches.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0))
        >>> nnx.set_metadata(model, only=nnx.Param, frozen=True)
        >>> model.w.frozen, model.n.has_metadata("frozen")
        (True, False)

    Args:
        node: an object, or a pytree that holds objects.
        only: a filter for the variables.
        **metadata: names and values of the metadata.

    Raises:
        LiftArgumentError: if the filter asks for a name, and matches nothing.
        TraceContextError: inside a transformation to which the graph was not passed; then nothing is set.
    """
    [found] = grouped(node, [only], where="set_metadata")[1]
    chosen = [leaf for _, leaf in found if isinstance(leaf, Variable)]
    for variable in chosen:
        variable.check_live()
    for variable in chosen:
        variable.set_metadata(**metadata)

"""Graphs changed in place by states and filters: `update`, `pop`, `set_metadata`."""

from __future__ import annotations

from typing import Any

from liftcore.errors import LiftArgumentError

from ..filterlib import Filter, group
from ..objects.pytree import Pytree, attributes_of, check_live
from ..objects.traversal import iter_graph
from ..statelib.state import State
from ..variablelib.variable import Variable
from .definition import path_text
from .functions import Path, listed, pairs_of_states
from .walk import is_object

__all__ = ["pop", "set_metadata", "update"]


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Writes states into the variables of a graph, in place.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0))
        >>> nnx.update(model, {"w": 3.0})
        >>> model.w.get_value(), model.n.get_value()
        (3.0, 0)

    Args:
        node: an object, or a pytree that holds objects.
        state: a state or a nested mapping; it may be of a part of the graph. A leaf that is a variable brings its value
            and its metadata, another leaf a value. A path that the graph has not becomes an attribute.
        states: others.

    Raises:
        LiftArgumentError: where a path leads to what holds no variables.
        TraceContextError: inside a transformation that the graph was not passed to.
    """
    here = dict(listed(node)[1])
    writes = [(path, leaf, here.get(path)) for path, leaf in pairs_of_states((state, *states))]
    for path, _, found in writes:
        if isinstance(found, Variable):
            found.check_live()
        elif path:
            owner = _owner(node, path)
            if isinstance(owner, Pytree):
                check_live(owner, str(path[-1]))
    for path, leaf, found in writes:
        if not isinstance(found, Variable):
            _put(_owner(node, path), path[-1], leaf)
        elif isinstance(leaf, Variable):
            if leaf is not found:
                found.update_from_state(leaf)
        else:
            found.set_raw_value(leaf)


def _owner(node: Any, path: Path) -> Any:
    """What holds the attribute or the item at a path."""
    for number, name in enumerate(path[:-1]):
        try:
            node = vars(node)[str(name)] if isinstance(node, Pytree) else node[name]
        except (KeyError, IndexError, TypeError) as error:
            raise LiftArgumentError(
                "update", f"nothing is at {path_text(path[: number + 1])} of the graph.", "Make it first."
            ) from error
    return node


def _put(owner: Any, name: Any, leaf: Any) -> None:
    if isinstance(owner, Pytree):
        setattr(owner, str(name), leaf)
    elif isinstance(owner, (list, dict)):
        owner[name] = leaf
    else:
        raise LiftArgumentError(
            "update",
            f"a {type(owner).__name__} holds {name!r}, and cannot be changed.",
            "Keep the value in a `Variable`, a `List` or a list.",
        )


def pop(node: Any, *filters: Filter) -> Any:
    """Takes the variables that filters match out of a graph, wherever it refers to them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), seen=nnx.Intermediate(1.0))
        >>> nnx.pop(model, nnx.Intermediate).to_pure_dict(), list(vars(model))
        ({'seen': 1.0}, ['w'])

    Args:
        node: an object, or a pytree that holds objects.
        filters: for each state what it takes; at least one.

    Returns:
        One `State`; for several filters a tuple of them.
    """
    if not filters:
        raise LiftArgumentError("pop", "no filter says what to take.", "Write `pop(model, nnx.Intermediate)`.")
    pairs = [(path, leaf) for path, leaf in listed(node)[1] if isinstance(leaf, Variable)]
    groups = group(pairs, filters, complete=False)
    gone = {id(leaf) for pairs in groups for _, leaf in pairs}
    doomed = [
        (owner, name)
        for _, owner in iter_graph(node)
        if isinstance(owner, Pytree)
        for name, part in attributes_of(owner)
        if id(part) in gone or (not is_object(part) and _holds(part, gone))
    ]
    for owner, name in doomed:
        check_live(owner, str(name))
    for owner, name in doomed:
        part = vars(owner)[str(name)]
        if id(part) in gone:
            delattr(owner, str(name))
        else:
            vars(owner)[str(name)] = _without(part, gone)
    found = [State.from_flat_path(pairs) for pairs in groups]
    return found[0] if len(found) == 1 else tuple(found)


def _holds(part: Any, gone: set[int]) -> bool:
    """Whether a list or a dict holds one of some variables."""
    if isinstance(part, (list, tuple)):
        return any(id(one) in gone or _holds(one, gone) for one in part)
    return isinstance(part, dict) and any(id(one) in gone or _holds(one, gone) for one in part.values())


def _without(part: Any, gone: set[int]) -> Any:
    if isinstance(part, (list, tuple)):
        return type(part)([_without(one, gone) for one in part if id(one) not in gone])
    if isinstance(part, dict):
        return {name: _without(one, gone) for name, one in part.items() if id(one) not in gone}
    return part


def set_metadata(node: Any, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Sets metadata of all variables of a graph that a filter takes.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0))
        >>> nnx.set_metadata(model, only=nnx.Param, frozen=True)
        >>> model.w.frozen, model.n.has_metadata("frozen")
        (True, False)

    Args:
        node: an object, or a pytree that holds objects.
        only: which variables.
        **metadata: the metadata by name.

    Raises:
        TraceContextError: inside a transformation that the graph was not passed to; nothing is set then.
    """
    [found] = group(listed(node)[1], [only], complete=False)
    chosen = [leaf for _, leaf in found if isinstance(leaf, Variable)]
    for variable in chosen:
        variable.check_live()
    for variable in chosen:
        variable.set_metadata(**metadata)

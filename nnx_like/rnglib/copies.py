"""`with_rngs`: copies a graph and replaces some of its streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from liftcore.errors import LiftArgumentError, boundary, call_user, name_of

from ..filterlib import Everything, Filter, Predicate, to_predicate
from ..graph.definition import path_text
from ..objects.traversal import recursive_map
from .splitting import NOT_GIVEN, check_shape, check_whole, is_function, streams_of
from .streams import RngStream, Shape, check_takes

__all__ = ["with_rngs"]

_Change = Callable[[RngStream], RngStream]
_Rule = tuple[str, Any, Predicate, _Change]
"""A rule: the argument that it comes from, its filter as given and as a predicate, and its action."""


def with_rngs(
    node: Any = NOT_GIVEN,
    /,
    *,
    split: Mapping[Filter, Shape] | Shape | None = None,
    fork: Any = None,
    broadcast: Mapping[Filter, Shape] | Shape | None = None,
    only: Filter = True,
) -> Any:
    """Return a copy of a graph in which streams are split, forked or broadcast.

    The copy shares all other variables, and streams that no rule matches, with the original. A stream that a rule
    matches draws one key, which it counts; otherwise it does not change.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(params=0, dropout=1, noise=2)
        >>> new = nnx.with_rngs(rngs, split={"params": 4, "noise": (2, 4)}, fork=...)
        >>> new.params.key.shape, new.dropout.key.shape, new.noise.key.shape, rngs.params.key.shape
        ((4,), (), (2, 4), ())
        >>> new.params.count.get_value(), rngs.params.count.get_value()
        (Array([0, 0, 0, 0], dtype=uint32), Array(1, dtype=uint32))

    Args:
        node: an object, or a pytree of objects; if it is not given, the result is a decorator.
        split: the shape of the keys that streams are split into; or a mapping from filters to shapes, in which the
            first filter that matches a stream applies. A filter gets the path of a stream and the stream.
        fork: a filter, or a sequence of filters, for the streams that are forked.
        broadcast: like `split`, for the streams that repeat one new key.
        only: a filter for the streams to change.

    Returns:
        The new graph. Without `node`, or with a function in its place: a decorator of functions and methods, or the
        decorated function, which is called with graphs like its arguments.

    Raises:
        LiftArgumentError: if a stream is split already, or the filters of two arguments match it. `...`, or one shape
            for all streams, may overlap with another filter: `split` takes precedence, then `broadcast`.
        TraceContextError: if a stream belongs to another trace.
    """
    rules = [
        *_shaped("split", split, RngStream.split),
        *_shaped("broadcast", broadcast, RngStream.broadcast),
        *[("fork", one, to_predicate(one), RngStream.fork) for one in _filters(fork)],
    ]
    change = functools.partial(_changed, rules=rules, only=to_predicate(only))
    if node is NOT_GIVEN:
        return functools.partial(_decorated, change=change)
    return _decorated(node, change) if is_function(node) else change(node)


def _decorated(f: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    @boundary
    def changing(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change((args, kwargs))
        return call_user(name_of(f), f, *args, **kwargs)

    return changing


def _shaped(name: str, given: Any, change: Callable[[RngStream, Any], RngStream]) -> list[_Rule]:
    if given is None:
        return []
    rules: list[_Rule] = []
    for one, shape in (given if isinstance(given, Mapping) else {...: given}).items():
        check_shape(f"with_rngs({name}=)", shape)
        rules.append((name, one, to_predicate(one), lambda stream, shape=shape: change(stream, shape)))  # type: ignore[misc]
    return rules


def _filters(fork: Any) -> list[Any]:
    if fork is None:
        return []
    return list(fork) if isinstance(fork, list | tuple) else [fork]


def _changed(node: Any, rules: list[_Rule], only: Predicate) -> Any:
    changes: dict[int, _Change] = {}
    streams = list(streams_of(node))
    for matches in (only, *[rule[2] for rule in rules]):
        check_takes("with_rngs", matches, streams)
    for path, stream in streams:  # check everything before drawing the first key
        rule = _rule(path, stream, rules) if only(path, stream) else None
        if rule is not None:
            check_whole(path, stream)
            changes[id(stream.key)] = rule[3]
    made: dict[int, RngStream] = {}

    def change(path: tuple[Any, ...], value: Any) -> Any:
        if not isinstance(value, RngStream) or id(value.key) not in changes:
            return value
        which = id(value.key)  # the identity of the variable, since several streams may share it
        if which not in made:
            made[which] = changes[which](value)
        return made[which]

    return recursive_map(change, node)


def _rule(path: tuple[Any, ...], stream: RngStream, rules: list[_Rule]) -> _Rule | None:
    """Return the rule for a stream, or None."""
    matching: dict[str, _Rule] = {}
    for rule in rules:
        if rule[0] not in matching and rule[2](path, stream):
            matching[rule[0]] = rule
    narrow = [rule for rule in matching.values() if not isinstance(rule[2], Everything)]
    if len(narrow) > 1:
        raise LiftArgumentError(
            f"RngStream at {path_text(path)}",
            "it matches multiple rules: " + ", ".join(f"{rule[0]} has the filter {rule[1]!r}" for rule in narrow) + ".",
            "Make the filters exclude each other, as in `fork=nnx.Not(...)`.",
        )
    return next(iter(matching.values()), None)

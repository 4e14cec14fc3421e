"""`split_rngs` and `fork_rngs`: give the streams of a graph other keys for a while, and restore them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any, Self

import jax
import jax.numpy as jnp

from liftcore.errors import LiftArgumentError, boundary, call_user, name_of, shown

from ..filterlib import Filter, Predicate, to_predicate
from ..graph.definition import path_text
from ..objects.pytree import Pytree
from ..objects.traversal import iter_graph
from ..variablelib.variable import Variable
from .streams import RngStream, Shape, check_takes, drawn_key, rules_of, shape_of

__all__ = [
    "NOT_GIVEN",
    "SplitBackups",
    "StreamBackup",
    "check_changeable",
    "check_shape",
    "check_whole",
    "decorates",
    "fork_rngs",
    "is_function",
    "restore_rngs",
    "set_keys",
    "split_rngs",
    "streams_of",
]

StreamBackup = tuple[RngStream, jax.Array, jax.Array]
"""A stream, and its key and count before the change."""


class _NotGiven:
    """The type of the default for an argument that may be None."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN: Any = _NotGiven()


@dataclasses.dataclass
class SplitBackups(Iterable[StreamBackup]):
    """Restores streams: pass it to `restore_rngs`, or use it as a context manager.

    Attributes:
        backups: for each changed stream, its key and count.
    """

    backups: list[StreamBackup]

    def __iter__(self) -> Iterator[StreamBackup]:
        return iter(self.backups)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        restore_rngs(self)


def split_rngs(
    node: Any = NOT_GIVEN, /, *, splits: Shape, only: Filter = ..., squeeze: bool = False
) -> SplitBackups | Callable[..., Any]:
    """Split the streams of a graph into several keys each, in place, until they are restored.

    Each stream draws one key and splits it; its counts start at zero. A restored stream has its old key, and the
    count after that draw, so that no key is drawn twice. If one stream cannot be split, none is.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(params=0, dropout=1)
        >>> with nnx.split_rngs(rngs, splits=5, only="params"):
        ...     print(rngs.params.key.shape, rngs.dropout.key.shape)
        (5,) ()
        >>> print(rngs.params.key.shape, rngs.params.count.get_value())
        () 1
        >>> @nnx.split_rngs(splits=5)
        ... def shape(rngs):
        ...     return rngs.params.key.shape
        >>> shape(rngs)
        (5,)

    Args:
        node: an object, or a pytree of objects; if it is not given, the result is a decorator.
        splits: the number of keys, or their shape.
        only: a filter for the streams. It must match both the key and the count of a stream.
        squeeze: whether to remove the new axis; only for `splits=1`.

    Returns:
        A context manager that restores the streams; you can also pass it to `restore_rngs`. Without `node`, or with a
        function in its place: a decorator of functions and methods, or the decorated function. Each call splits the
        streams in its arguments.

    Raises:
        LiftArgumentError: if a stream is split already, or `splits` is not a shape.
        TraceContextError: if a stream belongs to another trace.
    """
    shape = check_shape("split_rngs", splits)
    if squeeze and shape != (1,):
        raise LiftArgumentError(
            "split_rngs",
            f"squeeze=True is only supported for splits=1, given splits={splits}.",
            "Use `fork_rngs` for new streams of one key.",
        )
    rules = [(to_predicate(only), () if squeeze else shape)]

    def change(value: Any) -> SplitBackups:
        return _change("split_rngs", value, rules, functools.partial(_split_key, splits=shape))

    return decorates(node, change)


def fork_rngs(
    node: Any = NOT_GIVEN, /, *, split: Mapping[Filter, Shape | None] | Shape | None = None
) -> SplitBackups | Callable[..., Any]:
    """Give the streams of a graph new keys, in place, until they are restored.

    Each stream draws the key that seeds it anew; its count starts at zero. A restored stream has its old key, and
    the count after that draw, so that no key is drawn twice. If one stream cannot be forked, none is.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(params=0, dropout=1)
        >>> with nnx.fork_rngs(rngs):
        ...     key = rngs.params()
        >>> key == nnx.Rngs(params=0).params.fork()(), int(rngs.params.count.get_value())
        (Array(True, dtype=bool), 1)

    Args:
        node: an object, or a pytree of objects; if it is not given, the result is a decorator.
        split: the number of keys that the streams hold until then, or their shape; or a mapping from filters to these,
            in which the first filter that matches the key and the count of a stream applies. A stream with None is
            forked but not split. Streams that no filter matches are not changed.

    Returns:
        A context manager that restores the streams; you can also pass it to `restore_rngs`. Without `node`, or with a
        function in its place: a decorator of functions and methods, or the decorated function. Each call forks the
        streams in its arguments.

    Raises:
        LiftArgumentError: if a stream is split already, or `split` holds something that is not a shape.
        TraceContextError: if a stream belongs to another trace.
    """
    rules = rules_of(split)
    for _, shape in rules:
        if shape is not None:
            check_shape("fork_rngs", shape)
    return decorates(node, lambda value: _change("fork_rngs", value, rules, drawn_key))


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Restore streams to what they were before `split_rngs` or `fork_rngs`.

    A stream that is already restored keeps its count, so restoring twice does no harm.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> backups = nnx.split_rngs(rngs, splits=2)
        >>> nnx.restore_rngs(backups)
        >>> rngs.default.key.shape
        ()

    Args:
        backups: what `split_rngs` or `fork_rngs` returned.

    Raises:
        TraceContextError: if a stream belongs to another trace; then none is restored.
    """
    kept = list(backups)
    for stream, _, _ in kept:
        check_changeable(stream)
    for stream, key, count in reversed(kept):
        if stream.key.get_value() is not key:
            stream.key.set_value(key)
            stream.count.set_value(count)


def decorates(node: Any, change: Callable[[Any], SplitBackups]) -> Any:
    """Change the streams of a node; for a function, or without a node, decorates to change those in the arguments."""
    if node is NOT_GIVEN:
        return functools.partial(_decorated, change=change)
    return _decorated(node, change) if is_function(node) else change(node)


def is_function(node: Any) -> bool:
    """Return whether a value is a function to decorate, and not an object that can be called."""
    return callable(node) and not isinstance(node, Pytree | Variable)


def _decorated(f: Callable[..., Any], change: Callable[[Any], SplitBackups]) -> Callable[..., Any]:
    @functools.wraps(f)
    @boundary
    def changing(*args: Any, **kwargs: Any) -> Any:
        with change((args, kwargs)):
            return call_user(name_of(f), f, *args, **kwargs)

    return changing


def _change(
    where: str,
    node: Any,
    rules: list[tuple[Predicate, Any]],
    new_key: Callable[[RngStream, Any], jax.Array],
) -> SplitBackups:
    """Give new keys to the streams that a rule matches: to all of them, or to none if one cannot be changed."""
    chosen: list[tuple[RngStream, Any]] = []
    streams = list(streams_of(node))
    for matches, _ in rules:
        check_takes(where, matches, streams, _matches)
    for path, stream in streams:
        rule = next((rule for rule in rules if _matches(rule[0], path, stream)), None)
        if rule is not None:
            check_whole(path, stream)
            chosen.append((stream, rule[1]))
    backups = []
    for stream, shape in chosen:
        key, whole = new_key(stream, shape), stream.key.get_value()
        backups.append((stream, whole, stream.count.get_value()))  # the count after the draw
        set_keys(stream, key)
    return SplitBackups(backups)


def _split_key(stream: RngStream, shape: tuple[int, ...], splits: tuple[int, ...]) -> jax.Array:
    return drawn_key(stream, splits).reshape(shape)


def _matches(predicate: Predicate, path: tuple[Any, ...], stream: RngStream) -> bool:
    return bool(predicate((*path, "key"), stream.key) and predicate((*path, "count"), stream.count))


def streams_of(node: Any) -> Iterator[tuple[tuple[Any, ...], RngStream]]:
    """Return the streams in a graph with their paths. Streams that share their variables count as one."""
    seen = set()
    for path, value in iter_graph(node):
        if isinstance(value, RngStream) and id(value.key) not in seen:
            seen.add(id(value.key))
            yield path, value


def set_keys(stream: RngStream, keys: jax.Array) -> None:
    """Give a stream other keys, and set its count to zero."""
    stream.key.set_value(keys)
    stream.count.set_value(jnp.zeros(keys.shape, jnp.uint32))


def check_changeable(stream: RngStream) -> None:
    """Check that a stream belongs to the current trace.

    Raises:
        TraceContextError: if it does not.
    """
    stream.key.check_live()
    stream.count.check_live()


def check_whole(path: tuple[Any, ...], stream: RngStream) -> None:
    """Check that a key can be drawn from a stream in the current trace.

    Raises:
        LiftArgumentError: if it holds several keys.
        TraceContextError: if it belongs to another trace.
    """
    check_changeable(stream)
    shape = stream.key.get_value().shape
    if shape:
        raise LiftArgumentError(
            f"the stream at {path_text(path)}",
            f"it holds keys of shape {shape}; only a stream with a single key can be split, forked or broadcast.",
            'Leave it out with a filter, such as `only=nnx.Not("' + stream.tag + '")`, or split it once for all axes.',
        )


def check_shape(where: str, given: Any) -> tuple[int, ...]:
    """Check that a value is a number of keys, or one for each axis; return the shape.

    Raises:
        LiftArgumentError: if it is not.
    """
    shape = shape_of(given)
    if not all(isinstance(size, Integral) and size >= 0 for size in shape):
        raise LiftArgumentError(
            where,
            f"expected a number of keys, or a tuple of one for each axis, given {shown(given)}.",
            "Write `splits=5`, or `splits=(2, 5)`.",
        )
    return shape

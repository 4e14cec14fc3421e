"""Gives the streams of a graph other keys: for a while (`split_rngs`, `fork_rngs`), for good, or in a copy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from liftcore.calls import boundary, call_user
from liftcore.errors import Expected, LiftArgumentError, name_of

from ..filterlib import Everything, Filter, Predicate, to_predicate
from ..graph.definition import path_text
from ..objects.pytree import Pytree
from ..objects.traversal import iter_graph, recursive_map
from ..variablelib.values import MISSING
from ..variablelib.variable import Variable
from .streams import RngStream, RngValue, Shape, check_takes, drawn_key, rules_of, shape_of

__all__ = [
    "ReseedPolicy",
    "SplitBackups",
    "StreamBackup",
    "fork_rngs",
    "reseed",
    "restore_rngs",
    "split_rngs",
    "with_rngs",
]


StreamBackup = tuple[RngStream, jax.Array, jax.Array]
"""A stream, and its key and count before the change."""


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
    node: Any = MISSING, /, *, splits: Shape, only: Filter = ..., squeeze: bool = False
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
    shape = shape_of("split_rngs", splits)
    if squeeze and shape != (1,):
        what = f"squeeze=True is only supported for splits=1, given splits={splits}."
        fix = "Use `fork_rngs` for new streams of one key."
        raise LiftArgumentError("split_rngs", what, fix, option="splits", expected=1, given=splits)

    def new_key(stream: RngStream, shape: tuple[int, ...]) -> jax.Array:
        return drawn_key(stream, shape).reshape(() if squeeze else shape)

    rules = [(to_predicate(only), shape)]
    return _decorates(node, lambda value: _change("split_rngs", value, rules, new_key), _while_changed)


def fork_rngs(
    node: Any = MISSING, /, *, split: Mapping[Filter, Shape | None] | Shape | None = None
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
            shape_of("fork_rngs", shape)
    return _decorates(node, lambda value: _change("fork_rngs", value, rules, drawn_key), _while_changed)


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
        _check_changeable(stream)
    for stream, key, count in reversed(kept):
        if stream.key.get_value() is not key:
            stream.key.set_value(key)
            stream.count.set_value(count)


def _decorates(node: Any, change: Callable[[Any], Any], decorate: Callable[..., Any]) -> Any:
    """Change the streams of a node; for a function, or without a node, decorates to change those in the arguments."""
    if node is MISSING:
        return functools.partial(decorate, change=change)
    is_function = callable(node) and not isinstance(node, Pytree | Variable)  # and no object that can be called
    return decorate(node, change) if is_function else change(node)


def _while_changed(f: Callable[..., Any], change: Callable[[Any], SplitBackups]) -> Callable[..., Any]:
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
    streams = list(_streams_of(node))
    for matches, _ in rules:
        check_takes(where, matches, streams, _matches)
    for path, stream in streams:
        rule = next((rule for rule in rules if _matches(rule[0], path, stream)), None)
        if rule is not None:
            _check_whole(path, stream)
            chosen.append((stream, rule[1]))
    backups = []
    for stream, shape in chosen:
        key, whole = new_key(stream, shape), stream.key.get_value()
        backups.append((stream, whole, stream.count.get_value()))  # the count after the draw
        _set_keys(stream, key)
    return SplitBackups(backups)


def _matches(predicate: Predicate, path: tuple[Any, ...], stream: RngStream) -> bool:
    return bool(predicate((*path, "key"), stream.key) and predicate((*path, "count"), stream.count))


def _streams_of(node: Any) -> Iterator[tuple[tuple[Any, ...], RngStream]]:
    """Return the streams in a graph with their paths. Streams that share their variables count as one."""
    seen = set()
    for path, value in iter_graph(node):
        if isinstance(value, RngStream) and id(value.key) not in seen:
            seen.add(id(value.key))
            yield path, value


def _set_keys(stream: RngStream, keys: jax.Array) -> None:
    """Give a stream other keys, and set its count to zero."""
    stream.key.set_value(keys)
    stream.count.set_value(jnp.zeros(keys.shape, jnp.uint32))


def _check_changeable(stream: RngStream) -> None:
    """Check that a stream belongs to the current trace.

    Raises:
        TraceContextError: if it does not.
    """
    stream.key.check_live()
    stream.count.check_live()


def _check_whole(path: tuple[Any, ...], stream: RngStream) -> None:
    """Check that a key can be drawn from a stream in the current trace.

    Raises:
        LiftArgumentError: if it holds several keys.
        TraceContextError: if it belongs to another trace.
    """
    _check_changeable(stream)
    shape = stream.key.get_value().shape
    if shape:
        where = f"the stream at {path_text(path)}"
        what = f"it holds keys of shape {shape}; only a stream with a single key can be split, forked or broadcast."
        fix = 'Leave it out with a filter, such as `only=nnx.Not("' + stream.tag + '")`, or split it once for all axes.'
        raise LiftArgumentError(where, what, fix, stream=stream.tag, given=f"keys of shape {shape}")


# --- copies of a graph with other streams -----------------------------------------------------------------------------

_Change = Callable[[RngStream], RngStream]
_Rule = tuple[str, Any, Predicate, _Change]
"""A rule: the argument that it comes from, its filter as given and as a predicate, and its action."""


def with_rngs(
    node: Any = MISSING,
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
    forks = [] if fork is None else fork if isinstance(fork, list | tuple) else [fork]
    rules = [
        *_shaped("split", split, RngStream.split),
        *_shaped("broadcast", broadcast, RngStream.broadcast),
        *[("fork", one, to_predicate(one), RngStream.fork) for one in forks],
    ]
    change = functools.partial(_changed, rules=rules, only=to_predicate(only))
    return _decorates(node, change, _of_changed_arguments)


def _of_changed_arguments(f: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    @boundary
    def changing(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change((args, kwargs))
        return call_user(name_of(f), f, *args, **kwargs)

    return changing


def _shaped(name: str, given: Any, change: Callable[..., RngStream]) -> list[_Rule]:
    shapes = {} if given is None else given if isinstance(given, Mapping) else {...: given}
    for shape in shapes.values():
        shape_of(f"with_rngs({name}=)", shape)
    return [(name, one, to_predicate(one), functools.partial(change, k=shape)) for one, shape in shapes.items()]


def _changed(node: Any, rules: list[_Rule], only: Predicate) -> Any:
    changes: dict[int, _Change] = {}
    streams = list(_streams_of(node))
    for matches in (only, *[rule[2] for rule in rules]):
        check_takes("with_rngs", matches, streams)
    for path, stream in streams:  # check everything before drawing the first key
        rule = _rule(path, stream, rules) if only(path, stream) else None
        if rule is not None:
            _check_whole(path, stream)
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
            given=narrow[0][0],
        )
    return next(iter(matching.values()), None)


# --- new seeds, by name -----------------------------------------------------------------------------------------------

ReseedPolicy = Callable[[tuple[Any, ...], jax.Array, tuple[int, ...]], jax.Array]
"""A function that makes the new keys of a stream: `policy(path, key, shape)`, with one key and the stream's shape."""


def reseed(
    node: Any,
    /,
    *,
    policy: Literal["scalars_only", "match_shape"] | ReseedPolicy = "scalars_only",
    **stream_keys: RngValue | RngStream,
) -> None:
    """Give the streams of a graph new seeds, in place, and set their counts to zero.

    Each stream gets a key that is drawn from the seed of its name, so several streams with one name differ. The
    same seeds give the same keys again. If one stream cannot be reseeded, none is.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(params=0, dropout=1)
        >>> nnx.reseed(rngs, dropout=42)
        >>> first = rngs.dropout()
        >>> nnx.reseed(rngs, dropout=42)
        >>> first == rngs.dropout()
        Array(True, dtype=bool)

    Args:
        node: an object, or a pytree of objects.
        policy: `"scalars_only"` refuses streams of several keys; `"match_shape"` splits the new key into their shape;
            a function `(path, key, shape) -> keys` makes the new keys.
        **stream_keys: seeds, keys or streams by name. A stream that is given here counts the keys drawn from it.

    Raises:
        LiftArgumentError: if a stream has several keys, or a seed or the policy is not valid.
        TraceContextError: if a stream belongs to another trace.
    """
    new_keys = _policy(policy)
    sources = {
        name: value if isinstance(value, RngStream) else RngStream(value, tag=name)
        for name, value in stream_keys.items()
    }
    chosen = [(path, stream) for path, stream in _streams_of(node) if stream.tag in sources]
    for path, stream in chosen:
        _check_changeable(stream)
        shape = stream.key.get_value().shape
        if policy == "scalars_only" and shape:
            where = f"reseed of the stream at {path_text(path)}"
            what = f"the stream has a non-scalar key, of shape {shape}."
            fix = 'Write `policy="match_shape"` if its keys should all differ, or give a function as the policy.'
            raise LiftArgumentError(where, what, fix, option="policy", given=shape)
    made = [(stream, new_keys(path, sources[stream.tag](), stream.key.get_value().shape)) for path, stream in chosen]
    for stream, keys in made:
        _set_keys(stream, keys)


def _policy(policy: Any) -> ReseedPolicy:
    if callable(policy):
        return policy
    if policy not in ("scalars_only", "match_shape"):
        raise LiftArgumentError(
            "reseed",
            Expected('"scalars_only", "match_shape" or a callable', given=policy),
            'Write `policy="match_shape"` for streams that are split.',
            option="policy",
        )
    return _matching


def _matching(path: tuple[Any, ...], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.split(key, shape) if shape else key

"""RNG streams of objects in a scope: their keys are drawn from the streams of the scope, or change with them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from liftcore import Scope
from liftcore.errors import InvalidRngError, UnliftedStreamError
from liftcore.filters import matches_collection, subtract, union
from liftcore.owners import call_maker

from ..rnglib.streams import Rngs, RngStream
from .variables import Names, Random

__all__ = ["NoKey", "drawn", "forked", "keys_of", "made_with", "of_abstract_key", "with_states"]

_PARAMS = "params"
_DEFAULT = "default"

_KEYS, _COUNTS = "RngKey", "RngCount"
"""The collections of the state of RNG streams."""

_WHOLE = {"variable_axes": None, "variable_specs": PartitionSpec()}
"""The options of lifts that choose parts of variables, each with its value for variables that enter whole."""

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class NoKey:
    """A placeholder for the key of a stream that the scope lacks. Drawing from it is an error.

    Attributes:
        tag: the name of the stream.
        unlifted: where, what and fix of the error, if the stream was given but a lift does not pass it in.
    """

    tag: str
    unlifted: tuple[str, ...] = ()

    @classmethod
    def of(cls, scope: Scope, tag: str) -> NoKey:
        """Return the placeholder for a stream that a scope lacks."""
        if tag not in scope.given_rngs:
            return cls(tag)
        try:
            scope.make_rng(tag)
        except UnliftedStreamError as error:
            return cls(tag, (error.where, error.what, error.fix))
        return cls(tag)

    @property
    def shape(self) -> NoReturn:
        """Raise the error: a draw needs the shape of the key."""
        if self.unlifted:
            raise UnliftedStreamError(*self.unlifted, stream=self.tag)
        serves = " (it is used for every name without a stream)" if self.tag == _DEFAULT else ""
        what = f"a key was drawn, but no such stream was passed in{serves}."
        fix = 'Pass it by name, as in `apply(variables, x, rngs={"dropout": key})`; a lift takes it in `split_rngs`.'
        raise InvalidRngError(f"the stream {self.tag!r} of an object in a scope", what, fix, stream=self.tag)


def made_with(make: Callable[..., Any], scope: Scope, names: Sequence[str], key: Any = None) -> Any:
    """Make a value from streams whose keys are drawn from a scope.

    Args:
        make: called with `Rngs`.
        scope: the scope.
        names: the names of streams; if empty, the streams that `init` or `apply` was given, and "params". A stream
            "default" is always added.
        key: one key for all streams, for tracing shapes without drawing.
    """
    rngs = Rngs()
    for name in dict.fromkeys((*(names or (_PARAMS, *scope.given_rngs)), _DEFAULT)):
        setattr(rngs, name, _stream(_key(scope, name) if key is None else key, name))
    return call_maker("adopt", make, "`Rngs`", rngs)


def of_abstract_key(fn: Callable[[Any], Any]) -> Any:
    """Return the result of a function for a key that has only a type: nothing is computed.

    Args:
        fn: called with the key, once.
    """
    found = list[Any]()
    jax.eval_shape(lambda key: found.append(fn(key)), jax.eval_shape(jax.random.key, 0))
    return found[0]


def _stream(key: Any, name: str) -> RngStream:
    stream = RngStream(jax.random.key(0) if isinstance(key, NoKey) else key, tag=name)
    if isinstance(key, NoKey):
        stream.key.set_raw_value(key)
    return stream


def forked(rngs: Rngs) -> Rngs:
    """Return new streams, each seeded with a key drawn from the stream of its name, unless that stream has none."""
    return Rngs({name: stream.fork() if _has_key(stream) else stream for name, stream in rngs.items()})


def keys_of(rngs: Rngs) -> dict[str, Any]:
    """Draw a key from each stream, for `init` and `apply`. Without a stream "params", "default" is used for it."""
    keys = {name: stream() for name, stream in rngs.items() if _has_key(stream)}
    default = keys.pop(_DEFAULT, None)
    return keys if default is None or _PARAMS in keys else {_PARAMS: default, **keys}


def _has_key(stream: RngStream) -> bool:
    return not isinstance(stream.key.get_raw_value(), NoKey)


def drawn(scope: Scope, random: Mapping[Names, Random]) -> dict[Names, Any]:
    """Return the state of RNG streams for one call: keys drawn from a scope, and counts of zero."""
    return {path: _state(scope, one) for path, one in random.items()}


def _state(scope: Scope, random: Random) -> Any:
    if random.is_count:
        return jnp.zeros(random.shape, jnp.uint32)
    key = _key(scope, random.tag)
    return key if isinstance(key, NoKey) or not random.shape else jax.random.split(key, random.shape)


def with_states(transformation: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a lift, so that it takes in the state of RNG streams if they do not name it.

    All elements and iterations share the keys. Loops carry the counts; elements share them too.

    Example:
        >>> import liftcore
        >>> with_states(liftcore.vmap, {"variable_axes": {"params": 0}})
        {'variable_axes': {'params': 0, 'RngKey': None, 'RngCount': None}}

    Args:
        transformation: the lift. An option of your own lift means the same as the option of that name in `liftcore`.
        options: the options.
    """
    parameters = inspect.signature(transformation).parameters
    given: dict[str, Any] = {name: one.default for name, one in parameters.items() if one.kind in _BY_NAME} | {
        **options
    }
    wholes = {name: whole for name, whole in _WHOLE.items() if isinstance(given.get(name), Mapping)}
    named = [*itertools.chain(*[given[name] for name in wholes]), given.get("variable_carry", False)]
    free = [one for one in (_KEYS, _COUNTS) if all(matches_collection(each, one) is False for each in named)]
    counts = [one for one in free if one == _COUNTS]
    found: dict[str, Any] = {name: {**given[name], **dict.fromkeys(free, wholes[name])} for name in wholes}
    if "variable_carry" in given:
        shared = subtract(union(given["variable_broadcast"], free), _COUNTS)
        found = {"variable_broadcast": shared, "variable_carry": union(given["variable_carry"], counts)}
    elif "variables" in given:
        found = {"variables": union(given["variables"], free)}
    return {**options, **found}


def _key(scope: Scope, name: str) -> Any:
    found = name
    if name == _DEFAULT and not scope.can_draw(name):  # lifts do not have to lift a stream that only objects use
        found = _PARAMS
    if not scope.can_draw(found):
        return NoKey.of(scope, name)
    return RngStream(scope.make_rng(found), tag=name).key.get_raw_value()

"""RNG streams of objects in a scope: their keys are drawn from the streams of the scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from liftcore import Scope
from liftcore.errors import InvalidRngError

from ..rnglib.streams import Rngs, RngStream
from .placing import Names, Random

__all__ = ["NoKey", "drawn", "forked", "keys_of", "made_with"]

_PARAMS = "params"
_DEFAULT = "default"


@dataclasses.dataclass(frozen=True)
class NoKey:
    """A placeholder for the key of a stream that the scope lacks. Drawing from it is an error.

    Attributes:
        tag: the name of the stream.
    """

    tag: str

    def __getattr__(self, name: str) -> NoReturn:
        if name[:1] == "_":  # Python's and JAX's protocols ask this of every value
            raise AttributeError(name)
        serves = " (it is used for every name without a stream)" if self.tag == _DEFAULT else ""
        raise InvalidRngError(
            f"the stream {self.tag!r} of an object in a scope",
            f"a key was drawn, but the scope has no such stream{serves}: it was not passed in, or not lifted.",
            'Pass it by name, as in `apply(variables, x, rngs={"dropout": key})`; a lift takes it in `split_rngs`.',
        )


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
    for name in dict.fromkeys((*(names or (_PARAMS, *scope.tree.given)), _DEFAULT)):
        setattr(rngs, name, _stream(_key(scope, name) if key is None else key, name))
    return make(rngs)


def _stream(key: Any, name: str) -> RngStream:
    stream = RngStream(jax.random.key(0) if isinstance(key, NoKey) else key, tag=name)
    if isinstance(key, NoKey):
        stream.key.set_raw_value(key)
    return stream


def forked(rngs: Rngs) -> Rngs:
    """Return new streams, each seeded with a key drawn from the stream of its name; one without a key keeps none."""
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


def _key(scope: Scope, name: str) -> Any:
    found = name
    if name == _DEFAULT and scope.tree.stream(name) is None:  # lifts do not have to lift a stream that only objects use
        found = _PARAMS
    if scope.tree.stream(found) is None:
        return NoKey(name)
    return RngStream(scope.make_rng(found), tag=name).key.get_raw_value()

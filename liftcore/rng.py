"""RNG streams: named streams of keys; each key is a function of a root key, a path and a count.

A draw folds one 32-bit number, its *fold-in data*, into the root key: the first four bytes, big endian, of a SHA-1
hash. The hash is of the items of the scope's path below the place where the root was given, and of the count of draws
there (the first is 1). A zero byte precedes each item, so that different paths give different bytes. These are the keys
of `flax.linen` with its separator fix enabled.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import random_fold_in_p

from .caches import bounded
from .errors import Expected, InvalidRngError

DEFAULT = "params"
"""The stream for a single key, and the stream to draw from if a stream was not given."""


def fold_in_data(items: Iterable[str | int]) -> np.uint32:
    """Return the 32 bits that a path and a count fold into a root key.

    Example:
        >>> int(fold_in_data(("Dense_0", 1)))
        4288924255

    Args:
        items: the names of a path, and a count.
    """
    texts = [
        item.encode() if isinstance(item, str) else item.to_bytes((item.bit_length() + 7) // 8, "big") for item in items
    ]
    digest = hashlib.sha1(b"\0".join([b"", *texts])).digest()
    return np.uint32(int.from_bytes(digest[:4], "big"))


word = fold_in_data
"""The former name of `fold_in_data`."""

_fold_typed = jax.jit(jax.random.fold_in, inline=True)


def fold_in(key: Any, data: Any) -> Any:
    """Return `jax.random.fold_in(key, data)`; with a typed key, the same equation is bound or run in less time.

    The meaning of a raw key depends on a setting of JAX, which is read each time. On a mesh, such as inside a
    `jax.shard_map`, JAX makes the types of both arguments agree.

    Args:
        key: a PRNG key.
        data: an integer of 32 bits, or an array of them.
    """
    if key.ndim or not jax.sharding.get_abstract_mesh().empty:
        return jax.random.fold_in(key, data)
    if isinstance(key, jax.core.Tracer):
        return random_fold_in_p.bind(key, data)  # type: ignore[no-untyped-call]
    return _fold_typed(key, data)


def ignores_key(init_fn: Callable[..., Any]) -> bool:
    """Whether an initializer never uses its first argument, so that no key has to be computed for it.

    This can be determined only for plain functions, from their code; for all others, the result is False.

    Example:
        >>> ignores_key(jax.nn.initializers.zeros), ignores_key(jax.nn.initializers.normal())
        (True, False)

    Args:
        init_fn: an initializer.
    """
    return type(init_fn) is FunctionType and _never_loads_first(init_fn.__code__)


_SEES_ALL = {"_getframe", "breakpoint", "currentframe", "eval", "exec", "locals", "vars"}


@bounded(1024)
def _never_loads_first(code: CodeType) -> bool:
    """Whether the code of a function never loads its first argument, and exposes it to no other function."""
    if code.co_argcount == 0 or _SEES_ALL.intersection(code.co_names):
        return False
    first = code.co_varnames[0]
    loads = [each.argval for each in dis.get_instructions(code) if "LOAD_FAST" in each.opname]
    loaded = {name for names in loads for name in (names if isinstance(names, tuple) else (names,))}
    return first not in loaded.union(code.co_cellvars)


def is_key(value: Any) -> bool:
    """Whether a value is one PRNG key, typed or raw.

    Args:
        value: any value.
    """
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None:
        return False
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return bool(shape == ())
    impl: str = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    return bool(dtype == np.uint32 and shape == _raw_shape(impl))


@bounded(128)
def _raw_shape(impl: str) -> tuple[int, ...]:
    """Return the shape of a raw key of one PRNG implementation."""
    return tuple(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape)


def streams(rngs: Any) -> dict[str, Any]:
    """Return the root keys by stream name, given `rngs` of `init`, `apply` or `bind`: None, one key, or a mapping.

    Args:
        rngs: one key, or a mapping from names to keys.

    Raises:
        InvalidRngError: if a value is not a key.
    """
    if rngs is None:
        return {}
    named = rngs if isinstance(rngs, Mapping) else {DEFAULT: rngs}
    for name, key in named.items():
        if not is_key(key):
            raise InvalidRngError(
                f'rngs["{name}"]',
                Expected("one PRNG key", given=key),
                f'Pass a key, such as `rngs={{"{name}": jax.random.key(0)}}`; to `init` it comes first.',
                stream=name,
                option="rngs",
            )
        if not isinstance(name, str):
            raise InvalidRngError(
                "rngs", Expected("names of streams", given=name), 'Name it: {"params": jax.random.key(0)}.'
            )
    return dict(named)

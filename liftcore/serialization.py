"""Trees as state dicts and as bytes, and back; nothing that is read is ever run.

Two steps, each of which stands alone:

    to_state_dict / from_state_dict          containers -> nested dicts with string keys, and back into a target's shape
    msgpack_serialize / msgpack_restore      nested dicts of arrays and scalars -> msgpack bytes, and back

`to_bytes` and `from_bytes` do both. The bytes are those of `flax.serialization`, so checkpoints pass both ways.

Example:
    >>> import numpy as np
    >>> data = to_bytes({"params": [np.arange(2), np.float32(3)]})
    >>> restored = from_bytes({"params": [np.zeros(2), np.float32(0)]}, data)
    >>> restored["params"]
    [array([0, 1]), np.float32(3.0)]
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np

from . import struct
from .errors import SerializationError
from .frozen_dict import FrozenDict
from .typing import Path

__all__ = [
    "from_bytes",
    "from_state_dict",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
]


# --- state dicts ------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """How one kind of container is taken apart into named children, and made again from restored ones."""

    children: Callable[[Any], dict[str, Any]]
    rebuild: Callable[[Any, dict[str, Any]], Any]


class _Hooks(NamedTuple):
    """The two functions that a user registered for a type."""

    to_state: Callable[[Any], Any]
    from_state: Callable[[Any, Any], Any]


class _StateError(SerializationError):
    """An error at a path, which grows at its front while the error passes through the containers."""

    def __init__(self, what: str, fix: str, path: Path = ()) -> None:
        super().__init__(f"state at /{'/'.join(path)}", what, fix)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix, self.path)


def _at(name: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Returns `fn(*args)`; a `_StateError` from it is one below `name`."""
    try:
        return fn(*args)
    except _StateError as error:
        raise _StateError(error.what, error.fix, (str(name), *error.path)) from error.__cause__


def _named(items: Mapping[Any, Any]) -> dict[str, Any]:
    named = {str(key): value for key, value in items.items()}
    if len(named) < len(items):
        twice = [name for name, count in Counter(map(str, items)).items() if count > 1]
        raise _StateError(f"several keys are written as {twice[0]!r}.", "Use keys that differ as strings.")
    return named


def _indexed(items: Any) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}


_DICT = _Rule(_named, lambda target, new: {key: new[str(key)] for key in target})
_NAMED_TUPLE = _Rule(
    lambda target: dict(zip(target._fields, target, strict=True)), lambda target, new: type(target)(**new)
)
_STRUCT = _Rule(
    lambda target: {name: getattr(target, name) for name in struct.child_names(target)},
    lambda target, new: dataclasses.replace(target, **new),
)
_RULES: dict[type, _Rule] = {
    dict: _DICT,
    FrozenDict: _Rule(_named, lambda target, new: FrozenDict(_DICT.rebuild(target, new))),
    list: _Rule(_indexed, lambda target, new: list(new.values())),
    tuple: _Rule(_indexed, lambda target, new: tuple(new.values())),
    jax.tree_util.Partial: _Rule(
        lambda target: {"args": target.args, "keywords": target.keywords},
        lambda target, new: type(target)(target.func, *new["args"], **new["keywords"]),
    ),
}
_HOOKS: dict[type, _Hooks] = {}


def _is_typed_key(value: Any) -> bool:
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _key_children(key: Any) -> dict[str, Any]:
    if isinstance(key, jax.Array):
        return {"impl": str(jax.random.key_impl(key)), "data": jax.random.key_data(key)}
    return {"impl": "", "data": None}  # a target that is a `jax.ShapeDtypeStruct`


def _rebuild_key(target: Any, new: dict[str, Any]) -> Any:
    impl, data = new["impl"], new["data"]
    try:
        if getattr(data, "dtype", None) != np.uint32:
            raise TypeError("they are no array of uint32")
        key = jax.random.wrap_key_data(jnp.asarray(data), impl=impl)
    except (TypeError, ValueError) as error:
        what = f"these are no data of a random key of impl {impl!r} ({error})."
        raise _StateError(what, "Restore what to_bytes made of a key.") from error
    if key.dtype != target.dtype:
        what = f"expected a random key of type {target.dtype}, found one of type {key.dtype}."
        raise _StateError(what, f"Make the target's key with impl={impl!r}.")
    return key


_KEY = _Rule(_key_children, _rebuild_key)


def _rule(target: Any) -> _Rule | None:
    """Returns how `target` is taken apart, or `None` if it is a leaf."""
    cls = type(target)
    if cls in _RULES:
        return _RULES[cls]
    if struct.is_struct(cls):
        return _STRUCT
    if isinstance(target, tuple) and hasattr(target, "_fields"):
        return _NAMED_TUPLE
    return _KEY if _is_typed_key(target) else None


def register_serialization_state(
    ty: type,
    ty_to_state_dict: Callable[[Any], Any],
    ty_from_state_dict: Callable[[Any, Any], Any],
    override: bool = False,
) -> None:
    """Registers how values of exactly type `ty` become state dicts and are restored from them.

    Args:
        ty: the type.
        ty_to_state_dict: `(value) -> state`, with `to_state_dict` called on what it contains.
        ty_from_state_dict: `(target, state) -> value`, with `from_state_dict(..., name=key)` called likewise.
        override: whether to replace a registration that is there already.

    Raises:
        SerializationError: if `ty` is registered and `override` is false.
    """
    if not override and (ty in _HOOKS or ty in _RULES):
        raise SerializationError(
            f"type {ty.__name__}", "it is registered already.", "Pass override=True to replace it."
        )
    _HOOKS[ty] = _Hooks(ty_to_state_dict, ty_from_state_dict)


def to_state_dict(target: Any) -> Any:
    """Returns the state of a tree as nested dicts with string keys; leaves are kept as they are.

    Dicts, `FrozenDict`s, lists, tuples, named tuples (so optax states), classes made by `liftcore.struct` (their static
    fields are left out), `jax.tree_util.Partial`, typed random keys and registered types are taken apart.

    Example:
        >>> to_state_dict({"layers": [1, 2]})
        {'layers': {'0': 1, '1': 2}}

    Raises:
        SerializationError: if two keys of a dict are the same string.
    """
    hooks, rule = _HOOKS.get(type(target)), _rule(target)
    if hooks:
        return hooks.to_state(target)
    if rule is None:
        return target
    return {name: _at(name, to_state_dict, child) for name, child in rule.children(target).items()}


def from_state_dict(target: Any, state: Any, name: str | None = None) -> Any:
    """Returns a tree like `target` with the leaves of `state`.

    Of `target` only the structure is used. Its names and those of `state` must be the same, and an array or number must
    get an array or number. Shapes and dtypes are not compared: a target may be made of zeros or of
    `jax.ShapeDtypeStruct`s, and the model says best whether a shape fits. Where `target` is `None`, or a type that
    nothing is known about, it takes what is there.

    Example:
        >>> from_state_dict({"layers": [0, 0]}, {"layers": {"0": 1, "1": 2}})
        {'layers': [1, 2]}

    Args:
        target: a tree of the structure to restore.
        state: what `to_state_dict` made.
        name: what the caller, a registered type, calls this part of itself; for error messages.

    Returns:
        A new tree.

    Raises:
        SerializationError: if the structures differ; it names the path and the names on both sides.
    """
    if name is not None:
        return _at(name, from_state_dict, target, state)
    hooks, rule = _HOOKS.get(type(target)), _rule(target)
    if hooks:
        return hooks.from_state(target, state)
    if rule is None:
        _check_leaf(target, state)
        return state
    children = rule.children(target)
    _check_names(target, children, state)
    return rule.rebuild(target, {key: _at(key, from_state_dict, child, state[key]) for key, child in children.items()})


def _check_names(target: Any, children: dict[str, Any], state: Any) -> None:
    kind = type(target).__name__
    if not isinstance(state, Mapping):
        raise _StateError(f"expected a dict for the {kind} here, found {_kind(state)}.", _SAME_STRUCTURE)
    missing, extra = [n for n in children if n not in state], [n for n in state if n not in children]
    if missing or extra:
        lacks = f"lacks {_listed(missing)}" if missing else ""
        has = f"has {_listed(extra)} besides" if extra else ""
        what = (
            f"the state {' and '.join(filter(None, (lacks, has)))} "
            f"(the {kind} expects {_listed(children)}; the state has {_listed(state)})."
        )
        raise _StateError(what, "Restore into a target with the names that were saved, or rename them in the state.")


def _check_leaf(target: Any, state: Any) -> None:
    if target is None:
        return
    expected, found = _kind(target), _kind(state)
    if (found != expected and expected in _KINDS) or isinstance(state, Mapping):
        raise _StateError(f"expected {expected}, found {found}.", _SAME_STRUCTURE)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


_SAME_STRUCTURE = (
    "Restore into a target of the structure that was saved; for a container of your own, call "
    "register_serialization_state."
)
_KINDS = ("an array or number", "a string", "bytes")


def _kind(value: Any) -> str:
    """Returns which of `_KINDS` a leaf is, or its type: what may not stand for one another."""
    if isinstance(value, np.generic | bool | int | float | complex) or (
        hasattr(value, "shape") and hasattr(value, "dtype")
    ):
        return _KINDS[0]
    if isinstance(value, str):
        return _KINDS[1]
    return _KINDS[2] if isinstance(value, bytes) else f"a value of type {type(value).__name__}"


# --- bytes ------------------------------------------------------------------------------------------------------------

# An array is a msgpack extension that holds msgpack of (shape, dtype name, row-major bytes); a complex number is one of
# (real, imaginary). These three are all the extensions there are.
_NDARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3

# msgpack holds no more than 2**32 - 1 bytes in one value, and some readers half of that. Larger arrays go in pieces.
_MAX_CHUNK_BYTES = 2**30
_CHUNKED = "__msgpack_chunked_array__"
_CHUNKED_KEYS = {_CHUNKED, "shape", "chunks"}

# Deep enough for any model, and shallow enough that no later recursion over what was read can overflow the stack.
_MAX_DEPTH = 128

_NUMPY_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    *("bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NUMPY_DTYPES} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES if hasattr(ml_dtypes, name)
}

_MAX_NDIM = 64  # NumPy's own; checked before lengths are multiplied, which for a million of them would take hours

_DAMAGED = "The bytes are damaged, cut off, or were not written by msgpack_serialize."


def to_bytes(target: Any) -> bytes:
    """Returns the state of a tree as msgpack bytes; see `to_state_dict` for what may be in it.

    Raises:
        SerializationError: if something in it can be neither taken apart nor written.
    """
    return msgpack_serialize(to_state_dict(target))


def from_bytes(target: Any, encoded_bytes: bytes) -> Any:
    """Returns a tree like `target` with the leaves of `encoded_bytes`; see `from_state_dict`.

    Arrays come as NumPy arrays, and read-only.

    Args:
        target: a tree of the structure that was saved; `None` gives the state dict itself.
        encoded_bytes: what `to_bytes` made.

    Raises:
        SerializationError: if the bytes cannot be read, or do not fit the target.
    """
    return from_state_dict(target, msgpack_restore(encoded_bytes))


def msgpack_serialize(pytree: Any) -> bytes:
    """Returns nested dicts and lists of arrays and scalars as msgpack bytes.

    Args:
        pytree: dicts with string or integer keys, lists, arrays, numbers, strings, bytes and `None`.

    Raises:
        SerializationError: if there is anything else in it.
    """
    try:
        packed: bytes = msgpack.packb(_pack(pytree, 0), strict_types=True)
    except (ValueError, OverflowError) as error:
        if isinstance(error, SerializationError):
            raise
        what = f"msgpack cannot hold a value in it ({error})."
        raise SerializationError(
            "state", what, "Keep integers within 64 bits, and split what is over 4 GiB."
        ) from error
    return packed


def _pack(tree: Any, depth: int) -> Any:
    """Returns `tree` with its arrays as msgpack extensions."""
    _check_depth(depth)
    if type(tree) is dict:
        for key in tree:
            if type(key) not in (str, int):
                raise _StateError(f"the key {key!r} is neither a string nor an integer.", "Use strings as keys.")
        return {key: _at(key, _pack, child, depth + 1) for key, child in tree.items()}
    if type(tree) is list:
        return [_at(index, _pack, child, depth + 1) for index, child in enumerate(tree)]
    if isinstance(tree, np.ndarray | jax.Array):
        array = _to_numpy(tree)
        if array.nbytes > _MAX_CHUNK_BYTES:
            return _pack(_chunk(array), depth)
        return msgpack.ExtType(_NDARRAY, _array_bytes(array))
    if isinstance(tree, np.generic):
        return msgpack.ExtType(_NUMPY_SCALAR, _array_bytes(_to_numpy(tree)))
    if type(tree) is complex:
        return msgpack.ExtType(_COMPLEX, msgpack.packb((tree.real, tree.imag)))
    if tree is None or type(tree) in (bool, int, float, str, bytes):
        return tree
    fix = "Call to_bytes, which takes containers apart, or register_serialization_state for a type of your own."
    raise _StateError(f"a value of type {type(tree).__name__} cannot be written.", fix)


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise _StateError(f"the tree is more than {_MAX_DEPTH} levels deep.", "Flatten it before it is saved.")


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Returns an array on the host, of a dtype that can be written, in native byte order."""
    if _is_typed_key(value):
        raise _StateError("a typed random key is no plain array.", "Call to_bytes, or save jax.random.key_data(key).")
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        fix = "Gather it first, with jax.experimental.multihost_utils.process_allgather(array, tiled=True)."
        raise _StateError("the array lies partly on other hosts.", fix)
    array = np.asarray(value)
    if array.dtype.name not in _DTYPES:
        raise _StateError(f"an array of dtype {array.dtype} cannot be written.", f"Use one of {', '.join(_DTYPES)}.")
    return array.astype(_DTYPES[array.dtype.name], copy=False)


def _array_bytes(array: np.ndarray[Any, Any]) -> bytes:
    packed: bytes = msgpack.packb((array.shape, array.dtype.name, array.tobytes("C")))
    return packed


def _chunk(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    flat, size = array.reshape(-1), max(1, _MAX_CHUNK_BYTES // array.itemsize)
    chunks = [flat[start : start + size] for start in range(0, flat.size, size)]
    return {_CHUNKED: True, "shape": _indexed(array.shape), "chunks": _indexed(chunks)}


def msgpack_restore(encoded_pytree: bytes) -> Any:
    """Returns the nested dicts and lists that `msgpack_serialize` wrote; arrays are NumPy arrays, and read-only.

    Safe on bytes from anyone: only plain data comes out, dtypes are chosen from a fixed list, sizes are checked against
    the bytes that are there, and depth is bounded.

    Raises:
        SerializationError: if the bytes are anything but what `msgpack_serialize` writes.
    """
    if not isinstance(encoded_pytree, bytes | bytearray | memoryview):
        what = f"expected bytes, found a value of type {type(encoded_pytree).__name__}."
        raise SerializationError("msgpack", what, "Pass what msgpack_serialize returned.")
    tree = _unpackb(encoded_pytree, ext_hook=_unpack_extension, object_pairs_hook=_unique, strict_map_key=False)
    return _unpack(tree, 0)


def _unpackb(data: Any, **options: Any) -> Any:
    try:
        return msgpack.unpackb(data, **options)
    except SerializationError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise SerializationError("msgpack", f"the bytes cannot be read ({reason}).", _DAMAGED) from error


def _damaged(what: str) -> SerializationError:
    return SerializationError("msgpack", what, _DAMAGED)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    for key, _ in pairs:
        if type(key) not in (str, int):
            raise _damaged(f"a key is of type {type(key).__name__}, not a string or an integer.")
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _damaged("a dict has the same key twice.")
    return made


def _unpack_extension(code: int, data: bytes) -> Any:
    if code == _NDARRAY:
        return _array(data)
    if code == _NUMPY_SCALAR:
        array = _array(data)
        if array.shape:
            raise _damaged(f"a NumPy scalar has the shape {array.shape}.")
        return array[()]
    if code == _COMPLEX:
        parts = _unpackb(data)
        if not (isinstance(parts, list) and [type(part) for part in parts] == [float, float]):
            raise _damaged("a complex number is not made of two floats.")
        return complex(*parts)
    raise _damaged(f"there is an extension of the unknown type {code}.")


def _array(data: bytes) -> np.ndarray[Any, Any]:
    """Returns the array in an extension, over the bytes that it lies in."""
    match _unpackb(data, raw=True):
        case [list(shape), bytes(name), bytes(buffer)]:
            dtype = _DTYPES.get(name.decode("ascii", "replace"))
        case _:
            raise _damaged("an array is not made of shape, dtype and bytes.")
    if dtype is None:
        raise _damaged(f"an array has the unknown dtype {name!r}.")
    if _size(shape) * dtype.itemsize != len(buffer):
        raise _damaged(f"an array of shape {shape} and dtype {dtype} cannot have {len(buffer)} bytes.")
    if dtype == np.bool_ and buffer.strip(b"\0\1"):
        raise _damaged("an array of dtype bool has bytes other than 0 and 1.")
    return _reshape(np.frombuffer(buffer, dtype), shape)


def _size(shape: Sequence[Any]) -> int:
    if len(shape) > _MAX_NDIM or not all(type(length) is int and length >= 0 for length in shape):
        raise _damaged(f"an array has the shape {shape}.")
    return math.prod(shape)


def _reshape(flat: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # too many dimensions, or an empty array with an enormous one
        raise _damaged(f"an array has the shape {shape} ({error}).") from error


def _unpack(tree: Any, depth: int) -> Any:
    """Returns what was read with chunked arrays put together, and checks what msgpack itself lets pass."""
    _check_depth(depth)
    if type(tree) is dict:
        if _CHUNKED in tree:
            return _unchunk(tree)
        return {key: _at(key, _unpack, child, depth + 1) for key, child in tree.items()}
    if type(tree) is list:
        return [_at(index, _unpack, child, depth + 1) for index, child in enumerate(tree)]
    if type(tree) is msgpack.Timestamp:
        raise _StateError("found a time stamp.", _DAMAGED)
    return tree


def _unchunk(data: dict[Any, Any]) -> np.ndarray[Any, Any]:
    shape, chunks = _items(data.get("shape")), _items(data.get("chunks"))
    if data.keys() != _CHUNKED_KEYS or not chunks:
        raise _StateError("an array in pieces lacks its shape or its pieces.", _DAMAGED)
    if not all(
        isinstance(chunk, np.ndarray) and chunk.ndim == 1 and chunk.dtype == chunks[0].dtype for chunk in chunks
    ):
        raise _StateError("the pieces of an array are no flat arrays of one dtype.", _DAMAGED)
    if _size(shape) != sum(chunk.size for chunk in chunks):
        raise _StateError(f"the pieces of an array do not make up its shape {shape}.", _DAMAGED)
    return _reshape(np.concatenate(chunks), shape)


def _items(indexed: Any) -> list[Any]:
    """Returns what `_indexed` numbered, or nothing if it is not that."""
    count = len(indexed) if isinstance(indexed, dict) else 0
    return [indexed[str(i)] for i in range(count)] if all(str(i) in indexed for i in range(count)) else []

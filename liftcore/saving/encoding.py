"""Nested dicts and lists of arrays as msgpack bytes, and back, in little more memory than the bytes and arrays.

An array is written directly to its place in the bytes, and read as a view of its place there.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgpack
import numpy as np

from ..caches import bounded
from ..pytrees import is_numpy, number_type
from .dtypes import DTYPES as _DTYPES
from .problems import StateError, damaged, unwritable
from .wire import Tokens, bin_header, ext_header

__all__ = ["NDARRAY", "Reader", "WritePlan", "array_type", "checked", "decode", "encode", "pieces_of", "reshaped"]

# An array is a msgpack extension that contains msgpack of (shape, dtype name, row-major bytes), and a complex number
# one of (real, imaginary). There are only these three types of extensions.
NDARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3

# msgpack allows at most 2**32 - 1 bytes in one value, and some readers half of that. Larger arrays go in pieces.
_MAX_CHUNK_BYTES = 2**30
_CHUNKED = "__msgpack_chunked_array__"
_CHUNKED_KEYS = {_CHUNKED, "shape", "chunks"}

# Deep enough for any model, and shallow enough that no later recursion over the result can overflow the stack.
_MAX_DEPTH = 128


_MAX_NDIM = 64  # the limit of NumPy; checked before lengths are multiplied, which could otherwise take hours


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise StateError(f"the tree is more than {_MAX_DEPTH} levels deep.", "Flatten it before it is saved.")


# --- writing ----------------------------------------------------------------------------------------------------------


class _Array(NamedTuple):
    """An array that is written in one or more pieces, each with a position in the head and a number of bytes."""

    value: np.ndarray[Any, Any] | jax.Array
    dtype: np.dtype[Any]
    pieces: list[tuple[int, int]]


def encode(tree: Any) -> bytes:
    """Return the bytes of nested dicts and lists of arrays and plain values.

    Raises:
        StateError: if it contains any other value.
    """
    plan = WritePlan()
    plan.add(tree, 0)
    # A `BytesIO` fills the bytes in place, since it is their only owner, and returns them. A join would hold all arrays
    # at once in the form in which they are written: contiguous and on the host.
    out = io.BytesIO(bytes(len(plan.head) + sum(length for array in plan.arrays for _, length in array.pieces)))
    for _, part in plan.parts():
        out.write(part)
    return out.getvalue()


def _raw(value: np.ndarray[Any, Any] | jax.Array, dtype: np.dtype[Any]) -> memoryview:
    """Return the bytes of an array, without a copy if they are in memory as they are written."""
    if not isinstance(value, np.ndarray) and [device.platform for device in value.devices()] != ["cpu"]:
        # JAX keeps the host copy of an array as long as the array. So the copy is made of another array of its shards.
        shards = [shard.data for shard in value.addressable_shards]
        value = jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards)
    return np.asarray(value, dtype, order="C").reshape(-1).view(np.uint8).data


class WritePlan:
    """The bytes to write: `head` is everything except the bytes of arrays, which go between its parts."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.arrays: list[_Array] = []
        self._packer = msgpack.Packer()
        self._pack = self._packer.pack

    def parts(self) -> Iterator[tuple[int | None, bytearray | memoryview]]:
        """Yield all bytes in order: those of arrays, each with the number of its array, and those between them.

        An array is made contiguous and copied to the host when its bytes are requested, and dropped after them.
        """
        done = 0
        for number, array in enumerate(self.arrays):
            data, start = None, 0
            for position, length in array.pieces:
                yield None, self.head[done:position]  # the caller drops the previous array here
                data = data or _raw(array.value, array.dtype)
                yield number, data[start : start + length]
                done, start = position, start + length
        yield None, self.head[done:]

    def add(self, tree: Any, depth: int) -> None:
        """Add a tree at that many levels below the root."""
        _check_depth(depth)
        if type(tree) is dict:
            if _CHUNKED in tree:
                what = f"the key {_CHUNKED!r} is reserved for large arrays."
                raise StateError(what, "Choose another name.", given=_CHUNKED)
            self._add_items(tree.items(), depth, self._packer.pack_map_header(len(tree)), keyed=True)
        elif type(tree) is list:
            self._add_items(enumerate(tree), depth, self._packer.pack_array_header(len(tree)), keyed=False)
        elif isinstance(tree, jax.Array):
            self._add_array(tree, depth)
        elif is_numpy(tree):
            self._add_array(np.asarray(tree), depth)
        else:
            self._add_plain(tree)

    def _add_items(self, items: Iterable[tuple[Any, Any]], depth: int, header: bytes, keyed: bool) -> None:
        """Add a dict or a list: its header, then its children, with their keys if it is a dict."""
        self.head += header
        for name, child in items:
            if keyed and type(name) not in (str, int):
                what = f"the key {name!r} is neither a string nor an integer."
                raise StateError(what, "Use strings as keys.", given=name)
            try:
                if keyed:
                    self.head += _held(self._pack, name)
                self.add(child, depth + 1)
            except StateError as error:
                raise error.below(name) from error.__cause__

    def _add_plain(self, value: Any) -> None:
        kind = number_type(value) or type(value)
        if value is None or kind is str:
            self.head += _held(self._pack, value)
        elif kind in (bool, int, float):
            self.head += _held(self._pack, kind(value))
        elif kind is bytes:
            self.head += _held(bin_header, len(value))
            raw = np.frombuffer(value, np.uint8)
            self.arrays.append(_Array(raw, raw.dtype, [(len(self.head), len(value))]))
        elif kind is complex:
            parts = self._pack((value.real, value.imag))
            self.head += ext_header(_COMPLEX, len(parts)) + parts
        elif isinstance(value, np.generic):
            dtype = _native(value.dtype)
            self.head += _header(_NUMPY_SCALAR, (), dtype, dtype.itemsize) + np.asarray(value, dtype).tobytes()
        else:
            fix = "Save pytrees of arrays, numbers and strings. For your own type, call register_serialization_state."
            if isinstance(value, tuple):  # only `msgpack_serialize` may meet one
                fix = "Call to_bytes, which handles containers."
            if callable(value):
                fix = "To save only the arrays of a pytree, write `equinox_like.filter(tree, equinox_like.is_array)`."
            raise StateError(f"a value of type {kind.__name__} cannot be written.", fix)

    def _add_array(self, array: np.ndarray[Any, Any] | jax.Array, depth: int) -> None:
        if problem := unwritable(array):
            raise StateError(*problem)
        if not isinstance(array, np.ndarray) and not array.is_fully_addressable:
            fix = "Gather it first, with jax.experimental.multihost_utils.process_allgather(array, tiled=True)."
            raise StateError("a part of the array is on other hosts.", fix)
        dtype = _native(array.dtype)
        size = math.prod(array.shape) * dtype.itemsize
        if size > _MAX_CHUNK_BYTES:
            _check_depth(depth + 2)
            pieces = self._add_pieces(array.shape, dtype, size)
        else:
            self.head += _header(NDARRAY, array.shape, dtype, size)
            pieces = [(len(self.head), size)]
        self.arrays.append(_Array(array, dtype, pieces))

    def _add_pieces(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> list[tuple[int, int]]:
        """Add a dict of flat arrays, which together make a large one."""
        step = max(1, _MAX_CHUNK_BYTES // dtype.itemsize) * dtype.itemsize
        pack, starts, pieces = self._pack, range(0, size, step), []
        self.head += self._packer.pack_map_header(3) + pack(_CHUNKED) + pack(True)
        self.head += pack("shape") + pack({str(axis): length for axis, length in enumerate(shape)})
        self.head += pack("chunks") + self._packer.pack_map_header(len(starts))
        for index, start in enumerate(starts):
            length = min(step, size - start)
            self.head += pack(str(index)) + _header(NDARRAY, (length // dtype.itemsize,), dtype, length)
            pieces.append((len(self.head), length))
        return pieces


@bounded(256)  # a model has few shapes
def _header(code: int, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> bytes:
    """Return the header of the bytes of an array."""
    inner: bytes = b"\x93" + msgpack.packb(shape) + msgpack.packb(dtype.name) + bin_header(size)
    return ext_header(code, len(inner) + size) + inner


def _held(pack: Callable[[Any], bytes], value: Any) -> bytes:
    """Return `pack(value)`, or raises a `StateError` if msgpack cannot hold the value."""
    try:
        return pack(value)
    except UnicodeEncodeError as error:
        raise StateError(*(unwritable(value) or ("", ""))) from error
    except (ValueError, OverflowError) as error:
        fix = "Keep integers within 64 bits, and split values over 4 GiB."
        raise StateError(f"msgpack cannot hold the value ({error}).", fix) from error


@bounded(256)  # NumPy computes the name each time
def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the byte order of the machine, or raises if it cannot be written."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise StateError("a typed random key is not a plain array.", "Call to_bytes, or save jax.random.key_data(key).")
    if dtype.name not in _DTYPES:
        what, fix = f"an array of dtype {dtype} cannot be written.", f"Use one of {', '.join(_DTYPES)}."
        raise StateError(what, fix, given=dtype, available=_DTYPES)
    return _DTYPES[dtype.name]


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(data: memoryview, copy: bool) -> Any:
    """Return the nested dicts and lists in bytes; the arrays are copies or, if possible, views of the bytes.

    Raises:
        StateError: if the bytes do not have the form that `encode` writes.
    """
    tokens = Tokens(data)
    tree = Reader(tokens).read(0, copy)
    if tokens.left:
        raise damaged(f"the bytes cannot be read (there are {tokens.left} more after the first value).")
    return tree


def _plain(tokens: Tokens) -> Any:
    """Return the next number or string, or `None` if something else comes next."""
    kind, value = tokens.take()
    return value if kind == "value" else None


def _plain_list(tokens: Tokens) -> list[Any]:
    """Return the next list of numbers and strings, with `None` in place of anything else."""
    kind, length = tokens.take()
    if kind == "list" and length > _MAX_NDIM:
        raise damaged(f"an array has {length} dimensions.")
    return [_plain(tokens) for _ in range(length)] if kind == "list" else [None]


class Reader:
    """Reads the values of tokens, and remembers the headers of the arrays among them.

    A subclass that does not read arrays yet overrides `array`, `binary` and `joined`.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._types: dict[int, _Type] = {}

    def read(self, depth: int, copy: bool) -> Any:
        """Return the next value, which is at that many levels below the root."""
        kind, value = self._tokens.take()
        if kind == "value":
            return value
        if kind == "ext":
            code, data = value
            return self._extension(code, data, copy)
        if kind == "map":
            return self._dict(value, depth, copy)
        if kind == "list":
            return self._list(value, depth, copy)
        return self.binary(value)

    def _list(self, length: int, depth: int, copy: bool) -> list[Any]:
        made: list[Any] = []
        _check_depth(depth + bool(length))  # for all children at once: there may be millions
        try:
            for _ in range(length):
                made.append(self.read(depth + 1, copy))
        except StateError as error:
            raise error.below(len(made)) from error.__cause__
        return made

    def _dict(self, length: int, depth: int, copy: bool) -> Any:
        made: dict[Any, Any] = {}
        _check_depth(depth + bool(length))
        for _ in range(length):
            key = _plain(self._tokens)
            if type(key) not in (str, int):
                raise damaged("a key is neither a string nor an integer.")
            if key in made:
                raise damaged(f"a dict has the key {key!r} twice.")
            try:
                made[key] = self.read(depth + 1, copy and _CHUNKED not in made)  # pieces are copied as they are joined
            except StateError as error:
                raise error.below(key) from error.__cause__
        return self.joined(made) if _CHUNKED in made else made

    def _extension(self, code: int, data: memoryview, copy: bool) -> Any:
        if code == NDARRAY:
            return self.array(data, copy)
        if code == _NUMPY_SCALAR:
            array = self._view(data)
            if array.shape:
                raise damaged(f"a NumPy scalar has the shape {array.shape}.")
            return array[()]
        if code == _COMPLEX:
            return _complex(data)
        raise damaged(f"there is an extension of the unknown type {code}.")

    def binary(self, data: Any) -> Any:
        """Return a value of bytes."""
        return bytes(data)

    def array(self, data: Any, copy: bool) -> Any:
        """Return the array in an extension."""
        array = self._view(data)
        return _frozen(array.copy()) if copy else array

    def joined(self, pieces: dict[Any, Any]) -> Any:
        """Return a large array, given its pieces."""
        chunks, shape = pieces_of(pieces, np.ndarray)
        return _frozen(reshaped(np.concatenate(chunks), shape))

    def _view(self, data: memoryview) -> np.ndarray[Any, Any]:
        """Return the array in an extension, as a view of the bytes."""
        # Layers repeat: an extension of the same length with the same header holds an array of the same type.
        known = self._types.get(len(data))
        if known is None or data[: len(known.header)] != known.header:
            tokens = Tokens(data)
            dtype, shape = array_type(tokens, len(data))
            known = self._types[len(data)] = _Type(dtype, shape, data[: len(data) - tokens.left])
        flat = np.frombuffer(data, known.dtype, offset=len(known.header))
        return reshaped(checked(flat), known.shape)


def checked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or raises if its bytes are not values of its dtype."""
    if array.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
        raise damaged("an array of dtype bool has bytes other than 0 and 1.")
    return array


class _Type(NamedTuple):
    """The type of an array, and the header before its bytes."""

    dtype: np.dtype[Any]
    shape: list[int]
    header: memoryview


def array_type(tokens: Tokens, length: int) -> tuple[np.dtype[Any], list[int]]:
    """Return dtype and shape of the array in an extension of that length; the tokens then begin with its bytes."""
    before = tokens.left
    if tokens.take() != ("list", 3):
        raise damaged("an array does not consist of shape, dtype and bytes.")
    shape, name, (kind, size) = _plain_list(tokens), _plain(tokens), tokens.head()
    if type(name) is not str or kind != "bin" or before - tokens.left + size != length:
        raise damaged("an array does not consist of shape, dtype and bytes.")
    if name not in _DTYPES:
        raise damaged(f"an array has the unknown dtype {name!r}.")
    dtype = _DTYPES[name]
    if _size(shape) * dtype.itemsize != size:
        raise damaged(f"an array of shape {shape} and dtype {dtype} cannot have {size} bytes.")
    return dtype, shape


def _complex(data: memoryview) -> complex:
    tokens = Tokens(data)
    parts = _plain_list(tokens)
    if [type(part) for part in parts] != [float, float] or tokens.left:
        raise damaged("a complex number does not consist of two floats.")
    return complex(*parts)


def _size(shape: Sequence[Any]) -> int:
    if len(shape) > _MAX_NDIM or not all(type(length) is int and length >= 0 for length in shape):
        raise damaged(f"an array has the shape {shape}.")
    return math.prod(shape)


def reshaped(flat: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return an array in the shape that it was written with."""
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # too many dimensions, or an empty array with an enormous one
        raise damaged(f"an array has the shape {shape} ({error}).") from error


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, read-only, so that copies behave like views of the bytes."""
    array.flags.writeable = False
    return array


def pieces_of(joined: dict[Any, Any], kind: type[Any]) -> tuple[list[Any], list[int]]:
    """Return the pieces of a large array, which are flat arrays of the given class, and its shape."""
    shape, chunks = _items(joined.get("shape")), _items(joined.get("chunks"))
    if joined.keys() != _CHUNKED_KEYS or not chunks:
        raise damaged("an array in pieces lacks its shape or its pieces.")
    if not all(isinstance(one, kind) and len(one.shape) == 1 and one.dtype == chunks[0].dtype for one in chunks):
        raise damaged("the pieces of an array are not flat arrays of one dtype.")
    if _size(shape) != sum(math.prod(one.shape) for one in chunks):
        raise damaged(f"the pieces of an array do not make up its shape {shape}.")
    return chunks, shape


def _items(indexed: Any) -> list[Any]:
    """Return the values under the names 0, 1, 2 …, or an empty list if there are other names."""
    count = len(indexed) if isinstance(indexed, dict) else 0
    return [indexed[str(i)] for i in range(count)] if all(str(i) in indexed for i in range(count)) else []

"""Static values: any Python value as a hashable key. Two keys are equal only if a trace cannot distinguish the values.

A cached trace may be used again only for a value that is equal by type and value at every level: `1`, `1.0` and `True`
differ, and so do `0.0` and `-0.0`. The key is computed for each call, so it reflects changes in place: an object of a
class without equality is equal only to itself, as long as its attributes are the same.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import hashlib
import io
import logging
import struct
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np

from ._compat import NUMPY_ARRAYS
from .caches import bounded
from .errors import NotSharedWarning, shown
from .frozen_dict import FrozenDict
from .pytrees import is_numpy

__all__ = [
    "Alike",
    "Undescribed",
    "attributes_of",
    "is_shareable",
    "is_unchanging",
    "kept_with",
    "marked",
    "settings_key",
    "snapshot",
    "static_key",
    "surroundings",
    "surrounds",
    "warn_not_shared",
]

Kept = TypeVar("Kept")

_ATOMS = frozenset({bool, bytes, int, str, type(None), types.EllipsisType})
_THEMSELVES = (
    type,
    types.ModuleType,
    enum.Enum,
    types.FunctionType,
    types.BuiltinFunctionType,
    type(functools.cache(len)),
    type(jax.jit(len)),
    jax.custom_jvp,
    jax.custom_vjp,
    np.ufunc,
    jax.Device,
    jax.sharding.Mesh,  # of this and of the next, JAX keeps one object for all equal ones
    jax.sharding.PartitionSpec,
    logging.Logger,
    logging.Handler,
    io.IOBase,
    type(threading.Lock()),
    type(threading.RLock()),
)
"""Types whose values are their own keys. A trace assumes that functions, their closures and globals do not change."""

_COPIED = (dict, list, tuple, set, frozenset, np.ndarray)
_EXTENSIBLE = (*_COPIED, float, complex, int, str, bytes, functools.partial, slice)
"""Types of Python and NumPy whose subclasses may add attributes. A `defaultdict` has one, a `partial` only those."""

_UNCHANGING = _ATOMS.union(_THEMSELVES)
"""Types whose values are their own keys, together with the type; checked first, as most static values have them."""


class Undescribed(TypeError):
    """A value has no key, because it may change, or behave differently, and still be equal to itself.

    Attributes:
        value: the value without a key.
        place: its path in the given value, such as `.config["sizes"][0]`.
        fix: a sentence that says what to do.
    """

    def __init__(self, value: Any, place: str = "", fix: str = "") -> None:
        where = f" at {place}" if place else ""
        what = f"a {type(value).__name__}{where} cannot be compared by its contents: it may change unnoticed."
        self.value, self.place, self.fix = value, place, fix or _fix(value)
        super().__init__(f"{what} {self.fix}")


def static_key(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal values of equal types, at every level.

    Keys exist for numbers and strings, NumPy arrays (by content), containers, functions and classes (by identity),
    `functools.partial` and bound methods, frozen dataclasses (by field), and objects of a class that defines both
    `__eq__` and `__hash__`. Other objects have keys if they consist of attributes: an object of a class that defines
    `__eq__` alone is compared by its attributes, and any other object by its identity and its current attributes. A
    class may define a method `__static_fields__` that returns the values to compare, as a dict.

    Example:
        >>> from liftcore import static_key
        >>> static_key((1, [2.0])) == static_key((1, [2.0])), static_key(1) == static_key(True)
        (True, False)
        >>> static_key({"rate": 0.0}) == static_key({"rate": -0.0})
        False

    Args:
        value: any Python value.

    Returns:
        The key. It may contain functions, classes and the objects that are compared by identity, but no arrays.

    Raises:
        Undescribed: if there is no key: for a JAX array, a pytree node that can change, or an object that may have more
            state than its attributes, such as an iterator.
    """
    key: Hashable = _key(value, (), set())
    return key


def is_unchanging(value: Any) -> bool:
    """Whether a value is known not to change in place: a number, text, class or function, or a tuple of such values.

    Example:
        >>> is_unchanging((1, "text", len)), is_unchanging([1])
        (True, False)

    Args:
        value: any value.
    """
    if type(value) is functools.partial:
        return is_unchanging((value.func, *value.args, *value.keywords.values()))
    return (
        type(value) in _UNCHANGING
        or type(value) in (float, complex)
        or (type(value) is tuple and all(map(is_unchanging, value)))
    )


def snapshot(value: Any) -> Any:
    """Return the same value with copies of its mutable parts: lists, dicts, sets and NumPy arrays.

    An object that `static_key` compares by its attributes alone is copied too. One that is equal only to itself is not.
    A value that is cached under a key must keep the value that the key describes: it may be traced again after the
    original has changed. JAX also assumes that a NumPy array does not change between traces.

    Args:
        value: any Python value. An object with a method `__snapshot__` makes its own copy.
    """
    return _copied(value, {})


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return a snapshot. Objects that are compared by their attributes may hold each other: `copies` has them by id."""
    kind: Any = type(value)
    if kind in _UNCHANGING or kind is slice:
        return value
    if is_numpy(value) and not isinstance(value, np.ndarray):
        return np.array(value)
    if kind in (list, tuple, set, frozenset):
        return kind([_copied(below, copies) for below in value])
    if kind in (dict, FrozenDict, types.MappingProxyType):
        return kind({name: _copied(below, copies) for name, below in value.items()})
    if isinstance(value, types.MethodType):
        return kind(value.__func__, _copied(value.__self__, copies))
    if isinstance(value, functools.partial):
        made = kind(_copied(value.func, copies), *_copied(value.args, copies), **_copied(value.keywords, copies))
        made.__dict__.update(_copied(value.__dict__, copies))
        return made
    return _copied_object(value, kind, copies)


def _copied_object(value: Any, kind: Any, copies: dict[int, Any]) -> Any:
    if hasattr(kind, "__snapshot__"):
        return value.__snapshot__()
    if not (isinstance(value, _COPIED) or _is_frozen(kind) or _is_compared_by_attributes(value, kind)):
        return value
    if id(value) not in copies:
        copies[id(value)] = made = _with_copied_items(value, kind, copies)
        for name, below in _attributes(value, kind).items():
            object.__setattr__(made, name, _copied(below, copies))
    return copies[id(value)]


def _with_copied_items(value: Any, kind: Any, copies: dict[int, Any]) -> Any:
    """Return a new object of a class that may have its own constructor, with copies of the items, if it has any."""
    if isinstance(value, tuple):
        return tuple.__new__(kind, [_copied(below, copies) for below in value])
    made = object.__new__(kind) if _is_frozen(kind) and not isinstance(value, _COPIED) else copy.copy(value)
    if isinstance(value, list):
        list.__setitem__(made, slice(None), [_copied(below, copies) for below in value])
    elif isinstance(value, dict):
        for name, below in value.items():
            dict.__setitem__(made, name, _copied(below, copies))
    return made


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it holds none, or it compares by value.

    Args:
        fn: the function.
    """
    fn = getattr(fn, "shared_as", fn)  # set on a wrapper that is shared like the function that it wraps
    if isinstance(fn, types.FunctionType):
        defaults = jax.tree.leaves((fn.__defaults__, fn.__kwdefaults__))
        return fn.__closure__ is None and not any(isinstance(leaf, jax.Array) for leaf in defaults)
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


class _Kept(dict[Any, Any]):
    """Values that are dropped together with a function. Pickles of the function leave them out."""

    def __reduce__(self) -> Any:
        return _Kept, ()


def kept_with(function: types.FunctionType, make: Callable[[], Kept]) -> Kept:
    """Return `make()`: the same object in each call, which is kept with the function for as long as that lives.

    A cache elsewhere, with the function in its keys, would keep the function alive, and what it closes over.

    Args:
        function: the function. The object is an attribute of it, so a wrapper that copies its attributes has it too.
        make: makes the object.
    """
    kept = function.__dict__.setdefault("__kept__", _Kept())
    if make not in kept:
        kept[make] = make()
    found: Kept = kept[make]
    return found


_settings: list[Callable[[], Hashable]] = []


def surrounds(tell: Callable[[], Hashable]) -> Callable[[], Hashable]:
    """Register a context in which bodies are traced: compiled functions are reused only if the context is equal.

    For a Module layer with such contexts, for example a `with` block that affects the modules in it.

    Args:
        tell: returns a hashable value that describes the current context, or raises `Undescribed`.
    """
    _settings.append(tell)
    return tell


def settings_key() -> Hashable:
    """Return the key of the settings around a call: the present values of the contexts that `surrounds` registered.

    Raises:
        Undescribed: if one of them has no key.
    """
    return tuple([tell() for tell in _settings])


def surroundings() -> Hashable:
    """Deprecated: the former name of `settings_key`."""
    text = "`statics.surroundings` is now named `settings_key`, and leaves in 0.4. Write `statics.settings_key()`."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return settings_key()


_warned: set[str] = set()


def warn_not_shared(where: str, error: Undescribed) -> str:
    """Warn, once for each place, that compiled functions will not be used again.

    Args:
        where: the owner of the value, such as the name of a class.
        error: has the value that has no key.

    Returns:
        The place of the value.
    """
    place = f"{where}{error.place}"
    if place not in _warned:
        _warned.add(place)
        warnings.warn(
            f"{place} is {shown(error.value)}, which cannot be compared by its contents: it may change from one call "
            f"to the next. So a lifted `jit` does not keep what it compiles for it, and each call compiles again. "
            f"{error.fix}",
            NotSharedWarning,
            stacklevel=2,
        )
    return place


def _fix(value: Any) -> str:
    """Return the fix for a value without a key."""
    if isinstance(value, jax.Array | jax.core.Tracer | jax.Ref):
        return "Pass it as an argument, or make it a variable."
    kind: Any = type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return "Read what you need from it first, and pass that: numbers, strings, tuples or arrays."
    way = "a frozen dataclass, or give it, or a subclass, `__eq__` and `__hash__` that compare its contents"
    return f"Make {kind.__name__} {way}."


_HEAP_TYPE = 1 << 9
"""The flag of types that a `class` statement makes."""


def _key(value: Any, above: tuple[int, ...], seen: set[int]) -> Any:
    """Return the key of a value.

    Args:
        value: the value.
        above: the values that it is inside of, by `id`. A value inside itself is described by its distance.
        seen: the objects whose attributes the key already has, by `id`.
    """
    kind: Any = type(value)
    if kind in _UNCHANGING:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is tuple and _UNCHANGING.issuperset(map(type, value)):  # most tuples: several times faster
        return kind, *zip(map(type, value), value, strict=True)
    if isinstance(value, _THEMSELVES):
        return kind, value
    if id(value) in above:
        return "above", above[::-1].index(id(value))
    return kind, *_parts(value, kind, (*above, id(value)), seen)


def _parts(value: Any, kind: Any, above: tuple[int, ...], seen: set[int]) -> Iterable[Any]:
    at = functools.partial(_at, above, seen)
    items = _items(value, at)
    if items is None:
        return _object_parts(value, kind, at, seen)
    return [*items, *_described(_attributes(value, kind), at)] if isinstance(value, _EXTENSIBLE) else items


def _items(value: Any, at: Callable[[str, Any], Any]) -> Iterable[Any] | None:
    """Return the keys of what a number, an array or a container consists of, beside its attributes; None for others."""
    if isinstance(value, float | complex):
        return [value.real.hex(), value.imag.hex()]
    if isinstance(value, NUMPY_ARRAYS):
        return _content(value)
    if isinstance(value, int | str | bytes):
        return [value] if _hashes(value) else None
    if isinstance(value, jax.tree_util.PyTreeDef):  # its own `==` does not distinguish 0.0 and -0.0 in static parts
        return [at(" of a pytree", marked(value.node_data())), *(at("", child) for child in value.children())]
    if isinstance(value, Mapping):
        return [part for name, below in value.items() for part in (at("", name), at(f"[{name!r}]", below))]
    if isinstance(value, tuple | list):
        return [at(f"[{number}]", below) for number, below in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [frozenset([at("{…}", one) for one in value])]
    if isinstance(value, types.MethodType):
        return [value.__func__, at(".__self__", value.__self__)]
    return [] if isinstance(value, functools.partial | slice) else None


def _object_parts(value: Any, kind: Any, at: Callable[[str, Any], Any], seen: set[int]) -> Iterable[Any]:
    fields = _fields(value, kind)
    if fields is None and _compares(kind) and _hashes(value):
        return [value]
    own: list[Any] = []
    if fields is None:
        if not _has_only_attributes(value, kind):
            raise Undescribed(value)
        if kind.__eq__ is object.__eq__:
            own = [_Same(value)]
            if id(value) in seen:
                return own
            seen.add(id(value))
        fields = _attributes(value, kind)
    return [*own, *_described(fields, at)]


def _described(attributes: Mapping[str, Any], at: Callable[[str, Any], Any]) -> Iterable[Any]:
    return [part for name, below in attributes.items() for part in (name, at(f".{name}", below))]


def _at(above: tuple[int, ...], seen: set[int], step: str, value: Any) -> Any:
    try:
        return _key(value, above, seen)
    except Undescribed as error:
        raise Undescribed(error.value, step + error.place, error.fix) from None


class Alike:
    """The key of a value that has no other: equal if the types are the same and `==` returns True.

    Args:
        value: any value; the key keeps it alive.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alike) or type(self._value) is not type(other._value):
            return False
        if self._value is other._value:
            return True
        try:
            return bool(self._value == other._value)
        except Exception:  # such as comparing arrays, which has no truth value
            return False

    def __hash__(self) -> int:
        return hash(type(self._value))


class _Same:
    """The key of an identity: it is equal for the same object only, and keeps that alive."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _fields(value: Any, kind: Any) -> dict[str, Any] | None:
    """Return the values that describe an object, by name, or None if none are known."""
    if hasattr(kind, "__static_fields__"):
        found: dict[str, Any] = value.__static_fields__()
        return found
    if _is_frozen(kind):
        found = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(kind)}
        return found | {name: below for name, below in _others(value, kind).items() if name not in found}
    return None


def _others(value: Any, kind: Any) -> dict[str, Any]:
    """Return the attributes of an object in its dict, except those that its class computes and caches."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    cached = functools.cached_property
    return {name: below for name, below in held.items() if not isinstance(getattr(kind, name, None), cached)}


def _attributes(value: Any, kind: Any) -> dict[str, Any]:
    """Return all attributes of an object, except those that its class computes and caches."""
    return {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)} | _others(value, kind)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return all attributes of an object, in its slots and in its dict, if it consists of nothing else.

    Example:
        >>> from types import SimpleNamespace
        >>> attributes_of(SimpleNamespace(rate=2.0))
        {'rate': 2.0}

    Args:
        value: the object.

    Raises:
        Undescribed: if the object may have more state than its attributes.
    """
    kind: Any = type(value)
    if not _has_only_attributes(value, kind):
        raise Undescribed(value)
    return {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )


@bounded(1024)
def _slots(kind: Any) -> tuple[str, ...]:
    """Return the names of the slots of a class; private ones are mangled."""
    descriptors = [(name, one) for cls in kind.__mro__ for name, one in vars(cls).items()]
    members = [name for name, one in descriptors if isinstance(one, types.MemberDescriptorType)]
    # Classes in C name places in their memory as members; what is there, such as how a `partial` is called, may change.
    return tuple([name for name in members if name != "__dict__" and not name.endswith("offset__")])


def _has_only_attributes(value: Any, kind: Any) -> bool:
    """Return whether an object has no state but its attributes.

    Arrays have values, and a node of a pytree is more than its attributes.
    """
    if isinstance(value, jax.Array | jax.core.Tracer | jax.Ref):
        return False
    return _is_plain(kind) and jax.tree_util.all_leaves((value,))


@bounded(1024)
def _is_plain(kind: Any) -> bool:
    """Return whether the objects of a class have memory for attributes alone: no base class in C adds state."""
    dictionaries = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    size = object.__basicsize__ + _POINTER * (len(_slots(kind)) + dictionaries)
    return bool(kind.__basicsize__ == size and not kind.__itemsize__)


_POINTER = struct.calcsize("P")


def _is_compared_by_attributes(value: Any, kind: Any) -> bool:
    """Return whether an object is compared by its attributes alone, so that another one may be equal to it."""
    return (
        kind.__eq__ is not object.__eq__
        and not (hasattr(kind, "__static_fields__") or _is_frozen(kind))
        and not (_compares(kind) and _hashes(value))
        and _has_only_attributes(value, kind)
    )


def _is_frozen(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and bool(cast(Any, kind).__dataclass_params__.frozen)


def _compares(kind: Any) -> bool:
    """Whether a class defines which of its objects are equal."""
    return kind.__eq__ is not object.__eq__ and kind.__hash__ not in (None, object.__hash__)


def _hashes(value: Any) -> bool:
    """Return whether a value can be hashed: the hash of a module may need those of arrays, which have none."""
    try:
        hash(value)
    except (TypeError, ValueError):  # a `memoryview` that can be written to raises the latter
        return False
    return True


def marked(static: Any) -> Any:
    """Return the static part of a node, with the type and identity of each object in it that has no attributes.

    Nodes use such objects as markers, and JAX compares them by identity too; they cannot change.

    Args:
        static: the static part, as `PyTreeDef.node_data` returns it.
    """
    if type(static) is tuple:
        return tuple(map(marked, static))
    kind: Any = type(static)
    bare = kind.__mro__[1:] == (object,) and "__dict__" in vars(kind) and not static.__dict__
    return (kind, id(static)) if bare and kind.__hash__ is object.__hash__ else static


def _content(array: Any) -> tuple[Any, ...]:
    if array.dtype.hasobject:
        raise Undescribed(array)
    return array.dtype, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()

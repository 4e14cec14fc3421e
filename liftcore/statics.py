"""Static values: any Python value as a hashable key. Two keys are equal only if a trace cannot distinguish the values.

A cached trace may be used again only for a value that is equal by type and value at every level: `1`, `1.0` and `True`
differ, and so do `0.0` and `-0.0`. The key is computed for each call, so it reflects changes in place.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import hashlib
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, cast

import jax
import numpy as np

from ._compat import NUMPY_ARRAYS
from .errors import NotSharedWarning, shown
from .frozen_dict import FrozenDict

__all__ = [
    "Undescribed",
    "is_shareable",
    "marked",
    "snapshot",
    "static_key",
    "surroundings",
    "surrounds",
    "warn_not_shared",
]

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
)
"""Types whose values are their own keys. A trace assumes that functions, their closures and globals do not change."""

_UNCHANGING = _ATOMS.union(_THEMSELVES)
"""Types whose values are their own keys, together with the type; checked first, as most static values have them."""


class Undescribed(TypeError):
    """A value has no key, because it may change, or behave differently, and still be equal to itself.

    Attributes:
        value: the value without a key.
        place: its path in the given value, such as `.config["sizes"][0]`.
    """

    def __init__(self, value: Any, place: str = "") -> None:
        where = f" at {place}" if place else ""
        what = f"a {type(value).__name__}{where} cannot be compared by its contents: it may change unnoticed."
        super().__init__(f"{what} {_fix(value)}")
        self.value, self.place = value, place


def static_key(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal values of equal types, at every level.

    Keys exist for numbers and strings, NumPy arrays (by content), containers, functions and classes (by identity),
    `functools.partial` and bound methods, frozen dataclasses (by field), and objects of a class that defines both
    `__eq__` and `__hash__`. A class may define a method `__static_fields__` that returns the values to compare, as a
    dict.

    Example:
        >>> from liftcore import static_key
        >>> static_key((1, [2.0])) == static_key((1, [2.0])), static_key(1) == static_key(True)
        (True, False)
        >>> static_key({"rate": 0.0}) == static_key({"rate": -0.0})
        False

    Args:
        value: any Python value.

    Returns:
        The key. It may contain functions and classes, but no arrays.

    Raises:
        Undescribed: if there is no key: for a JAX array, or a mutable object that is equal only to itself.
    """
    key: Hashable = _key(value, ())
    return key


def snapshot(value: Any) -> Any:
    """Return the same value with copies of its mutable parts: lists, dicts, sets and NumPy arrays.

    A value that is cached under a key must keep the value that the key describes: it may be traced again after the
    original has changed. JAX also assumes that a NumPy array does not change between traces.

    Args:
        value: any Python value. An object with a method `__snapshot__` makes its own copy.
    """
    kind: Any = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is np.ndarray:
        return value.copy()
    if kind in (list, tuple, set, frozenset):
        return kind(map(snapshot, value))
    if kind in (dict, FrozenDict):
        return kind({name: snapshot(below) for name, below in value.items()})
    if isinstance(value, dict):  # it may have attributes, and its own constructor
        copied = copy.copy(value)
        for name, below in value.items():
            copied[name] = snapshot(below)
        return copied
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(map(snapshot, value))
    if isinstance(value, functools.partial):
        return kind(value.func, *snapshot(value.args), **snapshot(value.keywords))
    if _is_frozen(kind) and hasattr(value, "__dict__"):
        made = object.__new__(kind)
        made.__dict__.update({name: snapshot(below) for name, below in value.__dict__.items()})
        return made
    return value.__snapshot__() if hasattr(kind, "__snapshot__") else value


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it holds none, or it compares by value."""
    fn = getattr(fn, "shared_as", fn)  # set on a wrapper that is shared like the function that it wraps
    if isinstance(fn, types.FunctionType):
        defaults = jax.tree.leaves((fn.__defaults__, fn.__kwdefaults__))
        return fn.__closure__ is None and not any(isinstance(leaf, jax.Array) for leaf in defaults)
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


_surroundings: list[Callable[[], Hashable]] = []


def surrounds(tell: Callable[[], Hashable]) -> Callable[[], Hashable]:
    """Register a context in which bodies are traced: compiled functions are reused only if the context is equal.

    For a Module layer with such contexts, for example a `with` block that affects the modules in it.

    Args:
        tell: returns a hashable value that describes the current context, or raises `Undescribed`.
    """
    _surroundings.append(tell)
    return tell


def surroundings() -> Hashable:
    """Return the present values of the registered contexts.

    Raises:
        Undescribed: if one of them has no key.
    """
    return tuple([tell() for tell in _surroundings])


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
            f"{_fix(error.value)}",
            NotSharedWarning,
            stacklevel=2,
        )
    return place


def _fix(value: Any) -> str:
    """Return the fix for a value without a key."""
    if isinstance(value, jax.Array):
        return "Pass it as an argument, or make it a variable."
    kind = type(value).__name__
    return f"Make {kind} a frozen dataclass, or give it `__eq__` and `__hash__` that compare its contents."


def _key(value: Any, above: tuple[int, ...]) -> Any:
    """Return the key of a value inside others, known by `id`. A value inside itself is described by its distance."""
    kind: Any = type(value)
    if kind in _UNCHANGING:
        return kind, value
    if isinstance(value, float | complex):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, _THEMSELVES):
        return kind, value
    if isinstance(value, NUMPY_ARRAYS):
        return kind, *_content(value)
    if id(value) in above:
        return "above", above[::-1].index(id(value))
    return kind, *_parts(value, kind, (*above, id(value)))


def _parts(value: Any, kind: Any, above: tuple[int, ...]) -> Iterable[Any]:
    at = functools.partial(_at, above)
    if isinstance(value, jax.tree_util.PyTreeDef):  # its own `==` does not distinguish 0.0 and -0.0 in static parts
        return [at(" of a pytree", marked(value.node_data())), *(at("", child) for child in value.children())]
    if isinstance(value, Mapping):
        held = getattr(value, "__dict__", {}) if isinstance(value, dict) else {}
        own = [at(f".{name}", below) for name, below in held.items()]
        return [*own, *(part for name, below in value.items() for part in (at("", name), at(f"[{name!r}]", below)))]
    if isinstance(value, tuple | list):
        return [at(f"[{number}]", below) for number, below in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [frozenset([at("{…}", one) for one in value])]
    if isinstance(value, functools.partial):
        return [at(".func", value.func), at(".args", value.args), at(".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [value.__func__, at(".__self__", value.__self__)]
    fields = _fields(value, kind)
    if fields is not None:
        return [part for name, below in fields.items() for part in (name, at(f".{name}", below))]
    if not _compares(kind) or not _hashes(value):
        raise Undescribed(value)
    return [value]


def _at(above: tuple[int, ...], step: str, value: Any) -> Any:
    try:
        return _key(value, above)
    except Undescribed as error:
        raise Undescribed(error.value, step + error.place) from None


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
    """Return the attributes of an object, except those that its class computes and caches."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    cached = functools.cached_property
    return {name: below for name, below in held.items() if not isinstance(getattr(kind, name, None), cached)}


def _is_frozen(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and bool(cast(Any, kind).__dataclass_params__.frozen)


def _compares(kind: Any) -> bool:
    """Whether a class defines which of its objects are equal."""
    return kind.__eq__ is not object.__eq__ and kind.__hash__ not in (None, object.__hash__)


def _hashes(value: Any) -> bool:
    """Return whether a value can be hashed: the hash of a module may need those of arrays, which have none."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def marked(static: Any) -> Any:
    """Return the static part of a node, with the type and identity of each object in it that has no attributes.

    Nodes use such objects as markers, and JAX compares them by identity too; they cannot change.
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

"""Keys for instances of Python classes: the identity of an object and its current attributes."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import jax

from liftcore import is_array, static_key
from liftcore.statics import Undescribed

__all__ = ["attributes_key"]

_HEAP_TYPE = 1 << 9  # the flag of types that a `class` statement made at run time


def attributes_key(value: Any) -> Hashable | None:
    """Return a key for an object that is equal only to itself, such as a mutable dataclass of settings.

    The key is made anew in each call, so it reflects changes in place: of attributes, and of objects, lists and dicts

    Example:
        >>> class Config:
        ...     rate = 1.0
        >>> config = Config()
        >>> before = attributes_key(config)
        >>> before == attributes_key(config), before == attributes_key(Config())
        (True, False)
        >>> config.rate = 2.0
        >>> before == attributes_key(config)
        False

    Args:
        value: the object. Keep it alive as long as the key.

    Returns:
        The key; None if the object may hold more than attributes, or holds something without a key, such as an array.
    """
    try:
        key: Hashable = _key(value, ())
    except Undescribed:
        return None
    return key


def _key(value: Any, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return "above", above.index(id(value))
    try:
        return static_key(value)
    except Undescribed:
        parts, above = _parts(value), (*above, id(value))
        if parts is None:
            raise
    # A container is keyed by type and parts only; an object by its identity as well.
    own = None if isinstance(value, (list, tuple, dict)) else id(value)
    return type(value), own, tuple([(_key(name, above), _key(part, above)) for name, part in parts.items()])


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a container or object by name; None if it may hold more than these."""
    kind: Any = type(value)
    if kind is dict:
        parts: dict[Any, Any] = value
        return parts
    if kind in (list, tuple):
        return dict(enumerate(value))
    # Arrays have values, and a pytree such as a module is more than its attributes.
    if is_array(value) or not jax.tree_util.all_leaves((value,)) or not _is_plain(kind):
        return None
    return _attributes(value, kind)


def _attributes(value: Any, kind: type[Any]) -> dict[str, Any]:
    slots = [vars(cls).get("__slots__", ()) for cls in kind.__mro__]
    names = {name for some in slots for name in ((some,) if isinstance(some, str) else some)}
    held = {name: getattr(value, name) for name in sorted(names - {"__dict__", "__weakref__"}) if hasattr(value, name)}
    others = getattr(value, "__dict__", {}).items()
    # A `cached_property` is computed from other attributes, so it adds nothing to the key.
    cached = functools.cached_property
    return held | {name: part for name, part in others if not isinstance(getattr(kind, name, None), cached)}


@functools.lru_cache(maxsize=1024)
def _is_plain(kind: Any) -> bool:
    """Return whether instances of a class hold nothing but attributes: none of its base classes is written in C."""
    classes = kind.__mro__[:-1]
    has_attributes = any("__dict__" in vars(cls) or "__slots__" in vars(cls) for cls in classes)
    written = all(cls.__flags__ & _HEAP_TYPE and _is_written(cls) for cls in classes)
    return has_attributes and written


def _is_written(cls: type[Any]) -> bool:
    makers = [vars(cls).get(name) for name in ("__new__", "__init__")]
    return all(maker is None or hasattr(getattr(maker, "__func__", maker), "__code__") for maker in makers)

"""Objects of Python classes as keys: which object it is, and what its attributes are now."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import jax

from liftcore import is_array, static_key
from liftcore.statics import Undescribed

__all__ = ["attributes_key"]

_HEAP_TYPE = 1 << 9  # of the flags of a type: it was made while the program ran, as `class` does


def attributes_key(value: Any) -> Hashable | None:
    """A key for an object that equals itself alone, such as a configuration that is a mutable dataclass.

    It is made anew in each call, so a change in place is seen: of attributes, and of objects, lists and dicts in them.

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
        value: the object. It has to be kept alive as long as the key.

    Returns:
        The key; None where the object may keep more than attributes, or holds what has no key, such as a JAX array.
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
    # What contains an object is told by type and parts alone, the object by its identity too.
    own = None if isinstance(value, (list, tuple, dict)) else id(value)
    return type(value), own, tuple([(_key(name, above), _key(part, above)) for name, part in parts.items()])


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """What is in a container or in an object by name, or None where more may be in it."""
    kind: Any = type(value)
    if kind is dict:
        parts: dict[Any, Any] = value
        return parts
    if kind in (list, tuple):
        return dict(enumerate(value))
    # Arrays have values, and a pytree that hides in an object, such as a module, is more than its attributes.
    if is_array(value) or not jax.tree_util.all_leaves((value,)) or not _is_plain(kind):
        return None
    return _attributes(value, kind)


def _attributes(value: Any, kind: type[Any]) -> dict[str, Any]:
    slots = [vars(cls).get("__slots__", ()) for cls in kind.__mro__]
    names = {name for some in slots for name in ((some,) if isinstance(some, str) else some)}
    held = {name: getattr(value, name) for name in sorted(names - {"__dict__", "__weakref__"}) if hasattr(value, name)}
    others = getattr(value, "__dict__", {}).items()
    # What a class computes of the others when it is first asked says nothing new.
    cached = functools.cached_property
    return held | {name: part for name, part in others if not isinstance(getattr(kind, name, None), cached)}


@functools.lru_cache(maxsize=1024)
def _is_plain(kind: Any) -> bool:
    """Whether objects of a class keep nothing but attributes: no class of it is written in C."""
    classes = kind.__mro__[:-1]
    has_attributes = any("__dict__" in vars(cls) or "__slots__" in vars(cls) for cls in classes)
    written = all(cls.__flags__ & _HEAP_TYPE and _is_written(cls) for cls in classes)
    return has_attributes and written


def _is_written(cls: type[Any]) -> bool:
    makers = [vars(cls).get(name) for name in ("__new__", "__init__")]
    return all(maker is None or hasattr(getattr(maker, "__func__", maker), "__code__") for maker in makers)

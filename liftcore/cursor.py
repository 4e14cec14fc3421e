"""`cursor`: edits of nested containers that leave the original unchanged.

Example:
    >>> config = {"layers": [{"width": 3}, {"width": 4}], "name": "mlp"}
    >>> cursor(config)["layers"][0]["width"].set(5)
    {'layers': [{'width': 5}, {'width': 4}], 'name': 'mlp'}
    >>> edit = cursor(config)
    >>> edit["layers"][1]["width"] *= 10
    >>> edit["name"] = "wide"
    >>> edit.build(), config["name"]
    ({'layers': [{'width': 3}, {'width': 40}], 'name': 'wide'}, 'mlp')
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from .errors import CursorFindError, LiftArgumentError, shown
from .frozen_dict import FrozenDict

__all__ = ["Cursor", "cursor"]

A = TypeVar("A")


def cursor(obj: A) -> Cursor[A]:
    """Return a cursor at a container: a dict or another mapping, a list, a tuple, a named tuple, or a dataclass.

    Example:
        >>> state = {"params": {"dense": {"kernel": 2.0, "bias": 1.0}}}
        >>> cursor(state).apply_update(lambda path, value: 0.0 if path.endswith("bias") else value).build()
        {'params': {'dense': {'kernel': 2.0, 'bias': 0.0}}}

    Args:
        obj: the container.
    """
    return Cursor(obj)


class Cursor(Generic[A]):
    """A place in nested containers, with the edits below it.

    Items and fields of a container are cursors too; those of other values, such as arrays, are plain values. Operators
    and comparisons apply to the edited value, so `edit["w"] += 1` is an edit. An item that does not exist raises
    `CursorFindError`, which lists those that do.

    Args:
        obj: the value at the place.
    """

    __slots__ = ("_assigned", "_below", "_key", "_parent", "_value")
    __hash__ = None  # type: ignore[assignment]  # it compares equal to values that may change
    _assigned: bool
    _below: dict[Any, Cursor[Any]]
    _key: Any  # in the container above: the key, the index from the front, or the name of the field
    _parent: Cursor[Any] | None
    _value: A

    def __init__(self, obj: A) -> None:
        self._fill(False, {}, None, None, obj)

    def _fill(self, *values: Any) -> None:
        """Set the slots, in their order."""
        for name, value in zip(Cursor.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    # -- reading and editing -------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if not _is_container(self._value):
            return operator.getitem(self._value, key)  # type: ignore[call-overload]
        return self._child(self._key_of(key))

    def __getattr__(self, name: str) -> Any:
        if name in Cursor.__slots__:  # the cursor is under construction
            raise AttributeError(name)
        fields = _fields(self._value)
        if name in fields:
            return self._child(name)
        if _is_container(self._value) and not fields:
            text = f"{shown(self._value)} has no fields; write `[{name!r}]` for an item"
            raise AttributeError(text, name=name, obj=self)
        return getattr(self._value, name)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _is_container(self._value):
            what = f"{shown(self._value)} is not a container, so its items cannot be edited."
            fix = "Set the whole; for an array, `.set(array.at[…].set(…))`."
            raise LiftArgumentError(self._where(), what, fix, given=self._value)
        self._assign(self._key_of(key), value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _fields(self._value):
            fields = ", ".join(_fields(self._value)) or "none"
            what = f"{shown(self._value)} has no field {name!r} (its fields: {fields})."
            fix = f"Write `[{name!r}]` for an item."
            raise LiftArgumentError(self._where(), what, fix, given=name, available=_fields(self._value))
        self._assign(name, value)

    def set(self, value: Any) -> Any:
        """Set the value at this place.

        Args:
            value: the new value.

        Returns:
            The outermost container, with this edit and all earlier ones.
        """
        root = self
        while root._parent is not None:
            root = root._parent
        if self._parent is None:
            return value
        self._parent._assign(self._key, value)
        return root.build()

    def build(self) -> A:
        """Return the value at this place with all edits. Parts that were not edited are the same objects as before."""
        new = {key: child.build() for key, child in self._below.items() if child._is_edited()}
        return _replaced(self._value, new) if new else self._value

    # -- many at once --------------------------------------------------------------------------------------------------

    def apply_update(self, update_fn: Callable[[str, Any], Any]) -> Cursor[A]:
        """Set many values below this place.

        Args:
            update_fn: called as `update_fn(path, value)` for each value below, containers first, with a path such as
                `"layers/0/width"`. If it returns another object, that is the new value, and its contents are skipped.

        Returns:
            This cursor.
        """
        new: list[Any] = []

        def changes(path: str, value: Any) -> bool:
            new[:] = [update_fn(path, value)]
            return new[0] is not value

        for place in self.find_all(changes):
            place.set(new[0])
        return self

    def find(self, cond_fn: Callable[[str, Any], bool]) -> Cursor[Any]:
        """Return the cursor at the only value below that fulfils a condition; see `find_all`.

        Args:
            cond_fn: called as `cond_fn(path, value)`.

        Raises:
            CursorFindError: if there is none, or more than one.
        """
        found = list(self.find_all(cond_fn))
        if len(found) == 1:
            return found[0]
        places = [one._path() for one in found[:4]]
        what = f"the condition holds at {len(found)} places ({', '.join(places)})." if found else "nothing fulfils it."
        fix = "Match more of the path, or use `find_all`." if found else "Paths have the form `layers/0/kernel`."
        raise CursorFindError(f"find {self._where()}", what, fix, given=len(found))

    def find_all(self, cond_fn: Callable[[str, Any], bool]) -> Iterator[Cursor[Any]]:
        """Yield the cursors at all values below that satisfy a condition.

        Args:
            cond_fn: called as `cond_fn(path, value)` for each value below, containers first, with a path such as
                `"layers/0/width"`. If it holds for a container, the contents are skipped.
        """
        yield from self._found(cond_fn, "")

    # -- other methods -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.build())  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over cursors at the items of a list or tuple, or over the keys of a mapping."""
        value = self.build()
        if isinstance(value, Mapping) or not _is_container(value):
            return iter(value)  # type: ignore[call-overload,no-any-return]
        return iter([child for _, child in self._children("")])

    def __contains__(self, item: Any) -> bool:
        return item in self.build()  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self.build())

    def __repr__(self) -> str:
        return f"Cursor({self.build()!r})"

    def _child(self, key: Any) -> Cursor[Any]:
        return self._below[key] if key in self._below else self._put(key, self._read(key), False)

    def _read(self, key: Any) -> Any:
        value: Any = self._value
        if key in _fields(value) and not (isinstance(value, Mapping) and key in value):
            return getattr(value, key)
        try:
            return value[key]
        except KeyError:
            names = [repr(one) for one in self.build()]  # type: ignore[attr-defined]
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            what = f"there is no item {key!r} (items: {', '.join(names[:10]) or 'none'}{more})."
            fix = f"Give one of these names, or add the item: `[{key!r}] = …`."
            raise CursorFindError(self._where(), what, fix, given=key) from None

    def _put(self, key: Any, value: Any, assigned: bool) -> Cursor[Any]:
        child: Cursor[Any] = Cursor.__new__(Cursor)
        child._fill(assigned, {}, key, self, value)
        self._below[key] = child
        return child

    def _assign(self, key: Any, value: Any) -> None:
        self._put(key, _value_of(value), True)

    def _is_edited(self) -> bool:
        return self._assigned or any(child._is_edited() for child in self._below.values())

    def _key_of(self, key: Any) -> Any:
        """Return the only key of an item, which may be counted from the front or from the end, or have a name."""
        if not isinstance(self._value, list | tuple):
            if not isinstance(self._value, Mapping):
                what = f"{shown(self._value)} has fields, not items."
                raise LiftArgumentError(self._where(), what, f"Write `.{key}`.", given=self._value)
            return key
        try:
            index = range(len(self._value))[operator.index(key)]
        except (IndexError, TypeError):
            what = f"there is no item {key!r}, but {len(self._value)} items, counted from 0."
            raise CursorFindError(self._where(), what, "Give the index of one of them.", given=key) from None
        fields = _fields(self._value)
        return fields[index] if fields else index

    def _children(self, prefix: str) -> Iterator[tuple[str, Cursor[Any]]]:
        value = self.build()
        keys: Any = _fields(value)
        if not keys and _is_container(value):
            keys = list(value) if isinstance(value, Mapping) else range(len(value))  # type: ignore[arg-type]
        for key in keys:
            yield f"{prefix}/{key}" if prefix else str(key), self._child(key)

    def _found(self, cond_fn: Callable[[str, Any], bool], prefix: str) -> Iterator[Cursor[Any]]:
        for path, child in self._children(prefix):
            if cond_fn(path, child.build()):
                yield child
            else:
                yield from child._found(cond_fn, path)

    def _path(self) -> str:
        if self._parent is None:
            return ""
        above = self._parent._path()
        return f"{above}/{self._key}" if above else str(self._key)

    def _where(self) -> str:
        return f"cursor at /{self._path()}"


def _fields(value: Any) -> tuple[str, ...]:
    """Return the names of the fields of a named tuple or a dataclass."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    return ()


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) or bool(_fields(value))


def _replaced(value: Any, items: dict[Any, Any]) -> Any:
    """Return a copy of a container with some items or fields replaced."""
    if isinstance(value, FrozenDict):
        return value.copy(items)
    if hasattr(value, "_replace"):
        return value._replace(**items)
    if isinstance(value, tuple):
        return type(value)(items.get(index, item) for index, item in enumerate(value))
    if isinstance(value, Mapping | list):
        made: Any = copy.copy(value)
        for key, item in items.items():
            made[key] = item
        return made
    return dataclasses.replace(value, **items)


def _value_of(operand: Any) -> Any:
    return operand.build() if isinstance(operand, Cursor) else operand


def _with_operators(cls: Any) -> None:
    """Give a class the operators of Python, applied to the values of cursors."""

    def applied(fn: Callable[..., Any], reflected: bool = False) -> Any:
        def method(*operands: Any) -> Any:
            values = [_value_of(operand) for operand in operands]
            return fn(*reversed(values)) if reflected else fn(*values)

        return method

    for name in ("neg", "pos", "abs", "invert", "lt", "le", "eq", "ne", "gt", "ge"):
        setattr(cls, f"__{name}__", applied(getattr(operator, f"__{name}__")))
    arithmetic = "add sub mul truediv floordiv mod pow matmul lshift rshift and or xor"
    for name in arithmetic.split():
        fn = getattr(operator, f"__{name}__")
        setattr(cls, f"__{name}__", applied(fn))
        setattr(cls, f"__r{name}__", applied(fn, reflected=True))


_with_operators(Cursor)

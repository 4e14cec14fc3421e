"""Describes the differences between two definitions, for errors about structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .definition import AGAIN, ARRAY, MAPPING, OBJECT, SEQUENCE, STATIC, TREE, VARIABLE, Definition, keys_of, path_text

__all__ = ["described", "difference", "path_of", "renumbered"]


def renumbered(definition: Definition, was: Sequence[int | None]) -> Definition:
    """Return a definition with the numbers that its objects and variables had before; -1 for new ones.

    Args:
        definition: a definition.
        was: maps a number in the definition to the number before.
    """
    kind = definition[0]
    if kind == AGAIN:
        return AGAIN, _before(definition[1], was)
    if kind == VARIABLE:
        return (*definition[:2], _before(definition[2], was), *definition[3:])
    if kind == OBJECT:
        parts = tuple([(name, renumbered(part, was)) for name, part in definition[3]])
        return (*definition[:2], _before(definition[2], was), parts, *definition[4:])
    if kind in (SEQUENCE, MAPPING, TREE):
        parts = tuple([renumbered(part, was) for part in definition[2]])
        return (*definition[:2], parts, *[_before(index, was) for index in definition[3:]])
    return definition


def _before(index: int, was: Sequence[int | None]) -> int:
    found = was[index]
    return -1 if found is None else found


def difference(before: Definition, after: Definition, path: tuple[Any, ...] = ()) -> str | None:
    """Describe the first difference between two definitions of one object; return None if they are equal.

    Args:
        before: a definition.
        after: another one.
        path: the path to the object.
    """
    if before == after:
        return None
    kind = before[0]
    if kind != after[0] or (kind in (OBJECT, VARIABLE, SEQUENCE, STATIC) and before[1] is not after[1]):
        return f"{path_text(path)} was {_named(before)} and is {_named(after)}"
    if kind == OBJECT:
        return _in_attributes(before, after, path)
    if kind in (SEQUENCE, TREE):
        return _in_items(before[2], after[2], path)
    if kind == MAPPING:
        was, now = [dict(zip(keys_of(one), one[2], strict=True)) for one in (before, after)]
        return _in_names(was, now, path) or f"{path_text(path)} has other keys, or is another kind of dict, than before"
    if kind == VARIABLE and before[3] != after[3]:
        return f"the metadata of {path_text(path)} was {_metadata(before)} and is {_metadata(after)}"
    if kind == STATIC:
        return f"{path_text(path)} was {before[2]!r} and is {after[2]!r}"
    return f"{path_text(path)} is a different {'array' if kind == ARRAY else 'object or variable'} than before"


def _in_attributes(before: Definition, after: Definition, path: tuple[Any, ...]) -> str:
    found = _in_names(dict(before[3]), dict(after[3]), path)
    return found or f"{path_text(path)} is a different object than before"


def _in_names(before: dict[Any, Any], after: dict[Any, Any], path: tuple[Any, ...]) -> str | None:
    for name in after.keys() - before.keys():
        return f"{path_text((*path, name))} was added"
    for name in before.keys() - after.keys():
        return f"{path_text((*path, name))} was deleted"
    found = [difference(before[name], after[name], (*path, name)) for name in before]
    return next(filter(None, found), None)


def _in_items(before: tuple[Definition, ...], after: tuple[Definition, ...], path: tuple[Any, ...]) -> str | None:
    if len(before) != len(after):
        return f"{path_text(path)} had {len(before)} items and has {len(after)}"
    found = [
        difference(one, other, (*path, number)) for number, (one, other) in enumerate(zip(before, after, strict=True))
    ]
    return next(filter(None, found), None)


def path_of(definition: Definition, index: int, path: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """Return the path of the object or variable with a given number in a definition; None if there is none.

    Args:
        definition: the definition of an object, or of a part of one.
        index: the number.
        path: the path to the object.
    """
    kind = definition[0]
    own = definition[2:3] if kind in (OBJECT, VARIABLE) else definition[3:] if kind in (SEQUENCE, MAPPING) else ()
    if own == (index,):
        return path
    if kind == OBJECT:
        parts = definition[3]
    elif kind == MAPPING:
        parts = zip(keys_of(definition), definition[2], strict=True)
    else:
        parts = enumerate(definition[2]) if kind in (SEQUENCE, TREE) else ()
    found = (path_of(part, index, (*path, name)) for name, part in parts)
    return next((one for one in found if one is not None), None)


def _named(definition: Definition) -> str:
    kind = definition[0]
    if kind in (OBJECT, VARIABLE):
        return f"a {definition[1].__name__}"
    if kind == STATIC:
        return repr(definition[2])
    if kind == SEQUENCE:
        return f"a {definition[1].__name__}"
    return {AGAIN: "a reference to an earlier object", ARRAY: "an array", MAPPING: "a dict", TREE: "a pytree"}[kind]


def _metadata(definition: Definition) -> str:
    return repr({name: value[2] for name, value in definition[3]})


def described(definition: Definition, path: str = "", whole: Definition | None = None) -> Iterator[tuple[str, str]]:
    """Yield a description of each part of a definition with its path; a function is retraced if one of them changes.

    Args:
        definition: the definition of an object, or of a part of one.
        path: the path to it.
        whole: the definition that it is a part of.
    """
    kind, whole = definition[0], whole or definition
    if kind == OBJECT:
        yield path, definition[1].__name__
        for name, part in definition[3]:
            yield from described(part, f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}", whole)
    elif kind == VARIABLE:
        yield path, definition[1].__name__ if definition[6] is not None else f"{definition[1].__name__}, static"
        for name, value in definition[3]:
            yield f"{path}.{name}", repr(value[2])
    elif kind == AGAIN:
        first = path_of(whole, definition[1])
        yield (
            path,
            f"the object or variable number {definition[1]} again" if first is None else f"{path_text(first)} again",
        )
    elif kind == STATIC:
        yield path, repr(definition[2])
    elif kind == ARRAY:
        yield path, "array"
    else:
        yield path, definition[1].__name__ if kind == SEQUENCE else {MAPPING: "dict", TREE: "pytree"}[kind]
        names = keys_of(definition) if kind == MAPPING else range(len(definition[2]))
        for name, part in zip(names, definition[2], strict=True):
            yield from described(part, f"{path}[{name!r}]", whole)

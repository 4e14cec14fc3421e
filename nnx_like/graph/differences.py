"""What differs between two definitions, in words, for errors about structure."""

from __future__ import annotations

from typing import Any

from .definition import AGAIN, ARRAY, MAPPING, OBJECT, SEQUENCE, STATIC, TREE, VARIABLE, Definition, path_text

__all__ = ["difference"]


def difference(before: Definition, after: Definition, path: tuple[Any, ...] = ()) -> str | None:
    """What differs first between two definitions of one object; None where they are equal.

    Args:
        before: a definition.
        after: another one.
        path: where the object lies.
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
        return _in_names(dict(zip(before[1], before[2], strict=True)), dict(zip(after[1], after[2], strict=True)), path)
    if kind == VARIABLE and before[3] != after[3]:
        return f"the metadata of {path_text(path)} was {_metadata(before)} and is {_metadata(after)}"
    if kind == STATIC:
        return f"{path_text(path)} was {before[2]!r} and is {after[2]!r}"
    return f"{path_text(path)} is another {'array' if kind == ARRAY else 'object or variable'} than before"


def _in_attributes(before: Definition, after: Definition, path: tuple[Any, ...]) -> str:
    found = _in_names(dict(before[3]), dict(after[3]), path)
    return found or f"{path_text(path)} is another object than before"


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


def _named(definition: Definition) -> str:
    kind = definition[0]
    if kind in (OBJECT, VARIABLE):
        return f"a {definition[1].__name__}"
    if kind == STATIC:
        return repr(definition[2])
    if kind == SEQUENCE:
        return f"a {definition[1].__name__}"
    return {AGAIN: "a reference to an object met before", ARRAY: "an array", MAPPING: "a dict", TREE: "a pytree"}[kind]


def _metadata(definition: Definition) -> str:
    return repr({name: value[2] for name, value in definition[3]})

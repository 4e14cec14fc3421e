"""One filter language, for every place that chooses variables or RNG streams.

A filter is a predicate over `(path, value)`, where `path` is `(collection, *modules, name)`, or a short form of one:

    ...  True        Everything()        all
    None  False      Nothing()           none
    "params"         WithTag("params")   that collection or stream, or values whose `tag` is that
    a type           OfType(T)           values that are a `T`, or whose `.type` is a subclass of it
    tuple list set   Any(*filters)       what one of them matches
                     All(*filters)       what all of them match
                     Not(f) DenyList(f)  what `f` does not match
                     PathContains(key)   values with that key in their path, or (exact=False) in a name of it
    a callable       itself

Whatever can be decided for a whole collection, or a whole subtree, is decided once and no value below it is looked at.
So a string decides by the collection's name alone there, and a value's `tag` counts only where values are visited:
when the predicate is called, or beside filters that ask about values, as in `Any("lora", OfType(Box))`.

Example:
    >>> variables = {"params": {"dense": {"kernel": 1.0, "lora": 2.0}}, "cache": {"step": 3}}
    >>> lora, rest = split(variables, PathContains("lora"), ...)
    >>> lora
    {'params': {'dense': {'lora': 2.0}}}
    >>> rest
    {'params': {'dense': {'kernel': 1.0}}, 'cache': {'step': 3}}
"""

from __future__ import annotations

from .algebra import intersect, names_collections, subtract, union
from .predicates import (
    All,
    Any,
    DenyList,
    Everything,
    Not,
    Nothing,
    OfType,
    PathContains,
    SubtreePredicate,
    WithTag,
    decide,
    matches_collection,
    matches_stream,
    short_form,
    to_predicate,
)
from .trees import leaves_of, merge, partition, split

__all__ = [
    "All",
    "Any",
    "DenyList",
    "Everything",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "SubtreePredicate",
    "WithTag",
    "decide",
    "intersect",
    "leaves_of",
    "matches_collection",
    "matches_stream",
    "merge",
    "names_collections",
    "partition",
    "short_form",
    "split",
    "subtract",
    "to_predicate",
    "union",
]

"""Filters choose variables and RNG streams, with one syntax everywhere.

A filter is a predicate over `(path, value)`, where `path` is `(collection, *modules, name)`, or a short form of one:

    ...  True        Everything()        everything
    None  False      Nothing()           nothing
    "params"         WithTag("params")   this collection or stream, or values with this `tag`
    a type           OfType(T)           values that are a `T`, or whose `.type` is a subclass of `T`
    tuple list set   Any(*filters)       values that any of the filters matches
                     All(*filters)       values that all of the filters match
                     Not(f) DenyList(f)  values that `f` does not match
                     PathContains(key)   values with the key in their path or, with exact=False, in a name of it
    a callable       itself

If a filter can decide for a whole collection or subtree, it does so once, and the values in it are not visited. So a
string usually decides by the name of the collection alone. The `tag` of a value counts only if values are visited:
when the predicate is called directly, or together with filters that ask about values, as in `Any("lora", OfType(Box))`.

Example:
    >>> variables = {"params": {"dense": {"kernel": 1.0, "lora": 2.0}}, "cache": {"step": 3}}
    >>> lora, rest = split(variables, PathContains("lora"), ...)
    >>> lora
    {'params': {'dense': {'lora': 2.0}}}
    >>> rest
    {'params': {'dense': {'kernel': 1.0}}, 'cache': {'step': 3}}
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)

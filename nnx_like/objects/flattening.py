"""Objects as JAX pytrees: data in the leaves, sorted by name, and everything else in the structure."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import jax
from jax.tree_util import GetAttrKey, SequenceKey

from liftcore import static_key, trace_state
from liftcore.cycles import checks_itself, entering
from liftcore.statics import Alike, Undescribed, snapshot

from ..variablelib.by_reference import is_object
from ..variablelib.variable import Variable
from .markers import has_data, is_data
from .natives import hidden_error, hidden_in

__all__ = [
    "NO_MARKS",
    "Statics",
    "is_marked_static",
    "mark",
    "marks_made",
    "marks_of",
    "own_marks",
    "register",
    "slot_of",
]

_BY_REFERENCE = (
    "Use the functions of nnx_like, such as `nnx.jit`, `nnx.state` and `nnx.clone`, in place of `jax.jit` and "
    "`jax.tree`: they know objects by identity."
)

NO_MARKS: Mapping[str, bool] = {}
"""The marks of an object without marked attributes."""


@jax.tree_util.register_static
class Statics:
    """Static values in the structure of a pytree, compared by type and value.

    A value without a key, such as an object that could change unnoticed, is compared by `==`.

    Attributes:
        value: the values, with copies of their mutable parts.
    """

    __slots__ = ("_key", "value")

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = tuple(map(snapshot, value))
        self._key = tuple(map(_key, self.value))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Statics) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return Statics, (self.value,)


def _key(value: Any) -> Hashable:
    try:
        return static_key(value)
    except Undescribed:
        found = hidden_in(value)
        if found is not None and is_object(found[1]):
            raise hidden_error(f"a {type(value).__name__}{found[0]}", found[1], value) from None
        return Alike(value)


def own_marks(node: Any) -> Mapping[str, bool]:
    """Return the marks of an object itself, without those of its class."""
    found: Mapping[str, bool] = slot_of(node, "_marks", NO_MARKS)
    return found


def slot_of(node: Any, name: str, default: Any) -> Any:
    """Read a slot without calling a `__getattr__` of the user's, which may forward every name."""
    try:
        return object.__getattribute__(node, name)
    except AttributeError:
        return default


def marks_of(node: Any) -> Mapping[str, bool]:
    """Return the marks of an object: for each marked attribute, whether it is static."""
    own = own_marks(node)
    of_class = type(node)._field_marks
    return {**of_class, **own} if own and of_class else own or of_class


_made = 0


def marks_made() -> int:
    """Return how many marks were set so far, in all objects; caches that depend on marks compare it."""
    return _made


def mark(node: Any, marks: Mapping[str, bool]) -> None:
    """Mark attributes of one object."""
    global _made
    _made += 1
    object.__setattr__(node, "_marks", {**own_marks(node), **marks})


def is_marked_static(node: Any, name: str) -> bool:
    """Return whether an attribute is marked static."""
    own = own_marks(node)
    of_class = type(node)._field_marks
    return bool((own or of_class) and marks_of(node).get(name))


def register(cls: type) -> None:
    """Register a class of objects with JAX."""
    checks_itself(cls, _held)
    jax.tree_util.register_pytree_with_keys(
        cls,
        _flatten_with_keys,
        functools.partial(_unflatten, cls),
        lambda node: _flatten(node)[1:],
    )


def _held(node: Any) -> list[Any]:
    """Return the attributes, with the values of variables in their place."""
    return [value._value if isinstance(value, Variable) else value for value in vars(node).values()]


def _flatten_with_keys(node: Any) -> tuple[Iterable[Any], Statics]:
    names, children, statics = _flatten(node)
    return [(_path_key(node, name), child) for name, child in zip(names, children, strict=True)], statics


def _path_key(node: Any, name: str) -> Any:
    return SequenceKey(int(name)) if type(node)._numbered and name.isdigit() else GetAttrKey(name)


def _flatten(node: Any) -> tuple[tuple[str, ...], list[Any], Statics]:
    """Return the names of the data, its values, and everything else."""
    entering(node, _BY_REFERENCE)
    marks = marks_of(node)
    names, veiled, children, rest = [], [], [], []
    for name, value in _sorted(node):
        if not is_data(value) and not (marks and marks.get(name) is False):
            if not has_data(value):
                rest += [name, value]
                continue
            value, hidden = _veiled(value)
            if hidden:
                veiled.append(name)
        names.append(name)
        children.append(value)
    return tuple(names), children, Statics((tuple(names), tuple(veiled), dict(own_marks(node)), *rest))


def _sorted(node: Any) -> list[tuple[str, Any]]:
    """Return the attributes sorted by name; names that are numbers are sorted by value."""
    attributes = sorted(vars(node).items())  # names are unique, so values are never compared
    if type(node)._numbered:
        attributes.sort(key=lambda item: (0, int(item[0])) if item[0].isdigit() else (1, 0))
    return attributes


def _veiled(value: Any) -> tuple[Any, bool]:
    """Move static leaves of a pytree with data into its structure; also returns whether there were any."""
    structure: Any
    leaves, structure = jax.tree.flatten(value, is_leaf=is_data)
    hidden = [leaf if is_data(leaf) else Statics((leaf,)) for leaf in leaves]
    if all(map(is_data, leaves)):
        return value, False
    return structure.unflatten(hidden), True


def _unveiled(value: Any) -> Any:
    return jax.tree.map(
        lambda leaf: snapshot(leaf.value[0]) if type(leaf) is Statics else leaf,
        value,
        is_leaf=lambda leaf: type(leaf) is Statics or is_data(leaf),
    )


def _unflatten(cls: type, statics: Statics, children: Iterable[Any]) -> Any:
    names, veiled, marks, *rest = statics.value
    made: Any = object.__new__(cls)
    object.__setattr__(made, "_trace", trace_state())
    attributes = vars(made)
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        attributes[name] = snapshot(value)
    for name, child in zip(names, children, strict=True):
        attributes[name] = _unveiled(child) if name in veiled else child
        if not is_data(child) and not has_data(child):  # the leaves were replaced by other values: they stay leaves
            marks = {**marks, name: False}
    object.__setattr__(made, "_marks", marks)
    return made

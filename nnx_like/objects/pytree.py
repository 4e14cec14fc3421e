"""`Pytree`: an object with attributes by reference, which remembers the trace in which it may be changed.

As a JAX pytree, it has the data in the leaves, sorted by name, and everything else in the structure.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import jax
from jax.tree_util import GetAttrKey, SequenceKey

from liftcore import trace_state
from liftcore.calls import check_keywords
from liftcore.owners import Style, collections_of
from liftcore.pytrees import checks_itself, entering
from liftcore.statics import snapshot

from ..errors import StructureError, TraceContextError
from ..variablelib.kinds import CONSTANTS
from ..variablelib.metadata import key_of
from ..variablelib.variable import ByReference, Variable, is_object
from .markers import (
    MARK,
    annotation_mark,
    as_pytree,
    has_data,
    hidden_error,
    hidden_in,
    is_data,
    is_marked,
    register_data_type,
    unmarked,
)
from .printing import object_text, treescope_of

__all__ = [
    "NO_MARKS",
    "Object",
    "Pytree",
    "PytreeMeta",
    "Statics",
    "attributes_of",
    "check_live",
    "check_pytree",
    "forget_walks",
    "mark",
    "marks_made",
    "marks_of",
    "own_marks",
    "renewed",
    "walks_of",
]


# --- objects as JAX pytrees -------------------------------------------------------------------------------------------

_BY_REFERENCE = (
    "Use the functions of nnx_like, such as `nnx.jit`, `nnx.state` and `nnx.clone`, in place of `jax.jit` and "
    "`jax.tree`: they know objects by identity."
)

Marks: TypeAlias = Mapping[str, bool | tuple[Any, ...]]
"""For each marked attribute, whether it is static; see `marks_of`."""

NO_MARKS: Marks = {}
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
        self._key = tuple([key_of(one, functools.partial(_check_hides_none, one)) for one in self.value])

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Statics) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return Statics, (self.value,)


def _check_hides_none(value: Any) -> None:
    """Check that no object is hidden in a static value."""
    found = hidden_in(value)
    if found is not None and is_object(found[1]):
        raise hidden_error(f"a {type(value).__name__}{found[0]}", found[1], value) from None


def own_marks(node: Any) -> Marks:
    """Return the marks of an object itself, without those of its class."""
    try:
        found: Marks = object.__getattribute__(node, "_marks")  # no `__getattr__` of the user's is called
    except AttributeError:
        return NO_MARKS
    return found


def marks_of(node: Any) -> Marks:
    """Return the marks of an object: for each marked attribute, whether it is static.

    If `jax.tree.map` put values that are not data in the place of data, the mark has the paths of the other values,
    which were static before. So the structure of the object is the one that it had.
    """
    own = own_marks(node)
    of_class = type(node)._field_marks
    return {**of_class, **own} if own and of_class else own or of_class


_made = 0


def marks_made() -> int:
    """Return how many marks were set so far, in all objects; caches that depend on marks compare it."""
    return _made


def mark(node: Any, marks: Marks) -> None:
    """Mark attributes of one object."""
    global _made
    _made += 1
    object.__setattr__(node, "_marks", {**own_marks(node), **marks})


def _register(cls: type) -> None:
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
            if has_data(value):
                value, hidden = _veiled(value)
            elif isinstance(static := marks.get(name), tuple):
                value, hidden = _veiled_at(static, value), bool(static)
            else:
                rest += [name, value]
                continue
            if hidden:
                veiled.append(name)
        names.append(name)
        children.append(value)
    own = {name: mark for name, mark in own_marks(node).items() if not isinstance(mark, tuple)}
    return tuple(names), children, Statics((tuple(names), tuple(veiled), own, *rest))


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


def _veiled_at(paths: tuple[Any, ...], value: Any) -> Any:
    """Move the leaves at some paths into the structure of a pytree."""
    return jax.tree.map_with_path(lambda path, leaf: Statics((leaf,)) if path in paths else leaf, value)


def _static_paths(value: Any) -> tuple[Any, ...]:
    """Return the paths of the leaves that `_veiled` moved into the structure of a pytree."""
    return tuple([path for path, leaf in jax.tree.leaves_with_path(value, is_leaf=_is_statics) if _is_statics(leaf)])


def _is_statics(value: Any) -> bool:
    return type(value) is Statics


def _unveiled(value: Any) -> Any:
    return jax.tree.map(
        lambda leaf: snapshot(leaf.value[0]) if _is_statics(leaf) else leaf,
        value,
        is_leaf=lambda leaf: _is_statics(leaf) or is_data(leaf),
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
        if not (is_data(child) or has_data(child) or made._field_marks.get(name) is False):
            marks = {name: _static_paths(child), **marks}  # the leaves were replaced by other values, and stay leaves
    object.__setattr__(made, "_marks", marks)
    return made


# --- objects ----------------------------------------------------------------------------------------------------------


class PytreeMeta(abc.ABCMeta):
    """The metaclass of objects: it allows abstract methods, and makes `isinstance` fast."""

    # These replace the methods of `ABCMeta`, which also look for registered classes and take five times as long.
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Pytree(ByReference, metaclass=PytreeMeta):
    """An object whose attributes are state: changed in place, shared by reference, and handled by transformations.

    An attribute may be a `Variable`, another object, an array, any Python value, or a list, tuple, dict or other pytree
    of those. Each subclass is registered as a JAX pytree, and need not call `super().__init__()`. The leaves of the
    pytree are the data (see `data`), sorted by name; everything else is in the structure.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> class Line(nnx.Pytree):
        ...     def __init__(self, slope):
        ...         self.slope = nnx.Param(slope)
        ...         self.names = ["x", "y"]
        >>> line = Line(2.0)
        >>> line.slope.set_value(3.0)
        >>> doubled = jax.tree.map(lambda leaf: 2 * leaf, line)
        >>> doubled.slope.get_value(), doubled.names, line.slope.get_value()
        (6.0, ['x', 'y'], 3.0)

    Args:
        pytree: an argument of the class statement. With `pytree=False`, an instance is a leaf for JAX. Transformations
            of this package treat it like any other object.

    Raises:
        TraceContextError: if an object is changed inside a transformation to which it was not passed.
    """

    __slots__ = ("__dict__", "__weakref__", "_marks", "_trace", "_walks")

    _trace: Any
    """The JAX trace in which the object may be changed."""
    _marks: Marks

    _walks: dict[Any, Any]
    """The walks that began here, kept for reuse; unset at first."""

    _field_marks: ClassVar[Mapping[str, bool]] = {}
    """The marks in the bodies of the class and its bases."""
    _numbered: ClassVar[bool] = False
    """Whether attributes whose names are digits are the items of a sequence."""

    __style__: ClassVar[Any] = Style("an object", "nnx.bridge.adopt", "rngs", is_changed=True)

    def __init_subclass__(cls, *, pytree: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_slots(cls)
        cls._field_marks = {**cls._field_marks, **_marks_in(cls)}
        if pytree:
            _register(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object without attributes."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        check_keywords(cls, kwargs)
        made = super().__new__(cls)
        object.__setattr__(made, "_trace", trace_state())
        object.__setattr__(made, "_marks", NO_MARKS)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        check_live(self, name)
        if isinstance(vars(self).get(name), (Pytree, Variable)):
            forget_walks()
        if is_marked(value):
            value, is_static = unmarked(type(self).__name__, name, value)
            mark(self, {name: is_static})
        if type(value) is functools.partial:
            value = as_pytree(value)
        if marks_of(self).get(name) and has_data(value):
            raise _static_data(self, name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        check_live(self, name)
        forget_walks()
        object.__delattr__(self, name)

    def __collections__(self) -> list[str | None]:
        children = jax.tree.leaves(self, is_leaf=lambda node: node is not self)
        return collections_of(children, lambda leaf: CONSTANTS)

    def __repr__(self) -> str:
        return object_text(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return treescope_of(self, path, subtree_renderer)

    @property
    def __orig_class__(self) -> Any:
        raise AttributeError("__orig_class__")

    @__orig_class__.setter
    def __orig_class__(self, value: Any) -> None:
        """Ignore the attribute that `typing` sets for `List[int]()`."""

    def __getstate__(self) -> Any:
        """Return the state for pickle and copy: the attributes, without the trace."""
        return dict(vars(self)), dict(own_marks(self))

    def __setstate__(self, state: Any) -> None:
        attributes, marks = state
        object.__setattr__(self, "_trace", trace_state())
        vars(self).update(attributes)
        if marks:
            mark(self, marks)


_with_walks: dict[int, weakref.ref[Pytree]] = {}
"""The objects that walks are kept with, by identity."""


def walks_of(root: Pytree) -> dict[Any, Any]:
    """Return the cache of walks that began at an object. It lives as long as the object, or until `forget_walks`."""
    try:
        walks: dict[Any, Any] = object.__getattribute__(root, "_walks")
    except AttributeError:
        walks = {}
        object.__setattr__(root, "_walks", walks)
    if id(root) not in _with_walks:
        key = id(root)
        _with_walks[key] = weakref.ref(root, functools.partial(_forget, _with_walks, key))
    return walks


def _forget(known: dict[int, Any], key: int, _: Any) -> None:
    """Forget an object that died; without any global name, since modules are empty when the interpreter ends."""
    known.pop(key, None)


def forget_walks() -> None:
    """Drop all kept walks, since a changed object may have lost another one that a walk would keep alive."""
    while _with_walks:
        root = _with_walks.popitem()[1]()
        if root is not None:
            root._walks.clear()


def _check_slots(cls: type) -> None:
    """Check that a class defines no slots, since attributes in slots would not be found."""
    slots = vars(cls).get("__slots__", ())
    names = [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]
    if names:
        raise StructureError(
            f"{cls.__name__}.__slots__",
            f"{', '.join(names)} would be lost: only attributes in the `__dict__` of an object are found.",
            "Delete `__slots__`, or the option `slots=True` of a dataclass.",
            option="slots",
            given=", ".join(names),
        )


def _marks_in(cls: type) -> dict[str, bool]:
    """Return whether attributes are static, from marks and annotations in the body of a class."""
    told = {name: annotation_mark(one) for name, one in _annotations(cls).items()}
    fields = {name: value for name, value in vars(cls).items() if type(value) is dataclasses.Field}
    marked = {name: field.metadata[MARK] for name, field in fields.items() if MARK in field.metadata}
    return {name: mark for name, mark in told.items() if mark is not None} | marked


def _annotations(cls: type) -> Mapping[str, Any]:
    try:
        return inspect.get_annotations(cls)
    except NameError:  # newer Pythons evaluate annotations here, and one may use a name that is defined later
        return {}


register_data_type(Pytree)
_register(Pytree)

Object = Pytree
"""An older name of `Pytree`."""


def check_live(node: Pytree, name: str) -> None:
    """Check that an object may be changed in the current trace.

    Args:
        node: the object.
        name: the changed attribute, for the error.

    Raises:
        TraceContextError: inside a transformation to which the object was not passed.
    """
    try:
        trace = node._trace
    except AttributeError:  # its class overrides `__new__` without calling this one
        object.__setattr__(node, "_trace", trace_state())
        return
    if trace != trace_state():
        raise TraceContextError(
            f"{type(node).__name__}.{name}",
            f"the {type(node).__name__} was created outside the running transformation, and is changed inside it.",
            "Pass the object as an argument of the transformation instead of using it by closure.",
            given=type(node).__name__,
        )


def attributes_of(node: Pytree) -> list[tuple[Any, Any]]:
    """Return the attributes of an object as in a state: sorted, with numbers as keys for items of a sequence."""
    attributes = sorted(vars(node).items())  # names are unique, so values are never compared
    if not type(node)._numbered:
        return attributes
    items = sorted((int(name), value) for name, value in attributes if name.isdigit())
    return items + [(name, value) for name, value in attributes if not name.isdigit()]


def check_pytree(pytree: Any, /) -> None:
    """Check that attributes that are marked static hold no data.

    Assignments check this already, but a list may have changed after it was assigned.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.check_pytree(nnx.Dict(sizes=nnx.static([1, 2])))

    Args:
        pytree: an object, or a pytree of objects.

    Raises:
        StructureError: if a static attribute holds data.
    """
    left, seen = [one for one in has_data(pytree) if isinstance(one, Pytree)], set()
    while left:
        node = left.pop()
        if id(node) not in seen:
            seen.add(id(node))
            for name, value in vars(node).items():
                if marks_of(node).get(name) and has_data(value):
                    raise _static_data(node, name, value)
            left += [one for one in has_data(list(vars(node).values())) if isinstance(one, Pytree)]


def renewed(node: Pytree) -> Any:
    """Return a new object of the same class and marks, without attributes. `__init__` is not called.

    Args:
        node: the object.
    """
    made = object.__new__(type(node))
    object.__setattr__(made, "_trace", trace_state())
    object.__setattr__(made, "_marks", own_marks(node))
    return made


def _static_data(node: Pytree, name: str, value: Any) -> StructureError:
    kinds = ", ".join(sorted({type(one).__name__ for one in has_data(value)}))
    return StructureError(
        f"{type(node).__name__}.{name}",
        f"it is marked static, but the assigned value holds data ({kinds}).",
        "Remove the mark: a value that holds data cannot be static.",
        given=kinds,
    )

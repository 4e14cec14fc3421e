"""Which attributes of an object are data, the marks `data` and `static`, and Python's own containers.

Variables, objects and arrays are data, and so are lists, tuples, dicts and other pytrees that hold them. Everything
else is static. So marks are rarely needed: `data` makes a Python number data, and `static` checks that a value holds no
data.

A list or a dict can change in place and be shared, so it is known by identity, like an object. So is a set, but its
items are static values. Deques and other containers that JAX does not know as pytrees are static values themselves: a
variable in one of them would never be found.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, dataclass_transform, overload

import jax

from liftcore import is_array
from liftcore.errors import LiftError
from liftcore.pytrees import endless

from ..errors import StructureError
from ..statelib.nested import sorted_keys
from ..variablelib.values import MISSING
from ..variablelib.variable import Variable, is_object

__all__ = [
    "ATOMS",
    "DICTS",
    "MARK",
    "NATIVE",
    "Data",
    "Static",
    "annotation_mark",
    "as_pytree",
    "children_with_path",
    "contains_itself",
    "data",
    "dataclass",
    "has_data",
    "hidden_error",
    "hidden_in",
    "is_data",
    "is_marked",
    "items_of",
    "parts_in",
    "register_data_type",
    "static",
    "step_of",
    "unmarked",
]


# --- Python's own containers ------------------------------------------------------------------------------------------

DICTS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
"""The types of dicts that are known by identity."""
NATIVE = DICTS | {list}
"""The types of lists and dicts that are known by identity."""

_MAPPINGS = (dict, collections.ChainMap, collections.UserDict, types.MappingProxyType)
_COLLECTIONS = (list, tuple, set, frozenset, collections.deque, collections.UserList)


def items_of(container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a list, tuple or dict, with their numbers or keys, in the order of the leaves of a pytree.

    JAX cannot order the keys of a dict that have different types; here, numbers come first, then strings.

    Example:
        >>> items_of({"b": 1, 2: 3})
        [(2, 3), ('b', 1)]

    Args:
        container: the list, tuple or dict.
    """
    if type(container) not in DICTS:
        return list(enumerate(container))
    ordered = type(container) is collections.OrderedDict
    return [(key, container[key]) for key in (container if ordered else sorted_keys(container))]


def children_with_path(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the direct children of a pytree, each with its path, and the structure that has them as leaves.

    Example:
        >>> pairs, structure = children_with_path((1, [2, 3]))
        >>> [child for _, child in pairs], structure
        ([1, [2, 3]], PyTreeDef((*, *)))

    Args:
        tree: the pytree.
    """
    # JAX asks about the pytree first, and then about each child, which may be the pytree itself. The keywords of a
    # partial function are no child, since they become another dict whenever JAX rebuilds it.
    asked = itertools.chain([False], itertools.repeat(True))
    opened = tree.keywords if isinstance(tree, jax.tree_util.Partial) else MISSING
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda one: next(asked) and one is not opened)


def step_of(key: Any) -> Any:
    """Convert a step of a JAX path into a step of a path here."""
    for name in ("name", "key", "idx"):
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


def contains_itself(value: Any, where: str) -> LiftError:
    """Return the error for a pytree that contains itself.

    Args:
        value: the pytree.
        where: the second place where it was found.
    """
    fix = "Leave out the reference, or derive the class from `nnx.Pytree`, whose objects may contain themselves."
    return endless(where, f"a {type(value).__name__} contains itself here", fix, StructureError)


def hidden_in(value: Any) -> tuple[str, Any] | None:
    """Return the first variable, object or array inside a value that is not a pytree; None if there is none.

    Example:
        >>> import jax.numpy as jnp
        >>> hidden_in({"a": collections.deque([1, jnp.ones(2)])})
        ("['a'][1]", Array([1., 1.], dtype=float32))

    Args:
        value: any Python value; see `parts_in` for where it is searched.

    Returns:
        Its place in the value, and the variable, object or array.
    """
    return next(((place, one) for place, one in parts_in(value) if is_object(one) or is_array(one)), None)


def parts_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and everything inside it, each once and with its place.

    Containers, dataclasses, `functools.partial` and bound methods are searched, not variables, nor the attributes of
    other objects.

    Example:
        >>> list(parts_in(collections.deque([1, "a"])))
        [('', deque([1, 'a'])), ('[1]', 'a'), ('[0]', 1)]

    Args:
        value: any Python value.
    """
    left, seen = [("", value)], set()
    while left:
        place, one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield place, one
            left += [] if is_object(one) else [(place + step, below) for step, below in _inside(one)]


def hidden_error(where: str, found: Any, holder: Any) -> StructureError:
    """Return the error for a variable, object or array in a place where only static values are allowed.

    Args:
        where: its place.
        found: the variable, object or array.
        holder: the static value that it is in.
    """
    inside = "" if found is holder else f", in a {type(holder).__name__}"
    what = f"a {type(found).__name__} is in a place where only static values are allowed{inside}."
    fix = "Keep it in an attribute, a list, a tuple or a dict, or pass it as an argument that is not static."
    if isinstance(holder, functools.partial) and not hidden_in(holder.func):
        fix = "Write `jax.tree_util.Partial` in place of `functools.partial`, so that it belongs to the object."
    return StructureError(where, what, fix, expected="static values", given=f"a {type(found).__name__}")


def as_pytree(function: functools.partial[Any]) -> functools.partial[Any]:
    """Return a partial function whose arguments hold objects or arrays as one that JAX knows as a pytree.

    So they belong to the object that has the function as an attribute. Other partial functions are returned unchanged.
    A partial of a bound method is refused later, by the transformation.

    Example:
        >>> type(as_pytree(functools.partial(print, Variable(1)))).__name__
        'Partial'
        >>> type(as_pytree(functools.partial(print, 1))).__name__
        'partial'

    Args:
        function: the partial function.
    """
    if hidden_in(function.func) or not hidden_in((function.args, function.keywords)):
        return function
    return jax.tree_util.Partial(function.func, *function.args, **function.keywords)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _MAPPINGS):
        yield from [(" as a key", key) for key in value]
        yield from [(f"[{key!r}]", below) for key, below in value.items()]
    elif isinstance(value, _COLLECTIONS):
        yield from [(f"[{number}]", below) for number, below in enumerate(value)]
    elif isinstance(value, functools.partial):
        yield from [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.SimpleNamespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        slots = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
        yield from [(f".{name}", below) for name, below in held.items()]


# --- data and static values -------------------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=type)

MARK = "nnx_static"
"""The key in the metadata of a dataclass field for whether the field is static."""

Attribute = TypeVar("Attribute")
_ANNOTATIONS = {"Data": False, "Static": True}

Data: TypeAlias = Annotated[Attribute, "nnx_like.Data"]
"""`name: Data[T]` in the body of a class is the same as `name: T = data()`."""

Static: TypeAlias = Annotated[Attribute, "nnx_like.Static"]
"""`name: Static[T]` in the body of a class is the same as `name: T = static()`."""

_VALUE = "nnx_value"
_data_types: tuple[type, ...] = (Variable, jax.ShapeDtypeStruct)

ATOMS = frozenset(
    {bool, bytes, int, str, type, types.NoneType, types.EllipsisType, types.FunctionType, types.BuiltinFunctionType}
)
"""Types whose values cannot change in place, and can be compared directly once their type is compared too."""

_STATIC_TYPES = ATOMS | {float, complex}


def register_data_type(kind: Kind, /) -> Kind:
    """Register a class whose instances are data when they are attributes.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.register_data_type
        ... class Handle:
        ...     pass
        >>> nnx.is_data(Handle())
        True

    Args:
        kind: the class. The function can be used as a decorator.

    Returns:
        The class.
    """
    global _data_types
    if kind not in _data_types:
        _data_types = (*_data_types, kind)
    return kind


def is_data(value: Any, /) -> bool:
    """Return whether a value itself is data: a variable, an object, an array, or of a registered type.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> nnx.is_data(jnp.ones(2)), nnx.is_data(nnx.Param(1)), nnx.is_data(1), nnx.is_data([nnx.Param(1)])
        (True, True, False, False)

    Args:
        value: any value. For a container, use `has_data`.
    """
    if type(value) in _STATIC_TYPES:
        return False
    # A reference of JAX changes in place. Its class has a slow `isinstance`, which also looks at tracers.
    return isinstance(value, _data_types) or is_array(value) or type(value) is jax.Ref


def has_data(value: Any, /) -> list[Any]:
    """Return all data in a pytree.

    Example:
        >>> import nnx_like as nnx
        >>> [one.get_value() for one in nnx.has_data({"a": [nnx.Param(1), "text"], "b": nnx.Param(2)})]
        [1, 2]
        >>> nnx.has_data(["text"])
        []

    Args:
        value: any pytree.

    Returns:
        The data in it, in the order of its leaves. An attribute is data if this is not empty.
    """
    return _data(value, ())


def _data(value: Any, above: tuple[Any, ...]) -> list[Any]:
    kind = type(value)
    if kind in _STATIC_TYPES or any(value is one for one in above):  # a list may contain itself
        return []
    if kind is tuple or type(value) in NATIVE:
        return [one for _, part in items_of(value) for one in _data(part, (*above, value))]
    if is_data(value):
        return [value]
    if jax.tree_util.all_leaves((value,)):
        return []
    return [one for _, part in children_with_path(value)[0] for one in _data(part, (*above, value))]


def data(value: Any = MISSING, /, **options: Any) -> Any:
    """Mark an attribute as data, whatever its value.

    Values that hold arrays, variables or objects are data without a mark. A Python number or a string is static by
    default; if you mark it as data, it is a leaf of the object as a pytree.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> class Counter(nnx.Pytree):
        ...     def __init__(self):
        ...         self.count = nnx.data(0)
        ...         self.limit = 10
        >>> jax.tree.leaves(Counter())
        [0]
        >>> @nnx.dataclass
        ... class Point(nnx.Pytree):
        ...     x: float = nnx.data()
        ...     name: str = "origin"
        >>> jax.tree.leaves(Point(1.5))
        [1.5]

    Args:
        value: the value of the attribute; omit it to mark a field of a class.
        **options: options of `dataclasses.field`, if a field is marked.

    Returns:
        A mark, which the assignment removes.
    """
    return _mark(value, False, options)


def static(value: Any = MISSING, /, **options: Any) -> Any:
    """Mark an attribute as static, that is, as a part of the structure, and check that it holds no data.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.dataclass
        ... class Layer(nnx.Module):
        ...     size: int = nnx.static(default=3)
        >>> Layer().size
        3

    Args:
        value: the value of the attribute; omit it to mark a field of a class.
        **options: options of `dataclasses.field`, if a field is marked.

    Returns:
        A mark, which the assignment removes.
    """
    return _mark(value, True, options)


def _mark(value: Any, is_static: bool, options: Mapping[str, Any]) -> Any:
    given = {} if value is MISSING else {_VALUE: value}
    metadata = {**(options.get("metadata") or {}), **given, MARK: is_static}
    return dataclasses.field(**{**options, "metadata": metadata})


def annotation_mark(annotation: Any) -> bool | None:
    """Return True for the annotation `Static`, False for `Data`, and None for any other annotation.

    Args:
        annotation: the annotation, or a string with it.
    """
    if isinstance(annotation, str):
        found = re.match(r"(?:\w+\.)*(Data|Static)\[", annotation)
        return _ANNOTATIONS[found[1]] if found else None
    for one in getattr(annotation, "__metadata__", ()):
        if isinstance(one, str) and one.startswith("nnx_like."):
            return _ANNOTATIONS.get(one.removeprefix("nnx_like."))
    return None


def is_marked(value: Any) -> bool:
    """Return whether a value is the result of `data` or `static`."""
    return type(value) is dataclasses.Field and MARK in value.metadata


def unmarked(owner: str, name: str, mark: Any) -> tuple[Any, bool]:
    """Remove a mark from a value.

    Args:
        owner: the class of the object, for errors.
        name: the attribute that is assigned.
        mark: the result of `data` or `static`.

    Returns:
        The value, and whether it is static.

    Raises:
        StructureError: if it marks a field of a class and not a value.
    """
    if _VALUE not in mark.metadata:
        kind = "static" if mark.metadata[MARK] else "data"
        raise StructureError(
            f"{owner}.{name}",
            f"it was assigned a mark without a value, `{kind}()`.",
            f"Write `{kind}(value)`; without a value it marks a field in the body of a class.",
            expected=f"{kind}(value)",
            given=f"{kind}()",
        )
    return mark.metadata[_VALUE], mark.metadata[MARK]


@overload
def dataclass(cls: Kind, /) -> Kind: ...
@overload
def dataclass(cls: None = None, /, **options: Any) -> Callable[[Kind], Kind]: ...
@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Make a dataclass from an object's class: `data` and `static` mark its fields.

    Example:
        >>> import nnx_like as nnx
        >>> @nnx.dataclass
        ... class Scale(nnx.Module):
        ...     factor: nnx.Param
        ...     name: str = "scale"
        >>> Scale(nnx.Param(2.0)).name
        'scale'

    Args:
        cls: the class, a subclass of `Pytree`.
        **options: options of `dataclasses.dataclass`.

    Returns:
        The class; without `cls`, a decorator.

    Raises:
        StructureError: if the class is not a subclass of `Pytree`.
    """

    def make(cls: Any) -> Any:
        if not issubclass(cls, _data_types):
            raise StructureError(
                f"dataclass({cls.__name__})",
                "it is not a subclass of `Pytree`.",
                "Derive it from `Pytree` or `Module`, or write `dataclasses.dataclass`.",
                expected="`Pytree`",
                given=cls.__name__,
            )
        return dataclasses.dataclass(**options)(cls)

    return make if cls is None else make(cls)

"""What a function can read besides its arguments: a trace is shared only between calls that read the same.

The reader follows values, from the function and from the classes of its arguments, and yields a key of each. Of a
class and of a Python module it takes the attributes whose names are in the code, or in the text, that it has seen. It
never guesses: what may change unnoticed, or does something besides returning a value, raises `Undescribed`.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import dis
import functools
import importlib.util
import io
import itertools
import logging
import sys
import threading
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from liftcore.caches import bounded
from liftcore.statics import Alike, Undescribed, attributes_of, static_key

__all__ = ["values_read"]

_LIBRARIES = frozenset(
    {
        "_abc", "_collections", "_collections_abc", "_functools", "_operator", "abc", "bisect", "builtins",
        "cmath", "collections", "contextlib", "copy", "copyreg", "dataclasses", "einops", "enum",
        "equinox_like", "fractions", "functools", "heapq", "itertools", "jax", "jaxlib", "jaxtyping",
        "liftcore", "linen_like", "math", "ml_dtypes", "nnx_like", "numbers", "numpy", "operator", "optax",
        "pax_like", "re", "reprlib", "string", "textwrap", "types", "typing", "typing_extensions",
    }
)  # fmt: skip
"""Packages whose functions read only their arguments, and what `liftcore.statics.settings_key` and JAX have."""

_PURE = frozenset(
    {
        "__build_class__", "abs", "all", "any", "ascii", "bin", "callable", "chr", "classmethod", "delattr",
        "dir", "divmod", "format", "getattr", "hasattr", "hash", "hex", "isinstance", "issubclass", "iter",
        "len", "max", "min", "next", "oct", "ord", "pow", "repr", "round", "setattr", "sorted", "sum", "vars",
    }
)  # fmt: skip
"""The functions of `builtins` that read only their arguments; its classes do so too."""

_READERS = frozenset(
    {
        "errstate", "fromfile", "fromregex", "genfromtxt", "get_printoptions", "getbufsize", "geterr",
        "geterrcall", "live_arrays", "load", "loadtxt", "memmap", "printoptions", "save", "savetxt", "savez",
        "savez_compressed", "set_printoptions", "setbufsize", "seterr", "seterrcall",
    }
)  # fmt: skip
"""Names in `numpy` and in `jax` that read or write something else: files, and settings outside the key."""

_HIDDEN = frozenset(
    {
        "__annotations__", "__builtins__", "__code__", "__doc__", "__globals__", "__subclasses__", "f_back",
        "f_builtins", "f_globals", "f_locals", "gi_frame", "tb_frame",
    }
)  # fmt: skip
"""Attributes that lead from a value to what the reader does not follow."""

_COMPUTING = frozenset(
    {
        "__dict__", "__getattribute__", "attrgetter", "dir", "getattr", "hasattr", "methodcaller", "vars",
    }
)  # fmt: skip
"""Names of what reads attributes whose names need not be in the code."""

_MOST = 4000
"""How many values the reader visits; what takes longer to read than to trace is not shared."""


def values_read(f: types.FunctionType, kinds: Iterable[type], statics: Iterable[Any] = ()) -> Iterator[Hashable]:
    """Yield keys of all that code can read: in closures, globals, defaults, modules, objects and classes.

    The code is that of the function, of the methods of the classes, and of all functions that these can reach.

    Args:
        f: the function.
        kinds: the classes of the objects that it gets.
        statics: the static values among its arguments.

    Raises:
        Undescribed: if the code can read a value that may change unnoticed, or call what has other effects than its
            result, such as `print`.
    """
    yield abc.get_cache_token()  # counts `ABC.register`, which changes what `isinstance` returns
    yield from _Reader().read([f, *statics, *map(_Members, kinds)])


class _Members(NamedTuple):
    """The attributes of the class of an object; unlike a class that code names, it need not be safe to call."""

    kind: type


class _Reader:
    """One walk over everything that code can read."""

    def __init__(self) -> None:
        self._left: list[Any] = []
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an `id` is that of one object for as long as the object lives
        self._names: dict[str, None] = {}
        self._spaces: dict[int, tuple[Mapping[str, Any], bool]] = {}  # of classes and modules, by their `id`
        self._computes_names = self._has_modules = False

    def read(self, roots: Iterable[Any]) -> Iterator[Hashable]:
        """Yield the keys of values and of all that they lead to, in an order that only these values decide."""
        self._left = list(roots)
        while self._left:
            value = self._left.pop()
            if type(value) in _ATOMS:
                if type(value) is str and value.isidentifier():
                    self._meet((value,))  # it may be an argument of `getattr`
                yield static_key(value)
                continue
            number = self._seen.setdefault(id(value), len(self._alive))
            if number < len(self._alive):
                yield "again", number
                continue
            self._alive.append(value)
            if number > _MOST or (self._computes_names and self._has_modules):
                raise Undescribed(value)
            yield self._visit(value)

    def _visit(self, value: Any) -> Hashable:
        """Return the key of a value without its parts, and put its parts on the list."""
        kind: Any = type(value)
        if kind is _Members:
            return self._class(value.kind)
        if kind is types.FunctionType:
            return self._function(value)
        if issubclass(kind, type):
            return self._named_class(value)
        if issubclass(kind, types.ModuleType):
            return self._module(value)
        if kind in _FIXED:
            return value if kind is Alike else Alike(value)
        parts = _parts(value, kind)
        if not _is_class_of_library(kind):
            self._left.append(_Members(kind))
        if parts is None:
            return static_key(value)
        self._left += parts
        return kind, None if kind in _CONTENTS else Alike(value), len(parts)

    def _function(self, function: types.FunctionType) -> Hashable:
        free = function.__code__.co_freevars
        cells = {name: _contents(cell) for name, cell in zip(free, function.__closure__ or (), strict=True)}
        defaults, space = [function.__defaults__, function.__kwdefaults__], function.__globals__
        if _is_of_library(space.get("__name__")):
            _check_named(function)
            # `jax.vmap(f)` calls `f`, and initializers have values in cells.
            wraps = "__wrapped__" in vars(function) and not hasattr(function, "registry")  # as `singledispatch` has
            self._left += [vars(function)["__wrapped__"]] if wraps else [*cells.values(), *defaults]
            return function
        code = _read(function.__code__)
        if not _HIDDEN.isdisjoint(code.names):
            raise Undescribed(function)
        found = [_resolved(path, (cells, space, _BUILTINS)) for path in code.paths]
        self._left += [*_imported(code, space), *defaults, *found]
        if vars(function):
            self._put(vars(function), [name for name in vars(function) if name != "__kept__"])
        self._meet(code.names)
        if not (self._computes_names or _COMPUTING.isdisjoint(code.names)):
            self._computes_names = True
            for names, is_class in self._spaces.values():
                self._put(names, _all_names(names) if is_class else ())
        return function, function.__code__, function.__name__

    def _named_class(self, kind: Any) -> Hashable:
        _check_named(kind)
        if not (_is_of_library(str(kind.__module__)) or kind.__flags__ & _HEAP_TYPE):
            raise Undescribed(kind)  # such as `datetime`, whose `now` reads a clock
        return self._class(kind)

    def _class(self, kind: Any) -> Hashable:
        ours = [one for one in kind.__mro__ if not _is_class_of_library(one)]
        for one in ours:
            self._enter(one, is_class=True)
            if not _is_class_of_library(type(one)):
                self._class(type(one))
        return (*map(Alike, kind.__mro__), kind.__name__) if ours else Alike(kind)

    def _module(self, module: types.ModuleType) -> Hashable:
        if module is sys:
            raise Undescribed(module)
        if not _is_of_library(module.__name__):
            self._has_modules = True
            self._class(type(module))
        self._enter(module, is_class=False)
        return Alike(module)

    def _enter(self, owner: Any, is_class: bool) -> None:
        """Read the attributes of a class or of a module that code can name, now or when more code is found."""
        if id(owner) in self._spaces:
            return
        space = vars(owner)
        self._spaces[id(owner)] = space, is_class
        if is_class or not _is_of_library(owner.__name__):
            self._put(space, [name for name, below in space.items() if _is_called_by_python(name, below)])
        self._put(space, _all_names(space) if is_class and self._computes_names else self._names)

    def _meet(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self._names]
        self._names.update(dict.fromkeys(new))
        if new:
            for space, _ in self._spaces.values():
                self._put(space, new)

    def _put(self, space: Mapping[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if name in space:
                self._left += [space[name], name]


# --- names ------------------------------------------------------------------------------------------------------------


class _Code(NamedTuple):
    """What code names: paths that start with a variable, modules, and everything, with attributes and short texts."""

    paths: tuple[tuple[str, ...], ...]
    modules: tuple[tuple[str, int], ...]
    names: tuple[str, ...]


@bounded(1024)
def _read(code: types.CodeType) -> _Code:
    """Return what code, and the functions inside it, name."""
    found = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    paths = [_path(found, place) for place, one in enumerate(found) if one.opname in _USES]
    modules = [(one.argval, found[place - 2].argval) for place, one in enumerate(found) if one.opname == "IMPORT_NAME"]
    texts = [part for const in code.co_consts for text in _texts(const) for part in text.split(".")]
    names = [*code.co_names, *texts]
    for inner in [_read(const) for const in code.co_consts if isinstance(const, types.CodeType)]:
        paths += inner.paths
        modules += inner.modules
        names += inner.names
    return _Code(tuple(dict.fromkeys(paths)), tuple(dict.fromkeys(modules)), tuple(dict.fromkeys(names)))


_USES = frozenset(
    {
        "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF",
        "STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF",
    }
)  # fmt: skip
"""What uses a variable. A trace that changes one differs from those that find it changed already."""


def _path(found: list[dis.Instruction], start: int) -> tuple[str, ...]:
    """Return the name of a variable, and the names of the attributes that code reads from it: `jax`, `nn`, `relu`."""
    following = itertools.takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), found[start + 1 :])
    return tuple([one.argval for one in (found[start], *following)])


def _texts(const: Any) -> list[str]:
    """Return what a constant names, for functions such as `getattr` and `str.format`: `RATE`, `a.RATE`, `{0.RATE}`."""
    if isinstance(const, tuple | frozenset):
        return [text for one in const for text in _texts(one)]
    return [const.strip("{}")] if isinstance(const, str) and " " not in const else []


def _resolved(path: tuple[str, ...], spaces: Iterable[Mapping[str, Any]]) -> Any:
    """Return the value of a path: what code reads from a module of a library, or the variable itself."""
    value = next((space[path[0]] for space in spaces if path[0] in space), _EMPTY)
    for name in path[1:]:
        if not isinstance(value, types.ModuleType) or not _is_of_library(value.__name__):
            break
        value = getattr(value, name, _EMPTY)
    return value


def _imported(code: _Code, space: Mapping[str, Any]) -> list[Any]:
    """Return the modules that code imports when it runs. To import one for the first time has other effects."""
    found = []
    for name, level in code.modules:
        try:
            whole = importlib.util.resolve_name("." * level + name, space.get("__package__")) if level else name
        except ImportError:
            raise Undescribed(code) from None
        parts = whole.split(".")
        found += [sys.modules.get(".".join(parts[: end + 1])) for end in range(len(parts))]
    if None in found:
        raise Undescribed(code)
    return found


# --- values -----------------------------------------------------------------------------------------------------------


def _parts(value: Any, kind: Any) -> list[Any] | None:
    """Return what a value consists of, or leads to; None if `static_key` knows more of it."""
    if any("__getattribute__" in vars(one) and not _is_class_of_library(one) for one in kind.__mro__[:-1]):
        raise Undescribed(kind)
    if issubclass(kind, io.IOBase | logging.Logger | logging.Handler):
        raise Undescribed(value)
    if kind is types.BuiltinFunctionType:
        return _parts_of_builtin(value)
    for base, parts_of in _CONTENTS.items():
        if issubclass(kind, base):
            below = list(parts_of(value))
            return [*below, vars(value)] if kind is not base and hasattr(value, "__dict__") else below
    if issubclass(kind, jax.custom_jvp | jax.custom_vjp):
        return [] if _is_of_library(value.__module__) else list(vars(value).values())
    try:
        return [part for item in attributes_of(value).items() for part in item]
    except Undescribed:  # a module of `equinox_like` is a dataclass, and a pytree
        return list(vars(value).values()) if dataclasses.is_dataclass(kind) and hasattr(value, "__dict__") else None


def _parts_of_builtin(function: Any) -> list[Any]:
    """Return what a function or a method in C is bound to, such as the list of `rates.pop`."""
    _check_named(function)
    owner = function.__self__
    if not isinstance(owner, types.ModuleType | types.NoneType):
        return [owner]
    home = function.__module__ or ""
    if not (function.__name__ in _PURE if home == "builtins" else _is_of_library(home)):
        raise Undescribed(function)  # such as `time.time`, `open` and `print`
    return []


def _check_named(value: Any) -> None:
    """Raise `Undescribed` for what reads files, random numbers or settings, although a library has it."""
    home = str(value.__module__)
    if home.startswith("numpy.random") or (home.startswith(("numpy", "jax")) and value.__name__ in _READERS):
        raise Undescribed(value)


def _is_called_by_python(name: str, value: Any) -> bool:
    """Whether a name in a class or in a module is one that operators, calls and the like use."""
    is_special = name.startswith("__") and name.endswith("__") and name not in ("__class__", "__dict__", "__weakref__")
    return is_special and (callable(value) or hasattr(type(value), "__get__"))


def _all_names(space: Mapping[str, Any]) -> list[str]:
    return [name for name in space if name != "_abc_impl"]  # which `isinstance` fills


def _is_class_of_library(kind: Any) -> bool:
    """Whether a class is in a library; `dataclasses.make_dataclass` says `types` of each class that it makes."""
    if not _is_of_library(kind.__module__):
        return False
    first = kind.__qualname__.partition(".")[0]
    return not kind.__flags__ & _HEAP_TYPE or hasattr(sys.modules.get(kind.__module__), first)


@bounded(1024)
def _is_of_library(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in _LIBRARIES


def _contents(cell: types.CellType) -> Any:
    return _EMPTY if cell == types.CellType() else cell.cell_contents


def _content(*names: str) -> Any:
    return lambda value: [getattr(value, name) for name in names]


_CONTENTS: dict[type, Any] = {
    dict: lambda value: itertools.chain.from_iterable(dict.items(value)),
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    collections.deque: collections.deque.__iter__,
    str: lambda value: [str.__str__(value)],
    int: lambda value: [int.__int__(value)],
    float: lambda value: [float.__float__(value)],
    types.MappingProxyType: lambda value: itertools.chain.from_iterable(value.items()),
    types.MethodType: _content("__func__", "__self__"),
    types.BuiltinFunctionType: _content("__self__"),
    types.MethodWrapperType: _content("__self__"),
    types.GenericAlias: _content("__origin__", "__args__"),
    functools.partial: _content("func", "args", "keywords"),
    type(functools.cache(len)): _content("__wrapped__"),
    property: _content("fget", "fset", "fdel"),
    classmethod: _content("__func__"),
    staticmethod: _content("__func__"),
    weakref.ref: lambda value: [value()],
}
"""What values of Python's own types consist of, or lead to."""

_ATOMS = frozenset(
    {bool, bytes, complex, float, int, str, types.NoneType, types.EllipsisType, types.NotImplementedType}
)
_FIXED = frozenset(
    {
        Alike, np.ufunc, type(jax.jit(len)), types.CodeType, types.WrapperDescriptorType, types.MethodDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
        type(threading.Lock()), type(threading.RLock()), TypeVar, ParamSpec,
    }
)  # fmt: skip
"""Types whose values do not change, or not in a way that counts."""

_HEAP_TYPE = 1 << 9
"""The flag of types that a `class` statement makes."""

_BUILTINS = vars(builtins)
_EMPTY = Alike(None)

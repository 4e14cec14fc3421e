"""What a function reads besides its arguments: a trace is shared only between calls that read the same."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from liftcore.caches import bounded

__all__ = ["values_read"]

_LIBRARIES = frozenset(
    {"builtins", "jax", "jaxlib", "numpy", "liftcore", "linen_like", "nnx_like", "equinox_like", "pax_like"}
)
"""Packages whose functions read only what `liftcore.statics.settings_key` has."""


def values_read(f: types.FunctionType, kinds: Iterable[type]) -> Iterator[Any]:
    """Yield what code can read: what it names in closures, globals, defaults and modules, and the contents of classes.

    The code is that of the function, of the methods of the classes, and of the functions that these name.

    Args:
        f: the function.
        kinds: the classes of the objects that it gets.
    """
    left: list[Any] = [f, *kinds]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if id(one) in seen or _is_of_library(one):
            continue
        seen.add(id(one))
        if isinstance(one, type):
            found = _of_class(one)
        else:
            names = _names(one.__code__)
            found = [one.__defaults__, one.__kwdefaults__]
            found += [cell.cell_contents for cell in one.__closure__ or () if cell != _EMPTY]
            found += _named(one.__globals__, names, set())
        for value in found:
            yield value
            if isinstance(value, types.FunctionType | type):
                left.append(value)
            elif type(value) is types.BuiltinFunctionType:
                yield value.__self__  # such as the list of `rates.pop`
            elif isinstance(value, weakref.ref):
                yield value()


def _named(namespace: Mapping[str, Any], names: Sequence[str], above: set[int]) -> list[Any]:
    """Return the values of names in a namespace; of a module, what is named in it, unless its id is in `above`."""
    found = []
    for value in [namespace[name] for name in names if name in namespace]:
        if not isinstance(value, types.ModuleType):
            found.append(value)
        elif id(value) not in above:  # modules name each other
            above.add(id(value))
            found += _named(vars(value), names, above)
    return found


def _of_class(kind: type) -> list[Any]:
    """Return the methods of a class and of its bases, and the other values in them."""
    found = [
        (_function_of(value), value)
        for one in kind.__mro__
        if not _is_of_library(one)
        for name, value in vars(one).items()
        if not name.startswith("__") or isinstance(value, types.FunctionType)
        if name != "_abc_impl"  # what `abc` keeps for `isinstance`
    ]
    methods = [function for function, _ in found if isinstance(function, types.FunctionType)]
    others = [value for function, value in found if function is None]
    return [*methods, *others]


def _function_of(value: Any) -> Any:
    """Return the function of a method, of a property or of another wrapper; None for other values."""
    if isinstance(value, types.FunctionType):
        return value
    return next((inner for name in _WRAPPED if (inner := getattr(value, name, None)) is not None), None)


_WRAPPED = ("__func__", "fget", "func", "__wrapped__")
_EMPTY = types.CellType()


def _is_of_library(one: Any) -> bool:
    return (one.__module__ or "").partition(".")[0] in _LIBRARIES


@bounded(1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in code and in the functions inside it; global variables and attributes are among them."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *itertools.chain(*inner)]))

"""One trace for equal calls: of two calls with objects of equal definition, the second needs no trace of its own.

JAX keeps the trace of a function that it rematerializes, and uses it again for arguments of equal types. It assumes
that the function reads nothing but its arguments. A method reads its class, globals and closures too, and these may
change between two layers of a model. So a trace is shared only within the trace that makes the calls, and only if
everything that the function can read is known, cannot change in place, and is the same object as before.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from liftcore import trace_state
from liftcore.statics import Undescribed, surroundings

from ..crossing.kept import is_fixed
from ..crossing.outside import Outside
from ..crossing.ref import is_ref
from ..graph.definition import Fixed
from ..objects.markers import is_native, parts_in
from ..objects.pytree import Pytree
from ..variablelib.variable import Variable, is_object

__all__ = ["SharedTraces", "reads_of"]

_LIBRARIES = {"jax", "jaxlib", "liftcore", "ml_dtypes", "nnx_like", "numpy", "optax"}
_CONSTANT = sys.stdlib_module_names | _LIBRARIES
"""Packages that do not change while a model is traced."""

with jax.ensure_compile_time_eval():
    _EAGER = trace_state()

_MANY = 1000
"""How many functions and classes are looked at; what reads more shares no trace."""

_BY_NAME = {"__dict__", "__import__", "eval", "exec", "globals", "import_module", "locals", "modules", "vars"}
"""What reads values whose names are not in the code. `getattr` does so too, for modules; objects are compared whole."""

Read = tuple[Callable[[], Any], Any]
"""A function that reads a value again, and the value."""


class SharedTraces:
    """The traces of one function, within the trace that calls it now.

    Args:
        f: the function, as the user gave it.
        make: makes a function that JAX traces once for arguments of equal types.
    """

    def __init__(self, f: Callable[..., Any], make: Callable[[], Callable[..., Any]]) -> None:
        self._f, self._make, self._trace = f, make, None
        self._known: dict[Any, tuple[list[Read], Callable[..., Any] | None]] = {}

    def of(self, outside: Outside) -> Callable[..., Any] | None:
        """Return the function for a call, which an equal call before may have got too; None if nothing is shared.

        Args:
            outside: the crossing of the arguments.
        """
        trace = trace_state()
        if trace == _EAGER or jax.__version_info__ < (
            0,
            10,
            2,
        ):  # the core mends older ones
            return None
        if trace != self._trace:
            self._trace, self._known = trace, {}
        try:
            key = jax.tree.structure(outside.args), surroundings()
        except Undescribed:  # a context that may change
            return None
        known = self._known.get(key)
        if known is None or not all(read() is value for read, value in known[0]):
            reads = None if _may_change(outside.args) else reads_of(self._f, outside.walk.nodes)
            known = self._known[key] = ([], None) if reads is None else (reads, self._make())
        return known[1]


def _may_change(tree: Any) -> bool:
    """Return whether a pytree with refs has static values that may change while they are equal to themselves."""
    left = [leaf.definition for leaf in jax.tree.leaves(tree, is_leaf=is_ref) if is_ref(leaf)]
    while left:
        part = left.pop()
        if isinstance(part, Fixed) and not part.has_key:
            return True
        left += part if isinstance(part, tuple) else ()
    return False


def reads_of(f: Any, nodes: Iterable[Any]) -> list[Read] | None:
    """Return what a function can read from globals, closures and classes; None if some of it may change in place.

    Args:
        f: the function.
        nodes: the objects among its arguments, and what they hold by reference.
    """
    reads: list[Read] = []
    left, seen = [f, *_held(nodes)], dict[int, Any]()
    while left:
        value = left.pop()
        if id(value) in seen or _is_constant(value):
            continue
        seen[id(value)] = value
        found = _reads(value)
        if found is None or len(seen) > _MANY:
            return None
        reads += found
        left += [below for _, below in found]
    return reads


def _held(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the classes of objects and variables, and the functions that they hold."""
    for node in nodes:
        if isinstance(node, Pytree | Variable):
            yield type(node)
        held = node._metadata if isinstance(node, Variable) else vars(node) if isinstance(node, Pytree) else node
        for value in held.values() if isinstance(held, dict) else held:
            if not is_native(value):  # a node itself
                yield from [part for _, part in parts_in(value) if callable(part) and not is_object(part)]


def _is_constant(value: Any) -> bool:
    """Return whether nothing that is read from a value can change while a model is traced."""
    if isinstance(value, types.FunctionType):
        return not hasattr(value, "__wrapped__") and _package(value.__globals__["__name__"]) in _CONSTANT
    if isinstance(value, type):
        return _package(value.__module__) in _CONSTANT
    if isinstance(value, types.ModuleType):
        return _package(value.__name__) in _CONSTANT
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer)
    if _is_bound(value):
        return isinstance(value.__self__, types.ModuleType)  # as those of built-in functions are
    return type(value) is not tuple and is_fixed(value)


def _is_bound(value: Any) -> bool:
    return isinstance(value, types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _reads(value: Any) -> list[Read] | None:
    """Return what a function, a class or a value that holds some reads directly; None for anything else."""
    if isinstance(value, types.FunctionType):
        return _in_function(value)
    if isinstance(value, type):
        return [found for kind in value.__mro__ if not _is_constant(kind) for found in _in_class(kind)]
    if isinstance(value, property):
        return _fixed_parts([value.fget, value.fset, value.fdel])
    if isinstance(value, functools.partial):
        return _fixed_parts([value.func, *value.args, *value.keywords.values()])
    if isinstance(value, types.ModuleType):
        return []  # the functions that use it read its attributes
    if type(value) is tuple:
        return _fixed_parts(value)
    if hasattr(value, "__wrapped__") and _is_constant(type(value)) and not _is_bound(value):  # such as a static method
        return _fixed_parts([value.__wrapped__])
    is_of_library = callable(value) and not is_object(value) and _package(type(value).__module__) in _LIBRARIES
    return [] if is_of_library else None


def _fixed_parts(values: Iterable[Any]) -> list[Read]:
    return [(functools.partial(_itself, value), value) for value in values]


def _itself(value: Any) -> Any:
    return value


def _in_function(f: types.FunctionType) -> list[Read] | None:
    """Return what a function reads from closures, globals and modules; None if it may read other names too."""
    reads = _fixed_parts([f.__wrapped__] if hasattr(f, "__wrapped__") else ())
    if _package(f.__globals__["__name__"]) in _CONSTANT:
        return reads
    reads += _fixed_parts([*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()])
    for cell in f.__closure__ or ():
        read = functools.partial(getattr, cell, "cell_contents", None)
        reads.append((read, read()))
    names, package = set(_names_in(f.__code__)), f.__globals__.get("__package__")
    imported = [sys.modules.get(one) for name in names for one in (name, f"{package}.{name}")]
    spaces = [f.__globals__, *[vars(one) for one in imported if one is not None and not _is_constant(one)]]
    for space in spaces:  # it grows by the modules that are found
        for name in names & space.keys():
            value = space[name]
            reads.append((functools.partial(space.get, name), value))
            is_new = isinstance(value, types.ModuleType) and not any(vars(value) is one for one in spaces)
            spaces += [vars(value)] if is_new and not _is_constant(value) else []
    by_name = _BY_NAME | ({"getattr"} if len(spaces) > 1 else set())
    return None if names & by_name else reads


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names_in(one)


def _in_class(kind: type) -> list[Read]:
    """Return the attributes of a class, without those that Python and this package keep there."""
    names = [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType) or not _is_own(name)]
    return [(functools.partial(vars(kind).get, name), vars(kind)[name]) for name in names]


def _is_own(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name in ("_abc_impl", "_field_marks", "_recorders")

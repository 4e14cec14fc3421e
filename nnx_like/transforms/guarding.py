"""Finds objects that a function brings along, as a bound method does: a compiled function would keep their values."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from liftcore.errors import LiftArgumentError

from ..objects.markers import parts_in
from ..objects.pytree import Pytree
from ..variablelib.variable import is_object

__all__ = ["check_brings_none", "method_of"]


def method_of(f: Any) -> tuple[Pytree, str] | None:
    """Return the object that a function is a method of, and the name of the method; None if there is no object.

    A partial, or a function that wraps another one, is a method if the function inside is one.

    Args:
        f: a function, an object that can be called, or a partial of one.
    """
    for one in _layers(f):
        owner = one if isinstance(one, Pytree) else getattr(one, "__self__", None)
        if isinstance(owner, Pytree):
            return owner, "__call__" if one is owner else one.__name__
    return None


def check_brings_none(start: str, where: str, f: Any) -> None:
    """Check that a function whose compiled code is kept brings no object along, except in a closure or a global.

    Closures and globals are as constant as JAX assumes of them.

    Args:
        start: how a call of the transformation begins, for errors: `jit(`.
        where: the name of the transformation of the function in errors.
        f: the function.

    Raises:
        LiftArgumentError: if a partial holds an object, or a method uses an attribute that holds one.
    """
    for one in _layers(f):
        for place, held in _objects(one, "" if isinstance(one, functools.partial) else "self.", set()):
            kind = type(held).__name__
            raise LiftArgumentError(
                where,
                f"it holds a {kind} ({place}), so compiled code would go on using its present values.",
                f"Make the {kind} an argument: `{start}{_instead(one)})(instance, …)`.",
            )


def _objects(f: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a function brings along, with their places.

    A function that it brings along, such as one in the arguments of a partial, may bring objects of its own.
    """
    for step, value in _brought(f):
        for below, part in parts_in(value):
            place = f"{where}{step}{below}"
            if is_object(part):
                yield place, part
            elif callable(part) and id(part) not in seen:
                seen.add(id(part))
                for one in _layers(part):
                    yield from _objects(one, f"{place}.", seen)


def _instead(f: Any) -> str:
    """Return the function that takes an object as an argument, as a line of code."""
    inner = getattr(f.func, "__name__", "<lambda>") if isinstance(f, functools.partial) else "<lambda>"
    return "lambda instance, *args: …" if inner == "<lambda>" else inner


def _layers(f: Any) -> Iterator[Any]:
    """Yield a function, and the functions that it wraps by `functools.partial` or `functools.wraps`."""
    seen: list[Any] = []
    while f is not None and not any(f is one for one in seen):
        yield f
        seen.append(f)
        f = f.func if isinstance(f, functools.partial) else getattr(f, "__dict__", {}).get("__wrapped__")


def _brought(f: Any) -> list[tuple[str, Any]]:
    """Return the values that a partial, a method or an object that can be called brings along, with their places."""
    if isinstance(f, functools.partial):
        return [("args", f.args), ("keywords", f.keywords)]
    is_method = isinstance(f, types.MethodType)
    owner, method = (f.__self__, f.__func__) if is_method else (f, type(f).__call__)
    if isinstance(owner, (type, types.FunctionType)) or is_object(owner):
        return []
    held = {name: _held(owner, name) for name in _used(type(owner), method)}
    return [(name, value) for name, value in held.items() if value is not owner]


def _held(owner: Any, name: str) -> Any:
    """Return the value of an attribute or a slot; the object itself if it has none. No property is computed."""
    if isinstance(getattr(type(owner), name, None), types.MemberDescriptorType):
        return getattr(owner, name, owner)
    return getattr(owner, "__dict__", {}).get(name, owner)


def _used(kind: type, method: Any) -> list[str]:
    """Return the attributes of `self` that a method uses, directly or in other methods and properties of the class."""
    names: dict[str, None] = {}
    left = [method]
    while left:
        one = left.pop()
        code = getattr(getattr(one, "fget", None) or one, "__code__", None)
        for name in _names(code, code.co_varnames[0]) if code is not None and code.co_argcount else ():
            if name not in names:
                names[name] = None
                left.append(getattr(kind, name, None))
    return list(names)


def _names(code: types.CodeType, owner: str) -> Iterator[str]:
    """Yield the attributes that code, or a function inside it, reads from a variable."""
    before: Any = None
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == owner:
            yield one.argval
        loads = one.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        before = (one.argval[-1] if isinstance(one.argval, tuple) else one.argval) if loads else None
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner, owner)

"""The base of all transformations: they decorate functions and methods, with and without options."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from liftcore.calls import bind_user, check_positional
from liftcore.errors import LiftArgumentError, check_function

from ..crossing.groups import axis_of
from ..objects.markers import parts_in
from ..objects.pytree import Pytree
from ..variablelib.values import MISSING
from ..variablelib.variable import is_object

__all__ = [
    "MISSING",
    "also_decorator",
    "check_axes",
    "check_brings_none",
    "checked",
    "named",
    "numbered",
    "positional",
    "title",
]

F = TypeVar("F", bound=Callable[..., Any])


# --- objects that a function brings along -----------------------------------------------------------------------------


def _method_of(f: Any) -> tuple[Pytree, str] | None:
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
    """Check that a function whose compiled code is kept holds no object, except in a closure or a global.

    JAX assumes that closures and globals do not change.

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
                given=kind,
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


# --- functions and their arguments ------------------------------------------------------------------------------------


def also_decorator(transformation: F) -> F:
    """Make a transformation a decorator too: without the function, a call returns a decorator with the same options.

    Args:
        transformation: its first argument is the function.
    """
    signature = inspect.signature(transformation)
    first = next(iter(signature.parameters))

    @functools.wraps(transformation)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        if args or first in kwargs:
            return transformation(*args, **kwargs)
        try:
            signature.bind_partial(**kwargs)
        except TypeError as error:
            raise TypeError(f"{transformation.__name__}() {error}") from None
        return functools.partial(transformed, **kwargs)

    return cast(F, transformed)


def title(name: str, f: Any) -> str:
    """Return the name of a transformation of a function in errors, such as `vmap(block)`."""
    while isinstance(f, functools.partial):
        f = f.func
    return f"{name}({getattr(f, '__name__', type(f).__name__)})"


def checked(name: str, f: Any) -> str:
    """Check that a function can be transformed; return its name in errors.

    Raises:
        LiftArgumentError: if it is not a function, or is a bound method, also inside a partial or another wrapper.
    """
    check_function(name, f)
    if (found := _method_of(f)) is not None:
        kind, method = type(found[0]).__name__, found[1]
        raise LiftArgumentError(
            title(name, f),
            f"it is a method bound to one {kind}, so it uses that object by closure.",
            f"Give the object as an argument: `{name}({kind}.{method})(instance, …)`, or decorate the method.",
            given=kind,
        )
    return title(name, f)


def named(f: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that names a body after the user's function, for liftcore and profiles."""

    def rename(body: Callable[..., Any]) -> Callable[..., Any]:
        body.__name__ = body.__qualname__ = title("", f)[1:-1]
        return body

    return rename


def positional(name: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all arguments by position: moves keyword arguments to their position, and fills in defaults before them.

    Args:
        name: the name of the transformation in errors.
        f: the function that gets the arguments.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        LiftArgumentError: if an argument has no position.
    """
    if not kwargs:
        return args
    bound = bind_user(title(name, f), f, *args, **kwargs)
    bound.apply_defaults()
    check_positional(title(name, f), bound.kwargs)
    last = max([number for number, name in enumerate(bound.arguments) if name in kwargs], default=0)
    return bound.args[: max(len(args), last + 1)]


def numbered(where: str, f: Callable[..., Any], numbers: Any, names: Any) -> tuple[set[int], set[str]]:
    """Return the arguments that an option names by number or by name, each of them in both ways.

    Args:
        where: the name of the option in errors, such as `jit(f), static_argnums`.
        f: the function that gets the arguments.
        numbers: one or more numbers; negative numbers count from the end.
        names: one or more names.

    Raises:
        LiftArgumentError: if there is no such argument.
    """
    wanted = {numbers} if isinstance(numbers, int) else set(numbers or ())
    named = {names} if isinstance(names, str) else set(names or ())
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return wanted, named
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = [one.name for one in parameters if one.kind in single]
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        _check_there(where, [number for number in wanted if not -len(order) <= number < len(order)], order)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        _check_there(where, named - {one.name for one in parameters}, [one.name for one in parameters])
    wanted = {number + len(order) if number < 0 else number for number in wanted}
    both = wanted | {order.index(name) for name in named if name in order}
    return both, named | {order[number] for number in wanted if number < len(order)}


def _check_there(where: str, missing: Collection[Any], names: Sequence[str]) -> None:
    if missing:
        unknown = ", ".join(map(repr, sorted(missing)))
        what = f"there is no argument {unknown}; the function takes ({', '.join(names)})."
        fix = "Count from 0, or use one of these names."
        raise LiftArgumentError(where, what, fix, given=unknown, available=tuple(names))


def check_axes(where: str, specs: Mapping[str, Any], also: Any = None) -> None:
    """Check that values are axes.

    Args:
        where: the name of the transformation in errors.
        specs: the axes, by group.
        also: another value that is accepted in place of an axis.

    Raises:
        LiftArgumentError: if a value is not an axis.
    """
    for axis in map(axis_of, specs.values()):
        if type(axis) is not int and axis is not None and (also is None or axis is not also):
            what = f"{axis!r} in `in_axes` or `out_axes` is not an axis."
            fix = "Give an int, or None for the same value in all elements."
            raise LiftArgumentError(where, what, fix, expected="an axis", given=repr(axis))

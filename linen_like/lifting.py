"""Lifting: how a transformation of liftcore becomes one of modules.

It takes the scopes out of the module, calls the transformation once, and inside runs the method on a clone of the
module that lies on the lifted scopes. The clone is made from a `Template`, a value that knows the module's class and
fields and nothing of where it stands, so that what is compiled for one module serves all equal ones.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from liftcore.errors import LiftArgumentError

from ._context import context
from .binding import State, bound_scope, ensure_setup
from .calling import function_name
from .fields import fingerprint
from .module import Module
from .naming import map_modules
from .template import Parts, Place, Template, detach, instantiate

__all__ = ["Methods", "lift"]

Core = Callable[["Call"], Callable[..., Any]]
Drawn = tuple[tuple[str, int], ...]
Methods = str | Iterable[str] | Mapping[str, Mapping[str, Any]] | None


def lift(
    name: str,
    transformation: Callable[..., Any],
    options: dict[str, Any],
    target: Any,
    methods: Methods,
    prefix: str = "",
) -> Any:
    """The lifted form of a Module class or of a function of a module.

    Args:
        name: that of the transformation.
        transformation: that of liftcore.
        options: what it is called with.
        target: a Module class or a function of a module.
        methods: which methods of a class are lifted.
        prefix: what the automatic names of a lifted class begin with, before that of the class itself.
    """
    if isinstance(target, type) and issubclass(target, Module):
        chosen = _methods(name, options, methods)
        try:
            return _known_class(name, transformation, chosen, target, prefix)  # type: ignore[arg-type]
        except TypeError:  # an option cannot be hashed
            return _lifted_class(name, transformation, chosen, target, prefix)
    if isinstance(target, Module | type) or not callable(target):
        known = isinstance(target, Module)
        given, cls = (
            (f"an instance of {type(target).__name__}", type(target).__name__) if known else (target, "MyModule")
        )
        raise LiftArgumentError(
            f"nn.{name}",
            f"expected a Module class or a function of a module, given {given}.",
            f"Lift the class: `nn.{name}({cls}, …)(…)`.",
        )
    if methods is not None:
        raise LiftArgumentError(
            f"nn.{name}, methods", "it chooses methods of a class, given a function.", "Leave it out."
        )
    return _lifted_function(functools.partial(transformation, **options), target)


class Options(dict[str, Any]):
    """The options of a lift, compared and hashed by value, type and order."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and _frozen(self) == _frozen(other)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(_frozen(self))


def _methods(name: str, options: dict[str, Any], methods: Methods) -> tuple[tuple[str, Options], ...]:
    """The methods that are lifted, each with its options."""
    if methods is None or isinstance(methods, str):
        methods = (methods or "__call__",)
    if not isinstance(methods, Mapping):
        methods = {method: {} for method in methods}
    for method, changes in methods.items():
        unknown = sorted(set(changes) - set(options))
        if unknown:
            raise LiftArgumentError(
                f'nn.{name}, methods["{method}"]',
                f"{unknown} is no option (available: {sorted(options)}).",
                "Give options by their names.",
            )
    return tuple((method, Options({**options, **changes})) for method, changes in methods.items())


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((key, _frozen(below)) for key, below in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_frozen, value))
    return type(value), value


def _lifted_class(
    name: str,
    transformation: Callable[..., Any],
    methods: Sequence[tuple[str, Options]],
    cls: type[Module],
    prefix: str,
) -> Any:
    """A subclass whose methods run on clones inside the lift."""
    missing = [method for method, _ in methods if not callable(getattr(cls, method, None))]
    if missing:
        known = sorted(key for key, value in vars(cls).items() if getattr(value, "is_module_method", False))
        raise LiftArgumentError(
            f"nn.{name}, methods={[method for method, _ in methods]}",
            f"{cls.__name__} has no method {missing} (available: {known}).",
            f"Choose among those: `methods={known[:1]}`.",
        )
    class_name = f"{(prefix or name.capitalize())}{cls.__name__}"
    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": class_name,
        "_name_prefix": f"{prefix}{cls._name_prefix}",
        "_lifted_class": vars(cls).get("_lifted_class", cls),
    }
    for method, options in methods:
        core = functools.partial(transformation, **options)
        namespace[method] = _lifted_method(core, getattr(cls, method))
    return types.new_class(class_name, (cls,), exec_body=lambda body: body.update(namespace))


_known_class = functools.lru_cache(256)(_lifted_class)
"""The same class for the same options: what was compiled for its instances is found again."""


def _lifted_method(core: Core, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs `fn` inside the lift, and as it is where its module is inside already."""

    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if core in self._state.inside:
            return fn(self, *args, **kwargs)
        return _run(core, fn, self, (core,), args, kwargs)

    return method


def _lifted_function(core: Core, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def lifted(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(module, Module):
            raise LiftArgumentError(
                f"lifted {function_name(fn)}",
                f"expected a module as the first argument, given {type(module).__name__}.",
                "Pass the module whose variables are lifted, such as `self`.",
            )
        return _run(core, fn, module, (), args, kwargs)

    lifted.is_lifted = True  # type: ignore[attr-defined]
    return lifted


# --- from a module to scopes and back ---------------------------------------------------------------------------------


class Call:
    """A method or function of a module, as a function of scopes.

    Modules among the arguments are taken out and stand with those that the fields of the module lead to.

    Attributes:
        fn: the method or function.
        parts: what the module is made again from.
        state: where it begins.
        drawn: how many keys were drawn at its scope since its `setup` began, if that is run again.
    """

    def __init__(self, fn: Callable[..., Any], parts: Parts, state: State, drawn: Drawn) -> None:
        self.fn, self.parts, self.state, self.drawn = fn, parts, state, drawn
        self.__name__ = _name(fn, parts.templates[0])
        self.__signature__ = inspect.signature(fn)

    def __call__(self, scopes: Any, *args: Any, **kwargs: Any) -> Any:
        with scopes[0].again(dict(self.drawn)):
            module, others = instantiate(self.parts, scopes)
            if self.state.reuse:
                ensure_setup(module)
        if others:
            args, kwargs = map_modules((args, kwargs), lambda place: others[place.index])
        module._state.follow(self.state)
        context.modules.append(module)
        try:
            return self.fn(module, *args, **kwargs)
        finally:
            context.modules.pop()


class EqualCall(Call):
    """A `Call` that equals those of equal modules, so that they share what is compiled."""

    def __init__(self, fn: Callable[..., Any], parts: Parts, state: State, drawn: Drawn, value: Any) -> None:
        super().__init__(fn, parts, state, drawn)
        self._key = fn, value, drawn, state.in_setup, state.in_compact, state.reuse, state.inside, context.captures[-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualCall) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _run(core: Core, fn: Callable[..., Any], module: Any, inside: Iterable[Core], args: Any, kwargs: Any) -> Any:
    """Runs a function of a module inside a lift.

    Where a method of the module is running, the module inside goes on with its names and definitions.

    Args:
        core: makes a lifted function of a function of scopes.
        fn: the function.
        module: the module outside.
        inside: the lifts of its class that the module inside is inside of, beside those of `module`.
        args: the arguments after the module.
        kwargs: the keyword arguments.
    """
    scope, state = bound_scope(module, function_name(fn)), State()
    state.follow(module._state, inside)
    arguments: dict[int, Any] = {}
    if any(isinstance(leaf, Module) for leaf in jax.tree.leaves((args, kwargs))):
        args, kwargs = map_modules((args, kwargs), lambda found: _place(arguments, found))
    parts, others = detach(module, list(arguments.values()))
    scopes = [scope if state.defines else scope.rewound(), *(other.scope.rewound() for other in others)]
    drawn: Drawn = ()
    if state.reuse:
        before = module._state.counts
        drawn = tuple((name, count - before.get(name, 0)) for name, count in scope.node.counts.items())
    return core(_call(fn, parts, state, drawn))(scopes, *args, **kwargs)


def _call(fn: Callable[..., Any], parts: Parts, state: State, drawn: Drawn) -> Call:
    """The function of scopes; one that shares nothing where it might keep arrays alive."""
    values = [fingerprint(part) for part in (*parts.templates, *parts.arguments)]
    cells = getattr(fn, "__closure__", None) or ()
    closed = not getattr(fn, "is_module_method", False) and not all(
        isinstance(one.cell_contents, type) for one in cells
    )
    if closed or None in values:
        return Call(fn, parts, state, drawn)
    return EqualCall(fn, parts, state, drawn, tuple(values))


def _place(arguments: dict[int, Any], module: Module) -> Place:
    """What stands for a module among the arguments."""
    arguments.setdefault(id(module), module)
    return Place(list(arguments).index(id(module)))


def _name(fn: Callable[..., Any], template: Template) -> str:
    name, cls = function_name(fn), template.cls
    shown = vars(cls).get("_lifted_class", cls).__name__
    return shown if name == "__call__" else f"{shown}.{name}" if hasattr(cls, name) else name

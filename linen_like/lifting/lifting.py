"""Lifting: how a transformation of liftcore becomes one of Module classes, of methods and of functions of a module."""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from types import MappingProxyType
from typing import Any, TypeVar

import liftcore
from liftcore.errors import LiftArgumentError, shown
from liftcore.statics import static_key

from ..errors import TransformTargetError
from ..lifecycle.binding import entered
from ..lifecycle.calling import function_name, nowrap
from ..module import Module
from .crossing import LiftOfClass, cross

__all__ = ["Methods", "flags", "lift", "mark_lifted"]

Function = TypeVar("Function", bound=Callable[..., Any])
Core = functools.partial[Callable[..., Any]]

Methods = str | Iterable[str] | Mapping[str, Mapping[str, Any]] | None


def lift(
    name: str,
    transformation: Callable[..., Any],
    options: dict[str, Any],
    target: Any,
    methods: Methods,
    prefix: str = "",
) -> Any:
    """The lifted form of a Module class, of a `functools.partial` of one, or of a function of a module.

    Args:
        name: that of the transformation.
        transformation: that of liftcore.
        options: what it is called with.
        target: a Module class, a partial of one, or a function of a module.
        methods: which methods of a class are lifted.
        prefix: what the automatic names of a lifted class begin with, before that of the class itself.
    """
    if isinstance(target, type) and issubclass(target, Module):
        return _class(name, transformation, _methods(name, options, methods), target, prefix)
    if isinstance(target, functools.partial) and isinstance(target.func, type) and issubclass(target.func, Module):
        lifted = lift(name, transformation, options, target.func, methods, prefix)
        return functools.partial(lifted, *target.args, **target.keywords)
    if isinstance(target, Module | type) or not callable(target):
        cls = type(target).__name__ if isinstance(target, Module) else "MyModule"
        given = f"an instance of {cls}" if isinstance(target, Module) else shown(target)
        raise TransformTargetError(
            f"nn.{name}",
            f"expected a Module class or a function of a module, given {given}.",
            f"Lift the class: `nn.{name}({cls}, …)(…)`.",
        )
    if methods is not None:
        raise LiftArgumentError(
            f"nn.{name}, methods", "it chooses methods of a class, given a function.", "Leave it out."
        )
    return _lifted_function(functools.partial(transformation, **options), target)


def _class(
    name: str,
    transformation: Callable[..., Any],
    methods: tuple[tuple[str, Options], ...],
    target: type[Module],
    prefix: str,
) -> Any:
    try:
        with _LOCK:
            return _known_class(name, transformation, methods, target, prefix)  # type: ignore[arg-type]
    except TypeError:  # no key stands for an option
        return _lifted_class(name, transformation, methods, target, prefix)


class Options(dict[str, Any]):
    """The options of a lift, compared and hashed by value, type and order."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._key() == other._key()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._key())

    def _key(self) -> Any:
        return static_key({name: _plain(option) for name, option in self.items()})


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
    merged = {method: {**options, **changes} for method, changes in methods.items()}
    for each in merged.values():
        if "split_rngs" in each:
            each["split_rngs"] = flags(each["split_rngs"])
    return tuple((method, Options(each)) for method, each in merged.items())


def flags(split_rngs: Any) -> Any:
    """The argument `split_rngs`, where 0 and 1 are bools, as in Linen."""
    if not isinstance(split_rngs, Mapping):
        return split_rngs
    return {name: bool(flag) if type(flag) is int and flag in (0, 1) else flag for name, flag in split_rngs.items()}


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
    recipe = (name, transformation, methods, cls, prefix)
    namespace: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": class_name,
        "_name_prefix": f"{prefix}{cls._name_prefix}",
        "_lifted_class": vars(cls).get("_lifted_class", cls),
        "_recipe": recipe,
        "__reduce__": _reduced,
        "__copy__": _copied,
        "__deepcopy__": _copied,
    }
    cores = {method: functools.partial(transformation, **options) for method, options in methods}
    inside = LiftOfClass(cores.values())
    for method, core in cores.items():
        namespace[method] = _lifted_method(core, getattr(cls, method), inside)
    return types.new_class(class_name, (cls,), exec_body=lambda body: body.update(namespace))


@nowrap
def _reduced(module: Any) -> Any:
    """What a pickle keeps of an instance: how its class was made, since no module has that by name, and its fields."""
    return _remade, (_recipe(type(module)),), module.__getstate__()


def _recipe(cls: Any) -> Any:
    """How a lifted class was made; of another class, the class."""
    if "_recipe" not in vars(cls):
        return cls
    name, transformation, methods, base, prefix = cls._recipe
    plain = [(method, {name: _plain(value) for name, value in options.items()}) for method, options in methods]
    return name, transformation, plain, _recipe(base), prefix


def _plain(option: Any) -> Any:
    return dict(option) if isinstance(option, MappingProxyType) else option


def _remade(recipe: Any) -> Any:
    """An instance without fields of the class that a recipe makes."""
    cls = _class_of(recipe)
    return cls.__new__(cls)


def _class_of(recipe: Any) -> Any:
    if isinstance(recipe, type):
        return recipe
    name, transformation, methods, base, prefix = recipe
    chosen = tuple((method, Options(options)) for method, options in methods)
    return _class(name, transformation, chosen, _class_of(base), prefix)


@nowrap
def _copied(module: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of the very class, whether it would be found again or not."""
    again = module.__new__(type(module))
    state = module.__getstate__()
    again.__setstate__(state if memo is None else copy.deepcopy(state, memo))
    return again


_known_class = functools.lru_cache(256)(_lifted_class)
"""The same class for the same options: what was compiled for its instances is found again."""

_LOCK = threading.RLock()
"""Held while a class is looked up, so that threads that make it at once get the same one; making it may lift others."""


def _lifted_method(core: Core, fn: Callable[..., Any], inside: LiftOfClass) -> Callable[..., Any]:
    """A method that runs `fn` inside the lift, and as it is where its module is inside already."""
    run = _run(core, fn)

    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if inside in self._state.inside:
            return fn(self, *args, **kwargs)
        return run(self, args, kwargs, (inside,))

    return method


def _lifted_function(core: Core, fn: Callable[..., Any]) -> Callable[..., Any]:
    run = _run(core, fn)

    @functools.wraps(fn)
    def function(module: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(module, Module) and module.scope is not None and module.scope.tree.thread != get_ident():
            with entered(module) as module:
                return run(module, args, kwargs)
        return run(module, args, kwargs)

    return mark_lifted(function)


def _run(core: Core, fn: Callable[..., Any]) -> Callable[..., Any]:
    """What takes a module, and the arguments of `fn`, through the lift."""
    where = f"lifted {function_name(fn)}"
    lift_any = liftcore.lifter_of(core(fn), fn) or core  # options are checked here, where they are given
    compared = core.func is liftcore.jit

    def run(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inside: tuple[Any, ...] = ()) -> Any:
        crossing = cross(where, module, [fn], args, kwargs, inside, compared)
        return lift_any(crossing.calls[0])(crossing.scopes, *crossing.args, **crossing.kwargs)

    return run


def mark_lifted(fn: Function) -> Function:
    """Tells a lifted function from the method that it may have been made of: it runs `setup` inside the lift."""
    fn.__dict__.update(is_lifted=True, is_module_method=False)
    return fn

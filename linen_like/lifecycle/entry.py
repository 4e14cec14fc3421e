"""Entry: turns functions of a module into pure functions of variables and keys, for `Module.init` and the like.

Each call clones the module onto the root scope of a new tree, so the given module stays an unbound description.

JAX caches a trace under the function that it was given, and holds that function weakly. Python makes a new bound method
at each access, so `jax.jit(module.apply)` would be traced each time. A module therefore keeps a method that is hashed,
as `jax.jit` does (`cached_method`). Equal modules do not share their methods: the result of a method depends on more
than the fields of its module.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import liftcore
from liftcore.calls import boundary, hide_frames, note_call
from liftcore.errors import Expected, LiftArgumentError, LiftError, shown
from liftcore.filters import DenyList, union
from liftcore.statics import Undescribed, static_key
from liftcore.typing import Filter

from ..errors import ApplyModuleInvalidMethodError, InvalidInstanceModuleError, ModuleAttributeError
from .advice import add_to_fix
from .binding import deep_clone, place
from .context import CaptureFilter, capturing, context
from .fields import Base

NO_INTERMEDIATES = DenyList("intermediates")


def apply(
    fn: Callable[..., Any],
    module: Base,
    mutable: Filter = False,
    capture_intermediates: bool | CaptureFilter = False,
) -> Callable[..., Any]:
    """Turn a function of a bound module into a pure function of variables and keys.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     def setup(self):
        ...         self.scale = self.param("scale", lambda key: 3.0)
        >>> triple = nn.apply(lambda scale, x: scale.scale * x, Scale())
        >>> triple({"params": {"scale": 3.0}}, 2.0)
        6.0

    Args:
        fn: called as `fn(bound_module, *args, **kwargs)`.
        module: the module; a clone of it is bound for each call.
        mutable: a filter of the variables that may be written, such as `["batch_stats"]`. Unless it matches nothing,
            the result is a pair, with those variables second.
        capture_intermediates: whether to keep the output of every `__call__`; or a function `(module, method_name) ->
            bool` that selects the methods. This adds "intermediates" to `mutable`.

    Returns:
        `applied(variables, *args, rngs=None, **kwargs)`.
    """
    return liftcore.apply(*on_scope(fn, module, mutable, capture_intermediates))


def init_with_output(
    fn: Callable[..., Any],
    module: Base,
    mutable: Filter = NO_INTERMEDIATES,
    capture_intermediates: bool | CaptureFilter = False,
) -> Callable[..., Any]:
    """Return a pure function `(rngs, *args, **kwargs) -> (output, variables)` that makes the variables; see `apply`.

    Args:
        fn: called as `fn(module, *args, **kwargs)`.
        module: the module.
        mutable: a filter of the collections to return; by default all but `intermediates`.
        capture_intermediates: whether to keep the output of every `__call__`; or a function `(module, method_name) ->
            bool` that selects the methods.
    """
    return liftcore.init(*on_scope(fn, module, mutable, capture_intermediates))


def init(
    fn: Callable[..., Any],
    module: Base,
    mutable: Filter = NO_INTERMEDIATES,
    capture_intermediates: bool | CaptureFilter = False,
) -> Callable[..., Any]:
    """Return a pure function `(rngs, *args, **kwargs) -> variables` that makes the variables; see `apply`.

    Args:
        fn: called as `fn(module, *args, **kwargs)`.
        module: the module.
        mutable: a filter of the collections to return; by default all but `intermediates`.
        capture_intermediates: whether to keep the output of every `__call__`; or a function `(module, method_name) ->
            bool` that selects the methods.
    """
    initialized = init_with_output(fn, module, mutable, capture_intermediates)

    @functools.wraps(fn)
    @boundary
    def variables(*args: Any, **kwargs: Any) -> Any:
        return initialized(*args, **kwargs)[1]

    return variables


def resolve_method(module: Base, method: Callable[..., Any] | str | None) -> Callable[..., Any]:
    """Return the function of a module that `method=` means: a name, a function, a bound method; by default `__call__`.

    Raises:
        ApplyModuleInvalidMethodError: if it cannot be called with a module.
    """
    if isinstance(method, str):
        found: Any = getattr(module, method, None)
        if found is None:
            where, known = f'method="{method}" of {place(module)}', _methods(module)
            what = f"there is no such method (available: {known})."
            facts = {"option": "method", "given": method, "available": tuple(known)}
            raise ModuleAttributeError(where, what, "Name one of these.", **facts)
        if isinstance(found, Base):  # a submodule: call the one of the clone
            return lambda module, *args, **kwargs: getattr(module, method)(*args, **kwargs)
    else:
        found = module.__call__ if method is None else method
    owner = found.__self__ if inspect.ismethod(found) and isinstance(found.__self__, Base) else None
    if owner is not None and (isinstance(module, type(owner)) or isinstance(owner, type(module))):
        return found.__func__
    if not callable(found) or isinstance(found, type) or owner is not None or not _takes_argument(found):
        raise ApplyModuleInvalidMethodError(
            f"method of {place(module)}",
            Expected("the name of a method or a function whose first argument is the module", found),
            'Pass a name, `method="encode"`, or a function, `method=lambda module, x: module.encode(x)`.',
            option="method",
        )
    return _advised(found, type(module)) if getattr(found, "is_module_method", False) else found


def _advised(fn: Callable[..., Any], cls: type[Base]) -> Callable[..., Any]:
    """Return a method; if it is not the one of the class, errors say so. Such a method often works, as in flax."""
    own = getattr(cls, fn.__name__, None)
    if own is fn:
        return fn
    advice = f" The function given as `method` is not a method of {cls.__name__}."
    if own is not None:
        advice = f'{advice[:-1]}; to call its own, write `method="{fn.__name__}"`.'

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except LiftError as error:
            add_to_fix(error, advice)
            raise

    return run


def _methods(module: Base) -> list[str]:
    """Return the names of the methods that the class of a module defines."""
    found = {name for name, value in vars(type(module)).items() if getattr(value, "is_module_method", False)}
    return sorted(name for name in found if name == "__call__" or not name.startswith("_"))


def _takes_argument(fn: Callable[..., Any]) -> bool:
    if isinstance(fn, types.FunctionType):  # the usual case, and `inspect.signature` is slow
        return bool(fn.__code__.co_argcount or fn.__code__.co_flags & inspect.CO_VARARGS)
    return bool(inspect.signature(fn).parameters)


def on_scope(
    fn: Callable[..., Any], module: Base, mutable: Filter, capture_intermediates: bool | CaptureFilter = False
) -> tuple[Callable[..., Any], Filter]:
    """Return a function of a scope that runs `fn` on a clone of a module there, and a filter of what it may write."""
    if not isinstance(module, Base) or isinstance(fn, Base) or not callable(fn):
        given = f"{shown(fn)} and {shown(module)}"
        raise InvalidInstanceModuleError(
            "nn.init or nn.apply",
            Expected("a function of a module, then the module", given, words=given),
            "Write `nn.apply(lambda module, x: module(x), module)`.",
        )
    if not callable(capture_intermediates) and not isinstance(capture_intermediates, bool):
        raise LiftArgumentError(
            "capture_intermediates",
            Expected("a bool, or a function of a module and a method's name", capture_intermediates),
            'Write `capture_intermediates=lambda module, method: method == "__call__"`.',
            option="capture_intermediates",
        )
    if not capture_intermediates:
        capture: CaptureFilter | None = None
    else:
        capture = _is_call if capture_intermediates is True else capture_intermediates
        mutable = union(mutable, "intermediates")

    @functools.wraps(fn)
    def run(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        with capturing(capture):
            bound = deep_clone(module, scope, False, {}, {})
            try:
                return fn(bound, *args, **kwargs)
            except TypeError as error:
                note_call(error, place(bound), fn, (bound, *args), kwargs)
                raise

    return run, mutable


def _is_call(module: Base, method_name: str) -> bool:
    return method_name == "__call__"


# --- bound methods that a module keeps --------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])


def cached_method(fun: F) -> F:
    """Turn a method into one that each module keeps.

    Two bound methods are equal if they belong to the same module, and its fields still have the same values.

    Example:
        >>> import linen_like as nn
        >>> model = nn.Dense(3)
        >>> model.apply == model.apply, model.apply == nn.Dense(3).apply
        (True, False)
    """
    return cast(F, _CachedMethod(fun))


class _CachedMethod:
    """The descriptor that `cached_method` puts into the class."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), fun)
        self.fun = fun

    def __get__(self, module: Base, cls: type | None = None) -> Any:
        return self.fun if module is None else _BoundMethod(self.fun, module)


class _BoundMethod:
    # A bound method; its docstring is the docstring of the function.

    __slots__ = ("__func__", "__self__", "__weakref__", "_value")

    def __init__(self, fun: Callable[..., Any], module: Base) -> None:
        self.__func__, self.__self__ = fun, module
        self._value: tuple[Hashable, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _BoundMethod) and self._compared() == other._compared())

    def __hash__(self) -> int:
        value = self._compared()
        methods, name = self.__self__._state.methods, self.__func__.__name__
        if methods.get(name) != self:  # JAX knows the first of equal methods
            methods[name] = self
        return hash(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__func__.__name__)

    def __repr__(self) -> str:
        return repr(self._bound())

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__func__.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._bound())

    def _bound(self) -> types.MethodType:
        return types.MethodType(self.__func__, self.__self__)

    def _compared(self) -> tuple[Hashable, ...]:
        """Return what is compared: the function, the module itself, the values of its fields, and interceptors."""
        if self._value is None:
            # Interceptors are part of the trace, so a method with interceptors equals no other method.
            around = object() if context.interceptors else context.names_calls
            self._value = self.__func__, id(self.__self__), around, _fields_of(self.__self__)
        return self._value


def _fields_of(module: Base) -> Hashable:
    """Return the values of a module's fields; None if they have no key, so that only the module itself is compared."""
    try:
        return static_key(module)
    except Undescribed:
        return None

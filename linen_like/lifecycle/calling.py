"""Calling: the code around each method of a module. Methods are wrapped once, when their class is made.

A call runs `setup` first if it has not run, pushes the module on the context's stack so that new modules become its
children, names the operations for profiles, and keeps the output if requested. A method marked `compact` may also
define submodules and variables; it starts with all automatic names free.

A wrapper finds the method in its attribute `__wrapped__`, not in its closure: a tool that reloads code in place, such
as IPython's autoreload, replaces the attributes of a function, but cannot replace its closure.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax

from liftcore.calls import hide_frames, note_call
from liftcore.errors import Expected, LiftArgumentError, ScopeParamShapeError, name_of, shown

from ..errors import CallCompactUnboundModuleError, CallSetupUnboundModuleError, DescriptorAttributeError
from .advice import add_to_fix, check_arrays, note_mistake
from .binding import check_constructed, ensure_setup, entered, name_scope, place
from .context import context, intercepted
from .fields import Base

F = TypeVar("F", bound=Callable[..., Any])

_UNWRAPPED = {"__eq__", "__hash__", "__init__", "__post_init__", "__repr__", "setup"}


def compact(fun: F) -> F:
    """Let a method define submodules and variables where it uses them.

    Example:
        >>> import jax, linen_like as nn
        >>> class Scale(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x * self.param("scale", jax.nn.initializers.ones, x.shape)
        >>> Scale().init(jax.random.key(0), jax.numpy.zeros(2))
        {'params': {'scale': Array([1., 1.], dtype=float32)}}

    Args:
        fun: the method.
    """
    _check_method(fun)
    fun.compact = True  # type: ignore[attr-defined]
    return fun


def nowrap(fun: F) -> F:
    """Leave a method as plain Python: a call does not run `setup`, and modules made in it do not become submodules.

    Example:
        >>> import linen_like as nn
        >>> class Block(nn.Module):
        ...     @nn.nowrap
        ...     def norm(self):
        ...         return "plain"
        >>> Block().norm()
        'plain'

    Args:
        fun: the method.
    """
    fun.nowrap = True  # type: ignore[attr-defined]
    return fun


def compact_name_scope(fun: F) -> F:
    """Let a method define submodules where it uses them, below its own name scope: the name of the method.

    A class may have several such methods, in addition to a compact one. Parameters of the module itself are defined as
    usual.

    Example:
        >>> import jax, linen_like as nn
        >>> class Autoencoder(nn.Module):
        ...     @nn.compact_name_scope
        ...     def encode(self, x):
        ...         return nn.Dense(2)(x)
        ...     @nn.compact_name_scope
        ...     def decode(self, h):
        ...         return nn.Dense(3)(h)
        ...     def __call__(self, x):
        ...         return self.decode(self.encode(x))
        >>> variables = Autoencoder().init(jax.random.key(0), jax.numpy.ones(3))
        >>> {name: list(below) for name, below in variables["params"].items()}
        {'encode': ['Dense_0'], 'decode': ['Dense_0']}

    Args:
        fun: the method.
    """
    _check_method(fun)
    fun.compact_name_scope = True  # type: ignore[attr-defined]
    return fun


def _check_method(fun: Any) -> None:
    """Check that a value is a method whose body has run when its call returns."""
    if isinstance(fun, property | type) or not callable(fun):
        given = "a property" if isinstance(fun, property) else shown(fun)
        fix = "Put the decorator on the method itself; a property may call a compact method."
        raise LiftArgumentError("nn.compact", Expected("a method", given, words=given), fix)
    if inspect.isgeneratorfunction(fun) or inspect.iscoroutinefunction(fun) or inspect.isasyncgenfunction(fun):
        raise LiftArgumentError(
            shown(fun),
            "a compact method cannot be a generator or a coroutine: its body would run after the call has ended.",
            "Collect the results in a list, and return the list.",
            given=fun,
        )


def wrap_methods(cls: type[Base]) -> None:
    """Wrap the methods and properties that a class itself defines; those of its bases are already wrapped."""
    for name, value in list(vars(cls).items()):
        if name in cls.__dataclass_fields__ or name in _UNWRAPPED or getattr(value, "nowrap", False):
            continue
        if _is_method(value) and not getattr(value, "is_module_method", False):
            setattr(cls, name, _wrap(value))
        elif type(value) is property and value.fget is not None:
            setattr(cls, name, property(_guard(value.fget), value.fset, value.fdel, value.__doc__))
        elif isinstance(value, functools.cached_property):
            value.func = _guard(value.func)
    setup = vars(cls).get("setup")
    if setup is not None and not getattr(setup, "is_module_method", False):
        cls.setup = _wrap_setup(setup)


def _is_method(value: Any) -> bool:
    """Return whether a class attribute is called with the instance: a function, or a callable that binds like one."""
    if isinstance(value, types.FunctionType):
        return True
    return callable(value) and hasattr(value, "__get__") and not isinstance(value, type | staticmethod | classmethod)


def _wrap(fun: Callable[..., Any]) -> Callable[..., Any]:
    name = name_of(fun)
    suffix = "" if name == "__call__" else f".{name}"

    @functools.wraps(_in_name_scope(fun, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        fun = method.__wrapped__
        is_compact = getattr(fun, "compact", False)
        if not isinstance(self, Base):
            return fun(self, *args, **kwargs)
        state, scope = self._state, self.scope
        if scope is not None and not scope.is_claimed:
            try:
                with entered(self) as module:
                    return method(module, *args, **kwargs)
            except Exception as error:
                hide_frames(error)
                raise
        if not state.ready:
            _begin(self, getattr(fun, "is_lifted", False))
        begins = is_compact and not state.in_compact
        if begins and scope is None:
            raise _unbound(self, name)
        state.in_compact = begins or state.in_compact
        stack = context.modules
        stack.append(self)
        try:
            with named(self, suffix):
                run = intercepted(fun, name) if context.interceptors else fun
                y = run(self, *args, **kwargs)
            if (capture := context.captures[-1]) and capture(self, name):
                self.sow("intermediates", name, y)
            return y
        except Exception as error:
            _explain(error, self, fun, args, kwargs)
            hide_frames(error)
            raise
        finally:
            stack.pop()
            if is_compact:
                self.scope.free_all(numbers=begins)
                state.in_compact = not begins

    method.is_module_method = True  # type: ignore[attr-defined]
    return method


def _explain(error: Exception, module: Base, fun: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Add advice to an error that leaves a method, or raise one that says more."""
    _advise_methods(error, module)
    if isinstance(error, TypeError):
        note_call(error, place(module), fun, (module, *args), kwargs)
    if isinstance(error, TypeError | AttributeError | ValueError):
        note_mistake(error)
        check_arrays(error, place(module), fun, args, kwargs)
    elif type(error).__module__ == "flax.errors":
        note_mistake(error)


def _advise_methods(error: Exception, module: Base) -> None:
    """Add to the error about a shape that the module is of a lifted class, but outside its lift."""
    if isinstance(error, ScopeParamShapeError) and not module._state.lifts:
        add_to_fix(error, module._methods_advice)


def _begin(module: Base, is_lifted: bool) -> None:
    """Run `setup`, or let it run inside the lift if the called method is lifted."""
    if not is_lifted:
        ensure_setup(module)
    elif module.scope is not None:
        module._state.begins = True


def _in_name_scope(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Run a method in its own name scope, if it is marked for that."""
    if not getattr(fun, "compact_name_scope", False):
        return fun

    @functools.wraps(fun)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scope is None:
            raise _unbound(self, name)
        with name_scope(self, name):
            return fun(self, *args, **kwargs)

    return method


def _wrap_setup(fun: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fun)
    def setup(self: Any) -> None:
        if self.scope is None:
            raise CallSetupUnboundModuleError(
                f"setup of {place(self)}",
                "it was called on a module without variables.",
                "Call another method with `apply`, or bind the module: `setup` then runs automatically.",
            )
        state, stack = self._state, context.modules
        was_in_setup = state.in_setup
        state.in_setup = True
        stack.append(self)
        try:
            with named(self, ".setup"):
                fun = setup.__wrapped__
                run = intercepted(fun, "setup") if context.interceptors else fun
                run(self)
            if (capture := context.captures[-1]) and capture(self, "setup"):
                self.sow("intermediates", "setup", None)
        except (TypeError, AttributeError, ScopeParamShapeError) as error:
            _advise_methods(error, self)
            note_mistake(error)
            raise
        finally:
            stack.pop()
            state.in_setup = was_in_setup

    setup.is_module_method = True  # type: ignore[attr-defined]
    return setup


def named(module: Base, suffix: str) -> AbstractContextManager[None]:
    """Name the operations within the `with` block after a module in profiles, unless names are disabled."""
    if not context.names_calls:
        return nullcontext()
    return jax.named_scope(f"{module.name or type(module).__name__}{suffix}")


def _guard(getter: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a property's function, so that Python does not report its AttributeError as a missing property."""

    @functools.wraps(getter)
    def guarded(self: Any) -> Any:
        try:
            return guarded.__wrapped__(self)
        except AttributeError as error:
            raise _in_descriptor(self, "property", name_of(getter), error) from error

    return guarded


def check_descriptor(module: Base, name: str) -> None:
    """Raise the error of a descriptor, if Python would report its AttributeError as a missing descriptor."""
    for cls in type(module).__mro__:
        getter = vars(cls).get(name)
        if getter is None or not hasattr(type(getter), "__get__"):
            continue
        try:
            getter.__get__(module, type(module))
        except DescriptorAttributeError:
            raise
        except AttributeError as error:
            raise _in_descriptor(module, "descriptor", name, error) from error
        return


def _in_descriptor(module: Base, kind: str, name: str, error: AttributeError) -> DescriptorAttributeError:
    return DescriptorAttributeError(
        f'{kind} "{name}" of {place(module)}',
        f"it raised AttributeError: {error}",
        f"Check the attributes that the {kind} reads; those set in `setup` exist only while it is bound.",
        available=getattr(error, "available", None),
    )


def _unbound(module: Base, name: str) -> CallCompactUnboundModuleError:
    """Return the error for a compact method that is called on an unbound module."""
    check_constructed(module)
    cls, running, outer = type(module).__name__, context.modules[-1], _flax_module()
    if outer is not None:
        what = f"it was called in {outer}, a module of flax, which gives it no variables."
        fix = (
            f"Modules of flax go inside, not outside: first move {outer} to `linen_like`, and call its old layers by "
            '`foreign.from_linen(layer)(self.scope.push("layer"), x)`.'
        )
    elif running is None or running.scope is None:
        call = "" if name == "__call__" else f', method="{name}"'
        what = "it is a compact method, but it was called on a module without variables."
        fix = f"Make variables, `variables = module.init(key, …{call})`, then call `module.apply(variables, …{call})`."
        fix += " In a model of another style, wrap it: `nnx.bridge.ToNNX(module, rngs=rngs)`, "
        fix += "`pax.Layer(module, key, …)` or `eqx.Applied.init(module, key, …)`."
    elif running._state.in_setup:
        what = f"it was called in `setup` of {place(running)}, before the module was given a name there."
        fix = f"Assign it first, `self.{cls.lower()} = {cls}(…)`, and call it in a method."
    else:
        what = f"it was called in {place(running)}, but the module is not a submodule of it: it was made elsewhere."
        fix = f"Make it there, or declare it as a field, `{cls.lower()}: nn.Module`, and call `self.{cls.lower()}`."
    return CallCompactUnboundModuleError(f"{cls}.{name}", what, fix, given=cls)


def _flax_module() -> str | None:
    """Return the name of the module of flax that is running, or None; read from the stack, since flax does not say."""
    kind = getattr(sys.modules.get("flax.linen"), "Module", None)
    frame = sys._getframe() if kind else None
    while kind and frame:
        if isinstance(found := frame.f_locals.get("self"), kind):
            return type(found).__name__
        frame = frame.f_back
    return None

"""The one context of linen_like: the modules that are running, and what observes their calls.

Each thread has its own context, so modules in different threads do not see each other. Code that pushes onto a stack
pops in a `finally`, so nothing remains when a model raises an error.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeAlias

from liftcore.errors import Expected, LiftArgumentError
from liftcore.statics import Undescribed, surrounds

from .fields import Base

__all__ = [
    "CaptureFilter",
    "Context",
    "Interceptor",
    "InterceptorContext",
    "as_in_a_method",
    "capturing",
    "context",
    "disable_named_call",
    "enable_named_call",
    "intercept_methods",
    "intercepted",
    "no_parent",
    "override_named_call",
]

CaptureFilter: TypeAlias = Callable[[Any, str], bool]


class Context(threading.local):
    """The stacks of one thread.

    Attributes:
        modules: the modules whose methods are running, innermost last; a new module becomes a child of the last one,
            unless that is None.
        captures: for each running `init` or `apply`, the filter for outputs to keep, or None.
        interceptors: the functions around each call of a method, the outermost first.
        names_calls: whether the operations of a module carry its name.
    """

    interceptors: tuple[Callable[..., Any], ...] = ()
    names_calls: bool = True

    def __init__(self) -> None:
        self.modules: list[Any] = [None]
        self.captures: list[CaptureFilter | None] = [None]

    @property
    def is_used(self) -> bool:
        """Whether a method, a lift, or `init` or `apply` of a module is running."""
        return len(self.modules) > 1 or len(self.captures) > 1

    def __reduce__(self) -> str:
        return "context"  # a pickled class refers to it by this name


context = Context()


@surrounds
def _watched() -> Hashable:
    """Return a key for what modules in a traced function do beyond their own code; interceptors may do anything."""
    if context.interceptors:
        raise Undescribed(context.interceptors[-1])
    return context.captures[-1], context.names_calls


@contextlib.contextmanager
def capturing(capture: CaptureFilter | None) -> Iterator[None]:
    """Keep the outputs of methods for which `capture(module, method_name)` is true, within the `with` block."""
    context.captures.append(capture)
    try:
        yield
    finally:
        context.captures.pop()


@contextlib.contextmanager
def no_parent() -> Iterator[None]:
    """Give modules that are constructed within the `with` block no parent, as `parent=None` does for one of them.

    They are descriptions, even in a running method: a module becomes a submodule only if it is assigned in `setup`, or
    passed to a module that holds it. A method that is called within the block makes submodules as usual. As a
    decorator, this applies to functions that make modules.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         with nn.no_parent():
        ...             block = nn.Sequential([nn.Dense(3), nn.relu])
        ...         return nn.Stack(block, 4)(x)
        >>> variables = Model().init(jax.random.key(0), jax.numpy.ones((2, 3)))
        >>> jax.tree.map(jax.numpy.shape, variables["params"])
        {'Stack_0': {'block': {'layers_0': {'bias': (4, 3), 'kernel': (4, 3, 3)}}}}
    """
    context.modules.append(None)
    try:
        yield
    finally:
        context.modules.pop()


def as_in_a_method() -> contextlib.AbstractContextManager[None]:
    """Return a context in which errors speak of modules, as in a running method; inside a method it does nothing."""
    return contextlib.nullcontext() if context.is_used else no_parent()


# --- interception, and names in profiles ------------------------------------------------------------------------------


Interceptor: TypeAlias = Callable[..., Any]


class InterceptorContext(NamedTuple):
    """The call that an interceptor surrounds.

    Attributes:
        module: the bound module.
        method_name: the name of the method, which may be `setup`.
        orig_method: the method, bound to the module, without interceptors.
    """

    module: Base
    method_name: str
    orig_method: Callable[..., Any]


@contextlib.contextmanager
def intercept_methods(interceptor: Interceptor) -> Iterator[None]:
    """Run a function around every call of a module's method, in this thread, within the `with` block.

    Of several functions, the first one entered is the outermost. A lifted method is intercepted where it runs: inside
    the lift, with the values there; under a lifted `jit`, while it is traced. Methods marked `nn.nowrap` are not
    intercepted.

    Example:
        >>> import jax, linen_like as nn
        >>> def halve(next_fun, args, kwargs, context):
        ...     y = next_fun(*args, **kwargs)
        ...     return y / 2 if isinstance(context.module, nn.Dense) and context.method_name == "__call__" else y
        >>> x = jax.numpy.ones(3)
        >>> variables = nn.Dense(2).init(jax.random.key(0), x)
        >>> with nn.intercept_methods(halve):
        ...     half = nn.Dense(2).apply(variables, x)
        >>> bool((2 * half == nn.Dense(2).apply(variables, x)).all())
        True

    Args:
        interceptor: called as `interceptor(next_fun, args, kwargs, context)`, where `context` is an
            `InterceptorContext`; returns the result of the call. `next_fun(*args, **kwargs)` continues the call.

    Raises:
        LiftArgumentError: if `interceptor` cannot be called.
    """
    if not callable(interceptor):
        fix = "Write `def interceptor(next_fun, args, kwargs, context): return next_fun(*args, **kwargs)`."
        raise LiftArgumentError("nn.intercept_methods", Expected("a function", interceptor), fix)
    before = context.interceptors
    context.interceptors = (*before, interceptor)
    try:
        yield
    finally:
        context.interceptors = before


def intercepted(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a method in the interceptors that are active when it is called."""

    def run(module: Base, *args: Any, **kwargs: Any) -> Any:
        call: Callable[..., Any] = types.MethodType(fun, module)
        known = InterceptorContext(module, name, call)
        for interceptor in reversed(context.interceptors):
            call = functools.partial(_intercept, interceptor, call, known)
        return call(*args, **kwargs)

    return run


def _intercept(
    interceptor: Interceptor, next_fun: Callable[..., Any], known: InterceptorContext, *args: Any, **kwargs: Any
) -> Any:
    return interceptor(next_fun, args, kwargs, known)


# --- names in profiles ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def override_named_call(enable: bool = True) -> Iterator[None]:
    """Set whether the operations of a module carry its name in profiles, in this thread, within the `with` block.

    Example:
        >>> import jax, linen_like as nn
        >>> variables = nn.Dense(2, name="head").init(jax.random.key(0), jax.numpy.ones(3))
        >>> def text():
        ...     compiled = jax.jit(nn.Dense(2, name="head").apply).lower(variables, jax.numpy.ones(3)).compile()
        ...     return compiled.as_text()
        >>> with nn.override_named_call(False):
        ...     without = text()
        >>> "head" in without, "head" in text()
        (False, True)

    Args:
        enable: whether they carry it.
    """
    before = vars(context).get("names_calls")  # None if this thread does as all others do
    context.names_calls = enable
    try:
        yield
    finally:
        if before is None:
            del context.names_calls
        else:
            context.names_calls = before


def enable_named_call() -> None:
    """Make the operations of modules carry their names in profiles, in all threads; this is the default."""
    Context.names_calls = True


def disable_named_call() -> None:
    """Make the operations of modules carry no names in profiles, in all threads that do not override this."""
    Context.names_calls = False

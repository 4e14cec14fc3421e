"""Interception: functions around each call of a module's method; and the names of calls in profiles."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from liftcore.errors import LiftArgumentError

from .context import Context, context
from .fields import Base

__all__ = [
    "Interceptor",
    "InterceptorContext",
    "disable_named_call",
    "enable_named_call",
    "intercept_methods",
    "intercepted",
    "override_named_call",
]

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
        raise LiftArgumentError(
            "nn.intercept_methods",
            f"expected a function, given {interceptor!r}.",
            "Write `def interceptor(next_fun, args, kwargs, context): return next_fun(*args, **kwargs)`.",
        )
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

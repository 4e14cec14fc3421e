"""The one context of linen_like: the modules that are running, and the observers of their calls.

Each thread has its own context, so modules in different threads do not see each other. Code that pushes onto a stack
pops in a `finally`, so nothing remains when a model raises an error.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

from liftcore.statics import Undescribed, surrounds

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

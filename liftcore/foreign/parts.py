"""The calls of foreign models and of their parts, for a table of the model around them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..scopes.scope import Scope

__all__ = ["Note", "noted", "running", "watching"]

Note: TypeAlias = Callable[[Scope, Any, str, tuple[Any, ...], dict[str, Any]], Callable[[Any], None]]
"""Called as `note(scope, part, method, args, kwargs)` before a part runs; returns what is called with its result."""

_notes: contextvars.ContextVar[Note | None] = contextvars.ContextVar("liftcore.foreign.parts", default=None)


@contextlib.contextmanager
def watching(note: Note | None) -> Iterator[None]:
    """A context in which each call of a foreign model, and of its parts where its library tells them, is noted.

    The libraries with hooks for calls are `flax.linen` and Haiku. Of the others, a call of the whole model is noted.

    Example:
        >>> import jax, liftcore
        >>> with watching(lambda scope, part, method, args, kwargs: print):
        ...     running(liftcore.bind({}), "model", "apply", lambda x: 2 * x, (1,), {})
        2
        2

    Args:
        note: see `Note`; None to note nothing.
    """
    token = _notes.set(note)
    try:
        yield
    finally:
        _notes.reset(token)


def noted(intercept_methods: Callable[..., Any], intercept: Callable[..., Any]) -> Any:
    """Return a context in which a library tells the calls of its modules, if they are noted.

    Args:
        intercept_methods: the function of the library that returns such a context for an interceptor.
        intercept: the interceptor, which calls `running`.
    """
    return contextlib.nullcontext() if _notes.get() is None else intercept_methods(intercept)


def running(
    scope: Scope,
    part: Any,
    method: str,
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return `run(*args, **kwargs)`, and note it.

    Example:
        >>> import liftcore
        >>> running(liftcore.bind({}), "model", "apply", lambda x: 2 * x, (1,), {})
        2

    Args:
        scope: the scope of the part.
        part: the part, a value of its library.
        method: the name of the method that is called.
        run: the call.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    note = _notes.get()
    if note is None:
        return run(*args, **kwargs)
    done = note(scope, part, method, args, kwargs)
    result = run(*args, **kwargs)
    done(result)
    return result

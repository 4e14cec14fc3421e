"""`jax.named_call` for functions of scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..calls import boundary
from ..errors import check_function, name_of

__all__ = ["named_call"]


def named_call(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """`jax.named_call` for a function of scopes: its operations carry a name in profiles, and nothing else changes.

    Example:
        >>> import jax, liftcore
        >>> def layer(scope, x):
        ...     return jax.numpy.sin(x)
        >>> fn = liftcore.apply(named_call(layer, "attention"))
        >>> "attention" in jax.jit(fn).lower({}, 1.0).as_text(debug_info=True)
        True

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        name: the name in profiles; by default the name of `fn`.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if `fn` is not callable.
    """
    check_function("named_call", fn)
    lifted: Callable[..., Any] = jax.named_call(fn, name=name_of(fn) if name is None else name)
    return boundary(lifted)

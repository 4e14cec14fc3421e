"""A call that is differentiated with respect to the floating-point arrays in some of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from liftcore import Scope
from liftcore.errors import LiftArgumentError, call_user, name_of, shown

from .filters import is_array_like, is_inexact_array
from .parts import SplitTree

__all__ = ["Differentiated", "check_first"]


class Differentiated:
    """A call, split into scopes, arrays to differentiate, and everything else.

    Args:
        fun: the function.
        primals: the first arguments, which are differentiated.
        args: the positional arguments after them.
        kwargs: the keyword arguments.
        is_traced: a function that returns whether a leaf of the primals is differentiated.

    Attributes:
        scopes: the scopes in the function and its arguments.
        arrays: the arrays that are differentiated.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        primals: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        is_traced: Callable[[Any], bool] = is_inexact_array,
    ) -> None:
        self._primals = SplitTree(tuple(primals), is_traced)
        self._others = SplitTree((fun, tuple(args), dict(kwargs or {})), _never)
        self.scopes = [*self._primals.scopes, *self._others.scopes]
        self.arrays = self._primals.arrays

    def run(self, scopes: Sequence[Scope], arrays: Iterable[Any]) -> Any:
        """Call the function with other arrays and scopes, and return its result."""
        count = len(self._primals.scopes)
        primals = self._primals.join(arrays, scopes[:count])
        fun, args, kwargs = self._others.join((), scopes[count:])
        return call_user(name_of(fun), fun, *primals, *args, **kwargs)

    def like_primals(self, values: Iterable[Any]) -> Any:
        """Return a tuple like the primals, with a value for each leaf that is differentiated, and None for others."""
        return self._primals.fill(values)


def check_first(where: str, args: tuple[Any, ...]) -> None:
    """Check that a call has a first argument that may be differentiated.

    Args:
        where: the name of the transformation, for errors.
        args: the positional arguments.

    Raises:
        LiftArgumentError: if there is none, or it is static.
    """
    if not args:
        raise LiftArgumentError(
            where,
            "it was called without a positional argument, but it differentiates the first one.",
            "Pass that one by position.",
        )
    if jax.tree_util.all_leaves(args[:1]) and not is_array_like(args[0]):
        raise LiftArgumentError(
            where,
            f"the first argument, {shown(args[0])}, is not a pytree of arrays, so it has no gradient.",
            "Pass what you differentiate first. For a module of linen_like, that is `eqx.Applied(module, variables)`; "
            "for a scope or a bound module, use `liftcore.grad` or `linen_like.grad`.",
        )


def _never(leaf: Any) -> bool:
    return False

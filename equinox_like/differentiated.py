"""A call, of which the arrays of floating-point numbers in some arguments are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from liftcore import Scope

from .filters import is_inexact_array
from .parts import SplitTree

__all__ = ["Differentiated"]


class Differentiated:
    """A call taken apart.

    Args:
        fun: the function.
        primals: the first arguments, which are differentiated.
        args: the positional arguments after them.
        kwargs: those by name.
        is_traced: which leaves of the primals are differentiated.

    Attributes:
        scopes: the scopes in all of them.
        arrays: what is differentiated.
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
        """What the function returns for other arrays, on other scopes."""
        count = len(self._primals.scopes)
        primals = self._primals.join(arrays, scopes[:count])
        fun, args, kwargs = self._others.join((), scopes[count:])
        return fun(*primals, *args, **kwargs)

    def like_primals(self, values: Iterable[Any]) -> Any:
        """A tuple like the primals, with values in the places of what is differentiated, and None in all others."""
        return self._primals.fill(values)


def _never(leaf: Any) -> bool:
    return False

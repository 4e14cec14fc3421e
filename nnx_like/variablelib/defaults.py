"""Defaults of variables in NNX: its other models of state, which do not exist here."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from liftcore.errors import LiftArgumentError

__all__ = ["A", "M", "VarDefaults", "var_defaults"]

A = TypeVar("A")
M = TypeVar("M")


@dataclasses.dataclass(frozen=True)
class VarDefaults(Mapping[str, bool]):
    """The models of state that variables use by default: neither of the two that NNX has besides its own.

    Attributes:
        hijax: whether variables are hijax values.
        ref: whether variables hold JAX references.
    """

    hijax: bool = False
    ref: bool = False

    def __getitem__(self, key: str) -> bool:
        return bool(dataclasses.asdict(self)[key])

    def __iter__(self) -> Iterator[str]:
        return iter(dataclasses.asdict(self))

    def __len__(self) -> int:
        return len(dataclasses.fields(self))


class _Defaults(contextlib.ContextDecorator):
    """A `with` block, and a decorator, that changes nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> Any:
    """Return the models of state that variables use by default, or a `with` block or decorator that sets them.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.var_defaults()
        VarDefaults(hijax=False, ref=False)
        >>> with nnx.var_defaults(hijax=False):
        ...     variable = nnx.Param(1.0)

    Args:
        hijax: must not be True: transformations already change variables by reference.
        ref: must not be True, for the same reason.

    Raises:
        LiftArgumentError: if one of them is True.
    """
    for name, chosen in (("hijax", hijax), ("ref", ref)):
        if chosen:
            raise LiftArgumentError(
                f"var_defaults({name}=True)",
                "this model of state is not supported.",
                f"Write `{name}=False`, or leave it out: every transformation changes variables by reference.",
            )
    return VarDefaults() if hijax is None and ref is None else _Defaults()

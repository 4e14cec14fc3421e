"""Descriptions: an unbound module as one hashable value, which says all that `apply` can see of it.

Values that may stand for others are listed here by type. Of whatever else a field may hold, an equal one could behave
in another way, change later, or keep arrays alive.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from liftcore.frozen_dict import FrozenDict

from .closures import parts
from .fields import Base

__all__ = ["Indescribable", "description"]

_ATOMS = frozenset({bool, bytes, int, str, type(None), types.EllipsisType, type(jax.numpy.float32)})
_MADE_OF_A_FUNCTION = (type(jax.jit(len)), jax.custom_jvp, jax.custom_vjp)


class Indescribable(Exception):
    """A module holds something that no value can stand for."""


def description(module: Base) -> Any:
    """A hashable value, equal for modules whose `init` and `apply` do the same.

    Equal are class, name, fields, types of values, names of modules in fields, and which of these are one and the same.

    Example:
        >>> import linen_like as nn
        >>> one, two = nn.Dense(3), nn.Dense(3)
        >>> description(nn.Sequential([one, two])) == description(nn.Sequential([two, one]))
        True
        >>> description(nn.Sequential([one, one])) == description(nn.Sequential([one, two]))
        False

    Raises:
        Indescribable: where there is none.
    """
    return _Walk().value(module)


class _Walk:
    """One walk over what a module holds; modules and functions that it meets again are told by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def value(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind in _ATOMS or isinstance(value, np.dtype | enum.Enum | types.ModuleType):
            return kind, value
        if kind in (float, complex):
            return kind, value.real.hex(), value.imag.hex()  # 0.0 and -0.0 differ
        if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return kind, *self._all(value)
        if kind in (dict, FrozenDict):
            return kind, *self._all(value), *self._all(value.values())
        return self._object(value, kind)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self.value, values))

    def _object(self, value: Any, kind: Any) -> Any:
        if id(value) in self._numbers:
            return "again", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        if isinstance(value, Base):
            return self._module(value, kind)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, functools.partial):
            return kind, *self._all(parts(value))
        if isinstance(value, types.FunctionType):
            return value, *self._all(parts(value))
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
            return kind, value
        if isinstance(value, _MADE_OF_A_FUNCTION) and hasattr(value, "__wrapped__"):
            return kind, value, self.value(value.__wrapped__)
        if dataclasses.is_dataclass(value) and kind.__dataclass_params__.frozen:
            return kind, *self._all(getattr(value, field.name) for field in dataclasses.fields(value))
        raise Indescribable

    def _module(self, module: Any, kind: Any) -> Any:
        if module.scope is not None or module.parent is not None:
            raise Indescribable
        fields = self._all(module.__dict__.get(name) for name in kind._field_names)
        return self.value(kind), module.name, *fields

    def _class(self, cls: type) -> Any:
        """A class. One that is made in a function may hold what is there, and so keep it alive."""
        local = [base for base in cls.__mro__ if "<locals>" in base.__qualname__]
        for found in [value for base in local for name, value in vars(base).items() if name != "__init__"]:
            while isinstance(found, types.FunctionType) and hasattr(found, "__wrapped__"):
                found = found.__wrapped__
            if isinstance(found, types.FunctionType):
                self._all(part for part in parts(found) if not any(part is base for base in local))
        return cls

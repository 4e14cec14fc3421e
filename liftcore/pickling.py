"""Pickles of values that hold closures, such as the transformations of optax, which `pickle` cannot find by name."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

from .errors import SerializationError, shown

__all__ = ["opened", "portable"]


class _Portable:
    """A value, and how to pickle it. A pickle of it is a pickle of the value."""

    __slots__ = ("value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def __reduce__(self) -> Any:
        try:
            pickle.dumps(self.value)
        except Exception as error:  # `pickle` has no class for what it cannot pickle
            return pickle.loads, (self._with_functions(error),)
        return _itself, (self.value,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.value, memo)

    def _with_functions(self, error: Exception) -> Any:
        """Return the bytes of a pickle that holds the code of all functions that have no name."""
        try:
            return importlib.import_module("cloudpickle").dumps(self.value)
        except ImportError:
            what = f"`pickle` finds functions by name, and {shown(self.value)} holds some without one ({error})."
            fix = "Install cloudpickle, `pip install cloudpickle`, or save only the arrays; see docs/checkpoints.md."
            raise SerializationError(self.where, what, fix, given=self.value) from error


def _itself(value: Any) -> Any:
    return value


def portable(value: Any, where: str) -> Any:
    """Return a stand-in for the result of `__getstate__` or `__reduce__`, which a pickle replaces by the value.

    If the value holds closures, they are pickled by the package cloudpickle. Deep copies hold copies of the value; for
    shallow ones, call `opened`.

    Example:
        >>> import copy, pickle
        >>> pickle.loads(pickle.dumps(portable(len, "the function"))), copy.deepcopy(portable(3, "the number"))
        (<built-in function len>, 3)

    Args:
        value: any value.
        where: its name, for the error.

    Raises:
        SerializationError: from `pickle`, if the value holds closures and cloudpickle is not installed.
    """
    return _Portable(value, where)


def opened(value: Any) -> Any:
    """Return the value if it is in a stand-in.

    Example:
        >>> opened(portable(3, "the number")), opened(3)
        (3, 3)

    Args:
        value: a value, or what `portable` returned.
    """
    return value.value if type(value) is _Portable else value

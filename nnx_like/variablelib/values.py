"""What a variable does with its value: operators, and how it is printed."""

from __future__ import annotations

import math
import operator
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["MISSING", "Operators", "block"]


class _Missing:
    """The type of the default of an argument that is not given, and may be None."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


# --- operators --------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return the value of a variable; other values are returned unchanged."""
    return value.get_value() if isinstance(value, Operators) else value


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Operators, other: Any) -> Any:
        return operation(self.get_value(), _plain(other))

    return method


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Operators, other: Any) -> Any:
        return operation(_plain(other), self.get_value())

    return method


def _unary(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: Operators) -> Any:
        return operation(self.get_value())

    return method


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make an in-place operator. It never uses `operator.iadd`, which would change a NumPy array that others hold."""

    def method(self: Operators, other: Any) -> Any:
        self.set_value(operation(self.get_value(), _plain(other)))
        return self

    return method


class Operators:
    """A mixin for objects with a value: all operators apply to the value.

    A binary operator returns the result for the values: an array, not a variable. An in-place operator assigns the
    result to the variable, and returns the variable.
    """

    __slots__ = ()

    # NumPy arrays defer to operands with a higher priority, so `numpy.ones(3) + variable` is computed here.
    __array_priority__ = 100

    def get_value(self) -> Any:
        """Return the value."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Assign the value."""
        raise NotImplementedError

    __add__, __radd__, __iadd__ = _binary(operator.add), _reflected(operator.add), _in_place(operator.add)
    __sub__, __rsub__, __isub__ = _binary(operator.sub), _reflected(operator.sub), _in_place(operator.sub)
    __mul__, __rmul__, __imul__ = _binary(operator.mul), _reflected(operator.mul), _in_place(operator.mul)
    __pow__, __rpow__, __ipow__ = _binary(operator.pow), _reflected(operator.pow), _in_place(operator.pow)
    __mod__, __rmod__, __imod__ = _binary(operator.mod), _reflected(operator.mod), _in_place(operator.mod)
    __and__, __rand__, __iand__ = _binary(operator.and_), _reflected(operator.and_), _in_place(operator.and_)
    __or__, __ror__, __ior__ = _binary(operator.or_), _reflected(operator.or_), _in_place(operator.or_)
    __xor__, __rxor__, __ixor__ = _binary(operator.xor), _reflected(operator.xor), _in_place(operator.xor)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __imatmul__ = _in_place(operator.matmul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __itruediv__ = _in_place(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __ilshift__ = _in_place(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
    __irshift__ = _in_place(operator.rshift)
    __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)

    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)
    __hash__ = None  # type: ignore[assignment]  # values can change, so equal hashes would not last

    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(operator.abs), _unary(operator.invert)
    __trunc__, __floor__, __ceil__ = _unary(math.trunc), _unary(math.floor), _unary(math.ceil)
    __int__, __float__, __complex__ = _unary(int), _unary(float), _unary(complex)
    __index__ = _unary(operator.index)
    __len__, __reversed__ = _unary(len), _unary(reversed)

    def __round__(self, ndigits: int = 0) -> Any:
        return round(self.get_value(), ndigits)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_value())

    def __contains__(self, item: Any) -> bool:
        return item in self.get_value()

    def __bool__(self) -> bool:
        value = self.get_value()
        return len(value) > 0 if getattr(value, "ndim", 0) else bool(value)

    def __format__(self, spec: str) -> str:
        return format(self.get_value(), spec) if spec else str(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value."""
        return self.get_value()(*args, **kwargs)


# --- text -------------------------------------------------------------------------------------------------------------


def block(left: str, lines: Iterable[str], right: str) -> str:
    """Format lines between brackets, indented; without lines, the brackets alone.

    Example:
        >>> print(block("Param( # 2 (8 B)", ["value=3", "tag='x'"], ")"))
        Param( # 2 (8 B)
          value=3,
          tag='x'
        )

    Args:
        left: the text before the lines.
        lines: the lines; each may have several of its own.
        right: the text after the lines.
    """
    body = ",\n".join(textwrap.indent(line, "  ") for line in lines)
    return f"{left}\n{body}\n{right}" if body else left + right

"""Equations of `einsum` with two operands: reads a label for each dimension, and checks the shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..errors import LiftArgumentError

__all__ = ["Equation", "Label", "to_equation"]

Label: TypeAlias = str | int
"""A letter; or, for a dimension that `...` stands for, its number from the end: -1, -2 and so on."""


class Equation(NamedTuple):
    """The labels of the dimensions of both operands and of the result."""

    left: tuple[Label, ...]
    right: tuple[Label, ...]
    result: tuple[Label, ...]


def to_equation(where: str, text: str, left: Sequence[int], right: Sequence[int]) -> Equation:
    """Read an equation such as `"...ab,bc->...ac"` for operands of given shapes.

    Example:
        >>> to_equation("einsum at /", "...ab, bc -> ...ac", (2, 3, 4), (4, 5))
        Equation(left=(-1, 'a', 'b'), right=('b', 'c'), result=(-1, 'a', 'c'))

    Raises:
        LiftArgumentError: if the text is not an explicit equation with two operands, or does not match the shapes.
    """
    operands, arrow, result = text.replace(" ", "").partition("->")
    if not arrow or operands.count(",") != 1:
        raise LiftArgumentError(
            where,
            f'the equation is "{text}", but it must have two operands, the inputs and the kernel, and a result.',
            'Write it like `einsum_str="...a,ab->...b"`.',
            option="einsum_str",
            given=text,
        )
    first, second = operands.split(",")
    labels = _labels(where, first, "the inputs", left), _labels(where, second, "the kernel", right)
    hidden = max(-min((label for label in side if isinstance(label, int)), default=0) for side in labels)
    equation = Equation(*labels, _letters(where, result, hidden))
    _check_sizes(where, equation, left, right)
    if not {*equation.result} <= {*equation.left, *equation.right} or len({*equation.result}) < len(equation.result):
        raise LiftArgumentError(
            where,
            f'the result of "{text}" has a letter twice, or one that no operand has.',
            "Label each dimension of the result with a different letter of the operands.",
            given=text,
        )
    return equation


def _labels(where: str, term: str, name: str, shape: Sequence[int]) -> tuple[Label, ...]:
    hidden = len(shape) - len(term.replace("...", "", 1))
    labels = _letters(where, term, hidden)
    if len(labels) != len(shape):
        raise LiftArgumentError(
            where,
            f'"{term}" labels {len(labels)} dimensions of {name}, but their shape is {tuple(shape)}.',
            "Give one letter for each dimension; `...` stands for any number of leading ones.",
            given=len(labels),
            expected=len(shape),
        )
    return labels


def _letters(where: str, term: str, hidden: int) -> tuple[Label, ...]:
    before, dots, after = term.partition("...")
    if any(not letter.isalpha() for letter in before + after):
        raise LiftArgumentError(
            where,
            f'"{term}" is not a term of an equation.',
            "Use letters, and at most one ellipsis in each term.",
            given=term,
        )
    return (*before, *(range(-hidden, 0) if dots else ()), *after)


def _check_sizes(where: str, equation: Equation, left: Sequence[int], right: Sequence[int]) -> None:
    sizes: dict[Label, int] = {}
    for label, size in [*zip(equation.left, left, strict=True), *zip(equation.right, right, strict=True)]:
        other = sizes.setdefault(label, size)
        if other == size or (isinstance(label, int) and 1 in (other, size)):
            continue
        shown = f'"{label}"' if isinstance(label, str) else "a dimension of `...`"
        raise LiftArgumentError(
            where,
            f"{shown} has sizes {other} and {size}; the inputs have shape {tuple(left)}, the kernel {tuple(right)}.",
            "Check the shape of the inputs, or pass another `shape` of the kernel.",
            given=size,
            expected=other,
        )

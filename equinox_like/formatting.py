"""Pytrees as text, with dtypes and shapes in place of arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from liftcore import FrozenDict, is_array

from .methods import BoundMethod

__all__ = ["fields_repr", "tree_pformat", "tree_pprint"]


def tree_pformat(
    pytree: Any, *, width: int = 80, indent: int = 2, short_arrays: bool = True, struct_as_array: bool = False
) -> str:
    """Return a pytree as text, with the dtype and shape of each array in place of its numbers.

    What does not fit in a line is written with one child a line. `repr` of a module returns the same text.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.tree_pformat({"layers": [jnp.ones((2, 3)), jnp.tanh], "steps": 5})
        "{'layers': [float32[2,3], tanh], 'steps': 5}"
        >>> print(eqx.tree_pformat({"layers": [jnp.ones((2, 3)), jnp.tanh], "steps": 5}, width=30))
        {
          'layers': [
            float32[2,3],
            tanh
          ],
          'steps': 5
        }

    Args:
        pytree: any value.
        width: the largest number of characters in a line.
        indent: the number of spaces before each child.
        short_arrays: whether to write dtypes and shapes; otherwise, `repr` of each array.
        struct_as_array: whether to write a `jax.ShapeDtypeStruct` as an array.
    """

    def leaf(value: Any) -> str | None:
        if is_array(value) or (struct_as_array and isinstance(value, jax.ShapeDtypeStruct)):
            shape = ",".join(map(str, value.shape))
            return f"{value.dtype.name}[{shape}]" if short_arrays else repr(value)
        return None

    def document(value: Any) -> Text:
        text = leaf(value)
        parts = _parts(value) if text is None else None
        if parts is None:
            return text or getattr(value, "__name__", None) or repr(value)
        begin, children, end = parts
        return Group(begin, [(label, document(child)) for label, child in children], end)

    return _laid_out(document(pytree), width, indent, 0, 0)


def tree_pprint(
    pytree: Any, *, width: int = 80, indent: int = 2, short_arrays: bool = True, struct_as_array: bool = False
) -> None:
    """Print a pytree, with the dtype and shape of each array in place of its numbers; see `tree_pformat`.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.tree_pprint({"w": jnp.ones((2, 3)), "act": jnp.tanh})
        {'w': float32[2,3], 'act': tanh}

    Args:
        pytree: any value.
        width: the largest number of characters in a line.
        indent: the number of spaces before each child.
        short_arrays: whether to write dtypes and shapes; otherwise, `repr` of each array.
        struct_as_array: whether to write a `jax.ShapeDtypeStruct` as an array.
    """
    print(tree_pformat(pytree, width=width, indent=indent, short_arrays=short_arrays, struct_as_array=struct_as_array))


def fields_repr(self: Any) -> str:
    """Return the text of a dataclass with its fields; the `__repr__` of modules."""
    return tree_pformat(self)


class Group(NamedTuple):
    """A text with children, which are written in one line or in one line each.

    Attributes:
        begin: the text before the children.
        children: the label and the text of each.
        end: the text after them.
    """

    begin: str
    children: Sequence[tuple[str, Any]]
    end: str

    def __str__(self) -> str:
        return f"{self.begin}{', '.join(f'{label}{text}' for label, text in self.children)}{self.end}"


Text: TypeAlias = str | Group


def _parts(value: Any) -> tuple[str, Iterable[tuple[str, Any]], str] | None:
    """Return the text before the children of a value, its children with their labels, and the text after them."""
    kind: Any = type(value)
    if isinstance(value, FrozenDict):
        return "FrozenDict({", [(f"{name!r}: ", child) for name, child in value.unfreeze().items()], "})"
    if isinstance(value, dict):
        begin, end = ("{", "}") if kind is dict else (f"{kind.__name__}({{", "})")
        return begin, [(f"{name!r}: ", child) for name, child in value.items()], end
    if kind is list:
        return "[", [("", child) for child in value], "]"
    if kind is tuple:
        return "(", [("", child) for child in value], ",)" if len(value) == 1 else ")"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return f"{kind.__name__}(", [(f"{name}=", getattr(value, name)) for name in kind._fields], ")"
    if isinstance(value, functools.partial):
        named = [(f"{name}=", child) for name, child in value.keywords.items()]
        return f"{kind.__name__}(", [("", value.func), *[("", arg) for arg in value.args], *named], ")"
    if isinstance(value, BoundMethod):
        owner = _parts(value.__self__) or (repr(value.__self__), [], "")
        return (*owner[:2], f"{owner[2]}.{value.__name__}")
    if _has_fields_as_repr(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.repr and hasattr(value, field.name)]
        return f"{kind.__name__}(", [(f"{n}=", getattr(value, n)) for n in names], ")"
    return None


def _has_fields_as_repr(kind: Any) -> bool:
    """Return whether `repr` of a class is that of modules, or the one that `dataclasses` makes."""
    params = getattr(kind, "__dataclass_params__", None)
    made = params is not None and params.repr and hasattr(kind.__repr__, "__wrapped__")
    return made or kind.__repr__ is fields_repr


def _laid_out(text: Text, width: int, indent: int, depth: int, around: int) -> str:
    """Return the lines of a text.

    Args:
        text: the text.
        width: the largest number of characters in a line.
        indent: the number of spaces for each level.
        depth: the level.
        around: the number of characters around the text in its line.
    """
    flat, margin = str(text), " " * (indent * depth)
    if isinstance(text, str):
        return flat.replace("\n", f"\n{margin}")
    if not text.children or ("\n" not in flat and len(margin) + around + len(flat) <= width):
        return flat
    inner = "\n" + " " * (indent * (depth + 1))
    below = [label + _laid_out(child, width, indent, depth + 1, len(label) + 1) for label, child in text.children]
    return f"{text.begin}{inner}{f',{inner}'.join(below)}\n{margin}{text.end}"

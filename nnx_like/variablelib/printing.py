"""Print a variable: its kind, size, value and metadata, one per line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["block"]


def block(name: str, comment: str, parts: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Format named parts, one a line.

    Example:
        >>> print(block("Param", "2 (8 B)", {"value": 3, "tag": "x"}))
        Param( # 2 (8 B)
          value=3,
          tag='x'
        )

    Args:
        name: the name of the whole.
        comment: the comment after the name, or an empty string.
        parts: the names and values of the parts.
    """
    items = parts.items() if isinstance(parts, Mapping) else parts
    lines = ",\n".join(textwrap.indent(f"{key}={value!r}", "  ") for key, value in items)
    return f"{name}({f' # {comment}' if comment else ''}\n{lines}\n)"

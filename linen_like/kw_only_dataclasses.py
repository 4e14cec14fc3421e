"""Keyword-only fields, under the names of Linen's file; they are those of Python's own `dataclasses`.

Example:
    >>> import linen_like as nn
    >>> from linen_like import kw_only_dataclasses
    >>> class Block(nn.Module):
    ...     features: int
    ...     act: str = kw_only_dataclasses.field(default="relu", kw_only=True)
    >>> Block(3, act="gelu").act
    'gelu'
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

__all__ = ["KW_ONLY", "dataclass", "field"]

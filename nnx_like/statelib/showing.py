"""Show states: as text, one leaf per line, and in treescope."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["flat_text", "nested_text", "nested_view"]


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _block(left: str, lines: Iterable[str], right: str) -> str:
    body = ",\n".join(f"  {_indented(line)}" for line in lines)
    return f"{left}\n{body}\n{right}" if body else left + right


def nested_text(mapping: Mapping[Any, Any]) -> str:
    r"""Format nested dicts as a string, each leaf by its own `repr`.

    Example:
        >>> print(nested_text({"a": {"b": 1}, "c": {}}))
        {
          'a': {
            'b': 1
          },
          'c': {}
        }
    """
    shown = ((key, nested_text(x) if isinstance(x, dict) else repr(x)) for key, x in mapping.items())
    return _block("{", (f"{key!r}: {text}" for key, text in shown), "}")


def flat_text(name: str, pairs: Iterable[tuple[Any, Any]]) -> str:
    """Format pairs as a string, one pair a line.

    Example:
        >>> print(flat_text("Pairs", [(("a",), 1)]))
        Pairs([
          (('a',), 1)
        ])
    """
    return _block(f"{name}([", (f"({path!r}, {leaf!r})" for path, leaf in pairs), "])")


def nested_view(kind: type, mapping: Mapping[Any, Any], path: str | None, subtree_renderer: Any) -> Any:
    """Return the view of nested dicts in `treescope`, which calls this."""
    return importlib.import_module("treescope.repr_lib").render_dictionary_wrapper(
        object_type=kind, wrapped_dict=dict(mapping), path=path, subtree_renderer=subtree_renderer
    )

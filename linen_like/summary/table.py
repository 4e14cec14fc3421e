"""Tables of text: drawn by `rich` if it is installed, otherwise plainly; and as HTML."""

from __future__ import annotations

import dataclasses
import html
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from liftcore.leaves import is_array_or_struct
from liftcore.meta import AxisMetadata

from ..lifecycle.fields import Base

__all__ = ["TOTAL", "Table", "as_html", "as_text", "lines_of", "with_rich"]

TOTAL = "Total"
"""The label of the sums in the footer."""

_WIDTH = 60
_STYLE = 'style="text-align: left; vertical-align: top; white-space: pre; font-family: monospace"'


class Table(NamedTuple):
    """Strings in rows and columns; each may have several lines.

    Attributes:
        title: the text above the table.
        header: a string for each column.
        rows: for each row, a string for each column.
        footer: a string for each column.
        caption: the text below the table.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    footer: list[str]
    caption: str


def lines_of(value: Any) -> Iterator[str]:
    """Yield a line for each leaf of a nested value: members of dicts after their keys, of tuples after a dash."""
    members = _members(value)
    if members is None:
        yield _leaf(value)
        return
    for label, member in members:
        below = list(lines_of(member))
        if label == "-":
            yield from (f"{'  ' if number else '- '}{line}" for number, line in enumerate(below))
        elif _members(member) is None:
            yield f"{label}: {below[0]}"
        else:
            yield f"{label}:"
            yield from (f"  {line}" for line in below)


def _members(value: Any) -> Sequence[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(str(key), member) for key, member in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [("-", member) for member in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Base | AxisMetadata):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _leaf(value: Any) -> str:
    if is_array_or_struct(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, AxisMetadata):
        names = getattr(value, "names", None)
        return f"{' '.join(map(_leaf, jax.tree.leaves(value)))} {type(value).__name__}{'' if names is None else names}"
    if isinstance(value, Base):
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


# --- drawing ----------------------------------------------------------------------------------------------------------


def with_rich(
    table: Table, console_kwargs: Mapping[str, Any], table_kwargs: Mapping[str, Any], column_kwargs: Mapping[str, Any]
) -> str:
    """Return a table as `rich` draws it; the options override the ones here."""
    drawing, text = importlib.import_module("rich.table"), importlib.import_module("rich.text").Text
    lines = {"show_header": True, "show_lines": True, "show_footer": True}
    drawn = drawing.Table(
        **{**lines, "title": table.title, "caption": f"\n{table.caption}", "caption_style": "bold", **table_kwargs}
    )
    for header, footer in zip(table.header, table.footer, strict=True):
        justify = "right" if footer == TOTAL else "left"
        drawn.add_column(text(header), footer=text(footer, justify=justify), **column_kwargs)
    for row in table.rows:
        drawn.add_row(*map(text, row))  # as `Text`, since brackets in a string would be markup
    file = io.StringIO()
    options = {"force_terminal": True, "force_jupyter": False, **console_kwargs, "file": file}
    importlib.import_module("rich.console").Console(**options).print(drawn)
    return f"\n{file.getvalue()}\n"


def as_text(table: Table) -> str:
    """Return a table as text without colors."""
    grid = [[cell.split("\n") for cell in row] for row in (table.header, *table.rows, table.footer)]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*grid, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [table.title.center(len(rule)).rstrip()]
    for number, row in enumerate(grid):
        lines += [rule] if number else []
        for height in range(max(map(len, row))):
            texts = [cell[height] if height < len(cell) else "" for cell in row]
            lines.append("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
    return "\n".join((*lines, "", table.caption))


def as_html(table: Table) -> str:
    """Return a table as HTML."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag} {_STYLE}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(row("td", cells) for cells in table.rows)
    head, foot = row("th", table.header), row("th", table.footer)
    return (
        f"<table><caption>{html.escape(table.title)}. {html.escape(table.caption)}</caption>"
        f"<thead>{head}</thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"
    )

"""Tables as strings: drawn with `rich` if it is installed, otherwise without styles."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..objects.printing import value_text

__all__ = ["TOTAL", "Table", "drawn", "lines_of"]

TOTAL = "Total"
"""The label of the sums in the footer."""


class Table(NamedTuple):
    """Strings in rows and columns; a string may have several lines.

    Attributes:
        title: the title above the table.
        header: one string for each column.
        rows: for each row, one string for each column.
        footer: one string for each column.
        caption: the caption below the table.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    footer: list[str]
    caption: str


def lines_of(value: Any) -> Iterator[str]:
    """Format a nested value, with one line for each leaf: dict items after their keys, other items after a dash.

    Example:
        >>> list(lines_of(({"a": 1}, 2)))
        ['- a: 1', '- 2']

    Args:
        value: any value; dicts, lists and tuples are nested.
    """
    if isinstance(value, Mapping):
        members = [(f"{name}: ", f"{name}:", one) for name, one in value.items()]
    elif isinstance(value, list | tuple):
        members = [("- ", "", one) for one in value]
    else:
        yield type(value).__name__ if hasattr(type(value), "_numbered") else value_text(value)
        return
    for label, above, member in members:
        below = list(lines_of(member))
        if above and isinstance(member, Mapping | list | tuple):
            yield above
            yield from (f"  {line}" for line in below)
        else:
            yield from (f"{label if not number else '  '}{line}" for number, line in enumerate(below))


def drawn(table: Table, console: Mapping[str, Any], options: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    """Format a table as a string.

    Args:
        table: the table.
        console: options for `rich.console.Console`.
        options: options for `rich.table.Table`.
        column: options for `rich.table.Table.add_column`.
    """
    if importlib.util.find_spec("rich") is None:
        return f"\n{_plain(table)}\n"
    text = importlib.import_module("rich.text").Text
    shown = {"show_header": True, "show_lines": True, "show_footer": True}
    titles = {"title": table.title, "caption": f"\n{table.caption}", "caption_style": "bold"}
    made = importlib.import_module("rich.table").Table(**{**shown, **titles, **options})
    for header, footer in zip(table.header, table.footer, strict=True):
        made.add_column(text(header), footer=text(footer, justify="right" if footer == TOTAL else "left"), **column)
    for row in table.rows:
        made.add_row(*map(text, row))  # as `Text`, since brackets in a string would be read as markup
    file = io.StringIO()
    importlib.import_module("rich.console").Console(**{"force_terminal": True, **console, "file": file}).print(made)
    return f"\n{file.getvalue()}\n"


def _plain(table: Table) -> str:
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

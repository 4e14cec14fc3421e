"""Tables of models: what calls cost, and texts in rows and columns. The styles say which rows there are.

A row is a call. Its texts come first, then for each collection the variables of the row and their size.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..meta import AxisMetadata
from ..pytrees import Size, has_type, split_leaves
from .operations import count_operations

__all__ = ["Table", "cost_text", "costs", "lines_of"]

_WIDTH = 60
_STYLE = 'style="text-align: left; vertical-align: top; white-space: pre; font-family: monospace"'
_TOTAL = "Total"

# --- costs ------------------------------------------------------------------------------------------------------------


def costs(fn: Callable[[Any], Any], types: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return what a call costs without the model around it: the number of operations by name, and `at_least`.

    Example:
        >>> costs(lambda xs: xs[0] @ xs[1], [jax.ShapeDtypeStruct((5, 5), "float32")] * 2, ("flops", "vjp_flops"))
        {'flops': 250, 'vjp_flops': 750, 'at_least': False}

    Args:
        fn: the call, as a function of a pytree of arrays.
        types: the types of these arrays.
        names: `"flops"` for the call, `"vjp_flops"` for its pullback, which includes the call.

    Returns:
        For each name the number of operations, 0 for the pullback if nothing can be differentiated, or None if the call
        needs its surroundings, such as the name of an axis; and whether a loop of unknown length counts as one
        iteration.
    """
    counts: dict[str, Any] = {}
    for name in names:
        try:
            counts[name] = count_operations(fn if name == "flops" else _pullback(fn))(types)
        except Exception:
            counts[name] = None
    found = {name: count and count.operations for name, count in counts.items()}
    return {**found, "at_least": any(count is not None and count.at_least for count in counts.values())}


def _pullback(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def pullback(arrays: Any) -> Any:
        numbers, others = split_leaves(arrays, _is_inexact)
        y, pull = jax.vjp(lambda numbers: split_leaves(fn(others.join(numbers)), _is_inexact)[0], numbers)
        return pull(y)

    return pullback


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def cost_text(number: int | None, at_least: bool) -> str:
    """Return a number of operations as a text of a row.

    Example:
        >>> cost_text(7, False), cost_text(7, True), cost_text(None, False)
        ('7', '7+', '?')

    Args:
        number: the number, None if it is unknown.
        at_least: whether a loop of unknown length counts as one iteration.
    """
    return "?" if number is None else f"{number}{'+' if at_least else ''}"


# --- values -----------------------------------------------------------------------------------------------------------


def lines_of(value: Any, kind: type | tuple[type, ...] = ()) -> Iterator[str]:
    """Yield a line for each leaf of a nested value: members of dicts after their keys, of tuples after a dash.

    Example:
        >>> list(lines_of(({"a": jnp.ones(3)}, jax.nn.relu)))
        ['- a: float32[3]', '- relu']

    Args:
        value: any value; dicts, lists, tuples and dataclasses are nested.
        kind: the class of the modules of a style, which are shown by the names of their own classes.
    """
    members = _members(value, kind)
    if members is None:
        yield type(value).__name__ if isinstance(value, kind) else _leaf(value)
        return
    for label, member in members:
        below = list(lines_of(member, kind))
        if label == "-":
            yield from (f"{'  ' if number else '- '}{line}" for number, line in enumerate(below))
        elif _members(member, kind) is None:
            yield f"{label}: {below[0]}"
        else:
            yield f"{label}:"
            yield from (f"  {line}" for line in below)


def _members(value: Any, kind: type | tuple[type, ...]) -> Sequence[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(str(key), member) for key, member in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [("-", member) for member in value]
    if isinstance(value, (type, AxisMetadata, kind)) or has_type(value) or not dataclasses.is_dataclass(value):
        return None
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def _leaf(value: Any) -> str:
    if isinstance(value, AxisMetadata):
        names = getattr(value, "names", None)
        return f"{' '.join(map(_leaf, jax.tree.leaves(value)))} {type(value).__name__}{'' if names is None else names}"
    if has_type(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    text = " ".join(repr(value).split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


# --- tables -----------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Texts in rows and columns; each may have several lines. `str` draws it plainly, a notebook as HTML.

    Attributes:
        title: the text above the table.
        header: a text for each column.
        rows: for each row, a text for each column.
        footer: a text for each column.
        caption: the text below the table.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    footer: list[str]
    caption: str

    @classmethod
    def of(
        cls,
        name: str,
        columns: Sequence[str],
        rows: Iterable[tuple[Sequence[str], Mapping[str, Iterable[str]], Mapping[str, Size]]],
        totals: Mapping[str, Size],
        parameters: Size,
        at_least: bool,
    ) -> Table:
        """Return the table of a model.

        Args:
            name: the name of the model.
            columns: the headers of the texts.
            rows: for each row its texts; the lines of its variables by collection; and the sizes by collection.
            totals: the size of each collection.
            parameters: the size to show below the table; that of all collections follows if it is another.
            at_least: whether the cost of a row has a `+`.
        """
        total, none = Size.sum(totals.values()), Size()
        owned = "" if total.count == parameters.count else f", all variables: {total}"
        loops = "\n+: a loop of unknown length counts as one iteration" if at_least else ""
        return cls(
            f"{name} Summary",
            [*columns, *totals],
            [
                [*texts, *(_owned(lines.get(each, ()), sizes.get(each, none)) for each in totals)]
                for texts, lines, sizes in rows
            ],
            [*[""] * (len(columns) - 1), _TOTAL, *map(str, totals.values())],
            f"Total Parameters: {str(parameters) or 0}{owned}{loops}",
        )

    def draw(
        self,
        console_kwargs: Mapping[str, Any],
        table_kwargs: Mapping[str, Any],
        column_kwargs: Mapping[str, Any],
    ) -> str:
        """Draw the table with `rich`, or plainly if it is not installed.

        Args:
            console_kwargs: options of `rich.console.Console`.
            table_kwargs: options of `rich.table.Table`.
            column_kwargs: options of `rich.table.Table.add_column`.
        """
        if importlib.util.find_spec("rich") is None:
            return f"\n{self}\n"
        text = importlib.import_module("rich.text").Text
        shown = {"show_header": True, "show_lines": True, "show_footer": True}
        titles = {"title": self.title, "caption": f"\n{self.caption}", "caption_style": "bold"}
        drawn = importlib.import_module("rich.table").Table(**{**shown, **titles, **table_kwargs})
        for header, footer in zip(self.header, self.footer, strict=True):
            justify = "right" if footer == _TOTAL else "left"
            drawn.add_column(text(header), footer=text(footer, justify=justify), **column_kwargs)
        for row in self.rows:
            drawn.add_row(*map(text, row))  # as `Text`, since brackets in a string would be markup
        file = io.StringIO()
        options = {"force_terminal": True, "force_jupyter": False, **console_kwargs, "file": file}
        importlib.import_module("rich.console").Console(**options).print(drawn)
        return f"\n{file.getvalue()}\n"

    def __str__(self) -> str:
        grid = [[cell.split("\n") for cell in row] for row in (self.header, *self.rows, self.footer)]
        widths = [max(len(line) for cell in column for line in cell) for column in zip(*grid, strict=True)]
        rule = "  ".join("-" * width for width in widths)
        lines = [self.title.center(len(rule)).rstrip()]
        for number, row in enumerate(grid):
            lines += [rule] if number else []
            for height in range(max(map(len, row))):
                texts = [cell[height] if height < len(cell) else "" for cell in row]
                lines.append("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
        return "\n".join((*lines, "", self.caption))

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag} {_STYLE}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        body = "".join(row("td", cells) for cells in self.rows)
        head, foot = row("th", self.header), row("th", self.footer)
        return (
            f"<table><caption>{html.escape(self.title)}. {html.escape(self.caption)}</caption>"
            f"<thead>{head}</thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"
        )


def _owned(lines: Iterable[str], size: Size) -> str:
    """Return the variables of a row in a collection, and their size."""
    return "\n\n".join(part for part in ("\n".join(lines), str(size)) if part)

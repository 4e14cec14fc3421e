"""The table: as text, as JSON, as Markdown for the docs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax

from .row import Row
from .settings import Settings
from .sides import PURE

__all__ = ["as_json", "lines", "markdown"]

_HEADS = ("", PURE, "core", "linen_like", "others", "target", "met")
_PACKAGES = {"haiku": "dm-haiku"}
_SCALES = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as lines of text, in columns."""
    cells = [_HEADS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def markdown(rows: Sequence[Row]) -> list[str]:
    """The table in Markdown."""
    cells = [_HEADS, ("---",) * len(_HEADS), *map(_cells, rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def as_json(rows: Sequence[Row], settings: Settings) -> str:
    """The table with all figures, and what it was measured with."""
    packages = {peer: metadata.version(_PACKAGES.get(peer, peer)) for peer in settings.peers}
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "jax": jax.__version__,
        **packages,
        "rounds": settings.rounds,
        "rows": [],
    }
    for row in rows:
        ratios = {side: row.ratio(side) for side in row.values if side != PURE}
        found["rows"].append({**vars(row), "ratios": ratios, "met": row.is_met()})
    return json.dumps(found, indent=1)


def _cells(row: Row) -> tuple[str, ...]:
    others = [side for side in row.values if side not in (PURE, "core", "linen_like")]
    met = row.is_met()
    return (
        row.what,
        _value(row, PURE),
        _value(row, "core"),
        _value(row, "linen_like"),
        ", ".join(f"{side} {_value(row, side)}" for side in others),
        " / ".join(f"{target:g}" for target in dict.fromkeys(row.targets.values())),
        "" if met is None else "yes" if met else "no",
    )


def _value(row: Row, side: str) -> str:
    """A value, or the ratio of it to that of pure JAX."""
    if side not in row.values:
        return ""
    ratio = row.ratio(side)
    if side != PURE and ratio is not None:
        return f"{ratio:.2f} x"
    value = row.values[side]
    if row.unit != "s":
        return f"{value:.0f}" if row.is_count else f"{value:.2f}"
    unit, scale = next((pair for pair in _SCALES if value * pair[1] >= 1), _SCALES[-1])
    return f"{value * scale:.3g} {unit}"

"""The table as a picture: the ratio of each side to pure JAX, and the targets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .row import Row
from .sides import OURS, PURE

__all__ = ["draw"]

_COLORS = {"core": "#1f6f8b", "linen_like": "#e07a3f"}
_OTHERS = ("#9aa5b1", "#c3b299", "#b5c7a3", "#c9a9c4")

_LEAST = 0.4
"""The ratio at which the picture begins; what takes less, such as a view in place of a copy, has no bar."""


def draw(rows: Sequence[Row], path: str) -> None:
    """Write a PNG.

    Args:
        rows: the table; what has no ratio to pure JAX is left out.
        path: the file.

    Raises:
        ValueError: where nothing is left.
    """
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.ratio(PURE) is not None][::-1]
    if not shown:
        raise ValueError("none of these items has a time to compare with that of pure JAX")
    measured = dict.fromkeys(side for row in shown for side in row.values if side != PURE)
    sides = sorted(measured, key=lambda side: side not in OURS)
    figure = Figure(figsize=(10, 1.5 + 0.42 * len(shown)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / max(1, len(sides))
    colors = itertools.cycle(_OTHERS)
    for number, side in enumerate(sides):
        places = [(place + 0.4 - (number + 0.5) * height, row) for place, row in enumerate(shown) if side in row.values]
        color = _COLORS.get(side) or next(colors)
        axes.barh([y for y, _ in places], [row.ratio(side) or 0 for _, row in places], height, label=side, color=color)
        targets = [(y, row.targets[side]) for y, row in places if side in row.targets]
        axes.plot([x for _, x in targets], [y for y, _ in targets], "|", color="black", markersize=9)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlim(left=_LEAST)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
    axes.set_yticks(range(len(shown)), [row.what for row in shown])
    axes.set_xlabel("time relative to pure JAX; a stroke marks a target")
    figure.legend(loc="outside upper center", ncols=len(sides))
    figure.savefig(path, dpi=120)

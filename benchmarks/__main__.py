"""`python -m benchmarks`: measures the library against pure JAX written by hand, and against peers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import table
from .items import ITEMS
from .picture import draw
from .row import Row
from .settings import Settings
from .sides import PEERS, installed


def main(arguments: list[str] | None = None) -> None:
    """Runs the items that were asked for, prints the table, and writes what else was asked for."""
    options = _options(arguments)
    settings = Settings(options.rounds, tuple(installed(options.peers)))
    rows: list[Row] = []
    for name in options.items or ITEMS:
        for row in ITEMS[name](settings):
            rows.append(row)
            print(f"{name}: {row.what}", file=sys.stderr)
    print("\n".join((table.markdown if options.markdown else table.lines)(rows)))
    if options.json:
        Path(options.json).write_text(table.as_json(rows), encoding="utf-8")
    if options.png:
        draw(rows, options.png)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("items", nargs="*", metavar="item", help=f"of {', '.join(ITEMS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=31, help="how many samples are taken of each side")
    parser.add_argument("--peers", nargs="*", default=PEERS, help=f"of {', '.join(PEERS)}, where installed")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", metavar="file", help="write all figures there")
    parser.add_argument("--png", metavar="file", help="draw the ratios there; needs matplotlib")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.items if name not in ITEMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (items: {', '.join(ITEMS)})")
    return options


if __name__ == "__main__":
    main()

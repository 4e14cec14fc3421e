"""`python -m benchmarks`: measures the library against pure JAX written by hand, and against peers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from . import table
from .items import ITEMS
from .picture import draw
from .row import Row
from .settings import Settings
from .sides import PEERS, installed


def main(arguments: list[str] | None = None) -> None:
    """Run the items that were asked for, prints the table, and write what else was asked for."""
    options = _options(arguments)
    sys.setrecursionlimit(4 * sys.getrecursionlimit())  # 32 nested transformations fill the usual one
    settings = Settings(options.rounds, tuple(installed(options.peers)))
    rows: list[Row] = []
    try:
        for name in options.items or ITEMS:
            for row in ITEMS[name](settings):
                rows.append(row)
                print(f"{name}: {row.what}", file=sys.stderr)
    finally:  # what was measured is told, whatever an item runs into
        print("\n".join((table.markdown if options.markdown else table.lines)(rows)))
    if options.json:
        Path(options.json).write_text(table.as_json(rows, settings), encoding="utf-8")
    if options.png:
        try:
            draw(rows, options.png)
        except ValueError as error:
            sys.exit(f"--png {options.png}: {error}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("items", nargs="*", metavar="item", help=f"of {', '.join(ITEMS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=31, help="how many samples are taken of each side, more or less")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, help="all by default, where installed")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", metavar="file", help="write all figures there")
    parser.add_argument("--png", metavar="file", help="draw the ratios of times there; needs matplotlib")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.items if name not in ITEMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (items: {', '.join(ITEMS)})")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    for file in filter(None, (options.json, options.png)):  # before hours are measured for nothing
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"{file}: there is no such folder")
    if options.png and not options.png.endswith(".png"):
        parser.error(f"--png {options.png}: expected that the name ends with .png")
    if options.png and importlib.util.find_spec("matplotlib") is None:
        parser.error(f"--png {options.png}: it is drawn with matplotlib, which is not installed")
    return options


if __name__ == "__main__":
    main()

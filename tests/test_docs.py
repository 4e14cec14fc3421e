"""The Python in the README and in the documents runs.

Each block of the README stands for itself, as a reader pastes it; the blocks of a document in `docs/` go on from one
another. A block that shows an error is marked `python no-run`. A block marked `python needs-equinox` runs if that
package is installed; later blocks without the mark do not use its names.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python *(?P<mark>\S*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    """Code with the place it comes from."""

    name: str
    code: str


def runs(mark: str) -> bool:
    """Return whether a block with this mark runs here."""
    package = mark.removeprefix("needs-")
    return mark != "no-run" and (package == mark or importlib.util.find_spec(package) is not None)


def blocks(path: Path) -> list[Snippet]:
    """The Python blocks of a file, padded with empty lines so that errors show the line in the file."""
    text = path.read_text()
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        if runs(match["mark"]):
            found.append(Snippet(f"{path.name}:{line + 1}", "\n" * line + match["code"]))
    return found


def snippets() -> Iterator[Snippet]:
    yield from blocks(ROOT / "README.md")
    for path in sorted((ROOT / "docs").glob("*.md")):
        lines: list[str] = []
        for block in blocks(path):
            padded = block.code.split("\n")
            lines = lines + padded[len(lines) :]
        if lines:
            yield Snippet(path.name, "\n".join(lines))


SNIPPETS = list(snippets())


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.name for snippet in SNIPPETS])
def test_the_code_in_a_document_runs(snippet: Snippet) -> None:
    name = snippet.name.partition(":")[0]
    exec(compile(snippet.code, name, "exec"), {"__name__": "__main__"})


def test_the_readme_has_code() -> None:
    assert blocks(ROOT / "README.md")

"""Writes the table of NNX's public names into `from-nnx.md`: `python docs/nnx_names.py`. It needs flax.

The script finds names that are the same in both packages. For the others, `nnx_like/elsewhere.py` says where they
are, or why they are left out and what to use instead. The script fails if a name is missing here, or if NNX has no
such name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from nnx_like.elsewhere import ELSEWHERE, LEFT_OUT

PAGE = Path(__file__).parent / "from-nnx.md"
BEGIN, END = "<!-- made by nnx_names.py: begin -->", "<!-- made by nnx_names.py: end -->"

THERE, HERE = "flax.nnx", "nnx_like"
NEWER = frozenset({"RoPE", "dot_product_attention_with_rope"})
"""Names of flax 0.12.9 to 0.12.12, so that the table is the same with the last flax for Python 3.11, 0.12.8."""


def public() -> list[str]:
    """The names of NNX without an underscore, and its files."""
    module = importlib.import_module(THERE)
    files = {info.name for info in pkgutil.iter_modules(module.__path__)}
    return sorted(name for name in {*dir(module), *files, *NEWER} if not name.startswith("_"))


def offered() -> set[str]:
    """The public names here."""
    return set(importlib.import_module(HERE).__all__)


def rows() -> Iterator[tuple[str, str, str]]:
    """Yields names, where they are or what to use instead, and why. Names with the same answer share a row."""
    names, here = public(), offered()
    said = {**ELSEWHERE, **LEFT_OUT}
    if missing := sorted(set(names) - here - said.keys()):
        raise SystemExit(f"say in nnx_like/elsewhere.py what to use for {missing}")
    if wrong := sorted(name for name in said if name not in names or name in here):
        raise SystemExit(f"docs/nnx_names.py: {THERE} has no {wrong}, or they are here")
    yield _listed(name for name in names if name in here), f"the same name in `{HERE}`", ""
    yield from ((f"`{name}`", text, "") for name, text in sorted(ELSEWHERE.items()))
    for (reason, instead), some in _by_text(LEFT_OUT).items():
        yield _listed(some), f"left out: {instead}", reason


def _by_text(said: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, text in sorted(said.items(), key=lambda item: item[0].lower()):
        found.setdefault(text, []).append(name)
    return found


def _listed(names: Iterator[str] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table() -> str:
    """The table."""
    lines = [f"| {names} | {text} | {reason} |" for names, text, reason in rows()]
    return "\n".join([BEGIN, "", "| name | here | reason |", "|---|---|---|", *lines, "", END])


def written() -> str:
    """The table that is on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(written(), table()), encoding="utf-8")

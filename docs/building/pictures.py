"""Puts drawings into the pages, so that they take the colors of the chosen theme: a hook of MkDocs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["inlined", "on_page_content"]

DOCS = Path(__file__).parents[1]
_IMAGE = re.compile(r'<img alt="[^"]*" src="(?:\.\./)?(?P<path>assets/[\w-]+\.svg)"\s*/?>')


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs with each page in HTML."""
    return inlined(html)


def inlined(html: str) -> str:
    """A page with the text of each SVG file of `assets/` in place of its image."""
    return _IMAGE.sub(_drawing, html)


def _drawing(match: re.Match[str]) -> str:
    text = (DOCS / match["path"]).read_text(encoding="utf-8")
    return f'<span class="drawing">{text.strip()}</span>'

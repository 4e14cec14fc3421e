"""Makes blocks of code that carry a mark for the tests plain blocks: a hook of MkDocs.

A mark after the language, such as `no-run` or `needs-equinox`, tells the tests when to run a block. A forge ignores it.
MkDocs would show the block, and everything up to the next one, as text.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["on_page_markdown", "without_marks"]

_MARKED = re.compile(r"^(?P<fence>```+python)[ \t]+\S+[ \t]*$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs with the text of each page."""
    return without_marks(markdown)


def without_marks(markdown: str) -> str:
    """Return a page whose Python blocks have no marks."""
    return _MARKED.sub(lambda match: match["fence"], markdown)

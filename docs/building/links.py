"""Makes links that work on a forge and in the site: a hook of MkDocs.

A page may link to a file of the repository, `[the test](../tests/core/test_pack.py)`. A forge opens it. The site holds
no such files, so the link leads to the repository where `url` of setup.cfg says where that is, and becomes plain
code otherwise. A code span that is the whole name of something public, or a call of it, such as `liftcore.vmap` or
`nn.Dense(8)`, leads to its entry in the API reference.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.building.api_pages import entries  # noqa: E402 - from the repository, wherever MkDocs was started

__all__ = ["link_names", "on_page_markdown", "outside_code", "repository_links"]

_LOG = logging.getLogger("mkdocs.hooks.links")
_FENCED = re.compile(r"^(?P<fence>```+)[^\n]*\n.*?^(?P=fence)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_OUTSIDE = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<path>\.\./[^)#\s]+)(?P<part>#[^)\s]*)?\)")
ALIASES = {"eqx": "equinox_like", "nn": "linen_like", "nnx": "nnx_like", "pax": "pax_like"}
"""Short names of packages, as the pages import them."""

ALIASES_OF_FLAX = ("from-flax.md", "from-nnx.md")
"""Pages where `nn` and `nnx` may be those of flax."""

_SPAN = re.compile(r"(?<![`\[])`(?P<name>[a-z_]+(?:\.\w+)+)(?P<call>\([^`\n]*\))?`(?![`\]])")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs with the text of each page."""
    base = config.repo_url and f"{config.repo_url.rstrip('/')}/blob/main/"
    text = outside_code(markdown, lambda text: repository_links(text, base, page.file.src_uri))
    if page.file.src_uri.startswith("api"):
        return text  # the entries there link by themselves
    aliases = {} if page.file.src_uri in ALIASES_OF_FLAX else ALIASES
    return outside_code(text, lambda text: link_names(text, aliases))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """A page with everything but its fenced blocks changed."""
    parts, end = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def repository_links(text: str, base: str | None, page: str) -> str:
    """A text whose links out of `docs/` lead to the repository, or are code.

    Args:
        text: Markdown without fenced blocks.
        base: what a path in the repository is appended to, or None.
        page: the path of the page in `docs/`.

    Returns:
        The text. A path that the repository lacks is logged as a warning, which a strict build takes for an error.
    """

    def replaced(match: re.Match[str]) -> str:
        target = (ROOT / "docs" / page).parent.joinpath(match["path"]).resolve()
        if target.is_relative_to(ROOT / "docs") and target.suffix == ".md":
            return match[0]  # a page, from one in a folder
        if not target.is_relative_to(ROOT) or not target.exists():
            _LOG.warning("%s: the link to %s leads nowhere", page, match["path"])
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        if base:
            return f"[{match['text']}]({base}{path}{match['part'] or ''})"
        bare = match["text"].strip("`")
        return f"`{path}`" if bare in (path, target.name) else f"{match['text']} (`{path}`)"

    return _OUTSIDE.sub(replaced, text)


def link_names(text: str, aliases: Mapping[str, str] = ALIASES) -> str:
    """Return a text whose code spans that are names in the API reference, or calls of them, are links.

    Args:
        text: Markdown without fenced blocks.
        aliases: packages by their short names.
    """
    names = entries()

    def replaced(match: re.Match[str]) -> str:
        package, _, rest = match["name"].partition(".")
        entry = names.get(f"{aliases.get(package, package)}.{rest}")
        return f"[{match[0]}][{entry}]" if entry else match[0]

    return _SPAN.sub(replaced, text)

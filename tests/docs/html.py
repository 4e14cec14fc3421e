"""What a built page holds: headings with anchors, links, and what a browser loads for it."""

from __future__ import annotations

import functools
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LOADED = {"href": ("link",), "src": ("audio", "embed", "iframe", "img", "input", "script", "source", "track", "video")}
LOADED |= {"srcset": ("img", "source"), "data": ("object",), "poster": ("video",)}
"""What a browser loads without a click: of these attributes, where they are of these elements."""


class Page(HTMLParser):
    """One page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.classes: set[str] = set()
        self.styles: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        self.styles.append(given.get("style", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loads += [given[name] for name, tags in LOADED.items() if tag in tags and name in given]


@functools.cache
def pages(site: Path) -> dict[str, Page]:
    """All pages of a site, by their paths in it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def target(page: Page, link: str) -> tuple[Path, str]:
    """The file and the anchor that a link within the site leads to."""
    file, _, part = link.partition("#")
    return (page.path.parent / unquote(file)).resolve() if file else page.path.resolve(), unquote(part)

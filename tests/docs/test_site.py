from __future__ import annotations

import re
from pathlib import Path

from docs.building.api_pages import entries
from tests.docs.html import pages, target

ABROAD = re.compile(r"(?:[a-z]+:)?//")
IN_SCRIPTS = re.compile(r"[\"'`](https?://[^\"'`\s]+\.(?:css|js|json|mjs|wasm|woff2?))[\"'`]")
ONLY_FOR = {"https://unpkg.com/mermaid@11/dist/mermaid.min.js": "mermaid"}
"""What the scripts of the theme load for pages with elements of a class."""


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    found = {name: [url for url in page.loads if ABROAD.match(url)] for name, page in pages(site).items()}
    assert {name: urls for name, urls in found.items() if urls} == {}
    assert len(found) > 50


def test_styles_load_nothing_from_elsewhere(site: Path) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    texts |= {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.svg")}
    texts |= {name: "\n".join(page.styles) for name, page in pages(site).items()}
    loaded = re.compile(r"(?:@import\s+(?:url\()?|url\()\s*[\"']?(?:https?:)?//[^\s\"')]+")
    assert {name: found for name, text in texts.items() if (found := loaded.findall(text))} == {}


def test_scripts_load_nothing_from_elsewhere(site: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.js")]
    addresses = {address for text in texts for address in IN_SCRIPTS.findall(text)}
    assert addresses <= set(ONLY_FOR)
    classes = set().union(*(page.classes for page in pages(site).values()))
    assert classes & {ONLY_FOR[address] for address in addresses} == set()


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    by_path = {page.path.resolve(): page for page in pages(site).values()}
    broken = []
    for name, page in pages(site).items():
        for link in page.links:
            if name == "404.html" or re.match(r"[a-z]+:", link):
                continue
            file, part = target(page, link)
            if not file.exists() or (part and part not in by_path[file].ids):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_every_block_of_code_is_shown_as_code(site: Path) -> None:
    broken = [name for name in pages(site) if "<p>```" in (site / name).read_text(encoding="utf-8")]
    assert broken == []


def test_every_public_name_has_an_entry(site: Path) -> None:
    ids = {anchor for name, page in pages(site).items() if name.startswith("api/") for anchor in page.ids}
    assert sorted(set(entries().values()) - ids) == []


def test_both_colour_schemes_can_be_chosen(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'data-md-color-scheme="(\w+)"', text)) == {"default", "slate"}

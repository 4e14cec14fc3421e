from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs.building.pictures import inlined
from docs.diagrams import ASSETS, PICTURES, STYLE, pictures

SVG = "{http://www.w3.org/2000/svg}"
PAGES = [*ASSETS.parent.glob("*.md"), ASSETS.parents[1] / "README.md"]
WIDTHS = {"d-code": 7.3, "d-head": 7.2, "d-small": 6.2, "d-text": 6.8}
"""Of one character, in pixels: a little more than that of usual fonts."""


def test_the_files_are_as_they_are_drawn() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in ASSETS.glob("*.svg") if path.stem != "favicon"}
    assert found == pictures(), "run `python docs/diagrams.py`"


@pytest.mark.parametrize("name", PICTURES)
def test_all_of_a_picture_is_inside_of_it(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]().svg())
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert root.findtext(f"{SVG}title")
    for text in root.iter(f"{SVG}text"):
        long = len(text.text or "") * WIDTHS[text.attrib["class"]]
        left = float(text.attrib["x"]) - (long / 2 if text.attrib["text-anchor"] == "middle" else 0)
        assert left >= 0, text.text
        assert left + long <= width, text.text
        assert 0 < float(text.attrib["y"]) < height, text.text
    for box in root.iter(f"{SVG}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height


@pytest.mark.parametrize("name", PICTURES)
def test_a_text_fits_in_its_box(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]().svg())
    boxes = [tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height")) for box in root.iter(f"{SVG}rect")]
    for text in root.iter(f"{SVG}text"):
        if text.attrib["text-anchor"] == "middle":
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            around = [w for left, top, w, h in boxes if abs(left + w / 2 - x) < 1 and top < y < top + h]
            long = len(text.text or "") * WIDTHS[text.attrib["class"]]
            assert not around or long <= min(around), text.text


def themes(style: str) -> list[dict[str, str]]:
    """The colors of the light and of the dark theme, by name."""
    blocks = re.findall(r"\{([^{}]*)\}", style)
    return [found for block in blocks if (found := dict(re.findall(r"--(\w+): #(\w{6})", block)))]


def luminance(color: str) -> float:
    """The relative luminance of a color, as WCAG 2 defines it."""
    parts = [int(color[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_site_has_the_colors_of_the_files() -> None:
    assert themes((ASSETS / "site.css").read_text(encoding="utf-8")) == themes(STYLE)


@pytest.mark.parametrize("theme", themes(STYLE), ids=["light", "dark"])
def test_texts_stand_out_from_the_boxes(theme: dict[str, str]) -> None:
    for text in ("ink", "soft"):
        for box in theme.keys() - {"ink", "soft", "line"}:
            dark, light = sorted((luminance(theme[text]), luminance(theme[box])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, box)


def test_every_picture_is_shown() -> None:
    shown = {name for page in PAGES for name in re.findall(r"assets/([\w-]+\.svg)", page.read_text(encoding="utf-8"))}
    assert set(PICTURES) <= shown
    assert all((ASSETS / name).is_file() for name in shown)


def test_a_picture_becomes_part_of_the_page() -> None:
    html = inlined('<p><img alt="x" src="assets/lift-key.svg" /></p><p><img alt="y" src="other.png" /></p>')
    assert html.startswith('<p><span class="drawing"><svg ')
    assert html.endswith('</svg></span></p><p><img alt="y" src="other.png" /></p>')

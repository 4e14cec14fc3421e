from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import linen_like
import nnx_like
from docs.building.api_pages import api_pages
from docs.building.layer_pages import GROUPS, computes, definition, shown_in_full, table
from tests.docs.conftest import ROOT

NO_LAYERS = {"linen_like.Module", "nnx_like.Module"}


def layers() -> set[str]:
    """Every public layer of the packages, by its path."""
    found = set()
    for package in (linen_like, nnx_like):
        public: dict[str, Any] = {name: getattr(package, name) for name in package.__all__}
        classes = {name: one for name, one in public.items() if inspect.isclass(one)}
        found |= {f"{package.__name__}.{name}" for name, one in classes.items() if issubclass(one, package.Module)}
    return found - NO_LAYERS


def test_every_layer_is_on_a_page() -> None:
    listed = {path for group in GROUPS.values() for paths in group.paths().values() for path in paths}
    assert layers() <= listed


def test_every_layer_has_one_entry() -> None:
    lines = [line for text in api_pages().values() for line in text.splitlines()]
    assert {path: lines.count(f"::: {path}") for path in shown_in_full()} == dict.fromkeys(shown_in_full(), 1)


def test_the_table_lists_the_layers_of_the_pages() -> None:
    assert table() in (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")


def test_a_layer_repeats_the_definition_of_its_function() -> None:
    assert computes(linen_like.Dense) == "dense"
    assert str(definition(linen_like.Dense)).startswith("Shapes: `(..., in)` to `(..., features)`.")
    assert "Source: Ba, Kiros & Hinton" in str(definition(linen_like.LayerNorm))
    assert computes(linen_like.Sequential) is None
    assert definition(linen_like.Sequential) is None


@pytest.mark.parametrize("kind", GROUPS)
def test_every_layer_is_explained_in_the_site(site: Path, kind: str) -> None:
    text = (site / "api" / "layers" / f"{kind.replace(' ', '-')}.html").read_text(encoding="utf-8")
    paths = [path for paths in GROUPS[kind].paths().values() for path in paths if path in shown_in_full()]
    assert [path for path in paths if f'id="{path}"' not in text] == []
    overview = (site / "layers.html").read_text(encoding="utf-8")
    assert [path for path in paths if f"html#{path}" not in overview] == []

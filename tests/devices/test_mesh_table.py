"""The table of layers on meshes has a row for each layer that is tried, and says what its tests assert."""

from __future__ import annotations

from pathlib import Path

from docs.mesh_table import rows

PAGE = Path(__file__).parents[2] / "docs" / "meshes.md"


def test_the_table_is_that_of_the_cases() -> None:
    assert rows({}) in PAGE.read_text(encoding="utf-8"), "write what `python -m docs.mesh_table` prints into the page"

"""The table of layers on meshes is that of its data, and the data has each layer on each version that was tried."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from docs.mesh_table import PAGE, WORKS, by_version, cell, page_with
from tests.devices.mesh_cases import cases

ROOT = Path(__file__).parents[2]
HOW = "run `python -m docs.mesh_table --write` on each version of JAX in docs/mesh_table.json"


def test_the_table_on_the_page_is_that_of_the_data() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(by_version(), text) == text, HOW


@pytest.mark.parametrize("version", by_version())
def test_the_data_has_each_case(version: str) -> None:
    found = by_version()[version]
    assert {(name, kind) for name, kinds in found.items() for kind in kinds} == {*cases()}, HOW


def test_the_oldest_jax_that_is_admitted_was_tried() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    required = setup["options"]["install_requires"].split()
    oldest = next(line.removeprefix("jax>=") for line in required if line.startswith("jax>="))
    assert next(iter(by_version())).startswith(oldest)


def test_what_fails_says_which_layer_and_what_to_write() -> None:
    errors = [text for found in by_version().values() for kinds in found.values() for text in kinds.values()]
    for text in {*errors} - {WORKS}:
        assert text.startswith("LiftArgumentError: ")
        assert "out_sharding=" in text or "auto_axes" in text


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [
        ({"0.8.0": WORKS, "0.10.2": WORKS}, "works"),
        ({"0.8.0": "ValueError: x", "0.10.2": "ValueError: y", "0.12.0": WORKS}, "from 0.12.0"),
        ({"0.8.0": WORKS, "0.10.2": "ValueError: x", "0.12.0": WORKS}, "not on 0.10.2"),
        ({"0.8.0": "ValueError: x", "0.10.2": WORKS, "0.12.0": "ValueError: x"}, "not on 0.8.0, 0.12.0"),
        ({"0.8.0": "ValueError: x"}, "fails"),
        ({}, ""),
    ],
)
def test_a_cell_says_on_which_versions_a_layer_works(outcomes: dict[str, str], shown: str) -> None:
    assert cell(outcomes) == shown

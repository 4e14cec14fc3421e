from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.building import address
from docs.building.api_pages import api_pages, entries
from docs.building.blocks import without_marks
from docs.building.links import link_names, outside_code, repository_links


@pytest.mark.parametrize(
    ("link", "base", "expected"),
    [
        ("[`tests/test_docs.py`](../tests/test_docs.py)", None, "`tests/test_docs.py`"),
        ("[test_docs.py](../tests/test_docs.py#L3)", None, "`tests/test_docs.py`"),
        ("[a test](../tests/test_docs.py)", None, "a test (`tests/test_docs.py`)"),
        ("[a test](../tests/test_docs.py#L3)", "https://forge/", "[a test](https://forge/tests/test_docs.py#L3)"),
        ("[a page](concepts.md#scope)", None, "[a page](concepts.md#scope)"),
    ],
)
def test_links_to_files_of_the_repository(link: str, base: str | None, expected: str) -> None:
    assert repository_links(f"See {link}.", base, "pack.md") == f"See {expected}."


@pytest.mark.parametrize(
    ("setup", "url", "name"),
    [
        ("[metadata]\nname = x\n", None, None),
        ("[metadata]\nurl =\n", None, None),
        ("[metadata]\nurl = https://forge.org/group/x/\n", "https://forge.org/group/x", "group/x"),
    ],
)
def test_the_site_takes_the_address_of_the_repository_from_the_package(
    setup: str, url: str | None, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.cfg").write_text(setup)
    monkeypatch.setattr(address, "SETUP", tmp_path / "setup.cfg")
    config = address.on_config(SimpleNamespace(repo_url=None, repo_name=None))
    assert (config.repo_url, config.repo_name) == (url, name)


def test_a_link_to_no_file_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert repository_links("[x](../tests/nothing.py)", None, "pack.md") == "[x](../tests/nothing.py)"
    assert "pack.md: the link to ../tests/nothing.py leads nowhere" in caplog.text


def test_names_in_the_reference_become_links() -> None:
    text = "Use `liftcore.vmap`, [`liftcore.scan`](lifting.md), `liftcore.nothing` or `linen_like.In`."
    assert link_names(text) == (
        "Use [`liftcore.vmap`][liftcore.vmap], [`liftcore.scan`](lifting.md), `liftcore.nothing` or "
        "[`linen_like.In`][liftcore.In]."
    )


def test_names_with_the_alias_of_a_package_become_links() -> None:
    text = "`eqx.adopt`, `nn.Dense([8])`, `nnx.Linear`, `pax.adopt(x)(y)`, `nn.No`, `jax.nn.relu(x)`, `nn.relu(x).T`"
    assert link_names(text) == (
        "[`eqx.adopt`][equinox_like.adopt], [`nn.Dense([8])`][linen_like.Dense], [`nnx.Linear`][nnx_like.Linear], "
        "[`pax.adopt(x)(y)`][pax_like.adopt], `nn.No`, `jax.nn.relu(x)`, `nn.relu(x).T`"
    )
    assert link_names(text, {}) == text


def test_fenced_blocks_stay_as_they_are() -> None:
    text = "a\n```python\na\n```\na\n````md\n```\na\n```\n````\n"
    assert outside_code(text, str.upper) == "A\n```python\na\n```\nA\n````md\n```\na\n```\n````\n"


def test_marks_of_blocks_are_for_the_tests_only() -> None:
    assert without_marks("```python no-run\na\n```\n```python\nb\n```\n```text c\n") == (
        "```python\na\n```\n```python\nb\n```\n```text c\n"
    )


def test_every_page_of_the_reference_has_its_names_once() -> None:
    texts = api_pages().values()
    full = [line.removeprefix("::: ") for text in texts for line in text.splitlines() if line.startswith("::: ")]
    assert len(full) == len(set(full)) > 400
    assert {"liftcore.vmap", "linen_like.Dense", "nnx_like.Module"} <= set(full)
    assert entries()["linen_like.broadcast"] == "linen_like.broadcast"  # a line by hand
    assert entries()["nnx_like.statelib.State"] == "nnx_like.State"
    assert entries()["liftcore.nn"] == "liftcore.nn"

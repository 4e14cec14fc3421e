"""Files that others than Python read: the forms for issues, the workflow, the citation, the manifest, the site."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.building.address import address

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_form_has_what_an_issue_form_must_have(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for element in form["body"]:
        assert element["type"] in ("checkboxes", "dropdown", "input", "markdown", "textarea")
        assert element["attributes"].get("label") or element["attributes"].get("value")


def test_there_are_forms() -> None:
    assert {path.stem for path in TEMPLATES} >= {"bug", "docs", "feature"}


def test_the_workflow_runs_what_every_change_must_pass() -> None:
    steps = [step for job in read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values() for step in job["steps"]]
    assert any(".ci/run" in step.get("run", "") for step in steps)


def test_the_workflow_of_releases_waits_for_that_of_changes() -> None:
    changes, release = (read(ROOT / ".github" / "workflows" / name) for name in ("ci.yml", "release.yml"))
    assert release[True]["workflow_run"]["workflows"] == [changes["name"]]  # to YAML, `on` is a bool


def package() -> Any:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["metadata"]


def test_the_changelog_has_a_section_for_the_version() -> None:
    version = package()["version"].removesuffix(".dev0")
    assert re.search(rf"^## \[{version}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_citation_and_the_package_agree() -> None:
    citation, metadata = read(ROOT / "CITATION.cff"), package()
    assert citation["cff-version"] == "1.2.0"
    assert metadata["version"].removesuffix(".dev0") == str(citation["version"])
    assert [citation["title"], citation["license"]] == [metadata["name"], metadata["license"]]


def test_the_address_of_the_repository_is_one_setting() -> None:
    known = address((ROOT / "setup.cfg").read_text(encoding="utf-8"))
    tried = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Try it")[2]
    assert f"`git clone {known or '<address>'}`" in tried
    assert read(ROOT / "CITATION.cff").get("repository-code") == known
    assert "repo_url" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_source_distribution_carries_the_files_that_tests_read() -> None:
    carried = set((ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()) | {"README.md"}  # setuptools adds it
    files = {path.name for path in ROOT.iterdir() if path.suffix in (".cff", ".md", ".yml")}
    assert files | {".github"} <= carried


def test_a_page_has_its_title_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    titles = {page: f"# {title}" for title, page in re.findall(r"^ +- (.+): ([\w-]+\.md)$", config, re.MULTILINE)}
    titles.pop("index.md")  # "Home" is the name of the library there
    texts = {page: (ROOT / "docs" / page).read_text(encoding="utf-8") for page in titles}
    assert {page: text.partition("\n")[0].replace("`", "") for page, text in texts.items()} == titles


def test_code_on_a_page_fits_its_column() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    blocks = {
        name: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for name, text in pages.items()
    }
    lines = [(name, line) for name, found in blocks.items() for block in found for line in block.splitlines()]
    assert [(name, line) for name, line in lines if len(line) > 120] == []

from __future__ import annotations

import re
from typing import Any

import pytest

from docs import reference
from docs.building.api_pages import MEMBERS, api_pages
from docs.building.layer_pages import shown_in_full
from tests.docs.conftest import ROOT

NOTHING = re.compile("")
ELSEWHERE = re.compile(r"(likewise|see (above|below|the |`)|as (in|for) |counts in place).*|")
"""What explains nothing, or sends the reader elsewhere, which no layer may."""


@pytest.fixture(scope="module")
def packages() -> Any:
    griffe = pytest.importorskip("griffe", reason="what builds the site is not installed: pip install -e '.[docs]'")
    from docs.building.docstrings import Docstrings

    loader = griffe.GriffeLoader(
        search_paths=[ROOT],
        extensions=griffe.Extensions(Docstrings()),
        docstring_parser=griffe.Parser.google,
    )
    for package in reference.PACKAGES:
        loader.load(package)
    loader.resolve_aliases(implicit=True)
    return loader.modules_collection


def shown() -> dict[str, list[str] | None]:
    """What the reference shows in full, with the members that it shows; None is all that are public."""
    found: dict[str, list[str] | None] = {}
    for text in api_pages().values():
        for directive in text.split("::: ")[1:]:
            members = re.findall(r"^        - (\w+)$", directive, re.MULTILINE)
            found[directive.split()[0]] = members or None
    return found


def missing(one: Any, elsewhere: re.Pattern[str]) -> list[str]:
    """The arguments that a signature shows, and nothing explains, or only words that match a pattern."""
    texts = {
        item.name.lstrip("*"): item.description.strip()
        for section in one.docstring.parsed
        if section.kind.value == "parameters"
        for item in section.value
    }
    names = [each.name.lstrip("*") for each in one.parameters if each.name not in ("self", "cls")]
    if one.is_class or one.name in ("__call__", "tabulate"):  # what is passed on is explained where it is taken
        names = [name for name in names if name not in ("args", "kwargs")]
    return [name for name in names if not name.startswith("_") and elsewhere.fullmatch(texts.get(name, ""))]


def test_every_argument_is_explained(packages: Any) -> None:
    found = {}
    for path, members in shown().items():
        one = packages[path].final_target if packages[path].is_alias else packages[path]
        names = [name for name in one.members if not name.startswith("_") and "__" not in name]
        names = names if members is None else members
        words = ELSEWHERE if path in shown_in_full() else NOTHING
        made_by_users = one.is_class and path not in MEMBERS
        below = [one.all_members[name] for name in names if name in one.all_members] if one.is_class else []
        for each in [*([one] if made_by_users or one.is_function else []), *below]:
            if (each.is_function or each.is_class) and each.docstring and (lacking := missing(each, words)):
                found[each.path] = lacking
    assert found == {}, found


def test_fields_of_a_dataclass_have_types_and_defaults(packages: Any) -> None:
    dense = packages["linen_like.Dense"].final_target
    items = {
        item.name: item
        for section in dense.docstring.parsed
        if section.kind.value == "parameters"
        for item in section.value
    }
    assert next(iter(items)) == "features"
    assert str(items["use_bias"].annotation) == "bool"
    assert items["use_bias"].value == "True"
    assert items["name"].description.startswith("its name in the parent")  # explained by the base class

from __future__ import annotations

from pathlib import Path

import pytest

import liftcore
from tests.mutants.table import MUTANTS

CORE = Path(liftcore.__file__).parent


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_what_is_broken_stands_there_once(number: int) -> None:
    mutant = MUTANTS[number]
    assert (CORE / mutant.path).read_text().count(mutant.before) == 1
    assert all((CORE.parent / "tests" / name).exists() for name in mutant.tests)


def test_each_file_of_the_pipeline_is_broken_somewhere() -> None:
    pipeline = [
        "packing",
        "committing",
        "equations",
        "split",
        "pure",
        "hoist",
        "groups",
        "layout",
        "sequences",
        "scope",
        "tree",
        "naming",
        "rng",
        "variable",
    ]
    files = {f"{name}.py" for name in pipeline} | {f"bodies/{one.name}" for one in CORE.glob("bodies/[a-z]*.py")}
    assert files <= {mutant.path for mutant in MUTANTS}

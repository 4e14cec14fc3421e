from __future__ import annotations

from pathlib import Path

import pytest

import liftcore
from tests.mutants.objects import OF_OBJECTS
from tests.mutants.table import MUTANTS

pytestmark = pytest.mark.always  # the code that it names moves in any change
CORE, ALL = Path(liftcore.__file__).parent, (*MUTANTS, *OF_OBJECTS)


@pytest.mark.parametrize("number", range(len(ALL)))
def test_what_is_broken_stands_there_once(number: int) -> None:
    mutant = ALL[number]
    assert (CORE.parent / mutant.package / mutant.path).read_text().count(mutant.before) == 1
    assert all((CORE.parent / "tests" / name).exists() for name in mutant.tests)


def test_each_file_of_the_pipeline_is_broken_somewhere() -> None:
    rooms = ("pipeline", "runners", "scopes")
    files = {f"{room}/{one.name}" for room in rooms for one in CORE.glob(f"{room}/[a-z]*.py")} | {"rng.py"}
    files -= {"scopes/problems.py"}  # texts of errors, which have tests of their own
    assert files <= {mutant.path for mutant in MUTANTS}

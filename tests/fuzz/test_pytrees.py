"""Some random programs of pytree modules; `python -m tests.fuzz --pytrees` runs others."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import pytrees
from tests.fuzz.pytrees import program, run


@pytest.mark.parametrize("seed", range(4))
def test_some_programs(seed: int) -> None:
    assert run(seed) is None


def test_programs_have_every_kind_of_part() -> None:
    units = [program(random.Random(seed)) for seed in range(100)]
    assert {name for unit in units for name in unit.around} == {*pytrees.TRANSFORMATIONS}
    assert str(program(random.Random(5))) == str(program(random.Random(5)))


def test_a_wrong_result_and_a_trace_too_many_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {name: lambda fn, unit, x: fn(unit, x + 1) for name in pytrees.TRANSFORMATIONS}
    monkeypatch.setattr(pytrees, "TRANSFORMATIONS", wrong)
    assert any(run(seed) is not None for seed in range(3))

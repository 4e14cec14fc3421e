"""The advice of each error works: a program that raises runs after the edit that the error's fix asks for."""

from __future__ import annotations

import pytest

from liftcore.errors import LiftError
from tests.advice.rows import Row, rows

ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_program_runs_after_the_edit_that_the_error_asks_for(row: Row) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any class; its text is compared
        row.run(row.wrong)
    error = caught.value
    text = error.fix if isinstance(error, LiftError) else "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert row.fix in text
    assert row.fix == text or not isinstance(error, LiftError)
    assert row.is_followed()
    names = row.run(row.right)
    assert row.expected
    for expression in row.expected:
        assert eval(expression, names), expression

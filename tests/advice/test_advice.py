"""The advice of each error works: a program that raises runs after the edit that the error's fix asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftcore.errors import LiftError
from tests.advice.rows import Row, fixes, rows

ROOT = Path(__file__).parents[2]
ROWS = rows()

MOST = 410
"""How many fixes may have no row. A new error needs a row; lower this number with rows for old ones."""


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_program_runs_after_the_edit_that_the_error_asks_for(row: Row) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any class; its text is compared
        row.run(row.wrong)
    error = caught.value
    text = error.fix if isinstance(error, LiftError) else "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert row.fix
    assert row.fix in text
    assert row.fix == text or not isinstance(error, LiftError)
    assert row.is_followed()
    names = row.run(row.right)
    assert row.expected
    for expression in row.expected:
        assert eval(expression, names), expression


def test_new_fixes_have_rows() -> None:
    told = [row.fix for row in ROWS]
    missing = {
        f"{path.relative_to(ROOT)}:{line}"
        for style in ("liftcore", "linen_like", "nnx_like", "equinox_like", "pax_like")
        for path in (ROOT / style).rglob("*.py")
        for line, fix in fixes(path.read_text())
        if not any(re.fullmatch(fix, text, re.DOTALL) for text in told)
    }
    assert len(missing) <= MOST, f"{len(missing)} fixes have no row in tests/advice: {sorted(missing)}"

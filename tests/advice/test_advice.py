"""The advice of each error works: a program that raises runs after the edit that the error's fix asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftcore.errors import LiftError
from tests.advice.facts import check_facts, record_makers
from tests.advice.rows import Row, fixes, rows

ROOT = Path(__file__).parents[2]
ROWS = rows()
STYLES = ("linen_like", "nnx_like", "equinox_like", "pax_like")

WITHOUT_ROW = {
    "Pass a target with shardings, unless the folder is damaged.": "needs an array that does not fit into memory",
    "Call it once for these types before you start threads, or donate nothing.": "needs two threads at one moment",
    "Bind one for each thread, `liftcore.bind(variables, …)`, or call `liftcore.apply(fn)(variables, …)` in each.": (
        "needs two threads at one moment"
    ),
    'Adopt the module and the state separately, the state in a scope of its own with `collection="batch_stats"`. To '
    'keep the new state of a call, write `Blueprint.of(state, "batch_stats").write(scope, state)`.': "needs Equinox",
    "Pass both: `from_equinox((model, state))`.": "needs Equinox",
    "Give one of them another name.": "needs Haiku",
    "Make it in the function that you pass to `from_nnx`.": "needs flax",
    "Open the boxes, `flax.linen.unbox(variables)`; or, to get those of a Linen-style model, write "
    "`from_flax(model, variables, x)`, from `linen_like.convert`.": "needs flax",
    "Modules of flax go inside, not outside: first move … to `linen_like`, and call its old layers by "
    '`foreign.from_linen(layer)(self.scope.push("layer"), x)`.': "needs flax",
    "Call `from_nnx(model)` again. For a function of each mode, pass copies: `from_nnx(nnx.clone(model))`.": (
        "needs flax"
    ),
    "Install cloudpickle, `pip install cloudpickle`, or save only the arrays; see docs/checkpoints.md.": (
        "needs an environment without cloudpickle"
    ),
    "Say how the result is sharded: `out_sharding=P(…)`.": "needs several devices",
    "Add a filter for it to the output filters of the lift.": "a guard: such writes are refused before",
    "Return a copy, `nnx.clone`, or treat it the same way as an input and as an output.": "a guard, as the above",
}
"""The fixes that have no row, each with the reason. A new error needs a row."""


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_program_runs_after_the_edit_that_the_error_asks_for(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    makers = record_makers(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any class; its text is compared
        row.run(row.wrong)
    error = caught.value
    if isinstance(error, LiftError) and makers[id(error)] in STYLES:
        check_facts(error)
    whole = isinstance(error, LiftError)
    texts = [error.fix if isinstance(error, LiftError) else str(error), *getattr(error, "__notes__", [])]
    assert row.fix
    assert any(row.says(text, whole) for text in texts)
    assert row.is_followed()
    names = row.run(row.right)
    assert row.expected
    for expression in row.expected:
        assert eval(expression, names), expression


@pytest.mark.always
def test_each_fix_has_a_row_or_a_reason_for_having_none() -> None:
    known = {*WITHOUT_ROW, *(row.fix for row in ROWS)}
    found = set(fixes(path.read_text() for name in ("liftcore", *STYLES) for path in (ROOT / name).rglob("*.py")))
    patterns = {fix: re.compile(fix, re.DOTALL) for fix in found - set(map(re.escape, known))}
    missing = [fix for fix, pattern in patterns.items() if not any(map(pattern.fullmatch, known))]
    assert not missing, "write rows for these fixes"
    gone = [fix for fix in WITHOUT_ROW if not any(re.fullmatch(one, fix, re.DOTALL) for one in found)]
    assert not gone, "an error that needs no row has gone"
    assert not any(row.fix in WITHOUT_ROW for row in ROWS)

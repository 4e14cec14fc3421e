"""Models of mixed styles: every style in every other, under a lift of the outer one; and some random models."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from tests.fuzz import styles
from tests.fuzz.styles import LIFTS, STYLES, Unit, attempt, wrong


def pair(outer: str, inner: str, lift: str) -> Unit:
    keeps, draws = "pytree" not in (outer, inner), {outer, inner} <= {"scope", "linen"}
    return Unit(outer, 0.5, lift, outer != "pytree", draws, Unit(inner, -0.3, has_state=keeps, draws=draws))


@pytest.mark.parametrize(("outer", "lift"), [(outer, lift) for outer in STYLES for lift in LIFTS[outer]])
@pytest.mark.parametrize("inner", STYLES)
def test_a_style_in_another_under_a_lift(inner: str, outer: str, lift: str) -> None:
    assert wrong(pair(outer, inner, lift)) == ""


@pytest.mark.parametrize("seed", range(100, 104))
def test_some_models(seed: int) -> None:
    assert attempt(seed, frozenset(), False) == ("", "")


@pytest.mark.parametrize("style", ["scope", "linen", "object", "kinds"])
def test_a_wrong_lift_is_found_and_its_model_made_small(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = dataclasses.replace(pair(style, style, "own"), draws=False)
    monkeypatch.setattr(styles, "program", lambda *args: unit)
    monkeypatch.setitem(LIFTS[style], "own", LIFTS[style]["none"])
    found, source = attempt(0, frozenset(), True)
    assert "expected" in found
    assert source.count("has_state=True") == 0


@pytest.mark.parametrize("style", ["scope", "object", "kinds"])
def test_a_wrong_state_after_init_is_found(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = styles.begun
    monkeypatch.setattr(styles, "begun", lambda *args: jax.tree.map(lambda leaf: leaf + 1, began(*args)))
    assert wrong(pair("linen", style, "none")).startswith("init")

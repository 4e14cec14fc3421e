"""Checks that the facts of an error agree with its text."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from liftcore.errors import LiftError, shown

NAMES = ("variable", "collection", "stream", "option")
VALUES = ("given", "expected")


def record_makers(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Return a dict that records which package makes an error, by the identity of the error."""
    makers: dict[int, str] = {}
    init = LiftError.__init__

    def recording(self: LiftError, *args: Any, **facts: Any) -> None:
        makers[id(self)] = sys._getframe(1).f_globals["__name__"].partition(".")[0]
        init(self, *args, **facts)

    monkeypatch.setattr(LiftError, "__init__", recording)
    return makers


def check_facts(error: LiftError) -> None:
    """Check that each fact stands in the text, and that what a text lists, gives and expects are facts."""
    text = str(error)
    for name in NAMES:
        assert getattr(error, name) is None or getattr(error, name) in text, name
    for name in VALUES:
        value = getattr(error, name)
        assert value is None or any(form in text for form in (str(value), repr(value), shown(value))), name
    available = error.available
    assert available is None or " more" in text or all(name in text for name in available)
    assert "(available" not in text or available is not None, "the text lists what is available"
    if re.match(r"expected .* given ", error.what):
        assert error.expected is not None, "the text says what was expected"
        assert error.given is not None or "given None" in error.what, "the text says what was given"

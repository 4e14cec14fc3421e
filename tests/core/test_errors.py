"""Errors: where, what, fix; one class for each, beside the builtin that it refines."""

from __future__ import annotations

import inspect

import pytest

from liftcore import errors
from liftcore.errors import LiftError

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, LiftError)]


def test_an_error_says_where_what_and_fix() -> None:
    error = LiftError("scan(block) at /decoder", "the carry changed.", "Cast it.")
    assert str(error) == "scan(block) at /decoder: the carry changed. Cast it."
    assert (error.where, error.what, error.fix) == ("scan(block) at /decoder", "the carry changed.", "Cast it.")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_documented_and_refines_a_builtin(kind: type[LiftError]) -> None:
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "") or kind is LiftError
    builtin = (ValueError, TypeError, LookupError, RuntimeError, AssertionError)
    assert kind is LiftError or issubclass(kind, builtin)


def test_the_tree_in_the_docstring_names_no_other_class() -> None:
    words = {word.strip(",:") for word in (errors.__doc__ or "").split()}
    named = {word for word in words if word.endswith(("Error", "NotFound"))}
    assert named == {kind.__name__ for kind in CLASSES}

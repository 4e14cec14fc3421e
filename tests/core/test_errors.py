"""Errors: where, what, fix; one class for each, beside the builtin that it refines."""

from __future__ import annotations

import copy
import inspect
import pickle

import jax.numpy as jnp
import pytest

import liftcore
from liftcore import errors
from liftcore.errors import LiftError, Words

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, LiftError)]


def test_an_error_says_where_what_and_fix() -> None:
    error = LiftError("scan(block) at /decoder", "the carry changed.", "Cast it.")
    assert str(error) == "scan(block) at /decoder: the carry changed. Cast it."
    assert (error.where, error.what, error.fix) == ("scan(block) at /decoder", "the carry changed.", "Cast it.")


def test_an_error_has_its_facts_and_copies_keep_them() -> None:
    def layer(scope: liftcore.Scope) -> None:
        scope.child(lambda scope: scope.param("w", lambda key: jnp.ones(3)), "below")()

    with pytest.raises(errors.ScopeParamShapeError) as caught:
        liftcore.apply(layer)({"params": {"below": {"w": jnp.ones(2)}}})
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (error.variable, error.collection) == ("params/below/w", "params")
        assert (error.given, error.expected) == ((2,), (3,))
        assert (error.stream, error.option, error.available) == (None, None, None)


def test_styles_replace_words_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_blocks(words: Words) -> Words:
        return words._replace(scope="block", path=lambda path: path.replace("/", "."))

    monkeypatch.setattr(errors, "_styles", [of_blocks, lambda words: words._replace(first=f"{words.scope}, ")])
    words = errors.words()
    assert (words.scope, words.first, words.function("vmap")) == ("block", "block, ", "liftcore.vmap")
    assert (words.variable("params/w"), words.variables(["params/w", "x"])) == ("params.w", "params.w, x")
    assert LiftError("here", "it is wrong.", "Mend it.", variable="params/w").variable == "params.w"


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

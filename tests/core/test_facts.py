"""The facts of errors agree with their texts, for the errors of liftcore that the rows of advice raise."""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from liftcore import errors
from liftcore.errors import Expected, LiftArgumentError, LiftError, shown
from tests.advice.rows import FOLDER, rows

OF_STYLES = ("linen", "nnx", "objects", "pytrees", "rules")
FILES = [path.stem for path in sorted(FOLDER.glob("*.diff")) if path.stem not in OF_STYLES]

OF_LIFTS = (
    errors.UnliftedCollectionError,
    errors.UnliftedStreamError,
    errors.LoopInvarianceError,
    errors.CarryTypeError,
    errors.AxisSizeError,
)
"""Errors whose fix shows several options of the lift, or options of the lifts around it."""

LISTS = re.compile(r"\((available|lifted|flags|these are|folders in it|such files in it)\b|one of the saved steps")
"""A text that lists the names that exist."""


def named(text: str, value: Any) -> bool:
    """Return whether a text shows a value, or all parts of it."""
    if any(form in text for form in (str(value), repr(value), shown(value))):
        return True
    parts = [*value.values()] if isinstance(value, dict) else value
    return isinstance(parts, tuple | list) and all(named(text, part) for part in parts)


def disagreements(error: LiftError) -> Iterator[str]:
    """Yield what the facts of an error and its text do not have in common."""
    text, facts = str(error), error.facts
    for name in ("stream", "option", "given", "expected", "available"):
        if name in facts and not named(text, facts[name]):
            yield f"{name} is {facts[name]!r}, which the text does not have"
    # The text names a parameter by its path, or as `param "kernel" at /dense`.
    names = facts.get("variable", "").split("/")[1:] + [facts.get("collection", "").removesuffix("s")]
    if not all(name in text for name in names):
        yield f"the text does not have {facts.get('variable')!r}"
    if re.search(r"`\w+=", text) and "option" not in facts and not isinstance(error, OF_LIFTS):
        yield "the text shows an option, but there is no `option`"
    if LISTS.search(text) and not {"available", "given"} & facts.keys():
        yield "the text lists names, but there is no `available`"


def maker() -> str:
    """Return the module that makes the error which is being constructed."""
    frame: Any = sys._getframe(2)
    while frame.f_globals["__name__"] in (errors.__name__, "liftcore.saving.problems"):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


@pytest.mark.parametrize("file", FILES)
def test_facts_agree_with_texts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, LiftError]] = []
    monkeypatch.setattr(errors, "_rewording", [lambda error: made.append((maker(), error))])
    for row in rows():
        if row.name.startswith(f"{file}:"):
            with contextlib.suppress(Exception):
                row.run(row.wrong)
    of_core = [error for module, error in made if module.partition(".")[0] == "liftcore"]
    assert of_core
    wrong = {f"{error}\n    {text}" for error in of_core for text in disagreements(error)}
    assert not wrong, "\n".join(sorted(wrong))
    assert all(error.fix for error in of_core)
    assert all(pickle.loads(pickle.dumps(error)).facts == error.facts for error in of_core)


def test_an_expectation_makes_the_sentence_and_the_facts() -> None:
    what = Expected("a positive number", given=-1)
    error = LiftArgumentError("my_layer", what, "Pass `size=4`.", option="size")
    assert str(error) == "my_layer: expected a positive number as `size`, given -1. Pass `size=4`."
    assert error.facts == {"option": "size", "given": -1, "expected": "a positive number"}
    error = LiftArgumentError("size of my_layer", what, "Pass `size=4`.", option="size")
    assert error.what == "expected a positive number, given -1."
    named = Expected("a positive `size`", given=-1)  # it names the option, so the sentence does not repeat it
    assert LiftArgumentError("my_layer", named, "Pass `size=4`.", option="size").what == (
        "expected a positive `size`, given -1."
    )


def test_the_sentence_may_say_in_words_what_was_given() -> None:
    error = LiftArgumentError("my_layer", Expected("a pair", given=(1, 2, 3), words="3 values"), "Return two.")
    assert (error.what, error.facts) == ("expected a pair, given 3 values.", {"given": (1, 2, 3), "expected": "a pair"})


def test_facts_hold_no_arrays_and_no_objects() -> None:
    facts: dict[str, Any] = {}

    def under_jit(x: jax.Array) -> jax.Array:
        facts["a tracer"] = LiftError("here", Expected("a number", given=x), "Pass one.").given
        return x

    jax.jit(under_jit)(jnp.ones(3))
    for given in ([jnp.ones(3)], print, (2, {"w": float}), object()):
        assert isinstance(LiftError("here", Expected("a number", given), "Pass one.").given, str)
    for given in (2.5, "w", (None, 2), (2, 3), {"w": (3,)}, jnp.dtype("int32"), jax.sharding.PartitionSpec("x")):
        assert LiftError("here", Expected("an array", given), "Pass one.").given == given
    assert LiftError("here", Expected("an array", None), "Pass one.").given == "None"
    assert facts["a tracer"] == jax.ShapeDtypeStruct((3,), jnp.float32)
    assert LiftError("here", "it is not known.", "Correct it.", available={"w": 1}).available == ("w",)


def test_facts_are_a_copy_of_a_size_that_can_be_kept() -> None:
    given = [1, 2]
    error = LiftError("here", Expected("a number", given), "Pass one.")
    given.append(3)
    assert error.given == [1, 2]
    assert isinstance(LiftError("here", Expected("a number", [0] * 1000), "Pass one.").given, str)
    itself: list[Any] = []
    itself.append(itself)
    assert isinstance(LiftError("here", Expected("a number", itself), "Pass one.").given, str)

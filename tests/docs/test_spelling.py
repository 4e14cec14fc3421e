"""Pages and sources are written in American English."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("liftcore", "linen_like", "equinox_like", "nnx_like", "pax_like", "docs", "examples", "benchmarks")
FILES = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.*"))]
SOURCES = sorted(path for path in FILES if path.suffix in (".md", ".py", ".pyi"))
ALLOWED = {"liftcore/training/train_state.py": {"optimised"}}
"""Names of variables, for each file. Names with an underscore and words in backquotes are allowed everywhere."""

VERBS = (
    "character|custom|discret|emphas|factor|final|general|initial|linear|local|material|maxim|memor|minim|normal|optim|"
    "organ|parallel|quant|random|real|recogn|regular|serial|special|stabil|standard|summar|synchron|token|util|vector|"
    "visual"
)
BRITISH = re.compile(
    rf"(?:[^\W_]*(?:{VERBS})is(?:e|ed|es|er|ers|ing|able|ations?)"
    r"|[^\W_]*(?:analys(?:e|ed|ing)|centr(?:e|es|ed|ing)|(?:behavi|col|fav|hon|neighb)our[^\W_]*)"
    r"|(?:cancel|label|model|signal|travel)l(?:ed|ing)|artefacts?|fulfil|greys?|misspelt|whilst)",
    re.IGNORECASE,
)


def found(text: str) -> list[str]:
    words = re.findall(r"(?<![\w.])\w+", re.sub(r"`[^`\n]+`", "", text))
    return [word for word in dict.fromkeys(words) if british(word)]


@functools.cache
def british(word: str) -> bool:
    return BRITISH.fullmatch(word) is not None


def test_no_source_has_a_british_spelling() -> None:
    assert len(SOURCES) > 400
    wrong = {
        name: words
        for path in SOURCES
        for name in [path.relative_to(ROOT).as_posix()]
        if (words := set(found(path.read_text(encoding="utf-8"))) - ALLOWED.get(name, set()))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The colours are normalised.", ["colours", "normalised"]),
        ("Neighbouring re-initialisations, modelled", ["Neighbouring", "initialisations", "modelled"]),
        ("`tree_serialise_leaves`, eqx.tree_serialise_leaves, from .serialisation import", []),
        ("Two analyses of otherwise precise colors; characteristic emphasis", []),
    ],
)
def test_the_words_that_are_found(text: str, words: list[str]) -> None:
    assert found(text) == words

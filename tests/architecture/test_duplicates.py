"""No logic stands twice: pylint compares all lines of the packages, without docstrings, imports and signatures."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.architecture.sources import PACKAGES, ROOT

OPTIONS = ("docstrings", "comments", "imports", "signatures")
NAMES = re.compile(r'(__all__ = \[)?"\w+",?\]?')  # a line of a list of names: a package has those of its files again


@pytest.mark.always
def test_no_two_files_share_six_lines():
    run = subprocess.run(
        [sys.executable, "-m", "pylint", "--disable=all", "--enable=duplicate-code", "--output-format=json2"]
        + ["--min-similarity-lines=6", *(f"--ignore-{option}=y" for option in OPTIONS), *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [message["message"] for message in json.loads(run.stdout)["messages"]]
    assert not [text for text in found if not all(NAMES.fullmatch(line.strip()) for line in _shared(text))]


def _shared(message: str) -> list[str]:
    """Return the lines that two files share: those after the last that names a file."""
    lines = message.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("=="))
    return [line for line in lines[last + 1 :] if line.strip()]

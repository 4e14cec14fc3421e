"""Which cases of the tests run: a sample, the rest of what CI asks, or all of them.

Each test and each case has a place between 0 and 1, which depends on its name and on a seed. The sample has the first
case of the tests below `TESTS`, and the other cases below `CASES`. CI runs the first case of the other tests too, and
goes on to a place that gives it about `MOST` more cases of each test. Each commit has a seed of its own, so what one
change leaves out is run by another.
"""

from __future__ import annotations

import shutil
import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence

__all__ = ["CASES", "MOST", "TESTS", "parts", "tree_seed"]

TESTS = 0.4
"""The part of the tests whose first case is in the sample."""

CASES = 0.02
"""The part of the cases beyond the first that is in the sample."""

MOST = 4
"""How many more cases of one test CI runs, more or less."""


def tree_seed() -> int:
    """A seed from the tree of the commit: each change is tried with other cases, each run of it with the same.

    It is 0 where there is no commit to ask for, or no git.
    """
    if shutil.which("git") is None:
        return 0
    found = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], capture_output=True, text=True, check=False)
    return zlib.crc32(found.stdout.strip().encode()) if found.returncode == 0 else 0


def parts(nodeids: Sequence[str], seed: int) -> list[str]:
    """Says for each case, by its identifier, which part it belongs to: "sample", "rest" or "full".

    The order is that of collection.
    """
    tests = [nodeid.partition("[")[0] for nodeid in nodeids]
    sizes, known, found = Counter(tests), set[str](), []
    for nodeid, test in zip(nodeids, tests, strict=True):
        if test not in known:
            found.append("sample" if _place(test, seed) < TESTS else "rest")
        else:
            at = _place(nodeid, seed)
            found.append("sample" if at < CASES else "rest" if at < CASES + MOST / sizes[test] else "full")
        known.add(test)
    return found


def _place(name: str, seed: int) -> float:
    return zlib.crc32(f"{seed} {name}".encode()) / 2**32

"""Which cases of the tests run: a sample, the rest of what CI asks, or all of them.

A parametrized test always runs its first case in the sample. Each of its other cases has a place between 0 and 1, which
depends on the case and on a seed: the sample has those below `SHARE`, and CI goes on to a place that gives it about
`MOST` cases of each test. Each commit has a seed of its own, so cases that one change leaves out are run by another.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence

__all__ = ["MOST", "SHARE", "parts", "place", "tree_seed"]

SHARE = 0.04
"""The part of the cases beyond the first that is in the sample."""

MOST = 60
"""How many more cases of one test CI runs, more or less."""


def tree_seed() -> int:
    """A seed from the tree of the commit: each change is tried with other cases, each run of it with the same."""
    found = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], capture_output=True, text=True, check=False)
    return zlib.crc32(found.stdout.strip().encode()) if found.returncode == 0 else 0


def place(nodeid: str, seed: int) -> float:
    """The place of a case, or of a test, between 0 and 1."""
    return zlib.crc32(f"{seed} {nodeid}".encode()) / 2**32


def parts(nodeids: Sequence[str], seed: int) -> list[str]:
    """Says for each case, by its identifier, which part it belongs to: "sample", "rest" or "full".

    The order is that of collection.
    """
    tests = [nodeid.partition("[")[0] for nodeid in nodeids]
    sizes, known, found = Counter(tests), set[str](), []
    for nodeid, test in zip(nodeids, tests, strict=True):
        at = place(nodeid, seed)
        found.append(
            "sample" if test not in known or at < SHARE else "rest" if at < SHARE + MOST / sizes[test] else "full"
        )
        known.add(test)
    return found

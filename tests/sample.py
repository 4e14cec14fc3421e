"""Which cases of the tests run: a sample, what the sample leaves out, or all of them.

A test that is parametrised is asked with its first case always, and with a part of its other cases, which depends on
a seed. Each commit has a seed of its own, so cases that are left out today are run by another change.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterable

__all__ = ["SHARE", "in_sample", "tree_seed"]

SHARE = 0.07
"""The part of the cases beyond the first that is in a sample."""


def tree_seed() -> int:
    """A seed from the tree of the commit: each change is tried with other cases, each run of it with the same."""
    found = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], capture_output=True, text=True, check=False)
    return zlib.crc32(found.stdout.strip().encode()) if found.returncode == 0 else 0


def in_sample(nodeids: Iterable[str], seed: int, share: float = SHARE) -> list[bool]:
    """Says for each test, by its identifier, whether it is in a sample; the order is that of collection."""
    known: set[str] = set()
    answers = []
    for nodeid in nodeids:
        function = nodeid.partition("[")[0]
        answers.append(function not in known or zlib.crc32(f"{seed} {nodeid}".encode()) < share * 2**32)
        known.add(function)
    return answers

"""`python -m tests.fuzz --fresh 300`: runs new random programs; it prints small ones that fail, as source."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import time
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1 --xla_allow_excess_precision=false")

from tests.fuzz.generate import FEATURES
from tests.fuzz.runs import attempt

LEFT_OUT = ("frozen", "again")
"""What nobody can tell: whether a `FrozenDict` that `apply` is given, and gives back, is a value or holds modules. And
variables that are declared again inside a lift: the rules take `named_call`, which lifts nothing, for one."""


def tree_seed() -> int:
    """A seed from the tree of the commit: each change is tried with other programs, each run of it with the same."""
    found = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], capture_output=True, text=True, check=False)
    return zlib.crc32(found.stdout.strip().encode()) if found.returncode == 0 else 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--fresh", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, help="by default from the tree of the commit")
    parser.add_argument("--without", nargs="*", default=LEFT_OUT, choices=FEATURES, help="features to leave out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    seed = tree_seed() if given.seed is None else given.seed
    print(f"{given.fresh} programs, --seed {seed}", flush=True)
    began, counts = time.time(), collections.Counter[str]()
    tasks = [(seed + number, frozenset(given.without), not given.no_shrink) for number in range(given.fresh)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(given.jobs, context) as pool:
        for number, found, source in pool.map(attempt, tasks):
            kind = "illegal" if found.startswith("illegal") else "failed" if found else "passed"
            counts[kind] += 1
            if kind == "failed":
                print(f"\n--fresh 1 --seed {number}\n{source}{found}", flush=True)
    print(f"{dict(counts)} in {time.time() - began:.0f} s")
    return bool(counts["failed"])


if __name__ == "__main__":
    sys.exit(main())

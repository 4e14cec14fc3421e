"""`python -m tests.fuzz --fresh 300`: runs new random programs; it prints small ones that fail, as source.

Programs are numbered from the seed on, and their kinds take turns: one that failed is run again by its own number and
kind, `--fresh 1 --seed NUMBER --kinds KIND`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import time

from tests.quick_xla import QUICK

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", f"{QUICK} --xla_allow_excess_precision=false")

from tests.fuzz.generate import FEATURES
from tests.fuzz.kinds import KINDS, attempt, in_turn
from tests.sample import tree_seed


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--fresh", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, help="by default from the tree of the commit")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="the kinds of programs")
    parser.add_argument("--without", nargs="*", default=(), choices=FEATURES, help="features of scopes to leave out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    seed = tree_seed() if given.seed is None else given.seed
    print(f"{given.fresh} programs, --seed {seed}", flush=True)
    began, failed = time.time(), 0
    options = " ".join(["", "--without", *given.without] if given.without else [])
    numbered = in_turn(given.kinds, range(seed, seed + given.fresh))
    tasks = [(kind, number, frozenset(given.without), not given.no_shrink) for kind, number in numbered]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(given.jobs, context) as pool:
        for kind, number, found, source in pool.map(attempt, tasks):
            failed += bool(found)
            if found:
                again = f"python -m tests.fuzz --fresh 1 --seed {number} --kinds {kind}{options}"
                print(f"\n{again}\n{source}{found}", flush=True)
    print(f"{failed} of {given.fresh} programs, --seed {seed}, failed; {time.time() - began:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

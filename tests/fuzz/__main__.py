"""`python -m tests.fuzz --fresh 300`: runs new random programs; it prints small ones that fail, as source.

Programs are numbered from the seed on: one that failed is run again by its own number, `--fresh 1 --seed NUMBER`.
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
from tests.fuzz.runs import attempt, attempt_pytrees
from tests.sample import tree_seed


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--fresh", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, help="by default from the tree of the commit")
    parser.add_argument("--without", nargs="*", default=(), choices=FEATURES, help="features to leave out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--pytrees", action="store_true", help="programs of pytree modules and filtered transformations"
    )
    given = parser.parse_args()
    seed = tree_seed() if given.seed is None else given.seed
    print(f"{given.fresh} programs, --seed {seed}", flush=True)
    began, failed = time.time(), 0
    options = " ".join(["", "--without", *given.without] if given.without else []) + " --pytrees" * given.pytrees
    tasks = [(seed + number, frozenset(given.without), not given.no_shrink) for number in range(given.fresh)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(given.jobs, context) as pool:
        for number, found, source in pool.map(attempt_pytrees if given.pytrees else attempt, tasks):
            failed += bool(found)
            if found:
                print(f"\npython -m tests.fuzz --fresh 1 --seed {number}{options}\n{source}{found}", flush=True)
    print(f"{failed} of {given.fresh} programs, --seed {seed}, failed; {time.time() - began:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

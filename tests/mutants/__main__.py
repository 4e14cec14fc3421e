"""`python -m tests.mutants`: breaks the core and `nnx_like` in many ways, and lists the breaks that no near test sees.

One break at a time is put into a copy of the tree, in a temporary folder. It is named by its number in the table: first
those of the core, then those of `nnx_like`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.objects import OF_OBJECTS
from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
ALL = (*MUTANTS, *OF_OBJECTS)
PACKAGES = ("liftcore", "linen_like", "equinox_like", "pax_like", "nnx_like")
PARTS = (*PACKAGES, "tests", "conftest.py", "pyproject.toml", "setup.cfg", "setup.py", "README.md")


def copied(to: Path) -> None:
    """Copies what the tests need."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, to / part)


def survives(mutant: Mutant, place: Path, limit: int) -> str:
    """How the near tests take a break: "killed", "survived" or "timed out"."""
    file = place / mutant.package / mutant.path
    original = file.read_text()
    file.write_text(original.replace(mutant.before, mutant.after))
    tests = [f"tests/{name}" for name in mutant.tests]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        file.write_text(original)
    if run.returncode not in (0, 1, 2):
        sys.exit(run.stdout.decode())
    return "killed" if run.returncode else "survived"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="by default all")
    parser.add_argument("--limit", type=int, default=120, help="seconds for the tests of one break")
    given = parser.parse_args()
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        copied(Path(place))
        for number in given.numbers or range(len(ALL)):
            began, mutant = time.time(), ALL[number]
            found = survives(mutant, Path(place), given.limit)
            print(
                f"{number:3} {mutant.package}/{mutant.path}: {mutant.reason}: {found} ({time.time() - began:.0f} s)",
                flush=True,
            )
            survivors += [number] if found == "survived" else []
    print(f"survivors: {survivors}")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())

"""Tries each layer on meshes of Explicit axes: `python -m docs.mesh_table` prints what fails on the installed JAX.

`docs/meshes.md` has the result for the versions of JAX that are supported; a test compares it with the installed one.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # threads of XLA, for all collectives that eight devices may wait in at once
os.environ.setdefault("PJRT_NPROC", "64")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")

import jax

from tests.devices.mesh_cases import CASES, KINDS, cases
from tests.devices.mesh_run import check

__all__ = ["failures", "rows"]


def failures() -> dict[tuple[str, str], str]:
    """What fails on the installed JAX: by layer and kind of sharding the first line of the error."""
    found = {}
    for number, (name, kind) in enumerate(cases()):
        print(f"\r{number + 1} of {len(cases())}: {name:<50}", end="", file=sys.stderr)
        try:
            check(name, kind)
        except Exception as error:  # whatever it is, it is what the table is for
            found[name, kind] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def rows(failed: dict[tuple[str, str], str]) -> str:
    """The table: a row for each layer, a column for each kind of sharding."""
    tried = set(cases())

    def cell(name: str, kind: str) -> str:
        if (name, kind) not in tried:
            return ""
        return failed.get((name, kind), "works")

    lines = ["| layer | " + " | ".join(KINDS) + " |", "|---" * (len(KINDS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(name, kind) for kind in KINDS) + " |" for name in CASES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"\nJAX {jax.__version__}\n\n{rows(failures())}")

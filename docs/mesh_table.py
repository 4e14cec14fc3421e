"""Try each layer on meshes of Explicit axes, and keep the table of `docs/meshes.md`.

To print what works on the installed JAX, run `python -m docs.mesh_table`. To write it into `docs/mesh_table.json`, and
the table of all versions there into `docs/meshes.md`, run `python -m docs.mesh_table --write`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # threads of XLA, for all collectives that eight devices may wait in at once
os.environ.setdefault("PJRT_NPROC", "64")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")

import jax

from tests.devices.mesh_cases import CASES, KINDS, cases
from tests.devices.mesh_run import check

__all__ = ["DATA", "PAGE", "WORKS", "Found", "by_version", "cell", "outcome", "page_with", "try_all", "write"]

DATA = Path(__file__).with_name("mesh_table.json")
PAGE = Path(__file__).with_name("meshes.md")
BEGIN, END = "<!-- table: python -m docs.mesh_table --write -->", "<!-- end of the table -->"
WORKS = "works"

Found: TypeAlias = Mapping[str, Mapping[str, str]]
"""For each layer and kind of sharding `WORKS`, or the first line of the error."""


def try_all() -> dict[str, dict[str, str]]:
    """Run all cases on the installed JAX."""
    found: dict[str, dict[str, str]] = {name: {} for name in CASES}
    for number, (name, kind) in enumerate(cases()):
        print(f"\r{number + 1} of {len(cases())}: {name:<50}", end="", file=sys.stderr, flush=True)
        found[name][kind] = outcome(name, kind)
    return found


def outcome(name: str, kind: str) -> str:
    """Run one case; return `WORKS`, or the first line of the error that says something."""
    try:
        check(name, kind)
    except Exception as error:  # whatever it is, the table shows it
        line = next((line for line in str(error).splitlines() if line.strip()), "")
        return f"{type(error).__name__}: {line}"
    return WORKS


def by_version() -> dict[str, Found]:
    """Read the data: what was found on each version of JAX, the oldest first."""
    data: dict[str, Found] = json.loads(DATA.read_text(encoding="utf-8"))
    return dict(sorted(data.items(), key=lambda item: _numbers(item[0])))


def cell(outcomes: Mapping[str, str]) -> str:
    """What the table says of one layer and one kind of sharding.

    Example:
        >>> cell({"0.8.0": "works", "0.10.2": "works"}), cell({"0.8.0": "ValueError: …", "0.10.2": "works"})
        ('works', 'from 0.10.2')
        >>> cell({"0.8.0": "works", "0.10.2": "ValueError: …"})
        'not on 0.10.2'

    Args:
        outcomes: by version, the oldest first, `WORKS` or an error.
    """
    versions = list(outcomes)
    failed = [version for version in versions if outcomes[version] != WORKS]
    if not failed:
        return WORKS if versions else ""
    if len(failed) == len(versions):
        return "fails"
    return f"from {versions[len(failed)]}" if failed == versions[: len(failed)] else f"not on {', '.join(failed)}"


def page_with(data: Mapping[str, Found], text: str) -> str:
    """Put the table of all versions in its place on the page.

    Args:
        data: what was found on each version.
        text: the page.
    """
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    versions = ", ".join(data)
    caption = f"*JAX {versions}; eight simulated devices. A cell is empty where a layer has no such axis.*"
    return f"{before}{BEGIN}\n{caption}\n\n{_table(data)}\n\n{END}{after}"


def write(found: Found) -> None:
    """Write what was found on the installed JAX into the data, and the table into the page.

    Args:
        found: what `try_all` returned.
    """
    data = (by_version() if DATA.exists() else {}) | {jax.__version__: found}
    versions = [
        f'  "{version}": {{\n{_lines(data[version])}\n  }}' for version in sorted(data, key=_numbers)
    ]  # one layer a line, so that a change of one shows
    DATA.write_text("{\n" + ",\n".join(versions) + "\n}\n", encoding="utf-8")
    PAGE.write_text(page_with(by_version(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _lines(found: Found) -> str:
    return ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(kinds, ensure_ascii=False)}" for name, kinds in found.items()
    )


def _table(data: Mapping[str, Found]) -> str:
    """A row for each layer, a column for each kind of sharding."""

    def outcomes(name: str, kind: str) -> dict[str, str]:
        return {version: found[name][kind] for version, found in data.items() if kind in found.get(name, {})}

    lines = ["| layer | " + " | ".join(KINDS) + " |", "|---" * (len(KINDS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(outcomes(name, kind)) for kind in KINDS) + " |" for name in CASES]
    return "\n".join(lines)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # as in the tests: compiles in a quarter of the time
    now = try_all()
    errors = [f"{name}, {kind}: {text}" for name, kinds in now.items() for kind, text in kinds.items() if text != WORKS]
    print("", _table({jax.__version__: now}), *errors, sep="\n\n")
    if "--write" in sys.argv[1:]:
        write(now)

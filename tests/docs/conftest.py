"""The site, built once for all tests of it, with warnings as errors.

`LIFTCORE_REQUIRE_SITE=1` makes it an error that MkDocs is not there; otherwise the tests are skipped.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("mkdocs", "material", "mkdocstrings", "griffe")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site, which the workers of one run share."""
    if os.environ.get("LIFTCORE_REQUIRE_SITE") != "1" and not all(map(importlib.util.find_spec, NEEDED)):
        pytest.skip("what builds the site is not installed: pip install -e '.[docs]'")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, log = shared / "site", shared / "site.log"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu"}
            run = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            log.write_text(f"{run.returncode}\n{run.stdout}", encoding="utf-8")
    code, _, text = log.read_text(encoding="utf-8").partition("\n")
    assert code == "0", f"mkdocs build --strict:\n{text}"
    return folder

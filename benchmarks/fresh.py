"""What a statement costs a Python process that has just begun: modules, which are counted exactly, and time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["import_seconds", "last_line", "new_modules"]

_ROOT = Path(__file__).resolve().parents[1]
_TIMED = "import gc, time; gc.disable(); _start = time.process_time()\n{}\nprint(time.process_time() - _start)"
_LISTED = "{}\nimport sys; print(*sys.modules)"


def new_modules(statement: str, over: str = "import jax") -> list[str]:
    """The modules that a statement brings, in the order of their loading.

    Args:
        statement: Python code.
        over: what has run in the process that it is compared with.
    """
    before = set(last_line(_LISTED.format(over)).split())
    return [name for name in last_line(_LISTED.format(statement)).split() if name not in before]


def import_seconds(statements: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """The time that each statement takes in a process of its own; one after the other, round after round.

    It is time of the processor, which other processes disturb least. Bytecode is there, as after an installation: a
    round that does not count writes it to a folder of this call.

    Args:
        statements: Python code, such as `import jax` and `import jax, liftcore`.
        rounds: how often each of them is run.
    """
    times: dict[str, list[float]] = {statement: [] for statement in statements}
    with tempfile.TemporaryDirectory() as bytecode:
        for _ in range(rounds + 1):
            for statement, found in times.items():
                found.append(float(last_line(_TIMED.format(statement), bytecode)))
    return {statement: found[1:] for statement, found in times.items()}


def last_line(code: str, bytecode: str | None = None) -> str:
    """What code prints last, in a process that finds this checkout and uses the CPU.

    Args:
        code: Python code.
        bytecode: the folder that bytecode is written to and read from.
    """
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    if bytecode is not None:
        environment |= {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    run = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.splitlines()[-1]

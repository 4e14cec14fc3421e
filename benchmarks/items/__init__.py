"""What is measured, one item a function: it yields the rows of the table as they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..row import Row
from ..settings import Settings
from .accelerator import accelerator
from .checkpointing import checkpointing
from .compiling import compiled, recompiles
from .filtering import filtering
from .generation import generation
from .importing import importing
from .nesting import levels, nested, nested_scans, runs
from .objects import called, stepped
from .saving import restoring, saving
from .scale import scale
from .scanning import scanned
from .selecting import selecting
from .tracing import eager, growth, init, trace

__all__ = ["ITEMS"]

ITEMS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "import": importing,
    "trace": trace,
    "init": init,
    "eager": eager,
    "growth": growth,
    "runs": runs,
    "nested_scans": nested_scans,
    "nested": nested,
    "levels": levels,
    "jit": compiled,
    "recompiles": recompiles,
    "filtered": filtering,
    "objects": called,
    "steps": stepped,
    "scan": scanned,
    "select": selecting,
    "save": saving,
    "restore": restoring,
    "held_up": checkpointing,
    "generation": generation,
    "accelerator": accelerator,
    "scale": scale,
}

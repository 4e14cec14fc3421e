"""What an import costs over that of JAX, in fresh processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ..fresh import import_seconds, new_modules
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["STATEMENTS", "importing"]

STATEMENTS = {
    "core": "import jax, liftcore",
    "linen_like": "import jax, linen_like",
    "flax": "import jax, flax.linen",
    "equinox": "import jax, equinox",
    "haiku": "import jax, haiku",
}


def importing(settings: Settings) -> Iterator[Row]:
    """The time of an import, and the modules that it brings."""
    sides = settings.sides[1:]
    statements = {PURE: "import jax", **{name: STATEMENTS[name] for name in sides}}
    times = import_seconds(list(statements.values()), settings.rounds)
    values = {name: statistics.median(times[statement]) for name, statement in statements.items()}
    yield Row("import", "import, over that of JAX", "s", values, {"core": 1.05, "linen_like": 1.08})
    counts = {name: float(len(new_modules(STATEMENTS[name]))) for name in sides}
    targets = {"core": 40.0, "linen_like": 40.0}
    yield Row("import", "modules that an import brings", "modules", counts, targets, is_count=True)

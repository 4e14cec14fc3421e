"""What an import costs over that of JAX, in fresh processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ..fresh import import_seconds, new_modules
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["FIRST_USES", "STATEMENTS", "importing"]

STATEMENTS = {
    "core": "import jax, liftcore",
    "linen_like": "import jax, linen_like",
    "flax": "import jax, flax.linen",
    "equinox": "import jax, equinox",
    "haiku": "import jax, haiku",
}

FIRST_USES = STATEMENTS | {
    "core": "import jax, liftcore; liftcore.Scope, liftcore.init, liftcore.apply, liftcore.vmap, liftcore.scan",
    "linen_like": "import jax, linen_like; linen_like.Module, linen_like.compact, linen_like.Dense, linen_like.scan",
}
"""The same, and the names that a first model needs of what is loaded later than the import; peers load all at once."""


def importing(settings: Settings) -> Iterator[Row]:
    """The time of an import, alone and with a first use, and the modules that it brings."""
    sides = settings.sides[1:]
    for what, code in (("an import", STATEMENTS), ("an import and first use", FIRST_USES)):
        statements = {PURE: "import jax", **{name: code[name] for name in sides}}
        times = import_seconds(list(statements.values()), settings.rounds)
        values = {name: statistics.median(times[statement]) for name, statement in statements.items()}
        yield Row("import", f"{what}, relative to the import of JAX", "s", values, {"core": 1.05, "linen_like": 1.08})
        counts = {name: float(len(new_modules(code[name]))) for name in sides}
        targets = {"core": 40.0, "linen_like": 40.0}
        yield Row("import", f"modules loaded by {what}", "modules", counts, targets, is_count=True)

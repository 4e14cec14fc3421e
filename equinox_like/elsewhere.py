"""Names of Equinox that are elsewhere or left out, and what to write here: for the error about an unknown name."""

from __future__ import annotations

__all__ = ["INSTEAD"]

INSTEAD = {
    "nn": (
        "This package has no layers of its own. Import equinox.nn, whose layers are pytrees and work here; or use a "
        "layer of linen_like as a pytree: Applied(layer, variables)"
    ),
    "internal": "For loops and branches with values that are not arrays, use liftcore.filtered(liftcore.scan)",
    "debug": "Use liftcore.assert_max_traces and liftcore.retraces",
    "static_field": "Use field(static=True)",
    "Enumeration": "Use enum.Enum, in a static field",
    "filter_pure_callback": "Use jax.pure_callback, with arrays",
    "clear_caches": "Use jax.clear_caches",
    "filter_cond": "Use liftcore.filtered(liftcore.cond)",
    "filter_scan": "Use liftcore.filtered(liftcore.scan)",
}

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
    "clear_caches": "Use liftcore.clear_caches",
    "EquinoxRuntimeError": "Use liftcore.checkify, which returns the error as a value",
    "EquinoxTracetimeError": "Use liftcore.checkify, which returns the error as a value",
    "StrictConfig": "Write the class with `strict=True`",
    "default_serialise_filter_spec": "Leave filter_spec out: the default of tree_serialise_leaves is the same",
    "default_deserialise_filter_spec": "Leave filter_spec out: the default of tree_deserialise_leaves is the same",
    "tree_check": "Left out: modules without cycles need no check; compare trees with tree_equal",
    "tree_flatten_one_level": "Left out: use jax.tree.flatten with is_leaf=lambda node: node is not tree",
    "module_update_wrapper": "Left out: use functools.update_wrapper in __post_init__ of a class that is not frozen",
    "filter_cond": "Use liftcore.filtered(liftcore.cond)",
    "filter_scan": "Use liftcore.filtered(liftcore.scan)",
}

"""The transformations, one row for each configuration: every law is asked of every row.

A row lifts `body(scope, x) -> y`, where `x` and `y` have one shape, and knows the loop or call in plain Python that
must give the same. Bodies may use the collections and streams of `COLLECTIONS` and `SEQUENCES`, as `Row.rule` says;
values of `state` have one or more dimensions. What is shared must not differ between elements: that goes for `consts`
and `fixed`, and in a row of `SHARED` for `params` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import equinox_like as eqx
import liftcore
from tests.lift import own
from tests.lift.plain import CARRY, PART, SAME, Rule
from tests.lift.quick import key
from tests.lift.rows import derivatives, elements, filtered, loops, views
from tests.lift.rows.row import DEVICES, FORWARD, REVERSE, unchanged

COLLECTIONS = ("params", "consts", "fixed", "state", "counter")
SEQUENCES = ("params", "dropout")

ALL = {"params": True, "dropout": True}
SHARED_PARAMS = {"params": False, "dropout": True}


def _axes(params: Any, state: Any, counter: Any) -> dict[str, Any]:
    return {"params": params, "consts": None, "fixed": None, "state": state, "counter": counter}


MAPPED = Rule(_axes(0, 1, 0), ALL, 2)
LOOPED = Rule(_axes(None, CARRY, CARRY), SHARED_PARAMS, 2, folds=True)
SHARDED = Rule(_axes(None, PART, SAME), SHARED_PARAMS, 2)

FILTERED = {
    "filter_jit": filtered.unchanged(eqx.filter_jit)._replace(shown="jit"),
    "filter_checkpoint": filtered.unchanged(eqx.filter_checkpoint)._replace(shown="remat"),
    "filter_vmap": filtered.over_elements(MAPPED, own=True)._replace(shown="vmap"),
    "filter_value_and_grad": filtered.with_gradient()._replace(shown="value_and_grad"),
    "filter_vjp": filtered.pulled_back()._replace(shown="vjp"),
    "filter_jvp": filtered.pushed_forward()._replace(shown="jvp"),
    "filter_jacfwd": filtered.with_jacobian(eqx.filter_jacfwd, FORWARD)._replace(shown="jacfwd"),
    "filter_jacrev": filtered.with_jacobian(eqx.filter_jacrev, REVERSE)._replace(shown="jacrev"),
}
"""Those of functions of any Python objects, with a scope among their arguments."""

TABLE = {
    "vmap": elements.over_elements(MAPPED, own=True),
    "vmap, shared": elements.over_elements(
        Rule(_axes(None, -1, 0), {**SHARED_PARAMS, "noise": True}, 3), own=False, axis_name="elements"
    ),
    "scan": loops.scanned(Rule(_axes(0, 1, CARRY), ALL, 2)),
    "scan, shared": loops.scanned(Rule(_axes(None, CARRY, 0), SHARED_PARAMS, 3, reverse=True), unroll=2),
    "remat": unchanged(liftcore.remat),
    "remat, policy": unchanged(liftcore.remat, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False),
    "jit": unchanged(liftcore.jit),
    "cond": loops.branch(lambda body: liftcore.cond(body, loops.negated), lambda x: jnp.isfinite(x).all()),
    "switch": loops.branch(
        lambda body: liftcore.switch([loops.negated, body, loops.negated]), lambda x: 1 + 0 * x[0].astype(int)
    ),
    "fori_loop": loops.counted_loop(LOOPED),
    "fori_loop, traced": loops.counted_loop(LOOPED, traced=True),
    "while_loop": loops.uncounted_loop(LOOPED),
    "remat_scan": loops.rematerialized_loop(MAPPED),
    "map": elements.stacked(MAPPED._replace(size=3), liftcore.map, batch_size=2),
    "pmap": elements.stacked(MAPPED, liftcore.pmap, DEVICES),
    "shard_map": elements.over_shards(SHARDED),
    "value_and_grad": derivatives.with_gradient(),
    "vjp": derivatives.pulled_back(),
    "jvp": derivatives.pushed_forward(),
    "linearize": derivatives.linearized(),
    "jacfwd": derivatives.with_jacobian(liftcore.jacfwd, FORWARD),
    "jacrev": derivatives.with_jacobian(liftcore.jacrev, REVERSE),
    "hessian": derivatives.with_hessian(),
    "custom_jvp": derivatives.with_a_forward_rule(),
    "custom_vjp": derivatives.with_a_backward_rule(),
    "checkify": views.checked(),
    "map_variables": views.seen_doubled(),
    "swap_collection": views.swapped("consts", "fixed"),
    "add_metadata_axis": unchanged(liftcore.add_metadata_axis, variable_axes={"params": 0}),
    "fold_rngs": views.folded(),
    "with_rngs": views.keyed(key(7)),
    "vmap, own": elements.over_elements(MAPPED, own=True, lift=own.vmap),
    "scan, own": loops.scanned(Rule(_axes(0, 1, CARRY), ALL, 2), lift=own.scan)._replace(refuses=REVERSE),
    "scan, own, shared": loops.scanned(Rule(_axes(None, CARRY, 0), SHARED_PARAMS, 3, reverse=True), lift=own.scan),
    "jit, own": unchanged(own.jit),
    "named_call": unchanged(liftcore.named_call, name="named")._replace(shown=""),
    **FILTERED,
}
"""The rows by name."""

SHOWN = {name: name.split(",")[0] if row.shown is None else row.shown for name, row in TABLE.items()}
"""How each row shows in paths."""

SHARED = frozenset({"vmap, shared", "scan, shared", "fori_loop", "fori_loop, traced", "while_loop", "shard_map"})
"""Rows with shared parameters, which must not depend on what differs between elements."""

TRANSPARENT = frozenset(
    {"remat", "remat, policy", "jit", "add_metadata_axis", "named_call", "filter_jit", "filter_checkpoint"}
)
"""Rows that must change no name, no value and no draw."""

FRESH = tuple(
    name for name, row in TABLE.items() if name != "with_rngs" and (row.rule is None or all(row.rule.split.values()))
)
"""Rows in which no key is drawn twice."""


def fitting(needs: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The rows that may stand where something is needed of them."""
    return tuple(name for name, row in TABLE.items() if not row.refuses & needs)


def refused(names: Iterable[str]) -> frozenset[str]:
    """What the rows refuse, all in all."""
    return frozenset().union(*(TABLE[name].refuses for name in names))


def fit(names: Sequence[str]) -> bool:
    """Whether rows can be nested, the first of them innermost."""
    return not any(TABLE[name].refuses & TABLE[outer].needs for i, name in enumerate(names) for outer in names[i + 1 :])

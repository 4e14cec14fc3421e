from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from liftcore.errors import LiftArgumentError, UnmatchedFilterError
from liftcore.filters import All, OfType, PathContains
from liftcore.frozen_dict import FrozenDict
from liftcore.meta import Partitioned
from liftcore.training import labels, mask

PARAMS = {"encoder": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}, "head": {"kernel": jnp.ones(3)}}
BOXED = jax.tree.map(lambda leaf: Partitioned(leaf, ("data",)), PARAMS)


def test_the_first_rule_that_takes_a_parameter_labels_it() -> None:
    rules = {"bias": PathContains("bias"), "encoder": PathContains("encoder"), "rest": ...}
    expected = {"encoder": {"kernel": "encoder", "bias": "bias"}, "head": {"kernel": "rest"}}
    assert labels(rules)(PARAMS) == expected
    assert labels(rules, collection=None)({"params": PARAMS}) == {"params": expected}
    assert labels({"all": "params"})(PARAMS)["head"] == {"kernel": "all"}


@pytest.mark.parametrize("given", [PARAMS, BOXED, FrozenDict(PARAMS)], ids=["dicts", "boxes", "frozen dict"])
def test_optax_trains_each_part_in_its_way(given: Any) -> None:
    label = labels({"frozen": PathContains("encoder"), "head": ...})
    tx = optax.multi_transform({"frozen": optax.set_to_zero(), "head": optax.adam(0.5)}, label)
    state = tx.init(given)
    updates, _ = jax.jit(tx.update)(jax.tree.map(jnp.ones_like, given), state, given)
    assert jax.tree.structure(updates) == jax.tree.structure(given)
    moved = [float(abs(leaf).sum()) > 0 for leaf in jax.tree.leaves(updates)]
    assert moved == [False, False, True]
    assert len(jax.tree.leaves(state)) == 3  # a count and two moments of one kernel


@pytest.mark.parametrize("given", [PARAMS, BOXED], ids=["dicts", "boxes"])
def test_a_mask_serves_masked_also_inside_of_other_masks(given: Any) -> None:
    decay = optax.masked(optax.add_decayed_weights(1.0), mask(PathContains("kernel")))
    tx = optax.multi_transform(
        {"frozen": optax.set_to_zero(), "rest": decay}, labels({"frozen": PathContains("head"), "rest": ...})
    )
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, given), tx.init(given), given)
    assert [float(leaf.sum()) for leaf in jax.tree.leaves(updates)] == [0.0, 2.0, 0.0]


def test_a_filter_may_ask_about_boxes() -> None:
    given = {"dense": {"kernel": BOXED["head"]["kernel"], "bias": jnp.ones(3)}}
    assert mask(OfType(Partitioned))(given) == {"dense": {"kernel": True, "bias": False}}


def test_rules_that_take_all_or_none_need_take_nothing() -> None:
    assert labels({"one": PathContains("encoder"), "two": "params", "rest": ...})(PARAMS)["head"] == {"kernel": "two"}
    assert mask(None)({"w": 1.0}) == {"w": False}
    assert mask(PathContains("w"))({}) == {}


ERRORS = {
    "unmatched": (UnmatchedFilterError, lambda: labels({"a": PathContains("encoder")})(PARAMS), "params/head/kernel"),
    "misspelt": (LiftArgumentError, lambda: labels({"a": PathContains("encodr"), "b": ...})(PARAMS), "labels, 'a'"),
    "hidden": (LiftArgumentError, lambda: labels({"a": "params", "b": PathContains("head")})(PARAMS), "labels, 'b'"),
    "a text": (LiftArgumentError, lambda: mask("encoder")(PARAMS), r'PathContains\("encoder"\)'),
    "no filter": (LiftArgumentError, lambda: mask(All("params", PathContains("x")))(PARAMS), "matches no variable"),
    "no rules": (LiftArgumentError, lambda: labels(["a"]), "mapping from labels"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", ERRORS)
def test_rules_that_do_not_fit_are_errors(name: str) -> None:
    kind, use, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        use()

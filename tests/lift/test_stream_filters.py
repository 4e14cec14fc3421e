"""Filters of RNG streams: a stream has a name alone, so a filter that asks for more is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import LiftArgumentError
from liftcore.filters import All, DenyList, Not, PathContains

KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def draws(scope: Any, *_: Any) -> Any:
    return jax.random.bits(scope.make_rng("params")), jax.random.bits(scope.make_rng("dropout"))


class Draws(nn.Module):
    @nn.compact
    def __call__(self, carry: Any = None, _: Any = None) -> Any:
        found = draws(self)
        return found if carry is None else (carry, found)


def carrying(scope: Any, carry: Any, _: Any) -> Any:
    return carry, draws(scope)


def packed(filter: Any) -> Any:
    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return draws(scope), repack_fn(scope)

    return liftcore.pack(transform, [True], [True], [filter, ...])


def rest(filter: Any) -> Mapping[Any, bool]:
    return {filter: True, Not(None): False}


SPLITTING: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda filter: liftcore.apply(liftcore.vmap(draws, axis_size=2, split_rngs=rest(filter))),
    "map": lambda filter: (
        lambda v, rngs: liftcore.apply(liftcore.map(draws, split_rngs=rest(filter)))(v, jnp.ones(2), rngs=rngs)
    ),
    "scan": lambda filter: (
        lambda v, rngs: liftcore.apply(liftcore.scan(carrying, length=2, split_rngs=rest(filter)))(
            v, 0, None, rngs=rngs
        )[1]
    ),
    "nn.vmap": lambda filter: nn.vmap(Draws, axis_size=2, split_rngs=rest(filter))().apply,
    "nn.scan": lambda filter: (
        lambda v, rngs: nn.scan(Draws, length=2, split_rngs=rest(filter))().apply(v, 0, None, rngs=rngs)[1]
    ),
}
"""Lifts that split the streams that a filter takes, as calls that return two draws each from `params` and `dropout`."""

PASSING: dict[str, Callable[[Any], Any]] = {
    "remat": lambda filter: liftcore.apply(liftcore.remat(draws, rngs=filter)),
    "jit": lambda filter: liftcore.apply(liftcore.jit(draws, rngs=filter)),
    "fold_rngs": lambda filter: liftcore.apply(liftcore.fold_rngs(draws, rngs=filter)),
    "pack": lambda filter: liftcore.apply(packed(filter)),
    "nn.remat": lambda filter: nn.remat(Draws, rngs=filter)().apply,
}

PATHS: dict[str, Any] = {
    "a path": PathContains("head"),
    "a path of a collection": All("params", PathContains("head")),
    "not a path": Not(PathContains("head")),
    "all but a path": DenyList(("dropout", PathContains("head"))),
    "one of several": ("params", PathContains("head")),
    "a type": jax.Array,
    "a predicate that looks into the path": lambda path, value: "head" in path,
    "a predicate of the last name": lambda path, value: path[-1] == "head",
    "a predicate of the second name": lambda path, value: path[1] == "head",
    "a predicate of each name": lambda path, value: any(name.startswith("head") for name in path),
    "a predicate of the value": lambda path, value: value.ndim > 1,
    "a predicate among others": ("missing", lambda path, value: "head" in path),
}


@pytest.mark.parametrize("filter", PATHS)
@pytest.mark.parametrize("lift", [*SPLITTING, *PASSING])
def test_a_filter_that_asks_for_more_than_a_name_is_an_error(lift: str, filter: str) -> None:
    with pytest.raises(LiftArgumentError, match=r'RNG streams of .* asks about paths or values.*"head": True'):
        ({**SPLITTING, **PASSING})[lift](PATHS[filter])({}, rngs=KEYS)


NAMES: dict[str, tuple[Any, tuple[bool, bool]]] = {
    "a name": ("params", (True, False)),
    "everything": (..., (True, True)),
    "nothing": (None, (False, False)),
    "a bool": (True, (True, True)),
    "names": (("params", "dropout"), (True, True)),
    "not a name": (Not("params"), (False, True)),
    "all but a name": (DenyList("dropout"), (True, False)),
    "both": (All(..., DenyList(("missing", "params"))), (False, True)),
    "a missing name": ("missing", (False, False)),
    "a predicate of the name": (lambda path, value: path[0] == "dropout", (False, True)),
    "a predicate of the path": (lambda path, value: "dropout" in path, (False, True)),
    "a predicate of a missing name": (lambda path, value: path[0] == "missing", (False, False)),
    "a predicate among others": (("params", lambda path, value: "missing" in path), (True, False)),
}
"""Filters, and whether each takes `params` and `dropout`."""


@pytest.mark.parametrize("filter", NAMES)
@pytest.mark.parametrize("lift", SPLITTING)
def test_a_filter_of_names_splits_the_streams_it_takes(lift: str, filter: str) -> None:
    given, splits = NAMES[filter]
    drawn = SPLITTING[lift](given)({}, rngs=KEYS)
    assert tuple(len(set(each.tolist())) == 2 for each in drawn) == splits


def test_the_fix_gives_a_part_of_the_variables_keys_of_their_own() -> None:
    head = All("params", PathContains("head"))

    def model(scope: Any) -> None:
        scope.param("trunk", jax.random.normal, (2,))
        scope.param("head", lambda key: jax.random.normal(scope.make_rng("head"), (2,)))

    axes = {head: 0, "params": None}
    with pytest.raises(LiftArgumentError, match=r'scope.make_rng\("head"\)'):
        liftcore.vmap(model, axis_size=3, variable_axes=axes, split_rngs={head: True, "params": False})
    lifted = liftcore.vmap(model, axis_size=3, variable_axes=axes, split_rngs={"head": True, "params": False})
    _, made = liftcore.init(lifted)(jax.random.key(0))
    assert made["params"]["trunk"].shape == (2,)
    assert len({tuple(row) for row in made["params"]["head"].tolist()}) == 3


def test_without_streams_a_predicate_of_paths_does_no_harm() -> None:
    lifted = liftcore.vmap(lambda scope, x: x, split_rngs={PATHS["a predicate of the last name"]: True})
    assert liftcore.apply(lifted)({}, jnp.ones(2)).shape == (2,)

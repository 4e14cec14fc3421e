"""A transformation that is written once lifts a function of a scope, a Linen-style module, an object and a pytree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, Not, PathContains
from nnx_like.errors import StructureError

KEY = jax.random.key(0)
X = jnp.arange(3.0) + 1


def halved(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A lift under which a function sees its parameters halved, and may write its statistics."""

    def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
        params, *others = variable_groups
        scope = scope_fn([jax.tree.map(lambda leaf: leaf / 2, params), *others], rng_groups)
        return fn(scope, *args), repack_fn(scope)

    return liftcore.pack(transform, ["params", True], [liftcore.DenyList("params")], [True], name="halved")


def doubled(body: Any, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
    """A transformation of results."""
    result, groups = body(variable_groups, rng_groups, *args, **kwargs)
    return jax.tree.map(lambda leaf: 2 * leaf, result), groups


twice = liftcore.transformation(doubled, [True], [True, liftcore.Captured(all=True)], [True])


class Scale(nnx.Module):
    def __init__(self) -> None:
        self.w, self.calls = nnx.Param(jnp.full(3, 4.0)), nnx.BatchStat(jnp.array(0))

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return self.w * x


def in_scope(scope: Any, x: Any) -> Any:
    scope.variable("batch_stats", "calls", lambda: jnp.array(0)).value += 1
    return scope.param("w", nn.initializers.constant(4.0), (3,)) * x


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return in_scope(self.scope.push("scale"), x)


def of_scope(lift: Any, x: Any) -> Any:
    variables = {"params": {"w": jnp.full(3, 4.0)}, "batch_stats": {"calls": jnp.array(0)}}
    y, changed = liftcore.apply(lift(in_scope), mutable="batch_stats")(variables, x)
    return y, changed["batch_stats"]["calls"]


def of_linen(lift: Any, x: Any) -> Any:
    variables = {"params": {"scale": {"w": jnp.full(3, 4.0)}}, "batch_stats": {"scale": {"calls": jnp.array(0)}}}
    y, changed = nn.lift_with(lift, Linen)().apply(variables, x, mutable="batch_stats")
    return y, changed["batch_stats"]["scale"]["calls"]


def of_object(lift: Any, x: Any) -> Any:
    scale = Scale()
    y = nnx.lift(lift, Scale.__call__)(scale, x)
    assert (scale.w.get_value() == 4).all()
    return y, scale.calls.get_value()


def of_object_in_scope(lift: Any, x: Any) -> Any:
    lifted = lift(nnx.object_in_scope(lambda rngs: Scale()))
    variables = liftcore.init(nnx.object_in_scope(lambda rngs: Scale()))(KEY, x)[1]
    y, changed = liftcore.apply(lifted, mutable="batch_stats")(variables, x)
    return y, changed["batch_stats"]["calls"] - variables["batch_stats"]["calls"]  # the first call is in `init`


def of_pytree_with_kinds(lift: Any, x: Any) -> Any:
    class Module(pax.Module):
        def __init__(self) -> None:
            self.register_parameter("w", jnp.full(3, 4.0))
            self.register_state("calls", jnp.array(0))

        def __call__(self, x: Any) -> Any:
            self.calls = self.calls + 1
            return self.w * x

    changed, y = pax.lift(lift, Module.__call__)(Module(), x)
    return y, changed.calls


@pytest.mark.parametrize("lifted", [of_scope, of_linen, of_object, of_object_in_scope, of_pytree_with_kinds])
@pytest.mark.parametrize(("lift", "factor"), [(halved, 0.5), (twice, 2.0)], ids=["pack", "transformation"])
def test_one_lift_serves_all_styles(lift: Any, factor: float, lifted: Any) -> None:
    y, calls = lifted(lift, X)
    assert jnp.allclose(y, factor * 4 * X)
    assert calls == 1


def test_one_lift_serves_a_pytree_module() -> None:
    class Module(eqx.Module):
        w: Any

        def __call__(self, x: Any) -> Any:
            return self.w * x

    assert jnp.allclose(liftcore.filtered(twice, lambda _, module, x: module(x))((), Module(4.0), X), 8 * X)
    adopted = halved(lambda scope, x: eqx.adopt(scope, lambda key: Module(jnp.full(3, 4.0)))(x))
    assert jnp.allclose(liftcore.apply(adopted)({"params": {"w": jnp.full(3, 4.0)}}, X), 2 * X)


# -- names -------------------------------------------------------------------------------------------------------------


class Two(nnx.Module):
    def __init__(self) -> None:
        self.first, self.second = Scale(), Scale()

    def __call__(self, x: Any) -> Any:
        return self.first(x) + self.second(x)


class TwoWithKinds(pax.Module):
    first: Any
    second: Any

    def __init__(self) -> None:
        self.first, self.second = OneWithKinds(), OneWithKinds()

    def __call__(self, x: Any) -> Any:
        return self.first(x) + self.second(x)


class OneWithKinds(pax.Module):
    def __init__(self) -> None:
        self.register_parameter("w", jnp.full(3, 4.0))

    def __call__(self, x: Any) -> Any:
        return self.w * x


class TwoPytrees(eqx.Module):
    first: dict[str, Any]
    second: dict[str, Any]

    def __call__(self, x: Any) -> Any:
        return self.first["w"] * x + self.second["w"] * x


class TwoLinen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return sum(in_scope(self.scope.push(name), x) for name in ("first", "second"))


def two_in_scope(scope: Any, x: Any) -> Any:
    return in_scope(scope.push("first"), x) + in_scope(scope.push("second"), x)


def two_pytrees(key: Any) -> Any:
    return TwoPytrees({"w": jnp.full(3, 4.0)}, {"w": jnp.full(3, 4.0)})


def applied(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda lift: liftcore.apply(lift(fn), mutable=True)(liftcore.init(fn)(KEY, X)[1], X)[0]


OF_TWO: dict[str, Callable[[Any], Any]] = {
    "scope": applied(two_in_scope),
    "Linen": lambda lift: nn.lift_with(lift, TwoLinen)().apply(TwoLinen().init(KEY, X), X, mutable=True)[0],
    "object": lambda lift: nnx.lift(lift, Two.__call__)(Two(), X),
    "adopted object": applied(nnx.object_in_scope(lambda rngs: Two())),
    "with kinds": lambda lift: pax.lift(lift, TwoWithKinds.__call__)(TwoWithKinds(), X)[1],
    "adopted with kinds": applied(lambda scope, x: pax.adopt(scope, TwoWithKinds())(x)),
    "adopted pytree": applied(lambda scope, x: eqx.adopt(scope, two_pytrees)(x)),
}
FIRST = PathContains("first")
TREE = {"params": {"first": {"w": (3,)}}}
CHOICES = {
    "path": All("params", FIRST),
    "whole path": lambda path, value: path == ("params", "first", "w"),
    "not the other": All("params", Not(PathContains("second"))),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("style", OF_TWO)
def test_a_lift_that_looks_at_names_sees_the_same_tree_in_all_styles(style: str, choice: str) -> None:
    seen = []

    def halve(body: Any, groups: Any, rngs: Any, *args: Any) -> Any:
        seen.append(jax.tree.map(jnp.shape, groups[0][0]))
        return body((jax.tree.map(lambda leaf: leaf / 2, groups[0]), groups[1]), rngs, *args)

    lift = liftcore.transformation(halve, [CHOICES[choice], True], [Not("params"), liftcore.Captured()], [True])
    np.testing.assert_allclose(OF_TWO[style](lift), 6 * X)
    assert seen == [TREE]


# -- `nnx.lift` --------------------------------------------------------------------------------------------------------


def step(carry: Any, x: Any) -> Any:
    scale, total = carry
    return (scale, total + scale(x).sum()), scale.calls.get_value()


def test_lift_takes_transformations_of_the_core_with_their_options() -> None:
    scale = Scale()
    scan = nnx.lift(liftcore.scan, step, variable_carry="batch_stats", variable_broadcast="params")
    (same, total), calls = scan((scale, jnp.zeros(())), jnp.ones((4, 3)))
    assert same is scale
    assert total == 48
    assert calls.tolist() == [1, 2, 3, 4]
    assert scale.calls.get_value() == 4
    branch = nnx.lift(liftcore.switch, [Scale.__call__, lambda scale, x: x])
    assert jnp.array_equal(branch(1, scale, X), X)
    assert jnp.array_equal(branch(0, scale, X), 4 * X)
    assert scale.calls.get_value() == 5
    mapped = nnx.lift(liftcore.vmap, Scale.__call__, in_axes=(None, 0), variable_axes={True: None})
    assert mapped(scale, jnp.ones((2, 3))).shape == (2, 3)


def test_lift_meets_an_object_once() -> None:
    scale = Scale()
    same = nnx.lift(twice, lambda one, other, *, third: jnp.float32(one.w is other["a"].w is third.w))
    assert same(scale, {"a": scale}, third=scale) == 2


def test_several_objects_are_at_their_places_in_the_arguments() -> None:
    seen = []

    def look(body: Any, groups: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(jax.tree.map(jnp.shape, groups[0][0]["params"]))
        return body(groups, rngs, *args, **kwargs)

    shown = nnx.lift(liftcore.transformation(look, [True], [True], [True]), lambda *args, **kwargs: 0)
    one, two, w = Scale(), Scale(), {"w": (3,)}
    shown(1.0, [one], again=one)
    shown(one, 1.0, two)
    shown({"a.b": one}, {"a": {"b": two}}, last=nnx.Param(1.0))
    shown(nnx.Param(1.0))
    assert seen == [w, {"0": w, "2": w}, {"0['a.b']": w, "1['a']['b']": w, "last": ()}, {"value": ()}]


class Named(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.full((4, 3), 2.0), out_sharding=("layers", "model"))
        self.seen = nnx.BatchStat(jnp.zeros(4), out_sharding=("layers",))

    def __call__(self, x: Any) -> Any:
        self.seen += self.w.out_sharding == ("model",) and self.seen.out_sharding == ()
        return self.w * x


def test_a_mapping_takes_axis_names_away_inside() -> None:
    named = Named()
    options = {"variable_axes": {True: 0}, "metadata_params": {nn.PARTITION_NAME: "layers"}}
    y = nnx.lift(liftcore.vmap, Named.__call__, in_axes=None, axis_size=4, **options)(named, X)
    np.testing.assert_array_equal(y, jnp.stack([2 * X] * 4))
    assert named.seen.get_value().tolist() == [1.0] * 4
    assert named.w.out_sharding == ("layers", "model")


def test_variables_with_metadata_are_mapped_and_come_back() -> None:
    named = Named()
    double, halve = (lambda tree, by=by: jax.tree.map(lambda leaf: leaf * by, tree) for by in (2, 0.5))
    maps: dict[str, Any] = {"mapped": "params", "map_in": double, "map_out": halve, "mutable": True}
    doubled = nnx.lift(liftcore.map_variables, lambda named: named.w[0, 0], **maps)
    assert doubled(named) == 4
    assert named.w[0, 0] == 2


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one, self.two = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.one(x), self.two(x)


ONES = jnp.ones(64)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("lift", [liftcore.vmap, liftcore.scan])
def test_streams_are_split_by_their_tags(lift: Any, split: bool) -> None:
    noisy, plain = Noisy(nnx.Rngs(dropout=0)), Noisy(nnx.Rngs(dropout=0))
    options: dict[str, Any] = {"axis_size": 3, "in_axes": None}
    if lift is liftcore.scan:
        options = {"length": 3}
    options["split_rngs"] = {"dropout": split}
    drawn = nnx.lift(lift, lambda noisy, _: (noisy, noisy(ONES)), **options)(noisy, None)[1]
    masks = {tuple(row.tolist()) for part in drawn for row in part}
    assert len(masks) == (6 if split or lift is liftcore.scan else 2)  # two streams; the scan carries their counts
    assert (tuple(plain.one(ONES).tolist()) in masks) is not split
    after = [tuple(part.tolist()) for part in noisy(ONES)]
    assert masks.isdisjoint(after)


_ARGS: dict[str, Any] = {"in_axes": None, "axis_size": 3}
_STATES = ("RngKey", "RngCount")
STATES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "vmap": (liftcore.vmap, _ARGS, {"variable_axes": {_STATES: None}}),
    "pmap": (liftcore.pmap, {**_ARGS, "axis_size": 1}, {"variable_axes": {_STATES: None}}),
    "scan": (liftcore.scan, {"length": 3}, {"variable_broadcast": "RngKey", "variable_carry": "RngCount"}),
    "all": (liftcore.scan, {"length": 3, "variable_broadcast": True}, {"variable_carry": _STATES}),
    "partial": (functools.partial(liftcore.vmap, **_ARGS), {}, {"variable_axes": {"RngCount": None, "RngKey": None}}),
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_the_state_of_streams_needs_no_option(name: str, split: bool) -> None:
    lift, options, named = STATES[name]
    found = []
    for given in (options, {**options, **named}):
        noisy = Noisy(nnx.Rngs(dropout=0))
        lifted = nnx.lift(lift, lambda noisy, _: (noisy, noisy(ONES)), **given, split_rngs={"dropout": split})
        found.append((lifted(noisy, None)[1], noisy(ONES)))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_a_loop_over_objects_carries_the_counts_of_their_streams() -> None:
    noisy, plain = Noisy(nnx.Rngs(dropout=0)), Noisy(nnx.Rngs(dropout=0))
    split = {"dropout": False}
    again = nnx.lift(liftcore.fori_loop, lambda _, carry: (carry[0], carry[0].one(carry[1])), split_rngs=split)
    np.testing.assert_array_equal(again(0, 2, (noisy, ONES))[1], plain.one(plain.one(ONES)))
    once = nnx.lift(liftcore.while_loop, lambda c: c[1], lambda c: (c[0], c[0].one(ONES)[0] > 3), split_rngs=split)
    once((noisy, True))
    assert noisy.one.rngs.count.get_value() == 3
    assert noisy.two.rngs.count.get_value() == 0


UNLIFTED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "vmap": (liftcore.vmap, _ARGS, {"split_rngs": {"dropout": True}}),
    "vmap of another name": (
        liftcore.vmap,
        {**_ARGS, "split_rngs": {"noise": True}},
        {"split_rngs": {"dropout": True}},
    ),
    "scan": (liftcore.scan, {"length": 2}, {"split_rngs": {"dropout": True}}),
    "scan that carries the state": (
        liftcore.scan,
        {"length": 2, "variable_carry": ("RngKey", "RngCount")},
        {"split_rngs": {"dropout": True}},
    ),
    "jit": (liftcore.jit, {"rngs": False}, {"rngs": "dropout"}),
    "remat": (liftcore.remat, {"rngs": "params"}, {"rngs": "dropout"}),
}


@pytest.mark.parametrize("name", UNLIFTED)
def test_a_draw_from_a_stream_that_the_lift_does_not_take_is_an_error(name: str) -> None:
    lift, options, fix = UNLIFTED[name]
    noisy = Noisy(nnx.Rngs(dropout=0))

    def call(draws: bool, **given: Any) -> Any:
        return nnx.lift(lift, lambda noisy, _: (noisy, noisy(ONES) if draws else 0), **given)(noisy, None)

    with pytest.raises(UnliftedStreamError) as caught:
        call(True, **options)
    [(option, value)] = fix.items()
    assert option in caught.value.fix
    assert str(value).replace("'", '"') in caught.value.fix
    call(True, **{**options, **fix})
    call(False, **options)
    assert noisy.one.rngs.count.get_value() == (2 if lift is liftcore.scan else 1)


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat])
def test_streams_that_are_not_split_draw_as_without_the_lift(lift: Any) -> None:
    noisy, plain = Noisy(nnx.Rngs(dropout=0)), Noisy(nnx.Rngs(dropout=0))
    for _ in range(2):
        np.testing.assert_array_equal(nnx.lift(lift, Noisy.__call__)(noisy, ONES), plain(ONES))


def _adds(scale: Any, x: Any) -> Any:
    scale.new = nnx.Param(x)
    return x


def _raises(scale: Any, x: Any) -> Any:
    scale(x)
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: nnx.lift(twice, _adds), StructureError, "new was added"),
        (lambda: nnx.lift(twice, lambda scale, x: Scale()), StructureError, "was not an argument"),
        (lambda: nnx.lift(twice, Scale()), LiftArgumentError, "method bound to one Scale"),
        (lambda: nnx.lift(twice), LiftArgumentError, "at least one function"),
        (lambda: nnx.lift(3, step), LiftArgumentError, "lift"),
        (lambda: nnx.lift(twice, _raises), ZeroDivisionError, None),
        (
            lambda: nnx.lift(functools.partial(liftcore.vmap, in_axes=(None, 0), variable_axes={"params": None}), step),
            UnliftedCollectionError,
            "batch_stats",
        ),
    ],
)
def test_what_cannot_be_lifted_is_an_error_and_changes_nothing(make: Any, error: Any, text: Any) -> None:
    scale = Scale()
    with pytest.raises(error, match=text):
        make()(scale, X)
    assert scale.calls.get_value() == 0
    assert not hasattr(scale, "new")

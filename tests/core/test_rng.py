"""Words, keys and streams: which numbers they are, what they are drawn from, and what is no key."""

from __future__ import annotations

import functools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import rng
from liftcore.errors import InvalidRngError, LiftArgumentError
from liftcore.filters import DenyList, Nothing, intersect
from liftcore.pipeline import stages
from liftcore.scopes.tree import Tree


@pytest.mark.parametrize(
    ("items", "word"),
    [
        ((1,), 1059673188),
        ((0,), 1537817757),  # a count of no bytes at all
        (("Dense_0", 1), 4288924255),
        (("a", "b", 1), 2122571125),
        (("ab", 1), 1779601546),
        (("a", 97), 1289887878),
        (("a", 256), 3645798498),  # a count of two bytes
        (("été", 2), 242481787),
    ],
)
def test_a_word_is_the_head_of_a_hash(items: tuple[Any, ...], word: int) -> None:
    assert int(rng.fold_in_data(items)) == word
    assert rng.fold_in_data(items).dtype == np.uint32


def test_the_key_of_a_draw_folds_in_the_word_of_path_and_count() -> None:
    def draws(scope: Any) -> list[Any]:
        top = [scope.make_rng(), scope.make_rng()]
        return [*top, scope.push("Dense_0").make_rng(), scope.push("a").push("b").make_rng()]

    key = jax.random.key(0)
    found = liftcore.apply(draws)({}, rngs=key)
    words = [rng.fold_in_data(items) for items in [(1,), (2,), ("Dense_0", 1), ("a", "b", 1)]]
    assert found == [jax.random.fold_in(key, word) for word in words]
    assert jax.random.key_data(found[0]).tolist() == [1543086838, 3704909070]
    assert jax.random.key_data(found[2]).tolist() == [243693010, 2466960572]
    assert jax.random.key_data(found[3]).tolist() == [685440748, 4031007777]


def test_raw_keys_draw_what_typed_keys_draw() -> None:
    def draw(scope: Any) -> Any:
        return scope.push("a").make_rng("dropout")

    typed = liftcore.apply(draw)({}, rngs={"dropout": jax.random.key(3)})
    raw = liftcore.apply(draw)({}, rngs={"dropout": jax.random.PRNGKey(3)})
    assert raw.dtype == jnp.uint32
    assert (jax.random.key_data(typed) == raw).all()


def test_each_sequence_counts_for_itself_at_each_place() -> None:
    def draws(scope: Any) -> list[Any]:
        below = scope.push("below")
        return [scope.make_rng("a"), scope.make_rng("b"), below.make_rng("a"), scope.make_rng("a"), below.make_rng("a")]

    a, b = jax.random.key(1), jax.random.key(2)
    words = [(a, (1,)), (b, (1,)), (a, ("below", 1)), (a, (2,)), (a, ("below", 2))]
    expected = [jax.random.fold_in(key, rng.fold_in_data(items)) for key, items in words]
    assert liftcore.apply(draws)({}, rngs={"a": a, "b": b}) == expected


def test_a_single_key_is_the_sequence_params() -> None:
    def draw(scope: Any) -> Any:
        return scope.make_rng(), scope.has_rng("params"), scope.has_rng("dropout")

    key = jax.random.key(5)
    assert liftcore.apply(draw)({}, rngs=key) == liftcore.apply(draw)({}, rngs={"params": key})
    assert liftcore.apply(draw)({}, rngs=key)[1:] == (True, False)


def test_a_sequence_that_was_never_given_draws_from_params_with_its_counts() -> None:
    def draws(scope: Any) -> list[Any]:
        return [scope.make_rng("params"), scope.make_rng("dropout"), scope.make_rng("params"), scope.make_rng("noise")]

    key = jax.random.key(0)
    assert liftcore.apply(draws)({}, rngs=key) == [
        jax.random.fold_in(key, rng.fold_in_data((count,))) for count in (1, 2, 3, 4)
    ]


def test_a_given_sequence_never_falls_back() -> None:
    def draws(scope: Any) -> Any:
        return scope.make_rng("dropout")

    found = liftcore.apply(draws)({}, rngs={"params": jax.random.key(0), "dropout": jax.random.key(1)})
    assert found == jax.random.fold_in(jax.random.key(1), rng.fold_in_data((1,)))


def test_a_missing_sequence_names_those_that_were_given() -> None:
    def draw(scope: Any) -> Any:
        return scope.push("a").make_rng("dropout")

    with pytest.raises(InvalidRngError) as caught:
        liftcore.apply(draw)({}, rngs={"noise": jax.random.key(0)})
    assert caught.value.where == 'make_rng("dropout") at /a'
    assert "['noise']" in caught.value.what
    assert 'rngs={"dropout": jax.random.key(0)}' in caught.value.fix


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (0, "given 0"),
        (jnp.zeros((2,)), "given a float32[2] array"),
        (jax.random.split(jax.random.key(0), 3), "given PRNG keys of shape (3,)"),
        (jnp.zeros((3, 2), jnp.uint32), "given a uint32[3,2] array"),
    ],
)
def test_what_is_no_key_is_refused(given: Any, shown: str) -> None:
    for enter in (liftcore.init(lambda scope: 0), lambda rngs: liftcore.apply(lambda scope: 0)({}, rngs=rngs)):
        with pytest.raises(InvalidRngError, match="expected one PRNG key") as caught:
            enter({"params": given})
        assert caught.value.where == 'rngs["params"]'
        assert shown in caught.value.what


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0), jax.random.key(0, impl="rbg")])
def test_typed_and_raw_keys_are_keys(key: Any) -> None:
    assert rng.is_key(key)
    assert rng.is_key(jax.eval_shape(lambda: key))


def test_keys_may_be_tracers() -> None:
    def draw(key: Any) -> Any:
        return liftcore.apply(lambda scope: scope.make_rng())({}, rngs=key)

    keys = jax.random.split(jax.random.key(0), 3)
    assert jax.vmap(draw)(keys)[1] == jax.jit(draw)(keys[1]) == draw(keys[1])


def test_rewinding_draws_again_what_was_drawn() -> None:
    def draws(scope: Any) -> Any:
        first = scope.make_rng(), scope.push("a").make_rng()
        again = scope.rewound()
        on = again.make_rng(), again.push("a").make_rng()
        back = scope.rewound(rewind_rngs=True)
        return first, on, (back.make_rng(), back.push("a").make_rng())

    first, on, back = liftcore.apply(draws)({}, rngs=jax.random.key(0))
    assert first == back
    assert first[0] != on[0]
    assert first[1] != on[1]


def test_a_scope_that_was_kept_counts_on() -> None:
    def model(scope: Any) -> Any:
        kept = scope.push("a")
        first = kept.make_rng()
        kept.put_variable("state", "n", 1)
        new = scope.rewound(rewind_rngs=True).push("a")
        on = kept.make_rng()
        new.put_variable("state", "n", 2)
        return first, on, new.make_rng(), kept.get_variable("state", "n")

    first, on, again, n = liftcore.apply(model, mutable=True)({}, rngs=jax.random.key(0))[0]
    assert first == again
    assert first != on
    assert n == 2, "it is one place, so what is written there is seen"


def test_draws_of_a_branch_that_rewinds_do_not_count_after_it() -> None:
    def rewinding(scope: Any) -> Any:
        return jax.random.key_data(scope.rewound(rewind_rngs=True).make_rng())

    def drawing(scope: Any) -> Any:
        return jax.random.key_data([scope.make_rng() for _ in range(2)][-1])

    def model(scope: Any, pred: bool, before: int) -> Any:
        keys = [jax.random.key_data(scope.make_rng()) for _ in range(6)][:before]
        scope = scope.rewound(rewind_rngs=True)
        for _ in range(before):
            scope.make_rng()
        return keys, liftcore.cond(rewinding, drawing)(scope, pred), jax.random.key_data(scope.make_rng())

    for pred in (True, False):
        for before in (0, 3):
            _, inside, after = liftcore.apply(model)({}, pred, before, rngs=jax.random.key(0))
            keys, _, _ = liftcore.apply(model)({}, pred, 6, rngs=jax.random.key(0))
            assert (inside == keys[0 if pred else before + 1]).all()
            assert (after == keys[before + 2]).all(), "the other branch draws two keys"


@pytest.mark.parametrize("given", ["at one place", "above it", "below it"])
def test_scopes_of_one_place_that_count_apart_are_not_given_together(given: str) -> None:
    def model(scope: Any) -> Any:
        below = scope.push("a")
        scopes = {
            "at one place": (below, below.rewound(rewind_rngs=True)),
            "above it": (below, scope.rewound(rewind_rngs=True)),
            "below it": (scope, below.rewound(rewind_rngs=True)),
        }[given]
        return liftcore.remat(lambda scopes: [each.make_rng() for each in scopes])(scopes)

    with pytest.raises(
        LiftArgumentError, match=r"at /a, .* counts its draws apart .* `scope = scope.rewound\(rewind_rngs=True\)`"
    ):
        liftcore.apply(model)({}, rngs=jax.random.key(0))


def test_rewound_scopes_may_be_given_together() -> None:
    def model(scope: Any, lift: Any) -> Any:
        back = scope.push("a").rewound(rewind_rngs=True)
        scopes = back, back.push("b"), back.rewound(), scope.push("c").rewound(rewind_rngs=True)
        first = [each.make_rng() for each in scopes]
        return first, lift(lambda scopes: [each.make_rng() for each in scopes])(scopes), back.make_rng()

    run = liftcore.apply(model)
    found = [run({}, lift, rngs=jax.random.key(0)) for lift in (liftcore.jit, liftcore.remat, lambda fn: fn)]
    assert found[0] == found[1] == found[2]


# --- initializers that ignore their key -------------------------------------------------------------------------------


class _Methods:
    def method(self, key: Any) -> Any:
        return key


def _overwriting(key: Any, shape: Any = ()) -> Any:
    key = jnp.zeros(shape)
    del key
    return shape


IGNORE = {
    "zeros": jax.nn.initializers.zeros,
    "ones": jax.nn.initializers.ones,
    "constant": jax.nn.initializers.constant(3),
    "a lambda": lambda _: 1.0,
    "a default": lambda key, value=3: value,
    "another name in a closure": lambda key, shape: [shape for _ in range(3)],
    "overwritten": _overwriting,
}
LOOK = {
    "normal": jax.nn.initializers.normal(),
    "first of two": lambda key, other: (other, key),
    "in a closure": lambda key: lambda: key,
    "in a comprehension": lambda key: [key for _ in range(2)],
    "all arguments": lambda *args: args,
    "keyword arguments": lambda *args, **kwargs: kwargs,
    "locals": lambda key: locals(),
    "eval": lambda key: eval("key"),
    "a method": _Methods().method,
    "a partial": functools.partial(jax.nn.initializers.zeros, dtype=jnp.float32),
    "a compiled function": jax.jit(lambda key: 1.0),
    "a builtin": len,
    "a class": list,
}


@pytest.mark.parametrize("name", IGNORE)
def test_an_initializer_is_known_to_ignore_its_key(name: str) -> None:
    assert rng.ignores_key(IGNORE[name])


@pytest.mark.parametrize("name", LOOK)
def test_an_initializer_that_may_look_at_its_key_gets_one(name: str) -> None:
    assert not rng.ignores_key(LOOK[name])


def test_an_ignored_key_counts_as_a_draw() -> None:
    def model(scope: liftcore.Scope, first: Any) -> Any:
        scope.param("first", first)
        return scope.param("second", jax.random.normal)

    unused, used = (liftcore.init(model)(jax.random.key(0), first)[0] for first in (lambda _: 1.0, jax.random.normal))
    assert unused == used
    with pytest.raises(InvalidRngError):
        liftcore.apply(model, mutable=True)({}, lambda _: 1.0)


def test_a_folded_key_is_that_of_jax() -> None:
    for root in (jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")):
        ours, theirs = rng.fold_in(root, np.uint32(7)), jax.random.fold_in(root, np.uint32(7))
        assert ours.dtype == theirs.dtype
        assert (jax.random.key_data(ours) == jax.random.key_data(theirs)).all()


@pytest.mark.parametrize("in_axes", [None, (0, 0), (0, None)])
def test_a_key_is_folded_by_the_equation_of_jax(in_axes: Any) -> None:
    keys, words = jax.random.split(jax.random.key(3), 2), np.array([7, 9], np.uint32)
    given = keys if in_axes else keys[0], words if in_axes == (0, 0) else words[0]

    def traced(fold: Any) -> str:
        return str(jax.make_jaxpr(jax.vmap(fold, in_axes) if in_axes else fold)(*given))

    assert traced(rng.fold_in) == traced(jax.random.fold_in)


def test_a_raw_key_is_folded_by_the_implementation_of_the_moment() -> None:
    key = jnp.arange(4, dtype=jnp.uint32)
    for impl in ("rbg", "unsafe_rbg", "rbg"):
        with jax.default_prng_impl(impl):
            assert (rng.fold_in(key, np.uint32(7)) == jax.random.fold_in(key, np.uint32(7))).all()


@pytest.mark.parametrize("seed", range(30))
def test_fallbacks_that_are_left_out_are_those_that_no_name_comes_to(seed: int) -> None:
    chosen = random.Random(seed)
    starts = lambda path, value: path[0].startswith("d")  # noqa: E731
    pool: list[Any] = [
        "dropout",
        "params",
        ("noise", "params"),
        DenyList("dropout"),
        DenyList(("noise", "other")),
        True,
        starts,
    ]
    fallbacks = [(intersect(*chosen.choices(pool, k=2)), object()) for _ in range(12)]
    tree = Tree({}, {"params": jax.random.key(0)}, Nothing())
    kept = stages._reachable(tree, fallbacks)
    assert len(kept) <= 8
    for name in ("dropout", "noise", "other", "draft"):
        first, again = (next((root for rule, root in all if rule((name,), None)), None) for all in (fallbacks, kept))
        assert first is again

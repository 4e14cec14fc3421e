"""`pack`: its six stages, each on its own, and lifted transformations written with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Captured, Changes, Scope, nn
from liftcore.errors import (
    InvalidScopeError,
    LiftArgumentError,
    LiftError,
    ModifyScopeVariableError,
    NameInUseError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, PathContains, to_predicate
from liftcore.pipeline.body import Body
from liftcore.pipeline.stages import commit, dedupe, filter_, reconstruct, repack

KEY, OTHER = jax.random.key(0), jax.random.key(1)


def bound(variables: dict[str, Any] | None = None, mutable: Any = True, rngs: Any = KEY) -> Scope:
    return liftcore.bind(variables or {}, rngs, mutable)


# -- dedupe ------------------------------------------------------------------------------------------------------------


def test_dedupe_of_one_scope_is_that_scope() -> None:
    scope = bound().push("a")
    outers, given, routes, structure = dedupe(scope)
    assert outers == given == [scope]
    assert routes == ((0, ()),)
    assert jax.tree.unflatten(structure, ["inner"]) == "inner"


def test_dedupe_keeps_the_structure_of_the_given_scopes() -> None:
    root = bound()
    a, b = root.push("a"), root.push("b")
    outers, given, routes, structure = dedupe({"x": [a], "y": (b, a)})
    assert outers == [a, b]
    assert given == [a, b, a]
    assert routes == ((0, ()), (1, ()), (0, ()))
    assert jax.tree.unflatten(structure, [1, 2, 3]) == {"x": [1], "y": (2, 3)}


def test_dedupe_takes_two_views_of_one_place_as_one() -> None:
    root = bound()
    one, other = root.push("a"), root.push("a", reuse=True)
    outers, _, routes, _ = dedupe((one, other))
    assert outers == [one]
    assert routes == ((0, ()), (0, ()))


@pytest.mark.parametrize("parent_first", [True, False])
def test_dedupe_routes_a_child_through_its_parent(parent_first: bool) -> None:
    root = bound()
    parent = root.push("a")
    child = parent.push("b").push("c")
    outers, _, routes, _ = dedupe((parent, child) if parent_first else (child, parent))
    assert outers == [parent]
    assert set(routes) == {(0, ()), (0, ("b", "c"))}
    assert routes.index((0, ())) == (0 if parent_first else 1)


def test_dedupe_goes_by_places_not_by_names() -> None:
    root = bound()
    a, ab = root.push("a"), root.push("ab")
    assert dedupe((a, ab))[0] == [a, ab]
    assert dedupe((a, bound().push("a").push("b")))[2] == ((0, ()), (1, ())), "two trees have nothing in common"


def test_dedupe_refuses_an_ended_scope() -> None:
    scope = bound()
    scope.invalidate()
    with pytest.raises(InvalidScopeError):
        dedupe([scope])


# -- filter_ -----------------------------------------------------------------------------------------------------------


def grouped(outers: list[Scope], variables: list[Any], rngs: list[Any]) -> Any:
    return filter_(outers, [to_predicate(one) for one in variables], [to_predicate(one) for one in rngs])[:2]


def test_filter_gives_each_variable_to_the_first_that_matches() -> None:
    scope = bound({"params": {"a": 1}, "state": {"b": 2}, "cache": {"c": 3}})
    (params, rest), _ = grouped([scope], ["params", ["params", "state"]], [])
    assert params == ({"params": {"a": 1}},)
    assert rest == ({"state": {"b": 2}},), "what nobody takes is not lifted"


def test_filter_makes_a_tree_for_each_scope() -> None:
    root = bound({"params": {"a": {"w": 1}, "b": {"w": 2}}})
    (group,), _ = grouped([root.push("a"), root.push("b")], [True], [])
    assert group == ({"params": {"w": 1}}, {"params": {"w": 2}})


def test_filter_sees_absolute_paths() -> None:
    scope = bound({"params": {"a": {"w": 1, "b": {"w": 2}}}}).push("a")
    (first, second), _ = grouped([scope], [lambda path, value: path == ("params", "a", "b", "w"), True], [])
    assert first == ({"params": {"b": {"w": 2}}},)
    assert second == ({"params": {"w": 1}},)


def test_filter_passes_on_whole_dicts_as_they_are() -> None:
    kernel = {"w": object()}
    (group,), _ = grouped([bound({"params": {"deep": kernel}})], ["params"], [])
    assert group[0]["params"]["deep"] is kernel


def test_filter_groups_the_roots_of_sequences() -> None:
    scope = bound(rngs={"params": KEY, "dropout": OTHER, "noise": KEY})
    _, (first, second) = grouped([scope], [], ["dropout", ["params", "dropout"]])
    assert first[0]["dropout"] == OTHER
    assert "params" not in first[0]
    assert second[0]["params"] == KEY
    assert "noise" not in second[0]


# -- reconstruct and repack, inside a lift that changes nothing --------------------------------------------------------


def body_of(scopes: Any, into: list[Any], out: list[Any], rngs: list[Any]) -> tuple[Body, Any, Any]:
    """The body that a transformation is given, with its groups."""
    caught: list[Any] = []

    def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
        caught.append((scope_fn.__self__, variable_groups, rng_groups))
        return None, repack_fn(scope_fn(variable_groups, rng_groups))

    liftcore.pack(transform, into, out, rngs, name="none")(scopes)
    return caught[0]


def test_reconstruct_makes_live_scopes_at_the_same_paths() -> None:
    root = bound({"params": {"a": {"w": 1}}, "cache": {"a": {"c": 2}}})
    outer = root.push("a")
    body, variables, rngs = body_of(outer, ["params"], [True], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    assert inner.path == outer.path
    assert inner.path_text == "/a/none"
    assert inner.push("b").path_text == "/a/none/b"
    assert inner.parent is None
    assert inner.variables() == {"params": {"w": 1}}
    assert inner.is_valid


def test_reconstruct_goes_on_counting() -> None:
    outer = bound().push("a")
    outer.make_rng()
    body, variables, rngs = body_of(outer, [True], [True], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    assert inner.make_rng() == outer.make_rng()
    assert inner.push("b").make_rng() == outer.push("b").make_rng()


@pytest.mark.parametrize(
    ("outside", "out", "allowed", "writable"),
    [
        (True, [True], True, True),
        (True, [True], False, False),
        (True, [True], "params", False),
        (True, ["params"], True, False),
        (True, ["params", "state"], True, True),
        (["params"], [True], True, False),
        (["state"], [True], ["params", "state"], True),
    ],
)
def test_reconstruct_allows_writing_where_all_three_allow_it(
    outside: Any, out: list[Any], allowed: Any, writable: bool
) -> None:
    body, variables, rngs = body_of(bound({"state": {"n": 1}}, mutable=outside), [True], out, [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs, allowed)
    assert inner.is_mutable_collection("state") is writable
    if not writable:
        with pytest.raises((ModifyScopeVariableError, UnliftedCollectionError)):
            inner.put_variable("state", "n", 2)


def test_repack_groups_what_was_written_and_what_was_created() -> None:
    outer = bound({"params": {"w": 1}, "state": {"n": 1, "m": 1}}).push("a")
    body, variables, rngs = body_of(outer, [True], ["params", "state"], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    inner.put_variable("state", "n", 2)
    made = inner.push("b").variable("state", "k", lambda: 3)
    made.value = 4
    inner.param("v", lambda key: 5)
    (params, state), sown = repack(body.layout, [inner])
    assert params == Changes(({},), ({"params": {"v": 5}},))
    assert state == Changes(({"state": {"n": 2, "b": {"k": 4}}},), ({"state": {"b": {"k": 3}}},))
    assert sown == ((),)


def test_repack_leaves_out_what_was_only_read() -> None:
    body, variables, rngs = body_of(bound({"state": {"n": 1}}), [True], [True], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    assert inner.variable("state", "n").value == 1
    assert repack(body.layout, [inner])[0] == (Changes(({},), ({},)),)


def test_repack_gives_each_variable_to_the_first_output_filter_that_matches() -> None:
    body, variables, rngs = body_of(bound(), [True], [All("params", PathContains("lora")), "params"], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    inner.param("w", lambda key: 1)
    inner.push("lora").param("w", lambda key: 2)
    (lora, rest), _ = repack(body.layout, [inner])
    assert lora.created == ({"params": {"lora": {"w": 2}}},)
    assert rest.created == ({"params": {"w": 1}},)


def test_repack_puts_captured_values_last() -> None:
    body, variables, rngs = body_of(bound(), ["params"], ["params", Captured()], [True])
    (inner,) = reconstruct(body.layout, body.outers, variables, rngs)
    inner.push("b").sow("intermediates", "y", 7)
    (params, captured), sown = repack(body.layout, [inner])
    assert params == Changes(({},), ({},))
    assert captured == ([7],)
    assert [(one.path, one.collection, one.name) for (one,) in sown] == [(("b",), "intermediates", "y")]


def test_commit_puts_values_where_they_belong() -> None:
    root = bound({"state": {"a": {"n": 1}}})
    outer = root.push("a")
    body, *_ = body_of(outer, [True], [True], [True])
    commit(body, (Changes(({"state": {"n": 2, "b": {"k": 4}}},), ({"state": {"b": {"k": 3}}},)),))
    assert root.variables() == {"state": {"a": {"n": 2, "b": {"k": 4}}}}


# -- the whole ---------------------------------------------------------------------------------------------------------


def identity(fn: Callable[..., Any], *, name: str | None = None, **groups: Any) -> Callable[..., Any]:
    """A lift that changes nothing."""
    filters = {"in_variable_filters": [True], "out_variable_filters": [True], "rng_filters": [True], **groups}

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return fn(scope, *args, **kwargs), repack_fn(scope)

    return liftcore.pack(transform, **filters, name=name)


def test_a_lift_that_changes_nothing_is_not_there() -> None:
    def body(scope: Scope, x: Any, *, scale: float) -> Any:
        w = scope.param("w", jax.random.normal, (2,))
        inner = scope.push("b").param("w", jax.random.normal, (2,))
        count = scope.variable("state", "n", lambda: 0)
        count.value += 1
        scope.sow("intermediates", "y", x)
        return x * (w + inner) * scale + jax.random.normal(scope.make_rng("dropout"), (2,))

    rngs = {"params": KEY, "dropout": OTHER}
    plain = liftcore.init(body)(rngs, jnp.ones(2), scale=3.0)
    lifted = liftcore.init(identity(body))(rngs, jnp.ones(2), scale=3.0)
    assert jax.tree.structure(plain) == jax.tree.structure(lifted)
    jax.tree.map(np.testing.assert_array_equal, plain, lifted)


def test_draws_and_names_go_on_after_a_lift() -> None:
    def body(scope: Scope) -> Any:
        scope.push("a").make_rng()
        return scope.make_rng()

    def model(scope: Scope, lifted: bool) -> Any:
        first = scope.make_rng()
        inside = (identity(body) if lifted else body)(scope)
        taken = scope.name_reserved("a")
        return first, inside, taken, scope.make_rng(), scope.push("a", reuse=True).make_rng()

    assert liftcore.apply(model)({}, True, rngs=KEY) == liftcore.apply(model)({}, False, rngs=KEY)


def test_a_pytree_of_scopes_goes_through() -> None:
    def body(scopes: dict[str, Any]) -> Any:
        parent, (child, again) = scopes["parent"], scopes["children"]
        assert child.path == again.path == ("a", "b")
        again.put_variable("state", "n", child.get_variable("state", "n") + 1)
        assert parent.push("b", reuse=True).get_variable("state", "n") == 2
        assert child.get_variable("state", "n") == 2
        return scopes["other"].get_variable("state", "n")

    root = bound({"state": {"a": {"b": {"n": 1}}, "c": {"n": 7}}})
    parent = root.push("a")
    child = parent.push("b")
    result = identity(body)({"parent": parent, "children": (child, child), "other": root.push("c")})
    assert result == 7
    assert root.variables()["state"] == {"a": {"b": {"n": 2}}, "c": {"n": 7}}


def test_two_views_of_one_place_have_names_of_their_own() -> None:
    def body(views: tuple[Scope, Scope]) -> Any:
        return [view.param("w", jax.random.normal, ()) for view in views]

    def model(scope: Scope, lifted: bool) -> Any:
        views = scope.push("a"), scope.push("a", reuse=True)
        return (identity(body) if lifted else body)(views)

    assert liftcore.init(model)(KEY, True) == liftcore.init(model)(KEY, False)


def test_what_is_not_lifted_cannot_be_used() -> None:
    root = bound({"params": {"w": 1}, "cache": {"c": 2}}, rngs={"params": KEY, "dropout": OTHER})
    only: dict[str, Any] = {
        "in_variable_filters": ["params"],
        "out_variable_filters": ["params"],
        "rng_filters": ["params"],
    }

    def raises(kind: type[LiftError], body: Callable[[Scope], Any]) -> LiftError:
        with pytest.raises(kind) as caught:
            identity(body, name="mine", **only)(root)
        return caught.value

    for read in (
        lambda scope: scope.get_variable("cache", "c"),
        lambda scope: scope.has_variable("cache", "c"),
        lambda scope: scope.variable("cache", "c", lambda: 0),
    ):
        error = raises(UnliftedCollectionError, read)
        assert error.where == '"cache/c" at /mine'
        assert "exists outside mine" in error.what
    error = raises(UnliftedCollectionError, lambda scope: scope.put_variable("cache", "new", 0))
    assert "no output group of mine takes it" in error.what
    error = raises(UnliftedStreamError, lambda scope: scope.make_rng("dropout"))
    assert error.where == 'make_rng("dropout") at /mine'
    assert "the stream was given, but mine does not pass it in" in error.what
    assert root.variables() == {"params": {"w": 1}, "cache": {"c": 2}}


def test_if_the_body_raises_nothing_has_happened() -> None:
    def body(scope: Scope) -> Any:
        scope.put_variable("state", "n", 2)
        scope.param("w", lambda key: 1)
        scope.push("b").make_rng()
        scope.make_rng()
        scope.sow("intermediates", "y", 1)
        raise KeyError("broken")

    root = bound({"state": {"n": 1}})
    with pytest.raises(KeyError, match="broken"):
        identity(body)(root)
    assert root.variables() == {"state": {"n": 1}}
    assert not any(root.names())
    assert root.make_rng() == bound().make_rng()
    assert root.push("b").make_rng() == bound().push("b").make_rng()


@pytest.mark.parametrize(("created", "written"), [((2,), ()), ((), (2,))])
def test_if_one_variable_may_not_be_written_outside_none_is(created: Any, written: Any) -> None:
    """What a filter says of a value may be another thing outside, where it is stacked."""

    def body(scope: Scope) -> Any:
        scope.variable("state", "a", lambda: jnp.zeros(()))
        scope.push("inner").variable("state", "b", lambda: jnp.zeros(created))
        scope.put_variable("state", "n", jnp.ones(written))
        return scope.make_rng()

    lifted = liftcore.vmap(body, variable_axes={"state": 0}, split_rngs={True: True}, axis_size=3)
    given = {"state": {"n": jnp.arange(3.0)}}
    root = bound(given, lambda path, value: np.ndim(value) < 2)
    with pytest.raises(ModifyScopeVariableError):
        lifted(root)
    assert root.variables() == given
    assert not any(root.names())
    assert (root.tree.created, root.tree.written) == ({}, {})
    assert root.make_rng() == bound().make_rng()


@pytest.mark.parametrize("place", [(), ("inner",)])
@pytest.mark.parametrize("fails", ["reduce_fn", "init_fn", "name"])
def test_if_a_captured_value_cannot_be_kept_outside_nothing_has_happened(place: tuple[str, ...], fails: str) -> None:
    def refuses(*_: Any) -> Any:
        raise KeyError("refused")

    def body(scope: Scope) -> Any:
        scope.put_variable("state", "n", 2)
        scope.push("inner")
        scope.make_rng()
        scope.sow("intermediates", "x", 1)
        options = {} if fails == "name" else {fails: refuses}
        scope.below(place).sow("intermediates", "y", 2, **options)
        scope.sow("intermediates", "z", 3)

    root = bound({"state": {"n": 1}})
    if fails == "name":
        root.reserve("z")
    names = root.names()
    with pytest.raises((KeyError, NameInUseError), match=r"refused|z"):
        identity(body, out_variable_filters=["state", Captured()])(root)
    assert root.variables() == {"state": {"n": 1}}
    assert root.names() == names
    assert (root.tree.written, root.tree.sown) == ({}, [])
    assert root.make_rng() == bound().make_rng()


def test_captured_values_of_one_name_are_added_to_each_other_and_to_what_the_body_wrote() -> None:
    def body(scope: Scope) -> Any:
        for value in (2, 3):
            scope.sow("intermediates", "y", value)
            scope.sow("sums", "y", value, init_fn=lambda: 10, reduce_fn=lambda sown, value: sown + value)

    root = bound({"intermediates": {"y": (1,)}})
    identity(body, out_variable_filters=["state", Captured()])(root)
    assert root.variables() == {"intermediates": {"y": (1, 2, 3)}, "sums": {"y": 15}}
    with pytest.raises(NameInUseError):
        root.reserve("y", "sums")


def test_a_captured_value_is_added_to_the_last_value_of_what_the_body_created() -> None:
    def body(scope: Scope) -> Any:
        scope.variable("sums", "y", lambda: 10).value = 20
        scope.sow("sums", "y", 3, reduce_fn=lambda sown, value: sown + value)

    root = bound()
    identity(body, out_variable_filters=["sums", Captured(all=True)])(root)
    assert root.variables() == {"sums": {"y": 23}}


def test_a_sow_that_raises_leaves_its_name_free() -> None:
    root = bound()
    with pytest.raises(TypeError):
        root.sow("intermediates", "y", 1, reduce_fn=lambda sown: sown)  # type: ignore[misc, arg-type]
    assert root.sow("intermediates", "y", 1)


# -- what a body may not share with the scopes outside, nor several bodies with each other -----------------------------


def test_draws_in_a_child_that_was_there_do_not_count_outside_if_the_body_raises() -> None:
    def prepared() -> Scope:
        root = bound()
        root.push("b").push("c").make_rng()
        return root

    def body(scope: Scope) -> Any:
        for place in ((), ("b",), ("b", "c")):
            scope.below(place).make_rng()
        raise KeyError("broken")

    root, untouched = prepared(), prepared()
    with pytest.raises(KeyError, match="broken"):
        identity(body)(root)
    for place in ((), ("b",), ("b", "c")):
        assert root.below(place).make_rng() == untouched.below(place).make_rng()


def test_a_child_that_was_read_outside_is_another_inside() -> None:
    """The scopes of one path share a node, which keeps their dicts: those inside of a lift hold other values."""
    root = bound({"params": {"b": {"c": {"w": jnp.arange(3.0)}}}}, mutable=["state"])
    outside = root.push("b").push("c")
    assert outside.get_variable("params", "w").shape == (3,)
    seen = []

    def body(scope: Scope) -> Any:
        inner = scope.below(("b", "c"))
        seen.append(inner.get_variable("params", "w").shape)
        inner.put_variable("state", "n", inner.get_variable("params", "w") + 1)
        seen.append(inner.get_variable("state", "n").shape)

    liftcore.vmap(body, variable_axes={True: 0}, axis_size=3)(root)
    assert seen == [(), ()]
    assert outside.get_variable("params", "w").shape == (3,)
    assert outside.get_variable("state", "n").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("draws", [(3, 1, 2), (1, 3, 2), (1, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_of_several_bodies_each_begins_as_the_first_and_the_longest_counts(draws: tuple[int, ...]) -> None:
    """Each place and each stream for itself, wherever the body that draws most there stands."""
    streams = {"params": KEY, "dropout": OTHER}
    places: list[tuple[str, ...]] = [(), ("old",), ("old", "deep"), ("new",)]

    def prepared() -> Scope:
        root = liftcore.bind({}, streams, True)
        root.push("old").push("deep").make_rng()
        return root

    def times(number: int, place: int, stream: int) -> int:
        return draws[(number + place + stream) % len(draws)]

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, keys: Any) -> Any:
        firsts = []
        for number in range(len(draws)):
            scope = scope_fn(variables, keys)
            for index, place in enumerate(places):
                for kind, stream in enumerate(streams):
                    made = [scope.below(place).make_rng(stream) for _ in range(times(number, index, kind))]
                    firsts.append((index, kind, made[:1]))
            groups = repack_fn(scope)
        return firsts, groups

    root, plain = prepared(), prepared()
    firsts = liftcore.pack(transform, [True], [True], [True])(root)
    for index, place in enumerate(places):
        for kind, stream in enumerate(streams):
            expected = [plain.below(place).make_rng(stream) for _ in range(max(draws) + 1)]
            made = [key for at, of, keys in firsts for key in keys if (at, of) == (index, kind)]
            assert all(key == expected[0] for key in made)
            assert root.below(place).make_rng(stream) == expected[-1]


def test_the_scope_outside_may_be_read_but_not_changed_while_the_body_runs() -> None:
    root = bound({"state": {"n": 1}})
    acts: list[Callable[[], Any]] = [
        lambda: root.put_variable("state", "n", 2),
        lambda: root.push("a"),
        lambda: root.make_rng(),
        lambda: root.sow("intermediates", "y", 1),
    ]
    for act in acts:
        with pytest.raises(LiftError, match=r" at /: .*mine"):
            identity(lambda scope, act=act: act(), name="mine")(root)
    assert identity(lambda scope: root.get_variable("state", "n"))(root) == 1
    assert root.variables() == {"state": {"n": 1}}
    assert root.push("a").make_rng() == bound().push("a").make_rng()


@pytest.mark.parametrize("raises", [True, False])
def test_inner_scopes_end_with_the_lift(raises: bool) -> None:
    kept: list[Scope] = []

    def body(scope: Scope) -> None:
        kept.extend([scope, scope.push("b")])
        if raises:
            raise KeyError("broken")

    root = bound().push("a")
    try:
        identity(body, name="mine")(root)
    except KeyError:
        assert raises
    for scope, place in zip(kept, ("/a/mine", "/a/mine/b"), strict=True):
        with pytest.raises(InvalidScopeError, match=f"scope at {place}"):
            scope.make_rng()


def test_a_lift_is_named_after_its_transformation() -> None:
    def twice(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return scope.path_text, repack_fn(scope)

    assert liftcore.pack(twice, [True], [True], [True])(bound().push("a")) == "/a/twice"
    assert liftcore.pack(twice, [True], [True], [True], name="mine")(bound().push("a")) == "/a/mine"


# -- transformations of one's own --------------------------------------------------------------------------------------


def transposed(fn: Callable[..., Any], on_the_way_out: bool = False) -> Callable[..., Any]:
    """The design note's example: under this lift `fn` sees its parameters transposed."""

    def flip(group: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.T, group)

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        params, rest = variables
        scope = scope_fn((flip(params), rest), rngs)
        y = fn(scope, *args, **kwargs)
        if not on_the_way_out:
            return y, repack_fn(scope)
        params, rest = repack_fn(scope)
        return y, (flip(params), rest)

    out = ("params", True) if on_the_way_out else (True,)
    return liftcore.pack(transform, ("params", True), out, (True,), name="transpose")


X = jnp.arange(6.0).reshape(2, 3)


def test_apply_sees_the_transposed_kernel() -> None:
    kernel, bias = jnp.arange(12.0).reshape(4, 3), jnp.ones(4)
    variables = {"params": {"kernel": kernel, "bias": bias}}
    y = liftcore.apply(transposed(nn.dense))(variables, X, 4)
    np.testing.assert_allclose(y, X @ kernel.T + bias)
    with pytest.raises(LiftError, match=r"/transpose: .*\(4, 3\).*\(3, 4\)"):
        liftcore.apply(transposed(nn.dense))({"params": {"kernel": kernel.T, "bias": bias}}, X, 4)


@pytest.mark.parametrize(("on_the_way_out", "shape"), [(False, (3, 4)), (True, (4, 3))])
def test_init_stores_what_comes_out(on_the_way_out: bool, shape: tuple[int, int]) -> None:
    y, variables = liftcore.init(transposed(nn.dense, on_the_way_out))(KEY, X, 4)
    plain, untransposed = liftcore.init(nn.dense)(KEY, X, 4)
    assert variables["params"]["kernel"].shape == shape
    np.testing.assert_array_equal(y, plain)
    kernel = variables["params"]["kernel"]
    np.testing.assert_array_equal(kernel.T if on_the_way_out else kernel, untransposed["params"]["kernel"])


def test_init_then_apply_round_trips_when_it_transposes_on_the_way_out_too() -> None:
    lifted = transposed(nn.dense, on_the_way_out=True)
    y, variables = liftcore.init(lifted)(KEY, X, 4)
    np.testing.assert_array_equal(liftcore.apply(lifted)(variables, X, 4), y)
    again, mutated = liftcore.apply(lifted, mutable=True)(variables, X, 4)
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(mutated["params"]["kernel"], variables["params"]["kernel"])


def test_a_tied_decoder_uses_the_kernel_of_its_encoder() -> None:
    def autoencoder(scope: Scope, x: Any) -> Any:
        encoder = scope.push("encoder")
        code = nn.dense(encoder, x, 4, use_bias=False)
        return transposed(nn.dense)(encoder.rewound(), code, 3, use_bias=False)

    kernel = jnp.arange(12.0).reshape(3, 4)
    y = liftcore.apply(autoencoder)({"params": {"encoder": {"kernel": kernel}}}, X)
    np.testing.assert_allclose(y, X @ kernel @ kernel.T)
    made = liftcore.init(autoencoder)(KEY, X)
    assert jax.tree.map(jnp.shape, made[1]) == {"params": {"encoder": {"kernel": (3, 4)}}}


def averaged(fn: Callable[..., Any], times: int) -> Callable[..., Any]:
    """The mean over some calls with other keys; what the last one wrote stays."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        results = []
        for index in range(times):
            (keys,) = rngs
            scope = scope_fn(
                variables, [jax.tree.map(lambda key, index=index: jax.random.split(key, times)[index], keys)]
            )
            results.append(fn(scope, *args))
            groups = repack_fn(scope)
        return sum(results) / times, groups

    return liftcore.pack(transform, [True], [True], [True], name="averaged")


def test_a_body_may_run_several_times_and_counts_its_draws_once() -> None:
    def noisy(scope: Scope, x: Any) -> Any:
        count = scope.variable("state", "n", lambda: 0)
        count.value += 1
        return x + jax.random.normal(scope.make_rng())

    def model(scope: Scope, x: Any) -> Any:
        y = averaged(noisy, 3)(scope, x)
        return y, scope.make_rng()

    (y, after), mutated = liftcore.apply(model, mutable=["state"])({"state": {"n": 5}}, 0.0, rngs=KEY)
    draws = [jax.random.normal(bound(rngs=key).make_rng()) for key in jax.random.split(KEY, 3)]
    np.testing.assert_allclose(y, sum(draws) / 3, rtol=1e-6)
    assert mutated == {"state": {"n": 6}}
    second = bound()
    second.make_rng()
    assert after == second.make_rng()


def mapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    return liftcore.vmap(fn, in_axes=None, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True})


@pytest.mark.parametrize("outer", [liftcore.remat, liftcore.jit, identity, mapped])
def test_lifts_of_ones_own_nest_in_every_other(outer: Callable[..., Any]) -> None:
    def layer(scope: Scope, x: Any) -> Any:
        return transposed(nn.dense, on_the_way_out=True)(scope, x, 4)

    y, variables = liftcore.init(outer(layer))(KEY, X)
    assert variables["params"]["kernel"].shape[-2:] == (4, 3)
    np.testing.assert_allclose(liftcore.apply(outer(layer))(variables, X), y, rtol=1e-6)
    inside, again = liftcore.init(transposed(outer(layer)))(KEY, X)
    np.testing.assert_allclose(inside, y, rtol=1e-6)
    assert jax.tree.structure(again) == jax.tree.structure(variables)


def halved(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A lift that stores half of each value that `fn` sees, so no stored value is one that `fn` makes."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        scope = scope_fn(jax.tree.map(lambda leaf: 2 * leaf, variables), rngs)
        y = fn(scope, *args)
        return y, jax.tree.map(lambda leaf: leaf / 2, repack_fn(scope))

    return liftcore.pack(transform, [True], [True], [True])


def summed(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda scope, x: fn(scope, x).sum()


def with_rule(fn: Callable[..., Any]) -> Callable[..., Any]:
    custom = liftcore.custom_vjp(fn)
    custom.defvjp(lambda scope, x: liftcore.vjp(fn)(scope, x), lambda pullback, cotangent: pullback(cotangent))
    return custom


def with_tangents(fn: Callable[..., Any]) -> Callable[..., Any]:
    custom = liftcore.custom_jvp(fn)
    custom.defjvp(lambda scope, primals, tangents, along: liftcore.jvp(fn)(scope, primals, tangents, along))
    return lambda scope, x: liftcore.jvp(custom)(scope, (x,), (x,))


def pulled_back(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(scope: Scope, x: Any) -> Any:
        y, pullback = liftcore.vjp(fn)(scope, x)
        return y, pullback(jnp.ones_like(y))

    return call


def repeated(fn: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"variable_axes": {"params": 0}, "variable_carry": "state", "split_rngs": True}
    return lambda scope, x: liftcore.scan(lambda scope, x, _: (fn(scope, x), None), 2, **options)(scope, x, None)[0]


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "grad": lambda fn: liftcore.grad(summed(fn)),
    "value_and_grad": lambda fn: liftcore.value_and_grad(summed(fn), argnums=(0, 1)),
    "vjp": pulled_back,
    "jvp": lambda fn: lambda scope, x: liftcore.jvp(fn)(scope, (x,), (x,)),
    "linearize": lambda fn: lambda scope, x: liftcore.linearize(fn)(scope, x)[1](None, x),
    "jacrev": liftcore.jacrev,
    "jacfwd": liftcore.jacfwd,
    "hessian": lambda fn: liftcore.hessian(summed(fn)),
    "custom_vjp": with_rule,
    "custom_jvp": with_tangents,
    "grad of custom_vjp": lambda fn: liftcore.grad(summed(with_rule(fn))),
    "grad of remat": lambda fn: liftcore.grad(summed(liftcore.remat(fn))),
    "scan of grad": lambda fn: repeated(liftcore.grad(summed(fn), argnums=1)),
}


@pytest.mark.parametrize(
    ("derivative", "nested"), [*[(name, False) for name in DERIVATIVES], ("hessian", True), ("scan of grad", True)]
)
def test_a_lift_that_changes_what_it_stores_is_differentiated_in_init_too(derivative: str, nested: bool) -> None:
    def layer(scope: Scope, x: Any) -> Any:
        count = scope.variable("state", "n", lambda: jnp.zeros(()))
        count.value += 1
        w = scope.param("w", jax.nn.initializers.normal(), (2,))
        return jnp.sin(w * x) + jax.random.normal(scope.make_rng("noise"))

    model = DERIVATIVES[derivative](halved(liftcore.jit(halved(layer))) if nested else halved(layer))
    keys, x = {"params": KEY, "noise": OTHER}, jnp.arange(2.0) + 1
    result, variables = liftcore.init(model)(keys, x)
    before = {"params": variables["params"], "state": {"n": jnp.zeros(())}}
    again, mutated = liftcore.apply(model, mutable=["state"])(before, x, rngs={"noise": OTHER})
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), result, again)
    assert mutated["state"] == variables["state"]
    assert mutated["state"]["n"] > 0


@pytest.mark.parametrize("given", [{}, {"rngs": {"other": jax.random.key(1)}}])
def test_draws_from_a_sequence_that_a_lift_brings_are_counted(given: dict[str, Any]) -> None:
    def bringing(fn: Callable[..., Any]) -> Callable[..., Any]:
        def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
            groups = tuple(tuple({**keys, "noise": jax.random.key(7)} for keys in group) for group in rng_groups)
            scope = scope_fn(variable_groups, groups)
            return fn(scope), repack_fn(scope)

        return liftcore.pack(transform, [True], [True], [True])

    def without(fn: Callable[..., Any]) -> Callable[..., Any]:
        def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
            scope = scope_fn(variable_groups, rng_groups)
            return fn(scope), repack_fn(scope)

        return liftcore.pack(transform, [True], [True], [False])

    def draw(scope: Scope) -> Any:
        return jax.random.key_data(scope.make_rng("noise")).tolist()

    def model(scope: Scope) -> list[Any]:
        lifted = bringing(draw)
        twice = without(lambda scope: [lifted(scope), lifted(scope)])
        return [lifted(scope), lifted(scope), *twice(scope), lifted(scope)]

    drawn = liftcore.apply(model)({}, **given)
    assert len({tuple(key) for key in drawn}) == len(drawn)


@pytest.mark.parametrize("what", ["reads", "creates"])
def test_scopes_are_repacked_once(what: str) -> None:
    def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
        def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
            scope = scope_fn(variable_groups, rng_groups)
            result = fn(scope)
            repack_fn(scope)
            return result, repack_fn(scope)

        return liftcore.pack(transform, [True], [True], [True])

    def model(scope: Scope) -> Any:
        return scope.param("w", lambda key: 1.0) if what == "creates" else scope.has_variable("params", "w")

    with pytest.raises(InvalidScopeError, match="after the lift"):
        liftcore.init(twice(model))(KEY)


@pytest.mark.parametrize("writes", [False, True])
def test_groups_may_be_changed_before_they_are_returned(writes: bool) -> None:
    def with_seven(fn: Callable[..., Any]) -> Callable[..., Any]:
        def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
            scope = scope_fn(variable_groups, rng_groups)
            result, groups = fn(scope), repack_fn(scope)
            groups[0].values[0].setdefault("state", {})["n"] = 7.0
            return result, groups

        return liftcore.pack(transform, ["state", "other"], ["state", "other"], [True])

    def model(scope: Scope) -> Any:
        n = scope.variable("state", "n")
        if writes:
            n.value = 3.0
        return n.value

    variables = {"state": {"n": 1.0}, "other": {"m": 2.0}}
    result, mutated = liftcore.apply(with_seven(model), mutable=True)(variables)
    assert result == (3.0 if writes else 1.0)
    assert mutated == {"state": {"n": 7.0}, "other": {"m": 2.0}}


def test_a_body_knows_the_names_that_were_taken_before_the_lift() -> None:
    paths: list[tuple[str, ...]] = []

    def body(scope: Scope) -> None:
        paths.append(scope.push(prefix="layer_").path)
        scope.push("taken")

    def model(scope: Scope, name: str) -> None:
        scope.push(prefix="layer_")
        scope.push(name)
        liftcore.remat(body)(scope)

    liftcore.apply(model)({}, "free")
    assert paths == [("layer_1",)]
    with pytest.raises(NameInUseError, match="taken"):
        liftcore.apply(model)({}, "taken")


def forgetful(mutable: bool) -> Any:
    """A lift that runs the function twice, and repacks only the scopes of the second run."""

    def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any) -> Any:
        model(scope_fn(variable_groups, rng_groups, mutable=mutable))
        scope = scope_fn(variable_groups, rng_groups)
        return model(scope), repack_fn(scope)

    def model(scope: Scope) -> Any:
        count = scope.variable("state", "count", lambda: 0)
        if scope.is_mutable_collection("state"):
            count.value += 1
        return count.value

    return liftcore.pack(transform, ["state"], ["state"], [True], name="forgetful")


@pytest.mark.parametrize("variables", [{}, {"state": {"count": 5}}], ids=["created", "written"])
def test_changes_that_are_not_repacked_are_an_error(variables: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r'forgetful at /: "state/count" was written.*`mutable=False`'):
        liftcore.apply(forgetful(True), mutable=["state"])(variables)


def test_changes_may_be_discarded_on_purpose() -> None:
    variables = {"state": {"count": 5}}
    assert liftcore.apply(forgetful(False), mutable=["state"])(variables) == (6, {"state": {"count": 6}})

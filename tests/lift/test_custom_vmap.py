"""Lifted `custom_vmap`: a rule for the function under `vmap`, which sees its variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import (
    InvalidRngError,
    InvalidScopeError,
    LiftArgumentError,
    ModifyScopeVariableError,
    ScopeCollectionNotFound,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, PathContains
from liftcore.lift.custom_vmap import custom_vmap
from tests.lift.nests import NESTS, Counted
from tests.lift.quick import assert_same, compiled, key, uniform

KEY = jax.random.key(0)
X = jnp.array([0.1, 0.2, 0.3])
W = {"params": {"w": jnp.arange(6.0).reshape(3, 2)}}


def dense(scope: Scope, x: Any) -> Any:
    return x @ scope.param("w", uniform, (3, 2))


def lifted_dense(scale: float = 100.0, body: Callable[..., Any] = dense) -> tuple[Any, list[Any]]:
    """A dense layer whose rule scales the result, and what that rule was given."""
    seen: list[Any] = []
    lifted = custom_vmap(body)

    @lifted.def_vmap
    def rule(axis_size: int, in_batched: Any, scope: Scope, x: Any) -> Any:
        w = scope.get_variable("params", "w")
        seen.append((axis_size, in_batched, scope.path, jnp.shape(w), jnp.shape(x)))
        elements = ["n" if batched else "" for batched in (x.ndim == 2, w.ndim == 3)]
        y = jnp.einsum(f"{elements[0]}i,{elements[1]}io->{max(elements)}o", x, w)
        return scale * y, any(elements)

    return lifted, seen


# -- the function and its rule -----------------------------------------------------------------------------------------


def test_without_vmap_it_is_the_function() -> None:
    lifted, seen = lifted_dense()
    assert_same(liftcore.init(lifted)(KEY, X), liftcore.init(dense)(KEY, X), exact=True)
    np.testing.assert_array_equal(liftcore.apply(lifted)(W, X), X @ W["params"]["w"])
    assert not seen


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("mapped", ["x", "w", "both"])
def test_under_a_raw_vmap_of_apply_it_is_the_rule(mapped: str, mutable: bool) -> None:
    lifted, seen = lifted_dense()
    axes = (0 if mapped != "x" else None, 0 if mapped != "w" else None)
    w = jnp.stack([W["params"]["w"], 2 * W["params"]["w"]]) if axes[0] == 0 else W["params"]["w"]
    x = jnp.stack([X, -X]) if axes[1] == 0 else X

    def model(w: Any, x: Any) -> Any:
        result = liftcore.apply(lifted, mutable=mutable)({"params": {"w": w}}, x)
        return result[0] if mutable else result

    ours = jax.vmap(model, axes)(w, x)
    np.testing.assert_allclose(ours, 100 * jax.vmap(jnp.matmul, (axes[1], axes[0]))(x, w), rtol=1e-5)
    in_batched = ({"params": {"w": axes[0] == 0}}, axes[1] == 0)
    assert seen == [(2, in_batched, (), w.shape, x.shape)]


@pytest.mark.parametrize("axis", [0, 1, None])
def test_under_a_lifted_vmap_it_is_the_rule_in_init_too(axis: int | None) -> None:
    lifted, seen = lifted_dense()
    options: dict[str, Any] = {"variable_axes": {"params": axis}, "split_rngs": axis is not None}
    xs = jnp.stack([X, -X, 2 * X])

    def model(lift: Callable[..., Any]) -> Callable[..., Any]:
        return lambda scope, xs: liftcore.vmap(lift, **options)(scope.push("a"), xs)

    y, variables = liftcore.init(model(lifted))(KEY, xs)
    expected, same = liftcore.init(model(dense))(KEY, xs)
    assert_same(variables, same, exact=True)
    np.testing.assert_allclose(y, 100 * expected, rtol=1e-5)
    assert seen[0][:3] == (3, ({"params": {"w": axis is not None}}, True), ("a",))
    np.testing.assert_allclose(liftcore.apply(model(lifted))(variables, xs), y, rtol=1e-6)


def test_the_rule_runs_when_jax_batches_be_the_lift_over_or_not() -> None:
    lifted, seen = lifted_dense()
    jitted = jax.jit(liftcore.apply(lifted))
    jitted(W, X)
    assert not seen
    xs = jnp.stack([X, X])
    np.testing.assert_allclose(jax.vmap(jitted, (None, 0))(W, xs), 100 * xs @ W["params"]["w"], rtol=1e-6)
    closed = jax.make_jaxpr(liftcore.apply(lifted))(W, X)
    batched = jax.vmap(lambda x: jax.core.eval_jaxpr(closed.jaxpr, closed.consts, W["params"]["w"], x)[0])
    np.testing.assert_allclose(batched(xs), 100 * xs @ W["params"]["w"], rtol=1e-6)


def test_arguments_and_results_may_be_any_pytree() -> None:
    @custom_vmap
    def fn(scope: Scope, batch: Any, scale: Any = 2.0) -> Any:
        return {"y": batch["a"] * scale, "n": batch["n"] + 1}

    @fn.def_vmap
    def rule(axis_size: int, in_batched: Any, scope: Scope, batch: Any, scale: Any) -> Any:
        assert in_batched == ({}, {"a": True, "n": False}, False)
        return {"y": batch["a"] * scale + 100, "n": batch["n"] + 1}, {"y": True, "n": False}

    def model(a: Any, n: Any) -> Any:
        return liftcore.apply(fn)({}, batch={"a": a, "n": n})

    y = jax.vmap(model, (0, None), {"y": 0, "n": None})(jnp.arange(3.0), 1)
    assert (y["y"].tolist(), y["n"]) == ([100.0, 102.0, 104.0], 2)


def test_the_rule_keeps_what_it_is() -> None:
    lifted = custom_vmap(dense)

    def rule(axis_size: int, in_batched: Any, scope: Scope, x: Any) -> Any:
        """A rule."""

    assert lifted.def_vmap(rule) is rule
    assert lifted.__name__ == "dense"


# -- several scopes ----------------------------------------------------------------------------------------------------


def test_several_scopes_come_to_the_rule_as_they_were_given() -> None:
    def read(scopes: Any, x: Any) -> Any:
        parent, child = scopes["parent"], scopes["child"][0]
        return x * parent.param("a", uniform, ()) + child.param("b", uniform, ())

    lifted = custom_vmap(read)

    @lifted.def_vmap
    def rule(axis_size: int, in_batched: Any, scopes: Any, x: Any) -> Any:
        parent, child = scopes["parent"], scopes["child"][0]
        flags = {"a": True, "child": {"b": True}}
        assert in_batched == ({"parent": {"params": flags}, "child": [{"params": {"b": True}}]}, True)
        assert (parent.path, child.path) == (("m",), ("m", "child"))
        assert parent.push("child").get_variable("params", "b") is child.get_variable("params", "b")
        return x * parent.get_variable("params", "a") - child.get_variable("params", "b"), True

    def model(scope: Scope, x: Any) -> Any:
        here = scope.push("m")
        return lifted({"parent": here, "child": [here.push("child")]}, x)

    elements = liftcore.vmap(model, variable_axes={"params": 0}, split_rngs=True)
    y, variables = liftcore.init(elements)(KEY, X)
    made = variables["params"]["m"]
    np.testing.assert_allclose(y, X * made["a"] - made["child"]["b"], rtol=1e-6)


def test_scopes_of_different_places_need_no_common_root() -> None:
    lifted = custom_vmap(
        lambda scopes, x: x * scopes[0].get_variable("params", "w") * scopes[1].get_variable("params", "w")
    )
    lifted.def_vmap(
        lambda n, flags, scopes, x: (
            x * scopes[0].get_variable("params", "w") - scopes[1].get_variable("params", "w"),
            True,
        )
    )

    def model(scope: Scope, x: Any) -> Any:
        return lifted((scope.push("a"), scope.push("b")), x)

    variables = {"params": {"a": {"w": 2.0}, "b": {"w": 3.0}}}
    assert liftcore.apply(model)(variables, 1.0) == 6.0
    assert jax.vmap(lambda x: liftcore.apply(model)(variables, x))(jnp.ones(2)).tolist() == [-1.0, -1.0]


# -- variables, keys and what is sown ----------------------------------------------------------------------------------


def test_the_body_may_draw_and_sow() -> None:
    def noisy(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", 2 * x)
        return dense(scope, x) + uniform(scope.make_rng("dropout"), (2,))

    lifted, _ = lifted_dense(body=noisy)
    rngs = {"dropout": KEY}
    ours, theirs = (
        liftcore.apply(
            lambda scope, x, fn=fn: (fn(scope.push("a"), x), uniform(scope.make_rng("dropout"))),
            mutable=["intermediates"],
        )({"params": {"a": W["params"]}}, X, rngs=rngs)
        for fn in (lifted, noisy)
    )
    assert_same(ours, theirs, exact=True)


def test_what_is_sown_is_batched_without_the_rule() -> None:
    def sower(scope: Scope, x: Any) -> Any:
        y = dense(scope, x)
        scope.sow("intermediates", "y", y)
        return y

    lifted, seen = lifted_dense(body=sower)
    xs = jnp.stack([X, -X])
    elements = liftcore.vmap(lifted, variable_axes={"params": None})
    y, kept = liftcore.apply(elements, mutable=["intermediates"])(W, xs)
    np.testing.assert_allclose(y, 100 * xs @ W["params"]["w"], rtol=1e-6)
    np.testing.assert_allclose(kept["intermediates"]["y"][0], xs @ W["params"]["w"], rtol=1e-6)
    assert len(seen) == 1


def test_what_is_sown_passes_where_tangents_alone_are_batched() -> None:
    def sower(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return dense(scope, x)

    lifted, seen = lifted_dense(body=sower)
    jacobian, kept = jax.jacfwd(lambda x: liftcore.apply(lifted, mutable=["intermediates"])(W, x), has_aux=True)(X)
    np.testing.assert_allclose(jacobian, 100 * W["params"]["w"].T, rtol=1e-6)
    np.testing.assert_allclose(kept["intermediates"]["x"][0], X, rtol=1e-6)
    assert [in_batched for _, in_batched, *_ in seen] == [({"params": {"w": False}}, False)]


def test_where_keys_alone_are_mapped_the_function_is() -> None:
    def noisy(scope: Scope, x: Any) -> Any:
        return dense(scope, x) + uniform(scope.make_rng("dropout"), (2,))

    def mapped(body: Any) -> Any:
        elements = liftcore.vmap(
            body, in_axes=None, axis_size=2, variable_axes={"params": None}, split_rngs={"dropout": True}
        )
        return liftcore.apply(elements)(W, X, rngs={"dropout": KEY})

    lifted, seen = lifted_dense(body=noisy)
    assert_same(mapped(lifted), mapped(noisy))
    assert not seen


def test_filters_say_what_is_lifted() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.push("lora").get_variable("params", "w")

    variables = {"params": {"base": 1.0, "lora": {"w": 2.0}}}
    lifted = custom_vmap(fn, variables=All("params", PathContains("lora")))
    seen: list[Any] = []

    @lifted.def_vmap
    def rule(axis_size: int, in_batched: Any, scope: Scope, x: Any) -> Any:
        seen.append(in_batched)
        return x + scope.push("lora").get_variable("params", "w"), True

    assert jax.vmap(lambda x: liftcore.apply(lifted)(variables, x))(jnp.ones(2)).tolist() == [3.0, 3.0]
    assert seen == [({"params": {"lora": {"w": False}}}, True)]
    refused = custom_vmap(fn, variables="state")
    refused.def_vmap(rule)
    with pytest.raises(UnliftedCollectionError, match=r"exists outside custom_vmap\(fn\).*to `variables`"):
        liftcore.apply(refused)(variables, X)
    unlucky = custom_vmap(lambda scope: scope.make_rng("dropout"), rngs="params")
    unlucky.def_vmap(rule)
    with pytest.raises(UnliftedStreamError, match=r"to `rngs`"):
        liftcore.apply(unlucky)({}, rngs={"dropout": KEY})


# -- derivatives and nests ---------------------------------------------------------------------------------------------


def test_forward_derivatives_are_those_of_the_function_and_of_the_rule() -> None:
    lifted, _ = lifted_dense()
    apply = liftcore.apply(lifted)
    xs = jnp.stack([X, -X])
    tangents = jax.tree.map(jnp.ones_like, W)
    ours = jax.jvp(lambda v, x: apply(v, x), (W, X), (tangents, X))
    assert_same(ours, jax.jvp(lambda v, x: x @ v["params"]["w"], (W, X), (tangents, X)))
    ours = jax.jvp(lambda v, x: jax.vmap(apply, (None, 0))(v, x), (W, xs), (tangents, xs))
    assert_same(ours, jax.jvp(lambda v, x: 100 * x @ v["params"]["w"], (W, xs), (tangents, xs)))
    np.testing.assert_allclose(jax.jacfwd(lambda x: apply(W, x))(X), 100 * W["params"]["w"].T, rtol=1e-6)


def test_reverse_derivatives_are_refused_as_by_jax() -> None:
    lifted, _ = lifted_dense()
    with pytest.raises(ValueError, match="does not support reverse-mode"):
        jax.grad(lambda v: liftcore.apply(lifted)(v, X).sum())(W)


def block(scope: Scope, x: Any) -> Any:
    return jnp.tanh(x * scope.param("w", uniform, (3,))) + uniform(scope.make_rng("dropout"))


@pytest.mark.parametrize("name", [*NESTS, "four"])
@pytest.mark.parametrize("inside", [False, True])
def test_it_nests_in_others_and_others_in_it_with_one_run(name: str, inside: bool) -> None:
    def ruled(body: Callable[..., Any]) -> Callable[..., Any]:
        lifted = custom_vmap(body)

        @lifted.def_vmap
        def rule(axis_size: int, in_batched: Any, scope: Scope, x: Any) -> Any:
            return jnp.zeros((axis_size, 3)), True

        return lifted

    def nested(lift: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
        if name == "four":
            return lift(lift(lift(lift(body))))
        return lift(NESTS[name](body)) if inside else NESTS[name](lift(body))

    def run(fn: Callable[..., Any]) -> Any:
        y, variables = liftcore.init(fn)({"params": key(0), "dropout": key(1)}, X)
        return variables, y, liftcore.apply(fn)(variables, X, rngs={"dropout": key(2)})

    body = Counted(block)
    ours, theirs = (compiled(lambda lift=lift: run(nested(lift, block))) for lift in (ruled, lambda body: body))
    if name == "vmap" and not inside:
        theirs = theirs[0], *jax.tree.map(jnp.zeros_like, theirs[1:])
    assert_same(ours, theirs)
    liftcore.init(nested(ruled, body))({"params": key(0), "dropout": key(1)}, X)
    assert body.since() == 1


def test_a_loop_that_carries_what_the_body_made_begins_with_its_first_value() -> None:
    made = custom_vmap(lambda scope, x: x + scope.variable("state", "n", lambda: 10 * x).value)
    made.def_vmap(lambda n, flags, scope, x: (x, True))

    def body(scope: Scope, x: Any, _: Any) -> Any:
        y = made(scope, x)
        scope.put_variable("state", "n", scope.get_variable("state", "n") + 1)
        return y, None

    loop = liftcore.scan(body, length=3, variable_carry="state")
    (y, _), variables = liftcore.init(loop)(KEY, jnp.ones(()), None)
    assert (y, variables["state"]["n"]) == (1 + 10 + 11 + 12, 13)


def test_no_tracer_leaks() -> None:
    lifted, _ = lifted_dense()
    elements = liftcore.vmap(lifted, variable_axes={"params": 0}, split_rngs=True)
    with jax.checking_leaks():
        _, variables = liftcore.init(elements)(KEY, jnp.stack([X, X]))
        jax.jit(liftcore.apply(elements, mutable=True))(variables, jnp.stack([X, X]))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_without_a_rule_it_says_how_to_write_one() -> None:
    lifted = custom_vmap(dense)
    with pytest.raises(LiftArgumentError, match=r"custom_vmap\(dense\) at /: it has no rule.*`@dense.def_vmap`"):
        liftcore.init(lifted)(KEY, X)


def test_a_body_that_writes_is_an_error() -> None:
    def writes(scope: Scope, x: Any) -> Any:
        scope.push("a").variable("state", "n", lambda: x).value = 2 * x
        return x

    lifted, _ = lifted_dense(body=writes)
    with pytest.raises(
        LiftArgumentError, match=r"the body writes \['state/a/n'\].*the rule runs in its place"
    ) as caught:
        liftcore.init(lifted)(KEY, X)
    assert caught.value.fix == "Return the value, and write it outside."


def test_keyword_arguments_must_have_a_position() -> None:
    lifted, _ = lifted_dense(body=lambda scope, x, *, flag=1.0: x)
    with pytest.raises(LiftArgumentError, match=r"the arguments \['flag'\] can be passed only by name"):
        liftcore.apply(lifted)({}, X, flag=2.0)


def ruled_by(act: Callable[[Scope], Any]) -> Any:
    lifted = custom_vmap(dense)

    @lifted.def_vmap
    def rule(axis_size: int, in_batched: Any, scope: Scope, x: Any) -> Any:
        return act(scope), True

    return lambda: jax.vmap(lambda x: liftcore.apply(lifted, mutable=True)(W, x, rngs={"dropout": KEY})[0])(
        jnp.stack([X, X])
    )


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda scope: scope.put_variable("params", "w", 0), ModifyScopeVariableError),
        (lambda scope: scope.make_rng("dropout"), InvalidRngError),
        (lambda scope: scope.variable("state", "n", lambda: 0), ScopeCollectionNotFound),
    ],
)
def test_a_rule_may_only_read(act: Callable[[Scope], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        ruled_by(act)()
    assert "This is the rule of custom_vmap(dense) at /: it may read variables" in "".join(caught.value.__notes__)


def test_the_scopes_of_a_rule_end_with_it() -> None:
    kept: list[Scope] = []

    def act(scope: Scope) -> Any:
        kept.append(scope)
        assert not scope.sow("intermediates", "x", 1)
        return jnp.zeros((2, 2))

    ruled_by(act)()
    with pytest.raises(InvalidScopeError):
        kept[0].get_variable("params", "w")

"""Lifted `remat`: its arguments, and that it changes nothing but what is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import liftcore
from liftcore import Scope, nn
from liftcore.errors import LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
X = jnp.arange(3.0)


def block(scope: Scope, x: Any) -> Any:
    return jnp.sin(jnp.sin(x * scope.param("w", jax.random.normal, (3,))))


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from equations(getattr(value, "jaxpr", value))


def test_captured_values_come_out_whatever_variables_are_lifted() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return scope.get_variable("params", "w") * x

    lifted = liftcore.remat(fn, variables="params")
    _, found = liftcore.apply(lifted, mutable=["intermediates"])({"params": {"w": jnp.ones(3)}}, X)
    np.testing.assert_array_equal(found["intermediates"]["x"][0], X)


def named(scope: Scope, x: Any) -> Any:
    return jnp.sin(checkpoint_name(jnp.sin(x * scope.param("w", jax.random.normal, (3,))), "inner"))


def backward(fn: Callable[..., Any], mutable: Any = False, primitive: str = "sin") -> int:
    """How often a gradient computes a sine, or something else."""
    variables = {"params": {"w": jnp.ones(3)}}

    def loss(variables: Any) -> Any:
        result = liftcore.apply(fn, mutable=mutable)(variables, X, rngs=RNGS)
        return (result[0] if mutable else result).sum()

    names = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(jax.grad(loss))(variables))]
    return names.count(primitive)


# -- what is saved -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [False, ["state"], True])
def test_it_computes_again_in_the_backward_pass(mutable: Any) -> None:
    def by_hand(scope: Scope, x: Any) -> Any:
        return jax.checkpoint(lambda w: jnp.sin(jnp.sin(x * w)))(scope.param("w", jax.random.normal, (3,)))

    assert backward(block, mutable) == 2
    assert backward(liftcore.remat(block), mutable) == backward(by_hand, mutable) == 3
    assert liftcore.checkpoint is liftcore.remat


@pytest.mark.parametrize("mutable", [False, True])
def test_the_policy_says_what_is_saved(mutable: bool) -> None:
    policies = jax.checkpoint_policies
    assert backward(liftcore.remat(block, policy=policies.everything_saveable), mutable) == 2
    assert backward(liftcore.remat(named, policy=policies.save_only_these_names("inner")), mutable) == 2
    assert backward(liftcore.remat(named, policy=policies.save_only_these_names("other")), mutable) == 3


@pytest.mark.parametrize("mutable", [False, True])
def test_a_policy_may_move_what_is_saved_to_the_host(mutable: bool) -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["inner"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    lifted = liftcore.remat(named, policy=policy)
    assert backward(lifted, mutable) == 2
    assert backward(lifted, mutable, "device_put") == 2, "there and back"


def test_a_policy_sees_no_marks_of_ours() -> None:
    seen: list[str] = []

    def policy(primitive: Any, *args: Any, **params: Any) -> bool:
        seen.append(f"{primitive} {params.get('name', '')}")
        return False

    lifted = liftcore.remat(block, policy=policy)
    jax.grad(lambda x: liftcore.init(lifted)(KEY, x)[0].sum())(X)
    assert any("sin" in one for one in seen)
    assert not [one for one in seen if "liftcore" in one]


@pytest.mark.parametrize("prevent_cse", [True, False])
@pytest.mark.parametrize("mutable", [False, True])
def test_prevent_cse_reaches_jax(prevent_cse: bool, mutable: bool) -> None:
    lifted = liftcore.remat(block, prevent_cse=prevent_cse)
    variables = liftcore.init(lifted)(KEY, X)[1]
    jaxpr = jax.make_jaxpr(liftcore.apply(lifted, mutable=mutable))(variables, X)
    (eqn,) = [eqn for eqn in equations(jaxpr) if "prevent_cse" in eqn.params]
    assert eqn.params["prevent_cse"] is prevent_cse


def test_initial_values_are_made_outside_of_the_equation() -> None:
    jaxpr = jax.make_jaxpr(lambda key: liftcore.init(liftcore.remat(block))(key, X))(KEY)
    (eqn,) = [eqn for eqn in jaxpr.eqns if "prevent_cse" in eqn.params]
    inner = {inner.primitive.name for inner in equations(eqn.params["jaxpr"])}
    assert inner.isdisjoint({"random_bits", "random_fold_in", "random_split"})


# -- static arguments --------------------------------------------------------------------------------------------------


def chosen(scope: Scope, x: Any, train: bool = False, *, mode: str = "a", scale: Any = 1.0) -> Any:
    """Python has to see `train` and `mode`."""
    y = scope.param("w", jax.random.normal, (3,)) * x * scale
    return jnp.sin(y) if train else {"a": y, "b": -y}[mode]


@pytest.mark.parametrize("options", [{"static_argnums": 2}, {"static_argnums": (2,)}, {"static_argnames": "train"}])
@pytest.mark.parametrize("by_name", [False, True])
def test_static_arguments_count_in_the_users_own_signature(options: dict[str, Any], by_name: bool) -> None:
    lifted = liftcore.remat(chosen, **options)
    for train in (True, False):
        ours = liftcore.init(lifted)(KEY, X, train=train) if by_name else liftcore.init(lifted)(KEY, X, train)
        theirs = liftcore.init(chosen)(KEY, X, train)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_negative_numbers_and_several_names() -> None:
    def fn(scope: Scope, x: Any, a: bool, b: str) -> Any:
        return x * (2 if a else 3) * {"x": 5, "y": 7}[b]

    for options in ({"static_argnums": (-1, -2)}, {"static_argnums": 2, "static_argnames": ["b"]}):
        lifted = liftcore.apply(liftcore.remat(fn, **options))
        assert lifted({}, 1.0, True, "y") == 14.0
        assert lifted({}, 1.0, b="x", a=False) == 15.0


def test_keyword_only_arguments_may_be_static() -> None:
    lifted = liftcore.apply(liftcore.remat(chosen, static_argnums=2, static_argnames=("mode",)))
    variables = {"params": {"w": jnp.ones(3)}}
    np.testing.assert_array_equal(lifted(variables, X, False, mode="b", scale=2.0), -2 * X)
    np.testing.assert_array_equal(lifted(variables, X, mode="a", scale=jnp.ones(3)), X)


def test_an_undeclared_flag_says_how_to_declare_it() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        liftcore.init(lambda scope: liftcore.remat(chosen)(scope.push("a"), X, True))(KEY)
    notes = "".join(caught.value.__notes__)
    assert "remat(chosen) at /a" in notes
    assert "static_argnames" in notes
    assert "train" in notes


@pytest.mark.parametrize("options", [{"static_argnums": 0}, {"static_argnums": (1, 0)}, {"static_argnums": -3}])
def test_the_scope_cannot_be_static(options: dict[str, Any]) -> None:
    with pytest.raises(LiftArgumentError, match=r"number 0 is the scope.*Count from 1"):
        liftcore.remat(chosen, **options)


@pytest.mark.parametrize("lift", [liftcore.remat, liftcore.jit])
def test_any_number_of_arguments_keep_their_order(lift: Any) -> None:
    def fn(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        return jnp.stack(args), kwargs

    stacked, kwargs = liftcore.apply(lift(fn))({}, *jnp.arange(12.0), b=jnp.ones(()), a=jnp.zeros(()))
    np.testing.assert_array_equal(stacked, jnp.arange(12.0))
    assert {name: float(value) for name, value in kwargs.items()} == {"a": 0, "b": 1}


@pytest.mark.parametrize("lift", [liftcore.remat, liftcore.jit])
def test_an_argument_named_like_a_number_is_an_error(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"given \['1'\]"):
        liftcore.apply(lift(lambda scope, x, **kwargs: x))({}, X, **{"1": X})


def test_a_static_argument_must_be_hashable() -> None:
    lifted = liftcore.remat(chosen, static_argnames="mode")
    with pytest.raises(LiftArgumentError, match=r"a hashable value as the static argument 'mode', given \[") as caught:
        liftcore.init(lambda scope: lifted(scope.push("a"), X, mode=["a"]))(KEY)
    assert caught.value.where == "remat(chosen) at /a"


# -- state -------------------------------------------------------------------------------------------------------------


def test_only_the_lifted_variables_and_sequences_are_there() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x + scope.get_variable("state", "s") + jax.random.normal(scope.make_rng("dropout"), (3,))

    variables = {"params": {}, "state": {"s": X}}
    lifted = liftcore.remat(fn, variables="state", rngs="dropout")
    expected = liftcore.apply(fn)(variables, X, rngs=RNGS)
    np.testing.assert_allclose(liftcore.apply(lifted)(variables, X, rngs=RNGS), expected, rtol=1e-6)
    with pytest.raises(UnliftedCollectionError, match=r"exists outside remat\(fn\)"):
        liftcore.apply(liftcore.remat(fn, variables="params"))(variables, X, rngs=RNGS)
    with pytest.raises(UnliftedStreamError, match=r"remat\(fn\) does not pass it in"):
        liftcore.apply(liftcore.remat(fn, rngs="params"))(variables, X, rngs=RNGS)


def test_the_same_mask_is_drawn_again_in_the_backward_pass() -> None:
    def noisy(scope: Scope, x: Any) -> Any:
        return nn.dropout(scope, jnp.sin(x), 0.5, deterministic=False)

    def grad(fn: Callable[..., Any]) -> Any:
        return jax.grad(lambda x: liftcore.apply(fn)({}, x, rngs=RNGS).sum())(jnp.arange(20.0))

    np.testing.assert_allclose(grad(liftcore.remat(noisy)), grad(noisy), rtol=1e-6)


def test_statistics_are_written_once() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        count = scope.variable("state", "n", lambda: jnp.zeros(()))
        count.value += 1
        return jnp.sin(x) * count.value

    def loss(variables: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(liftcore.remat(fn), mutable=["state"])(variables, x)
        return y.sum(), mutated

    grad, mutated = jax.grad(loss, argnums=1, has_aux=True)({"state": {"n": jnp.float32(4)}}, X)
    assert mutated == {"state": {"n": 5.0}}
    np.testing.assert_allclose(grad, 5 * jnp.cos(X), rtol=1e-5)


@pytest.mark.parametrize("inner", [lambda fn: fn, liftcore.jit, liftcore.remat])
def test_gradients_are_those_of_the_bare_function(inner: Callable[..., Any]) -> None:
    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        for name in "ab":
            x = scope.child(lift(inner(block)), name)(x)
        return x.sum()

    variables = liftcore.init(model)(KEY, X, liftcore.remat)[1]
    ours, theirs = (jax.grad(liftcore.apply(model))(variables, X, lift) for lift in (liftcore.remat, lambda fn: fn))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


def test_it_is_traced_once_under_a_jitted_gradient() -> None:
    runs: list[int] = []

    def fn(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return block(scope, x)

    variables = liftcore.init(block)(KEY, X)[1]
    step = jax.jit(jax.grad(lambda variables: liftcore.apply(liftcore.remat(fn), mutable=["a"])(variables, X)[0].sum()))
    step(variables)
    step(variables)
    assert len(runs) == 1


@pytest.mark.parametrize("lift", [liftcore.remat, liftcore.jit])
def test_a_variable_that_is_a_dict_is_written_whole(lift: Any) -> None:
    def drop(scope: Any) -> None:
        scope.put_variable("cache", "kv", {"k": scope.get_variable("cache", "kv")["k"]})

    cache = {"cache": {"kv": {"k": jnp.ones(()), "v": jnp.ones(())}}}
    for fn in (drop, lift(drop)):
        assert liftcore.apply(fn, mutable=["cache"])(cache)[1] == {"cache": {"kv": {"k": 1.0}}}


def test_filters_go_down_to_single_variables_and_sequences() -> None:
    lora = All("params", PathContains("lora"))

    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.get_variable("params", "lora") + jax.random.uniform(scope.make_rng("dropout"))

    variables = {"params": {"lora": jnp.float32(2), "w": jnp.float32(3)}}
    only = liftcore.remat(fn, variables=lora, rngs="dropout")
    assert_close = np.testing.assert_allclose
    assert_close(liftcore.apply(only)(variables, X, rngs=RNGS), liftcore.apply(fn)(variables, X, rngs=RNGS))
    grads = jax.grad(lambda v: liftcore.apply(only)(v, X, rngs=RNGS).sum())(variables)
    assert_close(grads["params"]["lora"], X.sum())
    with pytest.raises(UnliftedCollectionError, match='"params/w" at /remat'):
        liftcore.apply(liftcore.remat(lambda scope: scope.get_variable("params", "w"), variables=lora))(variables)
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("params"\) at /remat'):
        liftcore.apply(liftcore.remat(lambda scope: scope.make_rng(), rngs="dropout"))(variables, rngs=RNGS)


def test_constants_come_out_as_arrays() -> None:
    def fn(scope: Scope) -> Any:
        scope.put_variable("stats", "constant", np.ones(2, np.float32))
        return np.ones(2, np.float32), jnp.ones(2)

    results, written = liftcore.apply(liftcore.remat(fn), mutable=["stats"])({})
    for leaf in jax.tree.leaves((results, written)):
        assert isinstance(leaf, jax.Array | np.ndarray)

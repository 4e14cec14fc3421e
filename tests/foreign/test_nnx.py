"""`from_nnx`: objects of `flax.nnx` in scopes. Their numbers are also those of `nnx_like`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import nnx_like
from liftcore import errors
from liftcore.foreign import from_nnx
from tests.foreign.comparing import DROPOUT, KEY, RNGS, X, assert_deep_equals, assert_same, deep, drawn, shapes

nnx = pytest.importorskip("flax.nnx")

STATISTICS = ("params", "batch_stats")


def block_of(nnx: Any) -> Any:
    """The block, by one of the two libraries."""

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = nnx.Linear(8, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
            self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.second(self.attention(self.first(self.norm(self.linear(x)))))

        def encode(self, x: Any) -> Any:
            return self.linear(x)

    return Block


Block = block_of(nnx)
FN = from_nnx(lambda rngs: Block(rngs))


def with_variables(variables: Any, keys: Any) -> Any:
    """The object with these variables, and with a key for each of its two dropouts."""
    block = Block(nnx.Rngs(0))
    for names, held in nnx.to_flat_state(nnx.state(block, nnx.Not(nnx.RngState))):
        collection = nnx.variable_name_from_type(type(held))
        held.set_value(functools.reduce(lambda tree, name: tree[name], names, variables[collection]))
    for dropout, key in zip((block.first, block.second), keys, strict=True):
        dropout.rngs.key.set_value(key)
        dropout.rngs.count.set_value(jnp.uint32(0))
    return block


def two_keys(rngs: Any) -> Any:
    return liftcore.apply(lambda scope: (scope.make_rng("dropout"), scope.make_rng("dropout")))({}, rngs=rngs)


def test_init_makes_what_the_constructor_makes() -> None:
    _, variables = liftcore.init(FN)(RNGS, X)
    block = Block(nnx.Rngs(**{name: drawn(name, RNGS) for name in RNGS}))
    kept = nnx.state(block, nnx.Not(nnx.RngState))
    assert len(jax.tree.leaves(variables)) == len(jax.tree.leaves(kept))
    assert_same(variables["params"]["attention"]["query"]["kernel"], block.attention.query.kernel.get_value())
    assert_same(variables["batch_stats"]["norm"]["mean"], block.norm.mean.get_value())


def test_a_call_equals_that_of_the_object() -> None:
    _, variables = liftcore.init(FN)(RNGS, X)
    y, changed = liftcore.apply(FN, mutable="batch_stats")(variables, X, rngs=DROPOUT)
    block = with_variables(variables, two_keys(DROPOUT))
    assert_same(y, block(X))
    assert_same(changed["batch_stats"]["norm"]["mean"], block.norm.mean.get_value())


def test_our_objects_have_the_same_numbers() -> None:
    ours = block_of(nnx_like)

    def adopted(scope: liftcore.Scope, x: Any) -> Any:
        return nnx_like.bridge.adopt(scope, lambda rngs: ours(rngs))(x)

    variables = liftcore.lazy_init(adopted)(RNGS, X)
    assert_same(liftcore.lazy_init(FN)(RNGS, X)["params"], variables["params"])
    apply = liftcore.apply(adopted, mutable="batch_stats")(variables, X, rngs=DROPOUT)
    assert_same(liftcore.apply(FN, mutable="batch_stats")(variables, X, rngs=DROPOUT), apply)


def test_scanned_and_rematerialized_blocks_equal_a_scan_of_the_original() -> None:
    def original(variables: Any, rngs: Any, x: Any) -> Any:
        block = with_variables(variables, two_keys(rngs))
        y = block(x)
        mean, var = block.norm.mean.get_value(), block.norm.var.get_value()
        return y, {"batch_stats": {"norm": {"mean": mean, "var": var}}}

    assert_deep_equals(FN, original, X, ("batch_stats",))


def test_a_given_object_keeps_its_weights_and_is_not_changed() -> None:
    block = Block(nnx.Rngs(params=3, dropout=4))
    before = jax.tree.map(jnp.copy, nnx.state(block, nnx.Param, nnx.BatchStat))
    fn = from_nnx(block)
    _, variables = liftcore.init(fn)(RNGS, X)
    assert_same(variables["params"]["linear"]["kernel"], block.linear.kernel.get_value())
    call = liftcore.apply(fn, mutable="batch_stats")
    call(variables, X, rngs=DROPOUT)
    jax.grad(lambda params: call({**variables, "params": params}, X, rngs=DROPOUT)[0].sum())(variables["params"])
    assert_same(jax.tree.leaves(nnx.state(block, nnx.Param, nnx.BatchStat)), jax.tree.leaves(before))


def test_later_changes_of_a_given_object_change_nothing() -> None:
    linear = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    before, fn = linear.kernel.get_value(), from_nnx(linear)
    for init in (liftcore.init(fn), liftcore.init(liftcore.jit(fn))):
        linear.kernel.set_value(jnp.zeros((8, 8)))
        assert_same(init(KEY, X)[1]["params"]["kernel"], before)


def test_methods() -> None:
    _, variables = liftcore.init(FN)(RNGS, X)
    expected = with_variables(variables, two_keys(DROPOUT)).encode(X)
    for method in ("encode", lambda block, x: block.linear(x)):
        fn = from_nnx(lambda rngs: Block(rngs), method=method)
        assert_same(liftcore.apply(fn)(variables, X), expected)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
def test_sown_values_pass_through_our_lifts() -> None:
    class Sowing(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            self.sow(nnx.Intermediate, "h", x)
            return self.linear(x)

    fn = deep(from_nnx(lambda rngs: Sowing(rngs)))
    _, variables = liftcore.init(fn)(KEY, X)
    _, sown = liftcore.apply(fn, mutable="intermediates")(variables, X)
    assert shapes(sown) == {"intermediates": {"h": ((3, *X.shape),)}}


def test_missing_streams_and_collections_are_our_errors() -> None:
    _, variables = liftcore.init(FN)(RNGS, X)
    with pytest.raises(errors.InvalidRngError, match="no RNG stream"):
        liftcore.apply(FN, mutable="batch_stats")(variables, X)
    with pytest.raises(errors.ModifyScopeVariableError, match="batch_stats"):
        liftcore.apply(FN)(variables, X, rngs=DROPOUT)
    with pytest.raises(errors.ScopeCollectionNotFound, match="batch_stats"):
        liftcore.apply(FN)({"params": variables["params"]}, X, rngs=DROPOUT)
    mapped = liftcore.vmap(FN, variable_axes=dict.fromkeys(STATISTICS))
    with pytest.raises(errors.UnliftedStreamError, match="split_rngs"):
        liftcore.apply(mapped, mutable="batch_stats")(variables, X[None], rngs=DROPOUT)


def test_a_variable_that_only_a_call_makes_is_an_error() -> None:
    class Late(nnx.Module):
        def __call__(self, x: Any) -> Any:
            self.count = nnx.BatchStat(jnp.zeros(()))
            return x

    with pytest.raises(errors.LiftArgumentError, match="Make it in the function that you pass"):
        liftcore.apply(from_nnx(lambda rngs: Late()), mutable="batch_stats")({}, X)


def test_the_mode_is_set_where_the_object_is_made() -> None:
    def quiet(rngs: Any) -> Any:
        block = Block(rngs)
        block.eval()
        return block

    _, variables = liftcore.init(FN)(RNGS, X)
    expected = liftcore.apply(from_nnx(quiet))(variables, X)
    expected_block = with_variables(variables, two_keys(DROPOUT))
    expected_block.eval()
    assert_same(expected, expected_block(X))
    for_one_call = from_nnx(lambda rngs: Block(rngs), method=lambda block, x: (block.eval(), block(x))[1])
    assert_same(liftcore.apply(for_one_call)(variables, X), expected)


def test_a_mode_that_would_be_lost_is_an_error() -> None:
    with pytest.raises(errors.LiftArgumentError, match="attention/deterministic: the call set it to True"):
        liftcore.init(from_nnx(lambda rngs: Block(rngs), method="eval"))(RNGS)
    block = Block(nnx.Rngs(0))
    fn, other = from_nnx(block), from_nnx(nnx.clone(block))
    block.eval()
    with pytest.raises(errors.LiftArgumentError, match=r"attention/deterministic: it was None when .* and is True now"):
        liftcore.init(fn)(RNGS, X)
    assert liftcore.init(other)(RNGS, X)[0].shape == X.shape


class Switched(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls, self.scale, self.count = 0, float("nan"), nnx.Variable(jnp.array(0))

    def __call__(self, x: Any, train: bool = False) -> Any:
        (self.train if train else self.eval)()
        self.calls += 1
        return self.dropout(x)

    def counted(self) -> None:
        self.eval()
        self.count[...] += 1

    def itself(self) -> dict[Any, Any]:
        self.eval()
        return {"self": self, 1: "keys that cannot be sorted"}

    def nothing(self) -> None:
        pass


@pytest.mark.parametrize("model", [Switched(nnx.Rngs(0)), lambda rngs: Switched(rngs)])
def test_a_call_that_computes_may_change_attributes(model: Any) -> None:
    fn = from_nnx(model)
    y, variables = liftcore.init(fn)(RNGS, X)
    assert_same(y, X)
    assert_same(liftcore.apply(fn)(variables, X), X)
    assert not (liftcore.apply(fn)(variables, X, train=True, rngs=RNGS) == X).all()
    assert_same(jax.jit(liftcore.apply(fn))(variables, X), X)
    liftcore.apply(from_nnx(model, method="itself"))(variables)
    _, changed = liftcore.apply(from_nnx(model, method="counted"), mutable="Variable")(variables)
    assert changed["Variable"]["count"] == 1
    assert liftcore.apply(from_nnx(model, method="nothing"))(variables) is None  # nan is not equal to itself
    with pytest.raises(errors.LiftArgumentError, match="dropout/deterministic: the call set it to True"):
        liftcore.apply(from_nnx(model, method="eval"))(variables)


def test_a_stream_has_the_name_of_its_tag_and_a_plain_variable_a_collection() -> None:
    class Counting(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.rnn = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs))
            self.calls = nnx.Variable(jnp.array(0))

        def __call__(self, x: Any) -> Any:
            self.calls[...] += 1
            return self.rnn(x)

    for model in (Counting(nnx.Rngs(0)), lambda rngs: Counting(rngs)):
        fn = from_nnx(model)
        _, variables = liftcore.init(fn)(KEY, X)
        assert variables["Variable"]["calls"] == 0
        _, changed = liftcore.apply(fn, mutable="Variable")(variables, X, rngs={"carry": KEY})
        assert changed["Variable"]["calls"] == 1
        with pytest.raises(errors.InvalidRngError, match='no RNG stream "carry"'):
            liftcore.apply(fn, mutable="Variable")(variables, X, rngs={"default": KEY})


def test_what_is_no_object_is_an_error() -> None:
    for wrong in (Block, 3):
        with pytest.raises(errors.LiftArgumentError, match=r"`from_nnx\(lambda rngs: module\)`"):
            from_nnx(wrong)
    with pytest.raises(errors.WrongStyleError, match=r"nnx\.bridge\.adopt"):
        from_nnx(nnx_like.Linear(3, 3, rngs=nnx_like.Rngs(0)))

"""`from_linen`: modules of `flax.linen` in scopes. Names, keys and numbers are those of flax, inside our lifts too."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from liftcore import Scope, errors, unbox
from liftcore.checkpoints import load_file
from liftcore.foreign import from_linen
from linen_like.convert import from_flax
from linen_like.errors import CallCompactUnboundModuleError
from tests.foreign.comparing import DROPOUT, KEY, RNGS, X, assert_same, deep, shapes

linen = pytest.importorskip("flax.linen")
linen_errors = pytest.importorskip("flax.errors")


class Block(linen.Module):
    """A transformer block with statistics, dropout and a sown value."""

    train: bool = True

    @linen.compact
    def __call__(self, x: Any) -> Any:
        h = linen.LayerNorm()(x)
        attention = linen.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=not self.train)
        x = x + attention(h)
        h = linen.BatchNorm(use_running_average=not self.train)(linen.Dense(x.shape[-1])(x))
        self.sow("intermediates", "h", h)
        return x + linen.Dropout(0.3, deterministic=not self.train)(h)


class Encoder(linen.Module):
    """A layer of flax, then the block."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return Block()(linen.Dense(8)(x))


class Step(linen.Module):
    """The block as the body of flax's scan, without a name of its own."""

    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        block = Block()
        linen.share_scope(self, block)
        return block(x), None


class Deep(linen.Module):
    """Three rematerialized blocks, by flax."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        layers = linen.scan(
            linen.remat(Step),
            variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=3,
            check_constancy_invariants=False,
        )
        return layers(name="layers")(x, None)[0]


def in_layers(scope: Scope, x: Any) -> Any:
    return deep(from_linen(Block()), ("params", "batch_stats"))(scope.push("layers"), x)


def test_init_and_apply_give_what_the_module_gives() -> None:
    block, fn = Block(), from_linen(Block())
    y, variables = liftcore.init(fn)(RNGS, X)
    assert_same((y, variables), block.init_with_output(RNGS, X))
    for mutable in (["batch_stats"], ["batch_stats", "intermediates"], True):
        ours = liftcore.apply(fn, mutable=mutable)(variables, X, rngs=DROPOUT)
        assert_same(ours, block.apply(variables, X, rngs=DROPOUT, mutable=mutable))


def test_a_part_of_a_linen_style_model_has_the_keys_of_the_whole_flax_model() -> None:
    class Half(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return from_linen(Block())(self.scope.push("Block_0"), nn.Dense(8)(x))

    y, variables = Half().init_with_output(RNGS, X)
    assert_same((y, variables), Encoder().init_with_output(RNGS, X))
    ours = Half().apply(variables, X, rngs=DROPOUT, mutable=["batch_stats"])
    assert_same(ours, Encoder().apply(variables, X, rngs=DROPOUT, mutable=["batch_stats"]))


def test_our_scan_and_remat_equal_those_of_flax() -> None:
    variables = Deep().init(RNGS, X)
    made = liftcore.init(in_layers)(RNGS, X)[1]  # the same keys; flax computes the values in its loop, we do before it
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), made, variables)
    mutable = ["batch_stats", "intermediates"]
    ours = jax.jit(liftcore.apply(in_layers, mutable=mutable))(variables, X, rngs=DROPOUT)
    theirs = jax.jit(functools.partial(Deep().apply, mutable=mutable))(variables, X, rngs=DROPOUT)
    assert_same(ours, theirs)


def test_gradients_equal_those_of_flax() -> None:
    variables = Deep().init(RNGS, X)
    stats = {"batch_stats": variables["batch_stats"]}

    def ours(params: Any) -> Any:
        return liftcore.apply(in_layers, mutable="batch_stats")({"params": params, **stats}, X, rngs=DROPOUT)[0].sum()

    def theirs(params: Any) -> Any:
        return Deep().apply({"params": params, **stats}, X, rngs=DROPOUT, mutable="batch_stats")[0].sum()

    assert_same(jax.jit(jax.grad(ours))(variables["params"]), jax.jit(jax.grad(theirs))(variables["params"]))


def test_jit_changes_no_number_and_the_body_is_traced_once() -> None:
    runs = []

    class Counted(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            runs.append(1)
            return linen.Dropout(0.5, deterministic=False)(linen.Dense(8)(x))

    fn = deep(from_linen(Counted()))
    _, variables = liftcore.init(fn)(RNGS, X)
    assert len(runs) == 1
    assert_same(liftcore.init(liftcore.jit(fn))(RNGS, X)[1], variables)
    runs.clear()
    plain = liftcore.apply(fn)(variables, X, rngs=DROPOUT)
    assert len(runs) == 1
    assert_same(liftcore.apply(liftcore.jit(fn))(variables, X, rngs=DROPOUT), plain)


def test_one_compiled_function_serves_two_places_with_their_own_keys() -> None:
    compiled = liftcore.jit(from_linen(linen.Dense(8)))
    _, variables = liftcore.init(lambda scope, x: compiled(scope.push("b"), compiled(scope.push("a"), x)))(KEY, X)

    class Two(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(8, name="b")(linen.Dense(8, name="a")(x))

    assert_same(variables, Two().init(KEY, X))


def test_methods_and_shared_layers() -> None:
    class Coder(linen.Module):
        def setup(self) -> None:
            self.encoder, self.decoder = linen.Dense(4), linen.Dense(8)
            self.dropout = linen.Dropout(0.5, deterministic=False)

        def encode(self, x: Any) -> Any:
            return self.encoder(self.dropout(x))

        def __call__(self, x: Any) -> Any:
            return self.decoder(self.dropout(self.encode(x)))

    coder = Coder()
    _, variables = liftcore.init(from_linen(coder))(RNGS, X)
    assert_same(variables, coder.init(RNGS, X))
    for method in ("encode", Coder.encode, lambda coder, x: coder.decoder(coder.encoder(x))):
        ours = liftcore.apply(from_linen(coder, method=method))(variables, X, rngs=DROPOUT)
        assert_same(ours, coder.apply(variables, X, rngs=DROPOUT, method=method))

    class Twice(linen.Module):
        def setup(self) -> None:
            self.coder = Coder()

        def __call__(self, x: Any) -> Any:
            return self.coder(self.coder(x))

    def twice(scope: Scope, x: Any) -> Any:
        below, fn = scope.push("coder"), from_linen(coder)
        return fn(below, fn(below, x))

    assert_same(liftcore.init(twice)(RNGS, X), Twice().init_with_output(RNGS, X))


def test_lifts_of_flax_inside() -> None:
    class Inner(linen.Module):
        @linen.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return linen.Dropout(0.5, deterministic=False)(linen.Dense(8)(x)), None

    class Outer(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            layers = linen.scan(
                linen.remat(Inner),
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=3,
            )
            x = linen.jit(linen.Dense)(8)(layers()(x, None)[0])
            return linen.vmap(linen.Dense, variable_axes={"params": 0}, split_rngs={"params": True})(4)(x)

    fn, outer = from_linen(Outer()), Outer()
    variables = outer.init(RNGS, X)
    _, made = liftcore.init(fn)(RNGS, X)
    assert shapes(made) == shapes(variables)
    quiet = lambda variables: liftcore.apply(fn)(variables, X, rngs=DROPOUT)  # noqa: E731
    assert quiet(variables).shape == outer.apply(variables, X, rngs=DROPOUT).shape
    assert_same(jax.tree.map(jnp.any, jax.grad(lambda v: quiet(v).sum())(made)), jax.tree.map(lambda _: True, made))
    many = liftcore.vmap(
        fn, in_axes=None, axis_size=3, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}
    )
    kernels = liftcore.init(many)(RNGS, X)[1]["params"]["ScanCheckpointInner_0"]["Dense_0"]["kernel"]
    assert kernels.shape == (3, 3, 8, 8)
    assert len(set(kernels[..., 0, 0].ravel().tolist())) == 9


def test_a_cache_is_carried_by_our_scan() -> None:
    attention = linen.MultiHeadDotProductAttention(2, decode=True)
    variables = attention.init(KEY, X)
    assert_same(liftcore.init(from_linen(attention))(KEY, X)[1], variables)

    def decode(scope: Scope, x: Any) -> Any:
        step = from_linen(attention)
        scan = liftcore.scan(
            lambda scope, carry, x: (carry, step(scope, x)),
            variable_broadcast="params",
            variable_carry="cache",
            in_axes=1,
            out_axes=1,
        )
        return scan(scope, None, x[:, :, None])[1]

    ys, changed = liftcore.apply(decode, mutable="cache")(variables, X)
    held = variables
    for place in range(X.shape[1]):
        y, new = attention.apply(held, X[:, place : place + 1], mutable=["cache"])
        held = {**held, **new}
        assert jnp.allclose(y, ys[:, place], atol=1e-6)
    assert changed["cache"]["cache_index"] == X.shape[1]


def test_perturbations() -> None:
    class Perturbed(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return self.perturb("h", linen.Dense(3)(x)) ** 2

    fn, variables = from_linen(Perturbed()), Perturbed().init(KEY, X)
    assert_same(liftcore.init(fn)(KEY, X)[1], variables)
    ours = jax.grad(lambda variables: liftcore.apply(fn)(variables, X).sum())(variables)
    assert_same(ours, jax.grad(lambda variables: Perturbed().apply(variables, X).sum())(variables))


def test_boxes_of_flax_become_boxes_whose_axes_our_lifts_name() -> None:
    init = linen.initializers
    dense = linen.Dense(
        8,
        kernel_init=linen.with_partitioning(init.lecun_normal(), ("in", "out")),
        bias_init=linen.with_logical_partitioning(init.zeros, ("hidden",)),
    )
    _, variables = liftcore.init(from_linen(dense))(KEY, X)
    assert_same(unbox(variables), linen.meta.unbox(dense.init(KEY, X)))
    y = liftcore.apply(from_linen(dense))(variables, X)
    assert_same(liftcore.apply(from_linen(dense))(dense.init(KEY, X), X), y)  # boxes of flax, as in its checkpoints
    layers = deep(from_linen(dense), metadata_params={"partition_name": "layers"})
    _, stacked = liftcore.init(layers)(KEY, X)
    specs = liftcore.meta.get_partition_spec(stacked)["params"]
    assert specs["kernel"] == jax.sharding.PartitionSpec("layers", "in", "out")
    assert specs["bias"] == jax.sharding.PartitionSpec("layers", "hidden")
    assert liftcore.apply(layers)(stacked, X).shape == X.shape


def test_a_checkpoint_of_flax_loads(tmp_path: Any) -> None:
    serialization = pytest.importorskip("flax.serialization")
    variables = Deep().init(RNGS, X)
    path = tmp_path / "flax.msgpack"
    path.write_bytes(serialization.to_bytes(variables))
    target = jax.eval_shape(lambda: liftcore.init(in_layers)({**RNGS, "params": jax.random.key(9)}, X)[1])
    assert_same(load_file(path, target, checksums=False), variables)


def test_explain_names_each_variable_of_the_module() -> None:
    scope = liftcore.bind({}, RNGS, mutable=True, initializing=True)
    text = str(liftcore.explain(in_layers)(scope, X))
    assert "params/layers/Dense_0/kernel" in text
    assert "created, hoisted" in text


def test_a_stream_or_a_collection_that_a_lift_leaves_out_is_our_error() -> None:
    fn = from_linen(Block())
    variables = Block().init(RNGS, X)
    axes = {"params": None, "batch_stats": None}
    with pytest.raises(errors.UnliftedStreamError, match=r'Add `split_rngs={"dropout": True}`'):
        liftcore.apply(liftcore.vmap(fn, variable_axes=axes), mutable="batch_stats")(variables, X, rngs=DROPOUT)
    part = liftcore.vmap(fn, variable_axes={"params": None}, split_rngs={"dropout": True})
    with pytest.raises(errors.UnliftedCollectionError, match='"batch_stats/mean" at /vmap'):
        liftcore.apply(part, mutable="batch_stats")(variables, X, rngs=DROPOUT)
    with pytest.raises(errors.ModifyScopeVariableError, match=r'mutable=\["batch_stats"\]'):
        liftcore.apply(fn)(variables, X, rngs=DROPOUT)
    with pytest.raises(errors.InvalidRngError, match='no RNG stream "dropout" was given'):
        liftcore.apply(fn, mutable="batch_stats")(variables, X)


def test_missing_and_wrong_parameters_are_our_errors() -> None:
    dense = linen.Dense(3)
    with pytest.raises(errors.ScopeCollectionNotFound):
        liftcore.apply(from_linen(dense))({"params": {}}, X)
    with pytest.raises(errors.ScopeParamShapeError, match="the stored value has shape"):
        liftcore.apply(from_linen(dense))(dense.init(KEY, X[..., :2]), X)


def test_two_modules_in_one_scope_must_not_share_variables() -> None:
    def both(scope: Scope, x: Any) -> Any:
        return from_linen(linen.Dense(8))(scope, x) + from_linen(linen.Dense(8, use_bias=False))(scope, x)

    with pytest.raises(errors.NameInUseError, match="kernel"):
        liftcore.init(both)(KEY, X)


@pytest.mark.parametrize("wrong", [linen.Dense, len, 3])
def test_what_is_no_module_is_an_error(wrong: Any) -> None:
    with pytest.raises(errors.LiftArgumentError, match=r"expected a module of flax.linen.*`from_linen\(flax"):
        from_linen(wrong)


def test_our_own_modules_need_no_bridge() -> None:
    with pytest.raises(errors.WrongStyleError, match=r"needs no bridge\. Write `module\.clone\(parent=scope\)\(x\)`"):
        from_linen(nn.Dense(3))


def test_boxes_of_flax_in_a_layer_of_ours_are_an_error_that_names_the_conversion() -> None:
    def dense(linen: Any) -> Any:
        return linen.Dense(3, kernel_init=linen.with_partitioning(linen.initializers.lecun_normal(), ("in", "out")))

    variables = dense(linen).init(KEY, X)
    with pytest.raises(errors.ScopeParamShapeError, match=r"in a box of flax, `Partitioned`.*`from_flax\(model"):
        dense(nn).apply(variables, X)
    expected = dense(linen).apply(variables, X)
    assert_same(dense(nn).apply(linen.unbox(variables), X), expected)
    converted = from_flax(dense(nn), variables, X)
    assert isinstance(converted["params"]["kernel"], liftcore.meta.Partitioned)
    assert_same(dense(nn).apply(converted, X), expected)


class Recurrent(nn.Module):
    """A recurrent layer of flax, which runs its cell in a scan of flax."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return from_linen(linen.RNN(linen.GRUCell(8)))(self.scope.push("old"), x)


def test_what_a_lift_of_flax_only_reads_is_not_written() -> None:
    x = jnp.ones((2, 4, 8))
    doubled = nn.map_variables(Recurrent, "params", lambda params: jax.tree.map(lambda w: 2 * w, params), init=True)
    variables = doubled().init(KEY, x)
    y, seen = doubled().apply(variables, x, mutable=True)  # a write of mapped variables would be an error
    assert_same(y, doubled().apply(variables, x))
    assert_same(seen["params"], variables["params"])
    (row, *_) = nn.summarize(doubled(), KEY, compute_flops=True)(x).rows
    assert row.flops is not None


class Direct(nn.Module):
    layer: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.layer(x)


class InSetup(linen.Module):
    def setup(self) -> None:
        self.layer = linen.Dense(3)

    def __call__(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("layer", [linen.Dense(3), InSetup()])
def test_a_layer_of_flax_that_is_called_directly_hints_at_the_bridge(layer: Any) -> None:
    with pytest.raises((linen_errors.FlaxError, AttributeError)) as caught:
        Direct(layer).init(KEY, X)
    assert any("`foreign.from_linen(layer)(self.scope" in note for note in caught.value.__notes__)


def test_a_layer_of_ours_in_a_module_of_flax_is_told_to_move_the_outer_module_first() -> None:
    class Outer(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    with pytest.raises(CallCompactUnboundModuleError, match="first move Outer to `linen_like`"):
        Outer().init(KEY, X)
    with pytest.raises(CallCompactUnboundModuleError, match="Make variables"):  # flax is imported, but does not run
        nn.Dense(3)(X)

"""`init_sharded`: the values of `init`, with each device computing only its shards; and what does not fit, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
import linen_like as nn
from liftcore.errors import LiftArgumentError
from liftcore.meta import Partitioned, get_sharding, with_partitioning
from liftcore.training import TrainState
from tests.machine import make_mesh

KEY, TOKENS = jax.random.key(0), jnp.zeros((2, 3), int)
RULES = (("embed", "data"), ("mlp", "model"), ("vocab", "model"), ("layers", None))
NAMED = nn.with_logical_partitioning
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(kind: AxisType = AUTO) -> Mesh:
    return make_mesh((2, 4), "data", "model", kind=kind)


class Block(nn.Module):
    """A residual layer whose kernels and biases have logical names."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> tuple[Any, None]:
        kernel = NAMED(nn.initializers.lecun_normal(), ("embed", "mlp"))
        bias = NAMED(nn.initializers.normal(), ("mlp",))
        y = nn.with_logical_constraint(nn.Dense(16, kernel_init=kernel, bias_init=bias)(x), (None, None, "mlp"))
        return x + nn.Dense(8, kernel_init=NAMED(nn.initializers.lecun_normal(), ("mlp", "embed")))(y), None


class Model(nn.Module):
    """An embedding, and blocks in a scan."""

    @nn.compact
    def __call__(self, tokens: Any, blocks: int = 2) -> Any:
        x = nn.Embed(12, 8, embedding_init=NAMED(nn.initializers.normal(), ("vocab", "embed")))(tokens)
        params = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        loop = nn.scan(Block, length=blocks, metadata_params={nn.PARTITION_NAME: "layers"}, **params)
        return loop()(x, None)[0]


MODEL = Model()


def create(key: Any, tokens: Any) -> TrainState:
    params = MODEL.init(key, tokens)["params"]
    return TrainState.create(apply_fn=MODEL.apply, params=params, tx=optax.adam(0.1))


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding.spec, tree)


@pytest.mark.parametrize("kind", [EXPLICIT, AUTO])
def test_a_whole_state_is_made_as_its_names_say(kind: AxisType) -> None:
    mesh = mesh_of(kind)
    make = nn.init_sharded(create, mesh, RULES)
    state, expected = make(KEY, jax.ShapeDtypeStruct(TOKENS.shape, TOKENS.dtype)), create(KEY, TOKENS)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    wanted = {
        "Embed_0": {"embedding": P("model", "data")},
        "ScanBlock_0": {
            "Dense_0": {"kernel": P(None, "data", "model"), "bias": P(None, "model")},
            "Dense_1": {"kernel": P(None, "model", "data"), "bias": P()},
        },
    }
    for part in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        assert specs(nn.unbox(part)) == wanted
        assert all(leaf.sharding.mesh.axis_types == (kind, kind) for leaf in jax.tree.leaves(part))
    target = make.eval_shape(KEY, TOKENS)
    assert specs(target.params) == specs(state.params)
    assert jax.tree.map(jnp.shape, target.opt_state) == jax.tree.map(jnp.shape, state.opt_state)


def test_a_module_takes_arguments_of_all_kinds() -> None:
    mesh = mesh_of(EXPLICIT)
    tokens = jax.device_put(TOKENS, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        made = nn.init_sharded(MODEL, mesh)({"params": KEY}, tokens, blocks=3)
    assert made["params"]["ScanBlock_0"]["Dense_0"]["bias"].value.shape == (3, 16)


@pytest.mark.parametrize("kind", [EXPLICIT, AUTO])
def test_no_device_computes_more_than_its_shards(kind: AxisType, monkeypatch: pytest.MonkeyPatch) -> None:
    jit, texts = jax.jit, []

    def spying(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            texts.append(jit(fn, **options).lower(*args).compile().as_text())
            return jit(fn, **options)(*args)

        return call

    def init_fn(key: Any) -> Any:
        init = with_partitioning(jax.nn.initializers.lecun_normal(), ("data", "model"))
        return liftcore.init(lambda scope: scope.param("w", init, (26, 52)))(key)[1]

    make = liftcore.init_sharded(init_fn, mesh_of(kind))
    monkeypatch.setattr(jax, "jit", spying)
    make(KEY)
    assert "[13,13]" in texts[0]
    assert "26,52" not in texts[0]


def test_names_are_those_of_the_shape_that_a_kernel_has() -> None:
    """`DenseGeneral` asks an initializer for two axes, and folds what it makes."""
    kernel = NAMED(nn.initializers.lecun_normal(), ("embed", "heads", None))
    layer, rules = nn.DenseGeneral((4, 2), kernel_init=kernel), (("embed", "data"), ("heads", "model"))
    for kind in (AUTO, EXPLICIT):
        made = nn.init_sharded(layer, mesh_of(kind), rules)(KEY, jnp.ones((2, 8)))
        assert tuple(made["params"]["kernel"].value.sharding.spec)[:2] == ("data", "model")


def test_a_large_state_is_made_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftcore.portions._SMALL", 0)
    seen: list[int] = []

    def init_fn(key: Any, effect: bool) -> Any:
        first = jax.random.normal(key, (8, 4))
        if effect:
            jax.debug.callback(lambda: seen.append(1))
        return {"a": first, "b": first + 1, "step": 0, "key": key}

    for effect in (False, True):
        made = liftcore.init_sharded(init_fn, mesh_of())(KEY, effect)
        jax.effects_barrier()
        first = jax.random.normal(KEY, (8, 4))
        np.testing.assert_allclose(made["a"], first, rtol=1e-5)
        np.testing.assert_allclose(made["b"], first + 1, rtol=1e-5)
        assert made["step"] == 0
        assert (made["key"] == KEY).all()
    assert len(seen) == 1


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed_at_once() -> None:
    rules = (("embd", "data"), ("mlp", "modle"), ("vocab", ("data", "model")), ("layers", None))
    with pytest.raises(LiftArgumentError) as caught:
        nn.init_sharded(MODEL, mesh_of(), rules)(KEY, TOKENS)
    assert str(caught.value).splitlines() == [
        "shardings on a mesh of {'data': 2, 'model': 4}: ",
        "  rule ('mlp', 'modle'): the mesh has no axis 'modle' (axes: ['data', 'model']). Did you mean 'model'?",
        '  "params/Embed_0/embedding", "params/ScanBlock_0/Dense_0/kernel", "params/ScanBlock_0/Dense_1/kernel": '
        "'embed' has no rule (rules for: ['embd', 'mlp', 'vocab', 'layers']) and is not an axis of the mesh "
        "(axes: ['data', 'model']). Did you mean 'embd'?",
        " Name an axis of the mesh, or None for an axis that is not sharded. "
        'Add a rule, such as `("embed", None)` for an axis that is not sharded.',
    ]


@pytest.mark.parametrize(
    ("names", "rules", "what"),
    [
        (("data", "model"), None, "dimension 1 of shape (6, 6) is sharded over 'model', of size 4, which does not"),
        ((("data", "model"), None), None, "dimension 0 of shape (6, 6) is sharded over ('data', 'model'), of size 8,"),
        (("data", "data"), None, "'data' occurs twice in ('data', 'data'), but a mesh axis can shard only one dim"),
        (("data", "dta"), None, "the mesh has no axis 'dta' (axes: ['data', 'model'])."),
        (("a", "b"), (("a", "data"),), "'b' has no rule (rules for: ['a']) and is not an axis of the mesh"),
        (("a", "a"), (("a", "data"),), "'a' occurs twice in ('a', 'a')"),
    ],
)
def test_names_of_one_variable_that_do_not_fit(names: Any, rules: Any, what: str) -> None:
    tree = {"dense": {"kernel": Partitioned(jnp.ones((6, 6)), names)}}
    with pytest.raises(LiftArgumentError) as caught:
        get_sharding(tree, mesh_of(), rules)
    assert caught.value.where == '"dense/kernel"'
    assert what in caught.value.what


def test_arrays_of_another_rank_than_their_names_and_of_size_one_are_replicated() -> None:
    """As in the factored state of an optimizer, which keeps the boxes of the parameters."""
    tree = [Partitioned(jnp.ones((6,)), ("data", "model")), Partitioned(jnp.ones((1, 4)), ("data", "model"))]
    assert [one.spec for one in get_sharding(tree, mesh_of())] == [P(), P(None, "model")]


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda: nn.init_sharded(MODEL, RULES), r"expected a jax.sharding.Mesh, given"),
        (lambda: get_sharding({}, RULES), r"get_sharding: expected a jax.sharding.Mesh, given"),
        (lambda: nn.init_sharded(MODEL, mesh_of(), dict(RULES)), r"Write a list of pairs: `\[\('embed', 'data'\), "),
        (lambda: get_sharding({}, mesh_of(), [("embed", 0)]), r"rules: expected pairs .* given \[\('embed', 0\)\]"),
        (lambda: nn.init_sharded(3, mesh_of()), r"expected a module or a function, given 3"),
        (
            lambda: jax.jit(nn.init_sharded(MODEL, mesh_of(), RULES))(KEY, TOKENS),
            "an argument, a PRNG key, is traced, .* Call it outside of `jax.jit`",
        ),
        (
            lambda: nn.init_sharded(MODEL, mesh_of(), RULES)(jax.eval_shape(lambda: KEY), TOKENS),
            "cannot be replaced by its shape",
        ),
    ],
)
def test_other_arguments_are_errors(use: Callable[[], Any], what: str) -> None:
    with pytest.raises(LiftArgumentError, match=what):
        use()


def test_a_module_that_wants_explicit_axes_is_told_how_to_be_initialised() -> None:
    class Product(nn.Module):
        waits: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            kernel = self.param("kernel", NAMED(nn.initializers.ones, ("embed", "mlp")), (8, 4))
            wanted = None if self.waits and self.is_initializing() else P("data", "model")
            return jnp.dot(x, kernel, out_sharding=wanted)

    mesh, x = mesh_of(EXPLICIT), jnp.ones((2, 8))
    with pytest.raises(LiftArgumentError, match=r"out_sharding=None if self.is_initializing\(\)"):
        nn.init_sharded(Product(False), mesh, RULES)(KEY, x)
    assert nn.init_sharded(Product(True), mesh, RULES)(KEY, x)["params"]["kernel"].names == ("embed", "mlp")


def test_an_error_of_the_module_is_its_own() -> None:
    def fail(key: Any) -> Any:
        raise LiftArgumentError("here", "it is odd.", "Change it.")

    with pytest.raises(LiftArgumentError, match="it is odd"):
        nn.init_sharded(fail, mesh_of(), RULES)(KEY)

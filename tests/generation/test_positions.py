"""`at_positions`: the logits of one position of each example, with the products of that position alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import liftcore
import linen_like as nn
from liftcore.generation.positions import at_positions
from tests.layers.row import array
from tests.machine import make_mesh

WORDS, WIDTH, LENGTH = 23, 8, 6
KEY = jax.random.key(0)
X = jnp.asarray(array(3, LENGTH, WIDTH))
POSITIONS = jnp.array([5, 0, 2])
W, B, TABLE = (jnp.asarray(array(*shape)) for shape in ((WIDTH, WORDS), (WORDS,), (WORDS, WIDTH)))


def mixed(x: Any) -> Any:
    """Stands for attention: each position sees the earlier ones."""
    return jnp.tanh(jnp.cumsum(x, 1))


class Head(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.gelu(nn.Dense(2 * WIDTH)(x)))
        if self.kind == "tied":
            return nn.Embed(WORDS, 2 * WIDTH).attend(nn.RMSNorm()(x))
        if self.kind == "heads":
            return nn.DenseGeneral(WORDS, axis=(-2, -1))(nn.DenseGeneral((2, WIDTH))(x))
        if self.kind == "jit":
            return nn.jit(nn.Dense)(WORDS)(x)
        if self.kind == "remat":
            return nn.remat(nn.Dense)(WORDS, dtype=jnp.bfloat16)(x)
        if self.kind == "groups":
            return nn.Dense(WORDS)(nn.GroupNorm(2, reduction_axes=-1)(x))
        return nn.Dense(WORDS)(nn.Sequential([nn.Dense(WIDTH), nn.swish, nn.Dropout(0.5, deterministic=True)])(x))


def module(kind: str) -> Callable[[Any], Any]:
    head = Head(kind)
    variables = head.init(KEY, X)
    return lambda x: head.apply(variables, x)


NARROW: dict[str, Callable[[Any], Any]] = {
    **{f"module, {kind}": module(kind) for kind in ("tied", "heads", "jit", "remat", "groups", "plain")},
    "product": lambda x: x @ W + B,
    "words first": lambda x: jnp.einsum("vf,blf->blv", TABLE, x),
    "words first, transposed": lambda x: jnp.moveaxis(jnp.einsum("vf,blf->vbl", TABLE, x), 0, -1),
    "soft cap": lambda x: 30 * jnp.tanh((x @ W) / 30),
    "of half": lambda x: (x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16)).astype(jnp.float32),
    "padded words": lambda x: (x @ W)[..., : WORDS - 2],
    "two parts": lambda x: jnp.concatenate([x @ W, jnp.broadcast_to(x.mean(-1, keepdims=True), (3, LENGTH, 2))], -1),
    "masked words": lambda x: jnp.where(jnp.arange(WORDS) < 20, x @ W, -jnp.inf),
    "best of groups": lambda x: (x @ W)[..., :22].reshape(3, LENGTH, 11, 2).max(-1),
    "log probabilities": lambda x: jax.nn.log_softmax(x @ W),
    "for each example": lambda x: jnp.einsum("blf,bfv->blv", x, jnp.stack([W, 2 * W, W + 1])),
    "by positions": lambda x: (x + jnp.asarray(array(LENGTH, WIDTH))) @ W,
    "normalized, and returned": lambda x: (x / jnp.linalg.norm(x, axis=-1, keepdims=True)) @ W,
    "a product of itself": lambda x: jnp.einsum("blf,blf,fv->blv", x, x, W),
    "nested jit": jax.jit(lambda x: jax.jit(lambda x: x @ W)(jax.nn.silu(x))),
}

WHOLE: dict[str, Callable[[Any], Any]] = {
    "over positions": lambda x: jax.nn.softmax(x @ W, 1),
    "in a loop": lambda x: jax.lax.map(lambda row: row @ W, x),
    "no product": lambda x: jnp.repeat(x, 2, -1),
    "reversed": lambda x: (x @ W)[:, ::-1],
    "a function with its own derivative": lambda x: jax.nn.relu(x @ W),
    "of the last position": lambda x: x[:, -1:] @ W,
}


@pytest.mark.parametrize("name", [*NARROW, *WHOLE])
@pytest.mark.parametrize("traced", [True, False])
def test_logits_are_those_of_the_positions(name: str, traced: bool) -> None:
    head = {**NARROW, **WHOLE}[name]

    def model(x: Any) -> Any:
        y = mixed(x)
        return head(y), {"cache": y, "count": jnp.arange(3)}

    def both(x: Any, positions: Any) -> Any:
        return model(x), at_positions(model, positions, LENGTH, x)

    (logits, cache), (found, also) = (jax.jit(both) if traced else both)(X, POSITIONS)
    jax.tree.map(np.testing.assert_array_equal, cache, also)
    assert (found is None) is (name in WHOLE)
    if found is not None:
        expected = jnp.take_along_axis(logits, POSITIONS[:, None, None], 1)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-5 if found.dtype == jnp.float32 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("name", NARROW)
def test_products_are_those_of_one_position(name: str) -> None:
    def operations(length: int) -> int:
        x = jax.ShapeDtypeStruct((3, LENGTH, WIDTH), jnp.float32)
        run = lambda x: NARROW[name](x)[:, :length]  # noqa: E731
        return liftcore.count_operations(run)(x).operations

    model = lambda x: (NARROW[name](x), ())  # noqa: E731
    narrow = liftcore.count_operations(lambda x: at_positions(model, POSITIONS, LENGTH, x)[0])(X)
    assert narrow.operations < 1.5 * operations(LENGTH) / LENGTH


def test_constants_may_be_literals() -> None:
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        jax.clear_caches()
        found, _ = at_positions(lambda x: ((x + 2 * np.asarray(X)) @ W, ()), POSITIONS, LENGTH, X)
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)
        jax.clear_caches()
    np.testing.assert_allclose(found[:, 0], 3 * X[jnp.arange(3), POSITIONS] @ W, rtol=1e-5, atol=1e-5)


def test_effects_run_once_and_other_results_are_whole() -> None:
    seen: list[int] = []

    def model(x: Any) -> Any:
        y = mixed(x) @ W
        jax.debug.callback(lambda: seen.append(1))
        return y, y.sum()

    found, total = jax.jit(lambda x: at_positions(model, POSITIONS, LENGTH, x))(X)
    jax.effects_barrier()
    assert seen == [1]
    assert found is None  # all logits are needed for their sum
    np.testing.assert_allclose(total, model(X)[1], rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, LENGTH), (2, LENGTH, WIDTH), (3, LENGTH, 2, WIDTH)])
def test_what_is_no_logits_is_left_to_the_caller(shape: tuple[int, ...]) -> None:
    found, rest = at_positions(lambda x: (jnp.ones(shape), x.sum()), POSITIONS, LENGTH, X)
    assert found is None
    assert rest == X.sum()
    found, rest = at_positions(lambda x: ((x @ W, x @ W), x.sum()), POSITIONS, LENGTH, X)
    assert found is None
    assert rest == X.sum()


def test_operations_keep_their_names() -> None:
    def names(fn: Any) -> set[str]:
        eqns = jax.make_jaxpr(fn)(X).eqns
        return {str(eqn.source_info.name_stack) for eqn in eqns if eqn.primitive.name in ("dot_general", "tanh")}

    def model(x: Any) -> Any:
        with jax.named_scope("layer"):
            y = mixed(x)
        with jax.named_scope("head"):
            return y @ W, y

    assert names(lambda x: at_positions(model, POSITIONS, LENGTH, x)) == names(model) == {"layer", "head"}


SQUARE = jnp.asarray(array(WIDTH, WIDTH, WIDTH))  # examples, positions and features cannot be told apart by their sizes

BOTH_AXES: dict[str, Callable[[Any], Any]] = {
    "by two equations": lambda y: y + jnp.swapaxes(y, 0, 1),
    "by two arguments": lambda y: jax.jit(lambda a, b: a + jnp.swapaxes(b, 0, 1))(y, y),
    "as two results": lambda y: jax.checkpoint(lambda y: (lambda a, b: a + jnp.swapaxes(b, 0, 1))(*twice(y)))(y),
    "moved": lambda y: jnp.einsum("lbf,fg->gbl", jnp.moveaxis(y, 2, 1).swapaxes(0, 2).swapaxes(0, 1), W[:, :WIDTH]),
}


@jax.jit
def twice(y: Any) -> Any:
    y = jnp.sin(y)
    return y, y


@pytest.mark.parametrize("name", BOTH_AXES)
def test_a_value_of_which_different_positions_are_needed(name: str) -> None:
    positions = jnp.array([7, 0, 2, 5, 5, 1, 3, 6])

    def model(x: Any) -> Any:
        return BOTH_AXES[name](mixed(x)) @ W, ()

    found, _ = at_positions(model, positions, len(SQUARE), SQUARE)
    if found is not None:
        expected = jnp.take_along_axis(model(SQUARE)[0], positions[:, None, None], 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@jax.custom_vjp
def rounded(x: Any) -> Any:
    return jnp.round(x)


rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (3 * cotangent,))


@jax.custom_jvp
def rounded_too(x: Any) -> Any:
    return jnp.round(x)


rounded_too.defjvp(lambda primals, tangents: (rounded_too(*primals), 3 * tangents[0]))


@jax.custom_vjp
def product(x: Any, w: Any) -> Any:
    return x @ w


product.defvjp(lambda x, w: (x @ w, w), lambda w, cotangent: (2 * cotangent @ w.T, jnp.zeros_like(w)))


@pytest.mark.parametrize(
    "head",
    [
        lambda y: rounded(4 * y) @ W,
        lambda y: jax.jit(rounded_too)(4 * y) @ W,
        lambda y: jax.nn.relu(y.at[..., 0].set(0)) @ W,
        lambda y: product(y, W) @ W.T @ W,
    ],
)
def test_derivatives_are_those_that_functions_define(head: Callable[[Any], Any]) -> None:
    def model(x: Any) -> Any:
        y = mixed(x)
        return head(y), y

    def of_one(x: Any) -> Any:
        return at_positions(model, POSITIONS, LENGTH, x)[0].sum()

    def of_all(x: Any) -> Any:
        return jnp.take_along_axis(model(x)[0], POSITIONS[:, None, None], 1).sum()

    for transform in (jax.grad, jax.value_and_grad):
        ours, theirs = (jax.jit(transform(fn))(X) for fn in (of_one, of_all))
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), ours, theirs)


@pytest.mark.parametrize("of_examples", [None, "data"])
@pytest.mark.parametrize("of_positions", [None, "data"])
@pytest.mark.parametrize("of_length", [None, "model"])
def test_arrays_may_be_divided_among_devices_by_their_type(of_examples: Any, of_positions: Any, of_length: Any) -> None:
    with jax.set_mesh(make_mesh((4, 2), "data", "model", kind=AxisType.Explicit)):
        x = jax.device_put(SQUARE[:4], P(of_examples, of_length))
        positions = jax.device_put(jnp.array([7, 0, 2, 5]), P(of_positions))
        run = jax.jit(lambda x, positions: at_positions(lambda x: (jnp.sin(x) @ W, ()), positions, WIDTH, x)[0])
        found = run(x, positions)
    assert (found is None) is (of_length is not None)
    if found is not None:
        expected = jnp.take_along_axis(jnp.sin(SQUARE[:4]) @ W, jnp.array([7, 0, 2, 5])[:, None, None], 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

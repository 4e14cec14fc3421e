"""`implementation="auto"`: a stand-in for the fused kernel on the CPU, which does only what JAX's function does."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import liftcore
import linen_like
import nnx_like
from liftcore import nn
from liftcore.nn import cudnn_attention as module
from tests.layers.row import array

Q, K, V = array(3, 2, 4, 2, 8)
SEEN = np.array([[1, 1, 0, 1], [1, 0, 0, 0]], bool)[:, None, None]
BLIND = np.tril(np.ones((4, 4), bool), -1)
"""The first query sees no key."""


def strict(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function without derivatives and without a rule for `jax.vmap`."""
    mapped = jax.custom_batching.custom_vmap(jax.jit(fn))

    def refused(*_: Any) -> Any:
        raise NotImplementedError(fn.__name__)

    mapped.def_vmap(refused)
    whole = jax.custom_jvp(mapped)
    whole.defjvp(refused)
    return whole


def by_hand(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return nn.dot_product_attention(query, key, value, None, mask)


@strict
def stand_in(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return by_hand(query, key, value, mask)


@strict
def stand_in_gradient(query: Any, key: Any, value: Any, mask: Any, cotangent: Any) -> Any:
    return jax.vjp(lambda *args: by_hand(*args, mask), query, key, value)[1](cotangent)


@jax.custom_vjp
def differentiable(*args: Any) -> Any:
    return stand_in(*args)


differentiable.defvjp(lambda *args: (stand_in(*args), args), lambda args, ct: (*stand_in_gradient(*args, ct), None))


def compute(query: Any, key: Any, value: Any, mask: Any, is_causal: bool) -> Any:
    """Takes what JAX's function takes: one dtype, and a mask of full size; a query that sees nothing is NaN."""
    if mask is not None and (mask.dtype != bool or key.shape[-3] % 2):
        raise NotImplementedError("odd")
    if not query.dtype == key.dtype == value.dtype or query.shape[-1] % 8 or key.shape != value.shape:
        raise ValueError("sizes")
    whole = jnp.ones((1, *query.shape[-3:-2], *key.shape[-3:-2]), bool) if mask is None else mask
    whole = jnp.tril(whole) if is_causal else whole
    y = differentiable(query, key, value, whole)
    return jnp.where(jnp.swapaxes(jnp.any(whole, -1, keepdims=True), -2, -3), y, jnp.nan)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KERNEL", module.Kernel("cpu", lambda: True, compute))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has a device for the kernel, but the programs run on another platform."""
    monkeypatch.setattr(module, "KERNEL", module.Kernel("cuda", lambda: True, compute))


def attend(implementation: str | None, **options: Any) -> Callable[..., Any]:
    return functools.partial(nn.dot_product_attention, implementation=implementation, **options)


def lowered(fn: Callable[..., Any], *args: Any) -> str:
    return str(jax.jit(fn).lower(*args).as_text())


def assert_near(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


# -- the kernel --------------------------------------------------------------------------------------------------------

TAKEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "padding": {"mask": SEEN},
    "padding of numbers": {"mask": 3.0 * SEEN},
    "padding, causal": {"mask": SEEN, "is_causal": True},
    "a query that sees nothing": {"mask": BLIND},
    "a query that sees nothing, causal": {"mask": BLIND.T, "is_causal": True},
    "no dropout": {"dropout_rate": 0.5, "deterministic": True},
}


def loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(jnp.sin(fn(*args)))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("case", TAKEN)
def test_kernel_is_used_and_gives_the_same(case: str, heads: int) -> None:
    args = Q, K[..., :heads, :], V[..., :heads, :]
    for fn in (lambda fn: fn, lambda fn: jax.grad(loss(fn), (0, 1, 2))):
        ours, theirs = (fn(attend(name, **TAKEN[case])) for name in ("auto", None))
        assert "stand_in" in lowered(ours, *args)
        assert_near(ours(*args), theirs(*args))
    text = lowered(jax.grad(loss(attend("auto", **TAKEN[case]))), *args)
    assert "stand_in_gradient" in text


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "of the second order": lambda f: jax.grad(lambda x: jnp.sum(jnp.cos(jax.grad(f)(x)))),
    "hessian": jax.hessian,
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "of the third order": lambda f: jax.grad(lambda x: jnp.sum(jax.hessian(f)(x) ** 2)),
    "hessian, compiled": lambda f: jax.jit(jax.hessian(f)),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_higher_order_are_those_of_the_plain_function(name: str) -> None:
    x = Q[:1, :2, :1]

    def of(implementation: str | None) -> Any:
        fn = attend(implementation, is_causal=True, mask=SEEN[:1, ..., :2])
        return jax.jit(DERIVATIVES[name](lambda x: loss(fn)(x, 2 * x, jnp.cos(x))))(x)

    assert_near(of("auto"), of(None))


@pytest.mark.usefixtures("here")
def test_forward_mode_alone_is_an_error_of_jax() -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: attend("auto")(x, K, V), (Q,), (Q,))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mapped", [m for m in itertools.product((True, False), repeat=4) if any(m)])
def test_vmap_maps_any_of_the_arguments(mapped: tuple[bool, ...]) -> None:
    args = (Q, K, V, SEEN)
    args = tuple(np.stack([x, x[::-1], x], axis=1) if is_in else x for x, is_in in zip(args, mapped, strict=True))
    axes = tuple(1 if is_in else None for is_in in mapped)

    def of(implementation: str | None) -> Any:
        def call(query: Any, key: Any, value: Any, mask: Any) -> Any:
            return attend(implementation, is_causal=True)(query, key, value, mask=mask)

        over = jax.vmap(call, axes)
        inside = jax.vmap(jax.grad(loss(call), (0, 1, 2)), axes)
        return jax.jit(lambda *args: (over(*args), jax.grad(loss(over), (0, 1, 2))(*args), inside(*args)))

    assert "stand_in" in lowered(of("auto"), *args)
    assert_near(of("auto")(*args), of(None)(*args))


@pytest.mark.usefixtures("here")
def test_vmap_of_vmap_and_hessian_of_vmap() -> None:
    x = array(3, 2, 1, 2, 1, 8)

    def of(implementation: str | None) -> Any:
        call = attend(implementation, mask=BLIND[:2, :2])
        twice = jax.vmap(jax.vmap(call, (0, None, 0)), (0, 0, None))
        mapped = jax.vmap(lambda x: loss(call)(x, x, x))
        return jax.jit(lambda x: (twice(x, x[:, 0], x[0]), jax.hessian(lambda x: jnp.sum(mapped(x)))(x[:, 0])))(x)

    assert_near(of("auto"), of(None))


@pytest.mark.usefixtures("here")
def test_scan_of_remat() -> None:
    def of(implementation: str | None) -> Any:
        step = jax.checkpoint(lambda x: attend(implementation, is_causal=True)(x, 2 * x, jnp.cos(x)))

        def net(x: Any) -> Any:
            return jnp.sum(jax.lax.scan(lambda x, _: (step(x), x), x, None, length=3)[1] ** 2)

        return jax.jit(lambda x: (jax.grad(net)(x), jax.vmap(jax.grad(net))(x[:, None])))(Q)

    assert_near(of("auto"), of(None))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("batch", [(), (1,), (2, 1, 3)])
def test_any_number_of_batch_axes(batch: tuple[int, ...]) -> None:
    x = array(*batch, 4, 2, 8)
    assert "stand_in" in lowered(attend("auto"), x, x, x)
    for mask in (BLIND, np.ones((*batch, 1, 1, 4), bool)):
        assert_near(*(attend(name)(x, x, x, mask=mask) for name in ("auto", None)))


# -- today's path ------------------------------------------------------------------------------------------------------


def own_einsum(*args: Any, **kwargs: Any) -> Any:
    return jnp.einsum(*args, **kwargs)


ODD = array(2, 3, 2, 8)
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "bias": ((Q, K, V), {"bias": array(4, 4)}),
    "dropout": ((Q, K, V), {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}),
    "precision": ((Q, K, V), {"precision": "highest"}),
    "own multiplication": ((Q, K, V), {"einsum_dot_general": jax.lax.dot_general}),
    "own einsum": (
        (Q, K, V),
        {"qk_attn_weights_einsum": own_einsum, "attn_weights_value_einsum": own_einsum},
    ),
    "softmax in float32": ((Q, K, V), {"force_fp32_for_softmax": True}),
    "depth of 4": ((Q[..., :4], K[..., :4], V[..., :4]), {}),
    "depth of 136": ((array(1, 2, 1, 136),) * 3, {}),
    "values of another depth": ((Q, K, V[..., :4]), {}),
    "mask of odd length": ((Q, ODD, ODD), {"mask": np.ones((4, 3), bool)}),
    "causal, lengths differ": ((Q, ODD, ODD), {"is_causal": True}),
    "no query": ((Q[:, :0], K, V), {}),
    "no example": ((Q[:0], K[:0], V[:0]), {}),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_refuses_is_the_same_program(case: str) -> None:
    args, options = REFUSED[case]
    ours, theirs = (jax.make_jaxpr(attend(name, **options))(*args) for name in ("auto", None))
    assert str(ours) == str(theirs)
    np.testing.assert_array_equal(*(attend(name, **options)(*args) for name in ("auto", None)))


@pytest.mark.usefixtures("here")
def test_symbolic_sizes_and_types_with_a_sharding_take_the_plain_path() -> None:
    (batch,) = export.symbolic_shape("batch")
    x = jax.ShapeDtypeStruct((batch, 4, 2, 8), jnp.float32)
    for call in (attend("auto"), jax.grad(loss(attend("auto")))):
        assert "stand_in" not in export.export(jax.jit(call))(x, x, x).mlir_module()
    axes = (jax.sharding.AxisType.Explicit,)
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axes, devices=jax.devices()[:1])):
        args = [jax.device_put(x, jax.P("data")) for x in (Q, K, V)]
        assert "stand_in" not in lowered(attend("auto"), *args)
        over = jax.shard_map(attend("auto"), in_specs=jax.P("data"), out_specs=jax.P("data"))
        assert "stand_in" not in lowered(over, *args)


@pytest.mark.usefixtures("here")
def test_weights_are_sown() -> None:
    def call(scope: liftcore.Scope) -> Any:
        return attend("auto", module=scope)(Q, K, V)

    assert "intermediates" in liftcore.apply(call, mutable=["intermediates"])({})[1]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("options", [{"mask": np.ones((3, 3))}, {"bias": np.ones((3, 3))}])
def test_errors_are_those_of_the_plain_function(options: Any) -> None:
    with pytest.raises(liftcore.errors.LiftArgumentError) as ours:
        attend("auto", **options)(Q, K, V)
    with pytest.raises(liftcore.errors.LiftArgumentError) as theirs:
        attend(None, **options)(Q, K, V)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_without_a_device_the_program_is_the_same(dtype: Any) -> None:
    def of(implementation: str | None) -> str:
        call = jax.grad(loss(attend(implementation, is_causal=True, mask=SEEN, dtype=dtype)), (0, 1, 2))
        return str(jax.make_jaxpr(call)(Q, K, V))

    assert of("auto") == of(None)


# -- platforms ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("case", TAKEN)
def test_another_platform_computes_the_plain_function(case: str) -> None:
    for fn in (lambda fn: fn, lambda fn: jax.grad(loss(fn), (0, 1, 2))):
        ours, theirs = (jax.jit(fn(attend(name, **TAKEN[case]))) for name in ("auto", None))
        assert "stand_in" not in lowered(ours, Q, K, V)
        for mine, other in zip(jax.tree.leaves(ours(Q, K, V)), jax.tree.leaves(theirs(Q, K, V)), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.usefixtures("elsewhere")
def test_one_exported_program_is_for_several_platforms() -> None:
    args = Q, K, V

    @jax.jit
    def both_ways(*args: Any) -> Any:
        fn = attend("auto", is_causal=True)
        return fn(*args), jax.grad(loss(fn))(*args)

    whole = export.export(both_ways, platforms=("cpu", "cuda", "tpu"))(*args)
    assert "stand_in_gradient" in whole.mlir_module()
    fn = attend(None, is_causal=True)
    again = export.deserialize(whole.serialize(vjp_order=1))
    assert_near(again.call(*args), (fn(*args), jax.grad(loss(fn))(*args)))
    for platform, is_used in (("cpu", False), ("tpu", False), ("cuda", True)):
        text = export.export(both_ways, platforms=(platform,))(*args).mlir_module()
        assert ("stand_in" in text) is is_used


CUDNN = [f"__cudnn$fmha{name}Softmax{way}" for name in ("", "ScaleBias") for way in ("", "Backward")]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own kernel, which can be lowered without a device if JAX believes in a cuDNN."""
    private = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(private, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(module, "KERNEL", module.KERNEL._replace(is_here=lambda: True))


def for_cuda(fn: Callable[..., Any], *args: Any) -> str:
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in CUDNN]
    return str(export.export(jax.jit(fn), platforms=("cuda",), disabled_checks=allowed)(*args).mlir_module())


@pytest.mark.usefixtures("cudnn")
@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_program_for_cuda_calls_cudnn_alone(case: str, dtype: Any) -> None:
    args = [jnp.asarray(x, dtype) for x in (Q, K[..., :1, :], V[..., :1, :])]
    fn = attend("auto", **TAKEN[case])
    mapped = jax.vmap(jax.checkpoint(fn), (0, None, 0))
    for call, inputs in ((fn, args), (mapped, [jnp.stack([args[0]] * 2), args[1], jnp.stack([args[2]] * 2)])):
        text = for_cuda(jax.grad(loss(call), (0, 1, 2)), *inputs)
        assert "Backward" in text
        assert "dot_general" not in text


@pytest.mark.usefixtures("cudnn")
def test_what_cudnn_refuses_is_found() -> None:
    half = [jnp.asarray(x, jnp.bfloat16) for x in (Q, K, V)]
    odd = [jnp.asarray(ODD, jnp.bfloat16)] * 2
    assert "cudnn" in for_cuda(attend("auto"), *half)
    for args in ((Q, K, V), [x[..., :4] for x in half], [half[0], *odd]):
        assert "cudnn" not in for_cuda(attend("auto"), *args)


# -- layers and lifts --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("decode", [False, True])
def test_layer_of_linen_with_the_lifts(decode: bool) -> None:
    x = array(2, 4, 16)

    def of(implementation: str | None) -> Any:
        layer = functools.partial(
            linen_like.MultiHeadAttention, 2, is_causal=True, implementation=implementation, decode=decode
        )

        class Block(linen_like.Module):
            @linen_like.compact
            def __call__(self, x: Any) -> Any:
                return layer()(x), None

        axes = {"params": 0, "cache": 0}
        deep = linen_like.scan(linen_like.remat(Block), variable_axes=axes, split_rngs={"params": True}, length=2)()
        variables = deep.init(jax.random.key(0), x)

        def apply(params: Any, x: Any) -> Any:
            return jnp.sum(deep.apply({**variables, "params": params}, x, mutable=["cache"])[0][0] ** 2)

        call = jax.jit(jax.grad(apply, (0, 1)))
        assert ("stand_in" in call.lower(variables["params"], x).as_text()) is (implementation == "auto")
        return call(variables["params"], x)

    assert_near(of("auto"), of(None), 1e-4)


@pytest.mark.usefixtures("here")
def test_own_attention_function_without_the_option_is_called_as_before() -> None:
    layer = linen_like.MultiHeadAttention(2, attention_fn=lambda query, key, value: value, implementation="auto")
    assert layer.init_with_output(jax.random.key(0), array(2, 4, 16))[0].shape == (2, 4, 16)


@pytest.mark.usefixtures("here")
def test_function_of_nnx() -> None:
    fn = functools.partial(nnx_like.dot_product_attention, implementation="auto", is_causal=True)
    assert "stand_in" in lowered(fn, Q, K, V)
    assert_near(fn(Q, K, V), nnx_like.dot_product_attention(Q, K, V, is_causal=True))
    refused: list[dict[str, Any]] = [{"bias": array(4, 4)}, {"precision": "highest"}]
    for options in refused:
        ours, theirs = (
            jax.make_jaxpr(functools.partial(nnx_like.dot_product_attention, implementation=name, **options))(Q, K, V)
            for name in ("auto", None)
        )
        assert str(ours) == str(theirs)


@pytest.mark.usefixtures("here")
def test_layer_of_nnx() -> None:
    def of(implementation: str | None) -> Any:
        fn = functools.partial(nnx_like.dot_product_attention, implementation=implementation)
        layer = nnx_like.MultiHeadAttention(2, 16, attention_fn=fn, decode=False, rngs=nnx_like.Rngs(0))
        return nnx_like.grad(lambda layer, x: jnp.sum(layer(x, is_causal=True) ** 2))(layer, array(2, 4, 16))

    assert_near(of("auto"), of(None), 1e-4)

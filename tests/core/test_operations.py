"""Floating-point operations are counted from the equations, as XLA counts them, on any platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import linen_like as nn
import nnx_like as nnx
from liftcore import count_operations

M = jnp.linspace(-1.0, 1.0, 30).reshape(5, 6)
IMAGES = jnp.ones((2, 8, 8, 4))
FORMAT = ("NHWC", "HWIO", "NHWC")


def convolved(padding: Any, strides: Any = (1, 1), groups: int = 1, **dilation: Any) -> Callable[[Any], Any]:
    kernel = jnp.full((3, 3, 4 // groups, 6), 2.0)
    options: Any = {"dimension_numbers": FORMAT, "feature_group_count": groups, **dilation}
    return lambda x: lax.conv_general_dilated(x, kernel, strides, padding, **options)


AS_XLA: dict[str, tuple[Callable[..., Any], Any]] = {
    "products": (lambda x: jax.nn.relu(x @ x.T).sum(), M),
    "batches of products": (lambda x: jnp.einsum("bhwc,bHwc->bhH", x, x), IMAGES),
    "softmax": (jax.nn.softmax, M),
    "gelu": (jax.nn.gelu, M),
    "silu": (jax.nn.silu, M),
    "variance": (lambda x: x.var(0), M),
    "powers": (lambda x: x**3 + x**-2 + x**5.5 + x**8 + x**7, M),
    "choices": (lambda x: jnp.where(x > 0, x, 0) * 2, M),
    "conversions": (lambda x: (x.astype("bfloat16") @ x.T.astype("bfloat16")).astype("float32"), M),
    "a sort": (jnp.sort, M),
    "a convolution": (convolved("SAME", (2, 1)), IMAGES),
    "a dilated convolution": (convolved(((1, 0), (0, 2)), groups=2, lhs_dilation=(2, 1), rhs_dilation=(1, 2)), IMAGES),
    "maxima of windows": (lambda x: nn.max_pool(x, (2, 2), strides=(2, 2)), IMAGES),
    "means of windows": (lambda x: nn.avg_pool(x, (2, 2)), IMAGES),
    "attention": (lambda x: nn.dot_product_attention(x, x, x), IMAGES),
    "a gradient of a convolution": (jax.grad(lambda x: convolved("SAME")(x).sum()), IMAGES),
    "a gradient of maxima": (jax.grad(lambda x: nn.max_pool(x, (2, 2)).sum()), IMAGES),
    "a branch": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x.T, lambda x: jnp.ones((5, 5)), x), M),
    "remat": (jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(x @ x.T))(x).sum()), M),
    "what is not needed": (lambda x: (x @ x.T, jax.jit(lambda x: (x @ x.T, x * 2))(x)[1])[1], M),
}


@pytest.mark.cpu("XLA analyzes programs before it compiles them for CPUs alone")
@pytest.mark.parametrize("name", AS_XLA)
def test_the_count_is_that_of_xla(name: str) -> None:
    fn, x = AS_XLA[name]
    assert count_operations(fn)(x) == (int(jax.jit(fn).lower(x).cost_analysis()["flops"]), False)


def product(x: Any) -> Any:
    return x @ x


@jax.custom_vjp
def ruled(x: Any) -> Any:
    return product(x)


ruled.defvjp(lambda x: (product(x), x), lambda x, g: (g @ x,))

WHOLE = 2 * 4**3
IN: dict[str, tuple[Callable[[Any], Any], int]] = {
    "nothing": (lambda x: x, 0),
    "a call": (product, WHOLE),
    "jit": (jax.jit(product), WHOLE),
    "remat": (jax.checkpoint(product), WHOLE),
    "custom_vjp": (ruled, WHOLE),
    "a derivative of custom_vjp": (lambda x: jax.vjp(ruled, x)[1](x), WHOLE),
    "vmap": (lambda x: jax.vmap(product)(jnp.stack([x] * 3)), 3 * WHOLE),
    "scan": (lambda x: lax.scan(lambda c, _: (product(c), None), x, length=7)[0], 7 * WHOLE),
    "an unrolled scan": (lambda x: lax.scan(lambda c, _: (product(c), None), x, length=7, unroll=3)[0], 7 * WHOLE),
    "scans": (
        lambda x: lax.scan(
            lambda c, _: (jax.jit(lambda c: lax.scan(lambda c, _: (product(c), None), c, length=3)[0])(c), None),
            x,
            length=4,
        )[0],
        12 * WHOLE,
    ),
    "a scan of no steps": (lambda x: lax.scan(lambda c, _: (product(c), None), x, length=0)[0], 0),
    "a scan whose outputs are not needed": (
        lambda x: lax.scan(lambda c, _: (product(c), c @ c), x, length=2)[0],
        4 * WHOLE,
    ),
    "the most expensive branch": (lambda x: lax.switch(1, [lambda x: x, product, lambda x: product(product(x))], x), 2),
}


@pytest.mark.parametrize("name", IN)
def test_operations_inside_are_counted(name: str) -> None:
    fn, expected = IN[name]
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    whole = expected if expected % WHOLE == 0 else expected * WHOLE
    assert 0 <= count_operations(fn)(x).operations - whole <= 2
    assert not count_operations(fn)(x).at_least


def test_a_loop_of_unknown_length_counts_once() -> None:
    def until(x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() < 9, product, x)

    count = count_operations(lambda x: lax.scan(lambda c, _: (until(c), None), x, length=5)[0])(jnp.ones((4, 4)))
    assert count.at_least
    assert 5 * WHOLE < count.operations <= 5 * (WHOLE + 20)


def test_keyword_arguments_are_arguments() -> None:
    assert count_operations(lambda x, *, y: x @ y["y"])(M, y={"y": M.T}).operations == 2 * 25 * 6


class Looped(nnx.Module):
    def __init__(self, loop: str) -> None:
        self.w, self.loop = nnx.Param(jnp.ones((4, 4))), loop

    def __call__(self, x: Any) -> Any:
        if self.loop == "scan":
            step = nnx.scan(lambda m, c: c @ m.w.value, in_axes=(None, nnx.Carry), out_axes=nnx.Carry, length=6)
            return step(self, x)
        if self.loop == "while":
            return nnx.while_loop(lambda s: s[1].sum() < 9, lambda s: (s[0], s[1] @ s[0].w.value), (self, x))[1]
        if self.loop == "vmap":
            return nnx.vmap(lambda m, x: x @ m.w.value, in_axes=(None, 0))(self, x[None].repeat(6, 0))
        return nnx.cond(x[0, 0] > 0, lambda m, x: x @ m.w.value @ m.w.value, lambda m, x: x, self, x)


@pytest.mark.parametrize(("loop", "times"), [("scan", 6), ("while", 1), ("vmap", 6), ("cond", 2)])
def test_tables_need_no_analysis_of_xla(loop: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: None)  # as on a GPU
    rows: list[Any] = []
    options: Any = {"compute_flops": True, "compute_vjp_flops": True, "console_kwargs": {"force_terminal": False}}
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    text = nnx.tabulate(Looped(loop), x, row_filter=lambda row: bool(rows.append(row)) or True, **options)
    unknown = loop == "while"
    assert times * WHOLE <= rows[0].flops <= times * WHOLE + 20
    assert (rows[0].at_least, f"{rows[0].flops}+" in text, "unknown length" in text) == (unknown,) * 3
    assert unknown or rows[0].vjp_flops >= 3 * times * WHOLE - WHOLE
    table = nn.tabulate(nn.Dense(3, use_bias=False), jax.random.key(0), **options)(x)
    assert str(2 * 4 * 4 * 3) in table

"""`python -m benchmarks.attention_check`: whether `implementation="auto"` of attention agrees with None on this device.

Each row compares both with float32: the largest difference of the values, and of the gradients of query, key and value,
as a part of the largest number. Half precision rounds, so neither is 0; "auto" should not be far above None. On an
NVIDIA GPU, it takes about a minute.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export

from liftcore import nn

__all__ = ["CASES", "Case", "Result", "check", "main"]

_KERNELS = [f"__cudnn$fmha{name}Softmax{way}" for name in ("", "ScaleBias") for way in ("", "Backward")]
_ALLOWED = 3.0
"""How many times the error of None the error of "auto" may be."""


class Case(NamedTuple):
    """One comparison.

    Attributes:
        kv_heads: the heads of keys and values; of queries, there are 4.
        depth: the features of a head.
        keys: the number of keys; of queries, there are 256.
        mask: called with a key; makes the mask.
        is_causal: as in `nn.dot_product_attention`.
        around: wraps the function of query, key and value.
        is_taken: whether the kernel takes it.
    """

    kv_heads: int = 4
    depth: int = 64
    keys: int = 256
    mask: Callable[[int, int], jax.Array] | None = None
    is_causal: bool = False
    around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn
    is_taken: bool = True


class Result(NamedTuple):
    """The errors of both, for values and gradients.

    Attributes:
        auto: of `"auto"`.
        plain: of None.
        is_taken: whether the compiled program calls the kernel.
    """

    auto: tuple[float, float]
    plain: tuple[float, float]
    is_taken: bool

    def is_good(self, case: Case, on_gpu: bool) -> bool:
        """Return whether "auto" is about as exact as None, and used the kernel where it should."""
        close = all(mine <= _ALLOWED * other + 1e-3 for mine, other in zip(self.auto, self.plain, strict=True))
        return close and self.is_taken == (case.is_taken and on_gpu)


def _padding(queries: int, keys: int) -> jax.Array:
    return (jnp.arange(keys) < jnp.array([keys, keys // 3])[:, None])[:, None, None]


def _blind(queries: int, keys: int) -> jax.Array:
    """A mask that lets the first queries see nothing."""
    return jnp.tri(queries, keys, -3, dtype=bool)


def _over_queries(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.vmap` over queries and values, with one key for all."""
    return lambda q, k, v: jax.vmap(fn, (0, None, 0))(jnp.stack([q, -q]), k, jnp.stack([v, v[::-1]]))


def _scanned(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        step = jax.checkpoint(lambda x: fn(x, k, v))
        return jax.lax.scan(lambda x, _: (step(x), None), q, None, length=3)[0]

    return run


def _exported(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: jax.Array) -> Any:
        allowed = [export.DisabledSafetyCheck.custom_call(name) for name in _KERNELS]
        here = "cuda" if _is_cuda() else jax.default_backend()
        return export.export(jax.jit(fn), platforms=(here,), disabled_checks=allowed)(*args).call(*args)

    return run


CASES = {
    "plain": Case(),
    "causal": Case(is_causal=True),
    "grouped queries, causal": Case(kv_heads=2, is_causal=True),
    "one head of keys": Case(kv_heads=1),
    "other number of keys": Case(keys=128),
    "depth of 128": Case(depth=128, is_causal=True),
    "depth of 40": Case(depth=40),
    "padding": Case(mask=_padding),
    "padding, causal, grouped": Case(kv_heads=2, mask=_padding, is_causal=True),
    "queries that see nothing": Case(mask=_blind),
    "queries that see nothing, causal": Case(mask=_blind, is_causal=True),
    "vmap, one key": Case(is_causal=True, around=_over_queries),
    "vmap, one key, padding": Case(mask=_padding, around=_over_queries),
    "scan of remat": Case(is_causal=True, around=_scanned),
    "scan of remat, padding": Case(mask=_padding, around=_scanned),
    "exported": Case(is_causal=True, around=_exported),
    "second derivative": Case(is_causal=True, around=lambda fn: lambda q, k, v: jax.grad(_loss(fn))(q, k, v)),
    "refused: causal, other number of keys": Case(keys=128, is_causal=True, is_taken=False),
    "refused: depth of 36": Case(depth=36, is_taken=False),
    "refused: odd number of keys": Case(keys=255, is_taken=False),
}

_AGAIN = ("plain", "causal", "padding", "queries that see nothing, causal", "vmap, one key, padding")
"""The cases that are repeated in the other dtype."""


def check(case: Case, dtype: Any, length: int = 256) -> Result:
    """Compare both with `float32`.

    Args:
        case: what to compute.
        dtype: the dtype of "auto" and None.
        length: the number of queries; a case's other sizes are for 256.
    """
    keys = case.keys * length // 256
    sizes = ((length, 4), (keys, case.kv_heads), (keys, case.kv_heads))
    args = [jax.random.normal(jax.random.key(i), (2, *size, case.depth)).astype(dtype) for i, size in enumerate(sizes)]
    mask = None if case.mask is None else case.mask(length, keys)

    def of(implementation: str | None) -> Any:
        options: Any = {"mask": mask, "is_causal": case.is_causal, "implementation": implementation}
        fn = case.around(functools.partial(nn.dot_product_attention, **options))
        return jax.jit(lambda *args: (fn(*args), jax.grad(_loss(fn), (0, 1, 2))(*args)))

    with jax.default_matmul_precision("highest"):
        exact = of(None)(*(x.astype(jnp.float32) for x in args))
    compiled = of("auto").lower(*args).compile()
    auto, plain = ([_error(*pair) for pair in zip(y, exact, strict=True)] for y in (compiled(*args), of(None)(*args)))
    is_taken = "__cudnn$fmha" in (compiled.as_text() or "")
    return Result((auto[0], auto[1]), (plain[0], plain[1]), is_taken)


def _loss(fn: Callable[..., Any]) -> Callable[..., jax.Array]:
    return lambda *args: jnp.sum(jnp.sin(fn(*args).astype(jnp.float32)))


def _error(ours: Any, exact: Any) -> float:
    """Return the largest difference, as a part of the largest number of its array; NaN counts as infinite."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True)
    found = [float(jnp.max(jnp.abs(x.astype(jnp.float32) - y)) / jnp.max(jnp.abs(y))) for x, y in pairs]
    return max(error if error == error else float("inf") for error in found)


def _is_cuda() -> bool:
    return jax.default_backend() == "gpu" and "NVIDIA" in jax.devices()[0].device_kind


def _times(shape: tuple[int, ...] = (8, 1024, 16, 64), repeats: int = 20) -> Iterator[tuple[str, float]]:
    """Yield the time of a value with its gradients for each implementation, without and with remat, in milliseconds."""
    x = jax.random.normal(jax.random.key(0), shape).astype(jnp.bfloat16)
    for wrap in (lambda fn: fn, jax.checkpoint):
        for name in (None, "cudnn", "auto"):
            fn = wrap(functools.partial(nn.dot_product_attention, is_causal=True, implementation=name))
            run = jax.jit(jax.value_and_grad(_loss(fn), (0, 1, 2)))
            jax.block_until_ready(run(x, x, x))
            begin = time.perf_counter()
            jax.block_until_ready([run(x, x, x) for _ in range(repeats)])
            remat = " in remat" if wrap is jax.checkpoint else ""
            yield f"{name}{remat}", (time.perf_counter() - begin) / repeats * 1e3


def main() -> None:
    """Print the table; exit with 1 if a row is bad."""
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; kernel expected: {_is_cuda()}")
    print(f"{'':40}{'dtype':10}{'kernel':8}{'value: auto, None':24}{'gradients: auto, None':24}")
    bad = 0
    for dtype, names in ((jnp.bfloat16, CASES), (jnp.float16, _AGAIN)):
        for name, case in ((name, CASES[name]) for name in names):
            try:
                result = check(case, dtype)
            except Exception as error:  # the other rows are of use, too
                text, is_good = f"{type(error).__name__}: {str(error)[:300]}", False
            else:
                (value, gradient), (plain, plain_gradient) = result.auto, result.plain
                is_good = result.is_good(case, _is_cuda())
                kernel = "yes" if result.is_taken else "no"
                text = f"{kernel:8}{value:<10.2g}{plain:<14.2g}{gradient:<10.2g}{plain_gradient:<14.2g}"
            bad += not is_good
            print(f"{name:40}{jnp.dtype(dtype).name:10}{text}{'' if is_good else '  BAD'}", flush=True)
    if _is_cuda():
        for name, milliseconds in _times():
            print(f"value and gradients, causal, (8, 1024, 16, 64), {name}: {milliseconds:.2f} ms")
    sys.exit(f"{bad} rows are bad" if bad else 0)


if __name__ == "__main__":
    main()

"""Training and generation at a size that fills an accelerator: times, and memory at the peak.

The rows name the device. On the CPU the same programs run in a small size.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import linen_like
import nnx_like

from ..models import decoder
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["accelerator", "generating", "size_here", "training"]

_GIGABYTE = 1e9


class Step(NamedTuple):
    """One side of a step of training.

    Attributes:
        run: makes one step; it returns the loss.
        memory: the bytes that the compiled program needs at its peak; 0 if they are not known.
    """

    run: Callable[[], jax.Array]
    memory: int


def size_here() -> decoder.Size:
    """Return the size for the device that JAX uses here."""
    if jax.default_backend() == "cpu":
        return decoder.SMALL
    return decoder.LARGE._replace(kernel="cudnn" if _is_cuda() else "xla")


def accelerator(settings: Settings) -> Iterator[Row]:
    """Measure steps of training, then the generation of text."""
    size, where = size_here(), jax.devices()[0].device_kind
    repeats = min(settings.rounds, 15)
    flax = [peer for peer in settings.peers if peer == "flax"]
    same = [PURE, "linen_like", "nnx_like", *flax, *(f"{peer}.nnx" for peer in flax)]
    yield from _trained(f"training step, the same operations, {where}", size, same, repeats)
    dropped = size._replace(dropout=0.1)
    yield from _trained(f"training step with dropout, {where}", dropped, [PURE, "linen_like", *flax], repeats)
    for name in _kernels():
        title = f"training step of layers, implementation={name!r}, {where}"
        yield from _trained(title, size, [PURE, f"linen_like {name}"], repeats)
    ways = generating(size)
    first = {name: _median(functools.partial(run, 1), repeats) for name, run in ways.items()}
    yield Row("accelerator", f"time to the first token, {where}", "s", first, {"linen_like": 1.3})
    whole = {name: _median(functools.partial(run, size.new), max(3, repeats // 4)) for name, run in ways.items()}
    each = {name: (whole[name] - first[name]) / (size.new - 1) for name in ways}
    yield Row("accelerator", f"time for each further token, {where}", "s", each, {"linen_like": 1.05})


def _trained(title: str, size: decoder.Size, sides: list[str], repeats: int) -> Iterator[Row]:
    """Yield the time of a step of each side, and its memory."""
    times, memory = {}, {}
    for side in sides:
        name = side if side == PURE else side.split()[0]
        step = training(side, size)
        times[name], memory[name] = _median(step.run, repeats), step.memory / _GIGABYTE
        del step  # the next side gets its memory
    yield Row("accelerator", title, "s", times, {"linen_like": 1.05})
    yield Row("accelerator", f"memory of a {title}", "GB", memory)


def _median(run: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call, after two that warm up, in seconds."""
    times = []
    for turn in range(repeats + 2):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        if turn > 1:
            times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


# -- training ----------------------------------------------------------------------------------------------------------


def training(side: str, size: decoder.Size) -> Step:
    """Return a step of training of one side.

    Args:
        side: the side; `linen_like xla` is the model of layers, with that implementation of attention.
        size: the sizes.
    """
    tokens = jax.random.randint(jax.random.key(7), (size.batch, size.length + 1), 0, size.words)
    if side in ("nnx_like", "flax.nnx"):
        return _object_step(side, size, tokens)
    init, apply = _functions(side, size)
    params = jax.jit(init)(jax.random.key(0), tokens[:, :-1])
    state = {"params": params, "optimizer": jax.jit(decoder.OPTIMIZER.init)(params)}

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return decoder.loss(apply(params, tokens[:, :-1], key), tokens[:, 1:])

        value, gradients = jax.value_and_grad(loss)(state["params"])
        updates, optimizer = decoder.OPTIMIZER.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, value

    key = jax.random.key(3)
    compiled = step.lower(state, tokens, key).compile()

    def run() -> jax.Array:
        nonlocal state
        state, value = compiled(state, tokens, key)
        return value

    return Step(run, _memory(compiled))


def _functions(side: str, size: decoder.Size) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `init(key, tokens)` and `apply(params, tokens, key)`."""
    if side == PURE:
        return decoder.pure(size)
    name, *kernel = side.split()
    if kernel:
        model = decoder.of_layers(linen_like, size, implementation=None if kernel == ["None"] else kernel[0])
    else:
        model = decoder.linen(linen_like if name == "linen_like" else _flax("linen"), size)

    def init(key: jax.Array, tokens: jax.Array) -> Any:
        return model.init({"params": key, "dropout": key}, tokens)["params"]

    return init, lambda params, tokens, key: model.apply({"params": params}, tokens, rngs={"dropout": key})


def _object_step(side: str, size: decoder.Size, tokens: jax.Array) -> Step:
    nnx: Any = nnx_like if side == "nnx_like" else _flax("nnx")
    model = decoder.objects(nnx, size)
    optimizer = nnx.Optimizer(model, decoder.OPTIMIZER, wrt=nnx.Param)
    options = {"donate_argnames": ("model", "optimizer")} if nnx is nnx_like else {}

    @functools.partial(nnx.jit, **options)
    def step(model: Any, optimizer: Any, tokens: jax.Array) -> jax.Array:
        def loss(model: Any) -> jax.Array:
            return decoder.loss(model(tokens[:, :-1]), tokens[:, 1:])

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    memory = _memory(step.lower(model, optimizer, tokens).compile()) if nnx is nnx_like else 0
    return Step(lambda: step(model, optimizer, tokens), memory)


def _flax(name: str) -> Any:
    import flax  # only where it is installed
    import flax.linen
    import flax.nnx

    return getattr(flax, name)


def _memory(compiled: Any) -> int:
    """Return the bytes that a compiled program holds at its peak: what is donated counts once."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    given = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return int(given + found.temp_size_in_bytes)


def _kernels() -> tuple[str, ...]:
    return ("None", "xla", "cudnn", "auto") if _is_cuda() else ("None", "xla")


def _is_cuda() -> bool:
    return jax.default_backend() == "gpu" and "NVIDIA" in jax.devices()[0].device_kind


# -- generation --------------------------------------------------------------------------------------------------------


def generating(size: decoder.Size) -> dict[str, Callable[[int], jax.Array]]:
    """Return for each side a function of the number of new tokens; all return the same tokens, `(batch, number)`."""
    model = decoder.of_layers(linen_like, size, dtype=decoder.HALF, decode=True)
    prompt = jax.random.randint(jax.random.key(1), (size.batch, size.length // 2), 0, size.words)
    variables = {"params": jax.jit(model.init)(jax.random.key(0), prompt)["params"]}
    by_hand = jax.jit(functools.partial(_by_hand, size), static_argnums=2)
    return {
        PURE: lambda number: by_hand(variables["params"], prompt, number),
        "linen_like": lambda number: linen_like.generate(model, variables, prompt, max_new_tokens=number).tokens,
    }


def _by_hand(size: decoder.Size, params: Any, prompt: jax.Array, number: int) -> jax.Array:
    """Generate the most probable tokens with a loop written by hand."""
    batch, length = prompt.shape
    room = (size.layers, batch, length + number, size.heads, size.depth)
    cache = (jnp.zeros(room, decoder.HALF), jnp.zeros(room, decoder.HALF))
    logits, cache = _at(size, params, prompt, cache, 0)
    token = jnp.argmax(logits, -1)
    found = jnp.zeros((batch, number), token.dtype).at[:, 0].set(token)

    def step(state: Any) -> Any:
        count, token, cache, found = state
        logits, cache = _at(size, params, token[:, None], cache, length + count - 1)
        token = jnp.argmax(logits, -1)
        return count + 1, token, cache, found.at[:, count].set(token)

    result: jax.Array = jax.lax.while_loop(lambda state: state[0] < number, step, (1, token, cache, found))[3]
    return result


def _at(size: decoder.Size, params: Any, tokens: jax.Array, cache: Any, position: Any) -> Any:
    """Return the logits of the last token, and the cache with the tokens, which begin at a position."""

    def block(x: jax.Array, given: Any) -> Any:
        params, keys, values = given
        h, attention = decoder.normalized(x, params["norm_1"]["scale"]), params["attention"]
        projected = (jnp.einsum("blf,fhd->blhd", h, attention[name]["kernel"]) for name in ("query", "key", "value"))
        query, key, value = projected
        keys, values = (
            jax.lax.dynamic_update_slice(kept, new, (0, position, 0, 0)) for kept, new in ((keys, key), (values, value))
        )
        is_seen = jnp.arange(keys.shape[1]) <= (position + jnp.arange(x.shape[1]))[:, None]
        weights = jnp.einsum("bqhd,bkhd->bhqk", query / jnp.sqrt(size.depth).astype(query.dtype), keys)
        weights = jax.nn.softmax(jnp.where(is_seen, weights.astype(jnp.float32), -1e30)).astype(x.dtype)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, values)
        x = x + jnp.einsum("blhd,hdf->blf", y, attention["out"]["kernel"])
        h = decoder.normalized(x, params["norm_2"]["scale"])
        return x + jax.nn.gelu(h @ params["up"]["kernel"]) @ params["down"]["kernel"], (keys, values)

    x = params["words"]["embedding"][tokens]
    x, cache = jax.lax.scan(block, x, (params["layers"], *cache))
    return decoder.normalized(x[:, -1], params["norm"]["scale"]) @ params["head"]["kernel"], cache

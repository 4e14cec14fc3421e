"""Equal blocks under `remat` share a trace, and no block computes with what another one read."""

from __future__ import annotations

import functools
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx

X = jnp.linspace(-1, 1, 6).reshape(2, 3)
SCALE = 1.0
rates: Any = ModuleType("rates")
rates.RATE = 1.0


class Block(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.seen.set_value(self.seen.get_value() + x.sum())
        return x + jnp.tanh(self.dropout(self.norm(self.linear(x))))


def blocks(number: int = 3) -> Any:
    return nnx.List([Block(seed) for seed in range(number)])


def scaled(x: Any) -> Any:
    return SCALE * x


Model = Callable[[Any, Any], Any]
Remat = Callable[[Callable[..., Any]], Any]

# --- bodies that read something which differs from call to call -----------------------------------------------------


def a_closure(remat: Remat, layers: Any, x: Any) -> Any:
    rate = 0.0

    @remat
    def run(block: Any, x: Any) -> Any:
        return rate * block(x)

    for rate, block in enumerate(layers, 1):  # noqa: B007
        x = run(block, x)
    return x


def a_closure_in_a_closure(remat: Remat, layers: Any, x: Any) -> Any:
    rate = 0.0
    run = remat(lambda block, x: (lambda y: rate * y)(block(x)))
    for rate, block in enumerate(layers, 1):  # noqa: B007
        x = run(block, x)
    return x


def with_scales(run: Any, layers: Any, x: Any) -> Any:
    """Run each layer with another value of the global."""
    global SCALE
    try:
        for SCALE, block in zip((1.0, 2.0, 3.0), layers, strict=True):  # noqa: B007
            x = run(block, x)
    finally:
        SCALE = 1.0
    return x


def a_global(remat: Remat, layers: Any, x: Any) -> Any:
    return with_scales(remat(lambda block, x: SCALE * block(x)), layers, x)


def a_global_of_a_helper(remat: Remat, layers: Any, x: Any) -> Any:
    return with_scales(remat(lambda block, x: scaled(block(x))), layers, x)


def a_default(remat: Remat, layers: Any, x: Any) -> Any:
    def run(block: Any, x: Any, rate: float = 1.0) -> Any:
        return rate * block(x)

    wrapped = remat(run)
    for rate, block in enumerate(layers):
        run.__defaults__ = (float(rate),)
        x = wrapped(block, x)
    return x


def a_list(remat: Remat, layers: Any, x: Any) -> Any:
    rates: list[float] = []
    run = remat(lambda block, x: sum(rates) * block(x))
    for block in layers:
        rates.append(1.5)
        x = run(block, x)
    return x


def an_object(remat: Remat, layers: Any, x: Any) -> Any:
    config = SimpleNamespace(rate=0.0)
    run = remat(lambda block, x: config.rate * block(x))
    for block in layers:
        config.rate += 1.5
        x = run(block, x)
    return x


def an_iterator(remat: Remat, layers: Any, x: Any) -> Any:
    rates = itertools.count(1)
    run = remat(lambda block, x: next(rates) * block(x))
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def a_method_of_python(remat: Remat, layers: Any, x: Any) -> Any:
    rates = [3.0, 2.0, 1.0]
    following = rates.pop
    run = remat(lambda block, x: following() * block(x))
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def a_module(remat: Remat, layers: Any, x: Any) -> Any:
    run = remat(lambda block, x: rates.RATE * block(x))
    for rates.RATE, block in zip((1.0, 2.0, 3.0), layers, strict=True):
        x = run(block, x)
    return x


def random_numbers(remat: Remat, layers: Any, x: Any) -> Any:
    random.seed(0)
    np.random.seed(0)
    run = remat(lambda block, x: random.random() * block(x) + np.random.rand())
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def a_weak_reference(remat: Remat, layers: Any, x: Any) -> Any:
    config = type("Config", (), {"rate": 0.0})()
    held = weakref.ref(config)
    run = remat(lambda block, x: held().rate * block(x))  # type: ignore[union-attr]
    for block in layers:
        config.rate += 1.5
        x = run(block, x)
    return x


class Rated(Block):
    rate = 0.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.rate * super().__call__(x) + self.half + scaled(x)

    @property
    def half(self) -> Any:
        return rates.RATE / 2


def a_class_of_the_arguments(remat: Remat, layers: Any, x: Any) -> Any:
    rated = [Rated(seed) for seed in range(3)]
    run = remat(lambda block, x: block(x))
    for Rated.rate, block in zip((1.0, 2.0, 3.0), rated, strict=True):
        x = run(block, x)
    return x


def a_module_that_methods_read(remat: Remat, layers: Any, x: Any) -> Any:
    rated = [Rated(seed) for seed in range(3)]
    run = remat(lambda block, x: block(x))
    for rates.RATE, block in zip((1.0, 2.0, 3.0), rated, strict=True):
        x = run(block, x)
    return x


def a_new_method(remat: Remat, layers: Any, x: Any) -> Any:
    class Changing(Block):
        def change(self, x: Any) -> Any:
            return x

        def __call__(self, x: jax.Array) -> Any:
            return self.change(super().__call__(x))

    run = remat(lambda block, x: block(x))
    x = run(Changing(0), x)
    Changing.change = lambda self, x: 2 * x  # type: ignore[method-assign]
    x = run(Changing(0), x)
    Changing.change = staticmethod(functools.partial(jnp.multiply, 3.0))  # type: ignore[method-assign, assignment]
    return run(Changing(0), x)


def a_class_attribute(remat: Remat, layers: Any, x: Any) -> Any:
    class Config:
        rate = 1.0

    run = remat(lambda block, x: Config.rate * block(x))
    for block in layers:
        x = run(block, x)
        Config.rate += 1
    return x


def a_traced_array(remat: Remat, layers: Any, x: Any) -> Any:
    before = x
    run = remat(lambda block, x: block(x) + before)
    for block in layers:
        x, before = run(block, x), x
    return x


def an_array_in_a_namespace(remat: Remat, layers: Any, x: Any) -> Any:
    here = SimpleNamespace(before=x)
    run = remat(lambda block, x: block(x) + here.before)
    for block in layers:
        x, here.before = run(block, x), x
    return x


def a_variable(remat: Remat, layers: Any, x: Any) -> Any:
    shared = nnx.Variable(jnp.ones(3))
    run = remat(lambda block, x: block(x) + shared.get_value())
    for block in layers:
        x = run(block, x)
        shared.set_value(shared.get_value() + x.mean())
    return x


def an_array_through_a_class(remat: Remat, layers: Any, x: Any) -> Any:
    class Here:
        before = x

    run = remat(lambda block, x: block(x) + Here.before)
    for block in layers:
        x, Here.before = run(block, x), x
    return x


def attributes(remat: Remat, layers: Any, x: Any) -> Any:
    for number, block in enumerate(layers):
        block.rate = number
    run = remat(lambda block, x: block.rate * x + block(x))
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def an_iterator_in_an_attribute(remat: Remat, layers: Any, x: Any) -> Any:
    rates = itertools.count(1)
    for block in layers:
        block.rates = rates
    run = remat(lambda block, x: next(block.rates) * block(x))
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def modes(remat: Remat, layers: Any, x: Any) -> Any:
    layers[1].eval()
    run = remat(lambda block, x: block(x))
    return functools.reduce(lambda x, block: run(block, x), layers, x)


def static_arguments(remat: Remat, layers: Any, x: Any) -> Any:
    run = remat(lambda block, x, rate: rate * block(x) if rate > 1 else x, static_argnums=2)  # type: ignore[call-arg]
    for number, block in enumerate(layers):
        x = run(block, x, number)
    return x


def numbers_and_types(remat: Remat, layers: Any, x: Any) -> Any:
    run = remat(lambda block, x, rate: rate * block(x))
    for rate, block in zip((1, 2.0, np.float16(3)), layers, strict=True):
        x = run(block, x, rate)
    return x


def structure(remat: Remat, layers: Any, x: Any) -> Any:
    def grow(block: Any, x: Any) -> Any:
        block.extra = nnx.Variable(x.sum())
        return block(x)

    run = remat(grow)
    for block in layers:
        x = run(block, x)
    return x, [block.extra.get_value() for block in layers]


def aliases(remat: Remat, layers: Any, x: Any) -> Any:
    layers[1].linear = layers[0].linear
    run = remat(lambda one, two, x: one(x) + two(x))
    x = run(layers[1], layers[2], x)
    x = run(layers[0], layers[1], x)
    return run(layers[2], layers[2], x)


def returned_objects(remat: Remat, layers: Any, x: Any) -> Any:
    run = remat(lambda block, x: (block(x), nnx.Dict(mean=nnx.Variable(x.mean()))))
    means = []
    for block in layers:
        x, found = run(block, x)
        means.append(found.mean.get_value())
    return x, means


def precision(remat: Remat, layers: Any, x: Any) -> Any:
    run = remat(lambda block, x: block(x) * (1 if jax.config.jax_default_matmul_precision is None else 2))  # type: ignore[attr-defined]
    x = run(layers[0], x)
    with jax.default_matmul_precision("highest"):
        x = run(layers[1], x)
    return run(layers[2], x)


def transformations(remat: Remat, layers: Any, x: Any) -> Any:
    before = x
    run = remat(lambda block, x: block(x) + before)

    def one(block: Any, x: Any) -> Any:
        return run(block, run(block, x)).sum()

    for block in layers:
        x = x + nnx.grad(one, argnums=1)(block, x)
        before = nnx.vmap(run, in_axes=(None, 0))(nnx.clone(block.linear), x)
    return before


PROGRAMS: list[Callable[[Remat, Any, Any], Any]] = [
    a_closure, a_closure_in_a_closure, a_global, a_global_of_a_helper, a_default, a_list, an_object, an_iterator,
    a_method_of_python, a_module, random_numbers, a_weak_reference, a_class_of_the_arguments,
    a_module_that_methods_read, a_new_method, a_class_attribute, a_traced_array, an_array_in_a_namespace,
    a_variable, an_array_through_a_class, attributes, an_iterator_in_an_attribute, modes, static_arguments,
    numbers_and_types, structure, aliases, returned_objects, precision, transformations,
]  # fmt: skip


def unchanged(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return fn


def leaves_after(program: Callable[..., Any], remat: Any) -> Iterator[Any]:
    layers = blocks()

    @nnx.jit
    def model(layers: Any, x: Any) -> Any:
        return program(remat, layers, x)

    for leaf in jax.tree.leaves((model(layers, X), nnx.state(layers))):
        yield jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_call_reads_what_is_there_when_it_is_made(program: Callable[..., Any]) -> None:
    for ours, plain in zip(leaves_after(program, nnx.remat), leaves_after(program, unchanged), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5)


# --- what is shared -------------------------------------------------------------------------------------------------


def traces(layers: Any, transformation: Any = lambda fn: fn) -> int:
    """The number of different jaxprs under the `remat` of the blocks."""
    run = nnx.remat(lambda block, x: jax.nn.softmax(jax.nn.relu(jnp.asarray(block(x), np.float32))))
    model = transformation(lambda layers, x: functools.reduce(lambda x, block: run(block, x), layers, x).sum())
    return len({id(jaxpr) for jaxpr in rematerialized(nnx.make_jaxpr(model)(layers, X).jaxpr)})


def rematerialized(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr")
        if eqn.primitive.name in ("checkpoint", "remat2"):
            yield inner
        elif inner is not None:
            yield from rematerialized(getattr(inner, "jaxpr", inner))


def test_equal_blocks_are_traced_once_in_each_surrounding_trace() -> None:
    assert traces(blocks(4)) == 1
    assert traces(blocks(4), nnx.jit) == 1
    assert traces(blocks(4), nnx.grad) == traces(blocks(2), nnx.grad)  # the input of the first has no gradient
    different = blocks(4)
    different[1].note = "another definition"
    assert traces(different) == 2


def test_each_call_outside_jit_runs_the_block() -> None:
    runs = []
    run = nnx.remat(lambda block, x: (runs.append(1), block(x))[1])
    for block in blocks(3):
        run(block, X)
    assert len(runs) == 3


def test_the_program_is_that_of_separate_traces() -> None:
    def text(held: Any) -> str:
        run = nnx.remat(lambda block, x: (block(x), held)[0])
        model = nnx.jit(lambda layers, x: functools.reduce(lambda x, block: run(block, x), layers, x).sum())
        return str(nnx.jit(nnx.grad(model)).lower(blocks(), X).as_text())

    assert text(None) == text(iter(()))  # a trace that can read an iterator is not shared


def test_a_block_that_fails_leaves_nothing_behind() -> None:
    fails = [True]

    def broken(block: Any, x: Any) -> Any:
        if fails[0]:
            raise ValueError("on purpose")
        return block(x)

    run = nnx.remat(broken)

    @nnx.jit
    def model(layers: Any, x: Any) -> Any:
        with pytest.raises(ValueError, match="on purpose"):
            run(layers[0], x)
        fails[0] = False
        return run(layers[0], x)

    layers = blocks(1)
    expected = nnx.jit(lambda layers, x: layers[0](x))(blocks(1), X)
    with jax.checking_leaks():
        np.testing.assert_allclose(model(layers, X), expected, rtol=1e-6)

"""`Stack`: equal layers, stored stacked; in one loop of JAX's or one by one, with the same results."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from liftcore.filters import All, PathContains
from linen_like import Stack
from linen_like.errors import (
    AxisSizeError,
    CarryTypeError,
    InvalidRngError,
    LiftArgumentError,
    LoopInvarianceError,
    ModifyScopeVariableError,
    UnboundModuleError,
)
from tests.linen.lifted import KEY, RNGS, X, assert_close, assert_same, element, shapes

MODES = pytest.mark.parametrize("mode", ["scan", "loop", "jit"])
OTHERS = pytest.mark.parametrize("mode", ["loop", "jit"])


class Block(nn.Module):
    """A layer of all kinds: parameters, statistics, draws, sown values, and arguments that initializers use."""

    features: int = 3

    @nn.compact
    def __call__(self, x: Any, train: bool = False, mask: Any = None, scale: Any = 1.0) -> Any:
        y = nn.tanh(nn.Dense(self.features)(x))
        y = nn.Dropout(0.5, deterministic=not train)(y)
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(self.features))
        if train and not self.is_initializing():
            mean.value = 0.9 * mean.value + 0.1 * y.mean(0)
        gain = self.param("gain", lambda key: jnp.asarray(scale, jnp.float32))
        self.sow("intermediates", "norm", (y * y).sum())
        return x + gain * (y - mean.value) * (1.0 if mask is None else mask)


SCALES = jnp.linspace(0.5, 1.0, 4)


def train(stack: Stack, variables: Any) -> Any:
    mutable = ["batch_stats", "intermediates"]
    return stack.apply(variables, X, True, per_layer={"scale": SCALES}, rngs=RNGS, mutable=mutable)


def loss(stack: Stack, variables: Any) -> Any:
    y, mutated = train(stack, variables)
    return (y * y).sum() + sum(leaf.sum() for leaf in jax.tree.leaves(mutated))


def by_hand(variables: Any, x: Any, length: int = 4, train: bool = False, **per_layer: Any) -> Any:
    """A loop over blocks in Python, each with its slices and keys."""
    keys = {name: jax.random.split(key, length) for name, key in RNGS.items()}
    below = {name: tree["block"] for name, tree in variables.items()}
    kept = []
    for index in range(length):
        scope_variables = {name: {"block": tree} for name, tree in element(below, index).items()}
        rngs = {name: key[index] for name, key in keys.items()}
        extra = {name: value[index] for name, value in per_layer.items()}

        def run(root: Any, x: Any, extra: Any = extra) -> Any:
            return Block(parent=root.push("block"), name="block")(x, train, **extra)

        x, mutated = liftcore.apply(run, mutable=["batch_stats", "intermediates"])(scope_variables, x, rngs=rngs)
        kept.append(mutated)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)


# -- the modes are one model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "remat"),
    [("loop", False), ("jit", False), *((mode, True) for mode in ("scan", "loop", "jit"))],
)
def test_all_modes_make_the_same_variables_and_compute_the_same(mode: str, remat: bool) -> None:
    first, stack = Stack(Block(), 4), Stack(Block(), 4, mode, remat)
    y, variables = stack.init_with_output(RNGS, X, True, per_layer={"scale": SCALES})
    expected, same = first.init_with_output(RNGS, X, True, per_layer={"scale": SCALES})
    assert_same(variables, same)
    assert_close(y, expected)
    assert_close(train(stack, variables), train(first, variables))
    gradients = jax.jit(jax.value_and_grad(functools.partial(loss, stack)))(variables)
    assert_close(gradients, jax.jit(jax.value_and_grad(functools.partial(loss, first)))(variables))


@MODES
def test_a_stack_equals_a_loop_over_blocks(mode: str) -> None:
    stack = Stack(Block(), 4, mode)
    variables = stack.init(RNGS, X, per_layer={"scale": SCALES})
    assert_close(train(stack, variables), by_hand(variables, X, train=True, scale=SCALES))

    def plain(variables: Any) -> Any:
        y, mutated = by_hand(variables, X, train=True, scale=SCALES)
        return (y * y).sum() + sum(leaf.sum() for leaf in jax.tree.leaves(mutated))

    assert_close(jax.grad(functools.partial(loss, stack))(variables), jax.jit(jax.grad(plain))(variables))


@MODES
def test_each_layer_is_made_as_a_block_of_its_own_with_its_key(mode: str) -> None:
    variables = Stack(Block(), 4, mode).init(KEY, X, per_layer={"scale": SCALES})
    assert shapes(variables["params"]) == {
        "block": {"Dense_0": {"bias": (4, 3), "kernel": (4, 3, 3)}, "gain": (4,)},
    }
    assert_same(variables["params"]["block"]["gain"], SCALES)  # an initializer that uses an argument of the layer
    for index, key in enumerate(jax.random.split(KEY, 4)):
        alone = nn.init(lambda mdl, x, index=index: mdl(x, scale=SCALES[index]), _Named(Block()))(key, X)
        assert_same(element(variables, index), alone)


class _Named(nn.Module):
    block: nn.Module

    def __call__(self, x: Any, **kwargs: Any) -> Any:
        return self.block(x, **kwargs)


@MODES
def test_it_is_nn_scan_of_the_block(mode: str) -> None:
    class Step(Block):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return super().__call__(x, True), None

    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            lifted = nn.scan(Step, length=4, variable_axes={True: 0}, split_rngs={True: True})
            return lifted(name="block")(x, None)[0]

    variables = Stack(Block(), 4, mode).init(RNGS, X, True)
    assert_same(variables, Scanned().init(RNGS, X))
    mutable = ["batch_stats", "intermediates"]
    theirs = Scanned().apply(variables, X, rngs=RNGS, mutable=mutable)
    assert_close(Stack(Block(), 4, mode).apply(variables, X, True, rngs=RNGS, mutable=mutable), theirs)


@MODES
def test_draws_differ_between_layers_and_can_be_shared(mode: str) -> None:
    class Noise(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            noise = jax.random.normal(self.make_rng("dropout"), x.shape)
            self.sow("intermediates", "noise", noise)
            return x + noise

    def noises(**options: Any) -> Any:
        stack = Stack(Noise(), 3, mode, **options)
        y, kept = stack.apply({}, jnp.zeros(2), rngs=RNGS, mutable=["intermediates"])
        return y, kept["intermediates"]["block"]["noise"][0]

    y, drawn = noises()
    assert len({float(value) for value in drawn[:, 0]}) == 3
    assert_close(y, drawn.sum(0))
    for index, key in enumerate(jax.random.split(RNGS["dropout"], 3)):
        word = liftcore.rng.fold_in_data(("block", 1))
        assert_close(drawn[index], jax.random.normal(jax.random.fold_in(key, word), (2,)))
    _, same = noises(split_rngs={"dropout": False, ...: True})
    assert_same(same[0], same[1])
    assert_same(noises(split_rngs=False)[1], same)
    assert_same(noises(split_rngs={"params": False})[1], drawn)  # others are split all the same


# -- how often the block runs ------------------------------------------------------------------------------------------


@pytest.mark.rest
@pytest.mark.parametrize(("mode", "runs"), [("scan", (1, 1, 1, 1)), ("loop", (1, 4, 4, 4)), ("jit", (1, 1, 0, 1))])
@pytest.mark.parametrize("remat", [False, True])
def test_the_block_runs_once_in_a_scan_once_a_layer_in_a_loop_and_is_compiled_once(
    mode: str, runs: tuple[int, ...], remat: bool
) -> None:
    jax.clear_caches()  # operations that were compiled under a mesh still give arrays that JAX tells from others
    seen: list[Any] = []

    class Counted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            seen.append(x)
            return nn.tanh(nn.Dense(3)(x))

    def count(fn: Any, *args: Any) -> int:
        seen.clear()
        jax.block_until_ready(fn(*args))
        return len(seen)

    stack = Stack(Counted(), 4, mode, remat)
    variables = stack.init(KEY, X)
    gradient = jax.grad(lambda variables: stack.apply(variables, X, mutable=["intermediates"])[0].sum())
    assert runs == (
        count(stack.init, KEY, X),
        *(count(stack.apply, variables, X) for _ in range(2)),
        count(gradient, variables),
    )
    if mode == "loop" and not remat:
        stack.apply(variables, X)
        assert not any(isinstance(x, jax.core.Tracer) for x in seen[-4:])  # values that can be printed


def test_scan_is_one_loop_and_unrolls() -> None:
    stack = Stack(Block(), 4)
    variables = stack.init(KEY, X)

    def loops(stack: Stack) -> list[Any]:
        jaxpr = jax.make_jaxpr(stack.apply)(variables, X).jaxpr
        return [eqn.params for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]

    assert [loop["unroll"] for loop in loops(stack)] == [1]
    assert [loop["unroll"] for loop in loops(stack.clone(unroll=2))] == [2]
    assert loops(stack.clone(mode="loop")) == []
    assert_close(stack.clone(unroll=True).apply(variables, X), stack.apply(variables, X))


@MODES
def test_a_block_with_fields_that_cannot_be_hashed_is_compiled_once_all_the_same(mode: str) -> None:
    class Listed(nn.Module):
        sizes: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            seen.append(x)
            return x + nn.Dense(len(self.sizes))(x)

    seen: list[Any] = []
    stack = Stack(Listed(np.ones(3)), 4, mode)
    variables = stack.init(KEY, X)
    seen.clear()
    stack.apply(variables, X)
    assert len(seen) == {"scan": 1, "loop": 4, "jit": 1}[mode]


@MODES
def test_remat_keeps_what_its_policy_says(mode: str) -> None:
    class Sine(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return jnp.sin(jnp.sin(nn.Dense(3)(x)))

    def cosines(remat: Any) -> int:
        stack = Stack(Sine(), 2, mode, remat)
        variables = stack.init(KEY, X)
        return str(jax.make_jaxpr(jax.grad(lambda v: stack.apply(v, X).sum()))(variables)).count(" sin ")

    plain = cosines(False)
    assert cosines(True) > plain
    assert cosines(jax.checkpoint_policies.everything_saveable) == plain


# -- arguments ---------------------------------------------------------------------------------------------------------


@MODES
def test_arguments_are_whole_or_one_for_each_layer(mode: str) -> None:
    class Args(nn.Module):
        @nn.compact
        def __call__(
            self, x: Any, shift: Any, kind: str, *, extra: Any, index: Any, pair: Any, flag: bool = False
        ) -> Any:
            assert (kind, flag, extra["none"]) == ("plain", True, None)
            assert isinstance(extra["size"], int)
            return {"a": x["a"] * pair[0] + shift + index, "n": x["n"] + extra["size"]}

    per_layer = {"index": np.arange(3), "pair": (jnp.array([1.0, 2.0, 3.0]), jnp.zeros((3, 2)))}
    stack = Stack(Args(), 3, mode)
    x, shift = {"a": jnp.ones(2), "n": jnp.int32(0)}, jnp.array([1.0, 10.0])
    y = stack.apply({}, x, shift, "plain", extra={"none": None, "size": 2}, flag=True, per_layer=per_layer)
    expected = jnp.ones(2)
    for index in range(3):
        expected = expected * (index + 1) + shift + index
    assert_close(y, {"a": expected, "n": jnp.int32(6)})


@MODES
def test_equal_numbers_of_other_types_are_other_arguments(mode: str) -> None:
    class Typed(nn.Module):
        def __call__(self, x: Any, by: Any) -> Any:
            return x + (10 if by is True else 0) + (100 if isinstance(by, float) else 0)

    stack = Stack(Typed(), 2, mode)
    assert [float(stack.apply({}, jnp.float32(0), by)) for by in (1, True, 1.0)] == [0, 20, 200]

    class Signed(nn.Module):
        def __call__(self, x: Any, by: Any) -> Any:
            return jnp.copysign(x, by)

    signs = [float(Stack(Signed(), 2, mode).apply({}, jnp.float32(1), by)) for by in (0.0, -0.0, np.float32(-0.0))]
    assert signs == [1, -1, -1]


@MODES
def test_a_module_may_be_an_argument_whose_variables_are_shared(mode: str) -> None:
    class Tied(nn.Module):
        @nn.compact
        def __call__(self, x: Any, other: Any) -> Any:
            return x + other(x) * self.param("w", nn.initializers.normal(), ())

    class Model(nn.Module):
        mode: str

        def setup(self) -> None:
            self.tied = nn.Dense(3)
            self.stack = Stack(Tied(), 2, self.mode, variable_broadcast=PathContains("tied"))

        def __call__(self, x: Any) -> Any:
            return self.stack(self.tied(x), self.tied)

    variables = Model(mode).init(KEY, X)
    assert shapes(variables["params"]) == {"tied": {"bias": (3,), "kernel": (3, 3)}, "stack": {"block": {"w": (2,)}}}
    tied = functools.partial(nn.Dense(3).apply, {"params": variables["params"]["tied"]})
    expected = tied(X)
    for w in variables["params"]["stack"]["block"]["w"]:
        expected = expected + tied(expected) * w
    assert_close(Model(mode).apply(variables, X), expected)


@MODES
def test_keys_may_be_given_to_each_layer(mode: str) -> None:
    class Keyed(nn.Module):
        def __call__(self, x: Any, key: Any) -> Any:
            return x + jax.random.normal(key, x.shape)

    keys = jax.random.split(KEY, 3)
    y = Stack(Keyed(), 3, mode).apply({}, X, per_layer={"key": keys})
    assert_close(y, X + sum(jax.random.normal(key, X.shape) for key in keys))


# -- state -------------------------------------------------------------------------------------------------------------


class Cached(nn.Module):
    """Attends to the mean of all that it saw, in the way of a decoder with a cache."""

    size: int = 4

    @nn.compact
    def __call__(self, x: Any) -> Any:
        exists = self.has_variable("cache", "keys")
        keys = self.variable("cache", "keys", jnp.zeros, (self.size, 3))
        index = self.variable("cache", "index", lambda: jnp.int32(0))
        y = nn.Dense(3)(x)
        if not exists:
            return x + y
        keys.value = jax.lax.dynamic_update_slice(keys.value, y[None], (index.value, 0))
        index.value += 1
        return x + keys.value.sum(0) / index.value


@MODES
def test_a_cache_for_each_layer(mode: str) -> None:
    stack = Stack(Cached(), 3, mode)
    tokens = jax.random.normal(KEY, (4, 3))
    variables = stack.init(KEY, tokens[0])
    assert shapes(variables["cache"]) == {"block": {"index": (3,), "keys": (3, 4, 3)}}
    assert not variables["cache"]["block"]["index"].any()
    params, cache = {"params": variables["params"]}, {"cache": variables["cache"]}
    seen: list[list[Any]] = [[], [], []]
    dense = [
        functools.partial(nn.Dense(3).apply, {"params": element(params["params"]["block"]["Dense_0"], i)})
        for i in range(3)
    ]
    for token in tokens:
        y, cache = stack.apply({**params, **cache}, token, mutable=["cache"])
        for index in range(3):
            seen[index].append(dense[index](token))
            token = token + sum(seen[index]) / len(seen[index])
        assert_close(y, token)
    assert_same(cache["cache"]["block"]["index"], jnp.full(3, 4, jnp.int32))


@MODES
def test_a_cache_may_be_made_by_apply(mode: str) -> None:
    stack = Stack(Cached(), 3, mode)
    variables = stack.init(KEY, X[0])
    y, made = stack.apply({"params": variables["params"]}, X[0], mutable=["cache"])
    assert_same(made, {"cache": variables["cache"]})
    assert_close(y, stack.init_with_output(KEY, X[0])[0])


class Ticking(nn.Module):
    """Reads and counts a number that goes from layer to layer, and reads one that all layers share."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        ticks = self.variable("counter", "ticks", lambda: jnp.float32(0))
        shared = self.variable("consts", "shared", lambda: jnp.float32(3))
        w = self.param("w", nn.initializers.normal(), ())
        x = x * w + ticks.value * shared.value
        ticks.value += 1
        return x


@MODES
def test_variables_may_be_carried_or_shared(mode: str) -> None:
    stack = Stack(Ticking(), 3, mode, variable_carry="counter", variable_broadcast="consts")
    variables = stack.init(KEY, jnp.float32(1))
    assert_same(
        variables, Stack(Ticking(), 3, variable_carry="counter", variable_broadcast="consts").init(KEY, jnp.float32(1))
    )
    assert shapes(variables) == {
        "params": {"block": {"w": (3,)}}, "counter": {"block": {"ticks": ()}}, "consts": {"block": {"shared": ()}}
    }  # fmt: skip
    state = {**variables, "counter": {"block": {"ticks": jnp.float32(10)}}}
    y, mutated = stack.apply(state, jnp.float32(1), mutable=["counter"])
    expected = 1.0
    for index, w in enumerate(variables["params"]["block"]["w"]):
        expected = expected * w + 3 * (10 + index)
    assert_close(y, expected)
    assert float(mutated["counter"]["block"]["ticks"]) == 13
    rest = {name: tree for name, tree in variables.items() if name != "counter"}
    _, made = stack.apply(rest, jnp.float32(1), mutable=["counter"])  # made on the way
    assert float(made["counter"]["block"]["ticks"]) == 3


@MODES
def test_single_variables_may_be_shared(mode: str) -> None:
    class Adapted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x + nn.Dense(3, name="dense")(x) + nn.Dense(3, name="lora")(x)

    only = All("params", PathContains("dense"))
    stack = Stack(Adapted(), 2, mode, variable_broadcast=only, split_rngs=False)
    variables = stack.init(KEY, X)
    kernels = jax.tree.map(jnp.shape, {name: tree["kernel"] for name, tree in variables["params"]["block"].items()})
    assert kernels == {"dense": (3, 3), "lora": (2, 3, 3)}
    assert_close(stack.apply(variables, X), Stack(Adapted(), 2, "scan", variable_broadcast=only).apply(variables, X))


@MODES
def test_outputs_are_captured_and_perturbed(mode: str) -> None:
    class Perturbed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.perturb("h", nn.tanh(nn.Dense(3)(x)))

    stack, first = Stack(Perturbed(), 3, mode), Stack(Perturbed(), 3)
    variables = stack.init(KEY, X)
    assert shapes(variables["perturbations"]) == {"block": {"h": (3, 2, 3)}}
    kept = stack.apply(variables, X, capture_intermediates=True)[1]
    assert_close(kept, first.apply(variables, X, capture_intermediates=True)[1])
    assert shapes(kept["intermediates"]["block"]["__call__"]) == ((3, 2, 3),)
    gradients = [jax.grad(lambda v, one=one: one.apply(v, X).sum())(variables) for one in (stack, first)]
    assert_close(*gradients)


@MODES
def test_boxes_gain_the_name_of_the_axis(mode: str) -> None:
    class Boxed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            kernel = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
            seen.append(self.param("kernel", kernel, (3, 3), unbox=False).names)
            count = self.variable("state", "n", lambda: nn.Partitioned(jnp.zeros(2), ("pair",)))
            count.value += 1
            return x @ self.get_variable("params", "kernel").value

    seen: list[Any] = []
    stack = Stack(Boxed(), 2, mode, metadata_params={nn.PARTITION_NAME: "layers"})
    variables = stack.init(KEY, X)
    assert variables["params"]["block"]["kernel"].names == ("layers", "in", "out")
    y, mutated = stack.apply(variables, X, mutable=["state"])
    assert mutated["state"]["block"]["n"].names == ("layers", "pair")
    assert set(seen) == {("in", "out")}
    assert_close(
        y, X @ variables["params"]["block"]["kernel"].value[0] @ variables["params"]["block"]["kernel"].value[1]
    )
    assert stack.bind(variables)[0].variables["params"]["kernel"].names == ("in", "out")
    assert stack.bind(variables)[:1].variables["params"]["block"]["kernel"].names == ("layers", "in", "out")


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.rest
def test_stacks_nest() -> None:
    class Model(nn.Module):
        stack: Stack

        def __call__(self, x: Any) -> Any:
            return self.stack(x, True), None

    expected = results(Model(Stack(Stack(Block(), 2), 3)), X)
    variables = expected[0]
    assert variables["params"]["stack"]["block"]["block"]["Dense_0"]["kernel"].shape == (3, 2, 3, 3)
    for mode, inner in (("scan", "loop"), ("loop", "jit"), ("jit", "scan"), ("jit", "jit"), ("scan", "jit")):
        found = results(Model(Stack(Stack(Block(), 2, inner), 3, mode)), X)
        assert_same(found[0], variables)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)
    stack, y = Model(Stack(Stack(Block(), 2), 3)).bind(variables).stack, X
    for outer in stack:
        for layer in outer:
            y = layer(y)
    assert_close(stack(X), y)


LIFTED = {
    "vmap": lambda cls: nn.vmap(cls, {True: 0}, {True: True}, in_axes=(0, None)),
    "scan": lambda cls: nn.scan(cls, length=2, variable_axes={True: 0}, split_rngs={True: True}),
    "carry": lambda cls: nn.scan(
        cls,
        length=2,
        variable_axes={"params": 0, "intermediates": 0},
        variable_carry="batch_stats",
        split_rngs={True: True},
    ),
    "remat": nn.remat,
    "jit": nn.jit,
}


@pytest.mark.parametrize("lift", list(LIFTED))
def test_a_stack_inside_of_lifts(lift: str) -> None:
    class Model(nn.Module):
        mode: str

        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            x = nn.Dense(3)(x)
            return Stack(Block(parent=None), 2, self.mode)(x, True), None

    xs = jnp.stack([X, X + 1]) if lift == "vmap" else X
    expected, *others = (results(LIFTED[lift](Model)(mode), xs, None) for mode in ("scan", "loop", "jit"))
    for found in others:
        assert_same(found[0], expected[0])
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def results(model: nn.Module, x: Any, *args: Any) -> Any:
    """The variables that a model makes; its output, what it writes and the gradient of what it returns first."""

    def loss(params: Any, variables: Any) -> Any:
        mutable = ["batch_stats", "intermediates"]
        y, mutated = model.apply({**variables, "params": params}, x, *args, rngs=RNGS, mutable=mutable)
        return (y[0] * y[0]).sum(), (y, mutated)

    variables = jax.jit(model.init)(RNGS, x, *args)
    return variables, jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"], variables)


@MODES
def test_variables_lie_where_the_block_belongs(mode: str) -> None:
    class Compact(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Stack(Block(parent=None), 2, mode)(Stack(Block(), 2, mode, name="named")(x))

    class WithSetup(nn.Module):
        def setup(self) -> None:
            self.stack = Stack(Block(), 2, mode)

        def __call__(self, x: Any) -> Any:
            return self.stack(x)

    assert {name: sorted(tree) for name, tree in Compact().init(KEY, X)["params"].items()} == {
        "Block_0": ["Dense_0", "gain"], "Stack_0": ["block"]
    }  # fmt: skip
    assert list(WithSetup().init(KEY, X)["params"]) == ["stack"]


def test_a_stack_may_be_called_twice() -> None:
    class Twice(nn.Module):
        mode: str

        def setup(self) -> None:
            self.stack = Stack(Block(), 2, self.mode)

        def __call__(self, x: Any) -> Any:
            return self.stack(self.stack(x, True), True), None

    expected, *others = (results(Twice(mode), X) for mode in ("scan", "loop", "jit"))
    for found in others:
        assert_same(found[0], expected[0])
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


@MODES
def test_it_is_explained(mode: str) -> None:
    stack = Stack(Block(), 2, mode)
    shown = str(nn.explain(stack, variables=stack.init(KEY, X))(X))
    assert {"scan": "scan(layer)", "loop": "loop(layer)", "jit": "jit(layer)"}[mode] in shown
    assert "params/block/Dense_0/kernel" in shown


# -- single layers -----------------------------------------------------------------------------------------------------


@MODES
def test_a_layer_is_the_block_with_its_slices(mode: str) -> None:
    stack = Stack(Block(), 4, mode)
    variables = stack.init(KEY, X)
    bound, expected = stack.bind(variables), X
    assert len(bound) == 4
    for index, layer in enumerate(bound):
        assert isinstance(layer, Block)
        assert_same(layer.variables, element({name: tree["block"] for name, tree in variables.items()}, index))
        expected = layer(expected)
        assert_close(bound[: index + 1](X), expected)
    assert_close(stack.apply(variables, X), expected)
    assert_same(bound[-1].variables, bound[3].variables)
    assert_close(bound[2:](bound[:2](X)), expected)
    assert_same(bound[1:][0].variables, bound[1].variables)
    assert bound[1:3].length == 2
    assert bound[1:3].mode == mode
    reverse = bound[3](X)
    for index in (2, 1, 0):
        reverse = bound[index](reverse)
    assert_close(bound[::-1](X), reverse)


def test_layers_serve_inside_of_a_model() -> None:
    class Early(nn.Module):
        def setup(self) -> None:
            self.stack = Stack(Block(), 4)

        def __call__(self, x: Any) -> Any:
            return self.stack(x)

        def exit_at(self, x: Any, number: int) -> Any:
            return self.stack[:number](x)

    model = Early()
    variables = model.init(KEY, X)
    expected = X
    for layer in model.bind(variables).stack[:2]:
        expected = layer(expected)
    assert_close(model.apply(variables, X, 2, method="exit_at"), expected)
    gradient = jax.grad(lambda v: model.apply(v, X, 2, method="exit_at").sum())(variables)
    gains = gradient["params"]["stack"]["block"]["gain"]
    assert gains[:2].all()
    assert not gains[2:].any()


def test_layers_keep_what_is_carried_or_shared() -> None:
    stack = Stack(Ticking(), 3, variable_carry="counter", variable_broadcast="consts")
    variables = stack.init(KEY, jnp.float32(1))
    layer = stack.bind(variables)[1]
    assert shapes(layer.variables) == {"params": {"w": ()}, "counter": {"ticks": ()}, "consts": {"shared": ()}}
    assert stack.bind(variables)[1:].variables["consts"] == variables["consts"]


def test_a_layer_neither_writes_nor_draws() -> None:
    stack = Stack(Block(), 2)
    bound = stack.bind(stack.init(KEY, X), rngs=RNGS, mutable=True)
    with pytest.raises(InvalidRngError):
        bound[0](X, True)
    stack = Stack(Ticking(), 2)
    bound = stack.bind(stack.init(KEY, jnp.float32(1)), mutable=True)
    with pytest.raises(ModifyScopeVariableError):
        bound[0](jnp.float32(1))


# -- misuse ------------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x: Any, scale: Any = 1.0) -> Any:
        return nn.Dense(3)(x) * scale


def test_arguments_of_the_constructor_are_checked() -> None:
    with pytest.raises(
        LiftArgumentError, match=r"mode of Stack: expected one of \('scan', 'loop', 'jit'\), given 'map'"
    ):
        Stack(Plain(), 2, "map")
    for length in (0, 2.0, None):
        with pytest.raises(
            LiftArgumentError, match="length of Stack: expected the number of layers, an int of at least 1"
        ):
            Stack(Plain(), length)  # type: ignore[arg-type]
    with pytest.raises(LiftArgumentError, match=r"block of Stack: expected a module, given .*Write `Stack\(Block"):
        Stack(Plain, 2)  # type: ignore[arg-type]
    with pytest.raises(UnboundModuleError, match=r"call of Stack \(unbound\)"):
        Stack(Plain(), 2)(X)


@MODES
def test_arguments_of_the_call_are_checked(mode: str) -> None:
    stack = Stack(Plain(), 3, mode)
    variables = stack.init(KEY, X)
    with pytest.raises(
        AxisSizeError, match=r"per_layer\['scale'\] of Stack at /: it has shape \(2,\), but there are 3"
    ):
        stack.apply(variables, X, per_layer={"scale": jnp.ones(2)})
    with pytest.raises(AxisSizeError, match=r"shape \(\), but there are 3 layers"):
        stack.apply(variables, X, per_layer={"scale": 1.0})
    with pytest.raises(
        LiftArgumentError, match=r"per_layer of Stack at /: expected a mapping .*`per_layer=\{\"scale\""
    ):
        stack.apply(variables, X, per_layer=jnp.ones(3))


@MODES
def test_variables_of_another_number_of_layers(mode: str) -> None:
    variables = Stack(Plain(), 3).init(KEY, X)
    with pytest.raises(AxisSizeError, match=r"params.*3|3.*params"):
        Stack(Plain(), 4, mode).apply(variables, X)
    if mode != "scan":
        text = r'Stack at /: "params/Dense_0/.*" has shape \(3, .* but there are 4 layers along axis 0'
        with pytest.raises(AxisSizeError, match=text):
            Stack(Plain(), 4, mode).apply(variables, X)


@MODES
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x.astype(jnp.float16), "float32.* in, float16.* out"),
        (lambda x: x[None], r"\[2,3\] in, .*\[1,2,3\] out"),
        (lambda x: (x, x), "structure"),
    ],
)
def test_a_block_that_returns_another_type(mode: str, change: Any, text: str) -> None:
    class Changing(nn.Module):
        def __call__(self, x: Any) -> Any:
            return change(x)

    with pytest.raises(CarryTypeError, match=text):
        Stack(Changing(), 2, mode).apply({}, X)


@MODES
def test_a_weak_number_takes_the_type_that_the_block_gives_it(mode: str) -> None:
    class Adding(nn.Module):
        def __call__(self, x: Any) -> Any:
            return x + jnp.float32(0.5)

    y = Stack(Adding(), 2, mode).apply({}, 1)
    assert y.dtype == jnp.float32
    assert float(y) == 2


@OTHERS
def test_a_carried_variable_that_changes_its_type(mode: str) -> None:
    class Changing(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            n = self.variable("counter", "n", lambda: jnp.zeros(()))
            n.value = jnp.zeros(2)
            return x

    stack = Stack(Changing(), 2, mode, variable_carry="counter")
    with pytest.raises(CarryTypeError, match=r'carried variable "counter/n": float32\[\] in, float32\[2\] out'):
        stack.apply({"counter": {"block": {"n": jnp.zeros(())}}}, X, mutable=["counter"])


@MODES
def test_what_all_layers_share_may_not_be_written(mode: str) -> None:
    stack = Stack(Ticking(), 2, mode, variable_broadcast=("counter", "consts"))
    variables = {
        "params": {"block": {"w": jnp.ones(2)}},
        "counter": {"block": {"ticks": jnp.float32(0)}},
        "consts": {"block": {"shared": jnp.float32(0)}},
    }
    with pytest.raises(
        LoopInvarianceError, match=r"\['counter/ticks'\] is shared by all .*`variable_carry=\"counter\"`"
    ):
        stack.apply(variables, jnp.float32(1), mutable=["counter"])


def test_layers_that_do_not_do_the_same() -> None:
    class Odd(nn.Module):
        def __call__(self, x: Any, index: Any) -> Any:
            if index == 1:
                self.sow("intermediates", "x", x)
            return x

    with pytest.raises(LiftArgumentError, match=r"loop\(layer\) at /block: the layers make, write or sow different"):
        Stack(Odd(), 2, "loop").apply({}, X, per_layer={"index": jnp.arange(2)}, mutable=["intermediates"])


def test_a_layer_that_is_not_there() -> None:
    stack = Stack(Plain(), 2)
    bound = stack.bind(stack.init(KEY, X))
    with pytest.raises(IndexError):
        bound[2]
    with pytest.raises(UnboundModuleError, match=r"Stack \(unbound\)\[0\]"):
        stack[0]
    with pytest.raises(UnboundModuleError, match=r"Stack at /\[1:\]: the stack has no variables .*`init`"):
        stack.bind({})[1:]
    with pytest.raises(LiftArgumentError, match="length of Stack"):
        bound[:0]


def test_layers_that_share_all_variables_are_bound_too() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(x.shape[-1])(x)

    stack = nn.Stack(Layer(), 3, variable_broadcast="params", split_rngs=False)
    variables = stack.init(jax.random.key(0), jnp.ones(2))
    bound = stack.bind(variables)
    y = jnp.ones(2)
    for index in range(3):
        y = bound[index](y)
    np.testing.assert_allclose(y, stack.apply(variables, jnp.ones(2)), rtol=1e-6)


def test_how_layers_are_run_is_no_call_of_a_module() -> None:
    seen = []

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        seen.append((type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(note):
        nn.Stack(nn.Dense(2), 2).init(jax.random.key(0), jnp.ones(2))
    assert seen == [("Stack", "__call__"), ("Dense", "__call__")]

"""Splitting: a body is traced once and cut into what makes its initial values, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from liftcore.pipeline.splitting import Prologue, Split, trace
from liftcore.values import tag

KEY = jax.random.key(0)


def body(key: Any, carry: Any, x: Any) -> Any:
    """Three initial values, of which one depends on a key alone, one on the carry and one on nothing."""
    w = tag(jax.random.normal(key, (3,)))
    start = tag(carry * 2)
    const = tag(jnp.arange(3.0))
    return {"w": w, "start": start, "const": const}, (carry * w + start, x @ w + const.sum())


OPERANDS = KEY, jnp.full(3, 2.0), jnp.ones((2, 3))


def create(traced: Split, chosen: Any, *operands: Any) -> Any:
    """The chosen initial values, made in one go."""
    prologue = Prologue(traced, traced.leaves(operands))
    prologue.make(chosen)
    return prologue.tree()


def computed(traced: Split, created: Any, *operands: Any) -> Any:
    """The initial values that the remainder computes, as they are not given."""
    leaves = enumerate(jax.tree.leaves(created, is_leaf=lambda leaf: leaf is None))
    given = {number: value for number, value in leaves if value is not None}
    part, leaves = traced.remaining(given), traced.leaves(operands)
    return traced.as_trees(given, part(*given.values(), *[leaves[place] for place in part.places]))[0]


def numbers(*names: str) -> set[int]:
    """The numbers of some of the initial values that `body` creates."""
    return {number for number, name in enumerate(("const", "start", "w")) if name in names}


def primitives(jaxpr: Any) -> list[str]:
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def test_a_trace_runs_the_function_once_and_computes_nothing() -> None:
    runs: list[int] = []

    def counted(*operands: Any) -> Any:
        runs.append(1)
        return body(*operands)

    traced = trace(counted, *OPERANDS)
    assert len(runs) == 1
    assert {name: aval.shape for name, aval in traced.created.items()} == {"w": (3,), "start": (3,), "const": (3,)}
    assert [aval.shape for aval in traced.outputs] == [(3,), (2,)]
    traced.remainder(create(traced, None, *OPERANDS), *OPERANDS)
    assert len(runs) == 1


def test_operands_may_be_types() -> None:
    types = jax.tree.map(jax.typeof, OPERANDS)
    assert trace(body, *types).created["w"].shape == (3,)


def test_reads_tells_which_operands_a_value_depends_on() -> None:
    reads = trace(body, *OPERANDS).reads()
    assert reads == {"w": {0}, "start": {1}, "const": set()}


def test_reads_counts_an_operand_of_many_leaves_as_one() -> None:
    def fn(first: Any, none: Any, second: Any) -> Any:
        return [first["b"] + second[1], second[0], first["a"], jnp.ones(())], ()

    traced = trace(fn, {"a": 1.0, "b": 2.0}, (), [3.0, 4.0])
    assert traced.reads() == [{0, 2}, {2}, {0}, set()]


def test_reads_follows_a_value_through_equations() -> None:
    def fn(key: Any, x: Any) -> Any:
        inner = jax.jit(lambda x: jnp.sin(x).sum())(x)
        return [tag(jax.random.normal(key) * inner), tag(jax.random.normal(key))], ()

    assert trace(fn, KEY, jnp.ones(2)).reads() == [{0, 1}, {0}]


def test_create_makes_the_values_and_rest_takes_them() -> None:
    traced = trace(body, *OPERANDS)
    expected, rest = body(*OPERANDS)
    made = create(traced, None, *OPERANDS)
    np.testing.assert_allclose(made["w"], expected["w"])
    outputs = traced.remainder(made, *OPERANDS)
    assert computed(traced, made, *OPERANDS) == {"w": None, "start": None, "const": None}
    jax.tree.map(np.testing.assert_allclose, outputs, rest)


def test_rest_uses_the_values_that_it_is_given() -> None:
    traced = trace(body, *OPERANDS)
    other = {"w": jnp.ones(3), "start": jnp.zeros(3), "const": jnp.full(3, 5.0)}
    carry, y = traced.remainder(other, *OPERANDS)
    assert carry.tolist() == [2.0, 2.0, 2.0]
    assert y.tolist() == [18.0, 18.0]


def test_some_values_may_be_chosen() -> None:
    traced = trace(body, *OPERANDS)
    chosen = numbers("w")
    made = create(traced, chosen, KEY, None, None)
    assert made["start"] is None
    assert made["const"] is None
    np.testing.assert_allclose(made["w"], body(*OPERANDS)[0]["w"])
    left = computed(traced, {**made, "w": jnp.zeros(3)}, *OPERANDS)
    assert left["w"] is None
    assert left["start"].tolist() == [4.0, 4.0, 4.0]
    assert left["const"].tolist() == [0.0, 1.0, 2.0]


def test_create_needs_only_the_operands_that_are_read() -> None:
    traced = trace(body, *OPERANDS)
    start = create(traced, numbers("start"), None, OPERANDS[1], None)["start"]
    assert start.tolist() == [4.0, 4.0, 4.0]
    const = create(traced, numbers("const"), None, None, None)["const"]
    assert const.tolist() == [0.0, 1.0, 2.0]


def test_the_remainder_tells_which_operands_it_reads() -> None:
    def fn(keys: Any, x: Any) -> Any:
        return [tag(jax.random.normal(keys[0]))], (x["b"] * 2, keys[1])

    traced = trace(fn, [KEY, KEY], {"a": 1.0, "b": 2.0})
    made = traced.remaining({0})
    assert made.places == [1, 3]
    left, (y, _) = traced.as_trees({0}, made(jnp.zeros(()), KEY, 4.0))
    assert left == [None]
    assert y == 8
    assert traced.remaining(()).places == [0, 1, 3]


def test_create_leaves_out_what_no_value_needs_and_rest_what_only_values_need() -> None:
    traced = trace(body, *OPERANDS)
    prologue = jax.make_jaxpr(lambda *operands: create(traced, None, *operands))(*OPERANDS)
    rest = jax.make_jaxpr(traced.remainder)(create(traced, None, *OPERANDS), *OPERANDS)
    assert "dot_general" not in primitives(prologue)
    assert "dot_general" in primitives(rest)
    assert not [eqn for eqn in rest.eqns if "random" in str(eqn) or "threefry" in str(eqn)]


@pytest.mark.parametrize("start", [True, False])
def test_no_tag_is_left_in_what_is_run(start: bool) -> None:
    traced = trace(body, *OPERANDS)
    chosen = numbers("w", "const", *(["start"] if start else []))
    made = create(traced, chosen, *OPERANDS)
    prologue = jax.make_jaxpr(lambda *operands: create(traced, chosen, *operands))(*OPERANDS)
    rest = jax.make_jaxpr(lambda *operands: traced.remainder(made, *operands))(*OPERANDS)
    assert "name" not in {*primitives(prologue), *primitives(rest)}


def test_values_that_share_equations_are_told_apart() -> None:
    def fn(x: Any) -> Any:
        common = jnp.sin(x)
        first, second = tag(common), tag(common)
        return [first, second], first - second

    traced = trace(fn, 1.0)
    assert traced.remainder([5.0, 2.0], 1.0) == 3.0


def test_a_value_made_from_another_depends_on_what_that_one_does() -> None:
    def fn(x: Any) -> Any:
        first = tag(x + 1)
        second = tag(first * 2)
        return [first, second], second + first

    traced = trace(fn, jnp.float32(1))
    assert traced.reads() == [{0}, {0}]
    assert create(traced, None, jnp.float32(1)) == [2.0, 4.0]
    assert traced.remainder([jnp.float32(10), jnp.float32(20)], jnp.float32(1)) == 30.0
    given = [jnp.float32(10), None]
    assert computed(traced, given, jnp.float32(1))[1] == 20.0
    assert traced.remainder(given, jnp.float32(1)) == 30.0


def test_constants_of_the_trace_are_kept() -> None:
    table = jnp.arange(5.0)
    traced = trace(lambda x: ([tag(table * 2)], table + x), 1.0)
    assert traced.reads() == [set()]
    assert create(traced, None, None)[0].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert traced.remainder([table], 1.0).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_types_survive_the_cut() -> None:
    def fn(key: Any, count: Any, flag: Any) -> Any:
        return {"key": tag(jax.random.split(key)), "count": tag(count + 1)}, (key, flag, 2, count * 1.5)

    operands = KEY, jnp.int32(3), jnp.array(True)
    traced = trace(fn, *operands)
    made = create(traced, None, *operands)
    assert jnp.issubdtype(made["key"].dtype, jax.dtypes.prng_key)
    assert made["count"].dtype == jnp.int32
    key, flag, number, product = traced.remainder(made, *operands)
    assert key == KEY
    assert flag.dtype == bool
    assert number == 2
    assert product == 4.5


def counting(effects: list[str], name: str) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        effects.append(name)
        return x

    return lambda x: io_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=False)


@pytest.fixture
def effects() -> list[str]:
    return []


def test_what_an_initial_value_reads_comes_first() -> None:
    def fn(x: Any) -> Any:
        first = tag(x + 1)
        second = tag(first * 2)
        third = tag(second + first)
        return [third, first, second, tag(x)], ()

    traced = trace(fn, jnp.float32(1))
    assert traced.earlier == [{1, 2}, set(), {1}, set()]
    assert list(traced.in_order(traced.numbers)) == [[1, 3], [2], [0]]


def test_what_is_made_later_reads_the_bound_form_of_what_was_made_before() -> None:
    def fn(x: Any) -> Any:
        first = tag(x + 1)
        return [first, tag(first * 2)], ()

    traced = trace(fn, jnp.float32(1))
    prologue = Prologue(traced, [jnp.float32(1)])
    for group in traced.in_order(traced.numbers):
        prologue.evaluate(group, form=lambda number, value: value + 10 * number + 100)
    assert prologue.values == {0: 102.0, 1: 314.0}


def test_a_value_that_was_made_elsewhere_is_not_made_again() -> None:
    def fn(x: Any) -> Any:
        first = tag(x + 1)
        return [first, tag(first * 2)], ()

    prologue = Prologue(trace(fn, jnp.float32(1)), [None])
    prologue.know(0, jnp.float32(50))
    prologue.make([1])
    assert prologue.tree() == [50.0, 100.0]
    assert prologue.tree({1}) == [None, 100.0]


def test_values_that_read_the_same_are_made_together() -> None:
    def fn(x: Any, y: Any) -> Any:
        first, second = tag(x + 1), tag(y + 1)
        return [first, tag(x * 2), second, tag(first + 1), tag(x + second)], ()

    traced = trace(fn, jnp.float32(1), jnp.float32(2))
    assert list(traced.in_order(traced.numbers)) == [[0, 1], [2], [3], [4]]
    assert list(traced.in_order({1, 3})) == [[1], [3]]


def test_a_value_is_made_again_if_one_asks_for_it_again() -> None:
    def fn(x: Any) -> Any:
        first = tag(x + 1)
        return [first, tag(first * 2)], ()

    prologue = Prologue(trace(fn, jnp.float32(1)), [jnp.float32(1)])
    prologue.make()
    prologue.know(0, jnp.float32(50))
    prologue.make({1})
    assert prologue.tree() == [50.0, 100.0]
    prologue.see([jnp.float32(5)])
    prologue.make()
    assert prologue.tree() == [6.0, 12.0]


def test_a_batch_is_made_at_once_and_read_along_its_axis() -> None:
    def fn(x: Any) -> Any:
        first = tag(jnp.stack([x, x]))
        return [first, tag(first.sum())], ()

    traced, xs = trace(fn, jnp.float32(1)), jnp.arange(3.0)

    def batch(part: Any, in_axes: Any, out_axes: Any) -> Any:
        return jax.vmap(part, tuple(in_axes), list(out_axes))

    prologue = Prologue(traced, [xs], [0], batch)
    for group in traced.in_order(traced.numbers):
        prologue.make(group, [1, 0])
    assert prologue.values[0].shape == (2, 3)
    assert prologue.values[1].tolist() == [0.0, 2.0, 4.0]


def test_what_an_effect_gives_in_a_batch_differs_between_elements(effects: list[str]) -> None:
    def fn(x: Any) -> Any:
        found = counting(effects, "made")(x)
        first = tag(found + 1)
        return [first, tag(first * found)], ()

    traced, xs = trace(fn, jnp.float32(1)), jnp.arange(3.0)
    prologue = Prologue(traced, [xs], [0], lambda part, in_axes, out_axes: jax.vmap(part, tuple(in_axes), out_axes))
    for group in traced.in_order(traced.numbers):
        prologue.make(group, [0, 0])
    assert prologue.values[1].tolist() == [0.0, 2.0, 6.0]
    jax.effects_barrier()
    assert effects == ["made"] * 3


def test_an_effect_runs_once_however_many_read_what_it_gave(effects: list[str]) -> None:
    def fn(x: Any) -> Any:
        found = counting(effects, "made")(x)
        first = tag(found + 1)
        return [first, tag(first + found)], found * x

    traced = trace(fn, jnp.float32(2)).with_effects()
    prologue = Prologue(traced, [jnp.float32(2)])
    for group in traced.in_order(traced.numbers):
        prologue.make(group)
    created = prologue.tree()
    assert created == [3.0, 5.0, [2.0]]
    assert traced.remainder(created, jnp.float32(2)) == 4.0
    jax.effects_barrier()
    assert effects == ["made"]


def test_effects_of_an_initial_value_run_in_create_alone(effects: list[str]) -> None:
    def fn(key: Any, x: Any) -> Any:
        w = tag(counting(effects, "made")(jax.random.normal(key)))
        return [w], x * w

    traced = trace(fn, KEY, 2.0)
    assert effects == []
    made = create(traced, None, KEY, None)
    jax.block_until_ready(made)
    jax.effects_barrier()
    assert effects == ["made"]
    traced.remainder(made, KEY, 2.0)
    jax.effects_barrier()
    assert effects == ["made"]


def test_other_effects_stay_in_the_rest(effects: list[str]) -> None:
    def fn(x: Any) -> Any:
        w = tag(x * 2)
        counting(effects, "step")(x)  # what it gives is used by nobody
        return [w], w + 1

    traced = trace(fn, jnp.float32(1))
    made = create(traced, None, jnp.float32(1))
    jax.effects_barrier()
    assert effects == []
    traced.remainder(made, jnp.float32(1))
    jax.effects_barrier()
    assert effects == ["step"]


def test_gradients_flow_through_both_parts() -> None:
    def fn(carry: Any, x: Any) -> Any:
        start = tag(carry**2)
        return [start], start * x

    def loss(carry: Any, x: Any) -> Any:
        traced = trace(fn, carry, x)
        return traced.remainder(create(traced, None, carry, None), carry, x)

    assert jax.grad(loss, (0, 1))(3.0, 2.0) == (12.0, 9.0)

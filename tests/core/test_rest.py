"""`Rest`: equal by type and value, without leaves, and a part of every key and structure that JAX keeps."""

from __future__ import annotations

import functools
import gc
import math
import pickle
import random
import weakref
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftcore import Rest, flatten_static, is_array, join_static, split_static
from liftcore.errors import LiftArgumentError
from liftcore.statics import Undescribed, static_key
from tests.core.pytrees import PYTREES, STATIC, Layer, Pair, double, same


class Opaque:
    """What no key stands for."""


# -- splitting and joining ---------------------------------------------------------------------------------------------


@given(PYTREES)
@settings(deadline=None)
def test_what_is_split_is_joined_again(tree: Any) -> None:
    dynamic, rest = split_static(tree)
    assert all(map(is_array, jax.tree.leaves(dynamic)))
    assert same(join_static(dynamic, rest), tree)


@given(PYTREES)
@settings(deadline=None)
def test_the_rest_of_equal_trees_is_equal_whatever_its_arrays_are(tree: Any) -> None:
    copied = jax.tree.map(lambda leaf: leaf + 1 if is_array(leaf) else leaf, tree)
    one, other = split_static(tree)[1], split_static(copied)[1]
    assert one == other
    assert hash(one) == hash(other)


@given(STATIC, STATIC)
@settings(deadline=None)
def test_rests_of_leaves_are_equal_where_type_and_value_are(one: Any, other: Any) -> None:
    assert (Rest(one) == Rest(other)) is same(one, other)


def test_static_leaves_leave_none_in_their_places() -> None:
    dynamic, _ = split_static({"x": jnp.ones(2), "mode": "train", "more": [1, None]})
    assert jax.tree.structure(dynamic) == jax.tree.structure({"x": 0, "mode": None, "more": [None, None]})


def test_a_predicate_says_what_is_traced() -> None:
    dynamic, rest = split_static({"rate": 0.5, "n": 3, "x": np.ones(2)}, lambda leaf: isinstance(leaf, float))
    assert jax.tree.leaves(dynamic) == [0.5]
    assert rest.join({"rate": 1.5, "n": None, "x": None})["rate"] == 1.5


@given(PYTREES)
@settings(deadline=None)
def test_arrays_in_a_list_are_joined_again(tree: Any) -> None:
    arrays, rest = flatten_static(tree)
    dynamic, same_rest = split_static(tree)
    assert same(arrays, jax.tree.leaves(dynamic))
    assert rest == same_rest
    assert same(rest.unflatten(arrays), tree)


def test_what_is_in_the_place_of_an_array_may_be_any_pytree() -> None:
    _, rest = split_static([jnp.ones(2), "text"])
    assert rest.join([(1, 2), None]) == [(1, 2), "text"]
    assert rest.join([None, None]) == [None, "text"]


def test_a_rest_in_a_pytree_comes_back_as_it_was() -> None:
    tree = {"rest": Rest("text"), "x": 1}
    assert join_static(*split_static(tree)) == tree


def test_arrays_of_texts_and_objects_are_no_arrays_to_trace() -> None:
    some = [np.array("text"), np.str_("text"), np.array([None], dtype=object), np.datetime64("2020"), 1.0, None]
    assert [leaf for leaf in some if is_array(leaf)] == []
    assert not is_array(np.array(["text"], np.dtypes.StringDType()))
    assert is_array(jnp.bfloat16(1))
    assert is_array(np.ones(2, jnp.bfloat16))


def test_a_dynamic_part_of_another_structure_is_an_error() -> None:
    _, rest = split_static({"x": jnp.ones(2), "mode": "train"})
    with pytest.raises(LiftArgumentError, match=r"Rest\.join: expected arrays in place of the `\*`"):
        rest.join([jnp.ones(2)])


def test_another_number_of_arrays_is_an_error() -> None:
    _, rest = split_static([jnp.ones(2), "text"])
    with pytest.raises(LiftArgumentError, match=r"Rest\.unflatten: expected 1 arrays, given 2"):
        rest.unflatten([1, 2])


def test_the_value_of_a_rest_with_arrays_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"Rest\.value.*Write `rest\.join\(arrays\)`"):
        _ = split_static([jnp.ones(2), "text"])[1].value


# -- equality ----------------------------------------------------------------------------------------------------------


DIFFERENT = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", b"1", (), [], {}, (1,), [1], (True,), (1.0,), math.nan, 1j]


def test_values_are_told_apart_by_type_and_sign() -> None:
    rests = list(map(Rest, DIFFERENT))
    assert [[one == other for other in rests] for one in rests] == np.eye(len(rests)).astype(bool).tolist()
    assert len(set(rests)) == len(rests)


def test_static_fields_of_nodes_are_told_apart_too() -> None:
    assert split_static(Layer(jnp.ones(2), "x", 1))[1] != split_static(Layer(jnp.ones(2), "x", True))[1]
    assert split_static(Pair(1, 2))[1] != split_static((1, 2))[1]


def test_keys_of_dicts_are_told_apart_too() -> None:
    keys: list[Any] = ["1", 1, True, 1.0, 0.0, -0.0, "1"]
    rests = [Rest({"above": {key: "leaf"}}) for key in keys]
    equal = [[one == other for other in rests] for one in rests]
    assert equal == [[str(one) == str(other) and type(one) is type(other) for other in keys] for one in keys]


def test_nan_equals_itself() -> None:
    assert Rest({"x": math.nan}) == Rest({"x": float("nan")})


def test_what_has_no_key_is_an_error_that_says_where_it_is() -> None:
    with pytest.raises(Undescribed, match=r"a Random at \['a'\]\[1\] cannot be compared.*frozen dataclass"):
        split_static({"a": ["x", random.Random(0)]})
    with pytest.raises(Undescribed, match=r"Array.* at \.args\[0\].*Pass it as an argument"):
        Rest(functools.partial(double, jnp.ones(2)))


def test_a_rest_does_not_see_later_changes() -> None:
    held = np.ones(2)
    rest = Rest(held)
    held[0] = 7
    assert rest == Rest(np.ones(2))
    rest.value[0] = 9
    assert rest.value.tolist() == [1, 1]


# -- in JAX ------------------------------------------------------------------------------------------------------------


def test_it_has_no_leaves() -> None:
    assert jax.tree.leaves({"x": Rest(3)}) == []


def test_jit_traces_again_only_for_an_unequal_one() -> None:
    traces = []

    @jax.jit
    def scaled(x: Any, rest: Rest) -> Any:
        traces.append(rest.value)
        return x, rest

    for value in (1, 1, True, 1.0, 1, 0.0, -0.0, 0.0, "a", "a", math.nan, math.nan):
        _, home = scaled(jnp.ones(2), Rest(value))
        assert same(home.value, value)
    assert list(map(repr, traces)) == ["1", "True", "1.0", "0.0", "-0.0", "'a'", "nan"]


def mapped(fn: Any, x: Any) -> Any:
    return jax.vmap(fn)(x)


def looped(fn: Any, x: Any) -> Any:
    return jax.lax.scan(lambda carry, x: (carry, fn(x)), (0.0, Rest("carried")), x)[1]


@pytest.mark.parametrize("through", [mapped, looped, lambda fn, x: jax.eval_shape(fn, x), lambda fn, x: jax.jit(fn)(x)])
def test_it_comes_home_through(through: Any) -> None:
    fn = lambda x: split_static({"y": 2 * x, "act": jnp.tanh, "mode": "train"})  # noqa: E731
    dynamic, rest = through(fn, jnp.ones(3))
    found = rest.join(dynamic)
    assert found["y"].shape == (3,)
    assert (found["act"], found["mode"]) == (jnp.tanh, "train")


def test_arrays_are_not_kept_alive() -> None:
    array = jnp.ones(3) + 1
    seen = weakref.ref(array)
    dynamic, rest = split_static({"x": array, "mode": "train"})
    del array, dynamic
    gc.collect()
    assert seen() is None
    assert repr(rest) == "Rest({'mode': 'train', 'x': *})"


@pytest.mark.parametrize("pickled", [pickle, cloudpickle], ids=lambda module: module.__name__)
@pytest.mark.parametrize(
    "tree", [{"a": ["x", 1, None]}, Layer(jnp.ones(2), double, "x"), Pair(jnp.ones(2), 3), math.nan]
)
def test_it_can_be_pickled(pickled: Any, tree: Any) -> None:
    rest = split_static(tree)[1]
    again = pickled.loads(pickled.dumps(rest))
    assert again == rest
    assert hash(again) == hash(rest)


def test_cloudpickle_takes_functions_of_a_function() -> None:
    local = lambda x: 3 * x  # noqa: E731
    rest = cloudpickle.loads(cloudpickle.dumps(Rest({"f": local})))
    assert rest.value["f"](2) == 6


@given(st.lists(PYTREES, max_size=3))
@settings(deadline=None, max_examples=30)
def test_any_values_pass_through_jit(trees: Any) -> None:
    dynamic, rest = split_static(trees)
    assert same(join_static(*jax.jit(lambda *parts: parts)(dynamic, rest)), trees)


def test_a_constant_out_of_a_checkpoint_is_an_array() -> None:
    constant, _ = jax.checkpoint(lambda x: (np.ones(2, np.float32), x))(1.0)
    arrays, rest = flatten_static({"x": constant, "mode": "train"})
    assert is_array(constant)
    assert len(arrays) == 1
    assert static_key({"x": constant}) == static_key({"x": jax.checkpoint(lambda: np.ones(2, np.float32))()})
    assert rest.unflatten(["other"]) == {"x": "other", "mode": "train"}

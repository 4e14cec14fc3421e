"""A number is a number, whatever its class: each kind does in all styles what the Python number it is equal to does."""

from __future__ import annotations

import enum
import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore import pytrees
from liftcore.serialization import from_bytes, to_bytes

X = jnp.ones(2)


class Celsius(float):
    pass


class Count(int):
    pass


class Level(enum.IntEnum):
    HIGH = 3


def returned(value: Any) -> Any:
    """What `jax.checkpoint` returns for a constant: in some releases of JAX, of a private class."""
    return jax.checkpoint(lambda x: value)(1.0)


KINDS: dict[str, tuple[Any, Any]] = {
    "float of checkpoint": (returned(2.0), 2.0),
    "int of checkpoint": (returned(3), 3),
    "complex of checkpoint": (returned(1j), 1j),
    "scalar of checkpoint": (returned(np.float32(2)), 2.0),
    "array of checkpoint": (returned(np.array(2, np.float32)), 2.0),
    "subclass of float": (Celsius(2), 2.0),
    "subclass of int": (Count(3), 3),
    "IntEnum": (Level.HIGH, 3),
    "np.float32": (np.float32(2), 2.0),
    "np.float64": (np.float64(2), 2.0),
    "np.int64": (np.int64(3), 3),
    "np.bool": (np.bool_(True), True),
    "array of NumPy": (np.array(2.0), 2.0),
    "array of JAX": (jnp.asarray(2.0), 2.0),
}
"""Numbers, each with the Python number that it is equal to."""


class Scale(nn.Module):
    start: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x * self.param("w", lambda key: self.start)


class Kept(eqx.Module):
    w: Any


class Held(pax.Module):
    def __init__(self, w: Any) -> None:
        self.register_parameter("w", w)


def holding(w: Any) -> Any:
    return nnx.Dict(w=nnx.Param(w))


def seen(tree: Any) -> Any:
    """The values of a result, with their dtypes."""
    return jax.tree.map(lambda leaf: (jnp.result_type(leaf).name, np.asarray(leaf).tolist()), tree)


def scaled(scope: Any, x: Any, value: Any) -> Any:
    return x * scope.param("w", lambda key: value)


def core(lift: Callable[..., Any], *args: Any) -> Callable[[Any], Any]:
    """The results of `init` and `apply` of a body under a lift, whose parameter is the number."""

    def use(value: Any) -> Any:
        lifted = lift(lambda scope, *args: scaled(scope, args[-1], value))
        return liftcore.init(lifted)(jax.random.key(0), *args)

    return use


def given(lift: Callable[..., Any]) -> Callable[[Any], Any]:
    """The result of a lifted body of the core that is given the number as a variable."""

    def use(value: Any) -> Any:
        model = lift(lambda scope: abs(scope.get_variable("params", "w")) * 1.5)
        return liftcore.apply(model)({"params": {"w": value}})

    return use


def carried(value: Any) -> Any:
    def body(scope: Any, i: Any, carry: Any) -> Any:
        scope.put_variable("state", "w", scope.get_variable("state", "w") + 1)
        return carry

    looped = liftcore.fori_loop(body, variable_carry="state")
    return liftcore.apply(lambda s: looped(s, 0, 2, 0), mutable=True)({"state": {"w": value}})[1]


def object_after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The value in an object after it was changed."""

    def use(value: Any) -> Any:
        held = holding(value)
        changed = change(held)
        return (held if changed is None else changed).w.get_value()

    return use


def add_one(held: Any, *_: Any) -> None:
    held.w.set_value(held.w.get_value() + 1)


def add_one_and_return(_: Any, held: Any) -> Any:
    add_one(held)
    return held


def trained(held: Any) -> None:
    optimizer = nnx.Optimizer(held, optax.sgd(0.5), wrt=nnx.Param)
    optimizer.update(held, nnx.grad(lambda held: abs(held.w.get_value()) ** 2.0)(held))


def made_under_vmap(value: Any) -> Any:
    held = holding(X)
    nnx.vmap(lambda held: setattr(held, "new", nnx.Param(value)))(held)
    return held.new.get_value()


def serialised(value: Any) -> Any:
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, Kept(value))
    file.seek(0)
    return eqx.tree_deserialise_leaves(file, Kept(value)).w


USES: dict[str, Callable[[Any], Any]] = {
    "core: remat": core(liftcore.remat, X),
    "core: vmap": core(lambda fn: liftcore.vmap(fn, variable_axes={"params": 0}, split_rngs={"params": True}), X),
    "core: scan": core(lambda fn: liftcore.scan(lambda s, c, x: (c, fn(s, x)), variable_broadcast="params"), 0, X),
    "core: while_loop and fori_loop": carried,
    "core: cond": given(lambda fn: lambda scope: liftcore.cond(fn, fn)(scope, True)),
    "core: grad": given(lambda fn: liftcore.grad(fn, allow_int=True)),
    "core: jit": given(liftcore.jit),
    "core: a predicate": lambda value: liftcore.cond(lambda s: 1, lambda s: 2)({}, abs(value)),
    "core: bytes": lambda value: from_bytes({"w": value}, to_bytes({"w": value})),
    "linen: vmap": lambda value: nn.vmap(Scale, variable_axes={"params": 0}, split_rngs={"params": True})(
        value
    ).init_with_output(jax.random.key(0), X),
    "linen: an argument of jit": lambda value: nn.jit(Scale)(1.0).init_with_output(jax.random.key(0), value),
    "objects: jit": object_after(lambda held: nnx.jit(add_one)(held)),
    "objects: remat": object_after(lambda held: nnx.remat(add_one)(held)),
    "objects: scan": object_after(lambda held: nnx.scan(add_one, in_axes=(nnx.Carry, 0), out_axes=None)(held, X)),
    "objects: fori_loop": object_after(lambda held: nnx.fori_loop(0, 2, add_one_and_return, held)),
    "objects: cond": object_after(lambda held: nnx.cond(True, add_one, lambda held: None, held)),
    "objects: merge": object_after(lambda held: nnx.merge(*nnx.split(held))),
    "objects: Optimizer": object_after(trained),
    "objects: a new variable under vmap": made_under_vmap,
    "objects: grad": lambda value: nnx.to_pure_dict(
        nnx.grad(lambda held: abs(held.w.get_value()) ** 2.0)(holding(value))
    ),
    "objects: state": lambda value: len(jax.tree.leaves(nnx.state(holding(value)))),
    "objects: an attribute that is data": lambda value: len(jax.tree.leaves(nnx.state(nnx.Dict(w=nnx.data(value))))),
    "pytrees: filter_jit": lambda value: eqx.filter_jit(lambda kept: kept.w * 1.5)(Kept(value)),
    "pytrees: filter_vmap": lambda value: eqx.filter_vmap(lambda kept, x: kept.w * x, in_axes=(None, 0))(
        Kept(value), X
    ),
    "pytrees: is_array_like": lambda value: [
        fn(value) for fn in (eqx.is_array_like, eqx.is_inexact_array_like, pytrees.is_array_like)
    ],
    "pytrees: tree_deserialise_leaves": serialised,
    "kinds: jit": lambda value: jax.jit(lambda held: held.w * 1.5)(Held(value)),
    "kinds: value_and_grad": lambda value: jax.tree.leaves(
        pax.value_and_grad(lambda held: abs(held.w) * 1.5)(Held(value))
    ),
}


def outcome(use: str, value: Any) -> Any:
    try:
        return seen(USES[use](value))
    except (TypeError, ValueError) as error:  # some uses need a real or inexact number
        return type(error)


@functools.cache
def of_python(use: str, kind: type) -> Any:
    return outcome(use, {float: 2.0, int: 3, complex: 1j, bool: True}[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_every_kind_of_number_does_what_the_python_number_does(use: str, kind: str) -> None:
    value, like = KINDS[kind]
    assert outcome(use, value) == of_python(use, type(like))


@pytest.mark.parametrize("kind", [kind for kind, (value, _) in KINDS.items() if type(value).__module__ != "numpy"])
def test_numbers_of_one_kind_share_a_trace(kind: str) -> None:
    value, _ = KINDS[kind]
    traced: list[int] = []
    jitted = nnx.jit(lambda held: traced.append(1) or held.w.get_value() * 1)
    for one in (value, jax.tree.map(lambda one: one, value)):
        jitted(holding(one))
    assert len(traced) == 1


TEXTS = np.array(["a", "b"])


def test_an_array_of_texts_is_static_also_after_one_of_numbers() -> None:
    held = holding(np.ones(2))
    nnx.jit(add_one)(held)
    assert nnx.jit(lambda held: held.w.get_value().tolist() == ["a", "b"])(holding(TEXTS))


LEAVES = {
    "an array": (X, (True, False, True, True)),
    "an array of NumPy": (np.ones(2), (True, False, True, True)),
    "a key": (jax.random.key(0), (True, False, True, True)),
    "a scalar of NumPy": (np.float64(1), (True, False, True, True)),
    "a number": (1, (False, True, True, False)),
    "a number of checkpoint": (returned(2.0), (False, True, True, False)),
    "an array of checkpoint": (returned(np.ones(2)), (True, False, True, True)),
    "an enumeration of ints": (Level.HIGH, (False, True, True, False)),
    "the type of an array": (jax.ShapeDtypeStruct((2,), "float32"), (False, False, False, True)),
    "texts": (TEXTS, (False, False, False, False)),
    "a text of NumPy": (np.str_("a"), (False, False, False, False)),
    "a date": (np.datetime64("2020-01-01"), (False, False, False, False)),
    "None": (None, (False, False, False, False)),
    "a class": (float, (False, False, False, False)),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_what_a_leaf_is(leaf: str) -> None:
    value, answers = LEAVES[leaf]
    asked = pytrees.is_array, pytrees.is_number, pytrees.is_array_like, pytrees.is_array_or_struct
    assert tuple(one(value) for one in asked) == answers

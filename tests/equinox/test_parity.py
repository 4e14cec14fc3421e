"""The filtered transformations against Equinox: values, tree structures, positions of None, kinds of errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like
from tests.equinox.found_cases import FOUND
from tests.equinox.rule_cases import RULES

oracle = pytest.importorskip("equinox")

X = jnp.arange(3.0)
MODEL = {"w": jnp.arange(1.0, 4.0), "act": jnp.tanh, "steps": 5, "rate": 0.5, "ids": jnp.arange(3)}
TREE = {"a": jnp.ones(2), "b": [1.0, "text"], "c": None}


def call(model: Any, x: Any) -> Any:
    return {"y": model["act"](model["w"] * x) * model["rate"], "name": "net", "steps": model["steps"]}


def loss(model: Any, x: Any) -> Any:
    return jnp.sum(call(model, x)["y"])


def with_aux(model: Any, x: Any) -> Any:
    return loss(model, x), {"name": "aux", "x": x}


def pulled(eqx: Any, **options: Any) -> Any:
    result, pullback, *aux = eqx.filter_vjp(call if not options else with_aux, MODEL, X, **options)
    cotangent = jnp.float32(1) if options else {"y": X, "name": None, "steps": None}
    return result, pullback(cotangent), aux


CASES: dict[str, Callable[[Any], Any]] = {
    "jit": lambda eqx: eqx.filter_jit(call)(MODEL, X),
    "jit, decorator": lambda eqx: eqx.filter_jit(donate="none")(call)(MODEL, x=X),
    "jit, NumPy": lambda eqx: eqx.filter_jit(lambda x, y: (x + 1, y))(np.ones(2), 1.0),
    "jit, lowered": lambda eqx: eqx.filter_jit(call).lower(MODEL, X).compile()(MODEL, X),
    "jit of vmap": lambda eqx: eqx.filter_jit(eqx.filter_vmap(call))(
        MODEL | {"w": jnp.ones((3, 2)), "ids": 0}, jnp.ones((3, 2))
    ),
    "vmap": lambda eqx: eqx.filter_vmap(call)(MODEL, X),
    "vmap, static result": lambda eqx: eqx.filter_vmap(lambda x: (x, 1.0, "s"))(X),
    "vmap, axes": lambda eqx: eqx.filter_vmap(lambda x: x, in_axes=eqx.if_array(1), out_axes=1)(jnp.ones((2, 3))),
    "vmap, last axis": lambda eqx: eqx.filter_vmap(lambda x: x, in_axes=-1, out_axes=-1)(jnp.ones((2, 3))),
    "vmap, prefix": lambda eqx: eqx.filter_vmap(
        call, in_axes=({"w": 0, "act": None, "steps": None, "rate": None, "ids": None}, None)
    )(MODEL, X),
    "vmap, shared result": lambda eqx: eqx.filter_vmap(lambda x: (jnp.ones(2), x), out_axes=(None, 0))(X),
    "vmap, result that is not shared": lambda eqx: eqx.filter_vmap(lambda x: x, out_axes=None)(X),
    "vmap, size": lambda eqx: eqx.filter_vmap(lambda x: jnp.float32(x), axis_size=3)(1.0),
    "vmap, axis of a number": lambda eqx: eqx.filter_vmap(lambda x: x, in_axes=0)(1.0),
    "vmap, no prefix": lambda eqx: eqx.filter_vmap(call, in_axes=(0, 0, 0))(MODEL, X),
    "vmap, collective": lambda eqx: eqx.filter_vmap(lambda x: x - jax.lax.pmean(x, "i"), axis_name="i")(X),
    "pmap": lambda eqx: eqx.filter_pmap(call)(MODEL | {"w": jnp.ones((1, 2)), "ids": 0}, jnp.ones((1, 2))),
    "grad": lambda eqx: eqx.filter_grad(loss)(MODEL, X),
    "grad of nothing": lambda eqx: eqx.filter_grad(lambda p: 1.0 * p["a"])({"a": 1.0}),
    "grad, auxiliary": lambda eqx: eqx.filter_grad(with_aux, has_aux=True)(MODEL, X),
    "grad, by name": lambda eqx: eqx.filter_grad(lambda p, *, k: p * k)(jnp.float32(1), k=jnp.float32(3)),
    "grad, no scalar": lambda eqx: eqx.filter_grad(lambda p: p)(X),
    "value and grad": lambda eqx: eqx.filter_value_and_grad(loss)(MODEL, X),
    "value and grad, auxiliary": lambda eqx: eqx.filter_value_and_grad(has_aux=True)(with_aux)(MODEL, X),
    "grad of grad": lambda eqx: eqx.filter_grad(
        lambda m: loss(eqx.filter_grad(loss)(m, X) | {"act": jnp.sin, "rate": 2.0, "steps": 1}, X)
    )(MODEL),
    "jacfwd": lambda eqx: eqx.filter_jacfwd(lambda m: {"o": m["w"] ** 2})(MODEL),
    "jacrev": lambda eqx: eqx.filter_jacrev(lambda m: {"o": m["w"] ** 2})(MODEL),
    "jacrev, auxiliary": lambda eqx: eqx.filter_jacrev(lambda x: (x**2, "aux"), has_aux=True)(X),
    "hessian": lambda eqx: eqx.filter_hessian(lambda m: (m["w"] ** 3).sum())(MODEL),
    "jvp": lambda eqx: eqx.filter_jvp(lambda x, y: (x * y, "s"), (X, 2.0), (X, None)),
    "jvp, moving number": lambda eqx: eqx.filter_jvp(lambda x, y: x * y, (X, 2.0), (X, 1.0)),
    "jvp, what does not move": lambda eqx: eqx.filter_jvp(lambda x, y: (x, y, 1.0, X), (X, X), (X, None)),
    "jvp, by name": lambda eqx: eqx.filter_jvp(lambda x, k: x * k, (X,), (X,), k=2.0),
    "jvp, a text that moves": lambda eqx: eqx.filter_jvp(lambda x: x, ("s",), (1.0,)),
    "vjp": pulled,
    "vjp, auxiliary": lambda eqx: pulled(eqx, has_aux=True),
    "checkpoint": lambda eqx: eqx.filter_checkpoint(call)(MODEL, X),
    "checkpoint, grad": lambda eqx: eqx.filter_grad(eqx.filter_checkpoint(loss))(MODEL, X),
    "eval_shape": lambda eqx: eqx.filter_eval_shape(call, MODEL, jax.ShapeDtypeStruct((3,), jnp.float32)),
    "make_jaxpr": lambda eqx: eqx.filter_make_jaxpr(call)(MODEL, X)[1:],
    "filter": lambda eqx: eqx.filter(MODEL, eqx.is_inexact_array),
    "filter, prefix": lambda eqx: eqx.filter(TREE, {"a": True, "b": eqx.is_array_like, "c": False}, inverse=True),
    "filter, replace": lambda eqx: eqx.filter(TREE, False, replace=0),
    "filter, no bool": lambda eqx: eqx.filter(TREE, 3),
    "filter, no prefix": lambda eqx: eqx.filter(TREE, {"a": True}),
    "partition": lambda eqx: eqx.partition(TREE, eqx.is_array, replace=0),
    "combine": lambda eqx: eqx.combine(*eqx.partition(TREE, eqx.is_array)),
    "combine, both": lambda eqx: eqx.combine({"a": 1, "b": None}, {"a": 2, "b": None}),
    "apply_updates": lambda eqx: eqx.apply_updates(TREE, {"a": jnp.ones(2), "b": [None, None], "c": None}),
    "tree_at": lambda eqx: eqx.tree_at(lambda t: t["a"], TREE, 7),
    "tree_at, None": lambda eqx: eqx.tree_at(lambda t: t["c"], TREE, 7),
    "tree_at, function": lambda eqx: eqx.tree_at(
        lambda t: (t["a"], t["b"][0]), TREE, replace_fn=lambda leaf: (leaf, 2)
    ),
    "tree_at, node": lambda eqx: eqx.tree_at(lambda t: t["b"], TREE, "new"),
    "tree_at, empty nodes": lambda eqx: eqx.tree_at(lambda t: t["e"], {"e": (), "f": ()}, 5),
    "tree_at, too few": lambda eqx: eqx.tree_at(lambda t: (t["a"], t["b"]), TREE, (1,)),
    "tree_at, nested": lambda eqx: eqx.tree_at(lambda t: (t["b"], t["b"][0]), TREE, (1, 2)),
    "tree_at, twice": lambda eqx: eqx.tree_at(lambda t: (t["a"], t["a"]), TREE, replace_fn=lambda a: (a, "new")),
    "tree_at, nothing": lambda eqx: eqx.tree_at(lambda t: t["a"], TREE),
    "is_array": lambda eqx: [
        [is_one(leaf) for leaf in LEAVES]
        for is_one in (eqx.is_array, eqx.is_array_like, eqx.is_inexact_array, eqx.is_inexact_array_like)
    ],
}

CASES |= RULES | FOUND

LEAVES = [
    jnp.ones(2),
    np.ones(2),
    np.float32(1),
    1,
    1.0,
    True,
    1j,
    "s",
    None,
    jnp.int32(1),
    jax.random.key(0),
    object(),
]

PAIRS: list[tuple[Any, ...]] = [
    (TREE, TREE),
    (1, 1.0),
    (X, X + 1e-6),
    (X, np.arange(3, dtype=np.float32)),
    (X, jnp.ones(3)),
    (True, 1),
    (X,),
    (X, X.astype(jnp.float16)),
    (X, 1.0),
    (np.ones(2), np.ones(2)),
    (np.float32(1), jnp.float32(1)),
    ("a", "a"),
    (X * jnp.nan, X * jnp.nan),
    (None, None),
    (1, 1, 2),
    ({"a": X}, {"b": X}),
    (np.array([1, None], object), np.array([1, None], object)),
    (np.array(["a", "b"]), np.array(["a", "c"])),
    (np.array([1, None], object), "a"),
]


def outcome(case: Callable[[Any], Any], eqx: Any) -> Any:
    """What a case gives, as a structure and leaves; or its error."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="equinox")
            warnings.filterwarnings("ignore", "As of Equinox")  # the older forms, which it still runs
            leaves, structure = jax.tree.flatten(case(eqx), is_leaf=lambda leaf: leaf is None)
    except Exception as error:
        return error
    return structure, leaves


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_equinox_gives(name: str) -> None:
    found, wanted = (outcome(CASES[name], eqx) for eqx in (equinox_like, oracle))
    if isinstance(wanted, Exception):
        kind = type(wanted) if type(wanted) in (ValueError, TypeError) else Exception
        assert isinstance(found, kind), found
        return
    assert not isinstance(found, Exception), found
    assert found[0] == wanted[0]
    for one, other in zip(found[1], wanted[1], strict=True):
        assert equinox_like.is_array(one) == equinox_like.is_array(other)
        if equinox_like.is_array(one):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(one, other, rtol=1e-6)
        else:
            assert (type(one), one) == (type(other), other)


@pytest.mark.parametrize("options", [{}, {"typematch": True}, {"rtol": 1e-3}], ids=str)
@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_trees_are_equal_where_equinox_says_so(number: int, options: dict[str, Any]) -> None:
    pytrees = PAIRS[number]
    found = equinox_like.tree_equal(*pytrees, **options)
    assert isinstance(found, bool)
    assert found == bool(oracle.tree_equal(*pytrees, **options))

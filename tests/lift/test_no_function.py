"""What is given where a function belongs: as soon as it can be known, an error says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError

X = jnp.ones(3)


def layer(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", jax.nn.initializers.ones, ())


def above(scope: Scope, x: Any) -> Any:
    return x.sum() > 9


AT_ONCE: dict[str, Callable[[Any], Any]] = {
    name: getattr(liftcore, name)
    for name in (
        "apply", "associative_scan", "checkify", "custom_jvp", "custom_vjp", "custom_vmap", "eval_shape",
        "fold_rngs", "fori_loop", "grad", "hessian", "init", "jacfwd", "jacrev", "jit", "jvp", "lazy_init", "linearize",
        "named_call", "remat", "scan", "value_and_grad", "vjp", "vmap",
    )
} | {
    "add_metadata_axis": lambda fn: liftcore.add_metadata_axis(fn),
    "child": lambda fn: liftcore.bind({}).child(fn),
    "cond": lambda fn: liftcore.cond(fn, layer),
    "map_variables, fn": lambda fn: liftcore.map_variables(fn, "params"),
    "map_variables, map_in": lambda fn: liftcore.map_variables(layer, "params", fn),
    "map_variables, map_out": lambda fn: liftcore.map_variables(layer, "params", map_out=fn),
    "pack": lambda fn: liftcore.pack(fn, [True], [True], [True]),
    "transformation": lambda fn: liftcore.transformation(lambda body, *groups: body(*groups), [], [], [])(fn),
    "filtered": lambda fn: liftcore.filtered(liftcore.jit, fn),
    "map": lambda fn: liftcore.map(fn),
    "pmap": lambda fn: liftcore.pmap(fn, "i"),
    "swap_collection": lambda fn: liftcore.swap_collection(fn, "a", "b"),
    "explain": lambda fn: liftcore.explain(fn),
    "purify": lambda fn: liftcore.purify(fn, liftcore.bind({}), X),
    "remat_scan": lambda fn: liftcore.remat_scan(fn, (2,)),
    "shard_map": lambda fn: liftcore.shard_map(fn, mesh=None, in_specs=None, out_specs=None),
    "switch": lambda fn: liftcore.switch([fn]),
    "while_loop": lambda fn: liftcore.while_loop(above, fn),
    "with_rngs": lambda fn: liftcore.with_rngs(fn, {"params": jax.random.key(0)}),
    "custom_jvp, defjvp": lambda fn: liftcore.custom_jvp(layer).defjvp(fn),
    "custom_vjp, fwd": lambda fn: liftcore.custom_vjp(layer).defvjp(fn, layer),
    "custom_vjp, bwd": lambda fn: liftcore.custom_vjp(layer).defvjp(layer, fn),
    "custom_vmap, def_vmap": lambda fn: liftcore.custom_vmap(layer).def_vmap(fn),
}  # fmt: skip


def test_every_lift_is_asked() -> None:
    found = {name: getattr(liftcore, name) for name in liftcore.__all__}
    lifts = {name for name, value in found.items() if getattr(value, "__module__", "").startswith("liftcore.lift.")}
    assert lifts - {"checkpoint"} <= {use.partition(",")[0] for use in AT_ONCE}  # that is `remat`


@pytest.mark.parametrize("use", AT_ONCE)
def test_it_is_told_where_it_is_given(use: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"expected a function, given a float32\[3\] array\. Give the function"):
        AT_ONCE[use](X)  # as who has called the function


LATER: dict[str, Callable[[Any], Any]] = {
    "cond": lambda fn: lambda scope, x: liftcore.cond(layer, fn)(scope, True, x),
    "switch": lambda fn: lambda scope, x: liftcore.switch([layer, fn])(scope, 0, x),
    "while_loop": lambda fn: lambda scope, x: liftcore.while_loop(fn, layer)(scope, x),
}


@pytest.mark.parametrize("use", LATER)
def test_a_second_function_is_told_with_the_path(use: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"/inner: expected a function, given 3\. Give the function itself"):
        liftcore.init(lambda scope, x: scope.child(LATER[use](3), "inner")(x))(jax.random.key(0), X)


def test_switch_takes_a_list() -> None:
    with pytest.raises(LiftArgumentError, match=r"switch: expected at least one function, given the function layer\."):
        liftcore.switch(layer)  # type: ignore[arg-type]

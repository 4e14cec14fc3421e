"""What says which branch runs, or whether a loop goes on, is one number; what a loop carries keeps its sharding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore.errors import CarryTypeError, LiftArgumentError
from tests.machine import make_mesh

X = jnp.array([0.1, 0.2, 0.3])
JITTED = pytest.mark.parametrize("jitted", [False, True])


def same(scope: Any, x: Any) -> Any:
    return x


def run(model: Any, *args: Any, jitted: bool = False, mutable: Any = False) -> Any:
    apply = liftcore.apply(model, mutable=mutable)
    return (jax.jit(apply) if jitted else apply)({}, *args)


@JITTED
@pytest.mark.parametrize("pred", [X > 0, np.ones((1,), bool), jnp.ones((2, 2))], ids=["bools", "one element", "matrix"])
def test_a_predicate_is_one_number(pred: Any, jitted: bool) -> None:
    with pytest.raises(LiftArgumentError, match=r"cond\(same\) at /: expected one bool .*`pred.any\(\)`.*`jnp.where`"):
        run(liftcore.cond(same, same), pred, X, jitted=jitted)


@pytest.mark.parametrize("pred", [None, "yes", [True], object()])
def test_a_predicate_is_no_other_value(pred: Any) -> None:
    with pytest.raises(LiftArgumentError, match="expected one bool as its predicate, given"):
        run(liftcore.cond(same, same), pred, X)


@pytest.mark.parametrize("pred", [True, 1, 0.5, np.bool_(True), np.float32(2), jnp.int8(3)])
def test_a_predicate_may_be_any_number(pred: Any) -> None:
    assert run(liftcore.cond(same, lambda scope, x: -x), pred, X)[0] > 0


@JITTED
@pytest.mark.parametrize("index", [jnp.array([0, 1]), 1.0, True, jnp.float32(1), np.bool_(True)], ids=str)
def test_an_index_is_one_integer(index: Any, jitted: bool) -> None:
    with pytest.raises(LiftArgumentError, match=r"switch\(same\) at /: expected one integer .*`index.astype\(int\)`"):
        run(liftcore.switch([same, same]), index, X, jitted=jitted)


@JITTED
@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize(
    "condition",
    [lambda x: x > 0, lambda x: x[0], lambda x: None, lambda x: (x[0] < 1, x)],
    ids=["many", "float", "None", "pair"],
)
def test_a_condition_is_one_bool(condition: Any, mutable: bool, jitted: bool) -> None:
    loop = liftcore.while_loop(lambda scope, x: condition(x), same)
    with pytest.raises(LiftArgumentError, match=r"while_loop\(same\) at /: expected its condition to return one bool"):
        run(loop, X, jitted=jitted, mutable=mutable)


# -- carries that differ in sharding only ------------------------------------------------------------------------------

LOOPS: dict[str, Any] = {
    "scan": lambda body: lambda s, x: liftcore.scan(lambda s, c, _: (body(c), None), length=2)(s, x, None)[0],
    "fori_loop": lambda body: lambda s, x: liftcore.fori_loop(lambda s, i, c: body(c))(s, 0, 2, x),
    "while_loop": lambda body: lambda s, x: liftcore.while_loop(lambda s, c: c.sum() < 1, lambda s, c: body(c))(s, x),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("mutable", [False, True])
def test_a_carry_that_comes_back_with_another_sharding_says_which(name: str, mutable: bool) -> None:
    mesh = make_mesh((2,), "d", kind=AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, P("d", None)))
        model = LOOPS[name](lambda c: jax.sharding.reshard(c, P(None, None)))
        with pytest.raises(CarryTypeError, match=r"float32\[4@d,2\] in, float32\[4,2\] out") as caught:
            run(model, x, mutable=mutable)
        assert "`jax.sharding.reshard(carry, P('d', None))`" in caught.value.fix
        kept = run(LOOPS[name](lambda c: 2 * c), x, mutable=mutable)
        assert jax.tree.leaves(kept)[0].sharding.spec == P("d", None)

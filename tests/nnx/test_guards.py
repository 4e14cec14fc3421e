"""A function that brings an object along is refused where compiled code would keep old values, and right elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import liftcore
import linen_like as nn
import nnx_like as nnx
from liftcore.errors import LiftArgumentError

MESH = Mesh(np.array(jax.devices()[:1]), ("data",))
X = jnp.array(2.0)


class Net(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(()))

    def predict(self, x: Any) -> Any:
        return self.w.get_value() * x

    def __call__(self, x: Any) -> Any:
        return self.predict(x)


class Holder:
    """A plain object that holds a module."""

    def __init__(self, net: Net) -> None:
        self.net, self.rate = net, 1.0

    def __call__(self, x: Any) -> Any:
        return self.helped(x)

    def helped(self, x: Any) -> Any:
        return (lambda: self.inner(x))()

    @property
    def inner(self) -> Any:
        return self.net.predict

    def step(self, net: Any, x: Any) -> Any:
        """Does not use the module that it holds."""
        return net.net.predict(x) * self.rate if isinstance(net, Holder) else net.predict(x) * self.rate


class Slotted:
    __slots__ = ("f",)

    def __init__(self, f: Any) -> None:
        self.f = f

    def __call__(self, x: Any) -> Any:
        return self.f(x)


def use(net: Net, x: Any) -> Any:
    return net.predict(x)


def wrapped(f: Any) -> Any:
    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return f(*args)

    return call


METHODS: dict[str, Callable[[Net], Any]] = {
    "bound method": lambda net: net.predict,
    "module": lambda net: net,
    "partial": lambda net: partial(net.predict),
    "partial of partial": lambda net: partial(partial(net.predict)),
    "partial of a module": lambda net: partial(net),
    "jax.tree_util.Partial": lambda net: jax.tree_util.Partial(net.predict),
    "wraps": lambda net: wrapped(net.predict),
    "wraps of partial": lambda net: wrapped(wrapped(partial(net.predict))),
    "split_rngs": lambda net: nnx.split_rngs(splits=2)(net.predict),
}
BRINGING: dict[str, Callable[[Net], Any]] = {
    "partial with a module": lambda net: partial(use, net),
    "partial by name": lambda net: partial(lambda x, net: net.predict(x), net=net),
    "partial with a list of modules": lambda net: partial(lambda nets, x: nets[0].predict(x), [net]),
    "partial with a variable": lambda net: partial(lambda w, x: w.get_value() * x, net.w),
    "Partial with a module": lambda net: jax.tree_util.Partial(use, net),
    "wraps of partial with a module": lambda net: wrapped(partial(use, net)),
    "object that can be called": Holder,
    "method of an object": lambda net: Holder(net).helped,
    "partial with an object": lambda net: partial(Holder(net)),
    "partial with a module and an array": lambda net: partial(lambda net, rate, x: net.predict(x), net, jnp.ones(2)),
    "partial by name, with an array": lambda net: partial(lambda x, net, a: net.predict(x), net=net, a=jnp.ones(2)),
    "partial with an object in a list": lambda net: partial(lambda fs, x: fs[0](x), [Holder(net)]),
    "object with slots": lambda net: Slotted(net),
    "object that holds a bound method": lambda net: Slotted(net.predict),
    "object that holds an object": lambda net: Slotted(Slotted(Holder(net).helped)),
}


def by_vjp_rule(f: Any) -> Any:
    rule = nnx.custom_vjp(f)
    rule.defvjp(lambda x: (f(x), ()), lambda residuals, cotangent: (cotangent,))
    return rule


def by_jvp_rule(f: Any) -> Any:
    rule = nnx.custom_jvp(f)
    rule.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return rule


def by_vmap_rule(f: Any) -> Any:
    rule = nnx.custom_vmap(f)
    rule.def_vmap(lambda size, batched, x: (f(x), False))
    return rule


LIFTS: dict[str, Callable[[Any], Any]] = {
    "remat": nnx.remat,
    "named_call": nnx.named_call,
    "checkify": lambda f: lambda x: nnx.checkify(f)(x)[1],
    "vmap": lambda f: nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
    "shard_map": lambda f: nnx.shard_map(f, mesh=MESH, in_specs=P(), out_specs=P()),
    "scan": lambda f: nnx.scan(f, in_axes=nnx.Carry, out_axes=nnx.Carry, length=1),
    "batched_map": lambda f: lambda x: nnx.batched_map(f)(x[None])[0],
    "cond": lambda f: lambda x: nnx.cond(True, f, f, x),
    "switch": lambda f: lambda x: nnx.switch(1, [f, f], x),
    "while_loop": lambda f: (
        lambda x: nnx.while_loop(lambda i_x: i_x[0] < 1, lambda i_x: (i_x[0] + 1, f(i_x[1])), (0, x))[1]
    ),
    "value_and_grad": lambda f: lambda x: nnx.value_and_grad(f)(x)[0],
    "vjp": lambda f: lambda x: nnx.vjp(f, x)[0],
    "jvp": lambda f: lambda x: nnx.jvp(f, (x,), (x,))[0],
    "linearize": lambda f: lambda x: nnx.linearize(f, x)[0],
    "jacrev": lambda f: lambda x: nnx.jacrev(f)(x) * x,
    "jacfwd": lambda f: lambda x: nnx.jacfwd(f)(x) * x,
    "custom_vjp": by_vjp_rule,
    "custom_jvp": by_jvp_rule,
    "custom_vmap": by_vmap_rule,
}
NO_VALUES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: nnx.grad(f),
    "hessian": lambda f: nnx.hessian(f),
    "eval_shape": lambda f: lambda x: nnx.eval_shape(f, x),
    "make_jaxpr": lambda f: nnx.make_jaxpr(f),
    "fori_loop": lambda f: lambda x: nnx.fori_loop(0, 1, f, x),
    "while_loop, condition": lambda f: lambda x: nnx.while_loop(f, lambda x: x, x),
    "associative_scan": nnx.associative_scan,
    "remat_scan": lambda f: nnx.remat_scan(f, lengths=(1, 1)),
}
KEEPING: dict[str, Callable[[Any], Any]] = {
    "jit": nnx.jit,
    "pmap": lambda f: nnx.pmap(f, in_axes=None, out_axes=None, axis_size=1),
    "lift": lambda f: nnx.lift(liftcore.jit, f),
}
CLOSED = ("while_loop",)
"""Those that get the function in a closure here."""


@pytest.mark.parametrize("lift", [name for name in LIFTS | NO_VALUES | KEEPING if name not in CLOSED])
def test_a_method_of_an_object_is_refused_in_any_wrapper(lift: str) -> None:
    for form, made in METHODS.items():
        with pytest.raises(
            LiftArgumentError, match=r"a method bound to one Net.*\(Net\.(predict|__call__)\)\(instance"
        ):
            pytest.fail(f"{form}: {(LIFTS | NO_VALUES | KEEPING)[lift](made(Net()))(X)}")


@pytest.mark.parametrize("lift", KEEPING)
def test_what_keeps_compiled_code_refuses_a_function_that_brings_an_object(lift: str) -> None:
    for form, made in BRINGING.items():
        for around in (lambda f: f, nnx.remat):
            with pytest.raises(
                LiftArgumentError, match=r"it holds a (Net|Param) .*Make the (Net|Param) an argument: `"
            ):
                pytest.fail(f"{form}: {KEEPING[lift](around(made(Net())))(X)}")


@pytest.mark.parametrize("form", ["partial with a module", "object that can be called"])
@pytest.mark.parametrize("lift", LIFTS)
def test_other_transformations_see_the_object_as_it_is_now(lift: str, form: str) -> None:
    net = Net()
    lifted = LIFTS[lift](BRINGING[form](net))
    assert float(lifted(X)) == 2
    net.w.set_value(jnp.array(10.0))
    assert float(lifted(X)) == 20


def test_the_lines_in_the_errors_work() -> None:
    net = Net()
    with pytest.raises(LiftArgumentError, match=r"`jit\(use\)\(instance, …\)`"):
        nnx.jit(partial(use, net))
    assert float(nnx.jit(use)(net, X)) == 2
    with pytest.raises(LiftArgumentError, match=r"self\.net.*`jit\(lambda instance, \*args: …\)\(instance, …\)`"):
        nnx.jit(Holder(net))
    with pytest.raises(LiftArgumentError, match=r"`jit\(Net\.predict\)\(instance, …\)`"):
        nnx.jit(partial(net.predict))
    assert float(nnx.jit(Net.predict)(net, X)) == 2


def test_a_method_that_does_not_use_the_object_that_its_owner_holds_is_compiled() -> None:
    net, holder = Net(), Holder(Net())
    step = nnx.jit(holder.step)
    assert float(step(net, X)) == 2
    net.w.set_value(jnp.array(10.0))
    assert float(step(net, X)) == 20
    assert float(nnx.jit(partial(use, x=X))(net)) == 20


def test_a_function_may_bring_arrays_and_functions_along() -> None:
    brought = [jnp.ones(2), nnx.jit(lambda x: 2 * x), nnx.Linear, optax.adam(1e-3), Slotted(jnp.sin), nn.Dense(2)]
    for form in (lambda one: partial(lambda one, x: x, one), lambda one: Slotted([one].index), Slotted):
        for one in brought:
            nnx.jit(form(one))

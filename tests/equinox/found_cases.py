"""Cases that programs written against both packages found: each is a function of a package, this one or Equinox."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

X = jnp.arange(3.0)
SQUARE = jnp.array([[1.0, 2.0], [3.0, 4.0]])


def linear(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        b: Any = None

        def __call__(self, x: Any) -> Any:
            return self.w @ x

        def loss(self, x: Any) -> Any:
            return (self.w * x).sum()

    return Linear


def flattened_while_made(eqx: Any) -> Any:
    class Net(eqx.Module):
        w: Any
        mode: str = eqx.field(static=True)
        norm: Any = None

        def __init__(self) -> None:
            self.w, self.mode = X, "a"
            self.norm = self.compute()
            self.mode = "b"

        @eqx.filter_jit
        def compute(self) -> Any:
            return jnp.sum(self.w**2)

    return eqx.filter_jit(lambda net: (net.norm, net.mode))(Net())


def from_a_mixin(eqx: Any) -> Any:
    class Mixin:
        def loss(self, x: Any) -> Any:
            return (self.w * x).sum()  # type: ignore[attr-defined]

    class Net(Mixin, eqx.Module):
        w: Any

    Net.later = lambda self, x: self.loss(x)
    net = Net(X)
    gradients = [jax.tree.leaves(eqx.filter_grad(lambda fn: fn(X))(fn)) for fn in (net.loss, net.later)]
    return gradients, eqx.filter_jit(net.loss)(X)


def left_to_a_default(eqx: Any) -> Any:
    class Net(eqx.Module):
        w: Any
        rate: float = 0.5

        def __init__(self, w: Any) -> None:
            self.w = w

    return jax.tree.leaves(Net(1.0)), jax.tree.map(lambda leaf: 10 * leaf, Net(1.0)).rate


def converted(eqx: Any) -> Any:
    class Net(eqx.Module):
        w: Any = eqx.field(converter=lambda value: value + 1)

        def __post_init__(self) -> None:
            self.w = self.w * 10

    return Net(1).w


def in_itself(eqx: Any) -> Any:
    class Net(eqx.Module):
        fn: Any

        def __init__(self) -> None:
            self.fn = self.method

        def method(self) -> int:
            return 1

    return Net()


@dataclasses.dataclass(frozen=True)
class Named:
    """A base whose subclass has an attribute that is no field."""

    name: str = "named"


class Scale(Named):
    """One that says itself what it is equal to."""

    def __init__(self, k: float) -> None:
        super().__init__()
        object.__setattr__(self, "k", k)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(vars(self)["k"])

    def __call__(self, x: Any) -> Any:
        return vars(self)["k"] * x


class Config(dict[str, Any]):
    """A dict with an attribute."""

    scale = 1


def static_with_attributes(eqx: Any) -> Any:
    class Net(eqx.Module):
        w: Any
        config: Any = eqx.field(static=True)

    config = Config(a=1)
    config.scale = 5
    return jax.tree.map(lambda leaf: leaf, Net(1, config)).config.scale


def each_scaled(eqx: Any) -> Any:
    run = eqx.filter_jit(lambda fn, x: fn(x))
    return [run(Scale(k), X) for k in (2.0, 3.0)]


def constants_of_a_jaxpr(eqx: Any) -> Any:
    closed, *_ = eqx.filter_make_jaxpr(linear(eqx)(jnp.eye(3)))(X)
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, X)


def deleted(eqx: Any) -> Any:
    x, y = X + 1, X + 2
    eqx.filter_jit(lambda model, y: (model + 1, y + 1), donate="all-except-first")(model=x, y=y)
    return x.is_deleted(), y.is_deleted()


def in_a_list_of_layers(eqx: Any) -> Any:
    layers = [linear(eqx)(X, X), linear(eqx)(X)]
    found = eqx.tree_at(lambda ls: [one.b for one in ls if one.b is not None], layers, replace_fn=jnp.negative)
    return [one.b for one in found]


FOUND: dict[str, Callable[[Any], Any]] = {
    "vmap of a module": lambda eqx: eqx.filter_vmap(linear(eqx)(2 * jnp.eye(2)))(SQUARE),
    "vmap of a module, gradient": lambda eqx: (
        eqx.filter_grad(lambda m, x: eqx.filter_vmap(m)(x).sum())(linear(eqx)(SQUARE), SQUARE).w
    ),
    "vmap of a pullback": lambda eqx: eqx.filter_vmap(eqx.filter_vjp(lambda x: SQUARE @ x, X[:2])[1])(jnp.eye(2)),
    "pmap of a module": lambda eqx: eqx.filter_pmap(linear(eqx)(2 * jnp.eye(2)))(SQUARE[:1]),
    "vmap, names": lambda eqx: eqx.filter_vmap(lambda x, y: x * y, in_axes={"y": None})(X, jnp.float32(2)),
    "vmap, nothing mapped": lambda eqx: eqx.filter_vmap(lambda m, n: (m, n))({"act": None}, 3),
    "vmap, no axes": lambda eqx: eqx.filter_vmap(lambda x: (x, 1), in_axes=None, out_axes=None)(X),
    "vmap, nothing mapped, an array": lambda eqx: eqx.filter_vmap(lambda m: X)(3),
    "vmap, an axis that is none": lambda eqx: eqx.filter_vmap(lambda x: x, in_axes=1.5)(X),
    "module, flattened while it is made": flattened_while_made,
    "module, methods from elsewhere": from_a_mixin,
    "module, left to a default": left_to_a_default,
    "module, converter": converted,
    "module, in itself": in_itself,
    "module, signature": lambda eqx: list(inspect.signature(linear(eqx)).parameters),
    "static, an attribute that is no field": each_scaled,
    "static, a dict with an attribute": static_with_attributes,
    "tree_at, asks for None": in_a_list_of_layers,
    "tree_at, asks for the first": lambda eqx: (
        eqx.tree_at(lambda m: m.w if m.b is None else m.b, linear(eqx)(X), 7).w,
        eqx.tree_at(lambda t: t["w"] if not t["layers"] else t["layers"][0], {"layers": [], "w": 1}, 5),
    ),
    "tree_at, Partial": lambda eqx: eqx.tree_at(lambda p: p.args[0], jax.tree_util.Partial(jnp.add, X), X + 1)(X),
    "make_jaxpr of a module": constants_of_a_jaxpr,
    "partition, None": lambda eqx: eqx.partition({"w": X, "b": None}, {"w": True, "b": None}),
    "filter, is_leaf": lambda eqx: eqx.filter([[1], [2]], [True, False], is_leaf=lambda one: isinstance(one, list)),
    "in a scan of JAX": lambda eqx: jax.lax.scan(eqx.filter_checkpoint(lambda c, x: (c + x, c)), 0.0, X),
    "in a jit of JAX": lambda eqx: jax.jit(eqx.filter_jit(lambda x: x + 1))(X),
    "in a cond of JAX": lambda eqx: jax.lax.cond(True, eqx.filter_jit(jnp.sin), eqx.filter_jit(jnp.cos), 1.0),
    "jit of a partial": lambda eqx: eqx.filter_jit(functools.partial(jnp.multiply, X))(X),
    "jit of a partial of a module": lambda eqx: (
        eqx.filter_grad(lambda m: eqx.filter_jit(functools.partial(m.loss, x=X))())(linear(eqx)(X)).w
    ),
    "jit of a converted closure": lambda eqx: eqx.filter_jit(lambda fn, x: fn(x))(
        eqx.filter_closure_convert(lambda x: X * x, X), X
    ),
    "jit, the first by name": deleted,
    "jit, lowered by name": lambda eqx: eqx.filter_jit(lambda x: x + 1).lower(x=X).compile()(X),
    "jacrev of a number": lambda eqx: eqx.filter_jacrev(lambda x: 3.0)(X),
    "hessian of a number": lambda eqx: eqx.filter_hessian(lambda x: 3.0)(X),
    "jacfwd of a number": lambda eqx: eqx.filter_jacfwd(lambda x: 3.0)(X),
    "jvp, a prefix of tangents": lambda eqx: eqx.filter_jvp(lambda x: x["a"], ({"a": 2.0, "b": 3.0},), (1.0,)),
}

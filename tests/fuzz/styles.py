"""Random models of mixed styles: units of five styles in each other, under lifts, beside plain Python loops.

A unit has a parameter, perhaps a state and a draw, and perhaps a child of any style, which it calls under a lift of its
own style. `in_scope` makes a function of a scope of it; `plainly` means the same without the library's lifts: it reads
the same variables, and loops. Results, gradients, states and draws are compared, in `init` and in `apply`.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.owners import by_dtype, collections_of

__all__ = ["Unit", "attempt", "program", "wrong"]

X = jnp.array([0.5, -1.0, 2.0])
STYLES = ("scope", "linen", "object", "kinds", "pytree")


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of a model.

    Attributes:
        style: its style.
        w: the value that its parameter begins with.
        lift: the lift under which it calls its child.
        has_state: whether it counts what it returns.
        draws: whether it draws from "noise"; only parts of functions of scopes and of Linen-style modules do.
        child: another part, or None.
    """

    style: str
    w: float
    lift: str = "none"
    has_state: bool = False
    draws: bool = False
    child: Unit | None = None


def program(
    draw: random.Random, depth: int = 2, stateless: bool = False, inside: bool = False, branch: bool = False
) -> Unit:
    """Return a random model.

    Args:
        draw: the source of randomness.
        depth: how many levels of children it has.
        stateless: whether no part may have a state.
        inside: whether it is in a part that passes on no streams.
        branch: whether a branch creates it; then its variables cannot be created in a lift that does not hoist.
    """
    style = draw.choice(STYLES)
    stateless = stateless or style == "pytree"  # `Applied` returns changes instead of keeping them
    inside = inside or style not in ("scope", "linen")
    branch = branch and not inside  # bridges create their variables outside of the lift
    lift = draw.choice([name for name in LIFTS[style] if not (branch and name == "own")]) if depth else "none"
    branch = branch or (lift == "cond" and not inside)
    child = program(draw, depth - 1, stateless, inside, branch) if depth else None
    has_state = not stateless and draw.random() < 0.6
    return Unit(style, round(draw.uniform(-1, 1), 2), lift, has_state, not inside and draw.random() < 0.5, child)


# -- with the library --------------------------------------------------------------------------------------------------


@nnx.register_variable_name("state")
class State(nnx.Variable[Any]):
    """The state of an object, in the collection of the other styles."""


def finished(unit: Unit, w: Any, n: Any, y: Any) -> Any:
    """Return what a unit computes from its parameter, its state and what its child returned."""
    return jnp.tanh(y) * w + 0.1 * n


def in_scope(unit: Unit) -> Callable[[liftcore.Scope, Any], Any]:
    """Return the unit as a function of a scope."""
    if unit.style == "scope":
        return lambda scope, x: _of_scope(unit, scope, x, scope)
    if unit.style == "linen":
        return lambda scope, x: Linen(unit, parent=scope)(x)
    if unit.style == "object":
        return lambda scope, x: nnx.bridge.adopt(scope, lambda rngs: Object(unit, rngs))(x)
    if unit.style == "kinds":
        return lambda scope, x: pax.adopt(scope, WithKinds(unit))(x)
    return lambda scope, x: eqx.adopt(scope, lambda key: Pytree(unit))(x)


def _of_scope(unit: Unit, scope: liftcore.Scope, x: Any, owner: Any) -> Any:
    w = scope.param("w", lambda key: jnp.float32(unit.w))
    n = scope.variable("state", "n", lambda: jnp.zeros(())) if unit.has_state else None
    if unit.child is not None:
        child = in_scope(unit.child)
        x = LIFTS[unit.style][unit.lift](lambda inner, x: child(inner.push("child"), x), owner, x)
    if unit.draws:
        x = x + jax.random.normal(scope.make_rng("noise"))
    y = finished(unit, w, 0.0 if n is None else n.value, x)
    if n is not None:
        n.value += y.sum()
    return y


class Linen(nn.Module):
    """A unit as a Linen-style module."""

    unit: Unit

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return _of_scope(self.unit, self.scope, x, self)


class Object(nnx.Module):
    """A unit as an object."""

    def __init__(self, unit: Unit, rngs: nnx.Rngs) -> None:
        self.unit, self.w = unit, nnx.Param(jnp.float32(unit.w))
        if unit.has_state:
            self.n = State(jnp.zeros(()))
        if unit.child is not None:
            child, inside = unit.child, unit.child.style == "object"
            make = functools.partial(Object, child) if inside else functools.partial(_wrapped, child)
            self.child = _elements(make, rngs, unit.lift) if unit.lift in ("vmap", "scan") else make(rngs)

    def __call__(self, x: Any) -> Any:
        if self.unit.child is not None:
            x = LIFTS["object"][self.unit.lift](lambda module, x: module.child(x), self, x)
        y = finished(self.unit, self.w[...], self.n[...] if self.unit.has_state else 0.0, x)
        if self.unit.has_state:
            self.n[...] += y.sum()
        return y


def _wrapped(unit: Unit, rngs: nnx.Rngs) -> Any:
    return nnx.bridge.ToNNX(in_scope(unit), X, rngs=rngs)


def _elements(make: Any, rngs: nnx.Rngs, lift: str) -> Any:
    """Return a part with parameters for two elements; those of a `vmap` have states of their own too."""
    axes = nnx.StateAxes({nnx.Param: 0, (State if lift == "vmap" else nnx.Nothing()): 0, ...: None})
    return nnx.vmap(make, in_axes=None, out_axes=axes, axis_size=2)(rngs)


class WithKinds(pax.Module):
    """A unit as a module with kinds."""

    child: Any
    unit: Unit = eqx.field(static=True)

    def __init__(self, unit: Unit) -> None:
        self.unit, self.child = unit, None
        self.register_parameter("w", jnp.float32(unit.w))
        if unit.has_state:
            self.register_state("n", jnp.zeros(()))
        if unit.child is not None:
            inside = unit.child.style == "kinds"
            made: Any = WithKinds(unit.child) if inside else pax.Layer(in_scope(unit.child), jax.random.key(0), X)
            self.child = _two(made, unit.lift) if unit.lift in ("vmap", "scan") else made

    def __call__(self, x: Any) -> Any:
        if self.unit.child is not None:
            x = LIFTS["kinds"][self.unit.lift](lambda module, x: module.child(x), self, x)
        y = finished(self.unit, self.w, self.n if self.unit.has_state else 0.0, x)
        if self.unit.has_state:
            self.n = self.n + y.sum()
        return y


def _two(module: Any, lift: str) -> Any:
    """Return a module with kinds with parameters, and under a `vmap` with states, for two elements."""
    leaves, structure = jax.tree.flatten(module)
    names = [name if lift != "vmap" else "params" for name in collections_of(module, by_dtype)]
    pairs = zip(leaves, names, strict=True)
    return jax.tree.unflatten(structure, [jnp.stack([one, one]) if name == "params" else one for one, name in pairs])


class Pytree(eqx.Module):
    """A unit as a pytree."""

    w: Any
    child: Any
    unit: Unit = eqx.field(static=True)

    def __init__(self, unit: Unit) -> None:
        self.unit, self.w, self.child = unit, jnp.float32(unit.w), None
        if unit.child is not None:
            inside = unit.child.style == "pytree"
            child, init = unit.child, eqx.Applied.init
            make = (lambda _: Pytree(child)) if inside else lambda _: init(in_scope(child), jax.random.key(0), X)
            self.child = eqx.filter_vmap(make)(jnp.arange(2)) if unit.lift in ("vmap", "scan") else make(0)

    def __call__(self, x: Any) -> Any:
        if self.unit.child is not None:
            x = LIFTS["pytree"][self.unit.lift](lambda module, x: module.child(x), self, x)
        return finished(self.unit, self.w, 0.0, x)


def halved(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A user's own lift, which looks at names: a function sees half of the parameters of its child."""
    names = liftcore.filters.All("params", lambda path, value: "child" in path)

    def transform(body: Any, groups: Any, rngs: Any, *args: Any) -> Any:
        chosen, rest = groups
        result, (chosen, *others) = body((jax.tree.map(lambda leaf: leaf / 2, chosen), rest), rngs, *args)
        return result, (jax.tree.map(lambda leaf: leaf * 2, chosen), *others)

    return liftcore.transformation(transform, [names, True], [names, True], [True], name="halved")(fn)


def mapped(scope: liftcore.Scope) -> dict[str, Any]:
    """Return the options of `vmap` that map the variables of the child."""
    return {"variable_axes": {_own(scope): None, ...: 0}, "in_axes": None, "axis_size": 2, "split_rngs": True}


def stacked(scope: liftcore.Scope) -> dict[str, Any]:
    """Return the options of `scan` that give each iteration parameters of its own."""
    shared = liftcore.filters.All("params", _own(scope))
    return {**SHARE, "variable_broadcast": shared, "variable_axes": {"params": 0}, "split_rngs": True}


def _own(scope: liftcore.Scope) -> Any:
    return lambda path, value: path[1:-1] == scope.path


SHARE: dict[str, Any] = {"variable_broadcast": "params", "variable_carry": "state", "length": 2, "split_rngs": False}


def _loop(fn: Any) -> Any:
    return lambda owner, x, _: (fn(owner, x), None)


def _with_kinds(
    lift: Any, result: Any = lambda y: y, fns: Any = lambda fn: [fn], args: Any = lambda x: (x,), **options: Any
) -> Any:
    def call(fn: Any, module: Any, x: Any) -> Any:
        changed, y = pax.lift(lift, *fns(fn), **options)(module, *args(x))
        module.child = changed.child
        return result(y)

    return call


def _pulled(y: Any, pullback: Any) -> Any:
    return y + pullback(jnp.ones_like(y))[-1]


def _of_objects(fn: Any, module: Any, x: Any) -> Any:
    return nnx.fori_loop(0, 2, lambda _, state: (state[0], fn(*state)), (module, x))[1]


def _of_elements(fn: Any, module: Any, x: Any) -> Any:
    del fn
    axes = nnx.StateAxes({nnx.Param: 0, ...: nnx.Carry})
    return nnx.scan(lambda child, x: child(x), in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, length=2)(module.child, x)


def _lifted_loop(fn: Any, module: Any, x: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        return (carry[0], fn(*carry)), None

    return nnx.lift(liftcore.scan, step, **SHARE)((module, x), None)[0][1]


def _of_leaves(fn: Any, module: Any, x: Any) -> Any:
    del fn
    arrays, rest = eqx.partition(module.child, eqx.is_array)
    return jax.lax.scan(lambda x, arrays: (eqx.combine(arrays, rest)(x), None), x, arrays)[0]


OWN = nnx.StateAxes({nnx.RngState: None, ...: 0})
ROOT = liftcore.bind({})
Call = Callable[[Callable[..., Any], Any, Any], Any]
LIFTS: dict[str, dict[str, Call]] = {
    "scope": {
        "none": lambda fn, scope, x: fn(scope, x),
        "remat": lambda fn, scope, x: liftcore.remat(fn)(scope, x),
        "jit": lambda fn, scope, x: liftcore.jit(fn)(scope, x),
        "vmap": lambda fn, scope, x: liftcore.vmap(fn, **mapped(scope))(scope, x).sum(0),
        "scan": lambda fn, scope, x: liftcore.scan(_loop(fn), **stacked(scope))(scope, x, None)[0],
        "shared": lambda fn, scope, x: liftcore.scan(_loop(fn), **SHARE)(scope, x, None)[0],
        "cond": lambda fn, scope, x: liftcore.cond(fn, fn)(scope, x.sum() > 0, x),
        "vjp": lambda fn, scope, x: _pulled(*liftcore.vjp(fn)(scope, x)),
        "own": lambda fn, scope, x: halved(fn)(scope, x),
    },
    "linen": {
        "none": lambda fn, module, x: fn(module.scope, x),
        "remat": lambda fn, module, x: nn.remat(_of_module(fn))(module, x),
        "jit": lambda fn, module, x: nn.jit(_of_module(fn))(module, x),
        "vmap": lambda fn, module, x: nn.vmap(_of_module(fn), **mapped(module.scope))(module, x).sum(0),
        "scan": lambda fn, module, x: nn.scan(_loop(_of_module(fn)), **stacked(module.scope))(module, x, None)[0],
        "shared": lambda fn, module, x: nn.scan(_loop(_of_module(fn)), **SHARE)(module, x, None)[0],
        "cond": lambda fn, module, x: nn.cond(x.sum() > 0, _of_module(fn), _of_module(fn), module, x),
        "vjp": lambda fn, module, x: _pulled(*nn.vjp(_of_module(fn), module, x)),
        "own": lambda fn, module, x: nn.lift_with(halved, _of_module(fn))(module, x),
    },
    "object": {
        "none": lambda fn, module, x: fn(module, x),
        "remat": lambda fn, module, x: nnx.remat(fn)(module, x),
        "jit": lambda fn, module, x: nnx.jit(fn)(module, x),
        "shared": _of_objects,
        "vmap": lambda fn, module, x: nnx.vmap(lambda child, x: child(x), in_axes=(OWN, None))(module.child, x).sum(0),
        "scan": _of_elements,
        "cond": lambda fn, module, x: nnx.cond(x.sum() > 0, fn, fn, module, x),
        "vjp": lambda fn, module, x: _pulled(*nnx.vjp(fn, module, x)),
        "own": lambda fn, module, x: nnx.lift(halved, fn)(module, x),
        "jit_lifted": lambda fn, module, x: nnx.lift(liftcore.jit, fn)(module, x),
        "shared_lifted": _lifted_loop,
        "vjp_lifted": lambda fn, module, x: _pulled(*nnx.lift(liftcore.vjp, fn)(module, x)),
    },
    "kinds": {
        "none": lambda fn, module, x: fn(module, x),
        "remat": _with_kinds(liftcore.remat),
        "jit": _with_kinds(liftcore.jit),
        "vmap": _with_kinds(liftcore.vmap, lambda y: y.sum(0), **mapped(ROOT)),
        "scan": _with_kinds(
            liftcore.scan, lambda y: y[0], lambda fn: [_loop(fn)], lambda x: (x, None), **stacked(ROOT)
        ),
        "shared": _with_kinds(liftcore.scan, lambda y: y[0], lambda fn: [_loop(fn)], lambda x: (x, None), **SHARE),
        "cond": _with_kinds(liftcore.cond, fns=lambda fn: [fn, fn], args=lambda x: (x.sum() > 0, x)),
        "vjp": _with_kinds(liftcore.vjp, lambda pair: _pulled(*pair)),
        "own": _with_kinds(halved),
    },
    "pytree": {
        "none": lambda fn, module, x: fn(module, x),
        "remat": lambda fn, module, x: eqx.filter_checkpoint(fn)(module, x),
        "jit": lambda fn, module, x: eqx.filter_jit(fn)(module, x),
        "vmap": lambda fn, module, x: eqx.filter_vmap(_called, in_axes=(eqx.if_array(0), None))(module.child, x).sum(0),
        "scan": _of_leaves,
        "shared": lambda fn, module, x: jax.lax.fori_loop(0, 2, lambda _, x: fn(module, x), x),
        "cond": lambda fn, module, x: jax.lax.cond(x.sum() > 0, *[lambda x: fn(module, x)] * 2, x),
        "vjp": lambda fn, module, x: _pulled(*eqx.filter_vjp(lambda x: fn(module, x), x)),
    },
}


def _called(fn: Any, x: Any) -> Any:
    return fn(x)


def _of_module(fn: Any) -> Any:
    return lambda module, x: fn(module.scope, x)


# -- without the library -----------------------------------------------------------------------------------------------


def plainly(unit: Unit, params: Any, state: Any, x: Any, root: Any, path: tuple[str, ...] = ()) -> Any:
    """The meaning of a unit: its result and its state after the call, as `{"n": …, "child": …}`."""
    after: dict[str, Any] = {}
    if unit.child is not None:
        x, below = _lifted(unit, _child(unit, params), state.get("child", {}), x, root, (*path, "child"))
        after |= {"child": below} if below else {}
    if unit.draws:
        x = x + jax.random.normal(liftcore.bind({}, {"noise": root}).below(path).make_rng("noise"))
    y = finished(unit, params["w"], state.get("n", 0.0), x)
    return y, after | ({"n": state["n"] + y.sum()} if unit.has_state else {})


def _child(unit: Unit, params: Any) -> Any:
    """Return the parameters of the child; `Applied` keeps them in a field."""
    applied = unit.style == "pytree" and unit.child is not None and unit.child.style != "pytree"
    return params["child"]["variables"]["params"] if applied else params["child"]


def _lifted(unit: Unit, params: Any, state: Any, x: Any, root: Any, path: tuple[str, ...]) -> Any:
    child: Any = unit.child
    lift = unit.lift.removesuffix("_lifted")

    def run(params: Any, state: Any, x: Any, root: Any = root) -> Any:
        return plainly(child, params, state, x, root, path)

    def item(tree: Any, number: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[number], tree)

    if lift == "own":
        return run(jax.tree.map(lambda leaf: leaf / 2, params), state, x)
    if lift == "vjp":
        y, pullback, after = jax.vjp(lambda x: run(params, state, x), x, has_aux=True)
        return _pulled(y, pullback), after
    keys = [None, None] if root is None else jax.random.split(root, 2)
    if lift == "vmap":
        each = [run(item(params, number), item(state, number), x, keys[number]) for number in (0, 1)]
        return each[0][0] + each[1][0], jax.tree.map(lambda *leaves: jnp.stack(leaves), each[0][1], each[1][1])
    if lift in ("scan", "shared"):
        for number in (0, 1):
            split = lift == "scan"
            x, state = run(*(item(params, number), state, x, keys[number]) if split else (params, state, x))
        return x, state
    return run(params, state, x)


def begun(unit: Unit, params: Any) -> Any:
    """The state of a unit before the first call of it: what is called to make it keeps what this call writes."""
    before = {"n": jnp.zeros(())} if unit.has_state else {}
    if unit.child is None:
        return before
    below = _child(unit, params)
    if unit.lift in ("vmap", "scan"):  # the elements are alike
        below = jax.tree.map(lambda leaf: leaf[0], below)
    if unit.lift == "own" and unit.style in ("scope", "linen"):  # the child is made in the lift
        below = jax.tree.map(lambda leaf: leaf / 2, below)
    state = begun(unit.child, below)
    if unit.style not in ("scope", "linen", unit.child.style):  # `ToNNX`, `Layer` and `Applied` call it
        state = plainly(unit.child, below, state, X, None)[1]
    if unit.lift == "vmap":
        state = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    return before | ({"child": state} if state else {})


# -- comparing ---------------------------------------------------------------------------------------------------------


def wrong(unit: Unit) -> str:
    """Return how the library differs from the plain run; empty if it does not."""
    model, noise = in_scope(unit), jax.random.key(1)
    y, made = liftcore.init(model)({"params": jax.random.key(0), "noise": noise}, X)
    params, state = made["params"], begun(unit, made["params"])
    found = _difference("init", (y, made.get("state", {})), plainly(unit, params, state, X, noise))
    if found:
        return found
    leaves, structure = jax.tree.flatten(params)  # elements that were made alike now differ
    spread = [leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape) for leaf in leaves]
    params = jax.tree.unflatten(structure, spread)

    def ours(params: Any) -> Any:
        variables = {"params": params, **({"state": state} if state else {})}
        y, changed = liftcore.apply(model, mutable=["state"])(variables, X, rngs={"noise": noise})
        return y.sum(), (y, changed.get("state", {}))

    def theirs(params: Any) -> Any:
        y, after = plainly(unit, params, state, X, noise)
        return y.sum(), (y, after)

    for call in ("first", "second"):
        (_, (y, after)), gradient = jax.value_and_grad(ours, has_aux=True)(params)
        (_, expected), slope = jax.value_and_grad(theirs, has_aux=True)(params)
        found = _difference(f"{call} call", (y, after, gradient), (*expected, slope))
        if found:
            return found
        state = after
    return ""


def _difference(name: str, found: Any, expected: Any) -> str:
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return f"{name} is {jax.tree.structure(found)}, expected {jax.tree.structure(expected)}"
    for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        if not np.allclose(one, other, rtol=1e-4, atol=1e-4):
            return f"{name}{jax.tree_util.keystr(path)} is {one}, expected {other}"
    return ""


def _raising(unit: Unit) -> str:
    try:
        return wrong(unit)
    except Exception as error:
        return f"raises {type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _kind(text: str) -> str:
    """Return which error a text is about; nothing for values that differ."""
    return text.split(":")[0] if text.startswith("raises ") else ""


def smaller(unit: Unit) -> Iterator[Unit]:
    """Yield units with one piece less."""
    if unit.child is not None:
        yield unit.child
        yield dataclasses.replace(unit, child=None, lift="none")
        yield from (dataclasses.replace(unit, child=child) for child in smaller(unit.child))
    for field, least in (("lift", "none"), ("has_state", False), ("draws", False)):
        if getattr(unit, field) != least:
            yield dataclasses.replace(unit, **{field: least})


def attempt(seed: int, without: frozenset[str], small: bool) -> tuple[str, str]:
    """Run the model of a seed: what is wrong, empty if nothing is, and the source of a model that fails."""
    del without
    draw = random.Random(seed)
    unit = program(draw, draw.choice((1, 2, 2)))
    found = _raising(unit)
    while found and small:
        tried = ((other, _raising(other)) for other in smaller(unit))
        other, text = next(((other, text) for other, text in tried if text and _kind(text) == _kind(found)), (None, ""))
        if other is None:
            break
        unit, found = other, text
    return found, repr(unit) if found else ""

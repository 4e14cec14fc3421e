"""Random programs of pytree modules: nested filtered transformations, beside plain Python loops and raw JAX.

A program is a tree of units. A unit has arrays, numbers, functions, a state, a static configuration and children, and
the names of the transformations around its call. `called` runs it with the library; `plainly` has the same meaning
without it: loops in place of maps and scans, `if` in place of branches, and derivatives of JAX over lists of arrays.
A program runs several times: some calls change a configuration in place first, and no other call may be traced again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import equinox_like as eqx
import liftcore

__all__ = ["attempt", "program", "run"]


class Config:
    """Is equal only to itself."""

    def __init__(self, width: int) -> None:
        self.width = width


@dataclasses.dataclass
class Data:
    """Is equal to others, and changes in place."""

    width: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Never changes."""

    width: int


MARKER = Config(2)
CONFIGS: dict[str, Callable[[int], Any]] = {
    "an object": Config,
    "a dataclass": Data,
    "a frozen dataclass": Frozen,
    "a list of objects": lambda width: [Config(width), {"a": Data(width)}],
    "an object in an object": lambda width: Config(Data(width)),  # type: ignore[arg-type]
    "a number": lambda width: width,
    "a logger": lambda width: logging.getLogger("fuzz"),
    "a slice": slice,
    "markers": lambda width: frozenset({MARKER}),
    "a dtype": lambda width: np.dtype("float32"),
    "a partial": lambda width: functools.partial(width_of, Config(width)),
}
NUMBERS: tuple[Callable[[], Any], ...] = (
    lambda: 2,
    lambda: 0.5,
    lambda: True,
    lambda: np.float32(2),
    lambda: jnp.float32(1.5),
    lambda: jnp.arange(3.0),
)


def width_of(config: Any) -> int:
    """The number that a configuration stands for."""
    if isinstance(config, list):
        return width_of(config[0]) + width_of(config[1]["a"])
    if isinstance(config, slice):
        return int(config.stop)
    if isinstance(config, functools.partial):
        return int(config())
    return width_of(config.width) if hasattr(config, "width") else config if isinstance(config, int) else 1


class Unit(eqx.Module):
    """A part of a program."""

    w: Any
    factor: Any
    act: Any
    state: Any
    children: tuple[Unit, ...]
    config: Any = eqx.field(static=True)
    around: tuple[str, ...] = eqx.field(static=True)

    def step(self, call: Callable[..., Any], x: Any) -> Any:
        """The unit without its own transformations: the result, and the unit with new states."""
        RUNS.append(self.around)
        y = self.act(self.w * x) * self.factor + width_of(self.config)
        children = []
        for child in self.children:
            y, child = call(child, y)
            children.append(child)
        return y, dataclasses.replace(self, state=self.state + y.sum(), children=tuple(children))

    def under(self, names: tuple[str, ...], x: Any) -> Any:
        """A method that `filter_jit` takes."""
        return under(names, self, x)


RUNS: list[Any] = []
"""The traces of units."""


# -- with the library --------------------------------------------------------------------------------------------------


def called(unit: Unit, x: Any) -> Any:
    """Call a unit under its transformations."""
    return under(unit.around, unit, x)


def under(names: tuple[str, ...], unit: Unit, x: Any) -> Any:
    """Call a unit under some of its transformations, the outermost first."""
    if not names:
        return unit.step(called, x)
    return TRANSFORMATIONS[names[0]](eqx.Partial(under, names[1:]), unit, x)


def _stacked(fn: Any, unit: Unit, x: Any) -> Any:
    ys, units = eqx.filter_vmap(fn, in_axes=(None, 0))(unit, jnp.stack([x, 2 * x]))
    return ys.sum(0), jax.tree.map(lambda leaf: leaf[1] if eqx.is_array(leaf) else leaf, units)


def _ensemble(fn: Any, unit: Unit, x: Any) -> Any:
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]) if eqx.is_array(leaf) else leaf, unit)
    ys, units = eqx.filter_vmap(fn, kwargs={"x": None}, args=(eqx.if_array(0),))(twice, x)
    return ys.sum(0), jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, units)


def _grad(fn: Any, unit: Unit, x: Any) -> Any:
    gradient, changed = eqx.filter_grad(lambda unit: (lambda y, unit: (y.sum(), unit))(*fn(unit, x)), has_aux=True)(
        unit
    )
    return gradient.w, changed


def _scan(fn: Any, unit: Unit, x: Any) -> Any:
    def body(scope: Any, carry: Any, _: Any) -> Any:
        y, unit = fn(*carry[::-1])
        return (jnp.tanh(y), unit), None

    (y, unit), _ = liftcore.apply(liftcore.filtered(functools.partial(liftcore.scan, length=2), body))(
        {}, (x, unit), None
    )
    return y, unit


def _cond(fn: Any, unit: Unit, x: Any) -> Any:
    def positive(scope: Any, unit: Unit, x: Any) -> Any:
        return fn(unit, x)

    def negative(scope: Any, unit: Unit, x: Any) -> Any:
        return fn(unit, -x)

    lifted = liftcore.filtered(liftcore.cond, positive, negative)
    return liftcore.apply(lambda scope, pred, unit, x: lifted(scope, pred, unit, x))({}, x.sum() > 0, unit, x)


def _custom_vjp(fn: Any, unit: Unit, x: Any) -> Any:
    ruled = eqx.filter_custom_vjp(lambda pair: fn(*pair))

    def backward(residuals: Any, cotangent: Any, perturbed: Any, pair: Any) -> Any:
        def inexact(pair: Any) -> Any:
            return eqx.filter(fn(*pair), eqx.is_inexact_array)

        full = jax.tree.map(_given, cotangent, inexact(pair), is_leaf=lambda one: one is None)
        return eqx.filter_vjp(inexact, pair)[1](full)[0]

    ruled.def_fwd(lambda perturbed, pair: (ruled(pair), None))
    ruled.def_bwd(backward)
    return ruled((unit, x))


def _given(way: Any, leaf: Any) -> Any:
    """A cotangent, with zeros in place of None."""
    return jnp.zeros_like(leaf) if way is None and leaf is not None else way


def _custom_jvp(fn: Any, unit: Unit, x: Any) -> Any:
    ruled = eqx.filter_custom_jvp(lambda x, unit: fn(unit, x)[0])

    @ruled.def_jvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, unit), (along, along_unit) = primals, tangents
        ways = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else None, (x, unit))
        ways = eqx.combine((along, along_unit), ways)
        return eqx.filter_jvp(lambda x, unit: fn(unit, x)[0], (x, unit), ways)

    return ruled(x, unit), unit


def _jvp(fn: Any, unit: Unit, x: Any) -> Any:
    return eqx.filter_jvp(lambda x: fn(unit, x)[0], (x,), (x,))[1], unit


TRANSFORMATIONS: dict[str, Callable[[Any, Unit, Any], Any]] = {
    "jit": lambda fn, unit, x: eqx.filter_jit(fn)(unit, x),
    "jit of a method": lambda fn, unit, x: eqx.filter_jit(unit.under)(*fn.args, x),
    "jit of a partial": lambda fn, unit, x: eqx.filter_jit(eqx.Partial(fn, unit))(x),
    "jit by older options": lambda fn, unit, x: eqx.filter_jit(under, kwargs={"x": True})(*fn.args, unit=unit, x=x),
    "vmap": _stacked,
    "vmap of an ensemble": lambda fn, unit, x: _ensemble(functools.partial(_by_name, fn), unit, x),
    "grad": _grad,
    "jvp": _jvp,
    "scan": _scan,
    "cond": _cond,
    "remat": lambda fn, unit, x: eqx.filter_checkpoint(fn)(unit, x),
    "custom_vjp": _custom_vjp,
    "custom_jvp": _custom_jvp,
    "closure_convert": lambda fn, unit, x: eqx.filter_closure_convert(lambda x: fn(unit, x), x)(x),
}


def _by_name(fn: Any, unit: Unit, x: Any) -> Any:
    return fn(unit, x)


# -- without the library -----------------------------------------------------------------------------------------------


def plainly(unit: Unit, x: Any) -> Any:
    """The meaning of `called`."""
    return plain(unit.around, unit, x)


def plain(names: tuple[str, ...], unit: Unit, x: Any) -> Any:
    """The meaning of `under`."""
    if not names:
        return unit.step(plainly, x)
    fn = functools.partial(plain, names[1:])
    return PLAIN.get(names[0], lambda fn, unit, x: fn(unit, x))(fn, unit, x)


def _loop(fn: Any, unit: Unit, x: Any) -> Any:
    (y, _), (other, unit) = fn(unit, x), fn(unit, 2 * x)
    return y + other, unit


def _each(fn: Any, unit: Unit, x: Any) -> Any:
    more = jax.tree.map(lambda leaf: leaf + 1 if eqx.is_array(leaf) else leaf, unit)
    (y, unit), (other, _) = fn(unit, x), fn(more, x)
    return y + other, unit


def _repeated(fn: Any, unit: Unit, x: Any) -> Any:
    for _ in range(2):
        y, unit = fn(unit, x)
        x = jnp.tanh(y)
    return x, unit


def _derived(fn: Any, unit: Unit, x: Any) -> Any:
    gradient = jax.grad(lambda w: fn(dataclasses.replace(unit, w=w), x)[0].sum())(unit.w)
    return gradient, fn(unit, x)[1]


PLAIN: dict[str, Callable[[Any, Unit, Any], Any]] = {
    "vmap": _loop,
    "vmap of an ensemble": _each,
    "scan": _repeated,
    "cond": lambda fn, unit, x: fn(unit, jax.lax.select(x.sum() > 0, x, -x)),
    "grad": _derived,
    "jvp": lambda fn, unit, x: (jax.jvp(lambda x: fn(unit, x)[0], (x,), (x,))[1], unit),
    "custom_jvp": lambda fn, unit, x: (fn(unit, x)[0], unit),
}


# -- programs ----------------------------------------------------------------------------------------------------------


def program(draw: random.Random, depth: int = 2, shared: Any = None) -> Unit:
    """A random unit with its children.

    Args:
        draw: the source of randomness.
        depth: the largest number of levels.
        shared: an array that units may share.
    """
    own = jnp.asarray([draw.uniform(-1, 1) for _ in range(3)], jnp.float32)
    shared = own if shared is None else shared
    children = [program(draw, depth - 1, shared) for _ in range(draw.choice((0, 1, 1, 2)) if depth else 0)]
    return Unit(
        w=draw.choice((own, shared)),
        factor=draw.choice(NUMBERS)(),
        act=draw.choice((jnp.tanh, jax.nn.relu, jnp.sin, eqx.Partial(jnp.multiply, own))),
        state=jnp.float32(0),
        children=tuple(children),
        config=CONFIGS[draw.choice(list(CONFIGS))](draw.randint(1, 4)),
        around=tuple(draw.choice(list(TRANSFORMATIONS)) for _ in range(draw.choice((0, 1, 1, 2)))),
    )


def _changed(unit: Unit) -> bool:
    """Change a configuration of the program in place, if one can change."""
    for one in jax.tree.leaves(unit, is_leaf=lambda node: isinstance(node, Unit)):
        config = one.config[1]["a"] if isinstance(one.config, list) else one.config
        if isinstance(config, Config | Data) and config is not MARKER and isinstance(config.width, int):
            config.width += 1
            return True
        if any(map(_changed, one.children)):
            return True
    return False


def _difference(found: Any, expected: Any) -> str | None:
    """How a result differs from the expected one."""
    leaves, others = jax.tree.leaves_with_path(found), jax.tree.leaves(expected)
    if len(leaves) != len(others):
        return f"{len(leaves)} leaves, expected {len(others)}"
    for (path, one), other in zip(leaves, others, strict=True):
        place = jax.tree_util.keystr(path)
        if not eqx.is_array(other):
            if type(one) is not type(other) or not (one is other or one == other):
                return f"{place}: {one!r}, expected {other!r}"
        elif not np.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True):
            return f"{place}: {one}, expected {other}"
    return None


def run(seed: int) -> str | None:
    """Run the program of a seed.

    Args:
        seed: the number of the program.

    Returns:
        How the library differs from the plain run, with the program; None if it does not.
    """
    unit, x = program(random.Random(seed)), jnp.asarray([0.5, -1.0, 2.0])
    step = eqx.filter_jit(called)
    for number in range(4):
        if number == 2 and not _changed(unit):
            continue
        RUNS.clear()
        try:
            found = step(unit, x)
        except Exception as error:
            if "forward-mode autodiff (jvp) to a custom_vjp" in str(error):
                return None  # JAX has no such derivative
            return f"call {number} raises {type(error).__name__}: {error}\n{unit}"
        if RUNS and number in (1, 3):
            return f"call {number} is traced again: {RUNS}\n{unit}"
        different = _difference(found, plainly(unit, x))
        if different is not None:
            return f"call {number}: {different}\n{unit}"
    return None


def attempt(seed: int, without: frozenset[str], small: bool) -> tuple[str, str]:
    """Runs the program of a seed, which is not made smaller: what is wrong, empty if nothing is, and no source."""
    del without, small
    return run(seed) or "", ""
